"""A round as one compiled program: participants side by side, loops and choices inside, nothing on the host."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.aggregation.mean import combine
from rookery.algorithm.exchange import Exchange, Repeat, Server, count_stages
from rookery.algorithm.intake import Intake
from rookery.algorithm.setting import Setting, State
from rookery.algorithm.walk import Moment, Walk, all_finite, get_rows, put_rows
from rookery.problem.layout import same_structure
from rookery.typing import Axes, Tree


class Seats(NamedTuple):
    """The participants that are computed here."""

    ids: Array
    rows: Array
    """Where each one's data and kept state lie."""
    taken: Array
    """Which seats are used; one that is not repeats another."""
    slots: Array | None
    """The slot of each in the draw; None: seats are the slots."""


class Compiled(Walk):
    """Participants side by side under ``vmap``; loops and choices inside the program.

    ``Moment.more`` holds the table of what all clients keep, when each was last counted, whether all is finite, and the
    activity: activity[stage] = how often the stage was executed, by how many participants, with how many local steps
    together; the same once more for round 0 alone.
    """

    def __init__(self, setting: Setting, state: "State", at_once: int | None):
        super().__init__(setting, state.round)
        self.last = state.last
        self.alive = state.died < 0
        self.at_once = at_once

    def draw(self, number: Any) -> tuple[Array, Array]:
        """Participants, padded to a multiple of the number computed at once."""
        ids, mask = self.setting.participants(self.round, number)
        group = self.at_once or 1
        extra = -ids.shape[0] % group if group < ids.shape[0] else 0
        return jnp.pad(ids, (0, extra), mode="edge"), jnp.pad(mask, (0, extra))

    def repeat(self, stage: Repeat, at: Moment, index: Any, number: int) -> Moment:
        """One ``fori_loop``."""

        def body(k: Array, at: Moment) -> Moment:
            return self.run(stage.stages, at, index * stage.count + k, number)

        at = replace(at, carry=_as_after(at.carry, eqx.filter_eval_shape(body, jnp.int32(0), at).carry))
        after: Moment = jax.lax.fori_loop(0, stage.count, body, at)
        return after

    def exchange(self, stage: Exchange, at: Moment, index: Any, number: int) -> Moment:
        """The exchange under a ``cond`` if it has a condition."""
        do = partial(self._exchange, stage, index=index, number=number)
        if stage.when is None:
            return do(at)
        at = replace(at, carry=_as_after(at.carry, eqx.filter_eval_shape(do, at).carry))
        wanted = stage.when(at.server, self.setting.context(self.round, index, at.ids, at.mask))
        after: Moment = jax.lax.cond(wanted, do, lambda at: at, at)
        return after

    def _exchange(self, stage: Exchange, at: Moment, index: Any, number: int) -> Moment:
        if stage.draw == "fresh":
            table, last, finite, activity = self.count(at)
            ids, mask = self.draw(at.draws + 1)
            more = table, last, finite, activity
            keep = get_rows(table, self.seats(ids, mask).rows)
            at = replace(at, ids=ids, mask=mask, draws=at.draws + 1, carry=None, keep=keep, more=more)
        else:
            at = replace(at, draws=jnp.maximum(at.draws, 0))
        seats = self.seats(at.ids, at.mask)
        intake = Intake(self.setting, stage, number, self.round, index, at.server, at.ids, at.mask, at.clips)
        down = stage.down(at.server)
        private = {} if stage.private is None else self._dealt(stage.private(at.server), seats)

        def one(id: Array, row: Array, mine: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
            local = self.setting.local(id, self.round, index, self.last[row], row=row)
            up, keep, carry = stage.work(local, {**down, **mine}, keep, carry)
            return intake.leaving(up), keep, carry

        own = seats.ids, seats.rows, private, at.keep, at.carry
        combined, keep, carry, kept_finite = self.made(intake, one, own, at, seats)
        received, clips = intake.received(combined)
        server = stage.server(self.setting.context(self.round, index, at.ids, at.mask), at.server, received)
        table, last, finite, activity = at.more
        finite = finite & all_finite(received)
        if self.setting.privacy is None:  # else it would tell of one client that it keeps such a number
            finite = finite & kept_finite
        more = table, last, finite, self._note(activity, number, at)
        return replace(at, server=server, keep=keep, carry=carry, more=more, clips=clips)

    def made(
        self, intake: Intake, one: Any, own: Tree, at: Moment, seats: "Seats"
    ) -> tuple[dict[str, Any], Tree, Tree, Array]:
        """The sums of uploads (or their rows), what participants keep and carry, and whether what they keep is finite."""
        if self.at_once is None or self.at_once >= at.ids.shape[0]:
            up, keep, carry = jax.vmap(one)(*own)
            combined = combine(intake.weights(up), up)
        else:
            combined, keep, carry = self._in_groups(intake, one, own, at)
        return combined, keep, carry, all_finite(keep)

    def seats(self, ids: Array, mask: Array) -> "Seats":
        """The participants that are computed here: all of them."""
        return Seats(ids, ids, mask, None)

    def _dealt(self, rows: Tree, seats: "Seats") -> Tree:
        """Rows for each seat; those that only fill up the last group have the last row."""
        if seats.slots is not None:
            return get_rows(rows, seats.slots)
        return _padded(rows, seats.ids.shape[0])

    def count(self, at: Moment) -> tuple[Tree, Array, Array, Array]:
        """Writes back what the participants of the present draw keep, unless a number was not finite."""
        table, last, finite, activity = at.more
        seats = self.seats(at.ids, at.mask)
        counted = seats.taken & self.alive & finite & (at.draws >= 0)
        now = jnp.full(seats.rows.shape, self.round, jnp.int32)
        return put_rows(table, seats.rows, counted, at.keep), put_rows(last, seats.rows, counted, now), finite, activity

    def _in_groups(self, intake: Intake, one: Any, own: Tree, at: Moment) -> tuple[Tree, Tree, Tree]:
        """The same with a bounded number of clients at a time; the mean is summed up group by group."""
        shapes = eqx.filter_eval_shape(jax.vmap(one), *own)[0]
        weights = intake.weights(shapes)
        stacked = [part for part, w in weights.items() if w is None]

        def computed(mask: Array, mine: Tree) -> Tree:
            """What a group makes; nothing is computed for one that is only there to fill up."""
            shape = eqx.filter_eval_shape(jax.vmap(one), *mine)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shape)
            return jax.lax.cond(mask.any(), lambda: jax.vmap(one)(*mine), lambda: nothing)

        def split(tree: Tree) -> Tree:
            return jax.tree.map(lambda leaf: leaf.reshape(-1, self.at_once, *leaf.shape[1:]), tree)

        def group(total: Tree, inputs: Tree) -> tuple[Tree, Tree]:
            w, mask, mine = inputs
            up, keep, carry = computed(mask, mine)
            received = combine(w, up)
            rows = {part: received.pop(part) for part in stacked}
            return jax.tree.map(jnp.add, total, received), (rows, keep, carry)

        zero = {
            part: jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), shape)
            for part, shape in shapes.items()
            if part not in stacked
        }
        total, rest = jax.lax.scan(group, zero, (split(weights), split(at.mask), split(own)))
        rows, keep, carry = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), rest)
        return {**total, **rows}, keep, carry

    def server(self, stage: Server, at: Moment, index: Any, number: int) -> Moment:
        """The server's step."""
        at = super().server(stage, at, index, number)
        table, last, finite, activity = at.more
        return replace(at, more=(table, last, finite, self._note(activity, number, at)))

    def _note(self, activity: Array, number: int, at: Moment) -> Array:
        steps = self.setting.steps
        if steps.fixed:
            taus = jnp.full(at.ids.shape, steps.low, jnp.int32)
        else:
            taus = jax.vmap(lambda id: steps.draw(self.setting.key, id, self.round))(at.ids)
        now = jnp.stack([jnp.int32(1), at.mask.sum(dtype=jnp.int32), jnp.where(at.mask, taus, 0).sum(dtype=jnp.int32)])
        now = jnp.where(self.alive, now, 0)  # a frozen lane costs nothing
        return activity.at[number].add(jnp.stack([now, jnp.where(self.round == 0, now, 0)]))


def _padded(rows: Tree, slots: int) -> Tree:
    """Rows for slots that only fill up the last group."""
    return jax.tree.map(
        lambda leaf: jnp.pad(leaf, [(0, slots - leaf.shape[0])] + [(0, 0)] * (leaf.ndim - 1), mode="edge"), rows
    )


def _as_after(carry: Tree, after: Tree) -> Tree:
    """The carry as it is, or zeros of the structure it will have."""
    if same_structure(carry, after):
        return carry
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), after)


def one_round(walk: Compiled, state: State, activity: Array) -> tuple[State, Array]:
    """The state after a round, and how active each stage was."""
    ids, mask = walk.draw(0)
    more = (state.keep, state.last, jnp.bool_(True), activity)
    keep = get_rows(state.keep, walk.seats(ids, mask).rows)
    at = Moment(state.server, keep, None, ids, mask, jnp.int32(-1), more, state.clips)
    at = walk.run(walk.setting.algorithm.round(), at)
    table, last, finite, activity = at.more
    finite = finite & all_finite(at.server)
    table, last, finite, activity = walk.count(replace(at, more=(table, last, finite, activity)))
    alive = walk.alive & finite
    server = jax.tree.map(lambda new, old: jnp.where(alive, new, old), at.server, state.server)
    died = jnp.where(walk.alive & ~finite, state.round, state.died)
    clips = jax.tree.map(lambda new, old: jnp.where(alive, new, old), at.clips, state.clips)
    return State(state.round, server, table, last, died, clips), activity


@eqx.filter_jit(donate="all-except-first")
def compiled_rounds(fixed: tuple[Setting, Any, Any, int | None, Any], state: State) -> tuple[State, Array]:
    """Rounds start to stop. The bounds are arguments: one program for every evaluation period."""
    setting, start, stop, at_once, clients_axes = fixed
    return walked(lambda setting, state: Compiled(setting, state, at_once), setting, start, stop, clients_axes, state)


def no_activity(setting: Setting) -> Array:
    """How active the stages of a round are before the first one."""
    return jnp.zeros((count_stages(setting.algorithm.round()), 2, 3), jnp.int32)


def walked(
    walk: Callable[[Setting, State], Compiled],
    setting: Setting,
    start: Any,
    stop: Any,
    clients_axes: Axes | None,
    state: State,
) -> tuple[State, Array]:
    """Rounds start to stop of such a walk, side by side where there are lanes."""

    def run(setting: Setting, state: State) -> tuple[State, Array]:
        def body(round: Array, carried: tuple[State, Array]) -> tuple[State, Array]:
            state, activity = carried
            state = replace(state, round=round)
            state, activity = one_round(walk(setting, state), state, activity)
            return replace(state, round=None), activity

        after: tuple[State, Array] = jax.lax.fori_loop(start, stop, body, (state, no_activity(setting)))
        return after

    if clients_axes is None:
        return run(setting, state)
    batched: tuple[State, Array] = eqx.filter_vmap(run, in_axes=(lane_axes(setting, clients_axes), 0))(setting, state)
    return batched


def lane_axes(setting: Setting, clients_axes: Axes) -> Setting:
    """Which arrays of a setting have an axis of lanes: keys, rates, and those of the clients that ``clients_axes`` tells."""
    return Setting(
        flat=None,  # type: ignore[arg-type]
        algorithm=eqx.if_array(0),  # type: ignore[arg-type]
        clients=jax.tree.unflatten(jax.tree.structure(setting.clients), clients_axes),
        participation=None,  # type: ignore[arg-type]
        steps=None,  # type: ignore[arg-type]
        batch_size=setting.batch_size,
        key=0,  # type: ignore[arg-type]
        x0=0,  # type: ignore[arg-type]
    )  # a rule, an attack and privacy are the same for all
