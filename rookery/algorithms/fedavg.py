"""FedAvg: the single-level reference."""

from typing import Any, ClassVar

from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_rates
from rookery.algorithms.steps import only
from rookery.problem.schedules import at
from rookery.typing import Tree


class FedAvg(Algorithm):
    """FedAvg on the lower level alone: x stays where it starts (all samples of weight 1, say), only y is learned.

    Client, for k < τ:  y ← y − η_y ∇_y g(x0, y);  then y is averaged. y is projected on Y before every local step, so that
    no gradient is taken outside, and at the server after the average.

    Args:
        eta_y: step.
    """

    name: ClassVar[str] = "FedAvg"

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedBiOAcc"
    status: ClassVar[str] = "P"

    eta_y: Any = 0.1

    def __check_init__(self) -> None:
        check_rates(self, "eta_y")

    def round(self) -> tuple[Stage, ...]:
        """One exchange of y."""
        return (Exchange(only("y"), self._client, self._server),)

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        def step(k: Any, y: Array) -> Array:
            y = local.project_y(y)
            return y - at(self.eta_y, local.round) * local.g(k, "y").grad_y(local.x0, y)

        return {"y": local.loop(step, down["y"])}, keep, carry

    def _server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "y": ctx.project_y(mean["y"])}
