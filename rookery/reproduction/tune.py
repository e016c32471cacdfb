"""The search for rates: a method's grid, scored on held-out training data."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rookery.experiment.settings import resolve, write_toml
from rookery.experiment.sweep import best, best_settings, sweep
from rookery.reproduction.experiment import Experiment, experiment


def to_tune(which: Experiment, size: str = "full", only: Sequence[str] = ()) -> list[tuple[str, str]]:
    """(setting, method) of each search that these cells need: one for each cell, or one for each method.

    The latter where the preset names a single setting in which rates are searched for all.
    """
    alone = which.preset.get("tuning", {}).get("setting")
    pairs = [(alone or cell.setting, cell.method) for cell in which.cells(size, only)]
    return [pair for pair in dict.fromkeys(pairs) if "grid" in which.preset["methods"][pair[1]]]


def tune(
    name: str, method: str, setting: str, folder: Path, size: str = "full", lanes: int = 8
) -> dict[str, float] | None:
    """Searches the method's grid in a setting on held-out training data, and writes the best rates into a preset.

    The preset is the one in ``folder``, a copy of the package's if there is none yet. Returns None if every configuration
    diverged; the preset then says so and keeps the rates it has.
    """
    which = experiment(name, folder)
    how = which.preset["methods"][method]
    if "grid" not in how:
        raise ValueError(f"{which.name}: {method} has no grid to search")
    cell = next(c for c in which.cells(size) if (c.setting, c.method) == (setting, method))
    budget = {**which.preset.get("tuning", {}), **how.get("tuning", {}).get(setting, {})}
    settings = resolve(
        {**cell.settings.tables()["run"], "seeds": budget.get("seeds", 1), "seed": 1000,
         "rounds": max(1, round(budget.get("rounds_share", 1.0) * cell.settings.rounds))},
        cell.settings.options, cell.settings.rates,
    )  # fmt: skip
    trials = sweep(settings, which.configurations(method, setting), lanes, metric=which.metric)
    preset = experiment(name, folder).preset  # read again: another search may have written to it meanwhile
    written = preset["methods"][method]
    written.setdefault("held_out", {})[setting] = "every configuration diverged"
    found = None
    if any(np.isfinite(trial.mean) for trial in trials):
        found = best(trials, which.higher_is_better)
        rates = best_settings(settings, found).tables()["algorithm"]
        before = written.setdefault("best", {}).get(setting, {})  # keeps rates that were fixed during the search
        written["best"][setting] = before | {part: rates[part] for part in (n.partition(".")[0] for n in found.rates)}
        written["held_out"][setting] = round(found.mean, 5)
    folder.mkdir(parents=True, exist_ok=True)
    write_toml(folder / f"{name}.toml", preset)
    return None if found is None else dict(found.rates)
