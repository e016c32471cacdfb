"""SUSTAIN for client weighting, with STORM on both levels or on the lower one, with a full or a random series."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Server, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import (
    check_counts,
    check_equal_weights,
    check_fraction,
    check_positive,
    check_rates,
    known,
    require,
)
from rookery.algorithms.steps import only, uniform_below
from rookery.algorithms.weighting import by_client, moved, neumann_series, own_weights, reweighted
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Weighting, X, Y

BOTH = ("", "_old")
"""The endings of (x, w) and of (x_old, w_old)."""


class DoubleMomentum(Algorithm):
    """What the three versions share: the old point, and how directions become steps. Not an algorithm by itself."""

    solves: ClassVar[tuple[str, ...]] = ("weighting",)

    eta_w: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)
    eta_x: Any = rate(0.01, "free")
    neumann_step: Any = rate(0.1, "1/L")
    beta: Any = rate(0.5, "(0, 1]")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_w", "neumann_step")
        check_counts(self, "inner")
        check_positive(self, "neumann_step")
        check_fraction(self, "beta", zero=True)

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """The clients have no weights but x; a weight β of 0 never forgets: it is for whole sets only."""
        check_equal_weights(self, clients)
        beta = known(self.beta)
        if beta is not None and not whole_sets:
            require((beta > 0).all(), self, "beta", self.beta, "in (0, 1] unless batch_size is None")

    def output(self, server: Tree, keep: Tree) -> tuple[X, Y]:
        """(x, w)."""
        return server["x"], server["w"]

    def start(self, x: X, y: Y, points: tuple[str, ...]) -> Tree:
        """Directions are those of round 0; every round starts its series anew."""
        series = {name + p: jnp.zeros_like(y) for name in ("q", "lambda") for p in points}
        old = {"x_old": x, "w_old": y, "d_x": jnp.zeros_like(x), "d_w": jnp.zeros_like(y)}
        return {"x": x, "w": y, **series, **old}

    def last_exchange(self, points: tuple[str, ...], server: Callable[[Context, Tree, Tree], Tree]) -> Exchange:
        """w and w_old down, both gradients up, and λᵀ∇f_i at the points where there is a λ; one batch for all."""

        def client(local: Local, down: Tree) -> Tree:
            f = local.g(0, "x")
            s = {"w" + p: f.grad_y(local.x0, down["w" + p]) for p in BOTH}
            return {**s, **{"slope" + p: jnp.vdot(down["lambda" + p], s["w" + p]) for p in points}}

        down = only("w", "w_old", *("lambda" + p for p in points))
        weighting: Weighting = {
            "w": own_weights(),
            "w_old": own_weights("x_old"),
            "slope": "stack",
            "slope_old": "stack",
        }
        return Exchange(down, client, server, weighting, draw="fresh")

    def stay(self, ctx: Context) -> Any:
        """1 − β, 0 in round 0."""
        return jnp.where(ctx.round == 0, 0, 1 - at(self.beta, ctx.round))

    def storm_w(self, ctx: Context, server: Tree, mean: Tree) -> Y:
        """d_w = S_w(x, w; ξ) + (1 − β)(d_w − S_w(x_old, w_old; ξ))."""
        d_w: Y = mean["w"] + self.stay(ctx) * (server["d_w"] - mean["w_old"])
        return d_w

    def storm_x(self, ctx: Context, server: Tree, mean: Tree) -> X:
        """d_x = S_x(x, w; ξ) + (1 − β)(d_x − S_x(x_old, w_old; ξ))."""
        slopes, old = by_client(ctx, mean["slope"]), by_client(ctx, mean["slope_old"])
        d_x: X = slopes + self.stay(ctx) * (server["d_x"] - old)
        return d_x

    def steps(self, ctx: Context, server: Tree, d_w: Y, d_x: X) -> Tree:
        """w ← Π(w − η_w d_w),   x ← Π_Δ(x − η_x d_x)."""
        return {
            **server,
            "d_w": d_w,
            "d_x": d_x,
            "w_old": server["w"],
            "x_old": server["x"],
            "w": moved(ctx, server["w"], d_w, self.eta_w),
            "x": reweighted(ctx, server["x"], d_x, self.eta_x),
        }


class SustainCW(DoubleMomentum):
    """SUSTAIN for client weighting: one step on w and one on x a round, both with STORM.

    Prashant Khanduri, Siliang Zeng, Mingyi Hong, Hoi-To Wai, Zhaoran Wang, Zhuoran Yang: A near-optimal algorithm for
    stochastic bilevel optimization via double-momentum. NeurIPS 2021. STORM at both levels was seen in public code; the
    federated form and the full series are defined here after section 5 of PrimalDual's paper, which has no box for it.

    Solves: client weighting; theory for strongly convex f_i.

        λ = −η_H Σ_{k=0}^{K} q_k,   q_0 = ∇f_0(w),   q_k = q_{k−1} − η_H (N/|A|)Σ_{i∈A} x_i∇²f_i(w)q_{k−1}
        S_w(x, w; ξ) = (N/|A|)Σ_{i∈A} x_i∇f_i(w; ξ),   S_x,i(x, w; ξ) = (N/|A|) λᵀ∇f_i(w; ξ) for i in A, else 0
        d_v ← S_v(x, w; ξ) + (1 − β)(d_v − S_v(x_old, w_old; ξ)),   v = w, x;   d_v = S_v(x, w; ξ) in round 0
        w ← Π(w − η_w d_w),   x ← Π_Δ(x − η_x d_x)

    with fresh active clients A in every exchange, the series at both points. The last of K + 1 exchanges gives S_w and S_x.
    Down (4K + 4)d numbers, up (2K + 2)d + 2: the PrimalDual paper counts neither the models sent nor the old point.

    Args:
        eta_x: step of x; grid {.1, .01, .001, .0001} in the vision tasks of PrimalDual's paper.
        eta_w: step of w; grid {.1, .01, .001}. SUSTAIN's own steps fall like t^(−1/3).
        neumann_step: η_H; not published.
        inner: K, the number of Hessian products; published 1, in the toy problem also 5 and 10.
        beta: weight of the new gradient, in (0, 1]; SUSTAIN's own falls like t^(−2/3).
    """

    name: ClassVar[str] = "SUSTAIN-CW"
    paper: ClassVar[str] = "SUSTAIN"
    status: ClassVar[str] = "D"

    def init(self, x: X, y: Y) -> Tree:
        """The old point is the start."""
        return self.start(x, y, BOTH)

    def round(self) -> tuple[Stage, ...]:
        """K exchanges of products, one of gradients and slopes."""
        return (*neumann_series(self.inner, self.neumann_step, BOTH), self.last_exchange(BOTH, self.server))

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """STORM for w and for x, and their steps."""
        return self.steps(ctx, server, self.storm_w(ctx, server, mean), self.storm_x(ctx, server, mean))


class SustainPlainCW(DoubleMomentum):
    """SUSTAIN for client weighting without STORM on x, for half the Hessian products.

    Prashant Khanduri, Siliang Zeng, Mingyi Hong, Hoi-To Wai, Zhaoran Wang, Zhuoran Yang: A near-optimal algorithm for
    stochastic bilevel optimization via double-momentum. NeurIPS 2021. Defined here: it comes nearest to the (K + 1)d numbers
    that PrimalDual's paper counts for SUSTAIN.

    Solves: client weighting; theory for strongly convex f_i.

        λ, S_w, S_x as in :class:`SustainCW`, the series at (x, w) only
        d_w ← S_w(x, w; ξ) + (1 − β)(d_w − S_w(x_old, w_old; ξ)),   d_x = S_x(x, w; ξ);   d_w = S_w(x, w; ξ) in round 0
        w ← Π(w − η_w d_w),   x ← Π_Δ(x − η_x d_x)

    Down (2K + 3)d numbers, up (K + 2)d + 1.

    Args:
        eta_x, eta_w, neumann_step, inner, beta: as in :class:`SustainCW`; β is that of w alone.
    """

    name: ClassVar[str] = "SUSTAIN-CW_plain"
    paper: ClassVar[str] = "SUSTAIN"
    status: ClassVar[str] = "D"

    def init(self, x: X, y: Y) -> Tree:
        """The old point is the start."""
        return self.start(x, y, ("",))

    def round(self) -> tuple[Stage, ...]:
        """K exchanges of products, one of gradients and slopes."""
        return (*neumann_series(self.inner, self.neumann_step), self.last_exchange(("",), self.server))

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """STORM for w, plain slopes for x, and their steps."""
        return self.steps(ctx, server, self.storm_w(ctx, server, mean), by_client(ctx, mean["slope"]))


class SustainRandomCW(DoubleMomentum):
    """SUSTAIN for client weighting with SUSTAIN's own estimate of λ: a random single term of the series.

    Prashant Khanduri, Siliang Zeng, Mingyi Hong, Hoi-To Wai, Zhaoran Wang, Zhuoran Yang: A near-optimal algorithm for
    stochastic bilevel optimization via double-momentum. NeurIPS 2021. The estimate was seen in public code; the federated
    form is defined here.

    Solves: client weighting; theory for strongly convex f_i.

        λ = −K η_H q_p,   p uniform on 0..K−1, drawn once a round for both points;   q_k as in :class:`SustainCW`
        S_w, S_x, d_w, d_x and both steps as in :class:`SustainCW`

    p products instead of K; the mean over p is the series of K terms. With K = 1 there is none, and λ = −η_H ∇f_0(w).

    Args:
        eta_x, eta_w, neumann_step, inner, beta: as in :class:`SustainCW`; K = ``inner`` is the number of terms.
    """

    name: ClassVar[str] = "SUSTAIN-CW_random"
    paper: ClassVar[str] = "SUSTAIN"
    status: ClassVar[str] = "D"

    def init(self, x: X, y: Y) -> Tree:
        """The old point is the start."""
        return self.start(x, y, BOTH)

    def round(self) -> tuple[Stage, ...]:
        """p exchanges of products, one of gradients and slopes."""
        products = neumann_series(self.inner - 1, self.neumann_step, BOTH, when=self.wanted)
        return (*products, Server(self.last_term), self.last_exchange(BOTH, self.server))

    def wanted(self, server: Tree, ctx: Context) -> Any:
        """Whether the product number index + 1 is one of the p."""
        return ctx.index < uniform_below(ctx, "neumann", self.inner)

    def last_term(self, ctx: Context, server: Tree) -> Tree:
        """λ = −K η_H q_p."""
        scale = self.inner * at(self.neumann_step, ctx.round)
        return {**server, **{"lambda" + p: -scale * server["q" + p] for p in BOTH}}

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """STORM for w and for x, and their steps."""
        return self.steps(ctx, server, self.storm_w(ctx, server, mean), self.storm_x(ctx, server, mean))
