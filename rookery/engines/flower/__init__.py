"""Real federations: the same algorithms on Flower's nodes. Only ``wire`` imports Flower."""
