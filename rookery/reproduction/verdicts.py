"""What the stored results say: our numbers beside the published ones, and which of the papers' claims hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rookery.reproduction.compute import Result, stored
from rookery.reproduction.experiment import Cell, Experiment

_SIDES = ("better", "worse")


@dataclass(frozen=True)
class Row:
    """A line of an experiment's table: our value for each column and, where there is one, the published value."""

    setting: str
    method: str
    ours: list[str]
    also: list[str]
    published: list[str]
    tried: str
    """How many configurations of its rates were compared on held-out data, or "none"."""
    diverged: str
    """How many of its seeds diverged, or nothing."""

    @property
    def name(self) -> str:
        """The method, and how many of its seeds diverged."""
        return f"{self.method} ({self.diverged})" if self.diverged else self.method


def rows(which: Experiment, folder: Path, size: str = "full") -> list[Row]:
    """A row for each cell that has a result."""
    found = []
    for cell in which.cells(size):
        result = stored(cell, folder)
        if result is None:
            continue
        ours = [_cell_text(result["values"][str(point)], which) for point in which.at(size)]
        also = [_also_text(result["last"][name]) for name in which.also]
        published = [_published(which, cell, column) for column in range(len(which.at(size)))]
        lost = len(result["diverged"])
        diverged = f"{lost} of {cell.settings.seeds} seeds diverged" if lost else ""
        found.append(Row(cell.setting, cell.method, ours, also, published, _tried(which, cell), diverged))
    return found


def _tried(which: Experiment, cell: Cell) -> str:
    how = which.preset["methods"][cell.method]
    searched = {cell.setting, which.preset.get("tuning", {}).get("setting")} & set(how.get("held_out", {}))
    return str(len(which.configurations(cell.method, searched.pop()))) if searched else "none"


def _cell_text(values: list[float | None], which: Experiment) -> str:
    finite = np.array([value for value in values if value is not None])
    if not finite.size:
        return "diverged"
    digits = 2 if which.percent else 4
    mean = f"{which.scale * finite.mean():.{digits}f}"
    return f"{mean} ± {which.scale * finite.std(ddof=1):.{digits}f}" if finite.size > 1 else mean


def _also_text(values: float | list[float | None] | None) -> str:
    finite = np.array([value for value in (values if isinstance(values, list) else [values]) if value is not None])
    if not finite.size:
        return "diverged"
    return f"{finite.mean():.3g}" + (f" ± {finite.std(ddof=1):.2g}" if finite.size > 1 else "")


def _published(which: Experiment, cell: Cell, column: int) -> str:
    for entry in which.preset.get("published", []):
        if entry["setting"] == cell.setting and entry["method"] == cell.method:
            value, deviations = entry["values"][column], entry.get("deviations")
            return f"{value:g}" + (f" ± {deviations[column]:g}" if deviations else "")
    return ""


@dataclass(frozen=True)
class Verdict:
    """Whether a claim of the paper holds here: that one method does better than another in a setting, seed by seed."""

    setting: str
    better: str
    worse: str
    difference: float
    p: float
    holds: Literal["yes", "not decided", "reversed"]

    @property
    def p_text(self) -> str:
        """The p-value as tables show it."""
        return "one seed" if np.isnan(self.p) else f"{self.p:.2g}"


def verdicts(which: Experiment, folder: Path, size: str = "full") -> list[Verdict]:
    """The preset's claims, each tested by a paired one-sided t-test over seeds.

    Values are compared in the last column, or in the columns ``better_at`` and ``worse_at`` of the claim: a round is not the
    same for every method. A claim with ``steady`` compares ranges over the settings (for each seed, the largest value
    minus the smallest); the smaller range is the better one.
    """
    results = {(c.setting, c.method): stored(c, folder) for c in which.cells(size)}
    last = str(which.at(size)[-1])
    found = []
    for claim in which.preset.get("claims", []):
        settings = claim.get("settings", list(which.preset["settings"]))
        if claim.get("steady"):
            ranges = [_range([results.get((setting, claim[side])) for setting in settings], last) for side in _SIDES]
            if all(len(each) for each in ranges):
                lower = replace(which, preset={**which.preset, "higher_is_better": False})
                found.append(judge(lower, "range over the settings", claim, *ranges))
            continue
        for setting in settings:
            points = {side: str(claim.get(f"{side}_at", last)) for side in _SIDES}
            a, b = (_values(results.get((setting, claim[side])), points[side]) for side in _SIDES)
            if not len(a) or not len(b):
                continue
            names = {side: claim[side] + (f" after {points[side]}" if f"{side}_at" in claim else "") for side in _SIDES}
            found.append(judge(which, setting, names, a, b))
    return found


def _values(result: Result | None, point: str) -> np.ndarray:
    """In a column, for each seed: NaN where it diverged. Empty if there is no such result or column."""
    values = None if result is None else result["values"].get(point)
    return np.empty(0) if values is None else np.array(values, float)


def _range(results: Sequence[Result | None], point: str) -> np.ndarray:
    """For each seed, the largest value minus the smallest: NaN if one diverged. Empty if a result is missing."""
    values = [_values(result, point) for result in results]
    if not all(len(each) for each in values):
        return np.empty(0)
    return np.asarray(np.max(values, axis=0) - np.min(values, axis=0))


def judge(which: Experiment, setting: str, claim: Mapping[str, Any], a: np.ndarray, b: np.ndarray) -> Verdict:
    """The verdict on a claim, from the values of both methods for each seed. A seed that diverged counts as the worst."""
    from scipy import stats  # which takes a third of the time in which the command starts

    sign = 1.0 if which.higher_is_better else -1.0
    common = min(len(a), len(b))  # a slow method may have only the first few seeds
    a, b = a[:common], b[:common]
    a, b = (np.where(np.isnan(v), -sign * np.inf, v) for v in (a, b))
    if not np.isfinite(a).all() or not np.isfinite(b).all():
        wins, losses = int((sign * (a - b) > 0).sum()), int((sign * (a - b) < 0).sum())
        p = float(stats.binomtest(wins, wins + losses, alternative="greater").pvalue) if wins + losses else 1.0
        difference = sign * (float("inf") if wins > losses else float("-inf"))
    else:
        gain = sign * (a - b)
        difference = float(which.scale * (a - b).mean())
        if len(gain) < 2:
            p = float("nan")  # one seed decides nothing
        elif np.ptp(gain) == 0:
            p = 0.0 if gain.mean() > 0 else 1.0
        else:
            p = float(stats.ttest_1samp(gain, 0, alternative="greater").pvalue)
    holds: Literal["yes", "not decided", "reversed"] = "yes" if p < 0.05 else "reversed" if p > 0.95 else "not decided"
    return Verdict(setting, claim["better"], claim["worse"], difference, p, holds)


def reached(which: Experiment, folder: Path, size: str = "full") -> tuple[int, int]:
    """How many published numbers our mean reaches within one standard error, and how many there are to reach."""
    sign = 1 if which.higher_is_better else -1
    good = of = 0
    for cell in which.cells(size):
        result = stored(cell, folder)
        if result is None or size != "full":
            continue
        for entry in which.preset.get("published", []):
            if (entry["setting"], entry["method"]) != (cell.setting, cell.method):
                continue
            for point, value in zip(which.at(size), entry["values"], strict=True):
                ours = which.scale * np.array([np.nan if v is None else v for v in result["values"][str(point)]])
                error = ours.std(ddof=1) / len(ours) ** 0.5 if len(ours) > 1 else 0.0
                of += 1
                good += bool(sign * (ours.mean() - value) >= -error)  # a seed that diverged reaches nothing
    return good, of
