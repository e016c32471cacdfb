"""How far from a solution: exact hypergradients and stationarity measures, on all data of all clients.

They are for evaluation and for tests, not for deployment: they see everybody's data. All are functions of pytrees, and
all compile, so that they can be used inside ``evaluate``.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.clients import Clients
from rookery.keys import as_key
from rookery.layout import Layout
from rookery.oracles import Objective, conjugate_gradients, newton, on_everybody, on_whole_set, projected_descent
from rookery.problems import Bilevel, ClientWeighting, Flat, Minimax, Problem
from rookery.sets import WholeSpace


def _key() -> Array:
    """Losses with randomness of their own are measured with one fixed key."""
    return as_key(0)


class Hypergradient(NamedTuple):
    """∇Φ(x), and the y*(x) and z*(x) it was made from (stacked over clients where each has its own lower level)."""

    gradient: Any
    y: Any
    z: Any


def hypergradient(problem: Problem, clients: Clients, x: Any, y: Any, tol: float = 1e-10) -> Hypergradient:
    """The exact gradient of Φ(x) = F(x, y*(x)).

    Global lower level: ∇Φ = ∇_x F − ∇²_xy G z*, ∇²_yy G z* = ∇_y F at (x, y*(x)), all sums formed before the inverse.
    Lower level of each client's own: the p-weighted mean of the clients' own hypergradients. Minimax: ∇_x F(x, y*(x)).

    ``y`` is where the search for y*(x) starts (one start for all clients); y must be unconstrained and the lower level
    strongly convex. y* is found by Newton's method to ‖∇_y G‖ <= ``tol``, z* by conjugate gradients.
    """
    if not isinstance(problem.y_set, WholeSpace):
        raise ValueError(f"hypergradient needs an unconstrained y, got y_set={problem.y_set!r}")
    if isinstance(problem, ClientWeighting):
        raise ValueError("hypergradient does not take client weighting: use weighting_gradient")
    flat, x_, y_ = _flatten(problem, x, y)
    if isinstance(problem, Bilevel) and problem.lower_level == "local":

        def one(client: Array) -> tuple[Array, Array, Array]:
            f = Objective(on_whole_set(flat.upper, clients.upper, client, _key, client))
            g = Objective(on_whole_set(flat.lower, clients.lower, client, _key, client))
            return _implicit(f, g, x_, y_, tol)

        gradients, ys, zs = jax.lax.map(one, jnp.arange(clients.n))
        mean = jnp.tensordot(clients.weights.astype(gradients.dtype), gradients, 1)
        return Hypergradient(flat.x.unravel(mean), jax.vmap(flat.y.unravel)(ys), jax.vmap(flat.y.unravel)(zs))
    f, g = objectives(flat, clients)
    gradient, best, z = _implicit(f, g, x_, y_, tol)
    return Hypergradient(flat.x.unravel(gradient), flat.y.unravel(best), flat.y.unravel(z))


def _implicit(f: Objective, g: Objective, x: Array, y: Array, tol: float) -> tuple[Array, Array, Array]:
    y = newton(lambda v: g.value(x, v), y, tol)
    f_x, f_y = f.grad(x, y)
    z = conjugate_gradients(lambda v: g.hess(x, y, v), f_y, tol=1e-12, steps=4 * y.size)
    return f_x - g.cross(x, y, z), y, z


def mefbo_residual(problem: Problem, clients: Clients, x: Any, y: Any, c: Any, nu: Any, tol: float = 1e-10) -> Array:
    """MeFBO's R(x, y) = dist(0, ∇Υ_c(x, y) + N_{X×Y}(x, y))², Υ_c = F/c + G − v_ν, with θ* solved to ``tol``.

    θ* = argmin over Y of G(x, θ) + ‖θ − y‖²/(2ν);  ∇_x Υ = ∇_x F/c + ∇_x G(x, y) − ∇_x G(x, θ*),
    ∇_y Υ = ∇_y F/c + ∇_y G(x, y) − (y − θ*)/ν. The distance is the norm of −∇Υ projected on the tangent cone.
    """
    flat, x_, y_ = _flatten(problem, x, y)
    f, g = objectives(flat, clients)

    def proximal(theta: Array) -> Array:
        return g.value(x_, theta) + jnp.vdot(theta - y_, theta - y_) / (2 * nu)

    if isinstance(problem.y_set, WholeSpace):
        theta = newton(proximal, y_, tol)
    else:
        theta = projected_descent(proximal, flat.project_y, y_, tol)
    (f_x, f_y), (g_x, g_y) = f.grad(x_, y_), g.grad(x_, y_)
    d_x = -(f_x / c + g_x - g.grad_x(x_, theta))
    d_y = -(f_y / c + g_y - (y_ - theta) / nu)
    t_x = problem.x_set.tangent(x, flat.x.unravel(d_x))
    t_y = problem.y_set.tangent(y, flat.y.unravel(d_y))
    return sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves((t_x, t_y))), jnp.zeros((), x_.dtype))


def moreau_gradient(
    problem: Minimax, clients: Clients, x: Any, y: Any, smoothness: float, tol: float = 1e-8, steps: int = 100_000
) -> Any:
    """∇Φ_{1/2L}(x) = 2L (x − x̂), Φ(x) = max_y F(x, y), for nonconvex-concave problems; L is ``smoothness``.

    x̂ is the u part of the saddle point of F(u, y) + L‖u − x‖² over X × Y, found by projected extragradient.
    """
    flat, x_, y_ = _flatten(problem, x, y)
    f, _ = objectives(flat, clients)
    step = 1 / (4 * smoothness)

    def move(at: tuple[Array, Array], by: tuple[Array, Array]) -> tuple[Array, Array]:
        d_u, d_y = f.grad(*by)
        d_u = d_u + 2 * smoothness * (by[0] - x_)
        return flat.project_x(at[0] - step * d_u), flat.project_y(at[1] + step * d_y)

    def body(state: tuple[Array, tuple[Array, Array], Array]) -> tuple[Array, tuple[Array, Array], Array]:
        count, at, _ = state
        half = move(at, at)
        moved = sum(jnp.vdot(a - b, a - b) for a, b in zip(half, at, strict=True))
        return count + 1, move(at, half), jnp.sqrt(moved) / step

    start = (jnp.int32(0), (x_, y_), jnp.asarray(jnp.inf, x_.dtype))
    _, (u, _), _ = jax.lax.while_loop(lambda s: (s[0] < steps) & (s[2] > tol), body, start)
    return flat.x.unravel(2 * smoothness * (x_ - u))


class Weighting(NamedTuple):
    """Stationarity of client weights: ∂f_0(w*(x))/∂x, ‖x − Π(x − s·gradient)‖ and that divided by s; w*(x), λ*(x)."""

    gradient: Array
    step: Array
    stationarity: Array
    w: Any
    dual: Any


def weighting_gradient(
    problem: ClientWeighting, clients: Clients, x: Array, w: Any, step: float = 1e-3, tol: float = 1e-10
) -> Weighting:
    """∂f_0(w*(x))/∂x_i = λ*ᵀ∇f_i(w*), λ* = −[Σ x_j ∇²f_j(w*)]⁻¹ ∇f_0(w*), and the projected stationarity of x."""
    flat, x_, w_ = _flatten(problem, x, w)
    g = Objective(on_everybody(flat.lower, clients.lower, x_, _key))
    f0 = _server_objective(flat, clients)
    w_ = newton(lambda v: g.value(x_, v), w_, tol)
    dual = -conjugate_gradients(lambda v: g.hess(x_, w_, v), f0.grad_y(x_, w_), tol=1e-12, steps=4 * w_.size)

    def entry(client: Array) -> Array:
        own = Objective(on_whole_set(flat.lower, clients.lower, client, _key, client))
        return jnp.vdot(dual, own.grad_y(x_, w_))

    gradient = jax.lax.map(entry, jnp.arange(clients.n))
    moved = jnp.linalg.norm(x_ - flat.project_x(x_ - step * gradient))
    return Weighting(gradient, moved, moved / step, flat.y.unravel(w_), flat.y.unravel(dual))


def weighting_moreau(
    problem: ClientWeighting, clients: Clients, x: Array, w: Any, rho: float, steps: int = 200
) -> Array:
    """ρ(x − x̂), x̂ = argmin over the simplex of f_0(w*(u)) + (ρ/2)‖u − x‖²: the theory's measure, ρ = 2L."""
    set_ = problem.x_set

    def move(_: Any, u: Array) -> Array:
        d = weighting_gradient(problem, clients, u, w).gradient + rho * (u - x)
        return set_.project(u - d / (2 * rho))

    return rho * (x - jax.lax.fori_loop(0, steps, move, x))


class Losses(eqx.Module):
    """``evaluate`` by default: the objectives on all data."""

    problem: Problem
    clients: Clients

    def __call__(self, x: Any, y: Any) -> dict[str, Array]:
        """The upper and lower loss, or the objective of a minimax problem."""
        problem, clients = self.problem, self.clients
        if isinstance(problem, ClientWeighting):
            flat, x_, y_ = _flatten(problem, x, y)
            g = on_everybody(flat.lower, clients.lower, x_, _key)
            return {"upper_loss": _server_objective(flat, clients).value(x_, y_), "lower_loss": g(x_, y_)}
        if isinstance(problem, Bilevel) and problem.lower_level == "local":
            flat, x_, _ = _flatten(problem, x, jax.tree.map(lambda leaf: leaf[0], y))

            def one(client: Array) -> tuple[Array, Array]:
                own = flat.y.ravel(jax.tree.map(lambda leaf: leaf[client], y))
                upper = on_whole_set(flat.upper, clients.upper, client, _key, client)(x_, own)
                return upper, on_whole_set(flat.lower, clients.lower, client, _key, client)(x_, own)

            upper, lower = jax.lax.map(one, jnp.arange(clients.n))
            return {"upper_loss": jnp.vdot(clients.weights, upper), "lower_loss": jnp.vdot(clients.weights, lower)}
        flat, x_, y_ = _flatten(problem, x, y)
        f, g_ = objectives(flat, clients)
        if isinstance(problem, Minimax):
            return {"objective": f.value(x_, y_)}
        return {"upper_loss": f.value(x_, y_), "lower_loss": g_.value(x_, y_)}


def objectives(flat: Flat, clients: Clients) -> tuple[Objective, Objective]:
    """F = Σ p_i f_i and G = Σ p_i g_i on all data, as functions of vectors."""
    lower = clients.upper if isinstance(flat.problem, Minimax) else clients.lower
    f = on_everybody(flat.upper, clients.upper, clients.weights, _key)
    g = on_everybody(flat.lower, lower, clients.weights, _key)
    return Objective(f), Objective(g, "grad_g")


def _server_objective(flat: Flat, clients: Clients) -> Objective:
    if clients.server is None:
        raise ValueError("clients: client weighting needs data at the server, give rk.Clients(..., server=examples)")
    return Objective(on_whole_set(flat.upper, clients.server, 0, _key, 0))


def _flatten(problem: Problem, x: Any, y: Any) -> tuple[Flat, Array, Array]:
    flat = Flat(problem, Layout.of(x, "x"), Layout.of(y, "y"))
    return flat, flat.x.ravel(x), flat.y.ravel(y)
