"""How the rounds to an ε-stationary point fall with the number P of participants, from the stored curves of all seeds.

The theorems bound the expected square of a gradient, so a run is measured by the root mean square over its seeds. The
rounds of a P are the first evaluated round at which this is at most ε, in the best of the P's horizons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from rookery.experiment.settings import Settings
from rookery.report.figures import Power
from rookery.reproduction.compute import stored
from rookery.reproduction.experiment import Experiment

RESAMPLES = 1000
"""Of the seeds, for the interval of a slope."""
INTERVAL = 0.95
LEAST = 3
"""A slope needs so many P."""
WITHIN = 0.5
"""All P reach ε within this part of the longest horizon, so that a P that needs a little more is not in the next one."""
NOISY = 2.0
"""Where noise sets the rounds, they are at least so many times those without noise."""


@dataclass(frozen=True)
class SpeedUp:
    """What became of the claim on a method."""

    method: str
    claimed: float
    """The power of P in the paper's number of samples of a client, which are the rounds where local steps are fixed."""
    epsilon: float
    """The smallest that all P reach in half of the longest horizon, in 95 of 100 resamples; a P that does not halve the
    measure has no say."""
    rounds: dict[int, float]
    """To ε by P; ∞ where it is never reached."""
    longest: dict[int, int]
    """The longest horizon by P: what is not reached takes more."""
    noiseless: float
    """Rounds to ε without noise, which no P can undercut; NaN if that was not computed."""
    fitted: tuple[int, ...]
    """The P that the slope is of: those that reach ε, and need at least twice the rounds without noise."""
    slope: float
    """Of log rounds over log P, by least squares; NaN if these are too few."""
    low: float
    """Of the slope's interval over resamples of the seeds; NaN for one seed."""
    high: float
    level: float
    """The logarithm of the rounds that the fitted line has at P = 1."""

    @property
    def verdict(self) -> Literal["holds", "weaker than claimed", "no speed-up", "not decided"]:
        """It holds if the interval has the claimed power or is steeper; an interval with 0 is no speed-up."""
        if np.isnan(self.low):
            return "not decided"
        holds, nothing = self.low <= self.claimed, self.high >= 0
        if nothing:
            return "not decided" if holds else "no speed-up"
        return "holds" if holds else "weaker than claimed"

    def rounds_text(self, p: int) -> str:
        """As a table shows them: in parentheses if the slope leaves them out."""
        if p not in self.rounds:
            return "–"
        if p in self.fitted:
            return f"{self.rounds[p]:.0f}"
        return f"({self.rounds[p]:.0f})" if np.isfinite(self.rounds[p]) else f"> {self.longest[p]}"

    @property
    def slope_text(self) -> str:
        """The slope with its interval."""
        if np.isnan(self.slope):
            return "–"
        return f"{self.slope:.2f}" + ("" if np.isnan(self.low) else f" ({self.low:.2f} to {self.high:.2f})")

    @property
    def power(self) -> Power:
        """As a figure shows it."""
        reached = {p: rounds for p, rounds in self.rounds.items() if np.isfinite(rounds)}
        missed = {p: float(self.longest[p]) for p in self.rounds if p not in reached}
        return Power(reached, missed, self.fitted, float(np.exp(self.level)), self.slope, self.slope_text, self.claimed)


@dataclass(frozen=True)
class _Run:
    """A cell: its evaluated rounds, and its measure at each; the first column over its seeds, the others over resamples."""

    rounds: np.ndarray
    measure: np.ndarray
    start: float
    seeds: int


def speed_ups(which: Experiment, folder: Path, size: str = "full") -> list[SpeedUp]:
    """One for each method that has results of today's settings with noise."""
    rng = np.random.default_rng(0)
    runs: dict[str, dict[int, list[_Run]]] = {}
    for cell in which.cells(size):
        result = stored(cell, folder)
        if result is not None and "seeds" in result["curve"]:
            values = np.array(result["curve"]["seeds"], float)
            run = _run(np.array(result["curve"]["round"]), values, rng)
            runs.setdefault(cell.method, {}).setdefault(_participants(cell.settings), []).append(run)
    return [_speed_up(method, which.preset["claimed"][method], by) for method, by in runs.items() if set(by) - {0}]


def found_text(found: Sequence[SpeedUp]) -> str:
    """The verdict on each method, in a line."""
    return ", ".join(f"{each.method} **{each.verdict}**" for each in found) or "not decided"


def table(found: Sequence[SpeedUp]) -> tuple[list[str], list[list[str]]]:
    """The head and a row for each method: ε, the rounds to it for each P and without noise, the slope, the verdict."""
    every = sorted({p for each in found for p in each.rounds})
    head = ["method", "ε", *(f"rounds, P = {p}" for p in every), "without noise", "slope", "claimed", "verdict"]
    rows = []
    for each in found:
        rounds = [each.rounds_text(p) for p in every]
        epsilon = "–" if np.isnan(each.epsilon) else f"{each.epsilon:.2g}"
        noiseless = "–" if np.isnan(each.noiseless) else f"{each.noiseless:.0f}"
        last = [noiseless, each.slope_text, f"{each.claimed:g}", each.verdict]
        rows.append([each.method, epsilon, *rounds, *last])
    return head, rows


def _participants(settings: Settings) -> int:
    """P; 0 for a problem without noise."""
    if not settings.options["noise"]:
        return 0
    return settings.clients if settings.participants is None else int(settings.participants)


def _run(rounds: np.ndarray, values: np.ndarray, rng: np.random.Generator) -> _Run:
    """A seed that diverged is infinitely far."""
    seeds = values.shape[1]
    draws = np.vstack([np.arange(seeds), rng.integers(0, seeds, (RESAMPLES, seeds))])
    squares = np.where(np.isfinite(values), values, np.inf) ** 2
    measure = np.sqrt(squares[:, draws].mean(-1))
    return _Run(rounds[1:], measure[1:], float(measure[0, 0]), seeds)


def _to(epsilon: float, runs: Sequence[_Run]) -> np.ndarray:
    """The rounds to ε over the seeds and over each resample, in the best of the horizons; ∞ if it is not reached."""
    firsts = []
    for run in runs:
        below = run.measure <= epsilon
        firsts.append(np.where(below.any(0), run.rounds[below.argmax(0)], np.inf))
    return np.asarray(np.min(firsts, 0))


def _level(runs: Sequence[_Run], within: float) -> float:
    """The smallest measure that is reached in so many rounds, in 95 of 100 resamples."""
    best = np.min([run.measure[run.rounds <= within].min(0, initial=np.inf) for run in runs], 0)
    return float(np.quantile(best, INTERVAL, method="higher"))


def _speed_up(method: str, claimed: float, by: dict[int, list[_Run]]) -> SpeedUp:
    noisy = {p: by[p] for p in sorted(by) if p}
    longest = {p: max(int(run.rounds[-1]) for run in runs) for p, runs in noisy.items()}
    levels = [_level(runs, WITHIN * max(longest.values())) for runs in noisy.values()]
    start = next(run.start for runs in noisy.values() for run in runs)
    epsilon = max((level for level in levels if level <= start / 2), default=np.nan)
    to = {p: _to(epsilon, runs) for p, runs in noisy.items()}
    rounds = {p: float(each[0]) for p, each in to.items()}
    noiseless = float(_to(epsilon, by[0])[0]) if 0 in by else np.nan
    slope = low = high = level = np.nan
    fitted = tuple(p for p in noisy if np.isfinite(rounds[p]) and not rounds[p] < NOISY * noiseless)
    if len(fitted) >= LEAST:
        logs = np.log([np.minimum(to[p], longest[p]) for p in fitted])  # a resample may just miss ε
        slopes, offsets = np.polyfit(np.log(fitted), logs, 1)
        slope, level = float(slopes[0]), float(offsets[0])
        if min(run.seeds for p in fitted for run in noisy[p]) > 1:
            low, high = map(float, np.quantile(slopes[1:], [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]))
    return SpeedUp(method, claimed, float(epsilon), rounds, longest, noiseless, fitted, slope, low, high, level)
