"""Several runs as lanes of one program: what differs between them is stacked, what does not is stored once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery.problem.layout import same_structure
from rookery.typing import Axes, Tree


@dataclass(frozen=True)
class Lanes:
    """One value a lane of :func:`solve_many`, where a plain list would be taken for a pytree: ``x0=rk.Lanes([a, b])``."""

    values: Sequence[Any]


def stack(trees: Sequence[Tree], name: str) -> Tree:
    """Trees of one structure, every array with an axis of lanes."""
    for lane, tree in enumerate(trees):
        if not same_structure(tree, trees[0]):
            raise ValueError(
                f"{name}: all lanes of one program need the same class, options and schedules; "
                f"lane 0 has {jax.tree.structure(trees[0])}, lane {lane} has {jax.tree.structure(tree)}"
            )
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def stack_different(trees: Sequence[Tree], name: str, need: str) -> tuple[Tree, Axes]:
    """One tree for all lanes: arrays that differ are stacked, those that don't are shared."""
    for lane, tree in enumerate(trees):
        pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(trees[0]), strict=False)
        same = same_structure(tree, trees[0]) and all(_alike(a, b) for a, b in pairs)
        if not same:
            raise ValueError(f"{name}: all lanes of one program need {need}; lane {lane} differs from lane 0")

    columns = list(zip(*map(jax.tree.leaves, trees), strict=True))
    axes = tuple(None if all(_same(leaf, column[0]) for leaf in column[1:]) else 0 for column in columns)
    leaves = [column[0] if axis is None else jnp.stack(column) for axis, column in zip(axes, columns, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(trees[0]), leaves), axes


def _same(a: Any, b: Any) -> bool:
    return a is b or not eqx.is_array(a) or bool(jnp.array_equal(a, b))


def _alike(a: Any, b: Any) -> bool:
    """Whether two leaves can be lanes of one array, or are the same value."""
    if eqx.is_array(a) and eqx.is_array(b):
        return bool(a.shape == b.shape and a.dtype == b.dtype)
    return bool(a is b or a == b)
