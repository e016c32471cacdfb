"""Arrays that took long to make, kept in the user's cache."""

import hashlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np

from rookery.datasets.files import DataError, cache_folder
from rookery.files import replacing


def kept(dataset: str, key: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays by name, read-only: those kept under this key, else what ``make`` gives, which is kept from now on."""
    arrays = _recall(dataset, key)
    if arrays is None:
        arrays = make()
        with suppress(OSError, DataError):  # without a cache that can be written to, they are made each time
            _keep(dataset, key, arrays)
    for array in arrays.values():
        array.flags.writeable = False
    return arrays


def fingerprint(parts: Iterable[str]) -> str:
    """A short key for what arrays are made of."""
    return hashlib.sha256(" ".join(parts).encode()).hexdigest()[:16]


def _path(dataset: str, key: str) -> Path:
    return cache_folder(dataset) / f"decoded-{key}.npz"


def _recall(dataset: str, key: str) -> dict[str, np.ndarray] | None:
    """What was kept, or None if it cannot be read; the zip container of the arrays has checksums."""
    try:
        with np.load(_path(dataset, key)) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception:  # however it is damaged, it is made again
        return None


def _keep(dataset: str, key: str, arrays: dict[str, np.ndarray]) -> None:
    with replacing(_path(dataset, key)) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # mypy takes a name for allow_pickle
