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
            raise TypeError(f"{name} must hold at least one array of floats, got {describe(tree)}")
        if any(jnp.issubdtype(leaf.dtype, jnp.complexfloating) for leaf, m in zip(leaves, moving, strict=True) if m):
            raise TypeError(f"{name} must be real, got {describe(tree)}")
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
        return jnp.concatenate([jnp.ravel(jnp.asarray(without_torch(leaf))).astype(self.dtype) for leaf in moving])

    def unravel(self, vector: Array) -> Any:
        """The pytree of ``vector``."""
        sizes = [int(np.prod(shape)) for shape in self.shapes if shape is not None]
        parts = iter(jnp.split(vector, np.cumsum(sizes)[:-1]))
        leaves = [
            frozen.leaf if frozen is not None else next(parts).reshape(shape).astype(dtype)
            for frozen, shape, dtype in zip(self.frozen, self.shapes, self.dtypes, strict=True)
        ]
        return jax.tree.unflatten(self.treedef, leaves)

    def __str__(self) -> str:
        """The arrays of the pytree in a few words."""
        arrays = zip(self.frozen, self.shapes, self.dtypes, strict=True)
        leaves = [f.leaf if f is not None else jax.ShapeDtypeStruct(shape, dtype) for f, shape, dtype in arrays]
        return describe(jax.tree.unflatten(self.treedef, leaves))

    def with_dtype(self, dtype: Any) -> "Layout":
        """The same layout in another precision."""
        return Layout(
            self.treedef, self.shapes, tuple(dtype if d is not None else None for d in self.dtypes), self.frozen
        )


def _as_array(leaf: Any) -> Any:
    leaf = without_torch(leaf)
    if isinstance(leaf, float | np.ndarray | np.generic):
        return jnp.asarray(leaf)
    return leaf


def without_torch(leaf: Any) -> Any:
    """A PyTorch tensor as a NumPy array; all else as it is."""
    return np.asarray(leaf.detach().cpu()) if hasattr(leaf, "detach") and hasattr(leaf, "cpu") else leaf


def describe(tree: Any) -> str:
    """The arrays of a pytree in a few words, never their entries: ``float32[5]``, ``{a: float32[2, 3], t: int32[2]}``."""
    leaves = jax.tree.leaves_with_path(tree)
    told = [(dotted(path), _kind(leaf)) for path, leaf in leaves[:8]]
    if not told:
        return f"a {type(tree).__name__} without arrays"
    if len(leaves) == 1 and not told[0][0]:
        return told[0][1]
    more = f", and {len(leaves) - len(told)} more" if len(leaves) > len(told) else ""
    return "{" + ", ".join(f"{name}: {kind}" for name, kind in told) + more + "}"


def _kind(leaf: Any) -> str:
    if hasattr(leaf, "dtype") and hasattr(leaf, "shape"):
        return f"{leaf.dtype}{list(leaf.shape)}"
    return type(leaf).__name__ if callable(leaf) else repr(leaf)[:40]


def dotted(path: Any) -> str:
    """The name of a leaf: ``layers.0.weight``."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def same_structure(a: Any, b: Any) -> bool:
    """Whether two pytrees have the same structure."""
    return bool(_structure(a) == _structure(b))


def _structure(tree: Any) -> Any:
    return jax.tree.structure(tree)
