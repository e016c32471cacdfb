"""Minimax by local descent-ascent: Local SGDA, Local SGDA+, FedSGDA+ and FedSGDA-M."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery.algorithm import Algorithm, Context, Exchange, Local, Step
from rookery.algorithms.common import check_count, check_fraction, check_rates, known, only, require
from rookery.clients import Clients
from rookery.participation import Steps
from rookery.problems import Flat
from rookery.schedules import at

Tree = Any


class LocalSGDA(Algorithm):
    """Local SGDA: τ local descent-ascent steps with one batch for both gradients, then averages of the iterates.

        x ← x − η_x ∇_x f(x, y),   y ← Π_Y(y + η_y ∇_y f(x, y)),   both at the old point

    Args:
        eta_x, eta_y: steps.
    """

    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "FedSGDA"
    status: ClassVar[str] = "P"

    eta_x: Any = 0.01
    eta_y: Any = 0.1

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")

    def round(self) -> tuple[Step, ...]:
        """One exchange of iterates."""
        return (Exchange(only("x", "y"), self._client, self._server),)

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        eta_x, eta_y = at(self.eta_x, local.round), at(self.eta_y, local.round)

        def step(k: Any, v: tuple[Array, Array]) -> tuple[Array, Array]:
            x, y = v
            f_x, f_y = self._gradients(local, k, x, y, down)
            return x - eta_x * f_x, local.project_y(y + eta_y * f_y)

        x, y = local.loop(step, (down["x"], down["y"]))
        return {"x": x, "y": y}, keep, carry

    def _gradients(self, local: Local, k: Any, x: Array, y: Array, down: Tree) -> tuple[Array, Array]:
        return local.f(k).grad(x, y)

    def _server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "x": ctx.project_x(mean["x"]), "y": ctx.project_y(mean["y"])}


class LocalSGDAPlus(LocalSGDA):
    """Local SGDA+: Local SGDA whose y step is taken at a snapshot x̃ of x, for problems that are only concave in y.

        x ← x − η_x ∇_x f(x, y),   y ← Π_Y(y + η_y ∇_y f(x̃, y));   x̃ ← x every ``snapshot`` rounds

    Args:
        snapshot: S, rounds between snapshots.
    """

    snapshot: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        check_count(self, "snapshot")

    def init(self, x: Array, y: Array) -> Tree:
        """The first snapshot is the start."""
        return {"x": x, "y": y, "snapshot": x}

    def round(self) -> tuple[Step, ...]:
        """One exchange of iterates; the snapshot is sent every round, for new participants have not seen it."""
        return (Exchange(only("x", "y", "snapshot"), self._client, self._server),)

    def _gradients(self, local: Local, k: Any, x: Array, y: Array, down: Tree) -> tuple[Array, Array]:
        f = local.f(k)
        return f.grad_x(x, y), f.grad_y(down["snapshot"], y)

    def _server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        new = self._move(ctx, server, mean)
        due = (ctx.round + 1) % self.snapshot == 0
        return {**new, "snapshot": jnp.where(due, new["x"], server["snapshot"])}

    def _move(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return super()._server(ctx, server, mean)


class FedSGDAPlus(LocalSGDAPlus):
    """FedSGDA+ (Algorithm 1 of FedSGDA's paper): Local SGDA+ with steps at the server, for nonconvex-concave problems.

        x̄ ← x̄ + γ_x (mean x_i − x̄),   ȳ ← ȳ + γ_y (mean y_i − ȳ)

    Args:
        gamma_x, gamma_y: server steps; above 1 they extrapolate.
        project_server: project ȳ on Y after an extrapolation, which may leave it.
    """

    name: ClassVar[str] = "FedSGDA+"

    gamma_x: Any = 1.0
    gamma_y: Any = 1.0
    project_server: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        check_rates(self, "gamma_x", "gamma_y")

    def _move(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        x = server["x"] + at(self.gamma_x, ctx.round) * (mean["x"] - server["x"])
        y = server["y"] + at(self.gamma_y, ctx.round) * (mean["y"] - server["y"])
        return {**server, "x": ctx.project_x(x), "y": ctx.project_y(y) if self.project_server else y}


class FedSGDAM(Algorithm):
    """FedSGDA-M (Algorithm 2 of FedSGDA's paper): STORM estimates u, v of the gradients, for NC-PL and NC-SC problems.

    For s = 1, 2, ..., one batch B for all four gradients, x, y, u, v averaged every τ steps:

        x_s = x_{s−1} − η_x u_s,   y_s = Π_Y(y_{s−1} + η_y v_s)
        u_{s+1} = ∇_x f(x_s, y_s; B) + (1 − α)(u_s − ∇_x f(x_{s−1}, y_{s−1}; B)),   v_{s+1} likewise with β

    (x_{s−1}, y_{s−1}) is the client's own point, also right after an average: it keeps that point between rounds. A client
    that missed a round takes the broadcast point instead.

    Args:
        eta_x, eta_y: steps (ĉη and cη of the paper).
        alpha, beta: weights of the new gradient, in (0, 1]; 1 is Local SGDA.
        first_batch: how many ordinary batches make the first estimates; by default the number of local steps.
    """

    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    paper: ClassVar[str] = "FedSGDA"
    status: ClassVar[str] = "P"

    eta_x: Any = 0.01
    eta_y: Any = 0.1
    alpha: Any = 0.5
    beta: Any = 0.5
    first_batch: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")
        check_fraction(self, "alpha", "beta", zero=True)
        if self.first_batch is not None:
            check_count(self, "first_batch")

    def init(self, x: Array, y: Array) -> Tree:
        """The first estimates are the clients' own, in round 0."""
        return {"x": x, "y": y, "u": jnp.zeros_like(x), "v": jnp.zeros_like(y)}

    def keep(self, x: Array, y: Array) -> Tree:
        """A client keeps its previous point."""
        return {"x": x, "y": y}

    def round(self) -> tuple[Step, ...]:
        """One exchange of iterates and estimates."""
        return (Exchange(only("x", "y", "u", "v"), self._client, self._server),)

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        stayed = local.last == local.round - 1
        old = {n: jnp.where(stayed, keep[n], down[n]) for n in ("x", "y")}
        v = {"x": down["x"], "y": down["y"]}
        times = self.first_batch or local.max_tau

        def first() -> Tree:
            u, v_ = local.f(0, times=times).grad(v["x"], v["y"])
            return {"u": u, "v": v_}

        d = self._estimate(local, 0, v, old, {"u": down["u"], "v": down["v"]})
        d = local.at_start(first, d)

        def step(k: Any, state: tuple[Tree, Tree, Tree]) -> tuple[Tree, Tree, Tree]:
            v, old, d = state
            d = self._estimate(local, k, v, old, d)
            return self._move(local, v, d), v, d

        v, old, d = local.loop(step, (self._move(local, v, d), v, d), first=1)
        return {**v, **d}, old, carry

    def _estimate(self, local: Local, k: Any, v: Tree, old: Tree, d: Tree) -> Tree:
        f = local.f(k)
        (new_x, new_y), (old_x, old_y) = f.grad(v["x"], v["y"]), f.grad(old["x"], old["y"])
        return {
            "u": new_x + (1 - self.alpha) * (d["u"] - old_x),
            "v": new_y + (1 - self.beta) * (d["v"] - old_y),
        }

    def _move(self, local: Local, v: Tree, d: Tree) -> Tree:
        eta_x, eta_y = at(self.eta_x, local.round), at(self.eta_y, local.round)
        return {"x": v["x"] - eta_x * d["u"], "y": local.project_y(v["y"] + eta_y * d["v"])}

    def _server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**mean, "x": ctx.project_x(mean["x"]), "y": ctx.project_y(mean["y"])}

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """A weight of 0 never forgets: it is for whole sets only."""
        for name in ("alpha", "beta"):
            value = known(getattr(self, name))
            if value is not None and not whole_sets:
                require((value > 0).all(), self, name, getattr(self, name), "in (0, 1] unless batch_size is None")
