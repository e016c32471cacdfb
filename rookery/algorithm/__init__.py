"""What an algorithm is, and how a round of it is walked through."""
