"""The baselines "opt", "avg" and "val" of PrimalDual's paper: weights that do not move."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Server, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context
from rookery.algorithms.checks import check_counts, check_rates
from rookery.algorithms.steps import repeated
from rookery.algorithms.weighting import WeightsAndModel, descent, moved
from rookery.typing import Tree, X, Y


class FixedWeights(WeightsAndModel):
    """The baseline "opt": the weights stay at x0, which may be those of an oracle.

    Efficient weighting and optimization in federated learning: a primal-dual approach. Anonymous authors, under double-blind
    review. Section 5.2.

    Solves: client weighting; f_0 is not used.

        w ← Π(w − η_w (N/|A|)Σ_{i∈A} x_i∇f_i(w; ξ))     K times, with fresh active clients A

    Args:
        eta_w: step; grid {.1, .01, .001}.
        inner: K; published 1.

    Published besides: x0 = (.5, .3, .2, 0, ..., 0), the shares of the labels; batches of 64.
    """

    name: ClassVar[str] = "opt"
    paper: ClassVar[str] = "PrimalDual"
    status: ClassVar[str] = "P"

    eta_w: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        check_rates(self, "eta_w")
        check_counts(self, "inner")

    def init(self, x: X, y: Y) -> Tree:
        """The weights and the model."""
        return {"x": x, "w": y}

    def round(self) -> tuple[Stage, ...]:
        """K exchanges: w down, the client's gradient up."""
        return descent(self.inner, self.eta_w)


class AverageWeights(WeightsAndModel):
    """The baseline "avg": equal weights x = 1/N, whatever x0 is.

    Efficient weighting and optimization in federated learning: a primal-dual approach. Anonymous authors, under double-blind
    review. Section 5.2.

    Solves: client weighting; f_0 is not used.

        w ← Π(w − η_w (1/|A|)Σ_{i∈A} ∇f_i(w; ξ))     K times, with fresh active clients A

    Args:
        eta_w: step; grid {.1, .01, .001}.
        inner: K; published 1.
    """

    name: ClassVar[str] = "avg"
    paper: ClassVar[str] = "PrimalDual"
    status: ClassVar[str] = "P"

    eta_w: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        check_rates(self, "eta_w")
        check_counts(self, "inner")

    def init(self, x: X, y: Y) -> Tree:
        """Equal weights."""
        return {"x": jnp.full_like(x, 1 / x.size), "w": y}

    def round(self) -> tuple[Stage, ...]:
        """K exchanges: w down, the client's gradient up."""
        return descent(self.inner, self.eta_w)


class ValidationOnly(WeightsAndModel):
    """The baseline "val": gradient steps on the server's own data, without any exchange.

    Efficient weighting and optimization in federated learning: a primal-dual approach. Anonymous authors, under double-blind
    review. Section 5.2.

    Solves: client weighting; the clients' data are not used.

        w ← Π(w − η_w ∇f_0(w; ξ))     K times

    Args:
        eta_w: step; grid {.1, .01, .001}.
        inner: K; published 1.
    """

    name: ClassVar[str] = "val"
    paper: ClassVar[str] = "PrimalDual"
    status: ClassVar[str] = "P"

    eta_w: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        check_rates(self, "eta_w")
        check_counts(self, "inner")

    def init(self, x: X, y: Y) -> Tree:
        """The weights, which do nothing, and the model."""
        return {"x": x, "w": y}

    def round(self) -> tuple[Stage, ...]:
        """K steps of the server alone."""
        return repeated(self.inner, Server(self.step))

    def step(self, ctx: Context, server: Tree) -> Tree:
        """One step on f_0."""
        g_w = ctx.f(ctx.index).grad_y(server["x"], server["w"])
        return {**server, "w": moved(ctx, server["w"], g_w, self.eta_w)}
