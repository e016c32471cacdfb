"""A run whose server holds no client's data: what it needs of them, nodes tell."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rookery.aggregation.privacy import ClientPrivacy
from rookery.aggregation.robust import Rule
from rookery.aggregation.spelled import read_privacy, read_rule
from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.rates import make_algorithm, tell_algorithm
from rookery.algorithms.registry import by_name, name_of
from rookery.engines.base import Engine
from rookery.engines.flower.site import Site
from rookery.experiment.running import Plan, go_in_folder
from rookery.experiment.settings import parse_value, read_batch_size, read_participants, read_steps
from rookery.problem.clients import Clients
from rookery.problem.participation import Bernoulli, Participation, Steps, Uniform
from rookery.problem.problems import ClientWeighting
from rookery.solving.prepare import Prepared, prepare, single
from rookery.solving.solution import Solution
from rookery.typing import BatchSize


@dataclass(frozen=True)
class Order:
    """What is to be done with a problem: an algorithm with its rates, and the arguments of ``rk.solve``."""

    algorithm: Algorithm
    key: Any = 0
    participation: Participation | int | None = None
    local_steps: int | Steps = 1
    batch_size: BatchSize = None
    aggregate: Rule | None = None
    privacy: ClientPrivacy | None = None
    rounds: int | None = None


DEFAULTS: dict[str, Any] = {
    "algorithm": "MeFBO",
    "rates": "",
    "rounds": 50,
    "every": 10,
    "participants": "all",
    "local-steps": "1",
    "batch-size": "all",
    "seed": 0,
    "aggregate": "",
    "privacy": "",
}
"""What an order is made of, as text and numbers: the options of a deployed run with their defaults."""


def read_order(site: Site, config: Mapping[str, Any]) -> Order:
    """An order from the options in :data:`DEFAULTS`; rates are NAME=VALUE with spaces between them."""
    rates = {}
    for pair in str(config["rates"]).split():
        name, equals, text = pair.partition("=")
        if not equals:
            raise ValueError(f"rates must be NAME=VALUE with spaces between them, got {pair!r}")
        rates[name] = parse_value(text)
    chosen = str(config["algorithm"])
    kind = site.algorithms[chosen] if chosen in site.algorithms else by_name(chosen)
    steps, participants = read_steps(config["local-steps"]), read_participants(config["participants"])
    return Order(
        make_algorithm(kind, rates),
        key=int(config["seed"]),
        participation=Bernoulli(participants) if isinstance(participants, float) else _uniform(participants),
        local_steps=Steps(*steps) if isinstance(steps, tuple) else steps,
        batch_size=read_batch_size(config["batch-size"]),
        aggregate=read_rule(str(config["aggregate"])) if config["aggregate"] else None,
        privacy=read_privacy(str(config["privacy"])) if config["privacy"] else None,
        rounds=int(config["rounds"]),
    )


def _uniform(participants: int | None) -> Participation | None:
    return None if participants is None else Uniform(participants)


def prepare_deployed(site: Site, order: Order, engine: Engine) -> Prepared:
    """The run, ready to go on nodes that hold the clients' data."""
    server = None if site.load_server is None else site.load_server()
    if server is None and isinstance(site.problem, ClientWeighting):
        raise ValueError("the problem module must define load_server: client weighting needs data at the server")
    clients = Clients.elsewhere(site.n, site.weights, server)
    how = {f.name: getattr(order, f.name) for f in dataclasses.fields(order) if f.name != "algorithm"}
    start = clients, site.x0, site.y0
    return prepare(single(site.problem, order.algorithm, *start, evaluate=site.evaluate, engine=engine, **how))


def run_deployed(site: Site, config: Mapping[str, Any], engine: Engine, folder: Path, title: str) -> Solution:
    """Makes a run on nodes in a folder: the same files as any other run's, with a checkpoint after every round.

    Where the folder holds an unfinished run, that one is gone on with.
    """
    order = read_order(site, config)
    name = name_of(type(order.algorithm))
    plan = Plan(f"{name} on {title}", int(config["rounds"]), int(config["every"]))
    run = {**{name: config[name] for name in DEFAULTS}, "task": title, "dataset": "nodes", "clients": site.n}
    told = {"run": {**run, "algorithm": name}, "algorithm": tell_algorithm(order.algorithm)["rates"]}
    return go_in_folder(folder, plan, prepare_deployed(site, order, engine), told)
