"""What several families share: the directions of the linear-system approach, and local hypergradients."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from rookery.algorithm.views import Local
from rookery.problem.oracles import Objective, neumann
from rookery.typing import Vectors


class Batches(NamedTuple):
    """The five minibatches of one local step: f and g for D_x, g for D_y, f and g for D_z."""

    f_x: Objective
    g_x: Objective
    g_y: Objective
    f_z: Objective
    g_z: Objective


def batches(local: Local, step: Any, tie: bool = False, ahead: int = 0, times: int = 1) -> Batches:
    """Five independent minibatches, or one of f and one of g for all three directions (``tie``)."""
    at = {"ahead": ahead, "times": times}
    f, g = local.f(step, "x", **at), local.g(step, "x", **at)
    if tie:
        return Batches(f, g, g, f, g)
    return Batches(f, g, local.g(step, "y", **at), local.f(step, "z", **at), local.g(step, "z", **at))


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
    local: Local, step: Any, x: Array, y: Array, neumann_step: Any, products: int, ahead: int = 0, times: int = 1
) -> Array:
    """Φ_i(x, y; ξ) = ∇_x f − ∇²_xy g · (τ Σ_{q=0}^{Q} ∏ (I − τ∇²_yy g) ∇_y f), with Q Hessian-vector products.

    ξ_f is shared by ∇_x f and ∇_y f; ξ_g and ξ_1, ..., ξ_Q are independent of it and of each other.
    """
    at = {"ahead": ahead, "times": times}
    f_x, f_y = local.f(step, "x", **at).grad(x, y)

    def hess(q: Any, a: Array) -> Array:
        return local.g(step, "neumann", number=q, ahead=ahead, times=times).hess(x, y, a)

    s = neumann(hess, f_y, neumann_step, products, local.repeat)
    return f_x - local.g(step, "x", **at).cross(x, y, s)


def storm(new: Vectors, old: Vectors, d: Vectors, beta: Vectors) -> Vectors:
    """D(new; ξ) + (1 − β)(d − D(old; ξ)), for each variable; ``new`` and ``old`` are taken on the same ξ."""
    return {v: new[v] + (1 - beta[v]) * (d[v] - old[v]) for v in d}


def feasible(local: Local, v: Vectors) -> Vectors:
    """The point at which a client takes its directions: x and y projected on X and Y, anything else as it is."""
    sets = {"x": local.project_x, "y": local.project_y}
    return {n: sets[n](each) if n in sets else each for n, each in v.items()}


def ball(z: Array, radius: Any) -> Array:
    """z·min(1, r/‖z‖), the projection on the ball; an infinite radius (which Optax's projection does not take) is none."""
    return z * jnp.minimum(1, radius / jnp.maximum(jnp.linalg.norm(z), jnp.finfo(z.dtype).tiny))


def add(u: Vectors, v: Vectors) -> Vectors:
    """u + v."""
    return {name: u[name] + v[name] for name in u}


def zeros(v: Vectors) -> Vectors:
    """0, shaped like v."""
    return {name: jnp.zeros_like(each) for name, each in v.items()}


def only(*names: str) -> Any:
    """The ``down`` that broadcasts these parts of the server's state."""
    return lambda server: {name: server[name] for name in names}
