"""scikit-learn's handwritten digits: the data set that needs no download."""

import numpy as np
from sklearn.datasets import load_digits

from rookery.datasets.dataset import Dataset


def digits(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """1797 images of 8×8 pixels with values 0..16, ten classes; a random part is kept for testing."""
    loaded = load_digits()
    images, labels = loaded.images.astype(np.uint8), loaded.target.astype(np.int32)
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = np.split(order, [round(test_fraction * len(order))])
    mean, deviation = float(images[train].mean()), float(images[train].std())
    return Dataset("digits", images[train], labels[train], images[test], labels[test], mean, deviation)
