"""RFHO for client weighting: the steps on the model are differentiated, in reverse or forward."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Exchange, Server, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_rates
from rookery.algorithms.steps import only, repeated
from rookery.algorithms.weighting import (
    WeightsAndModel,
    by_client,
    gradient,
    moved,
    own_weights,
    reweighted,
)
from rookery.problem.schedules import at
from rookery.typing import Tree, Weighting, X, Y


class RfhoCW(WeightsAndModel):
    """RFHO for client weighting, in reverse: the derivative with respect to x of f_0(w_K), w_K the end of K steps on w.

    Luca Franceschi, Michele Donini, Paolo Frasconi, Massimiliano Pontil: Forward and reverse gradient-based hyperparameter
    optimization. ICML 2017. The form for client weighting is defined here after section 5 of PrimalDual's paper, whose count
    of 2Kd numbers only the reverse mode has.

    Solves: client weighting.

        w_{k+1} = Π(w_k − η_w (N/|A|)Σ_{i∈A} x_i∇f_i(w_k; ξ_k))                          k = 0, ..., K−1
        a = ∇f_0(w_K);   for k = K−1, ..., 0, with fresh active clients but the batches ξ_k:
            g_x,i −= η_w (N/|A|) aᵀ∇f_i(w_k; ξ_k) for i in A,   a ← a − η_w (N/|A|)Σ_{i∈A} x_i∇²f_i(w_k; ξ_k)a
        x ← Π_Δ(x − η_x g_x)

    A round goes on from the current w and goes back over its own K steps only: what RFHO's authors call truncated reverse.
    The projection on the model's set, if any, is not differentiated. 2K exchanges: down 3Kd numbers, since new active
    clients need w_k once more; up 2Kd + K.

    Args:
        eta_x: step of x; grid {.1, .01, .001, .0001} in the vision tasks of PrimalDual's paper.
        eta_w: step of w; grid {.1, .01, .001}.
        inner: K; published 1, in the toy problem also 5 and 10.
    """

    name: ClassVar[str] = "RFHO-CW"
    paper: ClassVar[str] = "RFHO"
    status: ClassVar[str] = "D"

    eta_w: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)
    eta_x: Any = rate(0.01, "free")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_w")
        check_counts(self, "inner")

    def init(self, x: X, y: Y) -> Tree:
        """The last K points, and a and g_x, which every round starts anew."""
        path = jnp.zeros((self.inner, y.size), y.dtype)
        return {"x": x, "w": y, "path": path, "a": jnp.zeros_like(y), "g_x": jnp.zeros_like(x)}

    def round(self) -> tuple[Stage, ...]:
        """K exchanges forth, K back."""
        forth = Exchange(only("w"), gradient, self.move, own_weights(), draw="fresh")
        weighting: Weighting = {"a": own_weights(), "slope": "stack"}
        back = Exchange(self.last_point, self.adjoint, self.go_back, weighting, draw="fresh")
        return *repeated(self.inner, forth), Server(self.turn), *repeated(self.inner, back), Server(self.reweight)

    def move(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The step on w; the path keeps where it started."""
        path = jnp.roll(server["path"], -1, axis=0).at[-1].set(server["w"])
        return {**server, "w": moved(ctx, server["w"], mean["w"], self.eta_w), "path": path}

    def turn(self, ctx: Context, server: Tree) -> Tree:
        """a = ∇f_0(w_K), g_x = 0."""
        return {**server, "a": ctx.f().grad_y(server["x"], server["w"]), "g_x": jnp.zeros_like(server["g_x"])}

    def last_point(self, server: Tree) -> Tree:
        """w_k and a."""
        return {"w": server["path"][-1], "a": server["a"]}

    def adjoint(self, local: Local, down: Tree) -> Tree:
        """aᵀ∇f_i(w_k; ξ_k) and ∇²f_i(w_k; ξ_k)a."""
        f, w, a = local.g(self.inner - 1 - local.index, "x"), down["w"], down["a"]
        return {"slope": jnp.vdot(a, f.grad_y(local.x0, w)), "a": f.hess(local.x0, w, a)}

    def go_back(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """g_x and a, and the point before this one comes last in the path."""
        eta = at(self.eta_w, ctx.round)
        g_x = server["g_x"] - eta * by_client(ctx, mean["slope"])
        return {**server, "g_x": g_x, "a": server["a"] - eta * mean["a"], "path": jnp.roll(server["path"], 1, axis=0)}

    def reweight(self, ctx: Context, server: Tree) -> Tree:
        """The step on x."""
        return {**server, "x": reweighted(ctx, server["x"], server["g_x"], self.eta_x)}


class RfhoForwardCW(WeightsAndModel):
    """RFHO for client weighting, forward: the derivative Z of w with respect to x is carried along with the steps on w.

    Luca Franceschi, Michele Donini, Paolo Frasconi, Massimiliano Pontil: Forward and reverse gradient-based hyperparameter
    optimization. ICML 2017. The "real-time" mode that the acronym names and that PrimalDual's paper describes in words; the
    form for client weighting is defined here.

    Solves: client weighting.

        Z ← Z − η_w (N/|A|)(Σ_{i∈A} x_i∇²f_i(w; ξ_k)Z + [∇f_i(w; ξ_k) for i in A, else 0]_i)     K times, together with
        w ← Π(w − η_w (N/|A|)Σ_{i∈A} x_i∇f_i(w; ξ_k))                                          both at the old w
        x ← Π_Δ(x − η_x Zᵀ∇f_0(w))

    Z is kept from round to round. The projection on the model's set, if any, is not differentiated. K exchanges of (N + 1)d
    numbers down and up, N products a client.

    Args:
        eta_x, eta_w, inner: as in :class:`RfhoCW`, with the same published values.
    """

    name: ClassVar[str] = "RFHO-CW_forward"
    paper: ClassVar[str] = "RFHO"
    status: ClassVar[str] = "D"

    eta_w: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)
    eta_x: Any = rate(0.01, "free")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_w")
        check_counts(self, "inner")

    def init(self, x: X, y: Y) -> Tree:
        """Z = 0, one row a client."""
        return {"x": x, "w": y, "Z": jnp.zeros((x.size, y.size), y.dtype)}

    def round(self) -> tuple[Stage, ...]:
        """K exchanges."""
        weighting: Weighting = {"Z": own_weights(), "gradient": "stack"}
        step = Exchange(only("w", "Z"), self.tangents, self.move, weighting, draw="fresh")
        return *repeated(self.inner, step), Server(self.reweight)

    def tangents(self, local: Local, down: Tree) -> Tree:
        """∇f_i(w; ξ_k) and ∇²f_i(w; ξ_k)Z, row by row."""
        f, w, Z = local.g(local.index, "x"), down["w"], down["Z"]

        def row(i: Any, products: Array) -> Array:
            return products.at[i].set(f.hess(local.x0, w, Z[i]))

        products = local.repeat(Z.shape[0], row, jnp.zeros_like(Z))
        return {"gradient": f.grad_y(local.x0, w), "Z": products}

    def move(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The step on w and that on its derivative."""
        gradients = by_client(ctx, mean["gradient"])
        Z = server["Z"] - at(self.eta_w, ctx.round) * (mean["Z"] + gradients)
        return {**server, "w": moved(ctx, server["w"], server["x"] @ gradients, self.eta_w), "Z": Z}

    def reweight(self, ctx: Context, server: Tree) -> Tree:
        """The step on x."""
        g_x = server["Z"] @ ctx.f().grad_y(server["x"], server["w"])
        return {**server, "x": reweighted(ctx, server["x"], g_x, self.eta_x)}
