"""FedBiO and FedBiOAcc, and their -Local versions with a lower level of each client's own."""

from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_constant, check_counts, check_positive, check_rates, known, require
from rookery.algorithms.steps import ball, batches, directions, feasible, local_hypergradient, only, storm
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors


class FedBiO(Algorithm):
    """FedBiO (Algorithm 2 of its paper): local steps on (x, y, z) together, then averages of the iterates.

    Client, for k < τ, all at the old point, five independent batches:

        y ← y − η_y ∇_y g,   x ← x − η_x (∇_x f − ∇²_xy g z),   z ← P_r(z − η_z (∇²_yy g z − ∇_y f))

    Then the iterates are averaged. x and y are projected on X and Y before every local step, so that no derivative is taken
    outside, and at the server after the average.

    Args:
        eta_x, eta_y, eta_z: steps.
        radius: r of the ball for z, applied after every local step.
        tie_batches: one f batch and one g batch for the three directions, at half the cost.
    """

    name: ClassVar[str] = "FedBiO"

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedBiOAcc"
    status: ClassVar[str] = "P"

    eta_x: Any = 0.1
    eta_y: Any = 0.1
    eta_z: Any = 0.05
    radius: Any = float("inf")
    tie_batches: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y", "eta_z")
        check_positive(self, "radius")

    def init(self, x: Array, y: Array) -> Tree:
        """z starts at 0."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """One exchange of iterates."""
        return (Exchange(only("x", "y", "z"), self._client, _replace_iterates),)

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        eta = self._eta(local.round)

        def step(k: Any, v: Vectors) -> Vectors:
            v = feasible(local, v)
            return _step(v, directions(batches(local, k, self.tie_batches), v), eta, self.radius)

        return local.loop(step, down), keep, carry

    def _eta(self, t: Any) -> Vectors:
        return {"x": at(self.eta_x, t), "y": at(self.eta_y, t), "z": at(self.eta_z, t)}


def _step(v: Vectors, d: Vectors, eta: Vectors, radius: Any = None) -> Vectors:
    """v − η_v d_v, z projected on its ball."""
    new = {n: v[n] - eta[n] * d[n] for n in v}
    return {**new, "z": ball(new["z"], radius)} if "z" in new else new


def _replace_iterates(ctx: Context, server: Tree, mean: Tree) -> Tree:
    """The server takes the averages, projected where they are constrained."""
    new = {**server, **mean, "x": ctx.project_x(mean["x"])}
    return {**new, "y": ctx.project_y(mean["y"])} if "y" in mean else new


class TwoAverages(Algorithm):
    """STORM whose iterates and directions are both averaged: what FedBiOAcc and Local-BSGVR share. Not used directly.

    With s = 1, 2, ... counting local steps, δ_s = δ/(u + s)^{1/3} and d_v the client's directions:

        v ← Π(v − η_v δ_s d_v),                                    averaged every τ steps
        d_v ← D_v(new; ξ) + (1 − c_v δ_s²)(d_v − D_v(old; ξ)),     averaged every τ steps, at the averaged point

    Π projects on X, Y and the ball of z; a round's last step is averaged first, then projected by the server. The old point
    is the client's own, also right after an average. A round's participants take part in both exchanges.
    """

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    variables: ClassVar[tuple[str, ...]]

    eta_x: Any = 0.1
    eta_y: Any = 0.1
    delta: Any = 1.0
    offset: Any = 1.0
    c_x: Any = 1.0
    c_y: Any = 1.0
    first_batch: int | None = eqx.field(static=True, default=None)
    average_first: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_rates(self, "offset", *(f"eta_{v}" for v in self.variables))
        check_positive(self, "delta")
        _check_momentum(self, *(f"c_{v}" for v in self.variables))
        if self.first_batch is not None:
            check_counts(self, "first_batch")

    def init(self, x: Array, y: Array) -> Tree:
        """z starts at 0; the first directions are the clients' own, in round 0."""
        start = {v: {"x": x, "y": y, "z": jnp.zeros_like(y)}[v] for v in self.variables}
        return {**start, **{f"d_{v}": jnp.zeros_like(each) for v, each in start.items()}}

    def round(self) -> tuple[Stage, ...]:
        """Iterates first, then the directions at the averaged iterate."""
        point, both = only(*self.variables), only(*self.variables, *(f"d_{v}" for v in self.variables))
        first = Exchange(point, self._first, self._set_directions, when=lambda server, ctx: ctx.round == 0)
        rest = Exchange(both, self._client, _replace_iterates), Exchange(point, self._renew, self._set_directions)
        return (first, *rest) if self.average_first else rest

    def _at(self, local: Local, k: Any, ahead: int = 0, times: int = 1) -> Callable[[Vectors], Vectors]:
        """The directions on one draw, as a function of the point."""
        raise NotImplementedError

    def _move(self, v: Vectors, d: Vectors, eta: Vectors, down: Tree) -> Vectors:
        return _step(v, d, eta)

    def _combine(self, new: Callable[..., Vectors], v: Vectors, old: Vectors, d: Vectors, beta: Vectors) -> Vectors:
        return storm(new(v), new(old), d, beta)

    def _first(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return self._at(local, 0, times=self.first_batch or local.max_tau)(down), keep, carry

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        v = {n: down[n] for n in self.variables}
        d = {n: down["d_" + n] for n in self.variables}
        if not self.average_first:
            known = d
            d = local.at_start(lambda: self._at(local, 0, times=self.first_batch or local.max_tau)(v), lambda: known)

        def step(j: Any, state: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
            old, d = state
            s = local.round * local.max_tau + j
            v = feasible(local, self._move(old, d, self._scaled(local.round, s), down))
            return v, self._combine(self._at(local, j), v, old, d, self._beta(s))

        old, d = local.loop(step, (v, d), first=1)
        s = (local.round + 1) * local.max_tau
        v = self._move(old, d, self._scaled(local.round, s), down)
        return v, keep, {"old": old, "d": d, "s": jnp.asarray(s)}

    def _renew(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        new = self._at(local, 0, ahead=1)  # on the draw of the first point of the next round
        return self._combine(new, down, carry["old"], carry["d"], self._beta(carry["s"])), keep, carry

    def _set_directions(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, **{f"d_{v}": d for v, d in mean.items()}}

    def _delta(self, s: Any) -> Any:
        return self.delta / (self.offset + s) ** (1 / 3)

    def _scaled(self, t: Any, s: Any) -> Vectors:
        return {v: at(getattr(self, f"eta_{v}"), t) * self._delta(s) for v in self.variables}

    def _beta(self, s: Any) -> Vectors:
        return {v: getattr(self, f"c_{v}") * self._delta(s) ** 2 for v in self.variables}

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """c_v = 0 never forgets: it is for whole sets only. All clients make the same number of steps."""
        _check_whole_sets(self, whole_sets, *(f"c_{v}" for v in self.variables))
        _check_equal_steps(self, steps)


class FedBiOAcc(TwoAverages):
    """FedBiOAcc (Algorithm 1 of its paper): STORM on the directions of FedBiO for x, y and z; two exchanges a round.

    With s = 1, 2, ... counting local steps, δ_s = δ/(u + s)^{1/3} and d_v the client's directions, v = x, y, z:

        v ← Π(v − η_v δ_s d_v),                                    averaged every τ steps
        d_v ← D_v(new; ξ) + (1 − c_v δ_s²)(d_v − D_v(old; ξ)),     averaged every τ steps, at the averaged point

    Π projects on X, Y and the ball of z; a round's last step is averaged first, then projected by the server. The old point
    is the client's own, also right after an average. A round's participants take part in both exchanges.

    Args:
        eta_x, eta_y, eta_z: steps.
        delta, offset: δ and u of the schedule.
        c_x, c_y, c_z: momentum constants; c_v δ_1² must be at most 1.
        radius: r of the ball for z, applied after every local step.
        tie_batches: one f batch and one g batch for the three directions, at half the cost.
        first_batch: how many ordinary batches make the first directions; by default the number of local steps.
        average_first: average the first directions too, in one more exchange in round 0.
    """

    name: ClassVar[str] = "FedBiOAcc"

    paper: ClassVar[str] = "FedBiOAcc"
    status: ClassVar[str] = "P"
    variables: ClassVar[tuple[str, ...]] = ("x", "y", "z")

    eta_z: Any = 0.05
    c_z: Any = 1.0
    radius: Any = float("inf")
    tie_batches: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        check_positive(self, "radius")

    def _at(self, local: Local, k: Any, ahead: int = 0, times: int = 1) -> Callable[[Vectors], Vectors]:
        b = batches(local, k, self.tie_batches, ahead, times)
        return lambda v: directions(b, v)

    def _move(self, v: Vectors, d: Vectors, eta: Vectors, down: Tree) -> Vectors:
        return _step(v, d, eta, self.radius)


class FedBiOLocal(Algorithm):
    """FedBiO-Local (Algorithm 3 of FedBiOAcc's paper): each client keeps its own y_i; only x travels.

    Client, for k < τ:  y_i ← Π_Y(y_i − η_y ∇_y g_i(x, y_i)),   x ← x − η_x Φ_i(x, y_i), at the old point, with Φ_i the
    local hypergradient by a Neumann series of ``products`` Hessian-vector products. Then x is averaged.

    Args:
        eta_x, eta_y: steps.
        neumann_step: the step inside the series; below 1/L.
        products: Q, the number of Hessian-vector products.
    """

    name: ClassVar[str] = "FedBiO-Local"

    solves: ClassVar[tuple[str, ...]] = ("bilevel-local",)
    paper: ClassVar[str] = "FedBiOAcc"
    status: ClassVar[str] = "P"

    eta_x: Any = 0.1
    eta_y: Any = 0.1
    neumann_step: Any = 0.1
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_rates(self, "eta_x", "eta_y")
        check_positive(self, "neumann_step")
        check_counts(self, "products", least=0)

    def init(self, x: Array, y: Array) -> Tree:
        """The server holds x alone."""
        return {"x": x}

    def keep(self, x: Array, y: Array) -> Tree:
        """A client keeps its y."""
        return {"y": y}

    def output(self, server: Tree, keep: Tree) -> tuple[Array, Array]:
        """y of every client."""
        return server["x"], keep["y"]

    def round(self) -> tuple[Stage, ...]:
        """One exchange of x."""
        return (Exchange(only("x"), self._client, _replace_iterates),)

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        eta = {"x": at(self.eta_x, local.round), "y": at(self.eta_y, local.round)}

        def step(k: Any, v: Vectors) -> Vectors:
            v = feasible(local, v)
            return _step(v, self._directions(local, k, v), eta)

        v = local.loop(step, {"x": down["x"], "y": keep["y"]})
        return {"x": v["x"]}, {"y": local.project_y(v["y"])}, carry

    def _directions(self, local: Local, k: Any, v: Vectors, ahead: int = 0, times: int = 1) -> Vectors:
        return {"x": self._d_x(local, k, v, ahead, times), "y": self._d_y(local, k, v, ahead, times)}

    def _d_x(self, local: Local, k: Any, v: Vectors, ahead: int = 0, times: int = 1) -> Array:
        return local_hypergradient(local, k, v["x"], v["y"], self.neumann_step, self.products, ahead, times)

    def _d_y(self, local: Local, k: Any, v: Vectors, ahead: int = 0, times: int = 1) -> Array:
        return local.g(k, "y", ahead=ahead, times=times).grad_y(v["x"], v["y"])


class FedBiOAccLocal(FedBiOLocal):
    """FedBiOAcc-Local (Algorithm 4 of its paper): STORM on d_x and d_y; clients keep y_i and d_y,i.

        y_i ← Π_Y(y_i − η_y δ_s d_y,i),   x ← Π_X(x − η_x δ_s d_x)           x averaged every τ steps
        d_v ← D_v(new; ξ) + (1 − c_v δ_s²)(d_v − D_v(old; ξ))                d_x averaged every τ steps, d_y never

    A round's last step of x is averaged first, then projected by the server. A client that missed a round takes a fresh d_y,
    for its old one is stale.

    Args:
        delta, offset: δ and u of δ_s = δ/(u + s)^{1/3}.
        c_x, c_y: momentum constants; c_v δ_1² must be at most 1.
        first_batch: how many ordinary batches make the first directions; by default the number of local steps.

    The others are those of :class:`FedBiOLocal`.
    """

    name: ClassVar[str] = "FedBiOAcc-Local"

    delta: Any = 1.0
    offset: Any = 1.0
    c_x: Any = 1.0
    c_y: Any = 1.0
    first_batch: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        check_positive(self, "delta")
        check_rates(self, "offset")
        _check_momentum(self, "c_x", "c_y")
        if self.first_batch is not None:
            check_counts(self, "first_batch")

    def init(self, x: Array, y: Array) -> Tree:
        """The first directions are the clients' own, in round 0."""
        return {"x": x, "d_x": jnp.zeros_like(x)}

    def keep(self, x: Array, y: Array) -> Tree:
        """A client keeps its y and its d_y."""
        return {"y": y, "d_y": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """x first, then d_x at the averaged x."""
        return (
            Exchange(only("x", "d_x"), self._client, _replace_iterates),
            Exchange(only("x"), self._renew, lambda ctx, server, mean: {**server, "d_x": mean["x"]}),
        )

    def _client(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        v = {"x": down["x"], "y": keep["y"]}
        times = self.first_batch or local.max_tau

        def known() -> Vectors:  # a client that missed a round renews d_y (under vmap everybody pays for that gradient)
            missed = local.last != local.round - 1
            return {"x": down["d_x"], "y": jnp.where(missed, self._d_y(local, 0, v), keep["d_y"])}

        d = local.at_start(lambda: self._directions(local, 0, v, times=times), known)

        def step(j: Any, state: tuple[Vectors, Vectors]) -> tuple[Vectors, Vectors]:
            old, d = state
            s = local.round * local.max_tau + j
            v = feasible(local, self._move(local, old, d, s))
            return v, storm(self._directions(local, j, v), self._directions(local, j, old), d, self._beta(s))

        old, d = local.loop(step, (v, d), first=1)
        s = (local.round + 1) * local.max_tau
        v = self._move(local, old, d, s)
        carry = {"old": old, "d": d, "s": jnp.asarray(s)}
        return {"x": v["x"]}, {"y": local.project_y(v["y"]), "d_y": d["y"]}, carry

    def _renew(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        v = {"x": down["x"], "y": keep["y"]}
        new, old = self._directions(local, 0, v, ahead=1), self._directions(local, 0, carry["old"], ahead=1)
        d = storm(new, old, carry["d"], self._beta(carry["s"]))
        return {"x": d["x"]}, {**keep, "d_y": d["y"]}, carry

    def _delta(self, s: Any) -> Any:
        return self.delta / (self.offset + s) ** (1 / 3)

    def _move(self, local: Local, v: Vectors, d: Vectors, s: Any) -> Vectors:
        eta = {n: at(rate, local.round) * self._delta(s) for n, rate in (("x", self.eta_x), ("y", self.eta_y))}
        return _step(v, d, eta)

    def _beta(self, s: Any) -> Vectors:
        return {"x": self.c_x * self._delta(s) ** 2, "y": self.c_y * self._delta(s) ** 2}

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """c_v = 0 never forgets: it is for whole sets only. All clients make the same number of steps."""
        _check_whole_sets(self, whole_sets, "c_x", "c_y")
        _check_equal_steps(self, steps)


class DistBiO(FedBiOLocal):
    """DistBiO: FedBiO-Local with one local step."""

    name: ClassVar[str] = "DistBiO"

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """One local step."""
        super().check(flat, clients, steps, whole_sets)
        _check_one_step(self, steps)


class DistBiOAcc(FedBiOAccLocal):
    """DistBiOAcc: FedBiOAcc-Local with one local step."""

    name: ClassVar[str] = "DistBiOAcc"

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """One local step."""
        super().check(flat, clients, steps, whole_sets)
        _check_one_step(self, steps)


def _check_momentum(owner: Any, *names: str) -> None:
    """c_v δ_1² <= 1, δ_1 the largest δ."""
    check_rates(owner, *names)
    check_constant(owner, "offset", *names)
    delta, offset = known(owner.delta), known(owner.offset)
    for name in names:
        c = known(getattr(owner, name))
        if c is not None and delta is not None and offset is not None:
            beta = np.max(c * (delta / (offset + 1) ** (1 / 3)) ** 2)
            require(beta <= 1 + 1e-6, owner, f"{name}·δ_1²", float(beta), "at most 1 (δ_1 = delta/(offset+1)^(1/3))")


def _check_whole_sets(owner: Any, whole_sets: bool, *names: str) -> None:
    for name in names:
        value = known(getattr(owner, name))
        if value is not None and not whole_sets:
            require((value > 0).all(), owner, name, getattr(owner, name), "positive unless batch_size is None")


def _check_equal_steps(owner: Any, steps: Steps) -> None:
    require(steps.fixed, owner, "local_steps", steps, "one number: its step counter is the same for all clients")


def _check_one_step(owner: Any, steps: Steps) -> None:
    require(steps.high == 1, owner, "local_steps", steps.high, "1")
