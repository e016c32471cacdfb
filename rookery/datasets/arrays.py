"""Arrays as a user's data: those of an .npz file, and NumPy's, JAX's, PyTorch's and pandas' own in memory."""

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rookery.datasets.columns import Column, Kind, of_array
from rookery.datasets.user_file import UserFile

ROLES = {"label": "labels", "client": "clients", "checked": "checked"}
"""What arrays are called that are not inputs."""


def open_npz(path: Path) -> UserFile:
    """An .npz file with the array ``features`` (rows, columns) or ``images``; ``labels``, ``clients``, ``checked``."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            if not isinstance(stored, np.lib.npyio.NpzFile):
                raise ValueError("a single array")
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path}: not a whole .npz file of plain arrays: {reason}") from error
    given = [name for name in ("features", "images") if name in arrays]
    if len(given) != 1:
        raise ValueError(
            f"{path}: must have an array 'features' or an array 'images', has {', '.join(arrays) or 'none'}"
        )
    return of_arrays(str(path), arrays.pop(given[0]), arrays, given[0])


def of_arrays(origin: str, features: Any, others: Mapping[str, Any], called: str = "features") -> UserFile:
    """Features and, by their names, what else is known of each row; a pandas table keeps the names of its columns."""
    where = origin if origin == called else f"{origin}: {called}"
    defaults = {role: name for role, name in ROLES.items() if name in others}
    beside = {name: as_array(values, f"{origin}: {name}") for name, values in others.items()}
    if hasattr(features, "columns"):
        table = {str(name): as_array(features[name], f"{where}[{name!r}]") for name in features.columns}
        count = len(features)
    else:
        array = as_array(features, where)
        if array.ndim in (3, 4):
            return _images(where, array, beside, defaults)
        if array.ndim != 2:
            raise ValueError(
                f"{where}: must have two axes (a table) or three or four (images), has shape {array.shape}"
            )
        if array.dtype.kind not in "fiub":
            raise ValueError(f"{where}: must be numbers, are {array.dtype}; words are for CSV, Parquet and pandas")
        table = {f"feature_{j}": column for j, column in enumerate(array.T)}
        count = len(array)

    def read(kinds: Mapping[str, Kind | None]) -> dict[str, Column]:
        return _columns(table | beside, kinds, origin, count)

    return UserFile(origin, tuple(table), read, tuple(name for name in beside if name not in table), defaults=defaults)


def as_array(values: Any, where: str) -> np.ndarray:
    """Whatever NumPy can read; PyTorch's tensors from any device, with a gradient or not."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        return np.asarray(values)
    except Exception as error:  # whatever the object's own conversion raises
        raise TypeError(f"{where}: {type(values).__name__} is not an array: {error}") from error


def image_array(images: np.ndarray, where: str) -> np.ndarray:
    """Images (n, height, width) or (n, height, width, colours): bytes stay as they are, other numbers become float32."""
    if images.ndim == 4 and images.shape[1] in (1, 3) and images.shape[3] > 4:
        raise ValueError(
            f"{where}: shape {images.shape} has the colours first; they must come last: permute(0, 2, 3, 1)"
        )
    if images.dtype.kind not in "fiub" or images.size == 0:
        raise ValueError(f"{where}: must be images of numbers, are {images.dtype} of shape {images.shape}")
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    if images.dtype != np.uint8:
        images = images.astype(np.float32)
        if not np.isfinite(images).all():
            bad = int(np.argmin(np.isfinite(images).reshape(len(images), -1).all(1)))
            raise ValueError(f"{where}: image {bad} has a pixel that is not a finite number")
    return images


def _images(where: str, array: np.ndarray, beside: Mapping[str, np.ndarray], defaults: Mapping[str, str]) -> UserFile:
    def images(shape: tuple[int, ...] | None) -> np.ndarray:
        found = image_array(array, where)
        if shape is not None and found.shape[1:] != shape:
            raise ValueError(f"{where}: images of shape {found.shape[1:]}, must be {shape}")
        return found

    def read(kinds: Mapping[str, Kind | None]) -> dict[str, Column]:
        return _columns(beside, kinds, where, len(array))

    return UserFile(where, (), read, tuple(beside), images, np.arange(len(array)), defaults)


def _columns(
    arrays: Mapping[str, np.ndarray], kinds: Mapping[str, Kind | None], origin: str, count: int
) -> dict[str, Column]:
    for name in kinds:
        if arrays[name].shape != (count,):
            raise ValueError(
                f"{origin}: {name} has shape {arrays[name].shape}, must be ({count},) as there are {count} rows"
            )
    return {name: of_array(arrays[name], f"{origin}: {name}", kind) for name, kind in kinds.items()}
