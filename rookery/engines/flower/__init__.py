"""Real federations: the same algorithms on Flower's nodes. Only ``adapter.py`` and ``grid.py`` import Flower."""
