"""What several families share: functions with a line of mathematics each.

A point and its directions are dictionaries by variable, v = x, y, z; so are the rates of a step. D_x, D_y and D_z are
the directions of the linear-system approach, Φ_i is a client's own hypergradient.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Repeat, Stage
from rookery.algorithm.rate import Rates, Scales
from rookery.algorithm.views import Context, Local
from rookery.problem.keys import Stream
from rookery.problem.oracles import Objective, neumann
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors, X, Y

# --- directions -------------------------------------------------------------------------------------------------------


class Batches(NamedTuple):
    """The five minibatches of one local step: f and g for D_x, g for D_y, f and g for D_z."""

    f_x: Objective
    g_x: Objective
    g_y: Objective
    f_z: Objective
    g_z: Objective


def batches(local: Local, step: Any, tie: bool = False, ahead: int = 0, times: int = 1) -> Batches:
    """Five independent minibatches, or one of f and one of g for all three directions (``tie``)."""
    f = local.f(step, "x", ahead=ahead, times=times)
    g = local.g(step, "x", ahead=ahead, times=times)
    if tie:
        return Batches(f, g, g, f, g)
    g_y = local.g(step, "y", ahead=ahead, times=times)
    f_z = local.f(step, "z", ahead=ahead, times=times)
    g_z = local.g(step, "z", ahead=ahead, times=times)
    return Batches(f, g, g_y, f_z, g_z)


def directions(b: Batches, v: Vectors) -> Vectors:
    """The three directions at the point v = (x, y, z).

    D_x = ∇_x f − ∇²_xy g z,   D_y = ∇_y g,   D_z = ∇²_yy g z − ∇_y f
    """
    x, y, z = v["x"], v["y"], v["z"]
    if b.g_x is b.g_y:  # tied batches: everything of g in one pass
        (f_x, f_y), (g_y, g_xy_z, g_yy_z) = b.f_x.grad(x, y), b.g_x.second(x, y, z)
        return {"x": f_x - g_xy_z, "y": g_y, "z": g_yy_z - f_y}
    return {
        "x": b.f_x.grad_x(x, y) - b.g_x.cross(x, y, z),
        "y": b.g_y.grad_y(x, y),
        "z": b.g_z.hess(x, y, z) - b.f_z.grad_y(x, y),
    }


def local_hypergradient(
    local: Local, step: Any, x: X, y: Y, neumann_step: Any, products: int, ahead: int = 0, times: int = 1
) -> X:
    """Φ_i(x, y; ξ) = ∇_x f − ∇²_xy g · (τ Σ_{q=0}^{Q} ∏ (I − τ∇²_yy g) ∇_y f), with Q Hessian-vector products.

    ξ_f is shared by ∇_x f and ∇_y f; ξ_g and ξ_1, ..., ξ_Q are independent of it and of each other.
    """
    f_x, f_y = local.f(step, "x", ahead=ahead, times=times).grad(x, y)

    def hess(q: Any, a: Y) -> Y:
        return local.g(step, "neumann", number=q, ahead=ahead, times=times).hess(x, y, a)

    s = neumann(hess, f_y, neumann_step, products, local.repeat)
    return f_x - local.g(step, "x", ahead=ahead, times=times).cross(x, y, s)


def own_directions(
    local: Local, step: Any, neumann_step: Any, products: int, ahead: int = 0, times: int = 1
) -> Callable[[Vectors], Vectors]:
    """On one draw, as a function of the point (x, y):  D_x = Φ_i(x, y; ξ),  D_y = ∇_y g_i(x, y; ζ)."""
    g = local.g(step, "y", ahead=ahead, times=times)

    def both(v: Vectors) -> Vectors:
        d_x = local_hypergradient(local, step, v["x"], v["y"], neumann_step, products, ahead, times)
        return {"x": d_x, "y": g.grad_y(v["x"], v["y"])}

    return both


# --- momenta ----------------------------------------------------------------------------------------------------------


def storm(new: Vectors, old: Vectors, d: Vectors, beta: Vectors) -> Vectors:
    """D(new; ξ) + (1 − β)(d − D(old; ξ)), for each variable; ``new`` and ``old`` are taken on the same ξ."""
    return {v: new[v] + (1 - beta[v]) * (d[v] - old[v]) for v in d}


def moving_average(new: Vectors, d: Vectors, beta: Vectors) -> Vectors:
    """β D(new; ξ) + (1 − β) d, for each variable."""
    return {v: beta[v] * new[v] + (1 - beta[v]) * d[v] for v in d}


def clock(local: Local, k: Any) -> Any:
    """s = tτ + k: local steps counted from the run's start, k = 1, ..., τ in a round."""
    return local.round * local.max_tau + k


def cube_root(delta: Any, offset: Any, s: Any) -> Any:
    """δ_s = δ/(u + s)^{1/3}."""
    return delta / (offset + s) ** (1 / 3)


def first_is_one(rates: Rates, scales: Scales) -> Any:
    """δ = (u + 1)^{1/3}, so that δ_1 = 1: the schedule only slows down, and steps and momenta keep their scales."""
    return (rates["offset"] + 1) ** (1 / 3)


def with_momenta(v: Vectors) -> Vectors:
    """A point v and directions d_v = 0 beside it, as the server holds them."""
    return {**v, **{f"d_{name}": jnp.zeros_like(each) for name, each in v.items()}}


def momenta(held: Tree, v: Vectors) -> Vectors:
    """The directions d_v by variable."""
    return {name: held[f"d_{name}"] for name in v}


def as_momenta(d: Vectors) -> Vectors:
    """Directions by the names d_v: a part x of an upload is taken for what became of the x that was broadcast."""
    return {f"d_{name}": each for name, each in d.items()}


def receive_momenta(ctx: Context, server: Tree, mean: Tree) -> Tree:
    """The server takes the means as its directions d_v."""
    return {**server, **mean}


# --- steps ------------------------------------------------------------------------------------------------------------


def in_round(t: Any, **rates: Any) -> dict[str, Any]:
    """The rates of round t by variable."""
    return {v: at(rate, t) for v, rate in rates.items()}


def descend(v: Vectors, d: Vectors, eta: dict[str, Any]) -> Vectors:
    """v − η_v d_v, for each variable that has a rate."""
    return {name: v[name] - rate * d[name] for name, rate in eta.items()}


def feasible(here: Local | Context, v: Vectors) -> Vectors:
    """x and y projected on X and Y, anything else as it is."""
    sets = {"x": here.project_x, "y": here.project_y}
    return {n: sets[n](each) if n in sets else each for n, each in v.items()}


def ball(z: Y, radius: Any) -> Y:
    """z·min(1, r/‖z‖), the projection on the ball; an infinite radius (which Optax's projection does not take) is none."""
    finfo: Any = jnp.finfo  # has no types
    return z * jnp.minimum(1, radius / jnp.maximum(jnp.linalg.norm(z), finfo(z.dtype).tiny))


def in_ball(v: Vectors, radius: Any) -> Vectors:
    """P_r(z), x and y as they are."""
    return {**v, "z": ball(v["z"], radius)}


def receive(ctx: Context, server: Tree, mean: Tree) -> Tree:
    """The server takes the means, x and y among them projected on X and Y."""
    return {**server, **feasible(ctx, mean)}


def sgd_steps(local: Local, number: Any, x: X, y: Y, beta: Any) -> Y:
    """y_i ← y_i − β ∇_y g(x, y_i; ζ), τ_i times from y; ``number`` counts such loops of a round."""

    def step(k: Any, y_i: Y) -> Tree:
        y_i = local.project_y(y_i)
        return y_i - beta * local.g(number * local.max_tau + k, "y").grad_y(x, y_i)

    made: Y = local.loop(step, y)
    return made


def svrg_steps(local: Local, number: Any, x: X, y: Y, q: Y, beta: Any) -> Y:
    """y_i ← y_i − β(∇_y g(x, y_i; ζ) − ∇_y g(x, y; ζ) + q), τ_i times from y; ``number`` as for ``sgd_steps``."""

    def step(k: Any, y_i: Y) -> Tree:
        g, y_i = local.g(number * local.max_tau + k, "y"), local.project_y(y_i)
        return y_i - beta * (g.grad_y(x, y_i) - g.grad_y(x, y) + q)

    made: Y = local.loop(step, y)
    return made


# --- what else the rounds are made of ---------------------------------------------------------------------------------


def repeated(count: int, stage: Stage) -> tuple[Stage, ...]:
    """A stage ``count`` times; once without a loop, which would only cost time to compile."""
    return () if count == 0 else (stage,) if count == 1 else (Repeat(count, (stage,)),)


def times(a: Any, v: dict[str, Any]) -> dict[str, Any]:
    """a·v."""
    return {name: a * each for name, each in v.items()}


def add(u: Vectors, v: Vectors) -> Vectors:
    """u + v."""
    return {name: u[name] + v[name] for name in u}


def zeros(v: Vectors) -> Vectors:
    """0, shaped like v."""
    return {name: jnp.zeros_like(each) for name, each in v.items()}


def only(*names: str) -> Callable[[Tree], Tree]:
    """The ``down`` that broadcasts these parts of the server's state."""
    return lambda server: {name: server[name] for name in names}


def uniform_below(ctx: Context, name: str, count: int) -> Array:
    """A number of the round, uniform on 0..count−1: the same whenever it is asked for."""
    return Stream(ctx.key(name)).integers(1, count, 0, name)[0]
