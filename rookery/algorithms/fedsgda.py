"""Minimax by local descent-ascent: Local SGDA, Local SGDA+, FSGDA, FedSGDA+, SAGDA, and those that average estimates of
the gradients as well: Momentum Local SGDA and FedSGDA-M.

Members differ in where and how the two directions of a local step are taken, and in the server's step.
"""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_fraction, check_rates, known, require
from rookery.algorithms.steps import add, only
from rookery.problem.clients import Clients
from rookery.problem.oracles import Objective
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors


class DescentAscent(Algorithm):
    """What the family shares: τ local descent-ascent steps, then averages of the iterates.

        x ← x − η_x d_x,   y ← Π_Y(y + η_y d_y),   d = (∇_x f, ∇_y f)(x, y; ξ), one batch ξ and the old point for both

    x is projected on X before every local step, so that no gradient is taken outside; what the last step makes of it is
    averaged as it is, and the server projects the average. A member says what its steps (``_eta``) and its directions d
    are.
    """

    solves: ClassVar[tuple[str, ...]] = ("minimax",)
    _sent: ClassVar[tuple[str, ...]] = ("x", "y")

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates."""
        return (Exchange(only(*self._sent), self._client, self._server),)

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return self._descend(local, _point(down), down), keep, carry

    def _descend(self, local: Local, v: Vectors, seen: Tree) -> Vectors:
        """The local steps from v of a client that has ``seen`` the broadcast, and maybe more."""
        return local.loop(lambda k, v: self._step(local, k, {**v, "x": local.project_x(v["x"])}, seen), v)

    def _step(self, local: Local, k: Any, v: Vectors, seen: Tree) -> Vectors:
        return self._move(local, v, self._directions(local, k, v, seen))

    def _directions(self, local: Local, k: Any, v: Vectors, seen: Tree) -> Vectors:
        f_x, f_y = local.f(k).grad(v["x"], v["y"])
        return {"x": f_x, "y": f_y}

    def _move(self, local: Local, v: Vectors, d: Vectors) -> Vectors:
        eta = self._eta(local.round)
        return {"x": v["x"] - eta["x"] * d["x"], "y": local.project_y(v["y"] + eta["y"] * d["y"])}

    def _eta(self, t: Any) -> dict[str, Any]:
        raise NotImplementedError

    def _server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, **mean, **self._project(ctx, mean)}

    def _project(self, at: Local | Context, v: Tree) -> Vectors:
        return {"x": at.project_x(v["x"]), "y": at.project_y(v["y"])}


def server_step(server: Tree, mean: Tree, gamma_x: Any, gamma_y: Any) -> Tree:
    """``mean`` with v̄ + γ_v (mean v_i − v̄) in the place of the means of v = x, y."""
    gamma = {"x": gamma_x, "y": gamma_y}
    return {**mean, **{v: server[v] + gamma[v] * (mean[v] - server[v]) for v in gamma}}


def correction(seen: Tree) -> Vectors:
    """c − c_i: what control variates add to a client's directions."""
    return {v: seen["c_" + v] - seen["own_" + v] for v in ("x", "y")}


def _point(tree: Tree) -> Vectors:
    return {"x": tree["x"], "y": tree["y"]}


class LocalSGDA(DescentAscent):
    """Local SGDA: τ local descent-ascent steps with one batch for both gradients, then averages of the iterates.

        x ← x − η_x ∇_x f(x, y),   y ← Π_Y(y + η_y ∇_y f(x, y)),   both at the old point

    Args:
        eta_x, eta_y: steps.
    """

    paper: ClassVar[str] = "FedSGDA"
    status: ClassVar[str] = "P"

    eta_x: Any = 0.01
    eta_y: Any = 0.1

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")

    def _eta(self, t: Any) -> dict[str, Any]:
        return {"x": at(self.eta_x, t), "y": at(self.eta_y, t)}


class LocalSGDAPlus(LocalSGDA):
    """Local SGDA+: Local SGDA whose y step is taken at a snapshot x̃ of x, for problems that are only concave in y.

        x ← x − η_x ∇_x f(x, y),   y ← Π_Y(y + η_y ∇_y f(x̃, y));   x̃ ← x every ``snapshot`` rounds

    The snapshot is sent every round, for new participants have not seen it.

    Args:
        snapshot: S, rounds between snapshots.
    """

    _sent: ClassVar[tuple[str, ...]] = ("x", "y", "snapshot")

    snapshot: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        check_counts(self, "snapshot")

    def init(self, x: Array, y: Array) -> Tree:
        """The first snapshot is the start."""
        return {"x": x, "y": y, "snapshot": x}

    def _directions(self, local: Local, k: Any, v: Vectors, seen: Tree) -> Vectors:
        f = local.f(k)
        return {"x": f.grad_x(v["x"], v["y"]), "y": f.grad_y(seen["snapshot"], v["y"])}

    def _server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        new = super()._server(ctx, server, mean)
        due = (ctx.round + 1) % self.snapshot == 0
        return {**new, "snapshot": jnp.where(due, new["x"], server["snapshot"])}


class FSGDA(LocalSGDA):
    """FSGDA: Local SGDA with steps at the server; SAGDA without its control variates.

        v̄ ← v̄ + γ_v (mean v_i − v̄),   v = x, y;   x̄ is then projected on X and ȳ on Y

    Args:
        gamma_x, gamma_y: server steps; above 1 they extrapolate.

    The others are those of :class:`LocalSGDA`.
    """

    paper: ClassVar[str] = "SAGDA"
    status: ClassVar[str] = "D"

    gamma_x: Any = 1.0
    gamma_y: Any = 1.0

    def __check_init__(self) -> None:
        check_rates(self, "gamma_x", "gamma_y")

    def _server(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        gamma = at(self.gamma_x, ctx.round), at(self.gamma_y, ctx.round)
        return super()._server(ctx, server, server_step(server, mean, *gamma))


class FedSGDAPlus(FSGDA, LocalSGDAPlus):
    """FedSGDA+ (Algorithm 1 of FedSGDA's paper): Local SGDA+ with steps at the server, for nonconvex-concave problems.

        x̄ ← x̄ + γ_x (mean x_i − x̄),   ȳ ← ȳ + γ_y (mean y_i − ȳ)

    Args:
        gamma_x, gamma_y: server steps; above 1 they extrapolate.
        project_server: project ȳ on Y after an extrapolation, which may leave it.

    The others are those of :class:`LocalSGDAPlus`.
    """

    paper: ClassVar[str] = "FedSGDA"
    status: ClassVar[str] = "P"

    project_server: bool = eqx.field(static=True, default=True)

    def _project(self, at: Local | Context, v: Tree) -> Vectors:
        return {"x": at.project_x(v["x"]), "y": at.project_y(v["y"]) if self.project_server else v["y"]}


class SAGDA(FSGDA):
    """SAGDA: FSGDA with control variates from the participants of the round, so that local steps do not drift apart.

    First exchange: c_v,i = ∇_v f_i(x̄, ȳ; ξ_i) and its mean c_v, v = x, y. Second exchange, local steps along

        ∇_v f_i(x, y; ξ) − c_v,i + c_v

    Clients keep nothing between rounds: the anchors c_i are taken afresh, on a batch of their own. The rates are those of
    :class:`FSGDA`.
    """

    def init(self, x: Array, y: Array) -> Tree:
        """c is set anew by every round."""
        return {"x": x, "y": y, "c_x": jnp.zeros_like(x), "c_y": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of anchors, one of iterates; the second need not send the iterates again."""
        return (
            Exchange(only("x", "y"), self._anchor, lambda ctx, server, c: {**server, **c}),
            Exchange(only("c_x", "c_y"), self._client, self._server),
        )

    def _anchor(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        c_x, c_y = local.f(0, "anchor").grad(down["x"], down["y"])
        return {"c_x": c_x, "c_y": c_y}, keep, {**down, "own_x": c_x, "own_y": c_y}

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return self._descend(local, _point(carry), {**carry, **down}), keep, carry

    def _directions(self, local: Local, k: Any, v: Vectors, seen: Tree) -> Vectors:
        return add(super()._directions(local, k, v, seen), correction(seen))


class MomentumLocalSGDA(LocalSGDA):
    """Momentum Local SGDA: Local SGDA along moving averages of the gradients, for NC-SC and NC-PL problems.

        x ← x − η_x d_x,   y ← Π_Y(y + η_y d_y),   then   d_v ← (1 − β_v) d_v + β_v ∇_v f(new point; new batch)

    x, y, d_x, d_y are averaged every τ steps. The first d_v are each client's own gradients at the start. x is projected
    on X after every step, since a gradient is taken there before any average.

    Args:
        beta_x, beta_y: weights of the new gradient, in (0, 1].

    The others are those of :class:`LocalSGDA`.
    """

    paper: ClassVar[str] = "Momentum Local SGDA"
    status: ClassVar[str] = "K"
    _sent: ClassVar[tuple[str, ...]] = ("x", "y", "d_x", "d_y")

    beta_x: Any = 0.5
    beta_y: Any = 0.5

    def __check_init__(self) -> None:
        check_fraction(self, "beta_x", "beta_y")

    def init(self, x: Array, y: Array) -> Tree:
        """The first directions are the clients' own, in round 0."""
        return {"x": x, "y": y, "d_x": jnp.zeros_like(x), "d_y": jnp.zeros_like(y)}

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        v = _point(down)
        d = local.at_start(lambda: self._directions(local, 0, v, down), lambda: {"x": down["d_x"], "y": down["d_y"]})

        def step(k: Any, state: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
            v, d = state
            v = self._move(local, v, d)
            return v, self._average(local.f(k), v, d)

        v, d = local.loop(step, (v, d), first=1)
        v = self._move(local, v, d)
        d = self._average(local.f(0, ahead=1), v, d)  # the last point of a round stands for the first of the next one
        return {**v, "d_x": d["x"], "d_y": d["y"]}, keep, carry

    def _move(self, local: Local, v: Vectors, d: Vectors) -> Vectors:
        new = super()._move(local, v, d)
        return {**new, "x": local.project_x(new["x"])}

    def _average(self, f: Objective, v: Vectors, d: Vectors) -> Vectors:
        f_x, f_y = f.grad(v["x"], v["y"])
        return {
            "x": (1 - self.beta_x) * d["x"] + self.beta_x * f_x,
            "y": (1 - self.beta_y) * d["y"] + self.beta_y * f_y,
        }


class FedSGDAM(LocalSGDA):
    """FedSGDA-M (Algorithm 2 of FedSGDA's paper): STORM estimates u, v of the gradients, for NC-PL and NC-SC problems.

    For s = 1, 2, ..., one batch B for all four gradients, x, y, u, v averaged every τ steps:

        x_s = Π_X(x_{s−1} − η_x u_s),   y_s = Π_Y(y_{s−1} + η_y v_s);   every τ-th: Π of the MEAN of these steps
        u_{s+1} = ∇_x f(x_s, y_s; B) + (1 − α)(u_s − ∇_x f(x_{s−1}, y_{s−1}; B)),   v_{s+1} likewise with β

    So with one local step it is the centralised method, on constrained sets too. (x_{s−1}, y_{s−1}) is the client's own
    point, also right after an average: it keeps that point between rounds. A client that missed a round takes the
    broadcast point instead.

    Args:
        eta_x, eta_y: steps (ĉη and cη of the paper).
        alpha, beta: weights of the new gradient, in (0, 1]; 1 is Local SGDA.
        first_batch: how many ordinary batches make the first estimates; by default the number of local steps.
    """

    _sent: ClassVar[tuple[str, ...]] = ("x", "y", "u", "v")

    alpha: Any = 0.5
    beta: Any = 0.5
    first_batch: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_fraction(self, "alpha", "beta", zero=True)
        if self.first_batch is not None:
            check_counts(self, "first_batch")

    def init(self, x: Array, y: Array) -> Tree:
        """The first estimates are the clients' own, in round 0."""
        return {"x": x, "y": y, "u": jnp.zeros_like(x), "v": jnp.zeros_like(y)}

    def keep(self, x: Array, y: Array) -> Tree:
        """A client keeps its previous point."""
        return {"x": x, "y": y}

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        stayed = local.last == local.round - 1
        old = {n: jnp.where(stayed, keep[n], down[n]) for n in ("x", "y")}
        v = _point(down)
        times = self.first_batch or local.max_tau

        def first() -> Tree:
            u, v_ = local.f(0, times=times).grad(v["x"], v["y"])
            return {"u": u, "v": v_}

        d = local.at_start(first, lambda: self._estimate(local, 0, v, old, {"u": down["u"], "v": down["v"]}))

        def step(k: Any, state: tuple[Tree, Tree, Tree]) -> tuple[Tree, Tree, Tree]:
            v, old, d = state
            v = self._project(local, v)  # here, and not after the move: the last step of a round is averaged first
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

    def _move(self, local: Local, v: Vectors, d: Vectors) -> Vectors:
        eta = self._eta(local.round)
        return {"x": v["x"] - eta["x"] * d["u"], "y": v["y"] + eta["y"] * d["v"]}

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """A weight of 0 never forgets: it is for whole sets only."""
        for name in ("alpha", "beta"):
            value = known(getattr(self, name))
            if value is not None and not whole_sets:
                require((value > 0).all(), self, name, getattr(self, name), "in (0, 1] unless batch_size is None")
