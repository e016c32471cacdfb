"""FedBiO and FedBiOAcc; :mod:`rookery.algorithms.fedbio_local` has their -Local versions.

J. Li, F. Huang and H. Huang, NeurIPS 2023 (docs/bibliography.md). Paper → here, in all of its boxes:

    x_t^(m), y_t^(m), u_t^(m)          x, y, z of a client             ω, ν, q       d_y, d_x, d_z
    γ, η, τ                            eta_y, eta_x, eta_z             α_t           δ_s = delta/(offset + s)^{1/3}
    c_ω (C_γ), c_ν (c_η, C_η), c_u     c_y, c_x, c_z                   δ, u          delta, offset
    P_r                                the ball of ``radius``          I, M          local_steps (τ), number of clients

A round is I iterations of a box; its averages end the round. With constraints (the paper has none) a point is projected
on X and Y before every local step, so that no derivative is taken outside, and at the server after the average.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Reply, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Local
from rookery.algorithms.checks import (
    check_counts,
    check_equal_steps,
    check_forgets,
    check_momentum,
    check_optional,
    check_positive,
    check_rates,
)
from rookery.algorithms.steps import (
    as_momenta,
    batches,
    clock,
    cube_root,
    descend,
    directions,
    feasible,
    first_is_one,
    in_ball,
    in_round,
    momenta,
    only,
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


class FedBiO(Algorithm):
    """FedBiO: local steps on (x, y, z) together, then averages of the iterates; one exchange a round.

    Junyi Li, Feihu Huang, Heng Huang. Communication-Efficient Federated Bilevel Optimization with Global and Local
    Lower Level Problems. Advances in Neural Information Processing Systems 36, pp. 1326–1338, 2023. Algorithm 2, eq. 6.

    Bilevel, one lower level for all clients, strongly convex in y. For k < τ, all at the old point, five independent
    batches, then the average of (x, y, z):

        y ← y − η_y ∇_y g                                                   (lines 5, 7)
        x ← x − η_x (∇_x f − ∇²_xy g z)                                     (lines 6, 7)
        z ← P_r(z − η_z (∇²_yy g z − ∇_y f))                                (line 12)

    Paper → here: u → z;  γ_t, η_t, τ_t → eta_y, eta_x, eta_z;  I → local_steps.

    Args:
        eta_x, eta_y, eta_z: steps. Published (data cleaning, I = 5): η_x 1000, η_y 0.5, η_z not given.
        radius: r of the ball for z, applied after every local step; C_f/μ in theory, no value published.
        tie_batches: one f batch and one g batch for the three directions, at half the cost.
    """

    name: ClassVar[str] = "FedBiO"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedBiOAcc"
    status: ClassVar[str] = "P"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    eta_z: Any = rate(0.05, "1/L")
    radius: Any = float("inf")
    tie_batches: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "eta_z")
        check_positive(self, "radius")

    def init(self, x: X, y: Y) -> Tree:
        """z starts at 0."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates."""
        return (Exchange(only("x", "y", "z"), self.client, receive),)

    def client(self, local: Local, down: Tree) -> Tree:
        """Lines 4–7 and 12, I times."""
        eta = in_round(local.round, x=self.eta_x, y=self.eta_y, z=self.eta_z)

        def step(k: Any, v: Vectors) -> Vectors:
            v = feasible(local, v)
            d = directions(batches(local, k, self.tie_batches), v)
            return in_ball(descend(v, d, eta), self.radius)

        return local.loop(step, down)


class FedBiOAcc(Algorithm):
    """FedBiOAcc: STORM on the three directions of FedBiO; iterates and directions are averaged, two exchanges a round.

    Junyi Li, Feihu Huang, Heng Huang. Communication-Efficient Federated Bilevel Optimization with Global and Local
    Lower Level Problems. Advances in Neural Information Processing Systems 36, pp. 1326–1338, 2023. Algorithm 1,
    eqs. 7–8.

    Bilevel, one lower level for all clients, strongly convex in y. With s = 1, 2, ... counting local steps and v = x,
    y, z:

        v ← Π(v − η_v δ_s d_v),                                    averaged every τ steps             (lines 4–9)
        d_v ← D_v(new; ξ) + (1 − c_v δ_s²)(d_v − D_v(old; ξ)),     averaged every τ steps, at the average  (lines 10–15)

    Π projects on X, Y and the ball of z; a round's last step is averaged first, then projected by the server. The old
    point is the client's own, also right after an average. A round's participants take part in both exchanges.

    Paper → here: u_t → z;  ω, ν, q → d_y, d_x, d_z;  γ, η, τ → eta_y, eta_x, eta_z;  c_ω, c_ν, c_u → c_y, c_x, c_z;
    α_t → δ_s = delta/(offset + s)^{1/3};  I → local_steps.

    Args:
        eta_x, eta_y, eta_z: steps. Published (data cleaning, I = 5): 200, 1, 0.01.
        delta, offset: δ and u of the schedule. Published: 30, 10000.
        c_x, c_y, c_z: momentum constants; c_v δ_1² must be at most 1. Published: c_x = c_y = 0.2, c_z not given.
        radius: r of the ball for z, applied after every local step; no value published.
        tie_batches: one f batch and one g batch for the three directions, at half the cost.
        first_batch: how many ordinary batches make the first directions; by default the number of local steps, for
            the theory asks for b_1 = O(I b).
        average_first: average the first directions too, in one more exchange in round 0; the box does not.
    """

    name: ClassVar[str] = "FedBiOAcc"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedBiOAcc"
    status: ClassVar[str] = "P"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    eta_z: Any = rate(0.05, "1/L")
    delta: Any = rate(1.0, follows=first_is_one)
    offset: Any = rate(1.0, "steps")
    c_x: Any = rate(1.0, "(0, 1]", knob="c")
    c_y: Any = rate(1.0, "(0, 1]", knob="c")
    c_z: Any = rate(1.0, "(0, 1]", knob="c")
    radius: Any = float("inf")
    tie_batches: bool = eqx.field(static=True, default=False)
    first_batch: int | None = eqx.field(static=True, default=None)
    average_first: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "eta_z")
        check_momentum(self, "c_x", "c_y", "c_z")
        check_positive(self, "radius")
        check_optional(check_counts, self, "first_batch")

    def init(self, x: X, y: Y) -> Tree:
        """z starts at 0; the first directions are the clients' own, in round 0."""
        return with_momenta({"x": x, "y": y, "z": jnp.zeros_like(y)})

    def round(self) -> tuple[Stage, ...]:
        """Iterates first, then the directions at the averaged iterate."""
        point, both = only("x", "y", "z"), only("x", "y", "z", "d_x", "d_y", "d_z")
        first = Exchange(point, self.begin, receive_momenta, when=lambda server, ctx: ctx.round == 0)
        rest = Exchange(both, self.iterate, receive), Exchange(point, self.renew, receive_momenta)
        return (first, *rest) if self.average_first else rest

    def begin(self, local: Local, down: Tree) -> Vectors:
        """Line 2, to be averaged."""
        return as_momenta(self.first(local, down))

    def first(self, local: Local, down: Tree) -> Vectors:
        """Line 2: the directions at the start, on a larger batch."""
        return directions(batches(local, 0, self.tie_batches, times=self.first_batch or local.max_tau), down)

    def iterate(self, local: Local, down: Tree) -> Reply:
        """Lines 4 and 10, τ − 1 times, then line 4 once more: the average of what it makes comes before line 10."""
        v = {name: down[name] for name in ("x", "y", "z")}
        told = momenta(down, v)
        d = told if self.average_first else local.at_start(lambda: self.first(local, v), lambda: told)

        def step(k: Any, state: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
            old, d = state
            new = feasible(local, self.move(local, k, old, d))
            b = batches(local, k, self.tie_batches)
            return new, storm(directions(b, new), directions(b, old), d, self.beta(local, k))

        old, d = local.loop(step, (v, d), first=1)
        return Reply(self.move(local, local.max_tau, old, d), carry={"old": old, "d": d})

    def renew(self, local: Local, down: Tree, carry: Tree) -> Vectors:
        """Line 10 at the averaged point, on the draw of the first point of the next round."""
        b = batches(local, 0, self.tie_batches, ahead=1)
        new, old = directions(b, down), directions(b, carry["old"])
        return as_momenta(storm(new, old, carry["d"], self.beta(local, local.max_tau)))

    def move(self, local: Local, k: Any, v: Vectors, d: Vectors) -> Vectors:
        """Line 4: v − η_v δ_s d_v, z in its ball; k = 1, ..., τ in a round."""
        eta = in_round(local.round, x=self.eta_x, y=self.eta_y, z=self.eta_z)
        delta = cube_root(self.delta, self.offset, clock(local, k))
        return in_ball(descend(v, d, times(delta, eta)), self.radius)

    def beta(self, local: Local, k: Any) -> Vectors:
        """c_v δ_s²."""
        delta = cube_root(self.delta, self.offset, clock(local, k))
        return times(delta**2, {"x": self.c_x, "y": self.c_y, "z": self.c_z})

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """c_v = 0 never forgets: it is for whole sets only. All clients make the same number of steps."""
        check_forgets(self, whole_sets, "c_x", "c_y", "c_z")
        check_equal_steps(self, steps)
