"""What a round sends: the reals of algorithm boxes beside those that are counted in ours."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm.cost import costs_of
from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Server, count_stages
from rookery.algorithm.setting import Setting
from rookery.algorithm.walk import Moment, Walk
from rookery.algorithms.registry import registry
from rookery.problem.clients import Clients
from rookery.problem.keys import as_key
from rookery.problem.layout import Layout
from rookery.problem.participation import Steps, Uniform
from rookery.problem.problems import Bilevel, Flat

X, Y = 10**6, 10**3
"""Sizes of x and y of which the reals of a round show how many of each they are."""
_ROUNDS = 4000
"""Of which the mean is taken where exchanges are drawn."""
_FEW = 10
"""Fewer reals than these are no part of y."""


@dataclass(frozen=True)
class Reals:
    """So many vectors of the size of x, and of y, and single numbers."""

    x: float = 0
    y: float = 0
    ones: float = 0

    @classmethod
    def of(cls, reals: float) -> "Reals":
        """What so many reals consist of, at the sizes :data:`X` and :data:`Y`."""
        x, rest = divmod(reals, X)
        ones = rest % Y if rest % Y < _FEW else 0
        return cls(x, (rest - ones) / Y, ones)

    def __add__(self, other: "Reals") -> "Reals":
        return Reals(self.x + other.x, self.y + other.y, self.ones + other.ones)

    def __rmul__(self, often: float) -> "Reals":
        return Reals(often * self.x, often * self.y, often * self.ones)

    def rounded(self) -> "Reals":
        """As means over rounds are shown."""
        return Reals(*(round(float(each), 1) for each in (self.x, self.y, self.ones)))

    def __str__(self) -> str:
        parts = [f"{'' if n == 1 else f'{n:g}'}{name}" for n, name in ((self.x, "x"), (self.y, "y")) if n]
        return " + ".join([*parts, *([f"{self.ones:g}"] if self.ones else [])]) or "nothing"


@dataclass(frozen=True)
class Sent:
    """What a participant receives and sends in a round, and in how many exchanges."""

    down: Reals
    up: Reals
    exchanges: float

    def __str__(self) -> str:
        return f"{self.down} down, {self.up} up, {self.exchanges:g}×"


def _equal(x: int, y: int, exchanges: int = 1) -> Callable[[Any], Sent]:
    return lambda _: Sent(Reals(x, y), Reals(x, y), exchanges)


def _fednest(a: Any) -> Sent:
    t, n = a.inner, a.products
    return Sent(Reals(t + 2, 2 * t + n + 2), Reals(2, 2 * t + n + 1), 2 * t + n + 3)


def _fedmbo(a: Any) -> Sent:
    """N' is drawn below N: of its mean."""
    t, n = a.inner, (a.products - 1) / 2
    return Sent(Reals(t + n + 2, t + 2 * n + 3), Reals(1, t + n + 1), t + n + 2)


BOXES: dict[str, Callable[[Any], Sent]] = {
    "MeFBO": _equal(1, 2),
    "FedBiO": _equal(1, 2),
    "FedBiOAcc": _equal(2, 4, 2),
    "SimFBO": _equal(1, 2),
    "ShroFBO": _equal(1, 2),
    "ASFBO": _equal(1, 2),
    "LA-ASFBO": _equal(1, 2),
    "FedNest": _fednest,
    "LFedNest": lambda a: Sent(Reals(a.inner + 1, a.inner + 1), Reals(1, a.inner), a.inner + 1),
    "FedMBO": _fedmbo,
    "CommFedBiO": lambda a: Sent(Reals(1, 2 + a.products), Reals(1, 1 + a.products / 10), a.products + 2),
    "Local-BSGVR": _equal(2, 2, 2),
    "AdaFBiO": lambda _: Sent(Reals(3, 2, 1), Reals(2, 2), 2),
    "FedAvg": _equal(0, 1),
}
"""What the box of an algorithm sends, with its own options: read in the paper only where the status is P."""

COMPLEXITY = {
    "SimFBO": "ε⁻¹", "ShroFBO": "ε⁻¹", "ASFBO": "ε⁻¹", "LA-ASFBO": "ε⁻¹", "FedBiOAcc": "ε⁻¹", "AdaFBiO": "ε⁻¹",
    "Local-BSGVR": "ε⁻¹", "Local-BSGM": "ε⁻¹·⁵", "FBO-AggITD": "ε⁻²", "FedNest": "ε⁻²", "FedMBO": "ε⁻²",
}  # fmt: skip
"""Communication to reach ε, as Table 1 of ASFBO's paper prints it."""

FREE = {"MeFBO": True, "FedNest": False, "FBO-AggITD": False, "FedBiO": False, "FedMBO": False, "SimFBO": False}
"""Whether it needs no Hessian or Jacobian, as Table 1 of MeFBO's paper prints it."""


def bilevel() -> dict[str, type[Algorithm]]:
    """All algorithms of the problem with one lower level for all clients."""
    return {name: kind for name, kind in registry.items() if kind.solves == ("bilevel",)}


def box_of(name: str) -> Sent | None:
    """What its box sends with default options, if it has one."""
    return BOXES[name](registry[name]()) if name in BOXES else None


@cache
def counted(name: str) -> Sent:
    """What a round of ours sends with default options, read from its traced program; the mean where exchanges are drawn."""
    algorithm = registry[name]()
    x, y = jnp.zeros(X, jnp.float32), jnp.zeros(Y, jnp.float32)
    flat = Flat(Bilevel(_loss, _loss), Layout.of(x, "x0"), Layout.of(y, "y0"))
    clients = Clients([jnp.ones(2, jnp.float32)] * 3)
    setting = Setting(flat, algorithm, clients, Uniform(2), Steps(1, 1), (1, 1), as_key(0), x)
    times = _times(setting, x, y)
    down, up, exchanges = Reals(), Reals(), 0.0
    for cost, often in zip(costs_of(setting, x, y), times, strict=True):
        down, up = down + often * Reals.of(cost.down / 4), up + often * Reals.of(cost.up / 4)
        exchanges += often * cost.exchange
    return Sent(down.rounded(), up.rounded(), round(exchanges, 1))


def _loss(x: Array, y: Array, batch: Array) -> Array:
    return jnp.mean(batch) * jnp.sum(x**2) + jnp.sum((y - x[:Y]) ** 2)


class _Choosing(Walk):
    """Does nothing but ask at each exchange whether it is made; exchanges must not depend on what was computed."""

    def exchange(self, stage: Exchange, at: Moment, index: Any, number: int) -> Moment:
        ctx = self.setting.context(self.round, index, at.ids, at.mask)
        made = True if stage.when is None else stage.when(at.server, ctx)
        return replace(at, more=at.more.at[number].add(jnp.asarray(made, jnp.float32)))

    def repeat(self, stage: Repeat, at: Moment, index: Any, number: int) -> Moment:
        for each in range(stage.count):
            at = self.run(stage.stages, at, jnp.int32(each), number)
        return at

    def server(self, stage: Server, at: Moment, index: Any, number: int) -> Moment:
        return at


def _times(setting: Setting, x: Array, y: Array) -> np.ndarray:
    """How often each stage is executed in a round, on average."""
    stages = setting.algorithm.round()
    server = setting.algorithm.init(x, y)

    def one(round: Array) -> Any:
        ids, mask = setting.participants(round, 0)
        walk = _Choosing(setting, round)
        return walk.run(stages, Moment(server, None, None, ids, mask, -1, more=jnp.zeros(count_stages(stages)))).more

    made = np.asarray(jax.jit(jax.vmap(one))(jnp.arange(1, 1 + _ROUNDS)), float)
    return np.asarray(made.mean(0))
