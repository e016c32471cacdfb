"""Φ(x) on all data at the exact lower solution, in the precision that users have, without loops that may not end.

A function of this module makes ``phi(x, y)`` for a problem. Where Φ has no closed form its lanes are computed one after
the other, so that a lane that is hard to solve does not hold up the others.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jax.custom_batching import sequential_vmap
from jax.flatten_util import ravel_pytree

import rookery as rk

Value = Callable[[Any, Any], Array]
Phi = Callable[[Any, Any], Array]

STEPS, PRODUCTS, HALVINGS = 40, 250, 24
"""The most Newton steps, products with the Hessian in one of them, and halvings of its length."""


def everybody(loss: Callable[..., Array], split: rk.Split, weights: Array) -> Value:
    """Σ p_i (mean loss of client i), as a function of x and y."""
    rows = [split.rows(client, jnp.arange(split.size[client])) for client in range(split.clients)]
    data = jax.tree.map(lambda leaf: leaf[jnp.concatenate(rows)], split.data)
    if split.sizes_equal and bool(jnp.all(weights == weights[0])):
        return lambda x, y: loss(x, y, data)
    share = jnp.concatenate([jnp.full(len(own), weights[i] / len(own)) for i, own in enumerate(rows)])

    def value(x: Any, y: Any) -> Array:
        one = jax.vmap(lambda row: loss(x, y, jax.tree.map(lambda leaf: leaf[None], row)))
        return jnp.vdot(share, one(data))

    return value


def newton(value: Callable[[Array], Array], start: Array) -> tuple[Array, Array]:
    """(The minimiser of a convex function, whether it was found): Newton's method with conjugate gradients."""
    slope = jax.grad(value)
    eps = float(jnp.finfo(start.dtype).eps)

    def direction(v: Array, g: Array) -> Array:
        size = jnp.vdot(g, g)
        enough = size * jnp.minimum(1e-2, jnp.maximum(jnp.sqrt(size), 1e-6))

        def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
            count, z, r, p, left = state
            image = jax.jvp(slope, (v,), (p,))[1]
            step = left / jnp.vdot(p, image)
            r = r - step * image
            now = jnp.vdot(r, r)
            return count + 1, z + step * p, r, r + now / left * p, now

        first = (jnp.int32(0), jnp.zeros_like(g), g, g, size)
        return jax.lax.while_loop(lambda s: (s[0] < PRODUCTS) & (s[4] > enough), body, first)[1]

    def body(state: tuple[Array, ...]) -> tuple[Array, ...]:
        count, v, g, *_ = state
        d = direction(v, g)
        d = jnp.where(jnp.vdot(d, g) > 0, d, g)
        here, gain = value(v), jnp.vdot(d, g)

        def too_long(state: tuple[Array, Array]) -> Array:
            enough = here - 1e-4 * state[1] * gain + 32 * eps * jnp.abs(here)
            return ~(value(v - state[1] * d) <= enough) & (state[0] < HALVINGS)

        halvings, s = jax.lax.while_loop(
            too_long, lambda t: (t[0] + 1, t[1] / 2), (jnp.int32(0), jnp.ones((), v.dtype))
        )
        new = v - s * d
        there = slope(new)
        smaller = jnp.linalg.norm(there) <= jnp.linalg.norm(g) / 2
        stuck = (halvings >= HALVINGS) | ~jnp.isfinite(there).all()
        done = (gain <= eps * jnp.abs(here)) & ~smaller
        return (
            count + 1,
            jnp.where(stuck, v, new),
            jnp.where(stuck, g, there),
            done | stuck,
            gain <= 1e-4 * jnp.abs(here),
        )

    g = slope(start)
    first = (jnp.int32(0), start, g, ~jnp.isfinite(g).all() | ~jnp.any(g != 0), ~jnp.any(g != 0))
    _, v, _, _, found = jax.lax.while_loop(lambda s: (s[0] < STEPS) & ~s[3], body, first)
    return v, found


def quasi_newton(value: Callable[[Array], Array], start: Array, steps: int = 400) -> tuple[Array, Array]:
    """(The minimum in whose basin ``start`` lies, whether it is one): L-BFGS."""
    method = optax.lbfgs(memory_size=20, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=15))
    both = optax.value_and_grad_from_state(value)

    def body(state: tuple[Array, Array, Any, Array]) -> tuple[Array, Array, Any, Array]:
        count, v, memory, _ = state
        here, g = both(v, state=memory)
        update, memory = method.update(g, memory, v, value=here, grad=g, value_fn=value)
        return count + 1, v + update, memory, jnp.linalg.norm(g) / jnp.maximum(1, jnp.linalg.norm(v))

    first = (jnp.int32(0), start, method.init(start), jnp.asarray(jnp.inf, start.dtype))
    _, v, _, _ = jax.lax.while_loop(lambda s: (s[0] < steps) & (s[3] > 1e-5), body, first)
    return v, jnp.linalg.norm(jax.grad(value)(v)) <= 1e-2 * jnp.maximum(1, jnp.linalg.norm(v))


def quadratic(value: Callable[[Array], Array], start: Array) -> tuple[Array, Array]:
    """(The minimiser of a strongly convex quadratic function, whether there is one): a dense solve, refined once."""
    slope = jax.grad(value)
    zero = jnp.zeros_like(start)
    matrix, g = jax.jacfwd(slope)(zero), slope(zero)
    scale = 1 / jnp.sqrt(jnp.diagonal(matrix))  # penalties may be of very unlike sizes
    factor = jax.scipy.linalg.cho_factor(matrix * scale * scale[:, None])

    def solve(b: Array) -> Array:
        return scale * jax.scipy.linalg.cho_solve(factor, scale * b)

    v = -solve(g)
    v = v - solve(slope(v))
    return v, jnp.isfinite(v).all()


def bilevel(problem: rk.Bilevel, clients: rk.Clients, y0: Any, minimise: Any = newton, basin: bool = False) -> Phi:
    """Φ(x) = F(x, y*(x)); y* is searched from y0, or with ``basin`` from the y of the solution."""
    f = everybody(problem.upper, clients.upper, clients.weights)
    g = everybody(problem.lower, clients.lower, clients.weights)
    start, tree = ravel_pytree(y0)

    def phi(x: Any, y: Any) -> Array:
        best, found = minimise(lambda v: g(x, tree(v)), ravel_pytree(y)[0] if basin else start)
        return finite(jnp.where(found, f(x, tree(best)), jnp.inf))

    return jax.jit(phi if minimise is quadratic else sequential_vmap(phi))


def local(problem: rk.Bilevel, clients: rk.Clients, y0: Any, minimise: Any = newton) -> Phi:
    """Φ(x) = Σ p_i f_i(x, y_i*(x)), where every client has a lower level of its own; all have as many examples."""
    assert clients.lower.sizes_equal
    assert clients.upper.sizes_equal
    start, tree = ravel_pytree(y0)
    take = [jax.vmap(lambda i, s=s: s.take(i, jnp.arange(s.max_size))) for s in (clients.lower, clients.upper)]
    train, held_out = (own(jnp.arange(clients.n)) for own in take)

    def phi(x: Any, y: Any) -> Array:
        def one(data: tuple[Any, Any]) -> Array:
            best, found = minimise(lambda v: problem.lower(x, tree(v), data[0]), start)
            return jnp.where(found, problem.upper(x, tree(best), data[1]), jnp.inf)

        each = jax.vmap(one)((train, held_out)) if minimise is quadratic else jax.lax.map(one, (train, held_out))
        return finite(jnp.vdot(clients.weights, each))

    return jax.jit(phi if minimise is quadratic else sequential_vmap(phi))


def weighting(problem: rk.ClientWeighting, clients: rk.Clients, y0: Any, minimise: Any = newton) -> Phi:
    """Φ(x) = f_0(w*(x)), w*(x) = argmin Σ x_i f_i; all clients have as many examples."""
    assert clients.lower.sizes_equal
    start, tree = ravel_pytree(y0)
    own = jax.vmap(lambda i: clients.lower.take(i, jnp.arange(clients.lower.max_size)))(jnp.arange(clients.n))

    def phi(x: Any, y: Any) -> Array:
        def lower(v: Array) -> Array:
            return jnp.vdot(x, jax.vmap(lambda data: problem.loss(tree(v), data))(own))

        best, found = minimise(lower, start)
        return finite(jnp.where(found, problem.validation(tree(best), clients.server.data), jnp.inf))

    return jax.jit(phi if minimise is quadratic else sequential_vmap(phi))


def concave(problem: rk.Minimax, clients: rk.Clients, y0: Any, curvature: float) -> Phi:
    """Φ(x) = max over y of F(x, y), F(x, y) = c(x) + b(x)ᵀy − (curvature/2)‖y‖², y one array: y* in closed form.

    Without curvature y is in the simplex, and the maximum is c + the largest entry of b.
    """
    f = everybody(problem.objective, clients.upper, clients.weights)
    zero = jnp.zeros_like(y0)

    def phi(x: Any, y: Any) -> Array:
        c, b = jax.value_and_grad(lambda v: f(x, v))(zero)
        if curvature == 0:
            return finite(c + jnp.max(b))
        return finite(f(x, problem.y_set.project(b / curvature)))

    return jax.jit(phi)


def saddle(problem: rk.Minimax, clients: rk.Clients, y0: Array) -> Phi:
    """Φ(x) = max over y of F(x, y), where F is a strongly concave quadratic function of y."""
    f = everybody(problem.objective, clients.upper, clients.weights)

    def phi(x: Any, y: Any) -> Array:
        best, found = quadratic(lambda v: -f(x, v), y0)
        return finite(jnp.where(found, f(x, best), jnp.inf))

    return jax.jit(phi)


def finite(value: Array) -> Array:
    """``value``, or infinity if it is not a number."""
    return jnp.where(jnp.isfinite(value), value, jnp.inf)
