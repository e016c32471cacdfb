"""What is solved: problems, their data, and derivatives."""
