"""The SimFBO family: one exchange of directions a round for (x, y, z), z tracking [∇²_yy G]⁻¹ ∇_y F.

SimFBO sums the directions of its local steps; ShroFBO divides by the work done, so that clients with more steps do not
pull harder; ASFBO adds momentum to the local steps and adaptive rates at the server; LA-ASFBO uses STORM for momentum.
"""

from typing import Any, ClassVar, Literal

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_fraction, check_positive, check_rates, require
from rookery.algorithms.steps import add, ball, batches, directions, feasible, only, storm, zeros
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors


class SimFBO(Algorithm):
    """SimFBO: τ_i simultaneous local steps on (x, y, z); the server steps along the sum of the directions.

    Client: v ← v − η_v D_v(x, y, z), v = x, y, z, all at the same point, x and y then projected; it uploads q_v = Σ_k D_v.
    Server: v ← v − γ_v Σ (n/P)p_i q_v,i, z projected on the ball of ``radius``, x and y on X and Y. D_v are those of
    :func:`rookery.algorithms.steps.directions`.

    Args:
        eta_x, eta_y, eta_z: client steps (no effect with τ = 1).
        gamma_x, gamma_y, gamma_z: server steps.
        radius: of the ball for z; in theory L_f/μ.
        tie_batches: one f batch and one g batch for the three directions, at half the cost.
    """

    name: ClassVar[str] = "SimFBO"

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "SimFBO"
    status: ClassVar[str] = "K"

    eta_x: Any = 0.1
    eta_y: Any = 0.1
    eta_z: Any = 0.05
    gamma_x: Any = 0.2
    gamma_y: Any = 0.1
    gamma_z: Any = 0.05
    radius: Any = float("inf")
    tie_batches: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "eta_z", "gamma_x", "gamma_y", "gamma_z")
        check_positive(self, "radius")

    def init(self, x: Array, y: Array) -> Tree:
        """z starts at 0."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of directions."""
        return (Exchange(only("x", "y", "z"), self._client, self._server, weighting="direction"),)

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return self._directions(local, down, self._eta(local.round)), keep, carry

    def _directions(self, local: Local, v: Vectors, eta: Vectors) -> Vectors:
        """Σ_k of the directions along the local path."""

        def step(k: Any, state: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
            v, total = state
            d = directions(batches(local, k, self.tie_batches), v)
            return feasible(local, {n: v[n] - eta[n] * d[n] for n in v}), add(total, d)

        return local.loop(step, (v, zeros(v)))[1]

    def _server(self, ctx: Context, server: Tree, q: Tree) -> Tree:
        return {**server, **self._step(ctx, server, q, self._gamma(ctx.round))}

    def _step(self, ctx: Context, server: Tree, d: Vectors, gamma: Vectors) -> Vectors:
        return {
            "x": ctx.project_x(server["x"] - gamma["x"] * d["x"]),
            "y": ctx.project_y(server["y"] - gamma["y"] * d["y"]),
            "z": ball(server["z"] - gamma["z"] * d["z"], self.radius),
        }

    def _eta(self, t: Any) -> Vectors:
        return {"x": at(self.eta_x, t), "y": at(self.eta_y, t), "z": at(self.eta_z, t)}

    def _gamma(self, t: Any) -> Vectors:
        return {"x": at(self.gamma_x, t), "y": at(self.gamma_y, t), "z": at(self.gamma_z, t)}


class ShroFBO(SimFBO):
    """ShroFBO: SimFBO with the server step normalised for unequal local work.

    Client: uploads h_v = q_v/τ_i. Server: v ← v − ρ γ_v Σ (n/P)p_i h_v,i.

    Args:
        rho: the scale ρ: "all": Σ_j p_j τ_j over all clients, as printed; "active": Σ_{i∈C} (n/P)p_i τ_i; or a number.

    The others are those of :class:`SimFBO`.
    """

    name: ClassVar[str] = "ShroFBO"

    paper: ClassVar[str] = "SimFBO"
    status: ClassVar[str] = "K"

    rho: Literal["all", "active"] | float = eqx.field(static=True, default="all")

    def __check_init__(self) -> None:
        number = isinstance(self.rho, int | float) and self.rho > 0
        require(self.rho in ("all", "active") or number, self, "rho", self.rho, "'all', 'active' or a positive number")

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        q = self._directions(local, down, self._eta(local.round))
        up = {v: each / local.tau for v, each in q.items()}
        if self.rho == "active":
            up["work"] = jnp.asarray(local.tau, down["x"].dtype)
        return up, keep, carry

    def _server(self, ctx: Context, server: Tree, h: Tree) -> Tree:
        rho = self._rho(ctx, h)
        gamma = {v: rho * each for v, each in self._gamma(ctx.round).items()}
        return {**server, **self._step(ctx, server, h, gamma)}

    def _rho(self, ctx: Context, h: Tree) -> Any:
        if isinstance(self.rho, str):
            rho = h["work"] if self.rho == "active" else ctx.mean_steps()
            return jnp.asarray(rho, h["x"].dtype)
        return self.rho


class ASFBO(ShroFBO):
    """ASFBO (Algorithm 1 of its paper): local momentum, and server rates that adapt to the size of the directions.

    Client, buffers m_v = D_v(x, y, z) afresh each round, then for k < τ_i:

        v ← v − η_v m_v (x, y projected),    m_v ← β D_v(new point) + (1 − β) m_v;    it uploads Σ_k m_v /τ_i

    Server, with h_v the (n/P)p_i-weighted mean:  s_v ← ϱ s_v + (1 − ϱ)‖h_v‖,
    v ← v − ρ clip(γ_v/(s_v + ε), low_v, high_v) h_v, z projected on the ball of ``radius``.

    Args:
        beta: weight of the new direction in the buffers.
        decay: ϱ.  epsilon: ε.
        clip_x, clip_y, clip_z: (low, high) bounds of the adaptive rates.

    The others are those of :class:`ShroFBO`. Defaults are the paper's where it gives them (not radius, rho). Clipping
    comes last: γ_v = 0 freezes v only together with clip_v = (0, 0).
    """

    name: ClassVar[str] = "ASFBO"

    paper: ClassVar[str] = "ASFBO"
    status: ClassVar[str] = "P"

    eta_x: Any = 0.01
    eta_y: Any = 0.03
    eta_z: Any = 0.02
    gamma_x: Any = 0.03
    gamma_y: Any = 0.03
    gamma_z: Any = 0.05
    beta: Any = 0.25
    decay: Any = 0.75
    epsilon: Any = 0.001
    clip_x: tuple[Any, Any] = (0.01, 0.1)
    clip_y: tuple[Any, Any] = (0.03, 0.3)
    clip_z: tuple[Any, Any] = (0.02, 0.2)

    def __check_init__(self) -> None:
        check_fraction(self, "beta")
        check_fraction(self, "decay", zero=True, schedule=True)
        check_positive(self, "epsilon")
        for name in ("clip_x", "clip_y", "clip_z"):
            clip = getattr(self, name)
            pair = isinstance(clip, tuple) and len(clip) == 2
            require(pair and _ordered(*clip), self, name, clip, "(low, high) with 0 <= low <= high")

    def init(self, x: Array, y: Array) -> Tree:
        """z and the running sizes s start at 0."""
        zero = jnp.zeros((), x.dtype)
        return {**super().init(x, y), "s_x": zero, "s_y": zero, "s_z": zero}

    def _directions(self, local: Local, v: Vectors, eta: Vectors) -> Vectors:
        m = directions(batches(local, 0, self.tie_batches), v)

        def step(k: Any, state: tuple[Vectors, Vectors, Vectors]) -> tuple[Vectors, Vectors, Vectors]:
            old, m, total = state
            v = feasible(local, {n: old[n] - eta[n] * m[n] for n in old})
            m = self._momentum(local, k, v, old, m)
            return v, m, add(total, m)

        return local.loop(step, (v, m, m), first=1)[2]

    def _momentum(self, local: Local, k: Any, v: Vectors, old: Vectors, m: Vectors) -> Vectors:
        d = directions(batches(local, k, self.tie_batches), v)
        return {n: self.beta * d[n] + (1 - self.beta) * m[n] for n in m}

    def _server(self, ctx: Context, server: Tree, h: Tree) -> Tree:
        rho = self._rho(ctx, h)
        sizes, gamma = {}, {}
        clips = {"x": self.clip_x, "y": self.clip_y, "z": self.clip_z}
        for v, rate in self._gamma(ctx.round).items():
            decay = at(self.decay, ctx.round)
            s = decay * server["s_" + v] + (1 - decay) * jnp.linalg.norm(h[v])
            sizes["s_" + v] = s
            gamma[v] = rho * jnp.clip(rate / (s + self.epsilon), *clips[v])
        return {**server, **self._step(ctx, server, h, gamma), **sizes}


class LAASFBO(ASFBO):
    """LA-ASFBO: ASFBO with STORM buffers, m_v ← D_v(new; ξ) + (1 − β)(m_v − D_v(old; ξ)), the same ξ at both points."""

    name: ClassVar[str] = "LA-ASFBO"

    def _momentum(self, local: Local, k: Any, v: Vectors, old: Vectors, m: Vectors) -> Vectors:
        b = batches(local, k, self.tie_batches)
        beta = dict.fromkeys(m, self.beta)
        return storm(directions(b, v), directions(b, old), m, beta)


def _ordered(low: Any, high: Any) -> bool:
    return bool(jnp.min(jnp.asarray(low)) >= 0) and bool(jnp.all(jnp.asarray(low) <= jnp.asarray(high)))
