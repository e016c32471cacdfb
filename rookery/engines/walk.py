"""How an engine walks through the steps of a round. The three walks of the simulator are built on it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm import Algorithm, Context, Exchange, Local, Repeat, Server, Step, participant_weights
from rookery.clients import Clients
from rookery.keys import PARTICIPANTS, fold
from rookery.layout import dotted, same_structure
from rookery.oracles import Tally
from rookery.participation import Participation, Steps
from rookery.problems import Flat

Tree = Any


@dataclass(frozen=True)
class Setting:
    """All that a run is, but for its state. Arrays in it are arguments of the compiled program."""

    flat: Flat
    algorithm: Algorithm
    clients: Clients
    participation: Participation
    steps: Steps
    batch_size: tuple[int | None, int | None]
    key: Array
    x0: Array

    def local(self, id: Any, round: Any, index: Any, last: Any, **more: Any) -> Local:
        """What participant ``id`` sees."""
        return Local(
            self.flat,
            self.clients,
            self.key,
            self.batch_size,
            self.steps,
            id=id,
            round=round,
            index=index,
            last=last,
            x0=self.x0,
            **more,
        )

    def context(self, round: Any, index: Any, ids: Array, mask: Array, tally: Tally | None = None) -> Context:
        """What the server sees."""
        return Context(
            self.flat,
            self.clients,
            self.key,
            self.batch_size,
            self.steps,
            round=round,
            index=index,
            ids=ids,
            mask=mask,
            tally=tally,
        )

    def participants(self, round: Any, fresh: Any) -> tuple[Array, Array]:
        """(ids, mask) of a round's draw number ``fresh``."""
        return self.participation.draw(fold(self.key, PARTICIPANTS, round, fresh), self.clients.n, round, fresh)


jax.tree_util.register_dataclass(
    Setting,
    data_fields=["flat", "algorithm", "clients", "participation", "steps", "key", "x0"],
    meta_fields=["batch_size"],
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Moment:
    """Where a walk is: the server's state, the participants and what they hold."""

    server: Tree
    keep: Tree
    carry: Tree
    ids: Array
    mask: Array
    draws: Any
    """The number of the draw of participants: −1 before the first exchange, which is always the round's own (0)."""
    more: Tree = None
    """What the walk itself takes along."""


class Walk:
    """Executes the steps of round ``round``; subclasses say how an exchange, a loop and a choice are done."""

    def __init__(self, setting: Setting, round: Any):
        self.setting = setting
        self.round = round

    def run(self, steps: tuple[Step, ...], at: Moment, index: Any = 0, number: int = 0) -> Moment:
        """All steps in order; ``number`` is that of the first one in the text of the round."""
        for step in steps:
            if isinstance(step, Repeat):
                at = self.repeat(step, at, index, number)
                number += count_steps(step.steps)
            else:
                at = (
                    self.exchange(step, at, index, number)
                    if isinstance(step, Exchange)
                    else self.server(step, at, index, number)
                )
                number += 1
        return at

    def server(self, step: Server, at: Moment, index: Any, number: int) -> Moment:
        """A step of the server alone."""
        return replace(at, server=step.fn(self.setting.context(self.round, index, at.ids, at.mask), at.server))

    def repeat(self, step: Repeat, at: Moment, index: Any, number: int) -> Moment:
        """The steps of a loop."""
        raise NotImplementedError

    def exchange(self, step: Exchange, at: Moment, index: Any, number: int) -> Moment:
        """An exchange, or nothing if its ``when`` is false."""
        raise NotImplementedError


def count_steps(steps: tuple[Step, ...]) -> int:
    """The number of steps in the text of a round (a loop's body once)."""
    return sum(count_steps(step.steps) if isinstance(step, Repeat) else 1 for step in steps)


def step_at(steps: tuple[Step, ...], number: int) -> Exchange | Server:
    """The step of this number in the text of a round."""
    for step in steps:
        size = count_steps((step,))
        if number < size:
            return step_at(step.steps, number) if isinstance(step, Repeat) else step
        number -= size
    raise IndexError(f"a round has no step {number} more")


def get_rows(table: Tree, ids: Array) -> Tree:
    """What these clients keep."""
    return jax.tree.map(lambda leaf: leaf[ids], table)


def put_rows(table: Tree, ids: Array, mask: Array, rows: Tree) -> Tree:
    """Writes what the participants keep; rows of unused slots are dropped."""

    def put(leaf: Array, new: Array) -> Array:
        return leaf.at[jnp.where(mask, ids, leaf.shape[0])].set(new, mode="drop")

    return jax.tree.map(put, table, rows)


def all_finite(tree: Tree) -> Array:
    """Whether no float in the tree is a NaN or an infinity."""
    floats = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact)]
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in floats]).all() if floats else jnp.bool_(True)


def slot_weights(
    step: Exchange, server: Tree, weights: Array, ids: Array, mask: Array, up: dict[str, Any]
) -> dict[str, Any]:
    """For each part of the upload the weight of every slot, ``None`` where the uploads are to be stacked."""
    chosen = participant_weights(step.weighting, server, weights, ids, mask)
    return {part: chosen[part] if isinstance(chosen, dict) else chosen for part in up}


def combine(weights: dict[str, Any], up: dict[str, Any]) -> dict[str, Any]:
    """The weighted sum of stacked uploads: one product a part."""

    def sum_of(w: Array, leaf: Array) -> Array:
        return jnp.tensordot(w.astype(leaf.dtype), leaf, 1)

    return {
        part: stacked if weights[part] is None else jax.tree.map(partial(sum_of, weights[part]), stacked)
        for part, stacked in up.items()
    }


def mean_of(
    step: Exchange, server: Tree, weights: Array, ids: Array, mask: Array, up: dict[str, Any]
) -> dict[str, Any]:
    """What the server receives of stacked uploads."""
    return combine(slot_weights(step, server, weights, ids, mask, up), up)


@dataclass(frozen=True)
class Cost:
    """What one step of a round costs.

    For each participant: bytes ``down`` and ``up``, oracle ``calls`` (a, b): a + b·τ of them, and those made in round 0
    only (``start_calls``), and whether it makes local steps. For each time the step is executed: the server's own calls.
    """

    exchange: bool
    down: int = 0
    up: int = 0
    calls: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    start_calls: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    local_steps: bool = False
    server_calls: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    upload: Mapping[str, str] = field(default_factory=dict)
    """What a participant uploads: the dtype and shape of each array by its name."""


class Counting(Walk):
    """Traces each step once, an exchange for one participant, and notes what it costs."""

    def __init__(self, setting: Setting, round: Any):
        super().__init__(setting, round)
        self.costs: dict[int, Cost] = {}

    def server(self, step: Server, at: Moment, index: Any, number: int) -> Moment:
        """The server's step, listened to."""
        tally = Tally()
        server = step.fn(self.setting.context(self.round, index, at.ids, at.mask, tally), at.server)
        self.costs[number] = Cost(exchange=False, server_calls=tally.counts())
        return replace(at, server=server)

    def repeat(self, step: Repeat, at: Moment, index: Any, number: int) -> Moment:
        """The body once; twice where it is the body that first sets the carry."""
        after = self.run(step.steps, at, index, number)
        if not same_structure(after.carry, at.carry):
            after = self.run(step.steps, after, index, number)
        return after

    def exchange(self, step: Exchange, at: Moment, index: Any, number: int) -> Moment:
        """The exchange, always."""
        tally, server_tally = Tally(), Tally()
        down = step.down(at.server)
        local = self.setting.local(at.ids[0], self.round, index, jnp.int32(-1), tally=tally)
        if step.private is not None:
            down = {**down, **jax.tree.map(lambda leaf: leaf[0], step.private(at.server))}
        up, keep, carry = step.client(local, down, at.keep, None if step.draw == "fresh" else at.carry)
        if not isinstance(up, dict):
            raise TypeError(f"client must upload a dictionary of arrays, got {type(up).__name__}")
        stacked = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (at.ids.shape[0], *jnp.shape(leaf))), up)
        mean = mean_of(step, at.server, self.setting.clients.weights, at.ids, at.mask, stacked)
        server = step.server(self.setting.context(self.round, index, at.ids, at.mask, server_tally), at.server, mean)
        self.costs[number] = Cost(
            True,
            tree_bytes(down),
            tree_bytes(up),
            tally.counts(),
            tally.counts(at_start=True),
            local.made_steps,
            server_tally.counts(),
            described(up),
        )
        return replace(at, server=server, keep=keep, carry=carry)


def tree_bytes(tree: Tree) -> int:
    """Bytes of the arrays of a pytree."""
    return sum(int(np.prod(jnp.shape(leaf))) * jnp.result_type(leaf).itemsize for leaf in jax.tree.leaves(tree))


def described(tree: Tree) -> dict[str, str]:
    """The dtype and shape of each array of a pytree by its name."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path): f"{getattr(leaf, 'dtype', None) or jnp.result_type(leaf)}{list(jnp.shape(leaf))}"
        for path, leaf in leaves
    }


def costs_of(setting: Setting, x: Array, y: Array) -> list[Cost]:
    """What each step of a round costs. Nothing is computed: the round is only traced."""
    found: dict[int, Cost] = {}

    def one_round(setting: Setting, x: Array, y: Array) -> None:
        walk = Counting(setting, jnp.int32(1))
        ids, mask = setting.participants(walk.round, 0)
        start = Moment(setting.algorithm.init(x, y), setting.algorithm.keep(x, y), None, ids, mask, -1)
        walk.run(setting.algorithm.round(), start)
        found.update(walk.costs)

    eqx.filter_eval_shape(one_round, setting, x, y)
    return [found[number] for number in range(count_steps(setting.algorithm.round()))]


class Found(NamedTuple):
    """The first place of a round that held a number that is not finite."""

    exchange: int | None
    client: int | None
    """None: it was the server's own step."""
    step: int | None
    """None: it did not arise in the client's local loop."""
    variable: str


class Careful(Walk):
    """One participant after the other, looking for the first number that is not finite.

    The work of a participant and that of the server are compiled, once for all participants and lanes: an answer should
    take as long as a compilation, not as a thousand operations one by one. ``until`` is a step of the round and its pass,
    after which the walk ends.
    """

    def __init__(self, setting: Setting, round: int, last: Array, table: Tree, until: tuple[int, Any] | None = None):
        super().__init__(setting, jnp.int32(round))
        self.last = last
        self.table = table
        self.until = until
        self.ended: tuple[int, Any] | None = None
        """The step, and its pass, after which nothing was computed any more."""
        self.found: Found | None = None

    def _end(self, number: int, index: Any, found: Found | None) -> None:
        if found is not None or self.until == (number, index):
            self.found, self.ended = found, (number, index)

    def repeat(self, step: Repeat, at: Moment, index: Any, number: int) -> Moment:
        """A Python loop."""
        for k in range(step.count):
            at = self.run(step.steps, at, index * step.count + k, number)
        return at

    def server(self, step: Server, at: Moment, index: Any, number: int) -> Moment:
        """The server's step."""
        return self._served(at, index, number, None)

    def exchange(self, step: Exchange, at: Moment, index: Any, number: int) -> Moment:
        """A Python loop over the participants."""
        if self.ended is not None or not self._wanted(step, at, index, number):
            return at
        if step.draw == "fresh":
            self.table = put_rows(self.table, at.ids, at.mask, at.keep)
            ids, mask = draw_participants(self.setting, self.round, jnp.int32(at.draws + 1))
            keep = get_rows(self.table, ids)
            at = replace(at, ids=ids, mask=mask, draws=at.draws + 1, carry=None, keep=keep)
        else:
            at = replace(at, draws=max(at.draws, 0))
        results = []
        for slot in range(at.ids.shape[0]):
            results.append(self._made(at, index, number, slot, self.setting.steps.high))
            if bool(at.mask[slot]) and (name := _spoiled(results[-1])):
                found = Found(number, int(at.ids[slot]), self._bad_step(at, index, number, slot), name)
                self._end(number, index, found)
                return at
        up, keep, carry = jax.tree.map(lambda *leaves: np.stack(leaves), *results)
        return self._served(replace(at, keep=keep, carry=carry), index, number, up)

    def _wanted(self, step: Exchange, at: Moment, index: Any, number: int) -> bool:
        where = self.round, jnp.int32(index)
        return step.when is None or bool(_wanted(self.setting, number, *where, at.server, at.ids, at.mask))

    def _made(self, at: Moment, index: Any, number: int, slot: int, stop: int) -> tuple[Tree, Tree, Tree]:
        """(up, keep, carry) of one participant whose local loops end before step ``stop``."""
        where = self.round, jnp.int32(index)
        state = at.server, at.ids, at.keep, at.carry, self.last
        made: tuple[Tree, Tree, Tree] = _made(self.setting, number, *where, *state, jnp.int32(slot), jnp.int32(stop))
        return made

    def _bad_step(self, at: Moment, index: Any, number: int, slot: int) -> int | None:
        """The local step that spoils the upload, by bisection: all is well before step ``good``, not before ``bad``."""
        if _spoiled(self._made(at, index, number, slot, 0)):
            return None
        good, bad = 0, self.setting.steps.high
        while bad - good > 1:
            middle = (good + bad) // 2
            good, bad = (good, middle) if _spoiled(self._made(at, index, number, slot, middle)) else (middle, bad)
        return good

    def _served(self, at: Moment, index: Any, number: int, up: Tree) -> Moment:
        if self.ended is not None:
            return at
        where = self.round, jnp.int32(index)
        at = replace(at, server=_served(self.setting, number, *where, at.server, at.ids, at.mask, up))
        name = not_finite(at.server)
        self._end(number, index, Found(number, None, None, name) if name else None)
        return at


def _spoiled(made: tuple[Tree, Tree, Tree]) -> str | None:
    up, keep, _ = made
    return not_finite({**up, "kept": keep})


_compiled: Any = partial(
    eqx.filter_jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)
"""For programs that run a few times: what they save is less than it takes to make them faster."""


@_compiled
def draw_participants(setting: Setting, round: Array, fresh: Array) -> tuple[Array, Array]:
    """(ids, mask) of a draw, compiled: eagerly its loop would be compiled anew for each."""
    return setting.participants(round, fresh)


@_compiled
def _wanted(setting: Setting, number: int, round: Array, index: Array, server: Tree, ids: Array, mask: Array) -> Any:
    step = step_at(setting.algorithm.round(), number)
    return step.when(server, setting.context(round, index, ids, mask))  # type: ignore[union-attr, misc]


@_compiled
def _made(
    setting: Setting,
    number: int,
    round: Array,
    index: Array,
    server: Tree,
    ids: Array,
    keep: Tree,
    carry: Tree,
    last: Array,
    slot: Array,
    stop: Array,
) -> tuple[Tree, Tree, Tree]:
    """What the participant of one slot makes of an exchange."""
    step = step_at(setting.algorithm.round(), number)
    assert isinstance(step, Exchange)
    private = {} if step.private is None else step.private(server)
    mine, own, kept = jax.tree.map(lambda leaf: leaf[slot], (private, keep, carry))
    local = setting.local(ids[slot], round, index, last[ids[slot]], stop=stop)
    return step.client(local, {**step.down(server), **mine}, own, kept)


@_compiled
def _served(
    setting: Setting, number: int, round: Array, index: Array, server: Tree, ids: Array, mask: Array, up: Tree
) -> Tree:
    """The server's state after a step."""
    step = step_at(setting.algorithm.round(), number)
    context = setting.context(round, index, ids, mask)
    if isinstance(step, Server):
        return step.fn(context, server)
    return step.server(context, server, mean_of(step, server, setting.clients.weights, ids, mask, up))


def not_finite(tree: Tree) -> str | None:
    """The name of the first array that holds a NaN or an infinity."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) and not np.isfinite(np.asarray(leaf)).all():
            return dotted(path) or "value"
    return None
