"""Settings whose rates are searched for, on held-out data, before a run is made of them."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rookery import files
from rookery.algorithm.rate import declared
from rookery.algorithms.rates import make_algorithm, tell_algorithm
from rookery.engines.simulator import Simulator
from rookery.experiment.settings import Settings
from rookery.experiment.source import OfModule
from rookery.problem.schedules import Schedule
from rookery.stopping import heard
from rookery.tuning.result import Tuning
from rookery.tuning.tune import BUDGET, Aim, Given, Unit, Wanted, search_rates

FILE = "tuning.json"
"""What a search found, in the folder of a run or of a comparison."""
JOURNAL = "tuning"
"""The folder of a search that is not done."""


@dataclass(frozen=True)
class Budget:
    """What a search may cost for each algorithm: so many runs' worth of rounds, oracle calls or bytes."""

    runs: float = BUDGET
    unit: Unit = "rounds"


def has_rates(settings: Settings) -> bool:
    """Whether any rate was given, or is stored for this task: then nothing is searched for."""
    searched = declared(settings.source.algorithm(settings.algorithm))
    return any(name in settings.rates for name in searched or settings.rates)


def find_rates(
    all_settings: Sequence[Settings],
    folder: Path,
    budget: Budget,
    *,
    again: bool = False,
    keep: bool = False,
    ready: Callable[[], None] = lambda: None,
    progress: bool | None = None,
) -> tuple[list[Settings], Tuning | None]:
    """The settings with rates, and how those that had none were found. All have one problem and its numbers in common.

    Those that have rates stay as they are, unless ``again``, which searches for those of all. Candidates are judged on
    held-out training data; test data are not there. A search that was interrupted continues in the same folder; with
    ``keep`` so does one that is done, until :func:`forget`. ``ready`` is called when all is checked.
    """
    missing = [each for each in all_settings if again or not has_rates(each)]
    if not missing:
        return list(all_settings), None
    work = folder / JOURNAL
    with heard(at_once=False):
        found = search_rates(
            aim(missing[0]), [wanted(each) for each in missing], budget.runs, budget.unit, work, progress, ready
        )
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / FILE, json.dumps(found.tables(), indent=1).encode())
    if not keep:
        forget(folder)
    return [_with_rates(each, found) if each in missing else each for each in all_settings], found


def forget(folder: Path) -> None:
    """Removes the journal of a search that is done."""
    shutil.rmtree(folder / JOURNAL, ignore_errors=True)


def check_not_private(settings: Settings) -> None:
    """Nothing is searched for with privacy: what is tried would be published too, with the same noise."""
    if settings.privacy is not None:
        raise ValueError(
            "privacy: rates are not searched for on the clients' data, which would spend privacy that nobody counts: give "
            "them with --set, or take the algorithm's own with --no-tune"
        )


def aim(settings: Settings, judged_by: tuple[str, bool] | None = None) -> Aim:
    """The problem of the first seed, without its test data.

    ``judged_by`` is a metric and whether more of it is better; without, the task says what its rates are judged by.
    """
    check_not_private(settings)
    task = replace(settings, held_out=True, seeds=1).make_tasks()[0]
    source = settings.source
    judged = not isinstance(source, OfModule) or source.says("metric")
    how: dict[str, Any] = {
        "participation": settings.participation,
        "local_steps": settings.steps,
        "batch_size": settings.batch_size,
        "evaluate": task.evaluate if judged else None,
        "engine": Simulator(settings.clients_at_once),
        "aggregate": settings.trust["aggregate"],
    }
    metric, higher = judged_by or (task.searched if judged else (None, False))
    start = task.clients, task.x0, task.y0
    return Aim(task.problem, *start, settings.rounds, settings.seed, metric, higher, how)


def wanted(
    settings: Settings, given: Mapping[str, Any] | None = None, shapes: Mapping[str, Schedule] | None = None
) -> Given:
    """The algorithm with what is given; by default options alone, which are no rates. ``shapes`` change over the rounds."""
    kind = settings.source.algorithm(settings.algorithm)
    if given is None:
        given = {name: value for name, value in settings.rates.items() if name not in declared(kind)}
    made = make_algorithm(kind, given)
    return Wanted(kind, {name: getattr(made, name) for name in given}, shapes or {})


def _with_rates(settings: Settings, found: Tuning) -> Settings:
    if settings.algorithm not in found.found:
        raise ValueError(
            f"every configuration of {settings.algorithm} that was tried diverged: give its rates with --set"
        )
    return replace(settings, rates=tell_algorithm(found.algorithms[settings.algorithm])["rates"])
