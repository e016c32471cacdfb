"""Simple rivals: what a sensible person would try first, as ``rivals.json`` tells of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rookery.experiment.folder import StoredRun
from rookery.report.exhibits import SHARED, Exhibit, read_exhibits
from rookery.report.reading import Damaged, clean, items, mapping, number, read_json, text
from rookery.report.tables import Summary, summarise

FILE = "rivals.json"


@dataclass(frozen=True)
class Rival:
    """One of them. ``metrics`` has a number for each seed; a ``ceiling`` knows what nobody knows."""

    name: str
    what: str = ""
    ceiling: bool = False
    metrics: Mapping[str, Sequence[float]] = field(default_factory=dict)
    exhibits: Sequence[Exhibit] = ()

    def over(self, metric: str) -> Summary | None:
        """The metric over seeds, as a summary of one row; None where no seed has it."""
        values = np.asarray(self.metrics.get(metric, ()), float)
        return summarise(values[None]) if np.isfinite(values).any() else None


@dataclass(frozen=True)
class Rivals:
    """Those of some runs: in order, with a sentence for each thing that cannot be shown, and what they cost together."""

    rivals: tuple[Rival, ...] = ()
    problems: tuple[str, ...] = ()
    seconds: float | None = None


def find_rivals(runs: Sequence[StoredRun]) -> Rivals:
    """The rivals of these runs, from their folders or the ones above. Files that say the same count once."""
    paths = dict.fromkeys(path for run in runs if (path := _file(run)) is not None)
    found: list[tuple[Path, list[Rival]]] = []
    problems: list[str] = []
    seconds: list[float] = []
    for path in paths:
        where = f"{FILE} in {clean(path.parent.name)}"
        try:
            rivals, told, paid = _read(path, where)
        except Damaged as error:
            problems.append(f"{where} is damaged: {error}.")
            continue
        problems += told
        if rivals not in [each for _, each in found]:
            found.append((path, rivals))
            seconds += [] if paid is None else [paid]
    several = len(found) > 1
    named = [
        replace(rival, name=f"{rival.name} ({clean(path.parent.name)})") if several else rival
        for path, rivals in found
        for rival in rivals
    ]
    return Rivals(tuple(named), tuple(problems), sum(seconds) if seconds else None)


def _file(run: StoredRun) -> Path | None:
    return next((path for path in (run.path / FILE, run.path.parent / FILE) if path.is_file()), None)


def _read(path: Path, where: str) -> tuple[list[Rival], list[str], float | None]:
    content = read_json(path)
    listed = content.get("rivals")
    if not isinstance(listed, list):
        raise Damaged("it has no list of rivals")
    rivals, problems = [], []
    for position, each in enumerate(listed[:50], 1):
        try:
            rival, told = _rival(each, where)
        except Damaged as error:
            problems.append(f"Rival {position} in {where} is damaged: {error}.")
            continue
        problems += told
        rivals.append(rival)
    try:
        seconds = number(content.get("seconds"))
    except Damaged:
        seconds = None
    return rivals, problems, seconds


def _rival(found: Any, where: str) -> tuple[Rival, list[str]]:
    found = mapping(found, "it")
    name = text(found.get("name"), "its name")
    metrics = {
        clean(metric): [np.nan if each is None else each for each in items(values, clean(metric), number)]
        for metric, values in mapping(found.get("metrics"), "its table of metrics").items()
    }
    listed = found.get("exhibits", [])
    if not isinstance(listed, list):
        raise Damaged("its exhibits are no list")
    exhibits, problems = read_exhibits(listed, f"{where}, {name},", kinds=SHARED)
    what = text(found.get("what", ""), "what it is")
    return Rival(name, what, bool(found.get("ceiling", False)), metrics, exhibits), problems
