"""FedAvg: the single-level reference."""

from typing import Any, ClassVar

from rookery.algorithm.exchange import Algorithm, Exchange, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Local
from rookery.algorithms.checks import check_rates
from rookery.algorithms.steps import only, receive, sgd_steps
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors


class FedAvg(Algorithm):
    """FedAvg on the lower level alone: x stays where it starts (all samples of weight 1, say), only y is learned.

    Brendan McMahan, Eider Moore, Daniel Ramage, Seth Hampson, Blaise Agüera y Arcas. Communication-efficient learning
    of deep networks from decentralized data. Artificial Intelligence and Statistics (PMLR), pp. 1273–1282, 2017. Here
    as FedBiOAcc's paper runs it, the reference on noisy labels (section 5.1).

    Of a bilevel problem the lower level, min_y G(x0, y). For k < τ, then the average of y:

        y ← y − η_y ∇_y g(x0, y)

    y is projected on Y before every local step, so that no gradient is taken outside, and at the server after the
    average.

    Args:
        eta_y: step. Not published; local_steps I = 5.
    """

    name: ClassVar[str] = "FedAvg"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedBiOAcc"
    status: ClassVar[str] = "P"

    eta_y: Any = rate(0.1, "1/L")

    def __check_init__(self) -> None:
        check_rates(self, "eta_y")

    def round(self) -> tuple[Stage, ...]:
        """One exchange of y."""
        return (Exchange(only("y"), self.client, receive),)

    def client(self, local: Local, down: Tree) -> Vectors:
        """y after τ local steps."""
        return {"y": sgd_steps(local, 0, local.x0, down["y"], at(self.eta_y, local.round))}
