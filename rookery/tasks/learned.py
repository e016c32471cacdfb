"""What a task has learned, for people: tables as files, exhibits of a report, a model that predicts."""

import base64
import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

WIDEST = 160
"""Pixels of a side of an image in a report: some dozens of photographs would make a file that no browser likes."""
LONGEST = 300
"""Rows of a table in a report."""

Exhibit = dict[str, Any]
"""What a report shows: ``kind``, ``title``, ``text``, and what its kind needs; all of it fit for JSON."""


@dataclass(frozen=True)
class Rows:
    """A table with the names of its columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]

    def as_csv(self) -> str:
        """As a CSV file has it."""
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(self.columns)
        writer.writerows([[_plain(cell) for cell in row] for row in self.rows])
        return text.getvalue()

    def __getitem__(self, column: str) -> np.ndarray:
        """A column."""
        place = list(self.columns).index(column)
        return np.array([row[place] for row in self.rows])


@dataclass(frozen=True)
class Network:
    """A model that predicts: the network, and what is needed to make it again and to feed it."""

    network: Any
    about: Mapping[str, Any]


@dataclass(frozen=True)
class Learned:
    """What was learned: ``tables`` by the names of their files, ``exhibits`` for a report, a ``model`` that predicts."""

    tables: Mapping[str, Rows] = field(default_factory=dict)
    exhibits: Sequence[Exhibit] = ()
    model: Network | None = None


def _plain(cell: Any) -> Any:
    value = cell.item() if isinstance(cell, np.generic) else cell  # JSON does not know NumPy's numbers
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.6g}" if isinstance(value, float) else value


def bars(title: str, text: str, labels: Sequence[str], values: Any, percent: bool = False) -> Exhibit:
    """A bar for each label."""
    return {"kind": "bars", "title": title, "text": text, "labels": list(labels), "values": numbers(values),
            "percent": percent}  # fmt: skip


def lines(title: str, text: str, across: str, up: str, x: Any, y: Any, name: str, diagonal: bool) -> Exhibit:
    """A curve, of at most some hundred points."""
    return {"kind": "lines", "title": title, "text": text, "across": across, "up": up, "x": numbers(x), "y": numbers(y),
            "name": name, "diagonal": diagonal}  # fmt: skip


def table(title: str, text: str, rows: Rows) -> Exhibit:
    """A table, of which a report shows the first rows."""
    cells = [[_plain(cell) for cell in row] for row in rows.rows[:LONGEST]]
    return {"kind": "table", "title": title, "text": text, "columns": list(rows.columns), "rows": cells}


def picture(stored: np.ndarray) -> dict[str, Any] | None:
    """An image as it is stored, stretched to 0..255, with fewer pixels if it is large; None of what is no image."""
    if stored.ndim not in (2, 3):
        return None
    every = -(-max(stored.shape[:2]) // WIDEST)
    whole = (stored if stored.ndim == 3 else stored[..., None])[::every, ::every]
    low, high = float(whole.min()), float(whole.max())
    stretched = np.round(255 * (whole - low) / max(high - low, 1e-12)).astype(np.uint8)
    return {"shape": list(stretched.shape), "pixels": base64.b64encode(stretched.tobytes()).decode()}


def numbers(values: Any) -> list[float | None]:
    """For JSON, which has no NaN."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, float)]


def accuracy_by_class(names: Sequence[str], recall: Any) -> Exhibit:
    """Of all tasks that classify; reports put those of several runs and rivals into one figure by its title."""
    text = "The share of each class's test examples that is classified right."
    return bars("Accuracy by class", text, names, recall, percent=True)


def separated(weights: np.ndarray) -> np.ndarray:
    """Which of the weights belong to the lower of two groups: the cut that leaves the least variance within (Otsu's)."""
    ordered = np.sort(weights.astype(float))
    if len(ordered) < 2 or ordered[-1] - ordered[0] < 1e-6:
        return np.zeros(len(weights), bool)
    below = np.arange(1, len(ordered))
    sums = np.cumsum(ordered)
    first, second = sums[:-1] / below, (sums[-1] - sums[:-1]) / (len(ordered) - below)
    between = below * (len(ordered) - below) * (first - second) ** 2
    cut = int(np.argmax(between))
    found: np.ndarray = weights <= ordered[cut]
    return found
