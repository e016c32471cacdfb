"""The same program on several devices: each computes the participants that live there, one ``psum`` makes the sum.

Devices have unequal numbers of participants in a round. Each computes its own in small groups, as many as it needs, so that
what is computed in vain is less than a group; the rest is waiting for the device that has most.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import PartitionSpec

from rookery.aggregation.mean import combine
from rookery.algorithm.intake import Intake
from rookery.algorithm.setting import Setting, State
from rookery.algorithm.walk import Moment, all_finite, get_rows
from rookery.engines.base import Run
from rookery.engines.compiled import Compiled, Seats, lane_axes, walked
from rookery.engines.homes import AXIS, Homes, state_specs
from rookery.problem.clients import Split
from rookery.problem.measures import Losses
from rookery.problem.oracles import Part
from rookery.typing import Axes, Tree

SHARE = 8
"""A group is at most this part of a device's fair share of the participants: less than 1/8 of it is computed in vain."""


class Sharded(Compiled):
    """What one device does of a round: all of the server's part, and of the participants those that live here."""

    def __init__(self, setting: Setting, state: State, at_once: int | None, homes: Homes):
        super().__init__(setting, state, at_once)
        self.homes = homes
        self.place = jax.lax.axis_index(AXIS)

    def draw(self, number: Any) -> tuple[Array, Array]:
        """The participants of all devices."""
        return self.setting.participants(self.round, number)

    def seats(self, ids: Array, mask: Array) -> Seats:
        """The participants that live here come first, in their order."""
        each, slots = self.homes.each, ids.shape[0]
        here = mask & (ids // each == self.place)
        most = min(slots, each)
        most += -most % group_size(slots, self.homes, self.at_once)
        order = jnp.argsort(~here, stable=True)
        seat = jnp.arange(most)
        count = here.sum()
        slot = order[jnp.clip(seat, 0, jnp.maximum(count - 1, 0))]
        rows = jnp.clip(ids[slot] - self.place * each, 0, each - 1)
        return Seats(ids[slot], rows, seat < count, slot)

    def made(
        self, intake: Intake, one: Any, own: Tree, at: Moment, seats: Seats
    ) -> tuple[dict[str, Any], Tree, Tree, Array]:
        """Groups of those that live here, as many as there are; what all devices made is summed once."""
        assert seats.slots is not None
        up_shape, _, carry_shape = eqx.filter_eval_shape(jax.vmap(one), *own)
        weights = intake.weights(up_shape)
        mine = {part: None if w is None else jnp.where(seats.taken, w[seats.slots], 0) for part, w in weights.items()}
        size = group_size(at.ids.shape[0], self.homes, self.at_once)
        if size >= seats.ids.shape[0]:
            up, keep, carry = jax.vmap(one)(*own)
            received = combine(mine, up)
        else:
            received, keep, carry = _as_needed(one, own, mine, (up_shape, carry_shape), size, seats.taken.sum())
        for part, w in weights.items():
            if w is None:
                received[part] = jax.tree.map(lambda rows: _in_slots(rows, seats, at.ids.shape[0]), received[part])
        kept = jax.tree.map(lambda leaf: jnp.where(_along(seats.taken, leaf), leaf, 0), keep)
        spoiled = (~all_finite(kept)).astype(jnp.float32)
        received, spoiled = sum_over_devices((received, spoiled))
        return received, keep, carry, spoiled == 0


def group_size(slots: int, homes: Homes, at_once: int | None) -> int:
    """How many of its participants a device computes at a time.

    All that it can have where everybody takes part, and so every device has as many as every other.
    """
    most = min(slots, homes.each)
    size = most if slots >= homes.n else -(-slots // (SHARE * homes.devices))
    return max(1, min(size, most, at_once or size))


def _as_needed(
    one: Any, own: Tree, weights: dict[str, Any], shapes: tuple[Tree, Tree], size: int, count: Array
) -> tuple[dict[str, Any], Tree, Tree]:
    """Groups of ``size`` participants until all ``count`` that are here are done. Of a stacked part the rows."""
    up_shape, carry_shape = shapes

    def zeros(leaf: Any, skip: int) -> Array:
        return jnp.zeros(leaf.shape[skip:], leaf.dtype)

    stacked = [part for part, w in weights.items() if w is None]
    start = {
        part: jax.tree.map(lambda leaf, part=part: zeros(leaf, 0 if part in stacked else 1), shape)
        for part, shape in up_shape.items()
    }
    after = jax.tree.map(lambda leaf: zeros(leaf, 0), (own[3], carry_shape))  # not what is read: it would be copied

    def group(number: Array, done: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        received, after = done
        first = number * size

        def cut(tree: Tree) -> Tree:
            return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, size), tree)

        def put(tree: Tree, part: Tree) -> Tree:
            return jax.tree.map(lambda a, b: jax.lax.dynamic_update_slice_in_dim(a, b, first, 0), tree, part)

        up, *held = jax.vmap(one)(*cut(own))
        made = combine(cut(weights), up)
        received = {
            part: put(old, made[part]) if part in stacked else jax.tree.map(jnp.add, old, made[part])
            for part, old in received.items()
        }
        return received, put(after, tuple(held))

    groups = (count + size - 1) // size
    received, (keep, carry) = jax.lax.fori_loop(0, groups, group, (start, after))
    return received, keep, carry


def _in_slots(rows: Array, seats: Seats, slots: int) -> Array:
    """Rows of seats at their slots, the rest 0: the sum over devices then has all."""
    assert seats.slots is not None
    where = jnp.where(seats.taken, seats.slots, slots)
    return jnp.zeros((slots, *rows.shape[1:]), rows.dtype).at[where].set(rows, mode="drop")


def _along(mask: Array, leaf: Array) -> Array:
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - 1))


def sum_over_devices(tree: Tree) -> Tree:
    """One sum for all arrays of a dtype: each costs a trip."""
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, tree))
    kinds = sorted({leaf.dtype for leaf in leaves}, key=str)
    summed: dict[int, Array] = {}
    for kind in kinds:
        places = [place for place, leaf in enumerate(leaves) if leaf.dtype == kind]
        joined = jnp.concatenate([leaves[place].reshape(-1) for place in places])
        total = jax.lax.psum(joined, AXIS)
        ends = [0]
        for place in places:
            ends.append(ends[-1] + leaves[place].size)
            summed[place] = total[ends[-2] : ends[-1]].reshape(leaves[place].shape)
    return jax.tree.unflatten(structure, [summed[place] for place in range(len(leaves))])


@eqx.filter_jit(donate="all-except-first")
def sharded_rounds(
    fixed: tuple[Setting, Any, Any, int | None, Axes | None, Homes], state: State
) -> tuple[State, Array]:
    """Rounds start to stop, on all devices of the mesh."""
    setting, start, stop, at_once, clients_axes, homes = fixed
    arrays, static = eqx.partition(setting, eqx.is_array)

    def work(arrays: Tree, start: Array, stop: Array, state: State) -> tuple[State, Array]:
        def walk(setting: Setting, state: State) -> Sharded:
            return Sharded(setting, state, at_once, homes)

        return walked(walk, eqx.combine(arrays, static), start, stop, clients_axes, state)

    everywhere = PartitionSpec()
    lanes = clients_axes is not None
    spec = state_specs(state, homes, lanes)
    mapped = jax.shard_map(
        work,
        mesh=homes.mesh,
        in_specs=(setting_specs(arrays, clients_axes, homes), everywhere, everywhere, spec),
        out_specs=(spec, everywhere),
        check_vma=False,
    )
    made: tuple[State, Array] = mapped(arrays, start, stop, state)
    return made


def setting_specs(arrays: Setting, clients_axes: Axes | None, homes: Homes) -> Any:
    """How a setting is laid out: the clients' data at their homes."""
    specs = jax.tree.map(lambda _: PartitionSpec(), arrays)
    axes = clients_axes or (None,) * len(jax.tree.leaves(arrays.clients))
    marks = jax.tree.unflatten(jax.tree.structure(arrays.clients), [0 if axis is None else 1 for axis in axes])

    def by_client(tree: Tree) -> Tree:
        return jax.tree.map(lambda lanes: homes.spec(bool(lanes)), tree)

    clients = eqx.tree_at(
        lambda each: (each.lower, each.upper), specs.clients, (by_client(marks.lower), by_client(marks.upper))
    )
    return replace(specs, clients=clients)


def losses_at_home(run: Run, state: State) -> dict[str, Array]:
    """The objectives on all data: each device adds up those of the clients that live there."""
    assert run.homes is not None
    found: dict[str, Array] = _losses(run.setting, run.clients_axes, run.homes, state)
    return found


@eqx.filter_jit
def _losses(setting: Setting, clients_axes: Axes | None, homes: Homes, state: State) -> dict[str, Array]:
    arrays, static = eqx.partition(setting, eqx.is_array)

    def alone(setting: Setting, state: State) -> dict[str, Array]:
        x, y = setting.algorithm.output(state.server, state.keep)
        flat = setting.flat
        place = jax.lax.axis_index(AXIS)
        first = place * homes.each
        clients = jnp.clip(homes.n - first, 0, homes.each)

        def part(split: Split) -> Part:
            size = jnp.where(jnp.arange(homes.each) < clients, split.size, 0).sum()
            every = jax.lax.all_gather(size, AXIS)
            return Part(first, clients, jnp.where(jnp.arange(homes.devices) < place, every, 0).sum())

        pytree = jax.vmap(flat.y.unravel) if y.ndim == 2 else flat.y.unravel
        lower, upper = part(setting.clients.lower), part(setting.clients.upper)
        server, summed = Losses(flat.problem, setting.clients).parts(flat.x.unravel(x), pytree(y), lower, upper)
        return {**server, **jax.lax.psum(summed, AXIS)}

    def work(arrays: Tree, state: State) -> dict[str, Array]:
        setting = eqx.combine(arrays, static)
        if clients_axes is None:
            return alone(setting, state)
        found: dict[str, Array] = eqx.filter_vmap(alone, in_axes=(lane_axes(setting, clients_axes), 0))(setting, state)
        return found

    spec = setting_specs(arrays, clients_axes, homes), state_specs(state, homes, clients_axes is not None)
    mapped = jax.shard_map(work, mesh=homes.mesh, in_specs=spec, out_specs=PartitionSpec(), check_vma=False)
    found: dict[str, Array] = mapped(arrays, state)
    return found


def meet(homes: Homes) -> None:
    """A first sum: it makes the connections between processes, and the threads that serve them."""
    ones = homes.table(lambda first, stop: np.ones(stop - first, np.float32), False)
    summed = jax.shard_map(
        lambda part: jax.lax.psum(part.sum(), AXIS),
        mesh=homes.mesh,
        in_specs=PartitionSpec(AXIS),
        out_specs=PartitionSpec(),
    )
    jax.block_until_ready(jax.jit(summed)(ones))


# --- for one client at a time -----------------------------------------------------------------------------------------


def at_home(work: Callable[..., Tree], setting: Setting, homes: Homes, told: Tree) -> Tree:
    """``work(setting, told, first, each)`` on every device; all must return the same."""
    arrays, static = eqx.partition(setting, eqx.is_array)

    def mapped(arrays: Tree, told: Tree) -> Tree:
        first = jax.lax.axis_index(AXIS) * homes.each
        return work(eqx.combine(arrays, static), told, first, homes.each)

    specs = setting_specs(arrays, None, homes), PartitionSpec()
    return jax.shard_map(mapped, mesh=homes.mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)(
        arrays, told
    )


def on_owner(tree: Tree, owner: Array) -> Tree:
    """What the device that owns it has, on all devices."""
    return sum_over_devices(jax.tree.map(lambda leaf: jnp.where(owner, leaf, jnp.zeros_like(leaf)), tree))


def rows_at_home(homes: Homes, table: Tree, ids: Array) -> Tree:
    """Rows of a table of clients, on all devices."""

    def mapped(table: Tree, ids: Array) -> Tree:
        row = ids - jax.lax.axis_index(AXIS) * homes.each
        here = (row >= 0) & (row < homes.each)
        rows = get_rows(table, jnp.clip(row, 0, homes.each - 1))
        return sum_over_devices(jax.tree.map(lambda leaf: jnp.where(_along(here, leaf), leaf, 0), rows))

    specs = homes.spec(False), PartitionSpec()
    return jax.shard_map(mapped, mesh=homes.mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)(
        table, ids
    )
