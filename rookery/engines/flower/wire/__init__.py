"""What crosses between server and nodes, and what carries it."""
