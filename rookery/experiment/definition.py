"""A problem of one's own, as a module or its ``make`` defines it: the one contract of the command and of nodes."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import flat_problem
from rookery.algorithms.rates import tell_algorithm
from rookery.algorithms.registry import name_of
from rookery.engines.flower.site import Site, from_memory
from rookery.engines.homes import own_clients
from rookery.names import unknown
from rookery.problem.clients import Clients
from rookery.problem.problems import Bilevel, ClientWeighting, Minimax, Problem
from rookery.tasks import Defaults, Task

ROUNDS = 100
"""The rounds of a run, if neither the command nor the module says how many."""


class Misdefined(ValueError):
    """A module does not keep to the contract."""


@dataclass(frozen=True)
class Definition:
    """What a module defines. Either ``clients`` or ``num_clients`` and ``load_client`` are there."""

    problem: Problem
    y0: Any
    x0: Any = None
    clients: Clients | None = None
    num_clients: int | None = None
    load_client: Callable[[int, int], Clients] | None = None
    load_server: Callable[[], Any] | None = None
    weights: Any = None
    evaluate: Callable[[Any, Any], Mapping[str, Any]] | None = None
    metric: str | None = None
    higher_is_better: bool = True
    algorithms: Mapping[str, type[Algorithm]] = field(default_factory=dict)
    rounds: int | None = None
    local_steps: Any = 1
    batch_size: Any = None
    participants: Any = None
    algorithm: Any = None

    @property
    def n(self) -> int:
        """The number of clients."""
        return self.num_clients or 0 if self.clients is None else self.clients.n

    def own_algorithms(self) -> dict[str, type[Algorithm]]:
        """Algorithms of one's own, by the names that the module gives them and by those that they have themselves."""
        return {**{name_of(kind): kind for kind in self.algorithms.values()}, **self.algorithms}

    def defaults(self) -> Defaults:
        """Settings of a run; the algorithm is "" where none is named."""
        rates: dict[str, Mapping[str, Any]] = {}
        chosen = self.algorithm
        if isinstance(chosen, Algorithm):
            told = tell_algorithm(chosen)
            chosen, rates = told["name"], {told["name"]: told["rates"]}
        elif isinstance(chosen, type):
            chosen = name_of(chosen)
        rounds = ROUNDS if self.rounds is None else self.rounds
        run = {"participants": self.participants, "local_steps": self.local_steps, "batch_size": self.batch_size}
        return Defaults(self.n, rounds, str(chosen or ""), rates=rates, **run)

    def site(self) -> Site:
        """The problem as one site knows it: of the data only what it loads."""
        more: dict[str, Any] = {"evaluate": self.evaluate, "algorithms": self.own_algorithms()}
        if self.clients is None:
            assert self.load_client is not None
            start = self.problem, self.x0, self.y0
            more |= {"load_server": self.load_server, "weights": self.weights}
            return Site(*start, self.n, self.load_client, **more)
        site = from_memory(self.problem, self.clients, self.x0, self.y0)
        return dataclasses.replace(site, load_server=_server(self.clients), **more)

    def task(self) -> Task:
        """The problem with the data of all clients, and the metric that it is judged by."""
        clients = self.clients
        if clients is None:
            own = own_clients(self.n)  # all of them, unless this is one of several processes
            loaded = self.site().load(own)
            server = None if self.load_server is None else self.load_server()
            clients = Clients(loaded.lower, loaded.upper, self.weights, server, first=own.start, n=self.n)
        if self.evaluate is None:
            metric = "objective" if isinstance(self.problem, Minimax) else "upper_loss"
            if self.metric not in (None, metric):
                raise Misdefined(f"metric must be {metric!r} where there is no evaluate, got {self.metric!r}")
            return Task(self.problem, clients, self.x0, self.y0, None, metric, higher_is_better=False)
        told = metric_names(self.evaluate, self.problem, self.x0, self.y0, clients.n)
        if not told:
            raise Misdefined("evaluate must return at least one metric, got none")
        metric = told[0] if self.metric is None else self.metric
        if metric not in told:
            raise Misdefined(f"metric must be one that evaluate returns ({', '.join(told)}), got {metric!r}")
        return Task(self.problem, clients, self.x0, self.y0, self.evaluate, metric, self.higher_is_better)


def _server(clients: Clients) -> Callable[[], Any] | None:
    held = clients.server
    return None if held is None else lambda: held.data


NAMES = tuple(each.name for each in dataclasses.fields(Definition))
"""All that a module can define."""


def read_definition(given: Mapping[str, Any], strict: bool = False) -> Definition:
    """What these names define, checked. ``strict`` refuses names that mean nothing.

    Raises:
        Misdefined: something is missing or not what it should be; it is named.
    """
    if strict:
        for name in given:
            if name not in NAMES:
                raise Misdefined(unknown(str(name), NAMES))
    found = {name: given[name] for name in NAMES if name in given}
    for name in ("problem", "y0"):
        if name not in found:
            raise Misdefined(f"it must define {name}")
    if not isinstance(found["problem"], Problem):
        raise Misdefined(f"problem must be rk.Bilevel, rk.Minimax or rk.ClientWeighting, got {found['problem']!r}")
    if found.get("x0") is None and not isinstance(found["problem"], ClientWeighting):
        raise Misdefined("it must define x0")
    _check_clients(found)
    _check_kinds(found)
    return Definition(**found)


def _check_clients(found: Mapping[str, Any]) -> None:
    clients, number = found.get("clients"), found.get("num_clients")
    if clients is not None:
        if not isinstance(clients, Clients):
            raise Misdefined(f"clients must be rk.Clients(...), got {_short(clients)}")
        if number not in (None, clients.n):
            raise Misdefined(f"num_clients must be the number of clients ({clients.n}), got {number!r}")
        weights = found.get("weights")
        if weights is not None and not np.allclose(weights, clients.weights):
            raise Misdefined("weights must be given in rk.Clients(..., weights=...) where clients are defined")
        return
    if "load_client" not in found:
        raise Misdefined("it must define clients, or num_clients and load_client")
    if "num_clients" not in found:
        raise Misdefined("it must define num_clients")
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise Misdefined(f"num_clients must be a whole number of at least 1, got {number!r}")


def _check_kinds(found: Mapping[str, Any]) -> None:
    for name in ("load_client", "load_server", "evaluate"):
        if found.get(name) is not None and not callable(found[name]):
            raise Misdefined(f"{name} must be a function, got {_short(found[name])}")
    if not isinstance(found.get("metric", ""), str | None):
        raise Misdefined(f"metric must be a name that evaluate returns, got {_short(found['metric'])}")
    if not isinstance(found.get("higher_is_better", True), bool):
        raise Misdefined(f"higher_is_better must be True or False, got {_short(found['higher_is_better'])}")
    own = found.get("algorithms", {})
    kinds = own.values() if isinstance(own, Mapping) else [None]
    if not all(isinstance(kind, type) and issubclass(kind, Algorithm) for kind in kinds):
        raise Misdefined(f"algorithms must be a dictionary of algorithm classes by name, got {_short(own)}")
    chosen = found.get("algorithm")
    named = chosen is None or isinstance(chosen, str | Algorithm)
    if not named and not (isinstance(chosen, type) and issubclass(chosen, Algorithm)):
        raise Misdefined(
            f"algorithm must be an algorithm such as rk.FedBiO(eta_x=0.1), or its name, got {_short(chosen)}"
        )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"a {type(value).__name__}"


def metric_names(evaluate: Callable[..., Any], problem: Problem, x0: Any, y0: Any, n: int) -> list[str]:
    """What ``evaluate`` returns, in its own order, which a compiled function does not keep. Nothing is compiled here."""
    flat, x0 = flat_problem(problem, x0, y0, n)
    x, y = (layout.unravel(layout.ravel(start)) for layout, start in ((flat.x, x0), (flat.y, y0)))
    if isinstance(problem, Bilevel) and problem.lower_level == "local":
        rows = jnp.broadcast_to(flat.y.ravel(y0), (n, flat.y.size))
        y = jax.vmap(flat.y.unravel)(rows)
    told: list[str] = []

    def look(x: Any, y: Any) -> None:
        found = evaluate(x, y)
        if not isinstance(found, Mapping):
            raise Misdefined(f"evaluate must return a dict of scalars, got {_short(found)}")
        told[:] = [str(name) for name in found]

    try:
        eqx.filter_eval_shape(look, x, y)
    except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError):
        look(x, y)  # it uses NumPy or Python's if
    return told
