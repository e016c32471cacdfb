"""CommFedBiO: the linear system of the hypergradient with compressed messages."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_rates, require
from rookery.algorithms.fednest import sgd_steps
from rookery.algorithms.steps import only
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree


class CommFedBiO(Algorithm):
    """CommFedBiO, its iterative version: local SGD on y, then N_z steps on z from the k largest entries of each residual.

    y ← mean of y_i after τ_i steps y_i ← y_i − η_y ∇_y g(x, y_i; ζ). Then from e_i = 0, N_z times, with error feedback,

        r_i = ∇²_yy g z − ∇_y f + e_i,   m_i = Top_k(r_i),   e_i ← r_i − m_i,   z ← z − η_z Σ (n/P)p_i m_i

    and x ← x − γ_x Σ (n/P)p_i (∇_x f − ∇²_xy g z). The participants of a round take part in its N_z + 2 exchanges.

    Args:
        gamma_x, eta_y, eta_z: steps.
        products: N_z.
        k: entries sent; a tenth of all by default, the size of y turns compression off.
        warm_start: z starts where the last round left it, else at 0.
    """

    name: ClassVar[str] = "CommFedBiO"

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "CommFedBiO"
    status: ClassVar[str] = "K, D"

    gamma_x: Any = 0.1
    eta_y: Any = 0.1
    eta_z: Any = 0.1
    products: int = eqx.field(static=True, default=5)
    k: int | None = eqx.field(static=True, default=None)
    warm_start: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        check_rates(self, "gamma_x", "eta_y", "eta_z")
        check_counts(self, "products")
        if self.k is not None:
            check_counts(self, "k")

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """k is at most the size of y."""
        require(self.k is None or self.k <= flat.y.size, self, "k", self.k, f"at most {flat.y.size}, the size of y")

    def init(self, x: Array, y: Array) -> Tree:
        """z starts at 0."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """x travels with the first exchange, the new y with the second, z with all but the first."""
        lower = Exchange(only("x", "y"), self._lower, self._take_y)
        first = Exchange(only("y", "z") if self.warm_start else only("y"), self._solve, self._scatter, "stack")
        more = (Repeat(self.products - 1, (Exchange(only("z"), self._next, self._scatter, "stack"),)),)
        upper = Exchange(only("z"), self._upper, self._take_x, "direction")
        return lower, first, *(more if self.products > 1 else ()), upper

    def _lower(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        x, y = down["x"], down["y"]
        carry = {"x": x, "y": y, "e": jnp.zeros_like(y)}
        return {"y": sgd_steps(local, 0, x, y, at(self.eta_y, local.round))}, keep, carry

    def _solve(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        z = down["z"] if self.warm_start else jnp.zeros_like(down["y"])
        return self._message(local, 0, z, keep, {**carry, "y": down["y"]})

    def _next(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return self._message(local, local.index + 1, down["z"], keep, carry)

    def _message(self, local: Local, l: Any, z: Array, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        x, y = carry["x"], carry["y"]
        r = local.g(l, "z").hess(x, y, z) - local.f(l, "z").grad_y(x, y) + carry["e"]
        _, largest = jax.lax.top_k(jnp.abs(r), -(-y.size // 10) if self.k is None else self.k)
        up = {"values": r[largest], "indices": largest.astype(jnp.int32)}
        return up, keep, {**carry, "e": r.at[largest].set(0)}

    def _upper(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        x, y = carry["x"], carry["y"]
        return {"x": local.f(0, "x").grad_x(x, y) - local.g(0, "x").cross(x, y, down["z"])}, keep, carry

    def _take_y(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        z = server["z"] if self.warm_start else jnp.zeros_like(server["z"])
        return {**server, "y": ctx.project_y(mean["y"]), "z": z}

    def _scatter(self, ctx: Context, server: Tree, stacked: Tree) -> Tree:
        weights = jnp.where(ctx.mask, ctx.weights[ctx.ids] * (ctx.n / ctx.active), 0)
        z = server["z"]
        step = (at(self.eta_z, ctx.round) * weights).astype(z.dtype)
        return {**server, "z": z.at[stacked["indices"]].add(-step[:, None] * stacked["values"])}

    def _take_x(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "x": ctx.project_x(server["x"] - at(self.gamma_x, ctx.round) * mean["x"])}
