"""Inner solves to the precision that a dtype allows: conjugate gradients, Newton, projected descent."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Solved(NamedTuple):
    """Where an inner solve ended, whether it converged, and after how many steps."""

    at: Array
    converged: Array
    steps: Array


def tolerance(dtype: Any, power: float = 3 / 4) -> float:
    """What a solve in ``dtype`` asks for and can reach: ε^¾, that is 2e-12 in float64 and 6e-6 in float32."""
    found: float = float(jnp.finfo(dtype).eps) ** power
    return found


def conjugate_gradients(product: Callable[[Array], Array], b: Array) -> Solved:
    """A⁻¹b for a symmetric positive definite A given by ``product``.

    It goes on until the residual that it carries along is below ε^¾‖b‖, for at most 4 steps a dimension. It converged if
    the true residual ‖b − Az‖, which rounding keeps from following, is at most √ε‖b‖.
    """
    eps = float(jnp.finfo(b.dtype).eps)
    size = jnp.vdot(b, b)

    def body(state: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        count, z, r, p, left = state
        image = product(p)
        step = left / jnp.vdot(p, image)
        r = r - step * image
        now = jnp.vdot(r, r)
        return count + 1, z + step * p, r, r + now / left * p, now

    def going(state: tuple[Array, Array, Array, Array, Array]) -> Array:
        found: Array = (state[0] < 4 * b.size) & (state[4] > eps**1.5 * size)
        return found

    count, z, *_ = jax.lax.while_loop(going, body, (jnp.int32(0), jnp.zeros_like(b), b, b, size))
    return Solved(z, jnp.linalg.norm(b - product(z)) <= eps**0.5 * jnp.sqrt(size), count)


def newton(value: Callable[[Array], Array], start: Array, tol: Any = None, steps: int = 100) -> Solved:
    """The minimiser of a strongly convex function: Newton's method with conjugate gradients and halving of steps.

    It converged if ‖∇‖ <= tol · max(1, ‖∇²·v‖), the size of the terms that cancel in ∇ (``tolerance`` if ``tol`` is
    None), or if neither the value nor the slope can be made smaller in this precision.
    """
    slope = jax.grad(value)
    eps = float(jnp.finfo(start.dtype).eps)
    tol = tolerance(start.dtype) if tol is None else tol

    def look(v: Array) -> tuple[Array, Array]:
        """∇ at v, and whether it is small enough."""
        g, scale = jax.jvp(slope, (v,), (v,))
        return g, jnp.linalg.norm(g) <= tol * jnp.maximum(1, jnp.linalg.norm(scale))

    def body(state: tuple[Array, Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array, Array]:
        count, v, g, _, _ = state
        d = conjugate_gradients(lambda u: jax.jvp(slope, (v,), (u,))[1], g).at
        d = jnp.where(jnp.vdot(d, g) > 0, d, g)
        here, gain = value(v), jnp.vdot(d, g)

        def too_long(s: Array) -> Array:  # a trial that is not a number is too long as well
            enough = here - 1e-4 * s * gain + 64 * eps * jnp.abs(here)
            return ~(value(v - s * d) <= enough) & (s > eps)

        s = jax.lax.while_loop(too_long, lambda s: s / 2, jnp.ones((), v.dtype))
        new = v - s * d
        slope_there, reached = look(new)
        better = jnp.linalg.norm(slope_there) <= jnp.linalg.norm(g) / 2
        stalled = (gain <= 8 * eps * jnp.abs(here)) & ~better
        return count + 1, new, slope_there, reached | stalled, (s > eps) & jnp.isfinite(slope_there).all()

    def going(state: tuple[Array, Array, Array, Array, Array]) -> Array:
        return (state[0] < steps) & ~state[3] & state[4]

    g, reached = look(start)
    first = (jnp.int32(0), start, g, reached, jnp.isfinite(g).all())
    count, v, _, converged, _ = jax.lax.while_loop(going, body, first)
    return Solved(v, converged, count)


def projected_descent(
    value: Callable[[Array], Array],
    project: Callable[[Array], Array],
    start: Array,
    tol: Any = None,
    steps: int = 20_000,
) -> Solved:
    """The minimiser over a convex set: projected gradient steps s with halving.

    It converged if a step moves v by at most tol · max(s, ‖v‖): the slope is below ``tol`` (``tolerance`` if None), or
    below that part of the curvature 1/s times v.
    """
    slope = jax.grad(value)
    eps = float(jnp.finfo(start.dtype).eps)
    tol = tolerance(start.dtype) if tol is None else tol

    def body(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        count, v, s, _ = state
        g = slope(v)
        least = eps**2 * s

        def too_long(s: Array) -> Array:  # by slopes: differences of values drown in rounding near the minimiser
            d = project(v - s * g) - v
            return ~(jnp.vdot(slope(v + d) - g, d) <= jnp.vdot(d, d) / s) & (s > least)

        s = jax.lax.while_loop(too_long, lambda s: s / 2, 2 * s)
        new = project(v - s * g)
        moved = jnp.linalg.norm(new - v) / jnp.maximum(s, jnp.linalg.norm(new))
        return count + 1, new, s, jnp.where(s > least, moved, jnp.nan)  # not a number ends it: no step is short enough

    first = (jnp.int32(0), project(start), jnp.ones((), start.dtype), jnp.asarray(jnp.inf, start.dtype))
    count, v, _, moved = jax.lax.while_loop(lambda s: (s[0] < steps) & (s[3] > tol), body, first)
    return Solved(v, moved <= tol, count)
