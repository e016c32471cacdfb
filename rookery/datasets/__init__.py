"""Data sets."""

from rookery.datasets.digits import Dataset, digits

__all__ = ["Dataset", "digits"]
