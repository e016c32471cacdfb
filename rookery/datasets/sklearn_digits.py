"""scikit-learn's handwritten digits: the data set that needs no download."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from rookery.datasets.dataset import Dataset
from rookery.datasets.files import DataError


def digits(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """1797 images of 8×8 pixels with values 0..16, ten classes; a random part is kept for testing."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise DataError("digits: scikit-learn, which holds them, is not installed")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"  # its import alone takes 1.5 s
    rows = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    images, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1].astype(np.int32)
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = np.split(order, [round(test_fraction * len(order))])
    mean, deviation = float(images[train].mean()), float(images[train].std())
    return Dataset("digits", images[train], labels[train], images[test], labels[test], mean, deviation)
