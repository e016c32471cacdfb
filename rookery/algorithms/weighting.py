"""Client weighting by other means than a dual variable: what PrimalDual is compared with.

All move the model by w ← Π(w − η_w (N/|A|)Σ x_i∇f_i(w)), |A| of the N clients active, new ones in every exchange. They
differ in the x step: ExactGD, FedNest-CW and SUSTAIN-CW estimate λ = −[Σ x_i∇²f_i(w)]⁻¹∇f_0(w) and the slopes λᵀ∇f_i(w) of
f_0(w*(x)); RFHO-CW differentiates the steps on w themselves; AFL climbs towards the worst client; others leave x as it is.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Server, Stage
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
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Weighting


class FixedWeights(Algorithm):
    """The baseline "opt": the weights stay at x0, which may be those of an oracle.

    K times, with fresh active clients A:   w ← Π(w − η_w (N/|A|)Σ x_i∇f_i(w; ξ))

    Args:
        eta_w: step.
        inner: K.
    """

    solves: ClassVar[tuple[str, ...]] = ("weighting",)
    paper: ClassVar[str] = "PrimalDual"
    status: ClassVar[str] = "P"

    eta_w: Any = 0.1
    inner: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        check_rates(self, "eta_w")
        check_counts(self, "inner")

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """The clients have no weights but x."""
        check_equal_weights(self, clients)

    def init(self, x: Array, y: Array) -> Tree:
        """The weights and the model."""
        return {"x": x, "w": y}

    def output(self, server: Tree, keep: Tree) -> tuple[Array, Array]:
        """(x, w)."""
        return server["x"], server["w"]

    def round(self) -> tuple[Stage, ...]:
        """K exchanges: w down, the client's gradient up."""
        return self._descent(self.inner)

    def _descent(self, count: int) -> tuple[Stage, ...]:
        return _times(count, Exchange(only("w"), self._gradient, self._move, _own(), draw="fresh"))

    def _gradient(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return {"w": local.g(local.index, "x").grad_y(local.x0, down["w"])}, keep, carry  # any x: f_i does not see it

    def _move(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "w": ctx.project_y(server["w"] - at(self.eta_w, ctx.round) * mean["w"])}


class AverageWeights(FixedWeights):
    """The baseline "avg": ``FixedWeights`` with x = 1/N, whatever x0 is."""

    def init(self, x: Array, y: Array) -> Tree:
        """Equal weights."""
        return {"x": jnp.full_like(x, 1 / x.size), "w": y}


class ValidationOnly(FixedWeights):
    """The baseline "val": gradient steps on the server's own data, without any exchange.

    K times:   w ← Π(w − η_w ∇f_0(w; ξ))

    Args:
        eta_w: step.
        inner: K.
    """

    def round(self) -> tuple[Stage, ...]:
        """K steps of the server alone."""
        return _times(self.inner, Server(self._alone))

    def _alone(self, ctx: Context, server: Tree) -> Tree:
        return self._move(ctx, server, {"w": ctx.f(ctx.index).grad_y(server["x"], server["w"])})


class _LearnedWeights(FixedWeights):
    """Steps on the weights as well."""

    eta_x: Any = 0.01

    def __check_init__(self) -> None:
        check_rates(self, "eta_x")

    def _reweight(self, ctx: Context, server: Tree, g_x: Array) -> Tree:
        return {**server, "x": ctx.project_x(server["x"] - at(self.eta_x, ctx.round) * g_x)}


class AFL(_LearnedWeights):
    """AFL: min over w, max over x of Σ x_i f_i(w), so that the WORST client gains weight; f_0 is not used.

    K times, with fresh active clients A:   w ← Π(w − η_w (N/|A|)Σ x_i∇f_i(w; ξ)),  then with the A and ξ of the last step

        x ← Π_Δ(x + η_x ℓ),   ℓ_i = (N/|A|) f_i(w; ξ) for i in A, 0 for others, at the w before the last step

    Args:
        eta_x, eta_w: steps.
        inner: K; AFL itself is K = 1.
        average: the solution's model is the mean of the w after rounds 1, ..., t, not the last w.
    """

    paper: ClassVar[str] = "AFL"
    status: ClassVar[str] = "K, C"

    average: bool = eqx.field(static=True, default=False)

    def init(self, x: Array, y: Array) -> Tree:
        """The mean is that of the rounds made."""
        return {**super().init(x, y), **({"w_mean": y} if self.average else {})}

    def output(self, server: Tree, keep: Tree) -> tuple[Array, Array]:
        """(x, w), or with the mean of all w."""
        return server["x"], server["w_mean" if self.average else "w"]

    def round(self) -> tuple[Stage, ...]:
        """K exchanges; the last also asks every active client for its loss."""
        weighting: Weighting = {"w": _own(), "loss": "stack"}
        last = Exchange(only("w"), self._gradient_and_loss, self._move_both, weighting, draw="fresh")
        return (*self._descent(self.inner - 1), last)

    def _gradient_and_loss(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        f, w = local.g(self.inner - 1, "x"), down["w"]
        return {"w": f.grad_y(local.x0, w), "loss": f.value(local.x0, w)}, keep, carry

    def _move_both(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        new = self._reweight(ctx, self._move(ctx, server, mean), -_by_client(ctx, mean["loss"]))
        if self.average:
            new["w_mean"] = server["w_mean"] + (new["w"] - server["w_mean"]) / (ctx.round + 1)
        return new


class ExactGD(_LearnedWeights):
    """Gradient descent with exact Hessians, the reference of the PrimalDual paper on its toy problem.

    K steps on w as in ``FixedWeights``; then, with fresh active clients A and independent batches ξ, ψ,

        λ = −[(N/|A|)Σ x_i∇²f_i(w; ψ)]⁻¹ ∇f_0(w),   x ← Π_Δ(x − η_x g_x),   g_x,i = (N/|A|) λᵀ∇f_i(w; ξ) for i in A

    without damping: under noise the matrix need not be positive definite. The gradients of the last exchange are sent one
    by one, so that the server can form λᵀ∇f_i; with d² + d numbers from each client it is for small models only.

    Args:
        eta_x, eta_w: steps.
        inner: K.
    """

    status: ClassVar[str] = "D"

    def round(self) -> tuple[Stage, ...]:
        """K + 1 exchanges."""
        weighting: Weighting = {"hessian": _own(), "gradient": "stack"}
        last = Exchange(only("w"), self._curvature, self._solve, weighting, draw="fresh")
        return (*self._descent(self.inner), last)

    def _curvature(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        hessian = local.g(self.inner, "z").hessian(local.x0, down["w"])
        return {"hessian": hessian, "gradient": local.g(self.inner, "x").grad_y(local.x0, down["w"])}, keep, carry

    def _solve(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        dual = -jnp.linalg.solve(mean["hessian"], ctx.f().grad_y(server["x"], server["w"]))
        return self._reweight(ctx, server, _by_client(ctx, mean["gradient"] @ dual))


class _Series(_LearnedWeights):
    """λ = −η_H Σ_{k=0}^{K} q_k by K exchanges of products, q_0 = ∇f_0(w), q_k = q_{k−1} − η_H (N/|A|)Σ x_i∇²f_i(w)q_{k−1}.

    At the point (x, w), and where a subclass says so also at (x_old, w_old), on the same batches and active clients.
    """

    neumann_step: Any = 0.1

    def __check_init__(self) -> None:
        check_positive(self, "neumann_step")
        check_rates(self, "neumann_step")

    def init(self, x: Array, y: Array) -> Tree:
        """The vectors of the series are part of the state, but every round starts it anew."""
        return {"x": x, "w": y, **{name + p: jnp.zeros_like(y) for name in ("q", "lambda") for p in self._points}}

    @property
    def _points(self) -> tuple[str, ...]:
        return ("",)

    def _series(self) -> tuple[Stage, ...]:
        return Server(self._first), *_times(self.inner, self._hop())

    def _hop(self) -> Exchange:
        down = only(*(name + p for name in ("w", "q") for p in self._points))
        weighting: Weighting = {"q" + p: _own("x" + p) for p in self._points}
        return Exchange(down, self._product, self._next, weighting, draw="fresh")

    def _first(self, ctx: Context, server: Tree) -> Tree:
        f, new = ctx.f(), dict(server)
        for p in self._points:
            q = f.grad_y(server["x"], server["w" + p])
            new |= {"q" + p: q, "lambda" + p: -at(self.neumann_step, ctx.round) * q}
        return new

    def _product(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        f = local.g(local.index, "z")
        return {"q" + p: f.hess(local.x0, down["w" + p], down["q" + p]) for p in self._points}, keep, carry

    def _next(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        step, new = at(self.neumann_step, ctx.round), dict(server)
        for p in self._points:
            q = server["q" + p] - step * mean["q" + p]
            new |= {"q" + p: q, "lambda" + p: server["lambda" + p] - step * q}
        return new


class FedNestCW(_Series):
    """FedNest for client weighting: steps on w, then a Neumann series that starts anew from ∇f_0 in every round.

    K steps on w as in ``FixedWeights``; then K products and the slopes, all with fresh active clients and batches:

        q_0 = ∇f_0(w),   q_k = q_{k−1} − η_H (N/|A|)Σ x_i∇²f_i(w)q_{k−1},   λ = −η_H Σ_{k=0}^{K} q_k
        x ← Π_Δ(x − η_x g_x),   g_x,i = (N/|A|) λᵀ∇f_i(w) for i in A

    2K + 1 exchanges: λ is known only after the last product, so that the slopes (one number up) take one more than the
    2K of the PrimalDual paper's table; and new clients need w beside q: down (3K + 2)d numbers, up 2Kd + 1.

    Args:
        eta_x, eta_w: steps.
        neumann_step: η_H, below 2 over the largest eigenvalue of Σ x_i∇²f_i.
        inner: K.
    """

    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "D"

    def round(self) -> tuple[Stage, ...]:
        """K exchanges of gradients, K of products, one of slopes."""
        last = Exchange(only("w", "lambda"), self._slope, self._step, "stack", draw="fresh")
        return (*self._descent(self.inner), *self._series(), last)

    def _slope(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        s = local.g(self.inner, "x").grad_y(local.x0, down["w"])
        return {"slope": jnp.vdot(down["lambda"], s)}, keep, carry

    def _step(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return self._reweight(ctx, server, _by_client(ctx, mean["slope"]))


class SustainCW(_Series):
    """SUSTAIN for client weighting: one step on w and one on x a round, both with STORM.

    With λ from a Neumann series of K products as in ``FedNestCW`` and fresh active clients A in every exchange:

        S_w(x, w; ξ) = (N/|A|)Σ x_i∇f_i(w; ξ),   S_x,i(x, w; ξ) = (N/|A|) λᵀ∇f_i(w; ξ) for i in A
        d_v ← S_v(x, w; ξ) + (1 − β)(d_v − S_v(x_old, w_old; ξ)),  v = w, x;   d_v = S_v(x, w; ξ) in round 0
        w ← Π(w − η_w d_w),   x ← Π_Δ(x − η_x d_x)

    The last of K + 1 exchanges gives S_w and S_x. Down (4K + 4)d numbers, up (2K + 2)d + 2; with x_momentum="plain" down
    (2K + 3)d, up (K + 2)d + 1: the PrimalDual paper counts neither the models sent nor the old point.

    Args:
        eta_x, eta_w: steps; SUSTAIN's own fall like t^(−1/3).
        neumann_step: η_H.
        inner: K, the number of Hessian products.
        beta: weight of the new gradient, in (0, 1]; SUSTAIN's own falls like t^(−2/3).
        x_momentum: "storm", or "plain" (d_x = S_x) for half the products.
        neumann: "full": the series of ``FedNestCW``; "random": SUSTAIN's own single term, λ = −K η_H q_p with p uniform on
            0..K−1, drawn once a round for both points: p products instead of K.
    """

    paper: ClassVar[str] = "SUSTAIN"
    status: ClassVar[str] = "D"

    beta: Any = 0.5
    x_momentum: Literal["storm", "plain"] = eqx.field(static=True, default="storm")
    neumann: Literal["full", "random"] = eqx.field(static=True, default="full")

    def __check_init__(self) -> None:
        check_fraction(self, "beta", zero=True)
        require(self.x_momentum in ("storm", "plain"), self, "x_momentum", self.x_momentum, "'storm' or 'plain'")
        require(self.neumann in ("full", "random"), self, "neumann", self.neumann, "'full' or 'random'")

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """A weight of 0 never forgets: it is for whole sets only."""
        super().check(flat, clients, steps, whole_sets)
        beta = known(self.beta)
        if beta is not None and not whole_sets:
            require((beta > 0).all(), self, "beta", self.beta, "in (0, 1] unless batch_size is None")

    def init(self, x: Array, y: Array) -> Tree:
        """The directions are those of round 0."""
        old = {"x_old": x, "w_old": y, "d_x": jnp.zeros_like(x), "d_w": jnp.zeros_like(y)}
        return {**super().init(x, y), **old}

    @property
    def _points(self) -> tuple[str, ...]:
        return ("", "_old") if self.x_momentum == "storm" else ("",)

    def round(self) -> tuple[Stage, ...]:
        """K exchanges of products, one of gradients and slopes."""
        down = only("w", "w_old", *("lambda" + p for p in self._points))
        weighting: Weighting = {"w": _own(), "w_old": _own("x_old"), "slope": "stack", "slope_old": "stack"}
        return (*self._series(), Exchange(down, self._both, self._step, weighting, draw="fresh"))

    def _series(self) -> tuple[Stage, ...]:
        if self.neumann == "full":
            return super()._series()
        hop = replace(self._hop(), when=self._wanted)
        return Server(self._first), *_times(self.inner - 1, hop), Server(self._last_term)

    def _wanted(self, server: Tree, ctx: Context) -> Any:
        """Whether the product number index + 1 is one of the p."""
        return ctx.index < uniform_below(ctx, "neumann", self.inner)

    def _last_term(self, ctx: Context, server: Tree) -> Tree:
        scale = self.inner * at(self.neumann_step, ctx.round)
        return {**server, **{"lambda" + p: -scale * server["q" + p] for p in self._points}}

    def _both(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        f = local.g(0, "x")
        s = {"w" + p: f.grad_y(local.x0, down["w" + p]) for p in ("", "_old")}
        return {**s, **{"slope" + p: jnp.vdot(down["lambda" + p], s["w" + p]) for p in self._points}}, keep, carry

    def _step(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        stay = jnp.where(ctx.round == 0, 0, 1 - at(self.beta, ctx.round))
        d_w = mean["w"] + stay * (server["d_w"] - mean["w_old"])
        d_x = _by_client(ctx, mean["slope"])
        if self.x_momentum == "storm":
            d_x = d_x + stay * (server["d_x"] - _by_client(ctx, mean["slope_old"]))
        new = {**server, "d_x": d_x, "d_w": d_w, "x_old": server["x"], "w_old": server["w"]}
        return self._reweight(ctx, self._move(ctx, new, {"w": d_w}), d_x)


class RfhoCW(_LearnedWeights):
    """RFHO for client weighting: the derivative with respect to x of f_0(w_K), w_K the end of K steps on w.

    A round goes on from the current w and goes back over its own K steps only: what RFHO's authors call truncated reverse.

    w_{k+1} = w_k − η_w (N/|A|)Σ x_i∇f_i(w_k; ξ_k), k = 0, ..., K−1, then x ← Π_Δ(x − η_x g_x) with, in reverse,

        a = ∇f_0(w_K);   for k = K−1, ..., 0, with fresh active clients but the batches ξ_k:
        g_x,i += −η_w (N/|A|) aᵀ∇f_i(w_k; ξ_k) for i in A,   a ← a − η_w (N/|A|)Σ x_i∇²f_i(w_k; ξ_k)a

    (2K exchanges: down 3Kd numbers, since new active clients need w_k once more; up 2Kd + K), or forward, in "real time",

        Z ← Z − η_w (N/|A|)(Σ x_i∇²f_i(w_k; ξ_k)Z + [∇f_i(w_k; ξ_k) or 0]_i),  with each step on w;   g_x = Zᵀ∇f_0(w_K)

    (K exchanges of (N + 1)d numbers down and up, N products a client), Z kept from round to round. The projection on the
    model's set, if any, is not differentiated.

    Args:
        eta_x, eta_w: steps.
        inner: K.
        mode: "reverse" or "forward".
    """

    paper: ClassVar[str] = "RFHO"
    status: ClassVar[str] = "D"

    mode: Literal["reverse", "forward"] = eqx.field(static=True, default="reverse")

    def __check_init__(self) -> None:
        require(self.mode in ("reverse", "forward"), self, "mode", self.mode, "'reverse' or 'forward'")

    def init(self, x: Array, y: Array) -> Tree:
        """Forward: Z = 0, one row a client. Reverse: the last K points, and a and g_x, which every round starts anew."""
        if self.mode == "forward":
            return {"x": x, "w": y, "Z": jnp.zeros((x.size, y.size), y.dtype)}
        path = jnp.zeros((self.inner, y.size), y.dtype)
        return {"x": x, "w": y, "path": path, "a": jnp.zeros_like(y), "g_x": jnp.zeros_like(x)}

    def round(self) -> tuple[Stage, ...]:
        """K steps on w, and in reverse K exchanges to go back."""
        weighting: Weighting = {"a": _own(), "Z": _own(), "slope": "stack", "gradient": "stack"}
        if self.mode == "forward":
            step = Exchange(only("w", "Z"), self._tangents, self._move_with_tangents, weighting, draw="fresh")
            return *_times(self.inner, step), Server(self._forward_step)
        back = Exchange(_last_point, self._adjoint, self._go_back, weighting, draw="fresh")
        return *self._descent(self.inner), Server(self._turn), *_times(self.inner, back), Server(self._reverse_step)

    # reverse

    def _move(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        new = super()._move(ctx, server, mean)
        if self.mode == "reverse":
            new["path"] = jnp.roll(server["path"], -1, axis=0).at[-1].set(server["w"])
        return new

    def _turn(self, ctx: Context, server: Tree) -> Tree:
        return {**server, "a": ctx.f().grad_y(server["x"], server["w"]), "g_x": jnp.zeros_like(server["g_x"])}

    def _adjoint(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        f, w, a = local.g(self.inner - 1 - local.index, "x"), down["w"], down["a"]
        return {"slope": jnp.vdot(a, f.grad_y(local.x0, w)), "a": f.hess(local.x0, w, a)}, keep, carry

    def _go_back(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        eta = at(self.eta_w, ctx.round)
        g_x = server["g_x"] - eta * _by_client(ctx, mean["slope"])
        return {**server, "g_x": g_x, "a": server["a"] - eta * mean["a"], "path": jnp.roll(server["path"], 1, axis=0)}

    def _reverse_step(self, ctx: Context, server: Tree) -> Tree:
        return self._reweight(ctx, server, server["g_x"])

    # forward

    def _tangents(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        f, w, Z = local.g(local.index, "x"), down["w"], down["Z"]

        def column(i: Any, products: Array) -> Array:
            return products.at[i].set(f.hess(local.x0, w, Z[i]))

        products = local.repeat(Z.shape[0], column, jnp.zeros_like(Z))
        return {"gradient": f.grad_y(local.x0, w), "Z": products}, keep, carry

    def _move_with_tangents(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        gradients = _by_client(ctx, mean["gradient"])
        new = self._move(ctx, server, {"w": server["x"] @ gradients})
        return {**new, "Z": server["Z"] - at(self.eta_w, ctx.round) * (mean["Z"] + gradients)}

    def _forward_step(self, ctx: Context, server: Tree) -> Tree:
        return self._reweight(ctx, server, server["Z"] @ ctx.f().grad_y(server["x"], server["w"]))


def _own(name: str = "x") -> Callable[[Tree, Array], Array]:
    """The weighting x_i, or that by the old x."""
    return lambda server, ids: server[name][ids]


def _by_client(ctx: Context, rows: Array) -> Array:
    """(N/|A|)·(what client i sent) in row i, 0 for those who are not active."""
    weights = jnp.where(ctx.mask, ctx.n / ctx.active, 0).astype(rows.dtype)
    return jnp.zeros((ctx.n, *rows.shape[1:]), rows.dtype).at[ctx.ids].add((weights * rows.T).T)


def _last_point(server: Tree) -> Tree:
    return {"w": server["path"][-1], "a": server["a"]}


def _times(count: int, step: Stage) -> tuple[Stage, ...]:
    """A step ``count`` times; once without a loop, which would only cost time to compile."""
    return () if count == 0 else (step,) if count == 1 else (Repeat(count, (step,)),)
