"""How far from a solution: exact hypergradients and stationarity measures, on all data of all clients.

They are for evaluation and for tests, not for deployment: they see everybody's data. All are functions of pytrees, are
compiled once, and can be used inside ``evaluate``.

Each solves something inside, to a tolerance that the precision of its arguments can reach unless ``tol`` is given (see
``oracles.newton`` and ``oracles.projected_descent``). A measure whose inner solve did not converge is NaN.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.problem.clients import Clients, Split
from rookery.problem.keys import as_key
from rookery.problem.layout import Layout
from rookery.problem.oracles import Objective, Part, on_everybody, on_whole_set
from rookery.problem.problems import Bilevel, ClientWeighting, Flat, Minimax, Problem
from rookery.problem.sets import WholeSpace
from rookery.problem.solvers import conjugate_gradients, newton, projected_descent, tolerance
from rookery.typing import X, Y


def _key() -> Array:
    """Losses with randomness of their own are measured with one fixed key."""
    return as_key(0)


def _or_nan(converged: Array, tree: Any) -> Any:
    """The tree, or NaN everywhere if it was made from something that did not converge."""
    return jax.tree.map(lambda leaf: jnp.where(converged, leaf, jnp.nan), tree)


class Hypergradient(NamedTuple):
    """∇Φ(x), and the y*(x) and z*(x) it was made from (stacked over clients where each has its own lower level).

    Unless y* and z* ``converged`` the gradient is NaN.
    """

    gradient: Any
    y: Any
    z: Any
    converged: Array


def hypergradient(problem: Problem, clients: Clients, x: Any, y: Any, tol: float | None = None) -> Hypergradient:
    """The exact gradient of Φ(x) = F(x, y*(x)).

    Global lower level: ∇Φ = ∇_x F − ∇²_xy G z*, ∇²_yy G z* = ∇_y F at (x, y*(x)), all sums formed before the inverse.
    Lower level of each client's own: the p-weighted mean of the clients' own hypergradients. Minimax: ∇_x F(x, y*(x)).

    ``y`` is where the search for y*(x) starts (one start for all clients); y must be unconstrained and the lower level
    strongly convex. y* is found by Newton's method to ``tol``, z* by conjugate gradients.
    """
    if not isinstance(problem.y_set, WholeSpace):
        raise ValueError(f"hypergradient needs an unconstrained y, got y_set={problem.y_set!r}")
    if isinstance(problem, ClientWeighting):
        raise ValueError("hypergradient does not take client weighting: use weighting_gradient")
    flat, x_, y_ = _flatten(problem, x, y)
    gradient, best, z, converged = _hypergradient(flat, clients, x_, y_, _tol(tol, y_))
    unravel = flat.y.unravel if best.ndim == 1 else jax.vmap(flat.y.unravel)
    return Hypergradient(flat.x.unravel(gradient), unravel(best), unravel(z), converged)


@eqx.filter_jit
def _hypergradient(flat: Flat, clients: Clients, x: X, y: Y, tol: Array) -> tuple[Array, Array, Array, Array]:
    if not (isinstance(flat.problem, Bilevel) and flat.problem.lower_level == "local"):
        return _implicit(*objectives(flat, clients), x, y, tol)

    def one(client: Array) -> tuple[Array, Array, Array, Array]:
        f = Objective(on_whole_set(flat.upper, clients.upper, client, _key, client))
        g = Objective(on_whole_set(flat.lower, clients.lower, client, _key, client))
        return _implicit(f, g, x, y, tol)

    gradients, ys, zs, converged = jax.lax.map(one, jnp.arange(clients.n))
    return jnp.tensordot(clients.weights.astype(gradients.dtype), gradients, 1), ys, zs, converged.all()


def _implicit(f: Objective, g: Objective, x: X, y: Y, tol: Array) -> tuple[Array, Array, Array, Array]:
    best = newton(lambda v: g.value(x, v), y, tol)
    f_x, f_y = f.grad(x, best.at)
    z = conjugate_gradients(lambda v: g.hess(x, best.at, v), f_y)
    converged = best.converged & z.converged
    return _or_nan(converged, f_x - g.cross(x, best.at, z.at)), best.at, z.at, converged


def mefbo_residual(
    problem: Problem, clients: Clients, x: Any, y: Any, c: Any, nu: Any, tol: float | None = None
) -> Array:
    """MeFBO's R(x, y) = dist(0, ∇Υ_c(x, y) + N_{X×Y}(x, y))², Υ_c = F/c + G − v_ν, with θ* solved to ``tol``.

    θ* = argmin over Y of G(x, θ) + ‖θ − y‖²/(2ν);  ∇_x Υ = ∇_x F/c + ∇_x G(x, y) − ∇_x G(x, θ*),
    ∇_y Υ = ∇_y F/c + ∇_y G(x, y) − (y − θ*)/ν. The distance is the norm of −∇Υ projected on the tangent cone.
    """
    flat, x_, y_ = _flatten(problem, x, y)
    return _residual(flat, clients, x_, y_, jnp.asarray(c, x_.dtype), jnp.asarray(nu, y_.dtype), _tol(tol, y_))


@eqx.filter_jit
def _residual(flat: Flat, clients: Clients, x: X, y: Y, c: Array, nu: Array, tol: Array) -> Array:
    f, g = objectives(flat, clients)

    def proximal(theta: Array) -> Array:
        return g.value(x, theta) + jnp.vdot(theta - y, theta - y) / (2 * nu)

    if isinstance(flat.problem.y_set, WholeSpace):
        theta, converged, _ = newton(proximal, y, tol)
    else:
        theta, converged, _ = projected_descent(proximal, flat.project_y, y, tol)
    (f_x, f_y), (g_x, g_y) = f.grad(x, y), g.grad(x, y)
    d_x = -(f_x / c + g_x - g.grad_x(x, theta))
    d_y = -(f_y / c + g_y - (y - theta) / nu)
    t_x = flat.problem.x_set.tangent(flat.x.unravel(x), flat.x.unravel(d_x))
    t_y = flat.problem.y_set.tangent(flat.y.unravel(y), flat.y.unravel(d_y))
    total = sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves((t_x, t_y))), jnp.zeros((), x.dtype))
    found: Array = _or_nan(converged, total)
    return found


def moreau_gradient(
    problem: Minimax,
    clients: Clients,
    x: Any,
    y: Any,
    smoothness: float,
    tol: float | None = None,
    steps: int = 100_000,
) -> Any:
    """∇Φ_{1/2L}(x) = 2L (x − x̂), Φ(x) = max_y F(x, y), for nonconvex-concave problems; L is ``smoothness``.

    x̂ is the u part of the saddle point of F(u, y) + L‖u − x‖² over X × Y, found by projected extragradient: until a
    half step of 1/4L moves (u, y) by at most tol · max(1/4L, ‖(u, y)‖), tol being √ε by default.
    """
    flat, x_, y_ = _flatten(problem, x, y)
    return flat.x.unravel(
        _extragradient(flat, clients, x_, y_, jnp.asarray(smoothness, x_.dtype), _tol(tol, x_, 1 / 2), jnp.int32(steps))
    )


@eqx.filter_jit
def _extragradient(flat: Flat, clients: Clients, x: X, y: Y, smoothness: Array, tol: Array, steps: Array) -> Array:
    f, _ = objectives(flat, clients)
    step = 1 / (4 * smoothness)

    def move(at: tuple[Array, Array], by: tuple[Array, Array]) -> tuple[Array, Array]:
        d_u, d_y = f.grad(*by)
        d_u = d_u + 2 * smoothness * (by[0] - x)
        return flat.project_x(at[0] - step * d_u), flat.project_y(at[1] + step * d_y)

    def norm(pair: tuple[Array, Array]) -> Array:
        return jnp.sqrt(jnp.vdot(pair[0], pair[0]) + jnp.vdot(pair[1], pair[1]))

    def body(state: tuple[Array, tuple[Array, Array], Array]) -> tuple[Array, tuple[Array, Array], Array]:
        count, at, _ = state
        half = move(at, at)
        moved = norm((half[0] - at[0], half[1] - at[1])) / jnp.maximum(step, norm(at))
        return count + 1, move(at, half), moved

    start = (jnp.int32(0), (x, y), jnp.asarray(jnp.inf, x.dtype))
    _, (u, _), moved = jax.lax.while_loop(lambda s: (s[0] < steps) & (s[2] > tol), body, start)
    found: Array = _or_nan(moved <= tol, 2 * smoothness * (x - u))
    return found


class WeightingGradient(NamedTuple):
    """Stationarity of client weights: ∂f_0(w*(x))/∂x, ‖x − Π(x − s·gradient)‖ and that divided by s; w*(x), λ*(x).

    Unless w* and λ* ``converged`` the first three are NaN.
    """

    gradient: Array
    step: Array
    stationarity: Array
    w: Any
    dual: Any
    converged: Array


def weighting_gradient(
    problem: ClientWeighting, clients: Clients, x: Array, w: Any, step: float = 1e-3, tol: float | None = None
) -> WeightingGradient:
    """∂f_0(w*(x))/∂x_i = λ*ᵀ∇f_i(w*), λ* = −[Σ x_j ∇²f_j(w*)]⁻¹ ∇f_0(w*), and the projected stationarity of x."""
    flat, x_, w_ = _flatten(problem, x, w)
    gradient, w_, dual, converged, moved = _stationarity(
        flat, clients, x_, w_, jnp.asarray(step, x_.dtype), _tol(tol, w_)
    )
    return WeightingGradient(gradient, moved, moved / step, flat.y.unravel(w_), flat.y.unravel(dual), converged)


@eqx.filter_jit
def _stationarity(flat: Flat, clients: Clients, x: X, w: Y, step: Array, tol: Array) -> tuple[Array, ...]:
    found = _weighted(flat, clients, x, w, tol)
    return *found, jnp.linalg.norm(x - flat.project_x(x - step * found[0]))


def _weighted(flat: Flat, clients: Clients, x: X, w: Y, tol: Array) -> tuple[Array, Array, Array, Array]:
    """∂f_0(w*(x))/∂x, w*, λ* and whether both converged."""
    g = Objective(on_everybody(flat.lower, clients.lower, x, _key))
    w, converged, _ = newton(lambda v: g.value(x, v), w, tol)
    solved = conjugate_gradients(lambda v: g.hess(x, w, v), server_objective(flat, clients).grad_y(x, w))
    dual, converged = -solved.at, converged & solved.converged

    def entry(client: Array) -> Array:
        own = Objective(on_whole_set(flat.lower, clients.lower, client, _key, client))
        return jnp.vdot(dual, own.grad_y(x, w))

    return _or_nan(converged, jax.lax.map(entry, jnp.arange(clients.n))), w, dual, converged


def weighting_moreau(
    problem: ClientWeighting, clients: Clients, x: Array, w: Any, rho: float, steps: int = 200
) -> Array:
    """ρ(x − x̂), x̂ = argmin over the simplex of f_0(w*(u)) + (ρ/2)‖u − x‖²: the theory's measure, ρ = 2L.

    Gradient steps of 1/2ρ, until one moves u by at most ε^¾ · max(1, ‖∇‖/2ρ). Each solves for w*(u) from the last one.
    """
    flat, x_, w_ = _flatten(problem, x, w)
    return _proximal(flat, clients, x_, w_, jnp.asarray(rho, x_.dtype), jnp.int32(steps))


@eqx.filter_jit
def _proximal(flat: Flat, clients: Clients, x: X, w: Y, rho: Array, steps: Array) -> Array:
    tol = _tol(None, x)

    def body(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        count, u, w, _ = state
        gradient, w, _, _ = _weighted(flat, clients, u, w, tol)
        new = flat.project_x(u - (gradient + rho * (u - x)) / (2 * rho))
        moved = jnp.linalg.norm(new - u) / jnp.maximum(1, jnp.linalg.norm(gradient) / (2 * rho))
        return count + 1, new, w, moved

    start = (jnp.int32(0), x, w, jnp.asarray(jnp.inf, x.dtype))
    _, u, _, moved = jax.lax.while_loop(lambda s: (s[0] < steps) & (s[3] > tol), body, start)
    found: Array = _or_nan(moved <= tol, rho * (x - u))
    return found


class Losses(eqx.Module):
    """``evaluate`` by default: the objectives on all data."""

    problem: Problem
    clients: Clients

    def __call__(self, x: Any, y: Any) -> dict[str, Array]:
        """The upper and lower loss, or the objective of a minimax problem."""
        server, summed = self.parts(x, y)
        return {**server, **summed}

    def parts(
        self, x: Any, y: Any, lower: Part | None = None, upper: Part | None = None
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Those that the server computes, and those that are sums over clients: of all, or of those of one device."""
        problem, clients = self.problem, self.clients
        weights = clients.weights if lower is None else _of_part(clients.weights, clients.lower, lower)
        if isinstance(problem, ClientWeighting):
            flat, x_, y_ = _flatten(problem, x, y)
            weights = x_ if lower is None else _of_part(x_, clients.lower, lower)
            g = on_everybody(flat.lower, clients.lower, weights, _key, lower)
            return {"upper_loss": server_objective(flat, clients).value(x_, y_)}, {"lower_loss": g(x_, y_)}
        if isinstance(problem, Bilevel) and problem.lower_level == "local":
            flat, x_, _ = _flatten(problem, x, jax.tree.map(lambda leaf: leaf[0], y))
            first = 0 if lower is None else lower.first

            def one(row: Array) -> tuple[Array, Array]:
                own = flat.y.ravel(jax.tree.map(lambda leaf: leaf[row], y))
                upper = on_whole_set(flat.upper, clients.upper, row, _key, first + row)(x_, own)
                return upper, on_whole_set(flat.lower, clients.lower, row, _key, first + row)(x_, own)

            found = jax.lax.map(one, jnp.arange(clients.lower.clients))
            if lower is not None:
                real = jnp.arange(clients.lower.clients) < lower.clients
                found = jax.tree.map(lambda leaf: jnp.where(real, leaf, 0), found)
            return {}, {
                name: jnp.vdot(weights, each) for name, each in zip(("upper_loss", "lower_loss"), found, strict=True)
            }
        flat, x_, y_ = _flatten(problem, x, y)
        f = on_everybody(flat.upper, clients.upper, weights, _key, upper)
        if isinstance(problem, Minimax):
            return {}, {"objective": f(x_, y_)}
        g = on_everybody(flat.lower, clients.lower, weights, _key, lower)
        return {}, {"upper_loss": f(x_, y_), "lower_loss": g(x_, y_)}


def _of_part(values: Array, split: Split, part: Part) -> Array:
    """What a device needs of numbers that everybody has for all clients: those of its rows."""
    rows = jnp.minimum(part.first + jnp.arange(split.clients), values.shape[0] - 1)
    return jnp.where(jnp.arange(split.clients) < part.clients, values[rows], 0)


def objectives(flat: Flat, clients: Clients) -> tuple[Objective, Objective]:
    """F = Σ p_i f_i and G = Σ p_i g_i on all data, as functions of vectors."""
    lower = clients.upper if isinstance(flat.problem, Minimax) else clients.lower
    f = on_everybody(flat.upper, clients.upper, clients.weights, _key)
    g = on_everybody(flat.lower, lower, clients.weights, _key)
    return Objective(f), Objective(g, "grad_g")


def server_objective(flat: Flat, clients: Clients) -> Objective:
    """f_0 on all data of the server, as a function of vectors."""
    if clients.server is None:
        raise ValueError("clients: client weighting needs data at the server, give rk.Clients(..., server=examples)")
    return Objective(on_whole_set(flat.upper, clients.server, 0, _key, 0))


def _flatten(problem: Problem, x: Any, y: Any) -> tuple[Flat, Array, Array]:
    flat = Flat(problem, Layout.of(x, "x"), Layout.of(y, "y"))
    return flat, flat.x.ravel(x), flat.y.ravel(y)


def _tol(tol: float | None, like: Array, power: float = 3 / 4) -> Array:
    """``tol`` as an array, so that another value is not compiled anew; by default ε^power of the precision at hand."""
    return jnp.asarray(tolerance(like.dtype, power) if tol is None else tol, like.dtype)
