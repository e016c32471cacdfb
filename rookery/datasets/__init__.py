"""Data sets."""

from rookery.datasets.dataset import Dataset
from rookery.datasets.digits import digits

__all__ = ["Dataset", "digits"]
