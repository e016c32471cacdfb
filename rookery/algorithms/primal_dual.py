"""PrimalDual: the weights of clients learned with a dual variable in the place of a solved linear system.

Efficient weighting and optimization in federated learning: a primal-dual approach. Anonymous authors, under double-blind
review; the text does not name a venue or a year.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_constant, check_counts, check_equal_weights, check_positive, check_rates
from rookery.algorithms.steps import ball, only, repeated
from rookery.algorithms.weighting import by_client, own_weights, reweighted
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Weighting, X, Y

SUMS: Weighting = {"w": own_weights(), "lambda": own_weights(), "slope": "stack"}
"""(N/|A|)Σ x_i of what the active clients send, and their slopes one by one."""


class AugmentedLagrangian(Algorithm):
    """What both versions share: a step on L_x(w, λ), descent in w and ascent in λ. Not an algorithm by itself."""

    solves: ClassVar[tuple[str, ...]] = ("weighting",)

    eta_x: Any = rate(0.01, "free")
    eta_w: Any = rate(0.1, "1/L", times=lambda rates, scales: 1 / (1 + rates["penalty"]))
    eta_lambda: Any = rate(0.1, "1/L", times=lambda rates, scales: 1 + rates["penalty"])
    penalty: Any = rate(1.0, "ratio")
    inner: int = eqx.field(static=True, default=1)
    radius: Any = float("inf")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_w", "eta_lambda", "penalty")
        check_constant(self, "penalty")
        check_positive(self, "radius")
        check_counts(self, "inner")

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """The clients have no weights but x."""
        check_equal_weights(self, clients)

    def output(self, server: Tree, keep: Tree) -> tuple[X, Y]:
        """(x, w)."""
        return server["x"], server["w"]

    def gradients(self, local: Local, down: Tree, k: Any) -> Tree:
        """s_i = ∇f_i(w; ξ), r_i = ∇²f_i(w; ψ)λ, ξ and ψ independent: r_i + Γ s_i for w and s_i for λ."""
        w = down["w"]
        s = local.g(k, "x").grad_y(local.x0, w)  # a client's loss does not see the weights: any x will do
        r = local.g(k, "z").hess(local.x0, w, down["lambda"])
        return {"w": r + self.penalty * s, "lambda": s}

    def with_slope(self, local: Local, down: Tree, k: Any) -> Tree:
        """The same and the number λᵀs_i."""
        up = self.gradients(local, down, k)
        return {**up, "slope": jnp.vdot(down["lambda"], up["lambda"])}

    def step(self, ctx: Context, server: Tree, mean: Tree, k: Any) -> Tree:
        """w ← Π(w − η_w(∇f_0(w) + Σ)),   λ ← Π_Λ(λ + η_λ Σ)."""
        t, w, dual = ctx.round, server["w"], server["lambda"]
        g_w = ctx.f(k).grad_y(server["x"], w) + mean["w"]
        w_new = ctx.project_y(w - at(self.eta_w, t) * g_w)
        return {**server, "w": w_new, "lambda": ball(dual + at(self.eta_lambda, t) * mean["lambda"], self.radius)}


class PrimalDual(AugmentedLagrangian):
    """PrimalDual: learns the client weights x with the model w and a dual λ.

    Efficient weighting and optimization in federated learning: a primal-dual approach. Anonymous authors, under double-blind
    review. Algorithm 1 (clients) and Algorithm 2 (server).

    Solves: client weighting, min over x of f_0(w*(x)), w*(x) = argmin Σ x_i f_i(w); theory for strongly convex f_i.
    Paper → here:  T → rounds;  Active_{t,k} → A, drawn anew in every exchange;  D_λ → radius;  Γ → penalty;  K → inner.

    On L_x(w, λ) = f_0(w) + λᵀΣ x_i∇f_i(w) + ΓΣ x_i f_i(w), K times, with s_i = ∇f_i(w; ξ) and r_i = ∇²f_i(w; ψ)λ:

        w ← w − η_w(∇f_0(w) + (N/|A|)Σ_{i∈A} x_i(r_i + Γ s_i)),   λ ← Π_Λ(λ + η_λ (N/|A|)Σ_{i∈A} x_i s_i)   (lines 6–9)
        x ← Π_Δ(x − η_x g_x),   g_x,i = (N/|A|) λᵀs_i for i in A, else 0,   (w, λ) before the K-th update   (lines 11–13)

    Args:
        eta_x: step of x; grid {.1, .01, .001, .0001} in the vision tasks.
        eta_w: step of w; grid {.1, .01, .001}.
        eta_lambda: step of λ; not published.
        penalty: Γ; published 1. Theory: above (D_λ L_2 + L_1)/μ.
        inner: K; published 1, in the toy problem also 5 and 10.
        radius: of the ball Λ; not published. Theory: at least the largest ‖λ*(x)‖.

    Published besides: batches of 64, clients active with probability 1, .9 and .5.
    """

    name: ClassVar[str] = "PrimalDual"
    paper: ClassVar[str] = "PrimalDual"
    status: ClassVar[str] = "P"

    def init(self, x: X, y: Y) -> Tree:
        """λ starts at 0."""
        return {"x": x, "w": y, "lambda": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """K exchanges; the last also asks every active client for the number λᵀs_i."""
        plain = Exchange(only("w", "lambda"), self.client, self.server, SUMS, draw="fresh")
        last = Exchange(only("w", "lambda"), self.last_client, self.last_server, SUMS, draw="fresh")
        return (*repeated(self.inner - 1, plain), last)

    def client(self, local: Local, down: Tree) -> Tree:
        """s_i and r_i (Algorithm 1)."""
        return self.gradients(local, down, local.index)

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """w and λ (lines 6–9)."""
        return self.step(ctx, server, mean, ctx.index)

    def last_client(self, local: Local, down: Tree) -> Tree:
        """s_i, r_i and λᵀs_i."""
        return self.with_slope(local, down, self.inner - 1)

    def last_server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """w and λ, and x by the slopes at the old ones (lines 6–13)."""
        new = self.step(ctx, server, mean, self.inner - 1)
        return {**new, "x": reweighted(ctx, server["x"], by_client(ctx, mean["slope"]), self.eta_x)}


class PrimalDualRandom(AugmentedLagrangian):
    """PrimalDual whose weights move by the slopes of a uniformly random inner step, as its theory has it.

    Efficient weighting and optimization in federated learning: a primal-dual approach. Anonymous authors, under double-blind
    review. Algorithm 2 as in Theorems 1 and 2: g_x at (w, λ)_{t,k̂}, k̂ uniform on 1..K, not at k = K.

    Solves: client weighting; theory for strongly convex f_i.
    Paper → here: as in :class:`PrimalDual`.

        (w, λ) as in :class:`PrimalDual`, K times;   g_x,i = (N/|A|) λᵀs_i for i in A at inner step k̂, before its update
        x ← Π_Δ(x − η_x g_x)                         after the K-th inner step

    Every exchange asks for the slopes, for nobody but the server knows k̂.

    Args:
        eta_x, eta_w, eta_lambda, penalty, inner, radius: as in :class:`PrimalDual`, with the same published values; with
            ``inner`` = 1 the two are the same.
    """

    name: ClassVar[str] = "PrimalDual_random"
    paper: ClassVar[str] = "PrimalDual"
    status: ClassVar[str] = "P"

    def init(self, x: X, y: Y) -> Tree:
        """λ starts at 0; g_x is set anew by every round."""
        return {"x": x, "w": y, "lambda": jnp.zeros_like(y), "g_x": jnp.zeros_like(x)}

    def round(self) -> tuple[Stage, ...]:
        """K exchanges, each with the numbers λᵀs_i."""
        step = Exchange(only("w", "lambda"), self.client, self.server, SUMS, draw="fresh")
        return (Repeat(self.inner, (step,)),)

    def client(self, local: Local, down: Tree) -> Tree:
        """s_i, r_i and λᵀs_i."""
        return self.with_slope(local, down, local.index)

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """w and λ; the slopes if this is the step k̂; x if it is the last one."""
        chosen = jax.random.randint(ctx.key("inner step"), (), 0, self.inner, jnp.int32)
        g_x = jnp.where(ctx.index == chosen, by_client(ctx, mean["slope"]), server["g_x"])
        x = reweighted(ctx, server["x"], g_x, self.eta_x)
        new = self.step(ctx, server, mean, ctx.index)
        return {**new, "g_x": g_x, "x": jnp.where(ctx.index == self.inner - 1, x, server["x"])}
