"""How the rounds to an ε-stationary point fall with the number P of participants, from the stored curves of all seeds.

A run is measured by the root mean square over its seeds of the gradient of Φ(x), the upper objective at the solution of
the lower problem. Theorems bound the expected square of that, on average over the iterations (FedSGDA-M, FedBiOAcc) or at
the best one (ASFBO); but for FedSGDA+ that of the gradient of Φ's Moreau envelope, and for MeFBO the residual R_t of a
penalised problem (eq. 13). The rounds of a P are those after which the measure first is at most ε, in the best of the P's
horizons; between two evaluations its logarithm is interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
"""A P is fitted if its rounds are at least so many times those without noise.

Those without noise are subtracted, because no averaging can save them: with c/P + n rounds the slope is then -1 for every n,
while without it a perfect 1/P looks weaker. To keep only P with ten times the rounds without noise instead left fewer than
three P on nearly all made-up curves of power -2, and on most of power -1 that need eight rounds or more without noise.
Where the two kinds of rounds pass at the same time instead of one after the other, subtracting errs to the steep side, by
at most 0.25 for three P that are four times as many each.
"""


@dataclass(frozen=True)
class SpeedUp:
    """What became of the claim on a method."""

    method: str
    claimed: float
    """The power of P in the paper's number of samples of a client. At fixed local steps, rounds count samples; but a paper
    that chooses fewer local steps for more clients says nothing of that."""
    epsilon: float
    """The smallest value that all P reach in half of the longest horizon, in 95 of 100 resamples of the seeds. A P that
    does not halve the measure in that time is not asked."""
    rounds: dict[int, float]
    """To ε by P; ∞ where it is never reached. Empty unless all cells of the method are current."""
    longest: dict[int, int]
    """The longest horizon by P, and under 0 that without noise: what is not reached takes more."""
    noiseless: float
    """Rounds to ε without noise, which no P can undercut; ∞ if that run does not reach it, NaN if there is none."""
    fitted: tuple[int, ...]
    """The P that the slope is of: those that reach ε, and need at least twice the rounds without noise."""
    slope: float
    """Of log(rounds - rounds without noise) over log P, by least squares; NaN if these are too few."""
    low: float
    """Of the wider of two intervals of the slope: over resamples of the seeds, and by Student's t from the residuals about
    the line, which have the luck of the searches in them; NaN for one seed."""
    high: float
    level: float
    """The logarithm of what the fitted line has at P = 1."""
    current: int
    """How many of the method's cells have results of today's settings, of ``cells``."""
    cells: int

    @property
    def floor(self) -> float:
        """What is subtracted from the rounds: those without noise, 0 where they are not known."""
        return self.noiseless if np.isfinite(self.noiseless) else 0.0

    @property
    def verdict(self) -> str:
        """It holds if the interval has the claimed power or is steeper; one that reaches 0 or above shows none."""
        if self.current < self.cells:
            return f"not computed: {self.current} of {self.cells} cells"
        if np.isnan(self.low):
            return "not decided"
        holds, nothing = self.low <= self.claimed, self.high >= 0
        if nothing:
            return "not decided" if holds else "no speed-up shown"
        return "holds" if holds else "weaker than claimed"

    def rounds_text(self, p: int) -> str:
        """As a table shows them: in parentheses if the slope leaves them out."""
        if p not in self.rounds:
            return "–"
        text = _text(self.rounds[p], self.longest[p])
        return text if p in self.fitted or np.isinf(self.rounds[p]) else f"({text})"

    @property
    def noiseless_text(self) -> str:
        """The rounds without noise."""
        return "–" if np.isnan(self.noiseless) else _text(self.noiseless, self.longest[0])

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
        factor = float(np.exp(self.level))
        return Power(reached, missed, self.fitted, self.floor, factor, self.slope, self.slope_text, self.claimed)


@dataclass(frozen=True)
class _Run:
    """A cell: its evaluated rounds, from 0 on, and its measure at each.

    The first column of the measure is over all seeds, the others over resamples.
    """

    rounds: np.ndarray
    measure: np.ndarray
    seeds: int


def speed_ups(which: Experiment, folder: Path, size: str = "full") -> list[SpeedUp]:
    """One for each method, from results of today's settings alone."""
    rng = np.random.default_rng(0)
    runs: dict[str, dict[int, list[_Run]]] = {method: {} for method in which.preset["methods"]}
    missing = dict.fromkeys(runs, 0)
    cells = which.cells(size)
    for cell in cells:
        result = stored(cell, folder)
        if result is None or "seeds" not in result["curve"]:
            missing[cell.method] += 1
            continue
        run = _run(np.array(result["curve"]["round"]), np.array(result["curve"]["seeds"], float), rng)
        runs[cell.method].setdefault(_participants(cell.settings), []).append(run)
    found = []
    for method, by in runs.items():
        claimed, of = which.preset["claimed"][method], sum(cell.method == method for cell in cells)
        if missing[method]:
            nan = np.nan
            found.append(SpeedUp(method, claimed, nan, {}, {}, nan, (), nan, nan, nan, nan, of - missing[method], of))
        else:
            found.append(_speed_up(method, claimed, by, of))
    return found


def found_text(found: Sequence[SpeedUp]) -> str:
    """The verdict on each method, in a line."""
    return ", ".join(f"{each.method} **{each.verdict}**" for each in found)


def table(found: Sequence[SpeedUp]) -> tuple[list[str], list[list[str]]]:
    """The head and a row for each method: ε, the rounds to it for each P and without noise, the slope, the verdict."""
    every = sorted({p for each in found for p in each.rounds})
    head = ["method", "ε", *(f"rounds, P = {p}" for p in every), "without noise", "slope", "claimed", "verdict"]
    rows = []
    for each in found:
        rounds = [each.rounds_text(p) for p in every]
        epsilon = "–" if np.isnan(each.epsilon) else f"{each.epsilon:.2g}"
        last = [each.noiseless_text, each.slope_text, f"{each.claimed:g}", each.verdict]
        rows.append([each.method, epsilon, *rounds, *last])
    return head, rows


def _participants(settings: Settings) -> int:
    """P; 0 for a problem without noise."""
    if not settings.options["noise"]:
        return 0
    return settings.clients if settings.participants is None else int(settings.participants)


def _text(rounds: float, longest: int) -> str:
    if np.isinf(rounds):
        return f"> {longest}"
    return f"{rounds:.1f}" if rounds < 10 else f"{rounds:.0f}"


def _run(rounds: np.ndarray, values: np.ndarray, rng: np.random.Generator) -> _Run:
    """A seed that diverged is infinitely far."""
    seeds = values.shape[1]
    draws = np.vstack([np.arange(seeds), rng.integers(0, seeds, (RESAMPLES, seeds))])
    squares = np.where(np.isfinite(values), values, np.inf) ** 2
    return _Run(rounds, np.sqrt(squares[:, draws].mean(-1)), seeds)


def _to(epsilon: float, runs: Sequence[_Run]) -> np.ndarray:
    """The rounds to ε over the seeds and over each resample, in the best of the horizons; ∞ if it is not reached."""
    firsts = []
    for run in runs:
        below = run.measure[1:] <= epsilon
        after = 1 + below.argmax(0)
        column = np.arange(below.shape[1])
        above, under = np.log(np.maximum(run.measure[[after - 1, after], column], np.finfo(float).tiny))
        finite = np.isfinite(above) & (above > under)
        part = np.where(finite, (above - np.log(epsilon)) / np.where(finite, above - under, 1.0), 1.0)
        crossing = run.rounds[after - 1] + np.clip(part, 0, 1) * (run.rounds[after] - run.rounds[after - 1])
        firsts.append(np.where(below.any(0), crossing, np.inf))
    return np.asarray(np.min(firsts, 0))


def _level(runs: Sequence[_Run], within: float) -> float:
    """The smallest measure that is reached in so many rounds, in 95 of 100 resamples."""
    shown = [run.measure[1:][run.rounds[1:] <= within] for run in runs]
    best = np.min([each.min(0, initial=np.inf) for each in shown], 0)
    return float(np.quantile(best, INTERVAL, method="higher"))


def _speed_up(method: str, claimed: float, by: dict[int, list[_Run]], cells: int) -> SpeedUp:
    noisy = {p: by[p] for p in sorted(by) if p}
    longest = {p: max(int(run.rounds[-1]) for run in runs) for p, runs in by.items()}
    levels = [_level(runs, WITHIN * max(longest[p] for p in noisy)) for runs in noisy.values()]
    start = next(float(run.measure[0, 0]) for runs in noisy.values() for run in runs)
    epsilon = max((level for level in levels if level <= start / 2), default=np.nan)
    to = {p: _to(epsilon, runs) for p, runs in noisy.items()}
    rounds = {p: float(each[0]) for p, each in to.items()}
    noiseless = float(_to(epsilon, by[0])[0]) if 0 in by else np.nan
    floor = noiseless if np.isfinite(noiseless) else 0.0
    slope = low = high = level = np.nan
    fitted = tuple(p for p in noisy if np.isfinite(rounds[p]) and rounds[p] >= NOISY * floor)
    if len(fitted) >= LEAST:
        # a resample may just miss ε, or come close to the rounds without noise
        logs = np.log([np.clip(to[p], NOISY * floor, longest[p]) - floor for p in fitted])
        slopes, offsets = np.polyfit(np.log(fitted), logs, 1)
        slope, level = float(slopes[0]), float(offsets[0])
        if min(run.seeds for p in fitted for run in noisy[p]) > 1:
            low, high = map(float, np.quantile(slopes[1:], [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2]))
            off = _off(np.log(fitted), logs[:, 0] - level - slope * np.log(fitted))
            if 2 * off > high - low:
                low, high = slope - off, slope + off
    return SpeedUp(
        method, claimed, float(epsilon), rounds, longest, noiseless, fitted, slope, low, high, level, cells, cells
    )


def _off(x: np.ndarray, residuals: np.ndarray) -> float:
    """Half the t-interval of a slope over x, from the residuals about its line."""
    from scipy import stats  # which takes a third of the time in which the command starts

    freedom = len(x) - 2
    error = np.sqrt((residuals**2).sum() / freedom / ((x - x.mean()) ** 2).sum())
    return float(stats.t.ppf((1 + INTERVAL) / 2, freedom) * error)
