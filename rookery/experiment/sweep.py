"""Searches over the rates of an algorithm: many configurations and seeds as lanes of one compiled program."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from rich.progress import Progress

from rookery.algorithm.exchange import Algorithm
from rookery.engines.simulator import Simulator
from rookery.experiment.settings import Settings
from rookery.experiment.tuned import check_not_private
from rookery.solving.lanes import Lanes
from rookery.solving.loop import make_rounds
from rookery.solving.prepare import many, prepare
from rookery.tasks import Task


@dataclass(frozen=True)
class Trial:
    """Some rates, and the metric of each seed after the last round (NaN if the seed diverged)."""

    rates: Mapping[str, float]
    scores: np.ndarray

    @property
    def mean(self) -> float:
        """The mean over seeds; NaN if one diverged."""
        return float(np.mean(self.scores))

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation over seeds; None of one seed."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else None


def grid(values: Mapping[str, Sequence[float]]) -> list[dict[str, float]]:
    """All combinations; ``eta_y+eta_z`` gives both the same value."""
    return [
        {name: value for names, value in zip(values, each, strict=True) for name in names.split("+")}
        for each in itertools.product(*values.values())
    ]


def random_rates(ranges: Mapping[str, tuple[float, float]], trials: int, seed: int) -> list[dict[str, float]]:
    """Rates drawn log-uniformly from ranges."""
    rng = np.random.default_rng([seed, 0x53])
    draws = rng.uniform(size=(trials, len(ranges)))
    spans = [(math.log(low), math.log(high)) for low, high in ranges.values()]
    return [
        {name: float(np.exp(low + u * (high - low))) for name, (low, high), u in zip(ranges, spans, row, strict=True)}
        for row in draws
    ]


def sweep(
    settings: Settings,
    rates: Sequence[Mapping[str, float]],
    lanes: int = 16,
    progress: bool | None = None,
    metric: str | None = None,
) -> list[Trial]:
    """Runs every configuration with every seed and scores it on held-out training data, never on test data.

    ``rates`` are replacements of rates of the algorithm; ``c.scale`` means the field ``scale`` of the schedule ``c``.
    ``lanes`` bounds how many runs are in a program at once; ``metric`` is the task's own by default. Trials come back in
    the order of ``rates``.
    """
    check_not_private(settings)
    settings = replace(settings, held_out=True)
    algorithms = [settings.make_algorithm(**_replaced(settings, each)) for each in rates]
    if not algorithms:
        raise ValueError("sweep: there is nothing to try, give at least one configuration")
    tasks = settings.make_tasks()
    jobs = [(algorithm, seed) for algorithm in algorithms for seed in range(settings.seeds)]
    size = min(len(jobs), max(1, lanes))
    scores: list[float] = []
    with Progress(disable=progress is False, transient=True) as bar:
        shown = bar.add_task(
            f"{settings.algorithm}: {len(rates)} configurations × {settings.seeds} seeds", total=len(jobs)
        )
        for start in range(0, len(jobs), size):
            part = jobs[start : start + size]
            padded = part + [part[0]] * (size - len(part))  # the last program is the same one
            scores += _scores(settings, tasks, padded, metric or tasks[0].metric)[: len(part)]
            bar.advance(shown, len(part))
    table = np.array(scores).reshape(len(rates), settings.seeds)
    return [Trial(each, row) for each, row in zip(rates, table, strict=True)]


def best(trials: Sequence[Trial], higher_is_better: bool) -> Trial:
    """The trial with the best mean; those that diverged come last."""
    if all(math.isnan(trial.mean) for trial in trials):
        raise ValueError("sweep: every configuration diverged, try smaller rates")
    sign = 1 if higher_is_better else -1
    return max(trials, key=lambda trial: -math.inf if math.isnan(trial.mean) else sign * trial.mean)


def at_edges(
    winner: Trial, values: Mapping[str, Sequence[float]], ranges: Mapping[str, tuple[float, float]]
) -> dict[str, str]:
    """Of the rates whose best value lies at an edge of what was tried: "smallest" or "largest".

    ``values`` are those of a grid; of random ``ranges`` an edge is the outer tenth, on the logarithmic scale.
    """
    found = {}
    for names, tried in values.items():
        value = winner.rates[names.split("+")[0]]
        if len(set(tried)) > 1 and value in (min(tried), max(tried)):
            found[names] = "smallest" if value == min(tried) else "largest"
    for name, (low, high) in ranges.items():
        place = math.log(winner.rates[name] / low) / math.log(high / low)
        if not 0.1 <= place <= 0.9:
            found[name] = "smallest" if place < 0.1 else "largest"
    return found


def best_settings(settings: Settings, trial: Trial) -> Settings:
    """The settings with the rates of a trial."""
    return replace(settings, rates={**settings.rates, **_replaced(settings, trial.rates)})


def _replaced(settings: Settings, rates: Mapping[str, float]) -> dict[str, Any]:
    """Rates as TOML has them, fields of schedules put into their tables."""
    tables = settings.tables()["algorithm"]
    found: dict[str, Any] = {}
    for name, value in rates.items():
        rate, dot, part = name.partition(".")
        if dot:
            schedule = found.get(rate, tables.get(rate))
            if not isinstance(schedule, Mapping) or part not in schedule:
                raise ValueError(f"sweep: {name} must be a field of a schedule, {rate} is {schedule!r}")
            found[rate] = {**schedule, part: value}
        elif isinstance(tables.get(name), bool | str | list):
            raise ValueError(f"sweep: only numbers can be searched over, {name} is {tables[name]!r}")
        else:
            found[name] = value
    return found


def _scores(
    settings: Settings, tasks: Sequence[Task], jobs: Sequence[tuple[Algorithm, int]], metric: str
) -> list[float]:
    lane_tasks = [tasks[seed] for _, seed in jobs]
    given = many(
        tasks[0].problem,
        [algorithm for algorithm, _ in jobs],
        [task.clients for task in lane_tasks],
        Lanes([task.x0 for task in lane_tasks]),
        Lanes([task.y0 for task in lane_tasks]),
        keys=[settings.seed + seed for _, seed in jobs],
        participation=settings.participation,
        local_steps=settings.steps,
        batch_size=settings.batch_size,
        evaluate=Lanes([task.evaluate for task in lane_tasks]),
        engine=Simulator(settings.clients_at_once),
        rounds=settings.rounds,
        **settings.trust,
    )
    solution = make_rounds(prepare(given), settings.rounds, settings.rounds, progress=False)
    final = np.array(solution.history.last[metric], float)
    for each in solution.diverged:
        final[each.lane] = np.nan
    return [float(value) for value in final]
