"""Columns of a table: numbers or words, made of cells as they come, without keeping the cells."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["numbers", "words"]
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?", "<NA>", "NaT")
"""Cells that say that nothing is known."""
_LONGEST = 40  # characters of a cell that a message repeats


@dataclass(frozen=True)
class Numbers:
    """A column of numbers; NaN where one is missing."""

    values: np.ndarray

    @property
    def missing(self) -> np.ndarray:
        """Where there is none."""
        found: np.ndarray = np.isnan(self.values)
        return found


@dataclass(frozen=True)
class Words:
    """A column of words: of each row the number of its category, −1 where it is missing."""

    codes: np.ndarray
    categories: tuple[str, ...]

    @property
    def missing(self) -> np.ndarray:
        """Where there is none."""
        found: np.ndarray = self.codes < 0
        return found


Column = Numbers | Words


class Cells:
    """Makes a column of cells (text, or None) that come in pieces.

    What is not told to be numbers or words is what most of the first cells look like; from then on, a cell that is no
    number in a column of numbers is an error. ``where`` is how an error calls the column.
    """

    def __init__(self, where: str, kind: Kind | None = None):
        self._where, self._kind = where, kind
        self._parts: list[np.ndarray] = []
        self._codes = _Codes()
        self._count = 0

    def add(self, cells: Sequence[str | None]) -> None:
        """The next rows."""
        if self._kind is None:
            self._kind = _kind(cells)
            if self._kind and self._count:
                self._parts.append(self._nothing(self._count))
        if self._kind == "numbers":
            self._parts.append(self._numbers(cells))
        elif self._kind == "words":
            self._parts.append(np.fromiter(map(self._codes.__getitem__, cells), np.int32, len(cells)))
        self._count += len(cells)

    def column(self) -> Column:
        """All of them. Nothing can be added afterwards."""
        whole = np.concatenate(self._parts) if self._parts else self._nothing(self._count)
        self._parts = []
        if self._kind == "words":
            return Words(whole, tuple(self._codes.categories))
        return Numbers(whole)

    def _nothing(self, count: int) -> np.ndarray:
        return np.full(count, -1, np.int32) if self._kind == "words" else np.full(count, np.nan)

    def _numbers(self, cells: Sequence[str | None]) -> np.ndarray:
        try:
            if "_" not in "".join(cells):  # type: ignore[arg-type]  # Python reads 1_2 as 12; None is seen to below
                return np.fromiter(map(float, cells), float, len(cells))  # type: ignore[arg-type]
        except (ValueError, TypeError):
            pass
        return np.array([self._number(cell, self._count + at) for at, cell in enumerate(cells)], float)

    def _number(self, cell: str | None, row: int) -> float:
        if _is_missing(cell):
            return math.nan
        value = _parsed(str(cell))
        if value is None:
            comma = " (write a decimal point, not a comma)" if _parsed(str(cell).replace(",", ".")) is not None else ""
            raise ValueError(
                f"{self._where}, row {row}: {shown(cell)} is not a number{comma}; mend it, or ignore the column"
            )
        return value


class _Codes(dict[Any, int]):
    """From a cell to the number of its category, which is given when it is first seen."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys((None, *MISSING), -1))
        self.categories: list[str] = []

    def __missing__(self, cell: Any) -> int:
        text = str(cell).strip()
        if text not in self:
            self[text] = len(self.categories)
            self.categories.append(text)
        self[cell] = self[text]
        return self[cell]


def of_array(values: np.ndarray, where: str, kind: Kind | None = None) -> Column:
    """A column of an array with one axis: of numbers, truth values, text or objects."""
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind not in "fiubUOT":
        raise ValueError(f"{where}: values of type {values.dtype} are neither numbers nor words; ignore the column")
    if values.dtype.kind in "fiub":
        if kind != "words":
            return Numbers(values.astype(float))
        distinct, codes = np.unique(values, return_inverse=True)
        known = [plain(value) for value in distinct.tolist() if value == value]  # NaN comes last
        return Words(np.where(codes < len(known), codes, -1).astype(np.int32), tuple(known))
    cells = Cells(where, kind)
    cells.add([None if cell is None else str(cell) for cell in values.tolist()])
    return cells.column()


def numbered(words: Words, as_numbers: bool) -> tuple[np.ndarray, tuple[str, ...]]:
    """Of each row the place of its category in their order, and the categories: numbers by size, words by alphabet.

    ``as_numbers`` takes categories that are the same number ("1", "1.0") for one.
    """
    values = [_parsed(each) for each in words.categories]
    numeric = all(value is not None for value in values)
    names = [plain(value) for value in values] if as_numbers and numeric else list(words.categories)
    order = dict(zip(names, values, strict=True))
    ordered = sorted(order, key=(lambda name: (order[name], name)) if numeric else None)
    places = {name: place for place, name in enumerate(ordered)}
    table = np.array([*(places[name] for name in names), -1], np.int32)  # the last is that of code −1
    return table[words.codes], tuple(ordered)


def plain(value: Any) -> str:
    """A number as a person writes it: 3, not 3.0."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)


def shown(cell: Any) -> str:
    """A cell in a message."""
    text = str(cell)
    return repr(text if len(text) <= _LONGEST else text[:_LONGEST] + "…")


def listed(names: Iterable[str], most: int = 5) -> str:
    """Some names in a message."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(map(shown, names[:most])) + more


def _is_missing(cell: str | None) -> bool:
    return cell is None or cell.strip() in MISSING


def _parsed(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _kind(cells: Sequence[str | None]) -> Kind | None:
    """What most cells look like, None if all are missing. A decimal comma looks like a number, and is then refused."""
    known = [str(cell) for cell in cells if not _is_missing(cell)]
    if not known:
        return None
    numeric = sum(_parsed(cell.replace(",", ".")) is not None for cell in known)
    return "numbers" if 2 * numeric > len(known) else "words"
