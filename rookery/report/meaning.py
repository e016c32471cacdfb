"""What a reader must know before the numbers: what task and metric mean, the settings, and where the rates come from."""

from collections.abc import Mapping, Sequence
from typing import Any

from rookery.experiment.folder import StoredRun
from rookery.report.concluding import recipe_of
from rookery.report.describing import configurations, text
from rookery.report.tables import label

_SETTINGS = ("dataset", "clients", "participants", "local_steps", "batch_size", "rounds", "seeds")


def meaning(
    runs: Sequence[StoredRun], names: Sequence[str], metrics: Sequence[str], tuned: Sequence[str]
) -> dict[str, Any]:
    """What the page says below the conclusion.

    Arguments:
        runs: of one task and data set.
        names: what they are called.
        metrics: those that are shown, the one that counts first.
        tuned: the algorithms whose rates a search found.
    """
    recipe = recipe_of(runs[0])
    rows = configurations([run.config for run in runs])
    same = {(row["table"], row["key"]): row["values"][0] for row in rows if not row["differs"]}
    dataset = str(runs[0].config["run"].get("dataset", ""))
    same["run", "dataset"] = dataset
    defaults = _defaults(runs[0])
    options = [(key, value) for (table, key), value in same.items() if table == "task" and value is not None]
    said = {} if recipe is None else recipe.meanings
    return {
        "task": "" if recipe is None else recipe.summary[:1].upper() + recipe.summary[1:],
        "metrics": [[label(metric), said[metric]] for metric in metrics if said.get(metric)],
        "settings": [[key.replace("_", " "), same["run", key]] for key in _SETTINGS if same.get(("run", key))],
        "options": [
            [key.replace("_", " "), value, defaults[key] if defaults.get(key, value) != value else None]
            for key, value in options
        ],
        "rates": _rates(runs, names, tuned),
    }


def _defaults(run: StoredRun) -> dict[str, str]:
    """The options of the run's task as they are unless somebody says otherwise."""
    recipe = recipe_of(run)
    if recipe is None:
        return {}
    here = recipe.defaults.get(str(run.config["run"].get("dataset", "")), recipe.own)
    plain = {name: each.default for name, each in recipe.options.items() if each.default is not each.empty}
    return {name: text(value) for name, value in {**plain, **({} if here is None else here.options)}.items()}


def _rates(runs: Sequence[StoredRun], names: Sequence[str], tuned: Sequence[str]) -> list[list[str]]:
    """[where from, which runs] for each origin."""
    found: dict[str, list[str]] = {}
    for run, name in zip(runs, names, strict=True):
        found.setdefault(_origin(run, tuned), []).append(name)
    return [[origin, ", ".join(members)] for origin, members in found.items()]


def _origin(run: StoredRun, tuned: Sequence[str]) -> str:
    if run.config["run"].get("rates_from") == "default":
        return "defaults, never tuned"
    if run.name in tuned:
        return "searched for here"
    return "stored with the task, from a search" if _is_stored(run) else "given"


def _is_stored(run: StoredRun) -> bool:
    """Whether the rates are those that the task has for this algorithm and data set."""
    recipe = recipe_of(run)
    here = None if recipe is None else recipe.defaults.get(str(run.config["run"].get("dataset", "")))
    stored: Mapping[str, Any] = {} if here is None else here.rates.get(run.name, {})
    rates = run.config.get("algorithm", {})
    return bool(stored) and all(text(rates.get(name)) == text(value) for name, value in stored.items())
