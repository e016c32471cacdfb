"""scikit-learn's handwritten digits: the data set that needs no download."""

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits


@dataclass(frozen=True)
class Dataset:
    """Images as they are stored (uint8) with their labels, in a training and a test part.

    An image becomes floats inside the compiled program: (pixel − mean)/deviation.
    """

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    mean: float
    deviation: float

    @property
    def classes(self) -> int:
        """The number of classes."""
        return int(self.train_labels.max()) + 1

    @property
    def pixels(self) -> int:
        """The number of pixels of an image."""
        return int(np.prod(self.train_images.shape[1:]))


def digits(test_fraction: float = 0.2, seed: int = 0) -> Dataset:
    """1797 images of 8×8 pixels with values 0..16, ten classes; a random part is kept for testing."""
    loaded = load_digits()
    images, labels = loaded.images.astype(np.uint8), loaded.target.astype(np.int32)
    order = np.random.default_rng(seed).permutation(len(labels))
    test, train = np.split(order, [round(test_fraction * len(order))])
    mean, deviation = float(images[train].mean()), float(images[train].std())
    return Dataset(images[train], labels[train], images[test], labels[test], mean, deviation)
