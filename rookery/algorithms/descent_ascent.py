"""What local descent-ascent methods share, for min over x, max over y of F(x, y) = Σ p_i f_i(x, y).

A point v and a direction d are dictionaries of vectors "x" and "y".
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from rookery.algorithm.views import Context, Local
from rookery.problem.oracles import Objective
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors, X


def point(tree: Tree) -> Vectors:
    """(x, y) of a broadcast."""
    return {"x": tree["x"], "y": tree["y"]}


def gradients(f: Objective, v: Vectors) -> Vectors:
    """(∇_x f, ∇_y f)(x, y), one batch for both."""
    f_x, f_y = f.grad(v["x"], v["y"])
    return {"x": f_x, "y": f_y}


def snapshot_gradients(f: Objective, v: Vectors, snapshot: X) -> Vectors:
    """∇_x f(x, y) and ∇_y f(x̃, y), one batch for both."""
    return {"x": f.grad_x(v["x"], v["y"]), "y": f.grad_y(snapshot, v["y"])}


def move(local: Local, v: Vectors, d: Vectors, eta_x: Any, eta_y: Any) -> Vectors:
    """x − η_x d_x and Π_Y(y + η_y d_y)."""
    t = local.round
    return {"x": v["x"] - at(eta_x, t) * d["x"], "y": local.project_y(v["y"] + at(eta_y, t) * d["y"])}


def local_steps(local: Local, v: Vectors, step: Callable[[Any, Vectors], Vectors]) -> Vectors:
    """τ times v ← step(k, v), from points whose x is in X.

    x is projected before each step, so that no gradient is taken outside; what the last step makes of it is averaged as it
    is, and the server projects the average.
    """
    end: Vectors = local.loop(lambda k, v: step(k, {**v, "x": local.project_x(v["x"])}), v)
    return end


def server_step(server: Tree, mean: Tree, gamma_x: Any, gamma_y: Any) -> Vectors:
    """v̄ + γ_v (mean v_i − v̄), v = x, y."""
    gamma = {"x": gamma_x, "y": gamma_y}
    return {v: server[v] + gamma[v] * (mean[v] - server[v]) for v in gamma}


def inside(view: Local | Context, v: Vectors) -> Vectors:
    """(Π_X(x), Π_Y(y))."""
    return {"x": view.project_x(v["x"]), "y": view.project_y(v["y"])}


def renewed(ctx: Context, snapshot: X, x: X, every: int) -> X:
    """The snapshot for the next round: x after every S-th round, else the one there is."""
    return jnp.where((ctx.round + 1) % every == 0, x, snapshot)
