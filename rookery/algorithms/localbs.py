"""Methods that use local hypergradients as if clients were alike: Local-BSGVR, Local-BSGM and AdaFBiO.

None of their papers was at hand: the updates are inferred from how other papers describe them.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Reply, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import (
    check_counts,
    check_equal_steps,
    check_forgets,
    check_fraction,
    check_momentum,
    check_optional,
    check_positive,
    check_rates,
)
from rookery.algorithms.steps import (
    as_momenta,
    clock,
    cube_root,
    descend,
    feasible,
    first_is_one,
    in_round,
    momenta,
    moving_average,
    only,
    own_directions,
    receive,
    receive_momenta,
    storm,
    times,
    with_momenta,
)
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.typing import Tree, Vectors, X, Y

Directions = Callable[[Vectors], Vectors]
"""The directions on one draw, as a function of the point."""


class LocalHypergradients(Algorithm):
    """Abstract: (x, y) moved along d_x and d_y, all four averaged every τ steps; a member says how it moves and estimates.

    With s = 1, 2, ... counting local steps, D_x = Φ_i, the client's own hypergradient, and D_y = ∇_y g_i:

        (x, y) ← Π(``move``),    averaged every τ steps;    d ← ``estimate``,    averaged every τ steps, at the average

    Π projects on X and Y; a round's last step is averaged first, then projected by the server.
    """

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    status: ClassVar[str] = "K, D"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    delta: Any = rate(1.0, follows=first_is_one)
    offset: Any = rate(1.0, "steps")
    c_x: Any = rate(1.0, "(0, 1]", knob="c")
    c_y: Any = rate(1.0, "(0, 1]", knob="c")
    first_batch: int | None = eqx.field(static=True, default=None)
    average_first: bool = eqx.field(static=True, default=False)
    neumann_step: Any = rate(0.1, "1/L")
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")
        check_momentum(self, "c_x", "c_y")
        check_optional(check_counts, self, "first_batch")
        check_positive(self, "neumann_step")
        check_counts(self, "products", least=0)

    def move(self, v: Vectors, d: Vectors, eta: Vectors, down: Tree) -> Vectors:
        """A local step with the rates η_v δ_s, before the projection."""
        raise NotImplementedError

    def estimate(self, D: Directions, new: Vectors, old: Vectors, d: Vectors, beta: Vectors) -> Vectors:
        """The next directions, with β_v = c_v δ_s² and D(v) the directions at v on one draw."""
        raise NotImplementedError

    def exchanges(self, sent: tuple[str, ...], server: Any) -> tuple[Stage, ...]:
        """Iterates first, for which ``sent`` travels, then the directions at the averaged iterate, for ``server``."""
        point = only("x", "y")
        first = Exchange(point, self.begin, server, when=lambda server, ctx: ctx.round == 0)
        rest = Exchange(only(*sent), self.iterate, receive), Exchange(point, self.renew, server)
        return (first, *rest) if self.average_first else rest

    def begin(self, local: Local, down: Tree) -> Vectors:
        """The first directions, to be averaged."""
        return as_momenta(self.first(local, down))

    def first(self, local: Local, down: Tree) -> Vectors:
        """The directions at the start, on a larger batch."""
        return self.directions(local, 0, times=self.first_batch or local.max_tau)(down)

    def iterate(self, local: Local, down: Tree) -> Reply:
        """τ − 1 moves and estimates, then one more move: the average of what it makes comes before its estimate."""
        v = {"x": down["x"], "y": down["y"]}
        told = momenta(down, v)
        d = told if self.average_first else local.at_start(lambda: self.first(local, v), lambda: told)

        def step(k: Any, state: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
            old, d = state
            new = feasible(local, self.move(old, d, self.eta(local, k), down))
            return new, self.estimate(self.directions(local, k), new, old, d, self.beta(local, k))

        old, d = local.loop(step, (v, d), first=1)
        return Reply(self.move(old, d, self.eta(local, local.max_tau), down), carry={"old": old, "d": d})

    def renew(self, local: Local, down: Tree, carry: Tree) -> Vectors:
        """The estimate at the averaged point, on the draw of the first point of the next round."""
        D = self.directions(local, 0, ahead=1)
        return as_momenta(self.estimate(D, down, carry["old"], carry["d"], self.beta(local, local.max_tau)))

    def directions(self, local: Local, k: Any, ahead: int = 0, times: int = 1) -> Directions:
        """D_x = Φ_i and D_y = ∇_y g_i on one draw, as a function of the point."""
        return own_directions(local, k, self.neumann_step, self.products, ahead, times)

    def eta(self, local: Local, k: Any) -> Vectors:
        """η_v δ_s, δ_s = δ/(u + s)^{1/3}; k = 1, ..., τ in a round."""
        eta = in_round(local.round, x=self.eta_x, y=self.eta_y)
        return times(cube_root(self.delta, self.offset, clock(local, k)), eta)

    def beta(self, local: Local, k: Any) -> Vectors:
        """c_v δ_s²."""
        return times(cube_root(self.delta, self.offset, clock(local, k)) ** 2, {"x": self.c_x, "y": self.c_y})

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """c_v = 0 never forgets: it is for whole sets only. All clients make the same number of steps."""
        check_forgets(self, whole_sets, "c_x", "c_y")
        check_equal_steps(self, steps)


class LocalBSGVR(LocalHypergradients):
    """Local-BSGVR: STORM on local hypergradients, both levels averaged; two exchanges a round.

    Hongchang Gao. On the convergence of momentum-based algorithms for federated stochastic bilevel optimization
    problems. arXiv:2204.13299, 2022 (one of the lists that cite it leaves out "stochastic"). Its box was not at hand:
    this is FedBiOAcc-Local with y and d_y averaged too, which is how FedBiOAcc's paper describes it.

    Bilevel, one lower level for clients that are alike. D_x = Φ_i by a Neumann series, D_y = ∇_y g_i, no z:

        v ← Π(v − η_v δ_s d_v),    d_v ← D_v(new; ξ) + (1 − c_v δ_s²)(d_v − D_v(old; ξ)),    both averaged every τ steps

    Where clients differ it converges to a zero of the averaged LOCAL surrogates, not of ∇Φ.

    Args:
        eta_x, eta_y: steps; no values published by the papers at hand ("grid search"), nor for the others.
        delta, offset: δ and u of δ_s = δ/(u + s)^{1/3}.
        c_x, c_y: momentum constants; c_v δ_1² must be at most 1.
        first_batch: how many ordinary batches make the first directions; by default the number of local steps.
        average_first: average the first directions too, in one more exchange in round 0.
        neumann_step: the step inside the series; below 1/L.
        products: Q, the number of Hessian-vector products.
    """

    name: ClassVar[str] = "Local-BSGVR"
    paper: ClassVar[str] = "Gao 2022"

    def init(self, x: X, y: Y) -> Tree:
        """The first directions are the clients' own, in round 0."""
        return with_momenta({"x": x, "y": y})

    def round(self) -> tuple[Stage, ...]:
        """Iterates, then directions."""
        return self.exchanges(("x", "y", "d_x", "d_y"), receive_momenta)

    def move(self, v: Vectors, d: Vectors, eta: Vectors, down: Tree) -> Vectors:
        """v − η_v δ_s d_v."""
        return descend(v, d, eta)

    def estimate(self, D: Directions, new: Vectors, old: Vectors, d: Vectors, beta: Vectors) -> Vectors:
        """STORM."""
        return storm(D(new), D(old), d, beta)


class LocalBSGM(LocalHypergradients):
    """Local-BSGM: Local-BSGVR with a moving average of directions in place of STORM.

    Hongchang Gao. On the convergence of momentum-based algorithms for federated stochastic bilevel optimization
    problems. arXiv:2204.13299, 2022. Its box was not at hand. Bilevel, one lower level for clients that are alike:

        v ← Π(v − η_v δ_s d_v),    d_v ← β_v D_v(new) + (1 − β_v) d_v,  β_v = c_v δ_s²,    both averaged every τ steps

    The arguments are those of :class:`LocalBSGVR`.
    """

    name: ClassVar[str] = "Local-BSGM"
    paper: ClassVar[str] = "Gao 2022"

    def init(self, x: X, y: Y) -> Tree:
        """The first directions are the clients' own, in round 0."""
        return with_momenta({"x": x, "y": y})

    def round(self) -> tuple[Stage, ...]:
        """Iterates, then directions."""
        return self.exchanges(("x", "y", "d_x", "d_y"), receive_momenta)

    def move(self, v: Vectors, d: Vectors, eta: Vectors, down: Tree) -> Vectors:
        """v − η_v δ_s d_v."""
        return descend(v, d, eta)

    def estimate(self, D: Directions, new: Vectors, old: Vectors, d: Vectors, beta: Vectors) -> Vectors:
        """The moving average; the old point is not needed."""
        return moving_average(D(new), d, beta)


class AdaFBiO(LocalHypergradients):
    """AdaFBiO: Local-BSGVR with preconditioners, renewed at each average.

    Feihu Huang. Fast adaptive federated bilevel optimization. arXiv:2211.01122, 2022. Known from its abstract (STORM,
    local steps, adaptive matrices for both levels): one instance of its family, defined here.

    Bilevel, one lower level for clients that are alike. STORM as in Local-BSGVR; with the averaged d_x and d_y

        a ← ϱ a + (1 − ϱ) d_x∘d_x, A = diag(√a + ε);   b ← ϱ b + (1 − ϱ)‖d_y‖, B = (b + ε) I        at each average
        x ← Π_X(x − η_x δ_s A⁻¹ d_x),   y ← Π_Y(y − η_y δ_s B⁻¹ d_y)                               in each local step

    Args:
        decay: ϱ; 1 with epsilon = 1 is Local-BSGVR.
        epsilon: ε.

    The others are those of :class:`LocalBSGVR`. No experiment of the papers at hand has values.
    """

    name: ClassVar[str] = "AdaFBiO"
    paper: ClassVar[str] = "Huang 2022"

    eta_x: Any = rate(0.1, "free", times=lambda rates, scales: rates["epsilon"] + scales.rms_x)
    eta_y: Any = rate(0.1, "1/L", times=lambda rates, scales: rates["epsilon"])
    decay: Any = 0.9
    epsilon: Any = rate(0.1, "ratio", times=lambda rates, scales: scales.size_y)

    def __check_init__(self) -> None:
        check_fraction(self, "decay", zero=True)
        check_positive(self, "epsilon")

    def init(self, x: X, y: Y) -> Tree:
        """a and b start at 0."""
        return {**with_momenta({"x": x, "y": y}), "a": jnp.zeros_like(x), "b": jnp.zeros((), y.dtype)}

    def round(self) -> tuple[Stage, ...]:
        """Iterates, for which a and b travel too, then directions."""
        return self.exchanges(("x", "y", "d_x", "d_y", "a", "b"), self.precondition)

    def move(self, v: Vectors, d: Vectors, eta: Vectors, down: Tree) -> Vectors:
        """x − η_x δ_s A⁻¹ d_x,   y − η_y δ_s B⁻¹ d_y."""
        scaled = {"x": d["x"] / (jnp.sqrt(down["a"]) + self.epsilon), "y": d["y"] / (down["b"] + self.epsilon)}
        return descend(v, scaled, eta)

    def estimate(self, D: Directions, new: Vectors, old: Vectors, d: Vectors, beta: Vectors) -> Vectors:
        """STORM."""
        return storm(D(new), D(old), d, beta)

    def precondition(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The averaged directions, and a and b of them."""
        a = self.decay * server["a"] + (1 - self.decay) * mean["d_x"] ** 2
        b = self.decay * server["b"] + (1 - self.decay) * jnp.linalg.norm(mean["d_y"])
        return {**receive_momenta(ctx, server, mean), "a": a, "b": b}
