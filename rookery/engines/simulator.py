"""``rk.Simulator``: rounds on this machine, lanes dealt out to its cores; or on the devices of many."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from rookery import devices, processes
from rookery.algorithm.cost import Cost
from rookery.algorithm.setting import Setting, State
from rookery.engines.base import Divergence, Engine, Run, Stopped
from rookery.engines.compiled import compiled_rounds, lane_axes, no_activity
from rookery.engines.diagnose import Found, diagnose
from rookery.engines.homes import Homes, make_homes, on_device, place_setting
from rookery.engines.sharded import meet, sharded_rounds
from rookery.fingerprint import fingerprint
from rookery.processes import Group
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
    workers: int
    """Threads that run them."""


def deal(setting: Setting, state: State, clients_axes: Axes, threads: bool = True) -> Shares:
    """``clients_axes`` says which leaves of the clients have an axis of lanes.

    A program leaves cores of a CPU idle, so the lanes are dealt out to as many threads as there are cores: in equal shares,
    which are the same program, or one by one if that cannot be, or if the problem is so large that lanes side by side only
    fall out of the cache. Programs that wait for one another on several devices have no ``threads``: all devices must run
    them in the same order.
    """
    number, workers = setting.key.shape[0], devices.threads() if threads else 1
    large = sum(leaf.size for leaf in jax.tree.leaves(state.server)) > LARGE * number
    axes = lane_axes(setting, clients_axes)
    if large or number % workers:
        ones = list(range(number))
        return Shares(ones, [_share(setting, axes, lane) for lane in ones], None, workers)
    each = number // workers
    parts = [slice(first, first + each) for first in range(0, number, each)]
    return Shares(parts, [_share(setting, axes, part) for part in parts], clients_axes, workers)


def advance(
    whole: Run, state: State, rounds: int, at_once: int | None, shares: Shares | None = None
) -> tuple[State, Array]:
    """``rounds`` more rounds: the new state, and how active each stage was (executions, participants, local steps).

    A batch needs its ``shares``. A share of lanes that have all diverged is not computed.
    """
    start = int(state.round)
    bounds = np.int32(start), np.int32(start + rounds)
    died = np.asarray(state.died) >= 0
    state = replace(state, round=None)

    def run(setting: Setting, state: State, axes: Axes | None) -> tuple[State, Array]:
        fixed = setting, *bounds, at_once, axes
        if whole.homes is None:
            made: tuple[State, Array] = jax.block_until_ready(compiled_rounds(fixed, state))
            return made
        with or_lost(whole.group):
            made = jax.block_until_ready(sharded_rounds((*fixed, whole.homes), state))
        return made

    if shares is None or len(shares.places) == 1:
        moved, activity = run(whole.setting, state, whole.clients_axes)
    else:
        axes, idle = shares.clients_axes, no_activity(whole.setting)

        def run_share(place: int | slice, setting: Setting) -> tuple[State, Array]:
            share = _share(state, eqx.if_array(0), place)
            if died[place].all():
                return share, jnp.zeros((*died[place].shape, *idle.shape), idle.dtype)
            return run(setting, share, axes)

        with ThreadPoolExecutor(shares.workers) as pool:
            done = list(pool.map(run_share, shares.places, shares.settings))
        join = jnp.stack if shares.clients_axes is None else jnp.concatenate
        moved, activity = jax.tree.map(lambda *leaves: join(leaves), *done)
    return replace(moved, round=start + rounds), activity


@contextmanager
def or_lost(group: Group | None) -> Iterator[None]:
    """A sum over devices that fails because another process is gone says which one."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        lost = None if group is None else group.cause(error)
        if lost is None:
            raise
        raise lost from None


def _check_same(run: Run, homes: Homes) -> None:
    """All processes have the same problem, algorithm and settings; the clients' data are each one's own."""
    if not homes.several:
        return
    group = processes.current()
    if group is None:
        raise ValueError("devices: this is one of several processes of JAX; call rk.join() before anything else")
    setting = run.setting
    marks = {
        "problem": setting.flat.problem, "algorithm": setting.algorithm, "x0": run.x, "y0": run.y, "key": setting.key,
        "participation": setting.participation, "local_steps": setting.steps, "batch_size": setting.batch_size,
        "weights": setting.clients.weights, "server": setting.clients.server, "devices": [str(homes.mesh.devices), homes.n],
    }  # fmt: skip
    told = group.exchange({name: fingerprint(value) for name, value in marks.items()})
    other = [(name, number) for number, each in enumerate(told) for name in marks if each[name] != told[0][name]]
    if other:
        names = dict.fromkeys(name for name, _ in other)
        numbers = dict.fromkeys(str(number) for _, number in other)
        raise ValueError(
            f"{', '.join(names)}: all processes must be given the same, process {', '.join(numbers)} has another than "
            "process 0"
        )


def _share(whole: Tree, axes: Tree, place: int | slice) -> Tree:
    """Some of the lanes, or one without its axis."""

    def cut(axis: Any, tree: Tree) -> Tree:
        axis = axis if callable(axis) else eqx.if_array(axis)
        return jax.tree.map(lambda leaf: leaf if axis(leaf) is None else leaf[place], tree)

    return jax.tree.map(cut, axes, whole, is_leaf=lambda axis: axis is None)


@dataclass(frozen=True)
class Simulator(Engine):
    """Runs the clients of a round side by side: on one device, or on several, of one process or of many.

    Args:
        clients_at_once: how many a device computes at a time at most, where memory asks for it; the default is all.
        devices: None computes on one device. "all", a number of devices or a ``jax.sharding.Mesh`` lets clients live on
            several: each computes those that live there, and data and what clients keep are divided among them. In several
            processes (:func:`rookery.join`) every one of them must make the same calls.
    """

    batches: ClassVar[bool] = True
    clients_at_once: int | None = None
    devices: int | Literal["all"] | Mesh | None = field(default=None, metadata={"stored": False})

    def __post_init__(self) -> None:
        number = self.clients_at_once
        if number is not None and (not isinstance(number, int) or number < 1):
            raise ValueError(f"clients_at_once must be an integer of at least 1, got {number!r}")
        wanted = self.devices
        whole = isinstance(wanted, int) and not isinstance(wanted, bool) and wanted >= 1
        if wanted is not None and wanted != "all" and not isinstance(wanted, Mesh) and not whole:
            raise ValueError(
                f'devices must be "all", an integer of at least 1, a jax.sharding.Mesh or None, got {wanted!r}'
            )

    def check(self, run: Run) -> None:
        """The clients' data are here, or each process has its own."""
        clients = run.setting.clients
        if run.costs is None:
            raise ValueError("engine: rk.Simulator() needs the clients' data here, these clients have theirs elsewhere")
        if self.devices is None and len(clients.held) < clients.n:
            raise ValueError(
                f"engine: rk.Simulator() needs the data of all {clients.n} clients, here are {len(clients.held)} of them; "
                'rk.Simulator(devices="all") takes those of all processes'
            )

    def place(self, run: Run) -> Run:
        """Data on the device that computes, or at their clients' homes."""
        if self.devices is None:
            return replace(run, setting=replace(run.setting, clients=on_device(run.setting.clients)))
        homes = make_homes(self.devices, run.setting.clients.n)
        _check_same(run, homes)
        setting, axes = place_setting(run.setting, run.clients_axes, homes)
        x, y = homes.everywhere((run.x, run.y))
        jax.block_until_ready(setting)  # else the first round would wait for copies
        if homes.several:
            with or_lost(processes.current()):
                meet(homes)
            devices.let_compute()
        return replace(run, setting=setting, x=x, y=y, clients_axes=axes, homes=homes)

    @contextmanager
    def open(self, run: Run) -> Iterator["Simulation"]:
        """A session in this process."""
        shares = None
        if run.clients_axes is not None:
            shares = deal(run.setting, jax.eval_shape(run.initial_state), run.clients_axes, run.homes is None)
        yield Simulation(run, self.clients_at_once, shares)

    def diagnose(self, run: Run, state: State, stopped: Stopped) -> Divergence:
        """The last round is repeated, one client after the other."""
        state = replace(run.take(state), round=None)
        if stopped.lane is not None:
            state = jax.tree.map(lambda leaf: leaf[stopped.lane], state)
        alone = run.lane(stopped.lane or 0)
        found, advice = diagnose(alone.setting, state, stopped.round, alone.x, alone.y, alone.homes)
        if found is None:  # in another order of additions it is finite
            found = Found(None, None, None, "the server's state")
        return Divergence(stopped.round, *found, advice, stopped.lane)


@dataclass(frozen=True)
class Simulation:
    """Rounds in this process, or in this and others together."""

    run: Run
    at_once: int | None
    shares: Shares | None
    stride: None = None

    @property
    def costs(self) -> Sequence[Cost]:
        """Traced by the preparation."""
        return self.run.costs or ()

    def advance(self, state: State, rounds: int) -> tuple[State, Array]:
        """One call of the compiled program, or one a share of the lanes."""
        return advance(self.run, state, rounds, self.at_once, self.shares)

    def gather(self, state: State, final: bool) -> State:
        """All of the state is here, or where it belongs."""
        return state

    def memory(self) -> None:
        """The state is all there is."""
