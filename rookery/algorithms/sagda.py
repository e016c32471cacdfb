"""FSGDA and SAGDA: local descent-ascent with steps at the server, without and with control variates."""

from typing import Any, ClassVar

import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Reply, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_rates
from rookery.algorithms.descent_ascent import gradients, inside, local_steps, move, point, server_step
from rookery.algorithms.steps import add, only
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors, X, Y


class FSGDA(Algorithm):
    """FSGDA: Local SGDA with steps at the server; SAGDA without its control variates.

    Haibo Yang, Zhuqing Liu, Xin Zhang, Jia Liu: SAGDA: achieving O(ε⁻²) communication complexity in federated min-max
    learning. arXiv:2210.00611, 2022. Defined here from its abstract.

    Solves: minimax.

        x ← x − η_x ∇_x f_i(x, y; ξ),   y ← Π_Y(y + η_y ∇_y f_i(x, y; ξ))     τ times; one ξ, both at the old point
        v̄ ← v̄ + γ_v (mean v_i − v̄),   v = x, y;   x̄ is then projected on X and ȳ on Y

    Args:
        eta_x, eta_y: the clients' steps.
        gamma_x, gamma_y: the server's steps; above 1 they extrapolate.
    """

    name: ClassVar[str] = "FSGDA"
    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "SAGDA"
    status: ClassVar[str] = "D"

    eta_x: Any = rate(0.01, "free")
    eta_y: Any = rate(0.1, "1/L")
    gamma_x: Any = rate(1.0, "server")
    gamma_y: Any = rate(1.0, "server")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "gamma_x", "gamma_y")

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates."""
        return (Exchange(only("x", "y"), self.client, self.server),)

    def client(self, local: Local, down: Tree) -> Tree:
        """τ descent-ascent steps."""

        def step(k: Any, v: Vectors) -> Vectors:
            return move(local, v, gradients(local.f(k), v), self.eta_x, self.eta_y)

        return local_steps(local, point(down), step)

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The server's steps."""
        return inside(ctx, server_step(server, mean, at(self.gamma_x, ctx.round), at(self.gamma_y, ctx.round)))


class SAGDA(Algorithm):
    """SAGDA: FSGDA with control variates from the participants of the round, so that local steps do not drift apart.

    Haibo Yang, Zhuqing Liu, Xin Zhang, Jia Liu: SAGDA: achieving O(ε⁻²) communication complexity in federated min-max
    learning. arXiv:2210.00611, 2022. Defined here from its abstract; the anchor's own batch is ours.

    Solves: minimax; theory for F PL in y.

        c_v,i = ∇_v f_i(x̄, ȳ; ξ_i),   c_v = mean c_v,i                                        first exchange; v = x, y
        v ← v ∓ η_v (∇_v f_i(x, y; ξ) + c_v − c_v,i),   − for x, + and Π_Y for y              τ times, one ξ, the old point
        v̄ ← v̄ + γ_v (mean v_i − v̄);   x̄ is then projected on X and ȳ on Y                    second exchange

    Clients keep nothing between rounds: the anchors c_i are taken afresh.

    Args:
        eta_x: the clients' step of x; FedSGDA's grid for this baseline is {.001, .005, .01}.
        eta_y: the clients' step of y; there {.0001, .001, (.01)}.
        gamma_x, gamma_y: the server's steps; above 1 they extrapolate; there {.9, 1, 1.5, 2}.
    """

    name: ClassVar[str] = "SAGDA"
    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "SAGDA"
    status: ClassVar[str] = "D"

    eta_x: Any = rate(0.01, "free")
    eta_y: Any = rate(0.1, "1/L")
    gamma_x: Any = rate(1.0, "server")
    gamma_y: Any = rate(1.0, "server")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "gamma_x", "gamma_y")

    def init(self, x: X, y: Y) -> Tree:
        """c is set anew by every round."""
        return {"x": x, "y": y, "c_x": jnp.zeros_like(x), "c_y": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of anchors, one of iterates; the second need not send the iterates again."""
        return (
            Exchange(only("x", "y"), self.anchor, lambda ctx, server, c: {**server, **c}),
            Exchange(only("c_x", "c_y"), self.client, self.server),
        )

    def anchor(self, local: Local, down: Tree) -> Reply:
        """c_i at the broadcast point; both are carried to the local steps."""
        own = gradients(local.f(0, "anchor"), down)
        return Reply({"c_x": own["x"], "c_y": own["y"]}, carry={"point": down, "own": own})

    def client(self, local: Local, down: Tree, carry: Tree) -> Tree:
        """τ corrected descent-ascent steps."""
        own = carry["own"]
        correction = {"x": down["c_x"] - own["x"], "y": down["c_y"] - own["y"]}

        def step(k: Any, v: Vectors) -> Vectors:
            return move(local, v, add(gradients(local.f(k), v), correction), self.eta_x, self.eta_y)

        return local_steps(local, carry["point"], step)

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The server's steps."""
        new = server_step(server, mean, at(self.gamma_x, ctx.round), at(self.gamma_y, ctx.round))
        return {**server, **inside(ctx, new)}
