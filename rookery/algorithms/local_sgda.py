"""Local SGDA, Local SGDA+ and Momentum Local SGDA: descent-ascent at the clients, averages at the server."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_fraction, check_rates
from rookery.algorithms.descent_ascent import (
    gradients,
    inside,
    local_steps,
    move,
    point,
    renewed,
    snapshot_gradients,
)
from rookery.algorithms.steps import only
from rookery.problem.oracles import Objective
from rookery.typing import Tree, Vectors, X, Y


class LocalSGDA(Algorithm):
    """Local SGDA: τ local descent-ascent steps, then averages of the iterates.

    Yuyang Deng, Mehrdad Mahdavi: Local stochastic gradient descent ascent: convergence analysis and communication
    efficiency. AISTATS 2021. Better rates: Pranay Sharma, Rohan Panda, Gauri Joshi, Pramod Varshney: Federated minimax
    optimization: improved convergence analyses and algorithms. ICML 2022. Here as FedSGDA's paper describes it.

    Solves: minimax; theory for F strongly concave or PL in y.
    Paper → here:  Q → τ.

        x ← x − η_x ∇_x f_i(x, y; ξ),   y ← Π_Y(y + η_y ∇_y f_i(x, y; ξ))     τ times; one ξ, both at the old point
        x̄ = mean x_i,   ȳ = mean y_i                                         at the server

    Args:
        eta_x: step of x; FedSGDA's grid for AUROC maximisation is {.001, .005, .01}.
        eta_y: step of y; there {.0001, .001, (.01)}.

    Published besides: τ from {10, 20, 50}, batches of 50, all of 16 clients.
    """

    name: ClassVar[str] = "Local SGDA"
    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "FedSGDA"
    status: ClassVar[str] = "P"

    eta_x: Any = rate(0.01, "free")
    eta_y: Any = rate(0.1, "1/L")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates."""
        return (Exchange(only("x", "y"), self.client, self.server),)

    def client(self, local: Local, down: Tree) -> Tree:
        """τ descent-ascent steps."""

        def step(k: Any, v: Vectors) -> Vectors:
            return move(local, v, gradients(local.f(k), v), self.eta_x, self.eta_y)

        return local_steps(local, point(down), step)

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The averages."""
        return inside(ctx, mean)


class LocalSGDAPlus(Algorithm):
    """Local SGDA+: Local SGDA whose y step is taken at a snapshot x̃ of x, for problems that are only concave in y.

    Yuyang Deng, Mehrdad Mahdavi: Local stochastic gradient descent ascent: convergence analysis and communication
    efficiency. AISTATS 2021. Better rates: Pranay Sharma, Rohan Panda, Gauri Joshi, Pramod Varshney: Federated minimax
    optimization: improved convergence analyses and algorithms. ICML 2022. Here as FedSGDA's paper describes it.

    Solves: minimax; theory for F concave in y.
    Paper → here:  Q → τ;  S (iterations) → ``snapshot`` (rounds), S = snapshot·τ.

        x ← x − η_x ∇_x f_i(x, y; ξ),   y ← Π_Y(y + η_y ∇_y f_i(x̃, y; ξ))     τ times; one ξ, the old y in both
        x̄ = mean x_i,   ȳ = mean y_i;   every S rounds x̃ ← x̄                 at the server

    The snapshot is sent every round, for new participants have not seen it.

    Args:
        eta_x: step of x; FedSGDA's grid for fair classification is {.01, .03, .05, .1, .3}.
        eta_y: step of y; there {.001, .01, .1}.
        snapshot: rounds between snapshots; there from {1, 5, 10, τ}, τ from {20, 50, 100}.
    """

    name: ClassVar[str] = "Local SGDA+"
    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "FedSGDA"
    status: ClassVar[str] = "P"

    eta_x: Any = rate(0.01, "free")
    eta_y: Any = rate(0.1, "1/L")
    snapshot: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")
        check_counts(self, "snapshot")

    def init(self, x: X, y: Y) -> Tree:
        """The first snapshot is the start."""
        return {"x": x, "y": y, "snapshot": x}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates."""
        return (Exchange(only("x", "y", "snapshot"), self.client, self.server),)

    def client(self, local: Local, down: Tree) -> Tree:
        """τ descent-ascent steps, those of y at the snapshot."""

        def step(k: Any, v: Vectors) -> Vectors:
            return move(local, v, snapshot_gradients(local.f(k), v, down["snapshot"]), self.eta_x, self.eta_y)

        return local_steps(local, point(down), step)

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The averages, and maybe a new snapshot."""
        new = inside(ctx, mean)
        return {**new, "snapshot": renewed(ctx, server["snapshot"], new["x"], self.snapshot)}


class MomentumLocalSGDA(Algorithm):
    """Momentum Local SGDA: Local SGDA along moving averages of the gradients.

    Pranay Sharma, Rohan Panda, Gauri Joshi, Pramod Varshney: Federated minimax optimization: improved convergence analyses
    and algorithms. ICML 2022. From general knowledge of it.

    Solves: minimax; theory for F strongly concave or PL in y.
    Paper → here:  a_t η_v → eta_v;  b_v a_t → beta_v.

        x ← Π_X(x − η_x d_x),   y ← Π_Y(y + η_y d_y),   then   d_v ← (1 − β_v) d_v + β_v ∇_v f_i(new point; new ξ)
        x, y, d_x, d_y are averaged every τ steps

    The first d_v are each client's own gradients at the start. x is projected after every step, since a gradient is taken
    there before any average.

    Args:
        eta_x: step of x; FedSGDA's grid for this baseline is {.001, .005, .01}.
        eta_y: step of y; there {.0001, .001, (.01)}.
        beta_x, beta_y: weights of the new gradient, in (0, 1]; FedSGDA's momentum grid is {.1, .5, .9}.
    """

    name: ClassVar[str] = "Momentum Local SGDA"
    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "Momentum Local SGDA"
    status: ClassVar[str] = "K"

    eta_x: Any = rate(0.01, "free")
    eta_y: Any = rate(0.1, "1/L")
    beta_x: Any = rate(0.5, "(0, 1]", knob="momentum")
    beta_y: Any = rate(0.5, "(0, 1]", knob="momentum")

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")
        check_fraction(self, "beta_x", "beta_y")

    def init(self, x: X, y: Y) -> Tree:
        """The first directions are the clients' own, in round 0."""
        return {"x": x, "y": y, "d_x": jnp.zeros_like(x), "d_y": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates and directions."""
        return (Exchange(only("x", "y", "d_x", "d_y"), self.client, self.server),)

    def client(self, local: Local, down: Tree) -> Tree:
        """τ times a step along d, and d anew where it leads."""

        def step(f: Objective, v: Vectors, d: Vectors) -> tuple[Vectors, Vectors]:
            v = move(local, v, d, self.eta_x, self.eta_y)
            v = {**v, "x": local.project_x(v["x"])}
            new = gradients(f, v)
            beta = {"x": self.beta_x, "y": self.beta_y}
            return v, {n: (1 - beta[n]) * d[n] + beta[n] * new[n] for n in d}

        v = point(down)
        d = local.at_start(lambda: gradients(local.f(0), v), lambda: {"x": down["d_x"], "y": down["d_y"]})
        v, d = local.loop(lambda k, state: step(local.f(k), *state), (v, d), first=1)
        v, d = step(local.f(0, ahead=1), v, d)  # the last point of a round stands for the first of the next one
        return {**v, "d_x": d["x"], "d_y": d["y"]}

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The averages."""
        return {**mean, **inside(ctx, mean)}
