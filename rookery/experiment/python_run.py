"""``rk.run``: ``rk.solve`` in a folder, from Python. Calling it again continues."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery import processes
from rookery.aggregation.attacks import Attack
from rookery.aggregation.privacy import ClientPrivacy
from rookery.aggregation.robust import Rule
from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.rates import make_algorithm, tell_algorithm
from rookery.algorithms.registry import by_name, name_of
from rookery.api import check_before_search, tune
from rookery.engines.base import Engine
from rookery.engines.flower.engine import Flower
from rookery.engines.simulator import Simulator
from rookery.experiment.definition import metric_names
from rookery.experiment.engines import engine_name
from rookery.experiment.folder import read_config
from rookery.experiment.running import Plan, data_mark, go_in_folder
from rookery.experiment.source import OWN
from rookery.experiment.tuned import FILE, JOURNAL, forget
from rookery.files import write
from rookery.fingerprint import fingerprint
from rookery.problem.clients import Clients
from rookery.problem.keys import as_key
from rookery.problem.participation import Participation, Steps
from rookery.problem.problems import Minimax, Problem
from rookery.problem.validation import check_count
from rookery.solving.prepare import prepare, single
from rookery.solving.solution import Diverged, Solution
from rookery.typing import BatchSize, Metrics


def run(
    problem: Problem,
    algorithm: Algorithm | str,
    clients: Clients,
    x0: Any,
    y0: Any,
    *,
    rounds: int,
    folder: str | Path,
    key: Any = 0,
    participation: Participation | int | None = None,
    local_steps: int | Steps = 1,
    batch_size: BatchSize = None,
    evaluate: Metrics | None = None,
    metric: str | None = None,
    higher_is_better: bool = True,
    every: int | None = None,
    engine: Engine | None = None,
    aggregate: Rule | None = None,
    privacy: ClientPrivacy | None = None,
    attack: Attack | None = None,
    progress: bool | None = None,
    checkpoint_seconds: float = 10.0,
) -> Solution:
    """Solves a problem as :func:`solve` does, and leaves a folder that survives a kill.

    The folder holds ``config.toml``, ``history.csv``, checkpoints, ``result.safetensors`` and a log, as one of
    ``rookery run`` does; ``rookery report`` shows it. The same call continues a run that was interrupted, and it ends with
    the bits of one that was not; of a run that is finished it returns the solution. A call with other arguments is
    refused: the numbers, the data, x0, y0, the key, the rates, and the losses' own code and what they captured are
    compared, but not functions that a loss calls by a global name.

    Args:
        problem, algorithm, clients, x0, y0: those of :func:`solve`; the rates of an algorithm that is given by its name are
            searched for once, without the attack, and the folder has them.
        rounds: communication rounds in all.
        folder: where the run is, or will be.
        key, participation, local_steps, batch_size, evaluate, metric, higher_is_better, every, aggregate, privacy, attack,
            progress: those of :func:`solve`.
        engine: that of :func:`solve`. Nodes that ``rk.Flower`` starts keep clients' state in the folder.
        checkpoint_seconds: least time between checkpoints.

    Raises:
        ValueError, TypeError: a bad argument, or a folder that holds another run; nothing is written then.
        Diverged: a number was not finite; what was computed before is in the folder.
    """
    folder = Path(folder)
    check_count(rounds, "rounds")
    every = max(1, rounds // 20) if every is None else check_count(every, "every")
    given: dict[str, Any] = {
        "key": key, "participation": participation, "local_steps": local_steps, "batch_size": batch_size,
        "evaluate": evaluate, "metric": metric, "higher_is_better": higher_is_better, "aggregate": aggregate,
    }  # fmt: skip
    how = {**given, "rounds": rounds, "progress": progress}
    given |= {"privacy": privacy, "attack": attack}
    placed = _placed(engine, folder)
    wanted = single(problem, algorithm, clients, x0, y0, engine=placed, rounds=rounds, **given)
    if isinstance(algorithm, str):
        check_before_search(algorithm, wanted)
    chosen = _chosen(algorithm, folder, (problem, clients, x0, y0), how)
    prepared = prepare(dataclasses.replace(wanted, algorithms=[chosen]))
    told = tell_algorithm(chosen)
    numbers = {"algorithm": told["name"], "clients": clients.n, "rounds": rounds, "every": every}
    more = {name: _plain(given[name]) for name in ("participation", "local_steps", "batch_size")}
    more |= {name: str(given[name]) for name in ("aggregate", "privacy", "attack") if given[name] is not None}
    marks = {
        "problem": problem, "algorithm": chosen, "data": data_mark(clients), "x0": x0, "y0": y0, **given, "key": as_key(key),
        "rounds": rounds, "every": every, "engine": engine_name(placed),
    }  # fmt: skip
    config = {
        "run": {
            "task": folder.name,
            "dataset": OWN,
            **numbers,
            **more,
            **_judged(problem, evaluate, metric, higher_is_better, x0, y0, clients.n),
        },
        "algorithm": told["rates"],
        "python": {name: fingerprint(value) for name, value in marks.items()},
    }
    if (folder / "config.toml").exists():
        _check_same(folder, read_config(folder), config["python"])
    plan = Plan(f"{told['name']} from Python", rounds, every)
    solution = go_in_folder(
        folder, plan, prepared, config, again="the same call of rk.run", progress=progress,
        checkpoint_seconds=checkpoint_seconds,
    )  # fmt: skip
    if solution.diverged:
        raise Diverged(solution.why(), solution)
    return solution


def _placed(engine: Engine | None, folder: Path) -> Engine:
    """Nodes of ours keep their state in the folder; the problem they have from the caller, or share with it."""
    if isinstance(engine, Flower) and engine.superlink is None and engine.folder is None:
        return dataclasses.replace(engine, folder=folder / "nodes")
    return Simulator() if engine is None else engine


def _chosen(algorithm: Algorithm | str, folder: Path, problem: tuple[Any, ...], how: dict[str, Any]) -> Algorithm:
    """The algorithm with its rates: given, those of the run that is there, or those that a search finds."""
    if not isinstance(algorithm, str):
        return algorithm
    if (folder / "config.toml").exists():
        there, kind = read_config(folder), by_name(algorithm)
        if there["run"].get("algorithm") != name_of(kind):
            raise ValueError(f"{folder} holds a run with another algorithm: choose another folder")
        return make_algorithm(kind, there.get("algorithm", {}))
    f, clients, x0, y0 = problem

    def search() -> dict[str, Any]:
        found = tune(f, algorithm, clients, x0, y0, folder=folder / JOURNAL, **how)
        write(folder / FILE, json.dumps(found.tables(), indent=1).encode())
        forget(folder)
        rates: dict[str, Any] = tell_algorithm(found.best)["rates"]
        return rates

    return make_algorithm(by_name(algorithm), processes.on_first(search))


def _judged(
    problem: Problem, evaluate: Metrics | None, metric: str | None, higher: bool, x0: Any, y0: Any, n: int
) -> dict[str, Any]:
    """The metric that a report shows first; which way is better is known if it was named, or of the objectives."""
    if metric is not None:
        return {"metric": metric, "higher_is_better": higher}
    if evaluate is None:
        return {"metric": "objective" if isinstance(problem, Minimax) else "upper_loss", "higher_is_better": False}
    names = metric_names(evaluate, problem, x0, y0, n)
    return {"metric": names[0]} if names else {}


def _plain(value: Any) -> Any:
    """An argument as a table shows it."""
    if value is None:
        return "all"
    return value if isinstance(value, int) else str(value)


def _check_same(folder: Path, there: Mapping[str, Any], marks: Mapping[str, str]) -> None:
    if "python" not in there:
        raise ValueError(f"{folder} holds a run that was not made by rk.run: choose another folder")
    other = [name for name, mark in marks.items() if there["python"].get(name) != mark]
    if other:
        raise ValueError(f"{folder} holds a run with another {' and '.join(other)}: choose another folder")


__all__ = ["run"]
