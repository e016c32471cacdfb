"""The one rule for all rates: a cell's are found by the package's own search, on held-out training data."""

import shutil
from pathlib import Path
from typing import Any, TypedDict

from rookery.algorithms.rates import tell_algorithm
from rookery.experiment.tuned import aim, wanted
from rookery.reproduction.experiment import SEED, Search
from rookery.tuning.result import Found
from rookery.tuning.tune import search_rates


class Searched(TypedDict):
    """How the rates of a cell were found, as it is stored."""

    digest: str
    """Of the search's settings."""
    budget: float
    growth: float
    """At most so many runs' worth of rounds, and so many more at an edge."""
    seed: int
    rounds: int
    """Of a run of the search."""
    metric: str
    score: float
    """On held-out data, after these rounds."""
    frozen: float | None
    """The same with x held at its start."""
    rates: dict[str, Any]
    """What was found, with what was given."""
    ranges: dict[str, list[float]]
    """The least and the largest value of each rate that was tried."""
    ends: list[str]
    """Of the rates found, those at an end of what was tried."""
    trials: int
    diverged: int
    runs: float
    """Runs' worth of rounds that were made."""
    seconds: float


def search(plan: Search, journal: Path | None = None) -> Searched:
    """The rates of a cell; with a journal, a search that was killed goes on.

    Raises:
        ValueError: whatever was tried diverged.
    """
    purpose = aim(plan.settings, (plan.metric, plan.higher_is_better))
    given = wanted(plan.settings, plan.settings.rates, plan.shapes)
    tuning = search_rates(purpose, [given], plan.budget, "rounds", journal, False, growth=plan.growth)
    (found,) = tuning.found.values()
    if journal is not None:
        shutil.rmtree(journal, ignore_errors=True)
    return {
        "digest": plan.digest,
        "budget": plan.budget,
        "growth": plan.growth,
        "seed": SEED,
        "rounds": plan.settings.rounds,
        "metric": plan.metric,
        "score": _short(found.score),
        "frozen": None if found.frozen is None else _short(found.frozen),
        "rates": tell_algorithm(found.algorithm)["rates"],
        "ranges": _ranges(found),
        "ends": list(found.ends),
        "trials": len(found.trials),
        "diverged": sum(bool(each["diverged"]) for each in found.trials),
        "runs": _short(found.spent["rounds"] / plan.settings.rounds),
        "seconds": round(found.seconds, 1),
    }


def _ranges(found: Found) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {}
    for trial in found.trials:
        for name, value in trial["rates"].items():
            values.setdefault(name, []).append(value)
    return {name: [_short(min(each)), _short(max(each))] for name, each in values.items()}


def _short(value: float) -> float:
    return float(f"{value:.6g}")
