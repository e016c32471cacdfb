"""Methods that use local hypergradients as if clients were alike: Local-BSGVR, Local-BSGM and AdaFBiO."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Exchange, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_fraction, check_positive
from rookery.algorithms.fedbio import TwoAverages
from rookery.algorithms.steps import local_hypergradient, only
from rookery.typing import Tree, Vectors


class LocalBSGVR(TwoAverages):
    """Local-BSGVR (Gao 2022, as FedBiOAcc's paper describes it): STORM on local hypergradients, both levels averaged.

    FedBiOAcc's two exchanges, with D_x = Φ_i, the client's own hypergradient by a Neumann series, D_y = ∇_y g_i, and
    no z. Where clients differ it converges to a zero of the averaged LOCAL surrogates, not of ∇Φ.

    Args:
        eta_x, eta_y: steps.
        delta, offset: δ and u of δ_s = δ/(u + s)^{1/3}.
        c_x, c_y: momentum constants; c_v δ_1² must be at most 1.
        neumann_step: the step inside the series; below 1/L.
        products: Q, the number of Hessian-vector products.
        first_batch: how many ordinary batches make the first directions; by default the number of local steps.
        average_first: average the first directions too, in one more exchange in round 0.
    """

    name: ClassVar[str] = "Local-BSGVR"

    paper: ClassVar[str] = "Gao 2022"
    status: ClassVar[str] = "K, D"
    variables: ClassVar[tuple[str, ...]] = ("x", "y")

    neumann_step: Any = 0.1
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_positive(self, "neumann_step")
        check_counts(self, "products", least=0)

    def _at(self, local: Local, k: Any, ahead: int = 0, times: int = 1) -> Callable[[Vectors], Vectors]:
        g = local.g(k, "y", ahead=ahead, times=times)

        def both(v: Vectors) -> Vectors:
            x, y = v["x"], v["y"]
            d_x = local_hypergradient(local, k, x, y, self.neumann_step, self.products, ahead, times)
            return {"x": d_x, "y": g.grad_y(x, y)}

        return both


class LocalBSGM(LocalBSGVR):
    """Local-BSGM: Local-BSGVR with a moving average d_v ← β_v D_v(new) + (1 − β_v) d_v, β_v = c_v δ_s²."""

    name: ClassVar[str] = "Local-BSGM"

    def _combine(self, new: Callable[..., Vectors], v: Vectors, old: Vectors, d: Vectors, beta: Vectors) -> Vectors:
        fresh = new(v)
        return {n: beta[n] * fresh[n] + (1 - beta[n]) * d[n] for n in d}


class AdaFBiO(LocalBSGVR):
    """AdaFBiO (Huang 2022, one instance of its family): Local-BSGVR with preconditioners, renewed at each average.

        a ← ϱ a + (1 − ϱ) d_x∘d_x, A = diag(√a + ε);   b ← ϱ b + (1 − ϱ)‖d_y‖, B = (b + ε) I
        x ← Π_X(x − η_x δ_s A⁻¹ d_x),   y ← Π_Y(y − η_y δ_s B⁻¹ d_y)

    Args:
        decay: ϱ; 1 with epsilon = 1 is Local-BSGVR.
        epsilon: ε.

    The others are those of :class:`LocalBSGVR`.
    """

    name: ClassVar[str] = "AdaFBiO"

    paper: ClassVar[str] = "Huang 2022"
    status: ClassVar[str] = "K, D"

    decay: Any = 0.9
    epsilon: Any = 0.1

    def __check_init__(self) -> None:
        check_fraction(self, "decay", zero=True)
        check_positive(self, "epsilon")

    def init(self, x: Array, y: Array) -> Tree:
        """a and b start at 0."""
        return {**super().init(x, y), "a": jnp.zeros_like(x), "b": jnp.zeros((), y.dtype)}

    def round(self) -> tuple[Stage, ...]:
        """The two exchanges; that of the iterates also sends a and b."""
        *first, iterates, renewed = super().round()
        assert isinstance(iterates, Exchange)
        both = only("x", "y", "d_x", "d_y", "a", "b")
        return (*first, replace(iterates, down=both), renewed)

    def _move(self, v: Vectors, d: Vectors, eta: Vectors, down: Tree) -> Vectors:
        scaled = {"x": d["x"] / (jnp.sqrt(down["a"]) + self.epsilon), "y": d["y"] / (down["b"] + self.epsilon)}
        return super()._move(v, scaled, eta, down)

    def _set_directions(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        a = self.decay * server["a"] + (1 - self.decay) * mean["x"] ** 2
        b = self.decay * server["b"] + (1 - self.decay) * jnp.linalg.norm(mean["y"])
        return {**super()._set_directions(ctx, server, mean), "a": a, "b": b}
