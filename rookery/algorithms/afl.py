"""AFL: weights that rise where the loss is high."""

from typing import Any, ClassVar

import equinox as eqx

from rookery.algorithm.exchange import Algorithm, Exchange, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_equal_weights, check_rates
from rookery.algorithms.steps import only
from rookery.algorithms.weighting import by_client, descent, moved, own_weights, reweighted
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.typing import Tree, Weighting, X, Y


class AFL(Algorithm):
    """AFL: min over w, max over x of Σ x_i f_i(w), so that the WORST client gains weight; f_0 is not used.

    Mehryar Mohri, Gary Sivek, Ananda Theertha Suresh: Agnostic federated learning. ICML 2019. From general knowledge; the
    update was also seen in public code of a fairness comparison. PrimalDual's paper does not tell its settings.

    Solves: client weighting.

        w ← Π(w − η_w (N/|A|)Σ_{i∈A} x_i∇f_i(w; ξ))                K times, with fresh active clients A
        x ← Π_Δ(x + η_x ℓ),   ℓ_i = (N/|A|) f_i(w; ξ) for i in A, else 0

    with the A and ξ of the last step, at the w before it.

    Args:
        eta_x, eta_w: steps.
        inner: K; AFL itself is K = 1.
        average: the solution's model is the mean of the w after rounds 1, ..., t, not the last w.
    """

    name: ClassVar[str] = "AFL"
    solves: ClassVar[tuple[str, ...]] = ("weighting",)
    paper: ClassVar[str] = "AFL"
    status: ClassVar[str] = "K, C"

    eta_w: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)
    eta_x: Any = rate(0.01, "free")
    average: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_w")
        check_counts(self, "inner")

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """The clients have no weights but x."""
        check_equal_weights(self, clients)

    def init(self, x: X, y: Y) -> Tree:
        """The weights, the model, and the mean of the models of the rounds made if it is asked for."""
        return {"x": x, "w": y, **({"w_mean": y} if self.average else {})}

    def output(self, server: Tree, keep: Tree) -> tuple[X, Y]:
        """(x, w), or with the mean of all w."""
        return server["x"], server["w_mean" if self.average else "w"]

    def round(self) -> tuple[Stage, ...]:
        """K exchanges; the last also asks every active client for its loss."""
        weighting: Weighting = {"w": own_weights(), "loss": "stack"}
        last = Exchange(only("w"), self.last_client, self.last_server, weighting, draw="fresh")
        return (*descent(self.inner - 1, self.eta_w), last)

    def last_client(self, local: Local, down: Tree) -> Tree:
        """Gradient and loss on one batch."""
        f, w = local.g(self.inner - 1, "x"), down["w"]
        return {"w": f.grad_y(local.x0, w), "loss": f.value(local.x0, w)}

    def last_server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """w down its gradient, x up the losses."""
        w = moved(ctx, server["w"], mean["w"], self.eta_w)
        new = {"x": reweighted(ctx, server["x"], -by_client(ctx, mean["loss"]), self.eta_x), "w": w}
        if self.average:
            new["w_mean"] = server["w_mean"] + (w - server["w_mean"]) / (ctx.round + 1)
        return new
