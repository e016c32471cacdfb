"""From pytrees to vectors and back.

A user states a problem over pytrees (dictionaries, Equinox modules); an algorithm sees each variable as one vector, so
that it reads like its paper, the mean over participants is one product, and a message is one buffer.
"""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array


class _Frozen:
    """A leaf that never moves (an integer array, a function), comparable so that programs are compiled once."""

    def __init__(self, leaf: Any):
        self.leaf = leaf
        self._identity = (leaf.shape, str(leaf.dtype), np.asarray(leaf).tobytes()) if eqx.is_array(leaf) else leaf

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Frozen) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)


@dataclass(frozen=True)
class Layout:
    """How a pytree lies in a vector: its float arrays one after the other; everything else stays as it is."""

    treedef: Any
    shapes: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[Any, ...]
    frozen: tuple[_Frozen | None, ...]

    @classmethod
    def of(cls, tree: Any, name: str) -> "Layout":
        """The layout of ``tree``; a ``TypeError`` naming ``name`` if there is no float array in it."""
        leaves, treedef = jax.tree.flatten(jax.tree.map(_as_array, tree))
        moving = [eqx.is_inexact_array(leaf) for leaf in leaves]
        if not any(moving):
            raise TypeError(f"{name} must hold at least one array of floats, got {_describe(tree)}")
        if any(jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf, m in zip(leaves, moving, strict=True) if m):
            raise TypeError(f"{name} must be real, got {_describe(tree)}")
        return cls(
            treedef,
            tuple(leaf.shape if m else None for leaf, m in zip(leaves, moving, strict=True)),
            tuple(leaf.dtype if m else None for leaf, m in zip(leaves, moving, strict=True)),
            tuple(None if m else _Frozen(leaf) for leaf, m in zip(leaves, moving, strict=True)),
        )

    @property
    def size(self) -> int:
        """The number of reals."""
        return sum(int(np.prod(shape)) for shape in self.shapes if shape is not None)

    @property
    def dtype(self) -> Any:
        """The dtype of the vector."""
        return jnp.result_type(*(dtype for dtype in self.dtypes if dtype is not None))

    def ravel(self, tree: Any) -> Array:
        """The vector of ``tree``."""
        leaves = self.treedef.flatten_up_to(tree)
        moving = [leaf for leaf, shape in zip(leaves, self.shapes, strict=True) if shape is not None]
        return jnp.concatenate([jnp.ravel(jnp.asarray(leaf)).astype(self.dtype) for leaf in moving])

    def unravel(self, vector: Array) -> Any:
        """The pytree of ``vector``."""
        sizes = [int(np.prod(shape)) for shape in self.shapes if shape is not None]
        parts = iter(jnp.split(vector, np.cumsum(sizes)[:-1]))
        leaves = [
            frozen.leaf if frozen is not None else next(parts).reshape(shape).astype(dtype)
            for frozen, shape, dtype in zip(self.frozen, self.shapes, self.dtypes, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, leaves)

    def with_dtype(self, dtype: Any) -> "Layout":
        """The same layout in another precision."""
        return Layout(
            self.treedef, self.shapes, tuple(dtype if d is not None else None for d in self.dtypes), self.frozen
        )


def _as_array(leaf: Any) -> Any:
    if isinstance(leaf, float | np.ndarray | np.generic):
        return jnp.asarray(leaf)
    return leaf


def _describe(tree: Any) -> str:
    leaves = jax.tree.leaves(tree)
    shown = ", ".join(
        f"{leaf.dtype}{list(leaf.shape)}" if eqx.is_array_like(leaf) and hasattr(leaf, "dtype") else repr(leaf)
        for leaf in leaves[:4]
    )
    return f"a {type(tree).__name__} with {len(leaves)} leaves ({shown})"


def same_structure(a: Any, b: Any) -> bool:
    """Whether two pytrees have the same structure."""
    return bool(_structure(a) == _structure(b))


def _structure(tree: Any) -> Any:
    return jax.tree.structure(tree)
