"""FedNest and its relatives: nested loops of exchanges, FedInn for y, FedIHGP for z and FedOut for x.

D. A. Tarzanagh, M. Li, C. Thrampoulidis and S. Oymak, ICML 2022 (docs/bibliography.md). The paper's text was not at
hand: its procedures are from general knowledge, those of the authors' code were read there. They stand in
:mod:`rookery.algorithms.nested`; an algorithm is a list of them.
"""

from typing import Any, ClassVar

import equinox as eqx

from rookery.algorithm.exchange import Algorithm, Stage
from rookery.algorithm.rate import rate
from rookery.algorithms.checks import check_counts
from rookery.algorithms.nested import (
    anchored,
    check_nested,
    fed_ihgp,
    fed_ihgp_code,
    fed_ihgp_random,
    fed_inn,
    fed_inn_sgd,
    fed_out,
    hypergradient,
    in_all_steps,
    local_out,
    own_hypergradient,
    scratch,
    series_step,
)
from rookery.typing import Tree, X, Y


class FedNest(Algorithm):
    """FedNest: SVRG steps on y, a Neumann series over exchanges for z, SVRG steps on x; 2T + N + 3 exchanges a round.

    Davoud Ataee Tarzanagh, Mingchen Li, Christos Thrampoulidis, Samet Oymak. FedNest: Federated bilevel, minimax, and
    compositional optimization. International Conference on Machine Learning (PMLR), pp. 21146–21179, 2022. Its boxes
    were not at hand; the full truncated series is defined here (the paper's single random term is
    :class:`FedNestRandom`).

    Bilevel, one lower level for all clients, strongly convex in y. T times with fresh participants and q their mean of
    ∇_y g(x, y), then once with fresh participants, all means:

        FedInn    y_i ← y_i − β_i (∇_y g(x, y_i; ζ) − ∇_y g(x, y; ζ) + q), τ_i times;   y ← mean y_i
        FedIHGP   a_0 = mean ∇_y f,   a_j = mean (a_{j−1} − η_H ∇²_yy g a_{j−1}),       z = η_H (a_0 + ... + a_N)
        FedOut    h = mean (∇_x f − ∇²_xy g z);   x_i ← x_i − α_i (∇_x f(x_i, y; ξ) − ∇_x f(x, y; ξ) + h);   x ← mean x_i

    Paper → here: α, β → eta_x, eta_y;  T → inner;  N → products;  1/ℓ → neumann_step (η_H).

    Args:
        eta_x, eta_y: α and β. The code's defaults are 0.01 and 0.003; published by MeFBO's paper: hyper-representation 0.02
            and 0.01, data cleaning 0.2 and 0.1; by FedBiOAcc's, data cleaning: 10000 and 1.
        inner: T. Code: 1; loss tuning 3.
        outer_steps: local steps on x. Code: 1 or 5.
        divide_steps: α_i = α/outer_steps and β_i = β/τ_i, as in the paper; else (the authors' code) α and β.
        neumann_step: η_H; the step α by default, as in the code.
        products: N, Hessian-vector products. Code: 5; loss tuning 3.
    """

    name: ClassVar[str] = "FedNest"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K, C"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L", times=in_all_steps)
    inner: int = eqx.field(static=True, default=1)
    outer_steps: int = eqx.field(static=True, default=1)
    divide_steps: bool = eqx.field(static=True, default=True)
    neumann_step: Any = rate(None, "1/L")
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_nested(self)
        check_counts(self, "products", least=0)

    def init(self, x: X, y: Y) -> Tree:
        """Scratch vectors at 0."""
        return scratch(x, y, "q", "a", "z", "h")

    def round(self) -> tuple[Stage, ...]:
        """FedInn; FedIHGP and FedOut with one set of participants."""
        return (
            *fed_inn(self.eta_y, self.inner, self.divide_steps),
            *fed_ihgp(series_step(self), self.products),
            *hypergradient(),
            *fed_out(self.eta_x, self.outer_steps, self.divide_steps),
        )


class FedNestRandom(Algorithm):
    """FedNest with the paper's single random term of the Neumann series; 2T + N' + 3 exchanges a round.

    Davoud Ataee Tarzanagh, Mingchen Li, Christos Thrampoulidis, Samet Oymak. FedNest: Federated bilevel, minimax, and
    compositional optimization. International Conference on Machine Learning (PMLR), pp. 21146–21179, 2022. Its boxes
    were not at hand.

    Bilevel, one lower level for all clients, strongly convex in y. FedInn and FedOut are those of :class:`FedNest`;
    with N' uniform on 0..N−1:

        FedIHGP   a_0 = N η_H mean ∇_y f,   a_j = mean (a_{j−1} − η_H ∇²_yy g a_{j−1}),   z = a_{N'}

    The mean over N' is the series of N terms. Symbols, arguments and published values are those of :class:`FedNest`,
    with products: N, of which at most N − 1 are computed.
    """

    name: ClassVar[str] = "FedNest_random"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L", times=in_all_steps)
    inner: int = eqx.field(static=True, default=1)
    outer_steps: int = eqx.field(static=True, default=1)
    divide_steps: bool = eqx.field(static=True, default=True)
    neumann_step: Any = rate(None, "1/L")
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_nested(self)
        check_counts(self, "products")

    def init(self, x: X, y: Y) -> Tree:
        """Scratch vectors at 0."""
        return scratch(x, y, "q", "a", "z", "h")

    def round(self) -> tuple[Stage, ...]:
        """FedInn; FedIHGP and FedOut with one set of participants."""
        return (
            *fed_inn(self.eta_y, self.inner, self.divide_steps),
            *fed_ihgp_random(series_step(self), self.products),
            *hypergradient(),
            *fed_out(self.eta_x, self.outer_steps, self.divide_steps),
        )


class FedNestCode(Algorithm):
    """FedNest with the series that the authors' code computes; 2T + N + 3 exchanges a round.

    Davoud Ataee Tarzanagh, Mingchen Li, Christos Thrampoulidis, Samet Oymak. FedNest: Federated bilevel, minimax, and
    compositional optimization. International Conference on Machine Learning (PMLR), pp. 21146–21179, 2022. From the
    code (ucr-optml/FedNest), which keeps every client's own powers and damps the j-th by 1/j.

    Bilevel, one lower level for all clients, strongly convex in y. FedInn and FedOut are those of :class:`FedNest`;

        FedIHGP   a_0 = mean ∇_y f,   z = η_H (a_0 + Σ_{j=1}^{N} (1/j) mean (I − η_H ∇²_yy g_i)^j a_0)

    Symbols, arguments and published values are those of :class:`FedNest`; the code does not divide steps.
    """

    name: ClassVar[str] = "FedNest_code"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "C"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L", times=in_all_steps)
    inner: int = eqx.field(static=True, default=1)
    outer_steps: int = eqx.field(static=True, default=1)
    divide_steps: bool = eqx.field(static=True, default=True)
    neumann_step: Any = rate(None, "1/L")
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_nested(self)
        check_counts(self, "products", least=0)

    def init(self, x: X, y: Y) -> Tree:
        """Scratch vectors at 0."""
        return scratch(x, y, "q", "a", "z", "h")

    def round(self) -> tuple[Stage, ...]:
        """FedInn; FedIHGP and FedOut with one set of participants."""
        return (
            *fed_inn(self.eta_y, self.inner, self.divide_steps),
            *fed_ihgp_code(series_step(self), self.products),
            *hypergradient(),
            *fed_out(self.eta_x, self.outer_steps, self.divide_steps),
        )


class FedNestSGD(Algorithm):
    """FedNest_SGD: FedNest with plain local SGD on y; T + N + 3 exchanges a round.

    Davoud Ataee Tarzanagh, Mingchen Li, Christos Thrampoulidis, Samet Oymak. FedNest: Federated bilevel, minimax, and
    compositional optimization. International Conference on Machine Learning (PMLR), pp. 21146–21179, 2022. Its boxes
    were not at hand.

    Bilevel, one lower level for all clients, strongly convex in y. FedIHGP and FedOut are those of :class:`FedNest`;

        FedInn    y_i ← y_i − β_i ∇_y g(x, y_i; ζ), τ_i times;   y ← mean y_i

    Symbols, arguments and published values are those of :class:`FedNest`.
    """

    name: ClassVar[str] = "FedNest_SGD"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K, C"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L", times=in_all_steps)
    inner: int = eqx.field(static=True, default=1)
    outer_steps: int = eqx.field(static=True, default=1)
    divide_steps: bool = eqx.field(static=True, default=True)
    neumann_step: Any = rate(None, "1/L")
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_nested(self)
        check_counts(self, "products", least=0)

    def init(self, x: X, y: Y) -> Tree:
        """Scratch vectors at 0."""
        return scratch(x, y, "a", "z", "h")

    def round(self) -> tuple[Stage, ...]:
        """FedInn without its anchor; FedIHGP and FedOut with one set of participants."""
        return (
            *fed_inn_sgd(self.eta_y, self.inner, self.divide_steps),
            *fed_ihgp(series_step(self), self.products),
            *hypergradient(),
            *fed_out(self.eta_x, self.outer_steps, self.divide_steps),
        )


class LFedNest(Algorithm):
    """LFedNest: FedNest for equal clients; each solves its own linear system. T + 1 exchanges a round.

    Davoud Ataee Tarzanagh, Mingchen Li, Christos Thrampoulidis, Samet Oymak. FedNest: Federated bilevel, minimax, and
    compositional optimization. International Conference on Machine Learning (PMLR), pp. 21146–21179, 2022. Its boxes
    were not at hand.

    Bilevel, one lower level for clients that are alike. T times with fresh participants, then once for x, H_i =
    ∇²_yy g_i(x_i, y):

        y_i ← y_i − β ∇_y g(x, y_i; ζ), τ_i times;   y ← mean y_i
        x_i ← x_i − α (∇_x f − ∇²_xy g z_i),   z_i = η_H Σ_{j=0}^{N} (I − η_H H_i)^j ∇_y f,   all at (x_i, y);   x ← mean x_i

    With unlike clients it converges to a zero of the mean of their own hypergradients, which is not that of the
    problem.

    Args:
        eta_x, eta_y: α and β. Published by MeFBO's paper: hyper-representation 0.02 and 0.01, data cleaning 0.2 and 0.1.
        inner: T.
        outer_steps: local steps on x.
        divide_steps: use α/outer_steps and β/τ_i.
        neumann_step: η_H; the step α by default.
        products: N.
    """

    name: ClassVar[str] = "LFedNest"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K, C"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)
    outer_steps: int = eqx.field(static=True, default=1)
    divide_steps: bool = eqx.field(static=True, default=False)
    neumann_step: Any = rate(None, "1/L")
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_nested(self)
        check_counts(self, "products", least=0)

    def round(self) -> tuple[Stage, ...]:
        """Local steps on y, then local steps on x, each with fresh participants."""
        return (
            *fed_inn_sgd(self.eta_y, self.inner, self.divide_steps),
            *local_out(
                self.eta_x, self.outer_steps, self.divide_steps, own_hypergradient(series_step(self), self.products)
            ),
        )


class LFedNestSVRG(Algorithm):
    """LFedNest_SVRG: LFedNest with the anchors of FedNest; 2T + 2 exchanges a round.

    Davoud Ataee Tarzanagh, Mingchen Li, Christos Thrampoulidis, Samet Oymak. FedNest: Federated bilevel, minimax, and
    compositional optimization. International Conference on Machine Learning (PMLR), pp. 21146–21179, 2022. A variant of
    the authors' code.

    Bilevel, one lower level for clients that are alike. FedInn and FedOut are those of :class:`FedNest`, with the mean
    of the clients' own hypergradients, z_i by a Neumann series of their own:

        h = mean (∇_x f_i − ∇²_xy g_i z_i) at (x, y)

    The arguments are those of :class:`LFedNest`.
    """

    name: ClassVar[str] = "LFedNest_SVRG"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedNest"
    status: ClassVar[str] = "K, C"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)
    outer_steps: int = eqx.field(static=True, default=1)
    divide_steps: bool = eqx.field(static=True, default=False)
    neumann_step: Any = rate(None, "1/L")
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_nested(self)
        check_counts(self, "products", least=0)

    def init(self, x: X, y: Y) -> Tree:
        """The anchors q and h at 0."""
        return scratch(x, y, "q", "h")

    def round(self) -> tuple[Stage, ...]:
        """FedInn; the hypergradient and FedOut with one set of participants."""
        return (
            *fed_inn(self.eta_y, self.inner, self.divide_steps),
            *anchored(own_hypergradient(series_step(self), self.products)),
            *fed_out(self.eta_x, self.outer_steps, self.divide_steps),
        )
