"""Closed convex sets over pytrees: Euclidean projections and projections on tangent cones.

The inner product of two pytrees is the sum over all their leaves. For a set C and a point v of it,

    project(u)    = argmin_{p ∈ C} ‖p − u‖
    tangent(v, d) = argmin_{t ∈ T(v)} ‖t − d‖,   T(v) = closure of {s(u − v) : u ∈ C, s >= 0}

and tangent(v, d) = lim_{s↓0} (project(v + s d) − v)/s. The stationarity residual of a gradient g at v,
dist(0, g + N(v)), is ‖tangent(v, −g)‖. A set is a pytree: its parameters may be traced, batched and replaced. Results
have the dtypes of the variable, whatever those of the parameters.
"""

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, treedef_is_leaf
from jax.typing import ArrayLike
from optax import projections


class Set(eqx.Module):
    """A closed convex set of pytrees of real arrays."""

    @abc.abstractmethod
    def project(self, tree: Any) -> Any:
        """Return argmin_{p ∈ C} ‖p − tree‖."""

    @abc.abstractmethod
    def tangent(self, v: Any, d: Any) -> Any:
        """Return argmin_{t ∈ T(v)} ‖t − d‖, T(v) the tangent cone at the point v of the set."""

    def check(self, tree: Any, name: str) -> None:
        """Raise ValueError if the set does not fit the variable `tree`, which the caller knows as `name`."""
        for path, x in jax.tree.leaves_with_path(tree):
            if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
                raise self._misfit(name + keystr(path), f"its dtype is {jnp.result_type(x)}, not a real one")

    def _misfit(self, name: str, why: str) -> ValueError:
        return ValueError(f"{self!r} does not fit {name}: {why}")

    def _split(self, prefix: Any, tree: Any, name: str, what: str) -> list[Any]:
        """Cut the tree into the parts that belong to the leaves of the tree structure `prefix`."""
        try:
            found: list[Any] = prefix.flatten_up_to(tree)
            return found
        except ValueError as error:
            raise self._misfit(name, f"{what} is not a prefix of {jax.tree.structure(tree)}") from error


class WholeSpace(Set):
    """No constraint; leaves of any type."""

    def project(self, tree: Any) -> Any:
        """Return tree."""
        return tree

    def tangent(self, v: Any, d: Any) -> Any:
        """Return d: every direction is tangent."""
        return d

    def check(self, tree: Any, name: str) -> None:
        """Accept everything."""


class Ball(Set):
    """{u : ‖u‖ <= radius}, the norm taken over the whole pytree. An infinite radius means no constraint."""

    radius: ArrayLike

    def __check_init__(self) -> None:
        _check_positive("radius", self.radius)

    def project(self, tree: Any) -> Any:
        """Return tree · min(1, radius/‖tree‖)."""
        radius = self._radius(tree)
        finite = jnp.isfinite(radius)
        inside = projections.projection_l2_ball(tree, jnp.where(finite, radius, 1))
        return jax.tree.map(lambda p, x: jnp.where(finite, p, x).astype(jnp.result_type(x)), inside, tree)

    def tangent(self, v: Any, d: Any) -> Any:
        """Return d − max(⟨d, v⟩, 0) v/‖v‖² on the sphere, d inside.

        A point is on the sphere if ‖v‖ >= radius (1 − 8 ε √n), ε the machine epsilon, n the number of entries of v.
        """
        leaves = jax.tree.leaves(v)
        norm = jnp.sqrt(sum(jnp.vdot(x, x) for x in leaves))
        tolerance = max(_tolerance(x) for x in leaves) * math.sqrt(sum(jnp.size(x) for x in leaves))
        active = norm >= self._radius(v) * (1 - tolerance)
        normal = jax.tree.map(lambda x: jnp.where(active, x, 1), v)
        cut = projections.projection_halfspace(d, normal, 0.0)
        return jax.tree.map(lambda t, x: jnp.where(active, t, x).astype(jnp.result_type(x)), cut, d)

    def _radius(self, tree: Any) -> jax.Array:
        return jnp.asarray(self.radius, jnp.result_type(1.0, *jax.tree.leaves(tree)))

    def check(self, tree: Any, name: str) -> None:
        """Raise ValueError unless the leaves are real and the radius is one number."""
        super().check(tree, name)
        if jnp.ndim(self.radius):
            raise self._misfit(name, f"radius has shape {jnp.shape(self.radius)}, not ()")


class Box(Set):
    """{u : low <= u <= high}.

    A bound is a pytree that is a prefix of the variable (a single number or array is one: it holds for every leaf), its
    leaves broadcast to the leaves of the variable. Bounds may be infinite. A list of numbers is a pytree of several
    leaves, not a vector.
    """

    low: Any
    high: Any

    def __check_init__(self) -> None:
        low_tree: Any = jax.tree.structure(self.low)
        high_tree: Any = jax.tree.structure(self.high)
        lows, highs = jax.tree.leaves(self.low), jax.tree.leaves(self.high)
        if treedef_is_leaf(low_tree):
            lows = lows * len(highs)
        elif treedef_is_leaf(high_tree):
            highs = highs * len(lows)
        elif low_tree != high_tree:
            raise ValueError(f"low and high must be numbers, arrays or pytrees of one structure, not {self!r}")
        for low, high in zip(lows, highs, strict=True):
            if not _concrete(low) or not _concrete(high):
                continue
            try:
                low, high = np.broadcast_arrays(low, high)
            except ValueError:
                raise ValueError(f"low and high have shapes {jnp.shape(low)} and {jnp.shape(high)}") from None
            if (wrong := ~(low <= high)).any():  # nan is wrong as well
                raise ValueError(f"low={low[wrong][0]} must be <= high={high[wrong][0]}")

    def project(self, tree: Any) -> Any:
        """Return min(max(tree, low), high), component by component."""
        return projections.projection_box(tree, _spread(self.low, tree), _spread(self.high, tree))

    def tangent(self, v: Any, d: Any) -> Any:
        """Return d without its components that point out of an active bound.

        t_a = max(d_a, 0) where v_a <= low_a, min(d_a, 0) where v_a >= high_a, both comparisons up to 8 ε |bound|.
        """

        def leaf(v: jax.Array, d: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
            tolerance = _tolerance(low)
            t = jnp.where(v <= low * (1 + tolerance * jnp.sign(low)), jnp.maximum(d, 0), d)
            return jnp.where(v >= high * (1 - tolerance * jnp.sign(high)), jnp.minimum(t, 0), t)

        return jax.tree.map(leaf, v, d, _spread(self.low, v), _spread(self.high, v))

    def check(self, tree: Any, name: str) -> None:
        """Raise ValueError unless both bounds are prefixes of the variable and broadcast to its leaves."""
        super().check(tree, name)
        for parameter, bounds in (("low", self.low), ("high", self.high)):
            parts = self._split(jax.tree.structure(bounds), tree, name, parameter)
            for bound, part in zip(jax.tree.leaves(bounds), parts, strict=True):
                for x in jax.tree.leaves(part):
                    if not _broadcasts(jnp.shape(bound), jnp.shape(x)):
                        why = f"{parameter} of shape {jnp.shape(bound)} does not broadcast to {jnp.shape(x)}"
                        raise self._misfit(name, why)


class Simplex(Set):
    """{u : u >= 0, Σu = scale}, u the entries of ONE array of any shape."""

    scale: ArrayLike = 1.0

    def __check_init__(self) -> None:
        _check_positive("scale", self.scale)
        if _concrete(self.scale) and not np.isfinite(self.scale).all():
            raise ValueError(f"scale={self.scale} must be finite")

    def project(self, tree: Any) -> Any:
        """Return max(u − s, 0) with the s for which the entries sum to scale.

        The result does not depend on a constant added to u; max u is subtracted first, which keeps the cumulative sums
        of the sorted u small and thus accurate.
        """

        def leaf(u: jax.Array) -> jax.Array:
            shifted = u - jax.lax.stop_gradient(jnp.max(u))
            p = projections.projection_simplex(shifted, jnp.asarray(self.scale, u.dtype))
            found: jax.Array = p.astype(u.dtype)  # Optax divides by an int64, which promotes float32
            return found

        return _map_one(leaf, tree)

    def tangent(self, v: Any, d: Any) -> Any:
        """Return the projection of d on {t : Σt = 0, t_a >= 0 where v_a = 0}.

        It is t_a = d_a − s where v_a > 0 and max(d_a − s, 0) where v_a = 0, with the s that makes Σt = 0. The a with
        v_a > 0 are put first, the others follow with d_a descending, and s is the mean of d over the longest head of
        this order in which each v_a = 0 has d_a above the mean up to it.
        """

        def leaf(v: jax.Array, d: jax.Array) -> jax.Array:
            d = d - jnp.max(d)  # no effect but on accuracy; a maximum is exact, however often a compiler repeats it
            free = v.ravel() > 0
            order = jnp.argsort(jnp.where(free, -jnp.inf, -d.ravel()))
            ordered = d.ravel()[order]
            means = jnp.cumsum(ordered) / jnp.arange(1, d.size + 1, dtype=d.dtype)
            head = jnp.count_nonzero(free[order] | (ordered > means))
            t = d - means[jnp.maximum(head, 1) - 1]
            return jnp.where(v > 0, t, jnp.maximum(t, 0))

        return _map_one(leaf, v, d)

    def check(self, tree: Any, name: str) -> None:
        """Raise ValueError unless the variable is one real array that is not empty, and the scale one number."""
        super().check(tree, name)
        if jnp.ndim(self.scale):
            raise self._misfit(name, f"scale has shape {jnp.shape(self.scale)}, not ()")
        shapes = [jnp.shape(x) for x in jax.tree.leaves(tree)]
        if len(shapes) != 1 or 0 in shapes[0]:
            raise self._misfit(name, f"it has arrays of shapes {shapes}, not one array that is not empty")


class NonNegative(Set):
    """{u : u >= 0}."""

    def project(self, tree: Any) -> Any:
        """Return max(tree, 0), component by component."""
        return projections.projection_non_negative(tree)

    def tangent(self, v: Any, d: Any) -> Any:
        """Return max(d_a, 0) where v_a = 0 and d_a elsewhere."""
        return jax.tree.map(lambda v, d: jnp.where(v <= 0, jnp.maximum(d, 0), d), v, d)


class Product(Set):
    """The Cartesian product of the sets that are the leaves of `tree`, a prefix of the variable."""

    tree: Any

    def __check_init__(self) -> None:
        for path, leaf in jax.tree.leaves_with_path(self.tree, is_leaf=_is_set):
            if not _is_set(leaf):
                raise ValueError(f"tree{keystr(path)}={leaf!r} must be a Set")

    def project(self, tree: Any) -> Any:
        """Project each part of the variable on its own set."""
        return jax.tree.map(lambda s, x: s.project(x), self.tree, tree, is_leaf=_is_set)

    def tangent(self, v: Any, d: Any) -> Any:
        """Project each part of d on the tangent cone of its own set: T(v) is the product of the cones."""
        return jax.tree.map(lambda s, v, d: s.tangent(v, d), self.tree, v, d, is_leaf=_is_set)

    def check(self, tree: Any, name: str) -> None:
        """Raise ValueError unless `tree` is a prefix of the variable and each set fits its part."""
        leaves, prefix = jax.tree.flatten_with_path(self.tree, is_leaf=_is_set)
        parts = self._split(prefix, tree, name, "its structure")
        for (path, s), part in zip(leaves, parts, strict=True):
            s.check(part, name + keystr(path))


def normalise(u: jax.Array) -> jax.Array:
    """Return max(u, 0)/Σ max(u, 0), which is NOT the Euclidean projection on the simplex.

    The FedSGDA code puts it in the place of Simplex().project. Unlike the projection it changes when a constant is
    added to u. It is nan if no entry is positive.
    """
    positive = jnp.maximum(u, 0)
    return positive / jnp.sum(positive)


def _is_set(x: Any) -> bool:
    return isinstance(x, Set)


def _concrete(x: Any) -> bool:
    return not isinstance(x, jax.core.Tracer)


def _check_positive(name: str, value: ArrayLike) -> None:
    if _concrete(value) and not (np.asarray(value) > 0).all():
        raise ValueError(f"{name}={value} must be positive")


def _tolerance(x: ArrayLike) -> float:
    """Return the relative error that a point on a bound may have: a few units of rounding."""
    return 8 * float(jnp.finfo(jnp.result_type(x)).eps)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, to) == to
    except ValueError:
        return False


def _spread(bound: Any, tree: Any) -> Any:
    """Give each leaf of the tree its own copy of the prefix `bound`, in its dtype and shape."""

    def leaf(b: ArrayLike, part: Any) -> Any:
        return jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(b, jnp.result_type(x)), jnp.shape(x)), part)

    return jax.tree.map(leaf, bound, tree)


def _map_one(f: Callable[..., jax.Array], *trees: Any) -> Any:
    """Map over trees that hold one array each."""
    if (n := len(jax.tree.leaves(trees[0]))) != 1:
        raise ValueError(f"a simplex needs one array, not {n}")
    return jax.tree.map(lambda *arrays: f(*map(jnp.asarray, arrays)), *trees)
