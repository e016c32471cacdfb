"""The table of a run."""

import csv
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np


class History:
    """One row an evaluation: ``history["accuracy"]`` is a column as an array.

    Columns: round, exchanges, bytes_down, bytes_up, the oracle calls, seconds, then what ``evaluate`` returned. A batch
    of runs adds an axis of lanes to every column but ``round`` and ``seconds``.
    """

    def __init__(self, rows: list[dict[str, Any]] | None = None):
        self.rows: list[dict[str, Any]] = [] if rows is None else list(rows)

    def append(self, row: Mapping[str, Any]) -> None:
        """Adds a row."""
        self.rows.append(dict(row))

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __getitem__(self, column: str) -> np.ndarray:
        if column not in self.columns:
            raise KeyError(f"no column {column!r}; there are {', '.join(self.columns)}")
        return np.array([row.get(column, np.nan) for row in self.rows])

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    @property
    def last(self) -> dict[str, Any]:
        """The last row."""
        return self.rows[-1]

    def lane(self, lane: int) -> "History":
        """The table of one run of a batch."""
        return History([{name: v[lane] if np.ndim(v) else v for name, v in row.items()} for row in self.rows])

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the table; a column of a batch becomes one column a lane, ``name[lane]``."""
        spread = [_spread(row) for row in self.rows]
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for row in spread for name in row)))
            writer.writeheader()
            writer.writerows(spread)

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "History":
        """Reads what :meth:`to_csv` wrote."""
        with open(path, newline="") as file:
            return cls([_gathered(row) for row in csv.DictReader(file)])

    def __repr__(self) -> str:
        return f"History({len(self)} rows: {', '.join(self.columns)})"


def _gathered(row: Mapping[str, str]) -> dict[str, Any]:
    """A row from its cells: columns ``name[0]``, ``name[1]``, ... become one array."""
    cells: dict[str, list[Any]] = {}
    batched = set()
    for column, text in row.items():
        name, bracket, _ = column.partition("[")
        if bracket:
            batched.add(name)
        if text:
            cells.setdefault(name, []).append(int(text) if text.lstrip("-").isdigit() else float(text))
    return {name: np.array(values) if name in batched else values[0] for name, values in cells.items()}


def _spread(row: dict[str, Any]) -> dict[str, Any]:
    return {
        (f"{name}[{lane}]" if np.ndim(value) else name): each.item()
        for name, value in row.items()
        for lane, each in enumerate(np.atleast_1d(value))
    }
