"""What a task is: a problem with data, and by name a recipe that makes it."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rookery.algorithm.exchange import Algorithm
from rookery.api import solve, tune
from rookery.datasets import Dataset, from_arrays
from rookery.names import unknown
from rookery.problem.clients import Clients
from rookery.problem.participation import Bernoulli, Participation, Steps, Uniform
from rookery.problem.problems import Problem
from rookery.solving.solution import Solution
from rookery.tasks.learned import Learned
from rookery.tasks.rivals import Contest, Effort, Result, hold


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
    search_by: tuple[str, bool] | None = None
    """The metric by which rates are searched for, and whether more of it is better, where that is another one: a loss tells
    candidates apart that have few held-out examples wrong, or none."""
    contest: Contest | None = field(default=None, repr=False, compare=False)
    """The simple rivals, and what they are trained on."""
    learned: Callable[[Any, Any], Learned] | None = field(default=None, repr=False, compare=False)
    """What x and y say: tables, pictures, a model."""
    defaults: "Defaults | None" = field(default=None, repr=False, compare=False)
    apart: "Callable[[], Task] | None" = field(default=None, repr=False, compare=False)
    """Makes the same task without its test data, for tuning: a part of the training data takes their place."""

    def solve(self, algorithm: Algorithm | str | None = None, *, rounds: int | None = None, **how: Any) -> Solution:
        """``rk.solve`` with the settings of the task, where none are given; ``how`` are further arguments of it.

        By its name an algorithm finds its rates on training data alone.
        """
        given = {**self._settings(), "metric": self.metric, "higher_is_better": self.higher_is_better, **how}
        rounds = rounds or (100 if self.defaults is None else self.defaults.rounds)
        chosen = algorithm or (None if self.defaults is None else self.defaults.algorithm)
        if chosen is None:
            raise ValueError("algorithm must be given, such as 'MeFBO', got None")
        if isinstance(chosen, str) and self.apart is not None and given.get("start") is None:
            other = self.apart()
            metric, higher = self.searched
            told = {"metric": metric, "higher_is_better": higher}
            tuned = {name: value for name, value in {**given, **told}.items() if name not in ("every", "start")}
            task = other.problem, chosen, other.clients, other.x0, other.y0
            chosen = tune(*task, rounds=rounds, evaluate=other.evaluate, **tuned).best
        return solve(
            self.problem, chosen, self.clients, self.x0, self.y0, rounds=rounds, evaluate=self.evaluate, **given
        )

    @property
    def searched(self) -> tuple[str, bool]:
        """The metric by which rates are searched for, and whether more of it is better."""
        return self.search_by or (self.metric, self.higher_is_better)

    def _settings(self) -> dict[str, Any]:
        chosen = self.defaults
        if chosen is None:
            return {}
        return {
            "participation": participation_of(chosen.participants),
            "local_steps": steps_of(chosen.local_steps),
            "batch_size": chosen.batch_size,
        }

    def look(self, solution: Solution) -> Learned:
        """What a solution of this task has learned: ``tables`` by file name, ``exhibits`` and the ``model``."""
        if self.learned is None:
            raise ValueError("this task has nothing to show but x and y")
        return self.learned(solution.x, solution.y)

    def rivals(self, *, rounds: int | None = None, key: int = 0, **how: Any) -> list[Result]:
        """What simple methods reach in as many rounds, their steps chosen on held-out training data."""
        if self.contest is None or self.apart is None:
            return []
        rounds = rounds or (100 if self.defaults is None else self.defaults.rounds)
        effort = Effort(rounds=rounds, seeds=(key,), **{**self._settings(), **how})
        return hold([self.contest], self.apart().contest, effort, *self.searched)


def participation_of(participants: int | float | None) -> Participation | None:
    """Who takes part, as ``rk.solve`` takes it: a number of clients, a probability, or everybody."""
    if participants is None:
        return None
    return Bernoulli(participants) if isinstance(participants, float) else Uniform(participants)


def steps_of(local_steps: int | tuple[int, int]) -> int | Steps:
    """τ, as ``rk.solve`` takes it."""
    return Steps(*local_steps) if isinstance(local_steps, tuple) else local_steps


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
    none; the first is taken unless another is asked for. ``own`` are the settings for data of one's own, None if the task
    takes none.
    """

    name: str
    summary: str
    make: Callable[..., Task]
    defaults: Mapping[str, Defaults]
    own: Defaults | None = None
    question: str = ""
    """What somebody who runs it wants to know."""
    meanings: Mapping[str, str] = field(default_factory=dict)
    """What its metrics mean, a sentence each."""
    validates_itself: bool = False
    """Whether what it is tuned by knows no test data, so that of a user's own data nothing need be held out for that."""

    def without_test(self, data: Dataset) -> Dataset:
        """A user's own data, as rates are searched for on them."""
        return data if self.validates_itself else data.held_out()

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options of ``make``, with their types and defaults."""
        parameters = inspect.signature(self.make).parameters
        return {name: p for name, p in parameters.items() if name not in ("data", "clients", "seed")}

    def options_of_own(self) -> dict[str, Any]:
        """The options' values on data of one's own."""
        if self.own is None:
            raise ValueError(f"{self.name} takes no data of your own")
        plain = {name: p.default for name, p in self.options.items() if p.default is not p.empty}
        return plain | dict(self.own.options)

    def __call__(
        self,
        features: Any,
        labels: Any,
        *,
        clients: Any = None,
        checked: Any = None,
        test: tuple[Any, Any] | None = None,
        seed: int = 0,
        **options: Any,
    ) -> Task:
        """The task on arrays of one's own: NumPy, JAX, torch.

        Args:
            features: numbers (examples, features), which are scaled here, or images (examples, height, width[, colours]).
            labels: whole numbers or words, one an example.
            clients: who holds an example, one name or number each; or how many clients there are, among whom the examples
                are dealt out.
            checked: which labels somebody has checked: True or False, one an example.
            test: (features, labels) to judge by; by default a fifth of the examples, drawn at random.
            seed: of the split and the network's start.
            options: of the task, such as ``model``; ``rookery list options TASK`` shows them.
        """
        given = self.options_of_own()
        for name in options:
            if name not in given:
                raise ValueError(f"{self.name}: {unknown(name, given)}")
        counted = clients is None or isinstance(clients, int | np.integer)
        data = from_arrays(features, labels, clients=None if counted else clients, checked=checked, test=test)
        assert self.own is not None
        number = int(clients or self.own.clients) if counted else len(data.client_names or ())
        return self.of(data, number, seed, {**given, **options}, self.own)

    def of(self, data: Dataset, clients: int, seed: int, options: Mapping[str, Any], defaults: Defaults) -> Task:
        """The task on data, which can be made again without its test data."""
        made = self.make(data, clients=clients, seed=seed, **options)

        def apart() -> Task:
            return self.make(self.without_test(data), clients=clients, seed=seed, **options)

        return dataclasses.replace(made, defaults=defaults, apart=apart)
