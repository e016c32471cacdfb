"""Data sets: published ones, read from the official files, which are found or downloaded and verified; one's own.

Those that nobody may hand on are read where a user has put them.
"""

from rookery.datasets.dataset import Dataset
from rookery.datasets.download import fetch
from rookery.datasets.encoding import Encoding
from rookery.datasets.files import DataError, verify
from rookery.datasets.imagenet import MiniImageNet, load_mini_imagenet
from rookery.datasets.images import load
from rookery.datasets.omniglot import Omniglot, load_omniglot
from rookery.datasets.own import OwnFile, from_arrays
from rookery.datasets.sklearn_digits import digits
from rookery.datasets.sources import DATASETS

__all__ = [
    "DATASETS",
    "DataError",
    "Dataset",
    "Encoding",
    "MiniImageNet",
    "Omniglot",
    "OwnFile",
    "digits",
    "fetch",
    "from_arrays",
    "load",
    "load_mini_imagenet",
    "load_omniglot",
    "verify",
]
