"""FedNest for client weighting."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Exchange, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_positive, check_rates
from rookery.algorithms.steps import only
from rookery.algorithms.weighting import WeightsAndModel, by_client, descent, neumann_series, reweighted
from rookery.typing import Tree, X, Y


class FedNestCW(WeightsAndModel):
    """FedNest for client weighting: steps on w, then a Neumann series that starts anew from ∇f_0 in every round.

    Davoud Ataee Tarzanagh, Mingchen Li, Christos Thrampoulidis, Samet Oymak: FedNest: federated bilevel, minimax, and
    compositional optimization. ICML 2022. The form for client weighting is defined here after section 5 of PrimalDual's
    paper, which has no box for it.

    Solves: client weighting; theory for strongly convex f_i.

        w ← Π(w − η_w (N/|A|)Σ_{i∈A} x_i∇f_i(w))                                                K times
        q_0 = ∇f_0(w),   q_k = q_{k−1} − η_H (N/|A|)Σ_{i∈A} x_i∇²f_i(w)q_{k−1},   λ = −η_H Σ_{k=0}^{K} q_k
        x ← Π_Δ(x − η_x g_x),   g_x,i = (N/|A|) λᵀ∇f_i(w) for i in A, else 0

    all with fresh active clients A and batches. 2K + 1 exchanges: λ is known only after the last product, so that the slopes
    (one number up) take one more than the 2K of the PrimalDual paper's count; and new clients need w beside q: down
    (3K + 2)d numbers, up 2Kd + 1.

    Args:
        eta_x: step of x; grid {.1, .01, .001, .0001} in the vision tasks of PrimalDual's paper.
        eta_w: step of w; grid {.1, .01, .001}.
        neumann_step: η_H, below 2 over the largest eigenvalue of Σ x_i∇²f_i; not published.
        inner: K; published 1, in the toy problem also 5 and 10.
    """

    name: ClassVar[str] = "FedNest-CW"
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "D"

    eta_w: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)
    eta_x: Any = rate(0.01, "free")
    neumann_step: Any = rate(0.1, "1/L")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_w", "neumann_step")
        check_counts(self, "inner")
        check_positive(self, "neumann_step")

    def init(self, x: X, y: Y) -> Tree:
        """The vectors of the series are part of the state, but every round starts it anew."""
        return {"x": x, "w": y, "q": jnp.zeros_like(y), "lambda": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """K exchanges of gradients, K of products, one of slopes."""
        last = Exchange(only("w", "lambda"), self.slope, self.step, "stack", draw="fresh")
        return (*descent(self.inner, self.eta_w), *neumann_series(self.inner, self.neumann_step), last)

    def slope(self, local: Local, down: Tree) -> Tree:
        """λᵀ∇f_i(w)."""
        s = local.g(self.inner, "x").grad_y(local.x0, down["w"])
        return {"slope": jnp.vdot(down["lambda"], s)}

    def step(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The step on x."""
        return {**server, "x": reweighted(ctx, server["x"], by_client(ctx, mean["slope"]), self.eta_x)}
