"""The settings of a run, from what a command line says."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rookery.experiment.settings import Settings, assignments, read_settings, recipe_of, resolve


def settings_from(task: str, given: Mapping[str, Any], pairs: Sequence[str]) -> Settings:
    """From the name of a task or a TOML file, changed by ``given`` and then by the NAME=VALUE ``pairs``.

    What is None in ``given`` was not given. Rates in a file belong to its algorithm: with another one they are dropped.
    """
    if task.endswith(".toml") or Path(task).is_file():
        base = read_settings(Path(task)).tables()
        if given.get("algorithm") not in (None, base["run"]["algorithm"]):
            base["algorithm"] = {}
    else:
        base = {"run": {"task": task}, "task": {}, "algorithm": {}}
    run = {**base["run"], **{name: value for name, value in given.items() if value is not None}}
    recipe = recipe_of(run["task"])
    plain = resolve(run, base["task"], base["algorithm"])
    options, rates = assignments(list(pairs), recipe, plain.algorithm)
    return resolve(run, {**base["task"], **options}, {**base["algorithm"], **rates})
