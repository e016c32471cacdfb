"""How an engine walks through the steps of a round. The three walks of the simulator are built on it."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm.exchange import Exchange, Repeat, Server, Stage, count_stages
from rookery.algorithm.setting import Setting
from rookery.problem.layout import dotted
from rookery.typing import Tree


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
    clips: Any = None
    """Of privacy with a clip that adapts itself: the clips of all stages."""


class Walk:
    """Executes the stages of round ``round``; subclasses say how an exchange, a loop and a choice are done."""

    def __init__(self, setting: Setting, round: Any):
        self.setting = setting
        self.round = round

    def run(self, stages: tuple[Stage, ...], at: Moment, index: Any = 0, number: int = 0) -> Moment:
        """All steps in order; ``number`` is that of the first one in the text of the round."""
        for stage in stages:
            if isinstance(stage, Repeat):
                at = self.repeat(stage, at, index, number)
                number += count_stages(stage.stages)
            else:
                at = (
                    self.exchange(stage, at, index, number)
                    if isinstance(stage, Exchange)
                    else self.server(stage, at, index, number)
                )
                number += 1
        return at

    def server(self, stage: Server, at: Moment, index: Any, number: int) -> Moment:
        """A stage of the server alone."""
        return replace(at, server=stage.fn(self.setting.context(self.round, index, at.ids, at.mask), at.server))

    def repeat(self, stage: Repeat, at: Moment, index: Any, number: int) -> Moment:
        """The steps of a loop."""
        raise NotImplementedError

    def exchange(self, stage: Exchange, at: Moment, index: Any, number: int) -> Moment:
        """An exchange, or nothing if its ``when`` is false."""
        raise NotImplementedError


def stage_at(stages: tuple[Stage, ...], number: int) -> Exchange | Server:
    """The stage of this number in the text of a round."""
    for stage in stages:
        size = count_stages((stage,))
        if number < size:
            return stage_at(stage.stages, number) if isinstance(stage, Repeat) else stage
        number -= size
    raise IndexError(f"a round has no stage {number} more")


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


def not_finite(tree: Tree) -> str | None:
    """The name of the first array that holds a NaN or an infinity."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if jnp.issubdtype(jnp.result_type(leaf), jnp.inexact) and not np.isfinite(np.asarray(leaf)).all():
            return dotted(path) or "value"
    return None
