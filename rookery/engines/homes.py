"""Where clients live when there are several devices: who owns which, and how data and state are laid out over them.

The devices of all processes form one mesh with one axis. With n clients on D devices each owns ⌈n/D⌉ of them, in the order
of their numbers; the last ones may own fewer, and their tables are filled up with rows that nobody reads. What belongs to
clients is sharded over the axis; everything else is on every device.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery import processes
from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import Setting, State, initial_state
from rookery.devices import kind
from rookery.problem.clients import Clients, Split, compact
from rookery.typing import Axes, Tree

AXIS = "clients"
"""The name of the mesh's axis."""


@dataclass(frozen=True)
class Homes:
    """Which device each of ``n`` clients lives on."""

    mesh: Mesh
    n: int

    @property
    def devices(self) -> int:
        """Of all processes."""
        return int(self.mesh.devices.size)

    @property
    def each(self) -> int:
        """Clients that a device owns: client i lives on device i // each."""
        return -(-self.n // self.devices)

    @property
    def rows(self) -> int:
        """Rows of a table of clients, those that only fill it up included."""
        return self.each * self.devices

    @property
    def several(self) -> bool:
        """Whether there is more than one process."""
        return len({device.process_index for device in self.mesh.devices.flat}) > 1

    @property
    def mine(self) -> list[int]:
        """The places in the mesh of the devices of this process."""
        here = jax.process_index()
        return [place for place, device in enumerate(self.mesh.devices.flat) if device.process_index == here]

    @property
    def own(self) -> range:
        """The clients that live in this process."""
        return range(self.on(self.mine[0]).start, self.on(self.mine[-1]).stop)

    def on(self, place: int) -> range:
        """The clients of one device."""
        return range(min(place * self.each, self.n), min((place + 1) * self.each, self.n))

    def spec(self, lanes: bool) -> PartitionSpec:
        """How a table of clients is laid out, behind an axis of lanes or not."""
        return PartitionSpec(None, AXIS) if lanes else PartitionSpec(AXIS)

    def sharding(self, lanes: bool) -> NamedSharding:
        """The same with the mesh."""
        return NamedSharding(self.mesh, self.spec(lanes))

    def everywhere(self, tree: Tree) -> Tree:
        """Arrays on every device; all processes have the same."""
        sharding = NamedSharding(self.mesh, PartitionSpec())

        def put(leaf: Any) -> Any:
            if not eqx.is_array(leaf) or (isinstance(leaf, Array) and leaf.sharding == sharding):
                return leaf
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                words = put(jax.random.key_data(leaf))
                return jax.random.wrap_key_data(words, impl=str(jax.random.key_impl(leaf)))
            content = np.asarray(leaf)
            return jax.make_array_from_callback(content.shape, sharding, lambda index: content[index])

        return jax.tree.map(put, tree)

    def table(self, rows: Callable[[int, int], np.ndarray], lanes: bool) -> Array:
        """A table of clients from ``rows(first, stop)``, which is asked for this process's own alone.

        Rows come behind the axis of lanes, if there is one. Those that only fill up are 0.
        """
        parts = []
        for place in self.mine:
            own = self.on(place)
            parts.append(filled(np.asarray(rows(own.start, own.stop)), self.each, int(lanes), "constant"))
        return self.assembled(parts, lanes)

    def assembled(self, parts: Sequence[np.ndarray], lanes: bool) -> Array:
        """A sharded array from what each device of this process holds."""
        shape = list(parts[0].shape)
        shape[int(lanes)] *= self.devices
        devices = [self.mesh.devices.flat[place] for place in self.mine]
        placed = [jax.device_put(part, device) for part, device in zip(parts, devices, strict=True)]
        return jax.make_array_from_single_device_arrays(tuple(shape), self.sharding(lanes), placed)


def filled(part: np.ndarray, length: int, axis: int, mode: Literal["edge", "constant"]) -> np.ndarray:
    """An array of this length, by rows that nobody reads: 0, or the last one again where there is any."""
    fill = [(0, 0)] * part.ndim
    fill[axis] = (0, length - part.shape[axis])
    return np.pad(part, fill, mode=mode if part.shape[axis] else "constant")


def make_homes(devices: Any, n: int) -> Homes:
    """The homes of n clients on ``devices``: a number, "all" or a mesh, whose axes are taken as one."""
    if isinstance(devices, Mesh):
        chosen = devices.devices.reshape(-1)
    else:
        there = jax.devices()
        number = len(there) if devices == "all" else devices
        if number > len(there):
            how = " (rookery run --devices makes as many of a CPU)" if kind() == "cpu" else ""
            raise ValueError(f"devices: there are {len(there)}, got {number}{how}")
        chosen = np.array(there[:number])
    homes = Homes(Mesh(chosen, (AXIS,)), n)
    missing = set(range(jax.process_count())) - {device.process_index for device in chosen}
    if missing:
        raise ValueError(f"devices: every process needs one, those of {', '.join(map(str, sorted(missing)))} have none")
    if homes.mine != list(range(homes.mine[0], homes.mine[-1] + 1)):
        raise ValueError("devices: those of a process must stand side by side in the mesh")
    first = {device.process_index: place for place, device in reversed(list(enumerate(chosen)))}
    idle = [process for process, place in sorted(first.items()) if place * homes.each >= n]
    if idle and homes.several:
        raise ValueError(
            f"devices: {n} clients, {homes.each} on each of {homes.devices} devices, leave none for process "
            f"{', '.join(map(str, idle))}: take fewer processes or devices"
        )
    return homes


def own_clients(n: int) -> range:
    """The clients of ``n`` whose data this process holds in a run on all devices: all of them if there is one process."""
    if n < 1:
        raise ValueError(f"n must be a number of clients, at least 1, got {n!r}")
    return make_homes("all", n).own if processes.current() is not None else range(n)


# --- state ------------------------------------------------------------------------------------------------------------


def initial_at_home(setting: Setting, x: Array, y: Array, lanes: int | None, homes: Homes) -> State:
    """The state before round 0, each device making the rows of its own clients."""

    def made(algorithm: Algorithm, x: Array, y: Array) -> State:
        alone = replace(setting, algorithm=algorithm)
        return replace(initial_state(alone, x, y, homes.rows), round=None)

    def make(algorithm: Algorithm, x: Array, y: Array) -> State:
        if lanes is None:
            return made(algorithm, x, y)
        state: State = eqx.filter_vmap(made, in_axes=(eqx.if_array(0), 0, 0))(algorithm, x, y)
        return state

    arrays, static = eqx.partition(setting.algorithm, eqx.is_array)
    shapes = eqx.filter_eval_shape(make, setting.algorithm, x, y)
    layout = jax.tree.map(lambda spec: NamedSharding(homes.mesh, spec), state_specs(shapes, homes, lanes is not None))
    build = jax.jit(lambda arrays, x, y: make(eqx.combine(arrays, static), x, y), out_shardings=layout)
    started: State = replace(build(arrays, x, y), round=0)
    return started


def state_specs(state: State, homes: Homes, lanes: bool) -> State:
    """How a state is laid out: what clients keep, and when they were last counted, at their homes."""
    by_client = homes.spec(lanes)
    return State(
        round=None,
        server=jax.tree.map(lambda _: PartitionSpec(), state.server),
        keep=jax.tree.map(lambda _: by_client, state.keep),
        last=by_client,  # type: ignore[arg-type]
        died=PartitionSpec(),  # type: ignore[arg-type]
        clips=jax.tree.map(lambda _: PartitionSpec(), state.clips),
    )


def here(tree: Tree) -> Tree:
    """What is on every device, as arrays of one that is in this process."""

    def get(leaf: Any) -> Any:
        if not isinstance(leaf, Array) or isinstance(leaf, jax.core.Tracer):
            return leaf
        return leaf.addressable_data(0)

    return jax.tree.map(get, tree)


def is_divided(leaf: Any) -> bool:
    """Whether this process has a part of an array only."""
    return isinstance(leaf, Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)


def whole(tree: Tree) -> Tree:
    """Arrays of which this process has a part, whole and in its memory; all processes must ask for it at once."""

    def get(leaf: Any) -> Any:
        if not isinstance(leaf, Array) or leaf.is_fully_addressable:
            return leaf
        return process_allgather(leaf, tiled=True) if is_divided(leaf) else leaf.addressable_data(0)

    return jax.tree.map(get, tree)


def without_fill(table: Tree, homes: Homes, lanes: bool) -> Tree:
    """Tables of clients with n rows.

    They stay where they are if all devices have as many clients; otherwise no layout fits, and what is made is on every one.
    """
    if homes.n == homes.rows:
        return table
    return _cut(table, homes.n, lanes)


@eqx.filter_jit
def _cut(table: Tree, n: int, lanes: bool) -> Tree:
    return jax.tree.map(lambda leaf: leaf[:, :n] if lanes else leaf[:n], table)


def take_state(state: State, homes: Homes | None, lanes: bool) -> State:
    """A copy of a state, of whatever engine, where a run with these homes has it.

    A state of several processes can be taken only by those that made it, in the same layout.
    """

    def put(leaf: Any, by_client: bool) -> Any:
        if isinstance(leaf, Array) and not leaf.is_fully_addressable:
            return jnp.copy(leaf)
        content = np.array(leaf)  # a copy: states are donated
        if homes is None:
            return jnp.asarray(content)
        if not by_client:
            return homes.everywhere(content)
        return homes.table(lambda first, stop: content[:, first:stop] if lanes else content[first:stop], lanes)

    def part(tree: Tree, by_client: bool) -> Tree:
        return jax.tree.map(lambda leaf: put(leaf, by_client), tree)

    rows = part(state.keep, True), part(state.last, True)
    return State(state.round, part(state.server, False), *rows, part(state.died, False), part(state.clips, False))


# --- clients ----------------------------------------------------------------------------------------------------------


def place_setting(setting: Setting, clients_axes: Axes | None, homes: Homes) -> tuple[Setting, Axes | None]:
    """The setting with the clients' data at their homes and the rest everywhere, and the axes of its clients."""
    clients, axes = _place_clients(setting.clients, clients_axes, homes)
    rest = replace(setting, clients=None)  # type: ignore[arg-type]
    return replace(homes.everywhere(rest), clients=clients), axes


def on_device(clients: Clients) -> Clients:
    """The clients with arrays on the device that computes, where they waited in the host's memory."""
    placed: Clients = jax.tree.map(lambda leaf: leaf if isinstance(leaf, Array) else jnp.asarray(leaf), clients)
    return placed


def _place_clients(clients: Clients, axes: Axes | None, homes: Homes) -> tuple[Clients, Axes | None]:
    held = clients.held
    if not (held.start <= homes.own.start and homes.own.stop <= held.stop):
        raise ValueError(
            f"clients: this process must hold the data of clients {homes.own.start}..{homes.own.stop - 1}, "
            f"it has {held.start}..{held.stop - 1}"
        )
    parts = jax.tree.unflatten(jax.tree.structure(clients), axes or (None,) * len(jax.tree.leaves(clients)))
    lower, lower_axes = _place_split(clients.lower, parts.lower, clients.first, homes)
    upper, upper_axes = lower, lower_axes
    if clients.upper is not clients.lower:
        upper, upper_axes = _place_split(clients.upper, parts.upper, clients.first, homes)
    placed = eqx.tree_at(
        lambda each: (each.lower, each.upper, each.weights, each.server),
        clients,
        (lower, upper, homes.everywhere(clients.weights), homes.everywhere(clients.server)),
        is_leaf=lambda leaf: leaf is None,
    )
    if axes is None:
        return placed, None
    found = [
        *lower_axes,
        *upper_axes,
        *jax.tree.leaves((parts.weights, parts.server), is_leaf=lambda leaf: leaf is None),
    ]
    return placed, tuple(found)[: len(jax.tree.leaves(placed))]


@dataclass(frozen=True)
class _Held:
    """What one device holds of a split: its examples, and for each lane where they are."""

    data: Tree
    index: np.ndarray
    start: np.ndarray
    size: np.ndarray
    plain: bool
    """Whether the examples lie in the order of the clients, so that no index is needed."""


def _place_split(split: Split, axes: Any, first: int, homes: Homes) -> tuple[Split, list[int | None]]:
    """A split whose examples, and the tables that say whose they are, are at the clients' homes; and its axes."""
    stacked = [axis for axis in jax.tree.leaves(axes) if axis is not None]
    own_data = any(axis is not None for axis in jax.tree.leaves(axes.data, is_leaf=lambda leaf: leaf is None))
    lanes = _lanes(split, axes) if stacked else [split]
    held = [_hold(lanes, own_data, homes.on(place), first) for place in homes.mine]
    sizes = np.concatenate([each.size.reshape(-1) for each in held])
    facts = _agreed(
        {
            "examples": max(_length(each.data, own_data) for each in held),
            "index": max(each.index.shape[1] for each in held),
            "plain": int(len(lanes) == 1 and all(each.plain for each in held)),
            "total": max(int(each.size.sum(1).max(initial=0)) for each in held),
            "most": int(sizes.max(initial=0)),
            "least": int(sizes.min(initial=2**31 - 1)),
        },
        homes,
    )
    several = bool(stacked)

    def table(name: str, length: int, fill: int) -> Array:
        parts = [np.asarray(getattr(each, name), np.int32) for each in held]
        parts = [np.pad(part, ((0, 0), (0, length - part.shape[1])), constant_values=fill) for part in parts]
        return homes.assembled(parts if several else [part[0] for part in parts], several)

    def example(*parts: np.ndarray) -> Array:
        return homes.assembled([filled(part, facts["examples"], int(own_data), "edge") for part in parts], own_data)

    placed = eqx.tree_at(
        lambda each: (each.data, each.index, each.start, each.size),
        split,
        (
            jax.tree.map(example, *[each.data for each in held]),
            None if facts["plain"] else table("index", max(facts["index"], 1), 0),
            table("start", homes.each, 0),
            table("size", homes.each, 1),
        ),
        is_leaf=lambda leaf: leaf is None,
    )
    for name, value in (
        ("sizes_equal", facts["least"] == facts["most"]),
        ("max_size", facts["most"]),
        ("total", facts["total"]),
    ):
        object.__setattr__(placed, name, value)
    axis = 0 if several else None
    of_data = [0 if own_data else None] * len(jax.tree.leaves(placed.data))
    return placed, [*of_data, *([] if placed.index is None else [axis]), axis, axis]


def _lanes(split: Split, axes: Any) -> list[Split]:
    """The split of each lane."""
    leaves, structure = jax.tree.flatten(split)
    marks = structure.flatten_up_to(axes)  # type: ignore[attr-defined]
    number = next(leaf.shape[0] for leaf, axis in zip(leaves, marks, strict=True) if axis is not None)
    return [
        jax.tree.unflatten(structure, [leaf if m is None else leaf[i] for leaf, m in zip(leaves, marks, strict=True)])
        for i in range(number)
    ]


def _hold(lanes: Sequence[Split], own_data: bool, clients: range, first: int) -> _Held:
    """What one device holds; examples that are the same in all lanes are there once."""
    chosen = np.arange(clients.start, clients.stop) - first
    tables = [split.table(chosen) for split in lanes]
    rows = [each[0] for each in tables]
    if own_data:
        pairs = [compact(each) for each in rows]
        data = [_rows(split, used) for split, (used, _) in zip(lanes, pairs, strict=True)]
        longest = max(_length(each, False) for each in data)
        data = jax.tree.map(lambda *parts: np.stack([filled(part, longest, 0, "edge") for part in parts]), *data)
    else:
        used, index = compact(np.concatenate(rows))
        places = np.arange(sum(map(len, rows))) if index is None else index
        pairs = [(used, each) for each in np.split(places, np.cumsum([len(each) for each in rows])[:-1])]
        data = _rows(lanes[0], used)
    indices = [np.arange(len(own)) if i is None else i for own, (_, i) in zip(rows, pairs, strict=True)]
    plain = all(np.array_equal(each, np.arange(len(each))) for each in indices)
    width = max(map(len, indices))
    index = np.stack([np.pad(each, (0, width - len(each))) for each in indices])
    return _Held(data, index, np.stack([each[1] for each in tables]), np.stack([each[2] for each in tables]), plain)


def _rows(split: Split, used: Any) -> Tree:
    def take(leaf: Any) -> np.ndarray:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise TypeError("clients: examples that are random keys cannot live on several devices: give their words")
        found: np.ndarray = np.asarray(leaf)[used]
        return found

    return jax.tree.map(take, split.data)


def _length(data: Tree, lanes: bool) -> int:
    return int(jax.tree.leaves(data)[0].shape[int(lanes)])


def _agreed(facts: dict[str, int], homes: Homes) -> dict[str, int]:
    """What is the same program on all processes: the largest of each number, of "least" and "plain" the smallest."""
    group = processes.current() if homes.several else None
    told = [facts] if group is None else group.exchange(facts)
    small = ("least", "plain")
    return {name: (min if name in small else max)(each[name] for each in told) for name in facts}
