"""The SimFBO family: one exchange of directions a round for (x, y, z), z tracking [∇²_yy G]⁻¹ ∇_y F.

SimFBO sums the directions of its local steps; ShroFBO divides by the work done, so that clients with more steps do not
pull harder; ASFBO adds momentum to the local steps and adaptive rates at the server; LA-ASFBO uses STORM for momentum.
D_x, D_y and D_z are those of :func:`rookery.algorithms.steps.directions`.
"""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_fraction, check_positive, check_rates, require
from rookery.algorithms.steps import (
    Batches,
    add,
    batches,
    descend,
    directions,
    feasible,
    in_ball,
    in_round,
    moving_average,
    only,
    storm,
    times,
    zeros,
)
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors, X, Y

Rho = Literal["all", "active"] | float
"""The scale ρ of ShroFBO and ASFBO: of all clients, of the participants, or a number."""


class SimFBO(Algorithm):
    """SimFBO: τ_i simultaneous local steps on (x, y, z); the server steps along the sum of the directions.

    Yifan Yang, Peiyao Xiao, Kaiyi Ji. SimFBO: Towards simple, flexible and communication-efficient federated bilevel
    learning. Advances in Neural Information Processing Systems 36, pp. 33027–33040, 2023. Its box was not at hand: from
    general knowledge, and consistent with what MeFBO's and ASFBO's papers say of it; local weights a_i^{t,k} = 1.

    Bilevel, one lower level for all clients, strongly convex in y.

        client:   v ← v − η_v D_v(x, y, z), v = x, y, z, all at the same point, τ_i times; it uploads q_v = Σ_k D_v
        server:   v ← v − γ_v Σ_{i∈C} (n/P)p_i q_v,i,   z projected on its ball

    x and y are projected on X and Y after every step. Paper → here: v, η_v, γ_v (of the linear system) → z, eta_z,
    gamma_z.

    Args:
        eta_x, eta_y, eta_z: client steps (no effect with τ = 1).
        gamma_x, gamma_y, gamma_z: server steps. Published by MeFBO's paper, both alike: hyper-representation 0.2, 0.1, 0.05
            (τ = 1); loss tuning 0.08, 0.05, 0.01 (τ = 1); data cleaning 0.08, 0.06, 0.03 (τ = 1).
        radius: r of the ball for z; in theory L_f/μ.
        tie_batches: one f batch and one g batch for the three directions, at half the cost.
    """

    name: ClassVar[str] = "SimFBO"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "SimFBO"
    status: ClassVar[str] = "K"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    eta_z: Any = rate(0.05, "1/L")
    gamma_x: Any = rate(0.2, follows="eta_x")
    gamma_y: Any = rate(0.1, follows="eta_y")
    gamma_z: Any = rate(0.05, follows="eta_z")
    radius: Any = float("inf")
    tie_batches: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "eta_z", "gamma_x", "gamma_y", "gamma_z")
        check_positive(self, "radius")

    def init(self, x: X, y: Y) -> Tree:
        """z starts at 0."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of directions."""
        return (Exchange(only("x", "y", "z"), self.client, self.server, weighting="direction"),)

    def client(self, local: Local, down: Tree) -> Tree:
        """q_v, the sum of the directions along the local path."""
        eta = in_round(local.round, x=self.eta_x, y=self.eta_y, z=self.eta_z)
        return summed_directions(local, down, eta, self.tie_batches)

    def server(self, ctx: Context, server: Tree, q: Tree) -> Tree:
        """v − γ_v q_v."""
        gamma = in_round(ctx.round, x=self.gamma_x, y=self.gamma_y, z=self.gamma_z)
        return projected(ctx, descend(server, q, gamma), self.radius)


class ShroFBO(Algorithm):
    """ShroFBO: SimFBO with the server step normalised for unequal local work.

    Yifan Yang, Peiyao Xiao, Kaiyi Ji. SimFBO: Towards simple, flexible and communication-efficient federated bilevel
    learning. Advances in Neural Information Processing Systems 36, pp. 33027–33040, 2023. Its box was not at hand: the
    formulas are those that ASFBO's paper restates.

    Bilevel, one lower level for all clients, strongly convex in y.

        client:   v ← v − η_v D_v(x, y, z), v = x, y, z, τ_i times; it uploads h_v = q_v/τ_i, q_v = Σ_k D_v
        server:   v ← v − ρ γ_v Σ_{i∈C} (n/P)p_i h_v,i,   z projected on its ball

    x and y are projected on X and Y after every step. Paper → here: ‖a_i‖₁ → τ_i; v (of the linear system) → z.

    Args:
        eta_x, eta_y, eta_z: client steps (no effect with τ = 1).
        gamma_x, gamma_y, gamma_z: server steps; no values of its own published by the papers at hand.
        radius: r of the ball for z; in theory L_f/μ.
        tie_batches: one f batch and one g batch for the three directions, at half the cost.
        rho: the scale ρ: "all": Σ_j p_j τ_j over all clients, as printed; "active": Σ_{i∈C} (n/P)p_i τ_i; or a number.
    """

    name: ClassVar[str] = "ShroFBO"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "SimFBO"
    status: ClassVar[str] = "K"

    eta_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    eta_z: Any = rate(0.05, "1/L")
    gamma_x: Any = rate(0.2, follows="eta_x")
    gamma_y: Any = rate(0.1, follows="eta_y")
    gamma_z: Any = rate(0.05, follows="eta_z")
    radius: Any = float("inf")
    tie_batches: bool = eqx.field(static=True, default=False)
    rho: Rho = eqx.field(static=True, default="all")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "eta_z", "gamma_x", "gamma_y", "gamma_z")
        check_positive(self, "radius")
        check_rho(self)

    def init(self, x: X, y: Y) -> Tree:
        """z starts at 0."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of directions."""
        return (Exchange(only("x", "y", "z"), self.client, self.server, weighting="direction"),)

    def client(self, local: Local, down: Tree) -> Tree:
        """h_v = q_v/τ_i."""
        eta = in_round(local.round, x=self.eta_x, y=self.eta_y, z=self.eta_z)
        return by_work(local, summed_directions(local, down, eta, self.tie_batches), self.rho)

    def server(self, ctx: Context, server: Tree, h: Tree) -> Tree:
        """v − ρ γ_v h_v."""
        gamma = in_round(ctx.round, x=self.gamma_x, y=self.gamma_y, z=self.gamma_z)
        return projected(ctx, descend(server, h, times(scale(ctx, h, self.rho), gamma)), self.radius)


class AdaptiveSingleLoop(Algorithm):
    """Abstract: Algorithm 1 of ASFBO's paper, one box for two algorithms; a member gives its line 9 (``momentum``)."""

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "ASFBO"
    status: ClassVar[str] = "P"

    eta_x: Any = rate(0.01, "free")
    eta_y: Any = rate(0.03, "1/L")
    eta_z: Any = rate(0.02, "1/L")
    gamma_x: Any = rate(0.03, "ratio", knob="adapt", times=lambda rates, scales: rates["eta_x"] * scales.size_x)
    gamma_y: Any = rate(0.03, "ratio", knob="adapt", times=lambda rates, scales: rates["eta_y"] * scales.size_y)
    gamma_z: Any = rate(0.05, "ratio", knob="adapt", times=lambda rates, scales: rates["eta_z"] * scales.size_z)
    radius: Any = float("inf")
    tie_batches: bool = eqx.field(static=True, default=False)
    rho: Rho = eqx.field(static=True, default="all")
    beta: Any = rate(0.25, "(0, 1]")
    decay: Any = 0.75
    epsilon: Any = 0.001
    clip_x: tuple[Any, Any] = rate((0.01, 0.1), follows=lambda rates, scales: around(rates["eta_x"]))
    clip_y: tuple[Any, Any] = rate((0.03, 0.3), follows=lambda rates, scales: around(rates["eta_y"]))
    clip_z: tuple[Any, Any] = rate((0.02, 0.2), follows=lambda rates, scales: around(rates["eta_z"]))

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "eta_z", "gamma_x", "gamma_y", "gamma_z")
        check_positive(self, "radius", "epsilon")
        check_fraction(self, "beta")
        check_fraction(self, "decay", zero=True, schedule=True)
        check_rho(self)
        check_bounds(self, "clip_x", "clip_y", "clip_z")

    def momentum(self, b: Batches, new: Vectors, old: Vectors, m: Vectors) -> Vectors:
        """Line 9: the buffers after the local step from ``old`` to ``new``."""
        raise NotImplementedError

    def init(self, x: X, y: Y) -> Tree:
        """Line 1: the running sizes s start at 0, and z."""
        zero = jnp.zeros((), x.dtype)
        return {"x": x, "y": y, "z": jnp.zeros_like(y), "s_x": zero, "s_y": zero, "s_z": zero}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of directions."""
        return (Exchange(only("x", "y", "z"), self.client, self.server, weighting="direction"),)

    def client(self, local: Local, down: Tree) -> Tree:
        """Lines 5–12; the last line 9, which nothing reads, is left out."""
        eta = in_round(local.round, x=self.eta_x, y=self.eta_y, z=self.eta_z)
        m = directions(batches(local, 0, self.tie_batches), down)

        def step(k: Any, state: tuple[Vectors, Vectors, Vectors]) -> tuple[Vectors, Vectors, Vectors]:
            old, m, q = state
            new = feasible(local, descend(old, m, eta))
            m = self.momentum(batches(local, k, self.tie_batches), new, old, m)
            return new, m, add(q, m)

        _, _, q = local.loop(step, (down, m, m), first=1)
        return by_work(local, q, self.rho)

    def server(self, ctx: Context, server: Tree, h: Tree) -> Tree:
        """Lines 14–16: sizes s_v, adaptive rates, step."""
        rho, decay = scale(ctx, h, self.rho), at(self.decay, ctx.round)
        clips = {"x": self.clip_x, "y": self.clip_y, "z": self.clip_z}
        sizes, gamma = {}, {}
        for v, most in in_round(ctx.round, x=self.gamma_x, y=self.gamma_y, z=self.gamma_z).items():
            s = decay * server["s_" + v] + (1 - decay) * jnp.linalg.norm(h[v])
            sizes["s_" + v], gamma[v] = s, rho * jnp.clip(most / (s + self.epsilon), *clips[v])
        return {**projected(ctx, descend(server, h, gamma), self.radius), **sizes}


class ASFBO(AdaptiveSingleLoop):
    """ASFBO: local momentum, and server rates that adapt to the size of the directions; one exchange a round.

    Anonymous authors (under double-blind review in the text at hand, venue and year not stated).
    Communication-Efficient Adaptive Federated Bi-level Optimization with Data and System Heterogeneity. Algorithm 1
    with eq. 20, eqs. 15–30.

    Bilevel, one lower level for all clients, strongly convex in y; unequal τ_i.

        client:   m_v = D_v(x, y, z) afresh each round, then for k < τ_i                                      (lines 5, 6)
                  v ← v − η_v m_v (x, y projected),    m_v ← β D_v(new point) + (1 − β) m_v                   (lines 8, 9)
                  it uploads Σ_k m_v /τ_i                                                                     (lines 11, 12)
        server:   h_v the (n/P)p_i-weighted mean,   s_v ← ϱ s_v + (1 − ϱ)‖h_v‖                                (lines 14, 15)
                  v ← v − ρ clip(γ_v/(s_v + ε), low_v, high_v) h_v,   z projected on its ball                 (lines 15, 16)

    Paper → here: u, v, w → m_x, m_y, m_z; a, b, c of line 1 → s_x, s_y, s_z; ρ^(t) of eq. 25 → rho; ρ of eq. 28 →
    epsilon; ϱ, ς → decay; the bounds of Assumption 9 → clip_v; ‖a_i‖₁ → τ_i.

    Args:
        eta_x, eta_y, eta_z: client steps. Published, and the defaults: 0.01, 0.03, 0.02 (τ_i uniform on 5, ..., 15).
        gamma_x, gamma_y, gamma_z: γ_v. Published, and the defaults: 0.03, 0.03, 0.05.
        radius: r of the ball for z; in theory L_f/μ_g, no value published.
        tie_batches: one f batch and one g batch for the three directions, at half the cost; eqs. 17–18 print it so.
        rho: the scale ρ: "all": Σ_j p_j τ_j over all clients, as printed; "active": Σ_{i∈C} (n/P)p_i τ_i; or a number.
        beta: weight of the new direction in the buffers. Published: 0.25.
        decay, epsilon: ϱ and ε. Published: 0.75, 0.001.
        clip_x, clip_y, clip_z: (low, high) bounds of the adaptive rates. Published, and the defaults. Clipping comes last:
            γ_v = 0 freezes v only together with clip_v = (0, 0).
    """

    name: ClassVar[str] = "ASFBO"

    def momentum(self, b: Batches, new: Vectors, old: Vectors, m: Vectors) -> Vectors:
        """Eq. 20: β D_v(new; ξ) + (1 − β) m_v."""
        return moving_average(directions(b, new), m, dict.fromkeys(m, self.beta))


class LAASFBO(AdaptiveSingleLoop):
    """LA-ASFBO: ASFBO with STORM buffers.

    Anonymous authors (under double-blind review in the text at hand, venue and year not stated).
    Communication-Efficient Adaptive Federated Bi-level Optimization with Data and System Heterogeneity. Algorithm 1
    with eq. 21.

    Bilevel, one lower level for all clients, strongly convex in y; unequal τ_i. All but line 9 is as in :class:`ASFBO`:

        m_v ← D_v(new; ξ) + (1 − β)(m_v − D_v(old; ξ)),    the same ξ at both points

    Symbols, arguments and published values are those of :class:`ASFBO`.
    """

    name: ClassVar[str] = "LA-ASFBO"

    def momentum(self, b: Batches, new: Vectors, old: Vectors, m: Vectors) -> Vectors:
        """Eq. 21: D_v(new; ξ) + (1 − β)(m_v − D_v(old; ξ))."""
        return storm(directions(b, new), directions(b, old), m, dict.fromkeys(m, self.beta))


def around(eta: Any) -> tuple[Any, Any]:
    """Bounds a factor of 10 apart, as all published ones are, with the client's step in the middle."""
    return eta / 10**0.5, eta * 10**0.5


def summed_directions(local: Local, v: Vectors, eta: Vectors, tie: bool) -> Vectors:
    """q_v = Σ_k D_v along v ← Π(v − η_v D_v(v)), τ_i steps."""

    def step(k: Any, state: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
        v, q = state
        d = directions(batches(local, k, tie), v)
        return feasible(local, descend(v, d, eta)), add(q, d)

    q: Vectors
    _, q = local.loop(step, (v, zeros(v)))
    return q


def by_work(local: Local, q: Vectors, rho: Rho) -> Vectors:
    """h_v = q_v/τ_i, and τ_i itself where ρ needs it."""
    h = {v: each / local.tau for v, each in q.items()}
    return {**h, "work": jnp.asarray(local.tau, q["x"].dtype)} if rho == "active" else h


def scale(ctx: Context, h: Tree, rho: Rho) -> Any:
    """ρ: Σ_j p_j τ_j, the participants' weighted mean of τ_i, or the number itself."""
    if isinstance(rho, str):
        return jnp.asarray(h["work"] if rho == "active" else ctx.mean_steps(), h["x"].dtype)
    return rho


def projected(ctx: Context, v: Vectors, radius: Any) -> Vectors:
    """x on X, y on Y, z on its ball."""
    return in_ball(feasible(ctx, v), radius)


def check_rho(owner: Any) -> None:
    """'all', 'active' or a positive number."""
    number = isinstance(owner.rho, int | float) and owner.rho > 0
    known = owner.rho in ("all", "active") or number
    require(known, owner, "rho", owner.rho, "'all', 'active' or a positive number")


def check_bounds(owner: Any, *names: str) -> None:
    """(low, high) with 0 <= low <= high."""
    for name in names:
        clip = getattr(owner, name)
        pair = isinstance(clip, tuple) and len(clip) == 2
        require(pair and _ordered(*clip), owner, name, clip, "(low, high) with 0 <= low <= high")


def _ordered(low: Any, high: Any) -> bool:
    return bool(jnp.min(jnp.asarray(low)) >= 0) and bool(jnp.all(jnp.asarray(low) <= jnp.asarray(high)))
