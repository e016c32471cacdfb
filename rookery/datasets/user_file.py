"""What a user's file has to offer, whatever its format: named columns, images, and which of them are the labels."""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from rookery.datasets.columns import Column, Kind
from rookery.names import unknown

_MOST_NAMES = 20  # that a message lists


@dataclass(frozen=True)
class UserFile:
    """A file that was opened: the names in it are known, nothing else of it was read.

    Attributes:
        origin: What messages call it.
        names: Columns that can be inputs.
        read: Reads columns, as numbers, as words or as what they look like (None).
        others: Columns that cannot be inputs: arrays beside the features, classes and clients of folders.
        images: Reads the images in place of columns; of this shape, if one is given.
        rows: Where each row stands, if not simply by its number.
        defaults: Columns that are the "label", "client" and "checked" without being named.
    """

    origin: str
    names: tuple[str, ...]
    read: Callable[[Mapping[str, Kind | None]], dict[str, Column]]
    others: tuple[str, ...] = ()
    images: Callable[[tuple[int, ...] | None], np.ndarray] | None = None
    rows: np.ndarray | None = None
    defaults: Mapping[str, str] = field(default_factory=dict)


def no_column(argument: str, name: str, file: UserFile) -> ValueError:
    """The error for a column that is not there, with the nearest that is."""
    names = [*file.names, *file.others]
    if len(names) > _MOST_NAMES:
        near = difflib.get_close_matches(name, names, 3, 0.4)
        names = [*near, *(each for each in names[:_MOST_NAMES] if each not in near), "…"]
    return ValueError(f"{argument}={name!r}: in {file.origin} {unknown(name, names)}")
