"""FedSGDA+ and FedSGDA-M.

Xidong Wu, Jianhui Sun, Zhengmian Hu, Aidong Zhang, Heng Huang: Solving a class of non-convex minimax optimization in
federated learning. NeurIPS 2023.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Reply, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_fraction, check_rates, known, require
from rookery.algorithms.descent_ascent import (
    gradients,
    inside,
    local_steps,
    move,
    point,
    renewed,
    server_step,
    snapshot_gradients,
)
from rookery.algorithms.steps import only, storm
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors, X, Y


class FedSGDAPlus(Algorithm):
    """FedSGDA+: Local SGDA+ with steps at the server, for nonconvex-concave problems.

    Xidong Wu, Jianhui Sun, Zhengmian Hu, Aidong Zhang, Heng Huang: Solving a class of non-convex minimax optimization in
    federated learning. NeurIPS 2023. Algorithm 1.

    Solves: minimax; theory for F concave in y.
    Paper → here:  ĉ, c → eta_x, eta_y;  η_x, η_y → gamma_x, gamma_y;  Q → τ;  S → snapshot;  N → n.

        x ← x − η_x ∇_x f_i(x, y; ξ),   y ← Π_Y(y + η_y ∇_y f_i(x̃, y; ξ))     τ times; one ξ                (lines 6–10)
        x̄ ← x̄ + γ_x (mean x_i − x̄),   ȳ ← ȳ + γ_y (mean y_i − ȳ)            at the server                (lines 12–13)
        every S rounds   x̃ ← x̄                                                                           (lines 14–17)

    Args:
        eta_x: the clients' step of x; grid {.01, .03, .05, .1, .3} in fair classification.
        eta_y: the clients' step of y; grid {.001, .01, .1}.
        snapshot: S, in rounds; from {1, 5, 10}.
        gamma_x, gamma_y: the server's steps; above 1 they extrapolate; grid {.1, .5, 1, 1.5, 2}.
        project_server: project ȳ on Y after an extrapolation, which may leave it; the box has no sets.

    Published besides: τ from {20, 50, 100}, batches of 50, all of 20 clients. Theory: η_x = η_y = 1/(10 L τ T^⅓),
    γ_x η_x = n/(10 L T), γ_y η_y = 1/(10 L τ), τ = T^⅓/n, S = T^⅓.
    """

    name: ClassVar[str] = "FedSGDA+"
    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "FedSGDA"
    status: ClassVar[str] = "P"

    eta_x: Any = rate(0.01, "free")
    eta_y: Any = rate(0.1, "1/L")
    snapshot: int = eqx.field(static=True, default=1)
    gamma_x: Any = rate(1.0, "server")
    gamma_y: Any = rate(1.0, "server")
    project_server: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "gamma_x", "gamma_y")
        check_counts(self, "snapshot")

    def init(self, x: X, y: Y) -> Tree:
        """The first snapshot is the start (line 2)."""
        return {"x": x, "y": y, "snapshot": x}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates."""
        return (Exchange(only("x", "y", "snapshot"), self.client, self.server),)

    def client(self, local: Local, down: Tree) -> Tree:
        """τ descent-ascent steps, those of y at the snapshot (lines 6–10)."""

        def step(k: Any, v: Vectors) -> Vectors:
            return move(local, v, snapshot_gradients(local.f(k), v, down["snapshot"]), self.eta_x, self.eta_y)

        return local_steps(local, point(down), step)

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The server's steps, and maybe a new snapshot (lines 12–17)."""
        new = server_step(server, mean, at(self.gamma_x, ctx.round), at(self.gamma_y, ctx.round))
        x = ctx.project_x(new["x"])
        y = ctx.project_y(new["y"]) if self.project_server else new["y"]
        return {"x": x, "y": y, "snapshot": renewed(ctx, server["snapshot"], x, self.snapshot)}


class FedSGDAM(Algorithm):
    """FedSGDA-M: local descent-ascent along STORM estimates of the gradients, averaged with the iterates.

    Xidong Wu, Jianhui Sun, Zhengmian Hu, Aidong Zhang, Heng Huang: Solving a class of non-convex minimax optimization in
    federated learning. NeurIPS 2023. Algorithm 2.

    Solves: minimax; theory for F strongly concave or PL in y.
    Paper → here:  ĉη, cη → eta_x, eta_y;  Q → τ;  B → first_batch·b;  t (steps) → s;  N → n.

    For s = 1, 2, ..., one batch ξ for all four gradients; x, y, u, v are averaged every τ steps:

        x_s = Π_X(x_{s−1} − η_x u_s),   y_s = Π_Y(y_{s−1} + η_y v_s)                                      (lines 12–13)
              and every τ-th time Π of the MEAN of these steps, u and v the means too                     (lines 7–10)
        u_{s+1} = ∇_x f_i(x_s, y_s; ξ) + (1 − α)(u_s − ∇_x f_i(x_{s−1}, y_{s−1}; ξ)),   v with ∇_y and β  (lines 15–17)

    The paper has no sets; with these projections one local step is the centralised method. (x_{s−1}, y_{s−1}) is the
    client's own point, also right after an average: it keeps that point between rounds. A client that missed a round takes
    the broadcast point instead.

    Args:
        eta_x: step of x; grid {.001, .005, .01} in AUROC maximisation.
        eta_y: step of y; grid {.0001, .001, (.01)}.
        alpha, beta: weights of the new gradient of x and of y, in (0, 1]; 1 is Local SGDA; grid {.1, .5, .9}, α = β.
        first_batch: how many ordinary batches make the first estimates; by default the number of local steps. B is not
            published; in theory it is b τ κ^(1−ν).

    Published besides: τ from {10, 20, 50}, batches of 50, all of 16 clients.
    """

    name: ClassVar[str] = "FedSGDA-M"
    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "FedSGDA"
    status: ClassVar[str] = "P"

    eta_x: Any = rate(0.01, "free")
    eta_y: Any = rate(0.1, "1/L")
    alpha: Any = rate(0.5, "(0, 1]", knob="momentum")
    beta: Any = rate(0.5, "(0, 1]", knob="momentum")
    first_batch: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")
        check_fraction(self, "alpha", "beta", zero=True)
        if self.first_batch is not None:
            check_counts(self, "first_batch")

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """A weight of 0 never forgets: it is for whole sets only."""
        for name in ("alpha", "beta"):
            value = known(getattr(self, name))
            if value is not None and not whole_sets:
                require((value > 0).all(), self, name, getattr(self, name), "in (0, 1] unless batch_size is None")

    def init(self, x: X, y: Y) -> Tree:
        """The first estimates are the clients' own, in round 0."""
        return {"x": x, "y": y, "u": jnp.zeros_like(x), "v": jnp.zeros_like(y)}

    def keep(self, x: X, y: Y) -> Tree:
        """A client keeps its previous point."""
        return {"x": x, "y": y}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates and estimates."""
        return (Exchange(only("x", "y", "u", "v"), self.client, self.server),)

    def client(self, local: Local, down: Tree, keep: Tree) -> Reply:
        """The estimates at the averaged point, then τ steps with τ − 1 new estimates between them."""

        def moved(v: Vectors, d: Vectors) -> Vectors:  # lines 12–13
            t = local.round
            return {"x": v["x"] - at(self.eta_x, t) * d["x"], "y": v["y"] + at(self.eta_y, t) * d["y"]}

        def estimate(k: Any, new: Vectors, old: Vectors, d: Vectors) -> Vectors:  # lines 15–17
            f = local.f(k)
            return storm(gradients(f, new), gradients(f, old), d, {"x": self.alpha, "y": self.beta})

        def step(k: Any, state: tuple[Vectors, Vectors, Vectors]) -> tuple[Vectors, Vectors, Vectors]:
            new, old, d = state
            new = inside(local, new)  # here, and not after the move: the last step of a round is averaged first
            d = estimate(k, new, old, d)
            return moved(new, d), new, d

        here = point(down)
        stayed = local.last == local.round - 1
        old = {n: jnp.where(stayed, keep[n], down[n]) for n in ("x", "y")}
        d = local.at_start(
            lambda: gradients(local.f(0, times=self.first_batch or local.max_tau), here),  # line 2
            lambda: estimate(0, here, old, {"x": down["u"], "y": down["v"]}),
        )
        new, old, d = local.loop(step, (moved(here, d), here, d), first=1)
        return Reply({**new, "u": d["x"], "v": d["y"]}, keep=old)

    def server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The averages (lines 7–10)."""
        return {**mean, **inside(ctx, mean)}
