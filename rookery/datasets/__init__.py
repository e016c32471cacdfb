"""Data sets: read from the official files, which are found on this machine or downloaded and always verified."""

from rookery.datasets.dataset import Dataset
from rookery.datasets.download import fetch
from rookery.datasets.files import DataError, verify
from rookery.datasets.images import load
from rookery.datasets.omniglot import Omniglot, load_omniglot
from rookery.datasets.sklearn_digits import digits
from rookery.datasets.sources import DATASETS

__all__ = ["DATASETS", "DataError", "Dataset", "Omniglot", "digits", "fetch", "load", "load_omniglot", "verify"]
