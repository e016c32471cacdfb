"""What a round costs: bytes and oracle calls, read from the traced program."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.aggregation.mean import combine
from rookery.algorithm.exchange import Exchange, Repeat, Server, count_stages
from rookery.algorithm.intake import Intake
from rookery.algorithm.setting import Setting
from rookery.algorithm.walk import Moment, Walk
from rookery.problem.layout import same_structure
from rookery.problem.oracles import Tally
from rookery.typing import Tree


@dataclass(frozen=True)
class Cost:
    """What one stage of a round costs.

    For each participant: bytes ``down`` and ``up``, oracle ``calls`` (a, b): a + b·τ of them, and those made in round 0
    only (``start_calls``), and whether it makes local steps. For each time the stage is executed: the server's own calls.
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
    shows_participants: bool = False
    """Whether the server's part depends on who takes part, but for what it receives."""


class Counting(Walk):
    """Traces each stage once, an exchange for one participant, and notes what it costs."""

    def __init__(self, setting: Setting, round: Any):
        super().__init__(setting, round)
        self.costs: dict[int, Cost] = {}

    def server(self, stage: Server, at: Moment, index: Any, number: int) -> Moment:
        """The server's step, listened to."""
        tally = Tally()
        server = stage.fn(self.setting.context(self.round, index, at.ids, at.mask, tally), at.server)
        self.costs[number] = Cost(
            exchange=False, server_calls=tally.counts(), shows_participants=tally.shows_participants
        )
        return replace(at, server=server)

    def repeat(self, stage: Repeat, at: Moment, index: Any, number: int) -> Moment:
        """The body once; twice where it is the body that first sets the carry."""
        after = self.run(stage.stages, at, index, number)
        if not same_structure(after.carry, at.carry):
            after = self.run(stage.stages, after, index, number)
        return after

    def exchange(self, stage: Exchange, at: Moment, index: Any, number: int) -> Moment:
        """The exchange, always."""
        tally, server_tally = Tally(), Tally()
        if stage.when is not None:
            stage.when(at.server, self.setting.context(self.round, index, at.ids, at.mask, server_tally))
        down = stage.down(at.server)
        local = self.setting.local(at.ids[0], self.round, index, jnp.int32(-1), tally=tally)
        if stage.private is not None:
            down = {**down, **jax.tree.map(lambda leaf: leaf[0], stage.private(at.server))}
        up, keep, carry = stage.work(local, down, at.keep, None if stage.draw == "fresh" else at.carry)
        if not isinstance(up, dict):
            raise TypeError(f"client must upload a dictionary of arrays, got {type(up).__name__}")
        intake = Intake(self.setting, stage, number, self.round, index, at.server, at.ids, at.mask, at.clips)
        up = intake.leaving(up)
        stacked = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (at.ids.shape[0], *jnp.shape(leaf))), up)
        received, _ = intake.received(combine(intake.weights(stacked), stacked))
        server = stage.server(
            self.setting.context(self.round, index, at.ids, at.mask, server_tally), at.server, received
        )
        self.costs[number] = Cost(
            True,
            tree_bytes(down),
            tree_bytes(up),
            tally.counts(),
            tally.counts(at_start=True),
            local.made_steps,
            server_tally.counts(),
            described(up),
            server_tally.shows_participants,
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
    """What each stage of a round costs. Nothing is computed: the round is only traced."""
    found: dict[int, Cost] = {}

    def one_round(setting: Setting, x: Array, y: Array) -> None:
        walk = Counting(setting, jnp.int32(1))
        ids, mask = setting.participants(walk.round, 0)
        privacy, stages = setting.privacy, count_stages(setting.algorithm.round())
        clips = None if privacy is None else privacy.first_clips(stages, x.dtype)
        start = Moment(setting.algorithm.init(x, y), setting.algorithm.keep(x, y), None, ids, mask, -1, clips=clips)
        walk.run(setting.algorithm.round(), start)
        found.update(walk.costs)

    eqx.filter_eval_shape(one_round, setting, x, y)
    return [found[number] for number in range(count_stages(setting.algorithm.round()))]
