"""``rk.Simulator``: rounds on this machine, lanes dealt out to its cores."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.cost import Cost
from rookery.algorithm.setting import Setting, State
from rookery.engines.base import Divergence, Engine, Run, Stopped
from rookery.engines.compiled import compiled_rounds, lane_axes
from rookery.engines.diagnose import Found, diagnose
from rookery.typing import Axes, Tree

LARGE = 20_000
"""A server that holds more numbers than this gains nothing from a program that runs several lanes side by side."""


@dataclass(frozen=True)
class Shares:
    """The lanes of a batch as they are dealt out to threads: where each share lies, and its part of the setting."""

    places: list[int] | list[slice]
    settings: list[Setting]
    clients_axes: Axes | None
    """Which leaves of the clients have an axis of lanes; None if every share is one lane without its axis."""


def deal(setting: Setting, state: State, clients_axes: Axes) -> Shares:
    """``clients_axes`` says which leaves of the clients have an axis of lanes.

    Programs leave cores idle, so the lanes are dealt out to as many threads as there are cores: in equal shares, which
    are the same program, or one by one if that cannot be, or if the problem is so large that lanes side by side only fall
    out of the cache.
    """
    number, threads = setting.key.shape[0], os.cpu_count() or 1
    large = sum(leaf.size for leaf in jax.tree.leaves(state.server)) > LARGE * number
    axes = lane_axes(setting, clients_axes)
    if large or number % threads:
        ones = list(range(number))
        return Shares(ones, [_share(setting, axes, lane) for lane in ones], None)
    each = number // threads
    parts = [slice(first, first + each) for first in range(0, number, each)]
    return Shares(parts, [_share(setting, axes, part) for part in parts], clients_axes)


def advance(
    setting: Setting, state: State, rounds: int, at_once: int | None, shares: Shares | None = None
) -> tuple[State, Array]:
    """``rounds`` more rounds: the new state, and how active each stage was (executions, participants, local steps).

    A batch needs its ``shares``.
    """
    start = int(state.round)
    bounds = jnp.int32(start), jnp.int32(start + rounds)
    state = replace(state, round=None)

    def run(setting: Setting, state: State, axes: Axes | None) -> tuple[State, Array]:
        made: tuple[State, Array] = jax.block_until_ready(compiled_rounds((setting, *bounds, at_once, axes), state))
        return made

    if shares is None:
        moved, activity = run(setting, state, None)
    else:
        states = [_share(state, eqx.if_array(0), place) for place in shares.places]
        axes = [shares.clients_axes] * len(states)
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            done = list(pool.map(run, shares.settings, states, axes))
        join = jnp.stack if shares.clients_axes is None else jnp.concatenate
        moved, activity = jax.tree.map(lambda *leaves: join(leaves), *done)
    return replace(moved, round=start + rounds), activity


def _share(whole: Tree, axes: Tree, place: int | slice) -> Tree:
    """Some of the lanes, or one without its axis."""

    def cut(axis: Any, tree: Tree) -> Tree:
        axis = axis if callable(axis) else eqx.if_array(axis)
        return jax.tree.map(lambda leaf: leaf if axis(leaf) is None else leaf[place], tree)

    return jax.tree.map(cut, axes, whole, is_leaf=lambda axis: axis is None)


@dataclass(frozen=True)
class Simulator(Engine):
    """Runs the clients of a round side by side on this machine.

    ``clients_at_once`` bounds how many are computed at a time where memory asks for it; the default is all.
    """

    batches: ClassVar[bool] = True
    clients_at_once: int | None = None

    def __post_init__(self) -> None:
        number = self.clients_at_once
        if number is not None and (not isinstance(number, int) or number < 1):
            raise ValueError(f"clients_at_once must be an integer of at least 1, got {number!r}")

    def check(self, run: Run) -> None:
        """The clients' data are here."""
        if run.costs is None:
            raise ValueError("engine: rk.Simulator() needs the clients' data here, these clients have theirs elsewhere")

    @contextmanager
    def open(self, run: Run) -> Iterator["Simulation"]:
        """A session in this process."""
        shares = None
        if run.clients_axes is not None:
            shares = deal(run.setting, jax.eval_shape(run.initial_state), run.clients_axes)
        yield Simulation(run.setting, run.costs or (), self.clients_at_once, shares)

    def diagnose(self, run: Run, state: State, stopped: Stopped) -> Divergence:
        """The last round is repeated, one client after the other."""
        state = replace(state, round=None)
        if stopped.lane is not None:
            state = jax.tree.map(lambda leaf: leaf[stopped.lane], state)
        alone = run.lane(stopped.lane or 0)
        found, advice = diagnose(alone.setting, state, stopped.round, alone.x, alone.y)
        if found is None:  # in another order of additions it is finite
            found = Found(None, None, None, "the server's state")
        return Divergence(stopped.round, *found, advice, stopped.lane)


@dataclass(frozen=True)
class Simulation:
    """Rounds in this process."""

    setting: Setting
    costs: Sequence[Cost]
    at_once: int | None
    shares: Shares | None
    stride: None = None

    def advance(self, state: State, rounds: int) -> tuple[State, Array]:
        """One call of the compiled program, or one a share of the lanes."""
        return advance(self.setting, state, rounds, self.at_once, self.shares)

    def gather(self, state: State, final: bool) -> State:
        """All of the state is here."""
        return state

    def memory(self) -> None:
        """The state is all there is."""
