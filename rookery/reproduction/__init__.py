"""The papers' experiments, and the page that compares them."""
