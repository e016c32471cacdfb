"""Where a node has the problem and its clients' data from: a module, a run's settings, or memory."""

import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np

from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.registry import name_of
from rookery.algorithms.registry import registry as registered
from rookery.names import unknown
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Problem


@dataclass(frozen=True)
class Source:
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
        return from_rates(known[told["name"]], told["rates"])


def whole_set(split: Split, client: int) -> Any:
    """All examples of a client."""
    rows = _held(split, client)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[rows], split.data)


def _held(split: Split, client: int) -> np.ndarray:
    """Which rows of the split's data a client holds: in NumPy, for a node that starts has nothing compiled."""
    start, size = (int(np.asarray(numbers)[client]) for numbers in (split.start, split.size))
    rows = np.arange(start, start + size)
    return rows if split.index is None else np.asarray(split.index)[rows]


# --- where it comes from ----------------------------------------------------------------------------------------------


def from_memory(problem: Problem, clients: Clients, x0: Any, y0: Any, algorithm: Algorithm | None = None) -> Source:
    """The problem of ``rk.solve``, for nodes in its own process."""

    def load_some(chosen: Sequence[int]) -> Clients:
        return Clients(_restrict(clients.lower, chosen), _restrict(clients.upper, chosen))

    def load_client(client: int, n: int) -> Clients:
        return load_some([client])

    more: dict[str, Any] = {"algorithm": algorithm, "load_some": load_some}
    return Source(problem, x0, y0, clients.n, load_client, weights=clients.weights, **more)


def _restrict(split: Split, clients: Sequence[int]) -> Split:
    """What some of the clients hold; examples that several share are stored once."""
    lists = [_held(split, client) for client in clients]
    used = np.unique(np.concatenate(lists))
    data = jax.tree.map(lambda leaf: np.asarray(leaf)[used], split.data)
    return Split(data, [np.searchsorted(used, rows) for rows in lists])


def from_settings(path: Path) -> Source:
    """The task of a run's settings (its ``config.toml``); a client's data are its part of the task's split."""
    from rookery.experiment.settings import read_settings

    settings = dataclasses.replace(read_settings(path), seeds=1)
    task = settings.make_tasks()[0]
    source = from_memory(task.problem, task.clients, task.x0, task.y0)
    server = task.clients.server
    load_server = None if server is None else lambda: server.data
    return dataclasses.replace(source, load_server=load_server, evaluate=task.evaluate)


def from_module(name: str) -> Source:
    """The problem that a module defines; ``name`` is ``package.module`` or the path of a Python file."""
    module = _import(name)

    def get(attribute: str) -> Any:
        if not hasattr(module, attribute):
            raise ValueError(f"the problem module {name} must define {attribute}")
        return getattr(module, attribute)

    problem, n = get("problem"), get("num_clients")
    if not isinstance(problem, Problem):
        raise TypeError(f"{name}: problem must be rk.Bilevel, rk.Minimax or rk.ClientWeighting, got {problem!r}")
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"{name}: num_clients must be a whole number of at least 1, got {n!r}")
    optional = ("load_server", "weights", "evaluate")
    more = {each: getattr(module, each) for each in optional if hasattr(module, each)}
    own = getattr(module, "algorithms", {})
    return Source(problem, getattr(module, "x0", None), get("y0"), n, get("load_client"), algorithms=own, **more)


def open_source(name: str) -> Source:
    """A module, a Python file, or a TOML file of settings."""
    return from_settings(Path(name)) if name.endswith(".toml") else from_module(name)


def _import(name: str) -> ModuleType:
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and not name.startswith(error.name):
                raise
            raise ValueError(f"there is no module {name}: give package.module or the path of a .py file") from None
    path = Path(name).resolve()
    if not path.is_file():
        raise ValueError(f"there is no file {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def partitions(text: str, name: str) -> list[int]:
    """Numbers of clients from ``0,3`` or ``0-4`` or both; ``name`` says where the text stood."""
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.strip().partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise ValueError(f"{name} must be numbers and ranges like 0,3 or 0-4, got {text!r}")
        found += range(int(low), int(high) + 1) if dash else [int(low)]
    return found


# --- algorithms by name and numbers -----------------------------------------------------------------------------------


def tell_algorithm(algorithm: Algorithm) -> dict[str, Any]:
    """What a node needs to make the same algorithm: its name, and its rates and options as JSON can hold them."""
    from rookery.experiment.settings import _plain

    values = {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)}
    rates = {name: _plain(value) for name, value in values.items() if value is not None}
    return {"name": name_of(type(algorithm)), "rates": rates}


def from_rates(kind: type[Algorithm], rates: Mapping[str, Any]) -> Algorithm:
    """The algorithm of :func:`tell_algorithm`."""
    from rookery.experiment.settings import _rate

    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name in rates:
        if name not in fields:
            raise ValueError(f"algorithm {kind.__name__}: {unknown(name, sorted(fields))}")
    return kind(**{name: _rate(fields[name], value, f"{kind.__name__}.{name}") for name, value in rates.items()})
