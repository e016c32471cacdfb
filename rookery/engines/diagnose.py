"""Where a run that diverged met its first number that is not finite, found when somebody asks."""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache, wraps
from typing import Any, NamedTuple, TypeVar, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.aggregation.mean import combine
from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Server
from rookery.algorithm.intake import Intake
from rookery.algorithm.setting import Setting, State
from rookery.algorithm.walk import Moment, Walk, get_rows, not_finite, put_rows, stage_at
from rookery.devices import quick_compilation
from rookery.engines.homes import Homes
from rookery.engines.sharded import at_home, on_owner, rows_at_home
from rookery.typing import Tree


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

    def __init__(
        self, setting: Setting, round: int, state: State, homes: Homes | None, until: tuple[int, Any] | None = None
    ):
        super().__init__(setting, np.int32(round))
        self.last = state.last
        self.table = state.keep
        self.homes = homes
        self.until = until
        self.ended: tuple[int, Any] | None = None
        """The step, and its pass, after which nothing was computed any more."""
        self.found: Found | None = None

    def _end(self, number: int, index: Any, found: Found | None) -> None:
        if found is not None or self.until == (number, index):
            self.found, self.ended = found, (number, index)

    def repeat(self, stage: Repeat, at: Moment, index: Any, number: int) -> Moment:
        """A Python loop."""
        for k in range(stage.count):
            at = self.run(stage.stages, at, index * stage.count + k, number)
        return at

    def server(self, stage: Server, at: Moment, index: Any, number: int) -> Moment:
        """The server's step."""
        return self._served(at, index, number, None)

    def exchange(self, stage: Exchange, at: Moment, index: Any, number: int) -> Moment:
        """A Python loop over the participants."""
        if self.ended is not None or not self._wanted(stage, at, index, number):
            return at
        if stage.draw == "fresh":
            self.table = _put(self.table, at.ids, at.mask, at.keep)
            at = self.drawn(at.server, at.draws + 1, at.clips)
        else:
            at = replace(at, draws=max(at.draws, 0))
        self.lasts = _get(self.homes, self.last, at.ids)
        results = []
        for slot in range(at.ids.shape[0]):
            results.append(self._made(at, index, number, slot, self.setting.steps.high))
            if bool(at.mask[slot]) and (name := _spoiled(results[-1])):
                found = Found(number, int(at.ids[slot]), self._bad_step(at, index, number, slot), name)
                self._end(number, index, found)
                return at
        up, keep, carry = jax.tree.map(lambda *leaves: np.stack(leaves), *results)
        return self._served(replace(at, keep=keep, carry=carry), index, number, up)

    def drawn(self, server: Tree, number: int, clips: Any) -> Moment:
        """With the participants of a new draw."""
        ids, mask = draw_participants(self.setting, self.round, np.int32(max(number, 0)))
        return Moment(server, _get(self.homes, self.table, ids), None, ids, mask, number, clips=clips)

    def _wanted(self, stage: Exchange, at: Moment, index: Any, number: int) -> bool:
        where = self.round, np.int32(index)
        return stage.when is None or bool(_wanted(self.setting, number, *where, at.server, at.ids, at.mask))

    def _made(self, at: Moment, index: Any, number: int, slot: int, stop: int) -> tuple[Tree, Tree, Tree]:
        """(up, keep, carry) of one participant whose local loops end before step ``stop``."""
        where = self.round, np.int32(index)
        state = at.server, at.ids, at.mask, at.keep, at.carry, self.lasts, at.clips
        made = _made(self.setting, self.homes, number, (*where, *state, np.int32(slot), np.int32(stop)))
        found: tuple[Tree, Tree, Tree] = jax.tree.map(np.asarray, made)
        return found

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
        where = self.round, np.int32(index)
        server, clips = _served(self.setting, number, *where, at.server, at.ids, at.mask, at.clips, up)
        at = replace(at, server=server, clips=clips)
        name = not_finite(at.server)
        self._end(number, index, Found(number, None, None, name) if name else None)
        return at


def _spoiled(made: tuple[Tree, Tree, Tree]) -> str | None:
    up, keep, _ = made
    return not_finite({**up, "kept": keep})


F = TypeVar("F", bound=Callable[..., Any])


def _compiled(function: F) -> F:
    """For programs that run a few times: what they save is less than it takes to make them faster."""

    @cache
    def jitted(options: tuple[tuple[str, bool | int], ...]) -> Any:
        jit: Any = eqx.filter_jit  # whose types do not tell of compiler_options
        return jit(function, compiler_options=dict(options))

    @wraps(function)
    def compiled(*args: Any) -> Any:  # the options depend on the device, which an import must not start
        return jitted(tuple(quick_compilation().items()))(*args)

    return cast(F, compiled)


@_compiled
def draw_participants(setting: Setting, round: Any, fresh: Any) -> tuple[Array, Array]:
    """(ids, mask) of a draw, compiled: eagerly its loop would be compiled anew for each."""
    return setting.participants(round, fresh)


@_compiled
def _wanted(setting: Setting, number: int, round: Any, index: Any, server: Tree, ids: Array, mask: Array) -> Any:
    stage = stage_at(setting.algorithm.round(), number)
    return stage.when(server, setting.context(round, index, ids, mask))  # type: ignore[union-attr, misc]


@_compiled
def _made(setting: Setting, homes: Homes | None, number: int, told: tuple[Any, ...]) -> tuple[Tree, Tree, Tree]:
    """What the participant of one slot makes of an exchange, computed where it lives."""
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)

    def work(setting: Setting, told: tuple[Any, ...], row: Array | None) -> tuple[Tree, Tree, Tree]:
        round, index, server, ids, mask, keep, carry, lasts, clips, slot, stop = told
        private = {} if stage.private is None else stage.private(server)
        mine, own, kept = jax.tree.map(lambda leaf: leaf[slot], (private, keep, carry))
        local = setting.local(ids[slot], round, index, lasts[slot], stop=stop, row=row)
        up, keep, carry = stage.work(local, {**stage.down(server), **mine}, own, kept)
        return Intake(setting, stage, number, round, index, server, ids, mask, clips).leaving(up), keep, carry

    if homes is None:
        return work(setting, told, None)

    def alone(setting: Setting, told: tuple[Any, ...], first: Array, each: int) -> tuple[Tree, Tree, Tree]:
        row = told[3][told[-2]] - first
        made: tuple[Tree, Tree, Tree] = on_owner(
            work(setting, told, jnp.clip(row, 0, each - 1)), (row >= 0) & (row < each)
        )
        return made

    found: tuple[Tree, Tree, Tree] = at_home(alone, setting, homes, told)
    return found


@_compiled
def _get(homes: Homes | None, table: Tree, ids: Array) -> Tree:
    """What a table has of these clients."""
    if homes is None:
        return get_rows(table, ids)
    return rows_at_home(homes, table, ids)


@_compiled
def _put(table: Tree, ids: Array, mask: Array, rows: Tree) -> Tree:
    """A table with new rows of these clients; XLA finds out where they live."""
    return put_rows(table, ids, mask, rows)


@_compiled
def _served(
    setting: Setting, number: int, round: Any, index: Any, server: Tree, ids: Array, mask: Array, clips: Any, up: Tree
) -> tuple[Tree, Any]:
    """The server's state after a step, and the clips."""
    stage = stage_at(setting.algorithm.round(), number)
    context = setting.context(round, index, ids, mask)
    if isinstance(stage, Server):
        return stage.fn(context, server), clips
    intake = Intake(setting, stage, number, round, index, server, ids, mask, clips)
    received, clips = intake.received(combine(intake.weights(up), up))
    return stage.server(context, server, received), clips


TINY = 1e-9
"""A step so small that a round made with it hardly moves."""
GROWN = 1e6
"""Numbers that are so many times as large as at the start have grown because of the steps that were made."""


def diagnose(
    setting: Setting, state: State, round: int, x: Array, y: Array, homes: Homes | None = None
) -> tuple[Found | None, str]:
    """Repeats ``round`` from a frozen state: where the first number was that is not finite, and what to do about it.

    The advice is tried out: the round is repeated once more with steps so small that they cannot be the cause.
    """
    walk = _repeated(setting, state, round, homes)
    largest, before = _largest(state.server), _largest(setting.algorithm.init(x, y))
    if largest > GROWN * max(1.0, before):
        return walk.found, f"numbers had grown to {largest:.2g} by then: try smaller rates"
    careful = replace(setting, algorithm=_with_tiny_steps(setting.algorithm))
    if _repeated(careful, state, round, homes, walk.ended).found is None:
        return walk.found, f"with steps of {TINY:g} it is finite: try smaller rates"
    return walk.found, (
        f"smaller rates do not help, for it is not finite even with steps of {TINY:g}, from numbers of at most "
        f"{largest:.3g}: look for a division by 0, log(0), sqrt(0) or a singular matrix in the losses and their derivatives"
    )


def _repeated(
    setting: Setting, state: State, round: int, homes: Homes | None, until: tuple[int, Any] | None = None
) -> Careful:
    walk = Careful(setting, round, state, homes, until)
    walk.run(setting.algorithm.round(), walk.drawn(state.server, -1, state.clips))
    return walk


def _largest(tree: Tree) -> float:
    floats = [np.asarray(leaf) for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return max((float(np.abs(leaf).max(initial=0)) for leaf in floats), default=0.0)


def _with_tiny_steps(algorithm: Algorithm) -> Algorithm:
    """The same algorithm with its steps, or if none of its rates is called one, with all its rates at most TINY."""
    rates = {f.name: getattr(algorithm, f.name) for f in fields(algorithm) if not f.metadata.get("static")}
    steps = [name for name in rates if name.partition("_")[0] in ("eta", "gamma", "lr") or "step" in name]
    chosen = [name for name in steps or rates if jax.tree.leaves(rates[name])]

    def smaller(rate: Any) -> Any:
        if isinstance(rate, Algorithm):  # one that is wrapped in another
            return _with_tiny_steps(rate)
        plain = eqx.is_array(rate)  # a schedule becomes a constant
        return jnp.minimum(rate, TINY) if plain else jnp.full((), TINY, jax.tree.leaves(rate)[0].dtype)

    careful: Algorithm = eqx.tree_at(
        lambda a: [getattr(a, name) for name in chosen], algorithm, [smaller(rates[name]) for name in chosen]
    )
    return careful
