"""What methods of client weighting share: min over x of f_0(w*(x)), w*(x) = argmin Σ x_i f_i(w), f_0 held by the server.

x are the weights of the N clients, w is the model; the active clients A are drawn anew in every exchange.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Server, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_equal_weights
from rookery.algorithms.steps import only, repeated
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Weighting, X, Y


class WeightsAndModel(Algorithm):
    """A method whose server holds the weights "x" and the model "w". Not an algorithm by itself."""

    solves: ClassVar[tuple[str, ...]] = ("weighting",)

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """The clients have no weights but x."""
        check_equal_weights(self, clients)

    def output(self, server: Tree, keep: Tree) -> tuple[X, Y]:
        """(x, w)."""
        return server["x"], server["w"]


def own_weights(name: str = "x") -> Callable[[Tree, Array], Array]:
    """The weighting by x_i, which gives (N/|A|)Σ_{i∈A} x_i v_i; or by the old x."""
    return lambda server, ids: server[name][ids]


def by_client(ctx: Context, rows: Array) -> Array:
    """(N/|A|)·(what client i sent) in row i, 0 for those who are not active."""
    weights = jnp.where(ctx.mask, ctx.n / ctx.active, 0).astype(rows.dtype)
    return jnp.zeros((ctx.n, *rows.shape[1:]), rows.dtype).at[ctx.ids].add((weights * rows.T).T)


def reweighted(ctx: Context, x: X, g_x: X, eta_x: Any) -> X:
    """Π_Δ(x − η_x g_x)."""
    return ctx.project_x(x - at(eta_x, ctx.round) * g_x)


def moved(ctx: Context, w: Y, g_w: Y, eta_w: Any) -> Y:
    """Π(w − η_w g_w)."""
    return ctx.project_y(w - at(eta_w, ctx.round) * g_w)


def gradient(local: Local, down: Tree) -> Tree:
    """∇f_i(w; ξ_k), k the pass of the enclosing ``Repeat``."""
    return {"w": local.g(local.index, "x").grad_y(local.x0, down["w"])}  # any x: f_i does not see it


def descent(count: int, eta_w: Any) -> tuple[Stage, ...]:
    """``count`` exchanges w ← Π(w − η_w (N/|A|)Σ_{i∈A} x_i∇f_i(w; ξ_k))."""

    def step(ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "w": moved(ctx, server["w"], mean["w"], eta_w)}

    return repeated(count, Exchange(only("w"), gradient, step, own_weights(), draw="fresh"))


def neumann_series(
    count: int,
    eta: Any,
    points: tuple[str, ...] = ("",),
    when: Callable[[Tree, Context], Any] | None = None,
) -> tuple[Stage, ...]:
    """λ ≈ −[Σ x_i∇²f_i(w)]⁻¹∇f_0(w) by ``count`` exchanges of products with fresh batches.

        q_0 = ∇f_0(w),   q_k = q_{k−1} − η (N/|A|)Σ_{i∈A} x_i∇²f_i(w; ψ_k)q_{k−1},   λ = −η Σ_k q_k

    At (x, w), and with points=("", "_old") also at (x_old, w_old), on the same batches and active clients. The server's
    state has q and lambda with these endings. Products for which ``when`` is false are left out.
    """

    def first(ctx: Context, server: Tree) -> Tree:
        f, new = ctx.f(), dict(server)
        for p in points:
            q = f.grad_y(server["x"], server["w" + p])
            new |= {"q" + p: q, "lambda" + p: -at(eta, ctx.round) * q}
        return new

    def product(local: Local, down: Tree) -> Tree:
        f = local.g(local.index, "z")
        return {"q" + p: f.hess(local.x0, down["w" + p], down["q" + p]) for p in points}

    def following(ctx: Context, server: Tree, mean: Tree) -> Tree:
        step, new = at(eta, ctx.round), dict(server)
        for p in points:
            q = server["q" + p] - step * mean["q" + p]
            new |= {"q" + p: q, "lambda" + p: server["lambda" + p] - step * q}
        return new

    down = only(*(name + p for name in ("w", "q") for p in points))
    weighting: Weighting = {"q" + p: own_weights("x" + p) for p in points}
    return Server(first), *repeated(count, Exchange(down, product, following, weighting, draw="fresh", when=when))
