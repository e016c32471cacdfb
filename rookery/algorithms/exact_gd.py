"""GD-CW: the hypergradient of client weighting with the Hessian formed and inverted."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Exchange, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_rates
from rookery.algorithms.steps import only
from rookery.algorithms.weighting import WeightsAndModel, by_client, descent, own_weights, reweighted
from rookery.typing import Tree, Weighting, X, Y


class ExactGD(WeightsAndModel):
    """Gradient descent with exact Hessians, the reference of the PrimalDual paper on its toy problem.

    Efficient weighting and optimization in federated learning: a primal-dual approach. Anonymous authors, under double-blind
    review. Section 5.1 ("GD"), which has no box; the federated form is defined here.

    Solves: client weighting; theory for strongly convex f_i.

        w ← Π(w − η_w (N/|A|)Σ_{i∈A} x_i∇f_i(w; ξ_k))                  K times, with fresh active clients A
        λ = −[(N/|A|)Σ_{i∈A} x_i∇²f_i(w; ψ)]⁻¹ ∇f_0(w)                 ψ independent of ξ
        x ← Π_Δ(x − η_x g_x),   g_x,i = (N/|A|) λᵀ∇f_i(w; ξ) for i in A, else 0

    without damping: under noise the matrix need not be positive definite. The gradients of the last exchange are sent one
    by one, so that the server can form λᵀ∇f_i; with d² + d numbers from each client it is for small models only.

    Args:
        eta_x, eta_w: steps; not published.
        inner: K; published 1, 5 and 10.
    """

    name: ClassVar[str] = "GD-CW"
    paper: ClassVar[str] = "PrimalDual"
    status: ClassVar[str] = "D"

    eta_w: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)
    eta_x: Any = rate(0.01, "free")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_w")
        check_counts(self, "inner")

    def init(self, x: X, y: Y) -> Tree:
        """The weights and the model."""
        return {"x": x, "w": y}

    def round(self) -> tuple[Stage, ...]:
        """K exchanges of gradients, one of Hessians and gradients."""
        weighting: Weighting = {"hessian": own_weights(), "gradient": "stack"}
        last = Exchange(only("w"), self.curvature, self.solve, weighting, draw="fresh")
        return (*descent(self.inner, self.eta_w), last)

    def curvature(self, local: Local, down: Tree) -> Tree:
        """∇²f_i(w; ψ) and ∇f_i(w; ξ)."""
        hessian = local.g(self.inner, "z").hessian(local.x0, down["w"])
        return {"hessian": hessian, "gradient": local.g(self.inner, "x").grad_y(local.x0, down["w"])}

    def solve(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """λ, the slopes and the step on x."""
        dual = -jnp.linalg.solve(mean["hessian"], ctx.f().grad_y(server["x"], server["w"]))
        return {**server, "x": reweighted(ctx, server["x"], by_client(ctx, mean["gradient"] @ dual), self.eta_x)}
