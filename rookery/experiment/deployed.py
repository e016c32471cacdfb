"""A run whose server holds no client's data: what it needs of them, nodes tell."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import Setting, flat_problem, with_dtype
from rookery.algorithms.rates import make_algorithm, tell_algorithm
from rookery.algorithms.registry import by_name, check_solves, name_of
from rookery.engines.flower.engine import Remote
from rookery.engines.flower.site import Site
from rookery.experiment.folder import Plan, go_in_folder
from rookery.experiment.settings import _batch_size, _participants, _range, parse_value
from rookery.problem.clients import Clients, Split
from rookery.problem.keys import as_key
from rookery.problem.participation import Bernoulli, Participation, Steps, Uniform, check_participation
from rookery.problem.problems import ClientWeighting
from rookery.solving.api import Prepared, Solution, _batch_sizes


@dataclass(frozen=True)
class Order:
    """What is to be done with a problem: an algorithm with its rates, and the arguments of ``rk.solve``."""

    algorithm: Algorithm
    key: Any = 0
    participation: Participation | int | None = None
    local_steps: int | Steps = 1
    batch_size: Any = None


DEFAULTS: dict[str, Any] = {
    "algorithm": "MeFBO",
    "rates": "",
    "rounds": 50,
    "every": 10,
    "participants": "all",
    "local-steps": "1",
    "batch-size": "all",
    "seed": 0,
}
"""What an order is made of, as text and numbers: the options of a deployed run with their defaults."""


def read_order(source: Site, config: Mapping[str, Any]) -> Order:
    """An order from the options in :data:`DEFAULTS`; rates are NAME=VALUE with spaces between them."""
    rates = {}
    for pair in str(config["rates"]).split():
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"rates must be NAME=VALUE with spaces between them, got {pair!r}")
        rates[name] = parse_value(text)
    chosen = str(config["algorithm"])
    kind = source.algorithms[chosen] if chosen in source.algorithms else by_name(chosen)
    steps, participants = _range(config["local-steps"]), _participants(config["participants"])
    return Order(
        make_algorithm(kind, rates),
        key=int(config["seed"]),
        participation=Bernoulli(participants) if isinstance(participants, float) else _uniform(participants),
        local_steps=Steps(*steps) if isinstance(steps, tuple) else steps,
        batch_size=_batch_size(config["batch-size"]),
    )


def _uniform(participants: int | None) -> Participation | None:
    return None if participants is None else Uniform(participants)


def prepare_without_data(source: Site, order: Order, engine: Remote) -> Prepared:
    """The run, ready to go on nodes. Losses are not tried out here: there is nothing to try them on."""
    n = source.n
    flat, x0 = flat_problem(source.problem, source.x0, source.y0, n)
    source.problem.x_set.check(x0, "x_set")
    source.problem.y_set.check(source.y0, "y_set")
    check_solves(order.algorithm, source.problem)
    server = None if source.load_server is None else source.load_server()
    if server is None and isinstance(source.problem, ClientWeighting):
        raise ValueError("the problem module must define load_server: client weighting needs data at the server")
    absent = Split.shared({"absent": np.zeros(1)}, n)
    clients = Clients(absent, weights=source.weights, server=server)
    steps, sizes = Steps.of(order.local_steps), _batch_sizes(order.batch_size)
    taking = check_participation(order.participation, n)
    order.algorithm.check(flat, clients, steps, sizes == (None, None))
    x, y = flat.x.ravel(x0), flat.y.ravel(source.y0)
    algorithm = with_dtype(order.algorithm, flat.x.dtype)
    setting = Setting(flat, algorithm, clients, taking, steps, sizes, as_key(order.key), x)
    evaluate = source.evaluate if source.evaluate is not None else _nothing
    return Prepared(setting, x, y, evaluate, engine, None, None, None, None)


def _nothing(x: Any, y: Any) -> dict[str, Any]:
    """Metrics of a server that has nothing to compute them on."""
    return {}


def run_deployed(source: Site, config: Mapping[str, Any], engine: Remote, folder: Path, title: str) -> Solution:
    """Makes a run on nodes in a folder: the same files as any other run's, with a checkpoint after every round.

    Where the folder holds an unfinished run, that one is gone on with.
    """
    order = read_order(source, config)
    name = name_of(type(order.algorithm))
    plan = Plan(f"{name} on {title}", int(config["rounds"]), int(config["every"]))
    run = {**{name: config[name] for name in DEFAULTS}, "task": title, "dataset": "nodes", "clients": source.n}
    told = {"run": {**run, "algorithm": name}, "algorithm": tell_algorithm(order.algorithm)["rates"]}
    return go_in_folder(folder, plan, prepare_without_data(source, order, engine), told)
