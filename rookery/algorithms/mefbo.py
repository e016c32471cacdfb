"""MeFBO: first-order federated bilevel optimization by the Moreau envelope of the lower level."""

import warnings
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_positive, check_rates, known
from rookery.algorithms.steps import add, only, zeros
from rookery.problem.clients import Clients
from rookery.problem.oracles import saddle
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import Power, at
from rookery.typing import Tree


class MeFBO(Algorithm):
    """MeFBO (Algorithm 1 of its paper): only first derivatives; the lower level may be nonconvex.

    Client, from (x, y, θ) of the server, for k < τ, with one batch of f and one of g a step:

        h_θ = ∇_y g(x, θ) + (θ − y)/ν
        h_y = ∇_y f(x, y)/c + ∇_y g(x, y) − (y − θ)/ν
        h_x = ∇_x f(x, y)/c + ∇_x g(x, y) − ∇_x g(x, θ),       v ← v − η_v h_v

    It uploads the averages of h over its steps; the server makes a projected step with their (n/P)p_i-weighted mean:
    v ← Proj(v − γ_v h_v). With τ = 1 the client steps η have no effect.

    Args:
        eta_x, eta_y, eta_theta: client steps.
        gamma_x, gamma_y, gamma_theta: server steps.
        c: the penalty c_t, which should grow slowly: c̲(t+1)^p.
        nu: the proximal parameter ν.
        smoothness, convexity: L_2 and μ of the lower level, if known: steps that cannot be stable are then warned of.
    """

    name: ClassVar[str] = "MeFBO"

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "MeFBO"
    status: ClassVar[str] = "P"

    eta_x: Any = 0.1
    eta_y: Any = 0.1
    eta_theta: Any = 0.1
    gamma_x: Any = 1.0
    gamma_y: Any = 0.3
    gamma_theta: Any = 0.3
    c: Any = Power(2.7, 0.001)
    nu: Any = 2.0
    smoothness: float | None = eqx.field(static=True, default=None)
    convexity: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "eta_theta", "gamma_x", "gamma_y", "gamma_theta")
        check_positive(self, "nu")
        check_positive(self, "c", schedule=True)

    def init(self, x: Array, y: Array) -> Tree:
        """θ starts at y."""
        return {"x": x, "y": y, "theta": y}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of directions."""
        return (Exchange(only("x", "y", "theta"), self._client, self._server, weighting="direction"),)

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        t = local.round
        c = at(self.c, t)
        eta = {"x": at(self.eta_x, t), "y": at(self.eta_y, t), "theta": at(self.eta_theta, t)}

        def step(k: Any, state: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
            v, total = state
            h_x, h_y, h_theta = saddle(local.f(k), local.g(k), v["x"], v["y"], v["theta"], c, self.nu)
            h = {"x": h_x, "y": h_y, "theta": h_theta}
            return {n: v[n] - eta[n] * h[n] for n in v}, add(total, h)

        _, total = local.loop(step, (down, zeros(down)))
        return {n: h / local.tau for n, h in total.items()}, keep, carry

    def _server(self, ctx: Context, server: Tree, h: Tree) -> Tree:
        t = ctx.round
        return {
            "x": ctx.project_x(server["x"] - at(self.gamma_x, t) * h["x"]),
            "y": ctx.project_y(server["y"] - at(self.gamma_y, t) * h["y"]),
            "theta": ctx.project_y(server["theta"] - at(self.gamma_theta, t) * h["theta"]),
        }

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """Warns of a ν or of steps that cannot be stable, where L_2 and μ are given."""
        rates = [known(at(rate, 0)) for rate in (self.nu, self.gamma_y, self.gamma_theta)]
        if self.smoothness is None or any(rate is None for rate in rates):
            return
        nu, gamma_y, gamma_theta = (float(jnp.max(jnp.asarray(rate))) for rate in rates)
        if nu >= 1 / (2 * self.smoothness):
            warnings.warn(
                f"MeFBO: the theory asks for nu < 1/(2 L_2) = {1 / (2 * self.smoothness):g}, got {nu:g}", stacklevel=4
            )
        if self.convexity is not None:
            for h in (self.convexity, self.smoothness):  # between them the condition then holds too (φ = 0)
                if not stable(gamma_y, gamma_theta, nu, h):
                    warnings.warn(
                        f"MeFBO: gamma_y={gamma_y:g}, gamma_theta={gamma_theta:g}, nu={nu:g} are unstable where the lower "
                        f"level has curvature {h:g}",
                        stacklevel=4,
                    )


def stable(gamma_y: float, gamma_theta: float, nu: float, h: float, phi: float = 0.0) -> bool:
    """Whether one eigenmode converges (x fixed, τ = 1): curvature h of the lower level, φ of F/c in y.

    0 < d < s and 2s < 4 + d,  s = γ_y(h + φ − 1/ν) + γ_θ(h + 1/ν),  d = γ_y γ_θ (h² + hφ + φ/ν).
    """
    s = gamma_y * (h + phi - 1 / nu) + gamma_theta * (h + 1 / nu)
    d = gamma_y * gamma_theta * (h**2 + h * phi + phi / nu)
    return 0 < d < s and 2 * s < 4 + d
