"""The server's part of each step of a round, compiled: one program for each step."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
from jax import Array

from rookery.aggregation.mean import combine
from rookery.aggregation.privacy import WITHIN, secret_normals
from rookery.algorithm.exchange import Exchange, Server, is_stacked
from rookery.algorithm.intake import Intake
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
def receive(
    setting: Setting, number: int, where: tuple[Any, ...], server: Tree, clips: Any, up: Tree, normals: Tree = None
) -> tuple[Tree, Any]:
    """The server's state after an exchange, from the uploads of all slots, and the clips; ``normals`` make the noise."""
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    round, index, ids, mask = where
    intake = Intake(setting, stage, number, round, index, server, ids, mask, clips)
    if setting.privacy is not None:
        up = jax.vmap(intake.bounded)(up)
    received, clips = intake.received(combine(intake.weights(up), up), normals)
    return stage.server(setting.context(*where), server, received), clips


@eqx.filter_jit
def receive_sum(
    setting: Setting, number: int, where: tuple[Any, ...], server: Tree, clips: Any, summed: Tree
) -> tuple[Tree, Any]:
    """The same from a weighted sum, which has its noise if the run is private."""
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    round, index, ids, mask = where
    if setting.privacy is not None:
        summed, clips = Intake(setting, stage, number, round, index, server, ids, mask, clips).completed(summed)
    return stage.server(setting.context(*where), server, summed), clips


@eqx.filter_jit
def scales(
    setting: Setting, number: int, where: tuple[Any, ...], server: Tree, parts: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the weight of each slot, the largest weight a client can have if the run is private) for each part."""
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    round, index, ids, mask = where
    intake = Intake(setting, stage, number, round, index, server, ids, mask)
    most = {} if setting.privacy is None else intake.largest_weights(parts)
    return intake.weights(dict.fromkeys(parts)), most


def secret_noise(stage: Exchange, stacked: dict[str, Any]) -> dict[str, Any]:
    """Standard normal numbers for what is received of an exchange. Nodes know the run's key: they are not drawn with it."""

    def drawn(part: str, leaf: Any) -> Any:
        rows = part != WITHIN and is_stacked(stage, part)
        return secret_normals(leaf.shape if rows else leaf.shape[1:], leaf.dtype)

    return {part: jax.tree.map(partial(drawn, part), each) for part, each in stacked.items()}


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
