"""What a task is: a problem with data, and by name a recipe that makes it."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.problem.clients import Clients
from rookery.problem.problems import Problem


@dataclass(frozen=True)
class Task:
    """All that ``rk.solve`` needs: problem, clients, a start and metrics.

    ``metric`` names the number of ``evaluate`` by which runs are compared.
    """

    problem: Problem
    clients: Clients
    x0: Any
    y0: Any
    evaluate: Any
    metric: str = "accuracy"
    higher_is_better: bool = True


@dataclass(frozen=True)
class Defaults:
    """Settings of a run of a task on one data set that work.

    ``participants`` is a number of clients, a probability of taking part (a float), or None for everybody;
    ``local_steps`` a number or a range; ``batch_size`` a number, (lower, upper) or None for whole sets. ``options`` are
    arguments of the recipe's ``make``, ``rates`` the hyperparameters of algorithms by name (tuned on held-out training
    data).
    """

    clients: int
    rounds: int
    algorithm: str
    participants: int | float | None = None
    local_steps: int | tuple[int, int] = 1
    batch_size: int | tuple[int | None, int | None] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rates: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A task by name.

    ``make(data, *, clients, seed, **options)`` makes it, ``data`` being what ``rookery.datasets.load`` gives (None for
    a synthetic task). ``defaults`` has an entry for each data set that the task is meant for, "synthetic" if it needs
    none; the first is taken unless another is asked for.
    """

    name: str
    summary: str
    make: Callable[..., Task]
    defaults: Mapping[str, Defaults]

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options of ``make``, with their types and defaults."""
        parameters = inspect.signature(self.make).parameters
        return {name: p for name, p in parameters.items() if name not in ("data", "clients", "seed")}
