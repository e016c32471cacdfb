"""The server's part of each step of a round, compiled: one program for each step."""

from typing import Any

import equinox as eqx
import jax
from jax import Array

from rookery.aggregation.mean import mean_of
from rookery.algorithm.exchange import Exchange, Server
from rookery.algorithm.setting import Setting
from rookery.algorithm.walk import stage_at
from rookery.problem.keys import PARTICIPANTS, fold
from rookery.problem.participation import Participation
from rookery.typing import Tree


@eqx.filter_jit
def drawn(participation: Participation, key: Array, n: int, round: Array, number: Array, attempt: Any) -> Any:
    """(ids, mask) of a draw. Drawn eagerly, Floyd's loop would be compiled anew, and kept, each time."""
    key = fold(key, PARTICIPANTS, round, number)
    return participation.draw(key if attempt is None else fold(key, "attempt", attempt), n, round, number)


@eqx.filter_jit
def is_wanted(setting: Setting, number: int, where: tuple[Any, ...], server: Tree) -> Any:
    """Whether an exchange with a condition takes place."""
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    assert stage.when is not None
    return stage.when(server, setting.context(*where))


@eqx.filter_jit
def outgoing(setting: Setting, number: int, server: Tree) -> tuple[Tree, Tree]:
    """What an exchange broadcasts, and what it brings to each participant alone."""
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    return stage.down(server), {} if stage.private is None else stage.private(server)


@eqx.filter_jit
def receive(setting: Setting, number: int, where: tuple[Any, ...], server: Tree, up: Tree) -> Tree:
    """The server's state after an exchange, from the uploads of all slots."""
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    ids, mask = where[2:]
    return stage.server(
        setting.context(*where), server, mean_of(stage.weighting, server, setting.clients.weights, ids, mask, up)
    )


@eqx.filter_jit
def alone(setting: Setting, number: int, where: tuple[Any, ...], server: Tree) -> Tree:
    """The server's state after a step of its own."""
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Server)
    return stage.fn(setting.context(*where), server)


@eqx.filter_jit
def local_steps(setting: Setting, round: Any, ids: Array) -> Array:
    """How many local steps each of these clients makes in a round."""
    drawn: Array = jax.vmap(lambda id: setting.steps.draw(setting.key, id, round))(ids)
    return drawn
