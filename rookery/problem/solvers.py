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


SHALLOW = 0.01
"""A direction that bends less than this part of L bends next to nothing."""


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


def steep_gradients(product: Callable[[Array], Array], b: Array, steps: int, largest: Array) -> tuple[Array, Array]:
    """A⁻¹b by so many steps of conjugate gradients where A need not be convex, and whether it seems so.

    Where A turns out not to be convex, it is what they had before the first direction that bends next to nothing, or one
    step of the Neumann series, b/L with L = ``largest``: from there on numbers tell of A's small eigenvalues, of both
    signs, alone.
    """
    whole = jnp.vdot(b, b)

    def turn(_: Any, state: tuple[Array, ...]) -> tuple[Array, ...]:
        z, r, p, left, before, steep, convex = state
        image = product(p)
        bent = jnp.vdot(p, image)
        going, up = left > jnp.finfo(b.dtype).eps ** 2 * whole, bent > 0
        on = going & up
        step = left / jnp.where(on, bent, 1)
        z, r = jnp.where(on, z + step * p, z), jnp.where(on, r - step * image, r)
        steep = steep & (bent >= SHALLOW * largest * jnp.vdot(p, p))
        now = jnp.vdot(r, r)
        p = jnp.where(on, r + now / jnp.where(going, left, 1) * p, p)
        return z, r, p, jnp.where(on, now, 0), jnp.where(steep, z, before), steep, convex & (up | ~going)

    yes = jnp.ones((), bool)
    start = b / jnp.where(largest > 0, largest, 1)
    z, *_, before, _, convex = jax.lax.fori_loop(0, steps, turn, (jnp.zeros_like(b), b, b, whole, start, yes, yes))
    return jnp.where(convex, z, before), convex


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


def truncated_newton(value: Callable[[Array], Array], start: Array, outer: int, inner: int) -> Array:
    """A lower value by a bounded amount of work: ``outer`` Newton steps of at most ``inner`` products each.

    Conjugate gradients stop where the curvature is not positive, and a step is halved until the value falls, so that it is
    safe where the function is not convex. What is returned is never worse than the start.
    """
    slope = jax.grad(value)
    eps = float(jnp.finfo(start.dtype).eps)

    def direction(v: Array, g: Array) -> Array:
        size = jnp.vdot(g, g)
        enough = size * jnp.minimum(1e-2, jnp.sqrt(size)) ** 2 * 1e-2

        def body(state: Any) -> Any:
            count, d, r, p, left, _ = state
            image = jax.jvp(slope, (v,), (p,))[1]
            bent = jnp.vdot(p, image)
            good = bent > eps * jnp.vdot(p, p)
            step = jnp.where(good, left / jnp.where(good, bent, 1), 0)
            r_new = r - step * image
            now = jnp.vdot(r_new, r_new)
            first = jnp.where((count == 0) & ~good, 1.0, 0.0).astype(d.dtype)  # downhill, where nothing else is known
            return count + 1, d + step * p + first * p, r_new, r_new + now / left * p, now, good

        def going(state: Any) -> Array:
            found: Array = (state[0] < inner) & (state[4] > jnp.maximum(enough, eps**2 * size)) & state[5]
            return found

        zero = jnp.zeros_like(v)
        d: Array = jax.lax.while_loop(going, body, (jnp.int32(0), zero, g, g, size, jnp.bool_(True)))[1]
        return d

    def step(_: Array, v: Array) -> Array:
        here, g = jax.value_and_grad(value)(v)
        d = direction(v, g)
        gain = jnp.vdot(d, g)

        def too_long(state: tuple[Array, Array]) -> Array:
            s, count = state
            found: Array = ~(value(v - s * d) <= here - 1e-4 * s * gain) & (count < 20)
            return found

        s, tries = jax.lax.while_loop(too_long, lambda t: (t[0] / 2, t[1] + 1), (jnp.ones((), v.dtype), jnp.int32(0)))
        return jnp.where(tries < 20, v - s * d, v)

    made: Array = jax.lax.fori_loop(0, outer, step, start)
    return made


def accelerated_descent(
    value: Callable[[Array], Array], project: Callable[[Array], Array], start: Array, steps: int
) -> Array:
    """A lower value over a convex set by ``steps`` projected gradient steps with Nesterov's extrapolation.

    The length of a step is found by doubling and halving; the extrapolation starts anew where it goes uphill.
    """
    gradient = jax.value_and_grad(value)

    def step(_: Array, state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        v, ahead, t, s = state
        here, g = gradient(ahead)
        new = project(ahead - s * g)
        d = new - ahead
        ok = value(new) <= here + jnp.vdot(g, d) + jnp.vdot(d, d) / (2 * s)
        uphill = jnp.vdot(g, new - v) > 0
        following = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        further = project(new + jnp.where(uphill, 0, (t - 1) / following) * (new - v))
        return (
            jnp.where(ok, new, v),
            jnp.where(ok, further, ahead),
            jnp.where(ok, jnp.where(uphill, 1, following), t),
            jnp.where(ok, 1.3 * s, s / 4),
        )

    v = project(start)
    g = jax.grad(value)(v)
    far = jnp.linalg.norm(project(v - 1e3 * g) - v) / jnp.maximum(jnp.linalg.norm(g), jnp.finfo(v.dtype).tiny)
    first = jnp.clip(far, 1e-6, 1e3).astype(v.dtype)
    made: Array = jax.lax.fori_loop(0, steps, step, (v, v, jnp.ones((), v.dtype), first))[0]
    return made
