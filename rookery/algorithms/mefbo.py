"""MeFBO: first-order federated bilevel optimization by the Moreau envelope of the lower level."""

import warnings
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_positive, check_rates, known
from rookery.algorithms.steps import add, descend, feasible, in_round, only, zeros
from rookery.problem.clients import Clients
from rookery.problem.oracles import saddle
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import Power, at
from rookery.typing import Tree, Vectors, X, Y


class MeFBO(Algorithm):
    """MeFBO: only first derivatives, the lower level may be nonconvex; one exchange of directions a round.

    Anonymous authors (under double-blind review in the text at hand, venue and year not stated). MeFBO: A Moreau
    envelope based first-order stochastic gradient method for nonconvex federated bilevel optimization. Algorithm 1,
    eqs. 7–12.

    Bilevel, one lower level for all clients, weakly convex in y; x and y may be constrained. From (x, y, θ) of the
    server, for k < τ, with one batch of f and one of g a step:

        h_θ = ∇_y g(x, θ) + (θ − y)/ν                                                                         (eq. 8)
        h_y = ∇_y f(x, y)/c + ∇_y g(x, y) − (y − θ)/ν
        h_x = ∇_x f(x, y)/c + ∇_x g(x, y) − ∇_x g(x, θ),       v ← v − η_v h_v
        server:   v ← Proj(v − γ_v h_v),   h_v the (n/P)p_i-weighted mean of averages over a client's steps   (eqs. 10–12)

    With τ = 1 the client steps η have no effect.

    Paper → here: λ_x, λ_y, λ_θ → gamma_x, gamma_y, gamma_theta;  γ (proximal) → nu;  c_t → c;  w_i → p_i.

    Args:
        eta_x, eta_y, eta_theta: client steps.
        gamma_x, gamma_y, gamma_theta: server steps. Published, equal to the client's: hyper-representation 0.1, 0.1, 0.07;
            loss tuning 0.1, 0.06, 0.01; data cleaning 0.1, 0.05, 0.03.
        c: the penalty c_t, which should grow slowly: c̲(t+1)^p. Published: 2.7(t+1)^0.001, 4(t+1)^0.1, 2(t+1)^0.01.
        nu: the proximal parameter ν. Published: 0.015, 0.015, 0.05, which cannot be literal (docs/fidelity.md).
        smoothness, convexity: L_2 and μ of the lower level, if known: steps that cannot be stable are then warned of.
    """

    name: ClassVar[str] = "MeFBO"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "MeFBO"
    status: ClassVar[str] = "P"

    eta_x: Any = rate(0.1, follows=lambda rates, scales: rates["gamma_x"] / scales.tau)
    eta_y: Any = rate(0.1, follows=lambda rates, scales: rates["gamma_y"] / scales.tau)
    eta_theta: Any = rate(0.1, follows=lambda rates, scales: rates["gamma_theta"] / scales.tau)
    gamma_x: Any = rate(1.0, "free", times=lambda rates, scales: rates["c"])
    gamma_y: Any = rate(0.3, "1/L", knob="y", times=lambda rates, scales: rates["c"] / (1 + rates["c"]))
    gamma_theta: Any = rate(0.3, "1/L", knob="y", times=lambda rates, scales: rates["c"] / (1 + rates["c"]))
    c: Any = rate(Power(2.7, 0.001), "penalty")
    nu: Any = rate(2.0, "above 1/L")
    smoothness: float | None = eqx.field(static=True, default=None)
    convexity: float | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "eta_theta", "gamma_x", "gamma_y", "gamma_theta")
        check_positive(self, "nu")
        check_positive(self, "c", schedule=True)

    def init(self, x: X, y: Y) -> Tree:
        """θ starts at y."""
        return {"x": x, "y": y, "theta": y}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of directions."""
        return (Exchange(only("x", "y", "theta"), self.client, self.server, weighting="direction"),)

    def client(self, local: Local, down: Tree) -> Tree:
        """Eqs. 8 and 10: τ steps on (x, y, θ); the averages of their directions."""
        eta = in_round(local.round, x=self.eta_x, y=self.eta_y, theta=self.eta_theta)
        c = at(self.c, local.round)

        def step(k: Any, state: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
            v, total = state
            h_x, h_y, h_theta = saddle(local.f(k), local.g(k), v["x"], v["y"], v["theta"], c, self.nu)
            h = {"x": h_x, "y": h_y, "theta": h_theta}
            return descend(v, h, eta), add(total, h)

        _, total = local.loop(step, (down, zeros(down)))
        return {n: h / local.tau for n, h in total.items()}

    def server(self, ctx: Context, server: Tree, h: Tree) -> Tree:
        """Eq. 12; θ lies in Y, too."""
        gamma = in_round(ctx.round, x=self.gamma_x, y=self.gamma_y, theta=self.gamma_theta)
        new = feasible(ctx, descend(server, h, gamma))
        return {**new, "theta": ctx.project_y(new["theta"])}

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
