"""Client weighting by a primal-dual method."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_constant, check_counts, check_equal_weights, check_positive, check_rates
from rookery.algorithms.steps import ball, only
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Weighting


class PrimalDual(Algorithm):
    """PrimalDual (Algorithms 1 and 2 of its paper): learns the client weights x with the model w and a dual λ.

    On the augmented Lagrangian L_x(w, λ) = f_0(w) + λᵀΣ x_i∇f_i(w) + ΓΣ x_i f_i(w), K times, with fresh active clients
    A, s_i = ∇f_i(w) and r_i = ∇²f_i(w)λ on independent batches:

        w ← w − η_w(∇f_0(w) + (N/|A|)Σ x_i(r_i + Γ s_i)),   λ ← Π_Λ(λ + η_λ (N/|A|)Σ x_i s_i)

    then x ← Π_Δ(x − η_x g_x), g_x,i = (N/|A|) λᵀs_i for i in A, at the (w, λ) before the K-th update.

    Args:
        eta_x, eta_w, eta_lambda: steps.
        penalty: Γ.
        inner: K.
        radius: of the ball Λ.
        random_k: take g_x at a uniformly random inner step, as in the theory, instead of the last.
    """

    solves: ClassVar[tuple[str, ...]] = ("weighting",)
    paper: ClassVar[str] = "PrimalDual"
    status: ClassVar[str] = "P"

    eta_x: Any = 0.01
    eta_w: Any = 0.1
    eta_lambda: Any = 0.1
    penalty: Any = 1.0
    inner: int = eqx.field(static=True, default=1)
    radius: Any = float("inf")
    random_k: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_w", "eta_lambda", "penalty")
        check_constant(self, "penalty")
        check_positive(self, "radius")
        check_counts(self, "inner")

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """The clients have no weights but x."""
        check_equal_weights(self, clients)

    def init(self, x: Array, y: Array) -> Tree:
        """λ starts at 0."""
        return {"x": x, "w": y, "lambda": jnp.zeros_like(y), **({"g_x": jnp.zeros_like(x)} if self.random_k else {})}

    def output(self, server: Tree, keep: Tree) -> tuple[Array, Array]:
        """(x, w)."""
        return server["x"], server["w"]

    def round(self) -> tuple[Stage, ...]:
        """K exchanges; the last (with ``random_k`` each) also asks every active client for the number λᵀs_i."""
        weighting: Weighting = {"w": _own_weight, "lambda": _own_weight, "slope": "stack"}
        plain = Exchange(only("w", "lambda"), self._client, self._server, weighting, draw="fresh")
        asking = Exchange(
            only("w", "lambda"), self._client_with_slope, self._server_with_slope, weighting, draw="fresh"
        )
        if self.random_k:
            return (Repeat(self.inner, (asking,)),)
        return (asking,) if self.inner == 1 else (Repeat(self.inner - 1, (plain,)), asking)

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return self._gradients(local, down, local.index), keep, carry

    def _client_with_slope(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        up = self._gradients(local, down, self._number(local.index))
        return {**up, "slope": jnp.vdot(down["lambda"], up["lambda"])}, keep, carry

    def _gradients(self, local: Local, down: Tree, k: Any) -> Tree:
        w = down["w"]
        s = local.g(k, "x").grad_y(local.x0, w)  # a client's loss does not see the weights: any x will do
        r = local.g(k, "z").hess(local.x0, w, down["lambda"])
        return {"w": r + self.penalty * s, "lambda": s}

    def _number(self, index: Any) -> Any:
        """The inner step of an exchange that asks for λᵀs_i."""
        return index if self.random_k else self.inner - 1

    def _server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return self._step(ctx, server, mean, ctx.index)

    def _step(self, ctx: Context, server: Tree, mean: Tree, k: Any) -> Tree:
        t = ctx.round
        w, dual = server["w"], server["lambda"]
        g_w = ctx.f(k).grad_y(server["x"], w) + mean["w"]
        w_new = ctx.project_y(w - at(self.eta_w, t) * g_w)
        return {**server, "w": w_new, "lambda": ball(dual + at(self.eta_lambda, t) * mean["lambda"], self.radius)}

    def _server_with_slope(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        k = self._number(ctx.index)
        slopes = jnp.where(ctx.mask, mean["slope"] * (ctx.n / ctx.active).astype(mean["slope"].dtype), 0)
        g_x = jnp.zeros_like(server["x"]).at[ctx.ids].add(slopes)
        new = self._step(ctx, server, mean, k)
        if self.random_k:
            chosen = jax.random.randint(ctx.key("inner step"), (), 0, self.inner, jnp.int32)
            g_x = jnp.where(k == chosen, g_x, server["g_x"])
            new = {**new, "g_x": g_x}
        x = ctx.project_x(server["x"] - at(self.eta_x, ctx.round) * g_x)
        return {**new, "x": jnp.where(k == self.inner - 1, x, server["x"])}


def _own_weight(server: Tree, ids: Array) -> Array:
    return server["x"][ids]
