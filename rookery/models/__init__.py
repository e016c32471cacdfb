"""Networks and losses for the tasks."""
