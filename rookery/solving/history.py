"""The table of a run."""

import csv
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rookery.problem.oracles import UNITS
from rookery.solving.notebook import lane_mean, number, paragraph, table

COSTS = ("round", "exchanges", "bytes_down", "bytes_up", *UNITS, "seconds", "epsilon")
"""The columns that are no metrics."""
_ENDS = 3
"""Rows that a notebook shows at either end."""
_LANE = re.compile(r"(.*)\[([0-9]{1,9})\]", re.DOTALL)
_WHOLE = re.compile(r"-?[0-9]{1,18}")  # more digits would not fit where they are counted


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
    def metrics(self) -> list[str]:
        """The names of the columns that ``evaluate`` returned."""
        return [name for name in self.columns if name not in COSTS]

    def has_cost(self, name: str) -> bool:
        """Whether there is any cost of this name."""
        return name in self.columns and bool(np.any(self.by_lane(name)))

    def by_lane(self, column: str) -> np.ndarray:
        """A column as floats, (rows, lanes): one lane of a run that is no batch."""
        cells = [np.atleast_1d(np.asarray(row.get(column, np.nan), float)) for row in self.rows]
        width = max(map(len, cells), default=1)  # a row that does not have it is one NaN
        return np.array([np.broadcast_to(cell, width) for cell in cells]).reshape(len(self), width)

    @property
    def last(self) -> dict[str, Any]:
        """The last row."""
        return self.rows[-1]

    def lane(self, lane: int) -> "History":
        """The table of one run of a batch."""
        return History([{name: v[lane] if np.ndim(v) else v for name, v in row.items()} for row in self.rows])

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the table; a column of a batch becomes one column a lane, ``name[lane]``."""
        Path(path).write_text(self.as_csv(), newline="")

    def as_csv(self) -> str:
        """What :meth:`to_csv` writes."""
        spread = [_spread(row) for row in self.rows]
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in spread for name in row)))
        writer.writeheader()
        writer.writerows(spread)
        return text.getvalue()

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "History":
        """Reads what :meth:`to_csv` wrote.

        Raises:
            ValueError: it is not such a table: a row too long or too short, what is no number, a lane that is missing.
        """
        try:
            with open(path, newline="", encoding="utf-8") as file:
                return cls.of_csv(file.read())
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None

    @classmethod
    def of_csv(cls, text: str) -> "History":
        """The table in a text."""
        try:
            lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
        except csv.Error as error:
            raise ValueError(str(error)) from None
        head = lines[0] if lines else []
        if len(set(head)) < len(head):
            raise ValueError("a column is there twice")
        return cls([_gathered(head, cells, f"row {number}") for number, cells in enumerate(lines[1:], 1)])

    def _repr_html_(self) -> str:
        """First and last rows, and where each metric was lowest and highest; of a batch the means over lanes."""
        if not self.rows:
            return paragraph("History: no rows")
        names = ["round", *self.metrics, *(name for name in COSTS[1:] if self.has_cost(name))]
        means = {name: lane_mean(self.by_lane(name)) for name in names}
        shown = [*range(min(_ENDS, len(self))), *range(max(_ENDS, len(self) - _ENDS), len(self))]
        rows = [["", *(number(means[name][row]) for name in names)] for row in shown]
        if len(self) > 2 * _ENDS:
            rows.insert(_ENDS, ["", *("…" for _ in names)])
        for word, place in (("lowest", np.nanargmin), ("highest", np.nanargmax)):
            rows.append([word, *(self._extreme(name, means[name], place) for name in names)])
        lanes = max(self.by_lane(name).shape[1] for name in names)
        about = f"History: {len(self)} rows" + (f", means over {lanes} lanes" if lanes > 1 else "")
        return paragraph(about) + table(["", *names], rows)

    def _extreme(self, name: str, values: np.ndarray, place: Callable[[np.ndarray], Any]) -> str:
        if name in COSTS or not np.isfinite(values).any():
            return ""
        where = int(place(values))
        return f"{number(values[where])} (round {number(self.rows[where]['round'])})"

    def __repr__(self) -> str:
        return f"History({len(self)} rows: {', '.join(self.columns)})"


def _gathered(head: list[str], cells: list[str], where: str) -> dict[str, Any]:
    """A row from its cells: columns ``name[0]``, ``name[1]``, ... become one array."""
    if len(cells) != len(head):
        raise ValueError(f"{where} has {len(cells)} cells for {len(head)} columns")
    found: dict[str, list[Any]] = {}
    batched = set()
    for column, text in zip(head, cells, strict=True):
        if not text:
            continue
        of_lane = _LANE.fullmatch(column)
        name = of_lane[1] if of_lane else column
        values = found.setdefault(name, [])
        if len(values) != (int(of_lane[2]) if of_lane else 0):
            raise ValueError(f"{where}: a lane of {name} is missing")
        if of_lane:
            batched.add(name)
        values.append(_number(text, f"{where}, {column}"))
    return {name: np.array(values) if name in batched else values[0] for name, values in found.items()}


def _number(text: str, where: str) -> int | float:
    if _WHOLE.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{where}: {text!r} is not a number") from None


def _spread(row: dict[str, Any]) -> dict[str, Any]:
    return {
        (f"{name}[{lane}]" if np.ndim(value) else name): each.item() if each.dtype != bool else int(each)
        for name, value in row.items()
        for lane, each in enumerate(np.atleast_1d(value))
    }
