"""Data sets of labelled images, by name."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rookery.datasets.dataset import Dataset
from rookery.datasets.download import fetch
from rookery.datasets.files import DataError
from rookery.datasets.formats import read_cifar, read_idx
from rookery.datasets.imagenet import DEVIATION, MEAN, read_tiny_imagenet
from rookery.datasets.sklearn_digits import digits
from rookery.datasets.sources import published

Part = tuple[np.ndarray, np.ndarray]
Pixel = float | tuple[float, ...]
"""One number, or one for each colour."""


@functools.cache
def load(name: str) -> Dataset:
    """The data set of this name: "digits", "mnist", "fashion-mnist", "cifar-10" or "tiny-imagenet".

    Its files are looked for in $ROOKERY_DATA/<name>/, then in the user's cache, else downloaded, but for Tiny-ImageNet,
    which a user must provide. The arrays are read-only: everybody who asks gets the same ones.
    """
    published(name)
    if name == "omniglot":
        raise ValueError("name='omniglot': has alphabets instead of a training and a test part; use load_omniglot()")
    if name == "mini-imagenet":
        raise ValueError("name='mini-imagenet': its parts have other classes each; use load_mini_imagenet()")
    data = digits() if name == "digits" else _read(name)
    for array in (data.train_inputs, data.train_labels, data.test_inputs, data.test_labels):
        array.flags.writeable = False
    return data


def _read(name: str) -> Dataset:
    read, mean, deviation = _READERS[name]
    train, test = read(fetch(name))
    return Dataset(name, *train, *test, mean, deviation)


def _idx(paths: list[Path]) -> tuple[Part, Part]:
    return _idx_part(*paths[:2]), _idx_part(*paths[2:])


def _idx_part(images_path: Path, labels_path: Path) -> Part:
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise DataError(f"{images_path} and {labels_path}: shapes {images.shape} and {labels.shape} do not fit")
    return images, labels.astype(np.int32)


def _cifar(paths: list[Path]) -> tuple[Part, Part]:
    *train, test = (read_cifar(path) for path in paths)
    images, labels = zip(*train, strict=True)
    return (np.concatenate(images), np.concatenate(labels)), test


# Mean and standard deviation of the training pixels, 0..255. MNIST's are rounded as everybody rounds them.
_READERS: dict[str, tuple[Callable[[list[Path]], tuple[Part, Part]], Pixel, Pixel]] = {
    "mnist": (_idx, 0.1307 * 255, 0.3081 * 255),
    "fashion-mnist": (_idx, 72.94035223, 90.02118235),
    "cifar-10": (_cifar, (125.30691805, 122.95039414, 113.86538318), (62.99321928, 62.08870764, 66.70489964)),
    "tiny-imagenet": (read_tiny_imagenet, MEAN, DEVIATION),  # ImageNet's, not its own
}
