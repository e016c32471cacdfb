"""What the stored results say: our numbers beside the published ones, and which of the papers' claims hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rookery.reproduction.compute import Result, stored, stored_before
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
    """How many candidates the search compared on held-out data, that the rates are given, or were once found by hand."""
    diverged: str
    """How many of its seeds diverged, or nothing."""
    current: bool
    """Whether it was computed with the settings of today."""

    @property
    def name(self) -> str:
        """The method, whether it is out of date, and how many of its seeds diverged."""
        name = self.method if self.current else f"{self.method} †"
        return f"{name} ({self.diverged})" if self.diverged else name


def rows(which: Experiment, folder: Path, size: str = "full") -> list[Row]:
    """A row for each cell that has a result, of today's settings or else of others."""
    found = []
    for cell in which.cells(size):
        result = stored_before(cell, folder)
        points = [str(point) for point in which.at(size)]
        if result is None or not set(points) <= set(result["values"]) or result["metric"] != which.metric:
            continue
        ours = [_cell_text(result["values"][point], which) for point in points]
        also = [_also_text(result["last"].get(name)) + _published_also(which, cell, name) for name in which.also]
        published = [_published(which, cell, column) for column in range(len(points))]
        lost, seeds = len(result["diverged"]), result["settings"]["run"]["seeds"]
        diverged = f"{lost} of {seeds} diverged" if lost else ""
        current = result["digest"] == cell.digest
        found.append(Row(cell.setting, cell.method, ours, also, published, _tried(cell, result), diverged, current))
    return found


def shown_size(which: Experiment, folder: Path) -> str | None:
    """The size that the documentation shows: the full one unless only the quick one has results; None without any.

    A speed-up is made of results of today's settings alone.
    """
    old = which.form != "speed-up"
    return next((s for s in ("full", "quick") if any(row.current or old for row in rows(which, folder, s))), None)


def _tried(cell: Cell, result: Result) -> str:
    searched = result.get("search")
    return str(searched["trials"]) if searched else "given" if cell.search is None else "by hand"


def _cell_text(values: list[float | None], which: Experiment) -> str:
    """Mean ± deviation over seeds; if any diverged, the median, for which that counts as the worst."""
    every = np.array([np.nan if value is None else value for value in values])
    digits = 2 if which.percent else 4
    if not np.isfinite(every).all():
        worst = -np.inf if which.higher_is_better else np.inf
        median = float(np.median(np.where(np.isfinite(every), every, worst)))
        return f"median {which.scale * median:.{digits}f}" if np.isfinite(median) else "diverged"
    mean = f"{which.scale * every.mean():.{digits}f}"
    return f"{mean} ± {which.scale * every.std(ddof=1):.{digits}f}" if every.size > 1 else mean


def _also_text(values: float | list[float | None] | None) -> str:
    every = values if isinstance(values, list) else [values]
    finite = np.array([value for value in every if value is not None])
    if not finite.size:
        return "–"
    if finite.size < len(every):
        return f"median {np.median(finite):.3g} of {finite.size}"
    return f"{finite.mean():.3g}" + (f" ± {finite.std(ddof=1):.2g}" if finite.size > 1 else "")


def _published_also(which: Experiment, cell: Cell, name: str) -> str:
    for entry in which.preset.get("published", []):
        if (entry["setting"], entry["method"]) == (cell.setting, cell.method) and name in entry.get("also", {}):
            value, *deviation = entry["also"][name]
            return f" ({value:g}" + (f" ± {deviation[0]:g}" if deviation else "") + ")"
    return ""


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
    seeds: int
    holds: Literal["yes", "not decided", "reversed"]
    current: bool = True
    """Whether both sides were computed with the settings of today."""

    @property
    def p_text(self) -> str:
        """The p-value as tables show it."""
        return "one seed" if np.isnan(self.p) else f"{self.p:.2g}"


def verdicts(which: Experiment, folder: Path, size: str = "full") -> list[Verdict]:
    """The preset's claims, each tested by a paired one-sided t-test over seeds.

    Values are compared in the last column, or in the columns ``better_at`` and ``worse_at`` of the claim: a round is not the
    same for every method. A claim with ``steady`` compares ranges over the settings (for each seed, the largest value
    minus the smallest); the smaller range is the better one. Results of today are not compared with others.
    """
    cells = which.cells(size)
    results = {(c.setting, c.method): stored_before(c, folder) for c in cells}
    current = {(c.setting, c.method): stored(c, folder) is not None for c in cells}
    last = str(which.at(size)[-1])
    found = []
    for claim in which.preset.get("claims", []):
        settings = claim.get("settings", list(which.preset["settings"]))
        if claim.get("steady"):
            if len(ages := {current.get((setting, claim[side])) for setting in settings for side in _SIDES}) > 1:
                continue
            ranges = [_range([results.get((setting, claim[side])) for setting in settings], last) for side in _SIDES]
            if all(len(each) for each in ranges):
                lower = replace(which, preset={**which.preset, "higher_is_better": False})
                found.append(replace(judge(lower, "range over the settings", claim, *ranges), current=ages == {True}))
            continue
        for setting in settings:
            if len(ages := {current.get((setting, claim[side])) for side in _SIDES}) > 1:
                continue
            points = {side: str(claim.get(f"{side}_at", last)) for side in _SIDES}
            a, b = (_values(results.get((setting, claim[side])), points[side]) for side in _SIDES)
            if not len(a) or not len(b):
                continue
            names = {side: claim[side] + (f" after {points[side]}" if f"{side}_at" in claim else "") for side in _SIDES}
            found.append(replace(judge(which, setting, names, a, b), current=ages == {True}))
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
    """The verdict on a claim, from the values of both methods for each seed: reversed if the opposite would hold.

    A seed that diverged counts as the worst.
    """
    sign = 1.0 if which.higher_is_better else -1.0
    common = min(len(a), len(b))  # a slow method may have only the first few seeds
    a, b = (np.where(np.isnan(v[:common]), -sign * np.inf, v[:common]) for v in (a, b))
    difference, p, against = _tested(sign, a, b)
    holds: Literal["yes", "not decided", "reversed"]
    holds = "yes" if p < 0.05 else "reversed" if against < 0.05 else "not decided"
    return Verdict(setting, claim["better"], claim["worse"], which.scale * difference, p, common, holds)


def _tested(sign: float, a: np.ndarray, b: np.ndarray) -> tuple[float, float, float]:
    """The difference of the means, and p of a and of b being the better: NaN for one seed, which decides nothing."""
    from scipy import stats  # which takes a third of the time in which the command starts

    wins, losses = int((sign * a > sign * b).sum()), int((sign * b > sign * a).sum())
    finite = bool(np.isfinite(a).all() and np.isfinite(b).all())
    difference = float((a - b).mean()) if finite else sign * np.inf * (wins - losses) if wins != losses else 0.0
    if len(a) < 2:
        return difference, np.nan, np.nan
    if wins + losses == 0:
        return difference, 1.0, 1.0
    if not finite:
        p, against = (float(stats.binomtest(n, wins + losses, alternative="greater").pvalue) for n in (wins, losses))
        return difference, p, against
    gain = sign * (a - b)
    p = float(stats.ttest_1samp(gain, 0, alternative="greater").pvalue) if np.ptp(gain) > 0 else float(losses > 0)
    return difference, p, 1 - p


def reached(which: Experiment, folder: Path, size: str = "full", current: bool = True) -> tuple[int, int]:
    """How many published numbers our mean reaches within one standard error, and how many there are to reach.

    By results of today, or by those that are out of date.
    """
    sign = 1 if which.higher_is_better else -1
    good = of = 0
    for cell in which.cells(size):
        result = stored_before(cell, folder)
        if result is None or size != "full" or not {str(point) for point in which.at(size)} <= set(result["values"]):
            continue
        if (stored(cell, folder) is not None) != current:
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
