"""FedBiO-Local and FedBiOAcc-Local, with a lower level of each client's own, and their cases of one local step.

J. Li, F. Huang and H. Huang, NeurIPS 2023 (docs/bibliography.md); the symbols are those of :mod:`rookery.algorithms.fedbio`.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Reply, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Local
from rookery.algorithms.checks import (
    check_counts,
    check_equal_steps,
    check_forgets,
    check_momentum,
    check_one_step,
    check_optional,
    check_positive,
    check_rates,
)
from rookery.algorithms.steps import (
    clock,
    cube_root,
    descend,
    feasible,
    first_is_one,
    in_round,
    only,
    own_directions,
    receive,
    receive_momenta,
    storm,
    times,
)
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.typing import Tree, Vectors, X, Y


class OwnLowerLevels(Algorithm):
    """Abstract: Algorithm 3 of FedBiOAcc's paper, which is FedBiO-Local, and DistBiO if clients make one local step.

    Each client keeps its own y_i; only x travels.
    """

    solves: ClassVar[tuple[str, ...]] = ("bilevel-local",)
    paper: ClassVar[str] = "FedBiOAcc"
    status: ClassVar[str] = "P"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    neumann_step: Any = rate(0.1, "1/L")
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")
        check_positive(self, "neumann_step")
        check_counts(self, "products", least=0)

    def init(self, x: X, y: Y) -> Tree:
        """The server holds x alone."""
        return {"x": x}

    def keep(self, x: X, y: Y) -> Tree:
        """A client keeps its y."""
        return {"y": y}

    def output(self, server: Tree, keep: Tree) -> tuple[Array, Array]:
        """y of every client."""
        return server["x"], keep["y"]

    def round(self) -> tuple[Stage, ...]:
        """One exchange of x."""
        return (Exchange(only("x"), self.client, receive),)

    def client(self, local: Local, down: Tree, keep: Tree) -> Reply:
        """Lines 4–6, I times; y stays."""
        eta = in_round(local.round, x=self.eta_x, y=self.eta_y)

        def step(k: Any, v: Vectors) -> Vectors:
            v = feasible(local, v)
            d = own_directions(local, k, self.neumann_step, self.products)(v)
            return descend(v, d, eta)

        v = local.loop(step, {"x": down["x"], "y": keep["y"]})
        return Reply({"x": v["x"]}, keep={"y": local.project_y(v["y"])})


class FedBiOLocal(OwnLowerLevels):
    """FedBiO-Local: FedBiO for a lower level of each client's own; only x travels.

    Junyi Li, Feihu Huang, Heng Huang. Communication-Efficient Federated Bilevel Optimization with Global and Local
    Lower Level Problems. Advances in Neural Information Processing Systems 36, pp. 1326–1338, 2023. Algorithm 3, eq.
    11.

    Bilevel, min_x Σ p_i f_i(x, y_i*(x)), g_i strongly convex in y. For k < τ, at the old point, then the average of x:

        y_i ← Π_Y(y_i − η_y ∇_y g_i(x, y_i)),   x ← x − η_x Φ_i(x, y_i)                                  (lines 4–6)
        Φ_i = ∇_x f_i − ∇²_xy g_i · τ_N Σ_{q=0}^{Q} ∏_{j≤q} (I − τ_N ∇²_yy g_i(ξ_j)) ∇_y f_i              (eq. 11)

    Paper → here: γ_t, η_t → eta_y, eta_x;  the τ of eq. 11 → neumann_step;  Q → products;  I → local_steps.

    Args:
        eta_x, eta_y: steps. Published (I = 5): Omniglot 1 and 0.4, MiniImageNet 0.1 and 0.05.
        neumann_step: the step inside the series; below 1/L. Published: Omniglot 0.5, MiniImageNet 0.01.
        products: Q, the number of Hessian-vector products; not published.
    """

    name: ClassVar[str] = "FedBiO-Local"


class DistBiO(OwnLowerLevels):
    """DistBiO: FedBiO-Local with one local step.

    Junyi Li, Feihu Huang, Heng Huang. Communication-Efficient Federated Bilevel Optimization with Global and Local
    Lower Level Problems. Advances in Neural Information Processing Systems 36, pp. 1326–1338, 2023. Section 5.2: a
    baseline, Algorithm 3 with I = 1. Update, symbols and arguments are those of :class:`FedBiOLocal`; no values of its
    own are published.
    """

    name: ClassVar[str] = "DistBiO"

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """One local step."""
        check_one_step(self, steps)


class OwnLowerLevelsStorm(Algorithm):
    """Abstract: Algorithm 4 of FedBiOAcc's paper, which is FedBiOAcc-Local, and DistBiOAcc if clients make one local step.

    Each client keeps its own y_i and d_y,i; only x and d_x travel.
    """

    solves: ClassVar[tuple[str, ...]] = ("bilevel-local",)
    paper: ClassVar[str] = "FedBiOAcc"
    status: ClassVar[str] = "P"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    neumann_step: Any = rate(0.1, "1/L")
    products: int = eqx.field(static=True, default=5)
    delta: Any = rate(1.0, follows=first_is_one)
    offset: Any = rate(1.0, "steps")
    c_x: Any = rate(1.0, "(0, 1]", knob="c")
    c_y: Any = rate(1.0, "(0, 1]", knob="c")
    first_batch: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")
        check_positive(self, "neumann_step")
        check_counts(self, "products", least=0)
        check_momentum(self, "c_x", "c_y")
        check_optional(check_counts, self, "first_batch")

    def init(self, x: X, y: Y) -> Tree:
        """The first directions are the clients' own, in round 0."""
        return {"x": x, "d_x": jnp.zeros_like(x)}

    def keep(self, x: X, y: Y) -> Tree:
        """A client keeps its y and its d_y."""
        return {"y": y, "d_y": jnp.zeros_like(y)}

    def output(self, server: Tree, keep: Tree) -> tuple[Array, Array]:
        """y of every client."""
        return server["x"], keep["y"]

    def round(self) -> tuple[Stage, ...]:
        """x first, then d_x at the averaged x."""
        return Exchange(only("x", "d_x"), self.iterate, receive), Exchange(only("x"), self.renew, receive_momenta)

    def iterate(self, local: Local, down: Tree, keep: Tree) -> Reply:
        """Lines 4 and 10–12, τ − 1 times, then line 4 once more: the average of x comes before lines 10–12."""
        v = {"x": down["x"], "y": keep["y"]}

        def first() -> Vectors:  # line 2
            return self.directions(local, 0, times=self.first_batch or local.max_tau)(v)

        def told() -> Vectors:  # a client that missed a round renews d_y (under vmap everybody pays for that gradient)
            missed, d_y = local.last != local.round - 1, local.g(0, "y").grad_y(v["x"], v["y"])
            return {"x": down["d_x"], "y": jnp.where(missed, d_y, keep["d_y"])}

        def step(k: Any, state: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
            old, d = state
            new = feasible(local, self.move(local, k, old, d))
            D = self.directions(local, k)
            return new, storm(D(new), D(old), d, self.beta(local, k))

        old, d = local.loop(step, (v, local.at_start(first, told)), first=1)
        v = self.move(local, local.max_tau, old, d)
        kept = {"y": local.project_y(v["y"]), "d_y": d["y"]}
        return Reply({"x": v["x"]}, keep=kept, carry={"old": old, "d": d})

    def renew(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> Reply:
        """Lines 10–12 at the averaged x, on the draw of the first point of the next round."""
        D, new = self.directions(local, 0, ahead=1), {"x": down["x"], "y": keep["y"]}
        d = storm(D(new), D(carry["old"]), carry["d"], self.beta(local, local.max_tau))
        return Reply({"d_x": d["x"]}, keep={**keep, "d_y": d["y"]})

    def directions(self, local: Local, k: Any, ahead: int = 0, times: int = 1) -> Callable[[Vectors], Vectors]:
        """D_x = Φ_i and D_y = ∇_y g_i on one draw, as a function of the point."""
        return own_directions(local, k, self.neumann_step, self.products, ahead, times)

    def move(self, local: Local, k: Any, v: Vectors, d: Vectors) -> Vectors:
        """Line 4: v − η_v δ_s d_v; k = 1, ..., τ in a round."""
        eta = in_round(local.round, x=self.eta_x, y=self.eta_y)
        return descend(v, d, times(cube_root(self.delta, self.offset, clock(local, k)), eta))

    def beta(self, local: Local, k: Any) -> Vectors:
        """c_v δ_s²."""
        return times(cube_root(self.delta, self.offset, clock(local, k)) ** 2, {"x": self.c_x, "y": self.c_y})


class FedBiOAccLocal(OwnLowerLevelsStorm):
    """FedBiOAcc-Local: STORM on d_x and d_y for a lower level of each client's own; clients keep y_i and d_y,i.

    Junyi Li, Feihu Huang, Heng Huang. Communication-Efficient Federated Bilevel Optimization with Global and Local
    Lower Level Problems. Advances in Neural Information Processing Systems 36, pp. 1326–1338, 2023. Algorithm 4.

    Bilevel, min_x Σ p_i f_i(x, y_i*(x)), g_i strongly convex in y. With D_x = Φ_i of :class:`FedBiOLocal`, D_y = ∇_y
    g_i:

        y_i ← Π_Y(y_i − η_y δ_s d_y,i),   x ← Π_X(x − η_x δ_s d_x)           x averaged every τ steps         (lines 4–9)
        d_v ← D_v(new; ξ) + (1 − c_v δ_s²)(d_v − D_v(old; ξ))                d_x averaged every τ steps, d_y never (10–17)

    A round's last step of x is averaged first, then projected by the server. A client that missed a round takes a fresh
    d_y, for its old one is stale.

    Paper → here: ω, ν → d_y, d_x; γ, η → eta_y, eta_x; c_ω, c_ν (C_η) → c_y, c_x; α_t → δ_s = delta/(offset +
    s)^{1/3}; the τ of eq. 11 → neumann_step; Q → products; I → local_steps.

    Args:
        eta_x, eta_y: steps. Published (I = 5): Omniglot 1 and 0.4, MiniImageNet 1 and 0.05.
        neumann_step: the step inside the series; below 1/L. Published: Omniglot 0.5, MiniImageNet 0.01.
        products: Q, the number of Hessian-vector products; not published.
        delta, offset: δ and u of the schedule. Published: 2, 10000.
        c_x, c_y: momentum constants; c_v δ_1² must be at most 1. Published: 100.
        first_batch: how many ordinary batches make the first directions; by default the number of local steps.
    """

    name: ClassVar[str] = "FedBiOAcc-Local"

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """c_v = 0 never forgets: it is for whole sets only. All clients make the same number of steps."""
        check_forgets(self, whole_sets, "c_x", "c_y")
        check_equal_steps(self, steps)


class DistBiOAcc(OwnLowerLevelsStorm):
    """DistBiOAcc: FedBiOAcc-Local with one local step.

    Junyi Li, Feihu Huang, Heng Huang. Communication-Efficient Federated Bilevel Optimization with Global and Local
    Lower Level Problems. Advances in Neural Information Processing Systems 36, pp. 1326–1338, 2023. Section 5.2: a
    baseline, Algorithm 4 with I = 1. Update, symbols and arguments are those of :class:`FedBiOAccLocal`; no values of
    its own are published.
    """

    name: ClassVar[str] = "DistBiOAcc"

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """c_v = 0 never forgets: it is for whole sets only. One local step."""
        check_forgets(self, whole_sets, "c_x", "c_y")
        check_one_step(self, steps)
