"""A federated problem as one site knows it: the problem, and of the data only what lives there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.rates import make_algorithm
from rookery.algorithms.registry import registry as registered
from rookery.names import unknown
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Problem


@dataclass(frozen=True)
class Site:
    """A federated problem as one site knows it: all of the problem, but of the data only what is loaded.

    ``load_client(partition, num_partitions)`` gives the data of one client as ``rk.Clients`` of one client;
    ``load_server()`` the examples that the server itself holds. ``weights`` are the p_i (1/n if None).
    """

    problem: Problem
    x0: Any
    y0: Any
    n: int
    load_client: Callable[[int, int], Clients]
    load_server: Callable[[], Any] | None = None
    weights: Any = None
    evaluate: Any = None
    algorithm: Algorithm | None = None
    """The algorithm itself, where the node shares the server's memory."""
    algorithms: Mapping[str, type[Algorithm]] = field(default_factory=dict)
    """Algorithms of one's own by name, beside those of the package."""
    load_some: Callable[[Sequence[int]], Clients] | None = None
    """The data of several clients at once, where that saves copies."""

    def load(self, clients: Sequence[int]) -> Clients:
        """The data of some clients, in this order."""
        for client in clients:
            if not 0 <= client < self.n:
                raise ValueError(f"partition must be in 0..{self.n - 1}, got {client}")
        if self.load_some is not None:
            return self.load_some(clients)
        loaded = []
        for client in clients:
            own = self.load_client(client, self.n)
            if not isinstance(own, Clients) or own.n != 1:
                got = f"{own.n} of them" if isinstance(own, Clients) else repr(own)
                raise TypeError(f"load_client must return rk.Clients([examples]) of one client, got {got}")
            loaded.append(own)
        lower, upper = ([whole_set(getattr(own, name), 0) for own in loaded] for name in ("lower", "upper"))
        return Clients(lower, upper)

    def make_algorithm(self, told: Mapping[str, Any]) -> Algorithm:
        """The algorithm of this name with these rates, from code that is installed here."""
        if self.algorithm is not None:
            return self.algorithm
        known = {**registered, **self.algorithms}
        if told["name"] not in known:
            raise ValueError(f"algorithm: {unknown(told['name'], known)}")
        return make_algorithm(known[told["name"]], told["rates"])


def whole_set(split: Split, client: int) -> Any:
    """All examples of a client."""
    rows, _, _ = split.table(np.array([client]))
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], split.data)


def from_memory(problem: Problem, clients: Clients, x0: Any, y0: Any, algorithm: Algorithm | None = None) -> Site:
    """The problem of ``rk.solve``, for nodes in its own process."""

    def load_some(chosen: Sequence[int]) -> Clients:
        rows = np.asarray(chosen)
        return Clients(clients.lower.cut(rows), clients.upper.cut(rows))

    def load_client(client: int, n: int) -> Clients:
        return load_some([client])

    more: dict[str, Any] = {"algorithm": algorithm, "load_some": load_some}
    return Site(problem, x0, y0, clients.n, load_client, weights=clients.weights, **more)
