"""FedNest and LFedNest for minimax problems: the procedures of :mod:`rookery.algorithms.nested` with g = −f.

D. A. Tarzanagh, M. Li, C. Thrampoulidis and S. Oymak, ICML 2022 (docs/bibliography.md).
"""

from typing import Any, ClassVar

import equinox as eqx

from rookery.algorithm.exchange import Algorithm, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Local
from rookery.algorithms.nested import (
    anchored,
    check_nested,
    fed_inn,
    fed_inn_sgd,
    fed_out,
    in_all_steps,
    local_out,
    scratch,
)
from rookery.typing import Tree, X, Y


class FedNestMinimax(Algorithm):
    """FedNest for min_x max_y f: FedInn on −f, h = mean ∇_x f(x, y), FedOut; 2T + 2 exchanges a round.

    Davoud Ataee Tarzanagh, Mingchen Li, Christos Thrampoulidis, Samet Oymak. FedNest: Federated bilevel, minimax, and
    compositional optimization. International Conference on Machine Learning (PMLR), pp. 21146–21179, 2022. Its boxes
    were not at hand; the authors' notebook was.

    Minimax, strongly concave in y:

        y_i ← y_i + β_i (∇_y f(x, y_i; ζ) − ∇_y f(x, y; ζ) + q), τ_i times;   y ← mean y_i,   T times
        x_i ← x_i − α_i (∇_x f(x_i, y; ξ) − ∇_x f(x, y; ξ) + h);   x ← mean x_i

    Paper → here: α, β → eta_x, eta_y;  T → inner.

    Args:
        eta_x, eta_y: α and β. The notebook: 0.01, with a further factor 0.1.
        inner: T. The notebook: 10.
        outer_steps: local steps on x. The notebook: 500, and 50 on y.
        divide_steps: α_i = α/outer_steps and β_i = β/τ_i, as in the paper; else (the authors' code) α and β.
    """

    name: ClassVar[str] = "FedNest-minimax"
    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K, C"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L", times=in_all_steps)
    inner: int = eqx.field(static=True, default=1)
    outer_steps: int = eqx.field(static=True, default=1)
    divide_steps: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        check_nested(self)

    def init(self, x: X, y: Y) -> Tree:
        """The anchors q and h at 0."""
        return scratch(x, y, "q", "h")

    def round(self) -> tuple[Stage, ...]:
        """FedInn; the gradient and FedOut with one set of participants."""
        return (
            *fed_inn(self.eta_y, self.inner, self.divide_steps),
            *anchored(lambda local, k, x, y: local.f(k, "x").grad_x(x, y)),
            *fed_out(self.eta_x, self.outer_steps, self.divide_steps),
        )


class LFedNestMinimax(Algorithm):
    """LFedNest for min_x max_y f: FedNest-minimax without its anchors q and h, plain local steps; T + 1 exchanges a round.

    Davoud Ataee Tarzanagh, Mingchen Li, Christos Thrampoulidis, Samet Oymak. FedNest: Federated bilevel, minimax, and
    compositional optimization. International Conference on Machine Learning (PMLR), pp. 21146–21179, 2022. Its boxes
    were not at hand.

    Minimax, strongly concave in y, clients that are alike:

        y_i ← y_i + β ∇_y f(x, y_i; ζ), τ_i times;   y ← mean y_i,   T times with fresh participants, then once for x:
        x_i ← x_i − α ∇_x f(x_i, y; ξ), outer_steps times;   x ← mean x_i

    With unlike clients and more than one local step it stops beside the solution.

    Args:
        eta_x, eta_y: α and β; no values published.
        inner: T.
        outer_steps: local steps on x.
        divide_steps: use α/outer_steps and β/τ_i.
    """

    name: ClassVar[str] = "LFedNest-minimax"
    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K, C"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)
    outer_steps: int = eqx.field(static=True, default=1)
    divide_steps: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_nested(self)

    def round(self) -> tuple[Stage, ...]:
        """Local steps on y, then local steps on x, each with fresh participants."""

        def gradient(local: Local, k: Any, x: X, y: Y) -> X:
            return local.f(k, "outer").grad_x(x, y)

        return (
            *fed_inn_sgd(self.eta_y, self.inner, self.divide_steps),
            *local_out(self.eta_x, self.outer_steps, self.divide_steps, gradient),
        )
