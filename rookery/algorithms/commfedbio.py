"""CommFedBiO: the linear system of the hypergradient with compressed messages."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Reply, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_optional, check_rates, require
from rookery.algorithms.steps import only, sgd_steps
from rookery.problem.clients import Clients
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors, X, Y


class CommFedBiO(Algorithm):
    """CommFedBiO, its iterative version: local SGD on y, then N_z steps on z from the k largest entries of each residual.

    J. Li, J. Pei, H. Huang. Communication-efficient robust federated learning with noisy labels. ACM SIGKDD Conference
    on Knowledge Discovery and Data Mining, pp. 914–924, 2022. Known from its abstract and from how others describe it:
    Top_k with error feedback is defined here.

    Bilevel, one lower level for all clients, strongly convex in y. From e_i = 0, Σ weighted (n/P)p_i:

        y_i ← y_i − η_y ∇_y g(x, y_i; ζ), τ_i times;   y ← mean y_i
        r_i = ∇²_yy g z − ∇_y f + e_i,   m_i = Top_k(r_i),   e_i ← r_i − m_i,   z ← z − η_z Σ m_i,   N_z times
        x ← x − γ_x Σ (∇_x f − ∇²_xy g z)

    The participants of a round take part in its N_z + 2 exchanges.

    Args:
        gamma_x, eta_y, eta_z: steps. Published by FedBiOAcc's paper (data cleaning): γ_x 10000, η_y 1; η_z not given.
        products: N_z.
        k: entries sent; a tenth of all by default, the size of y turns compression off.
        warm_start: z starts where the last round left it, else at 0.
    """

    name: ClassVar[str] = "CommFedBiO"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "CommFedBiO"
    status: ClassVar[str] = "K, D"

    gamma_x: Any = rate(0.1, "free")
    eta_y: Any = rate(0.1, "1/L")
    eta_z: Any = rate(0.1, "1/L")
    products: int = eqx.field(static=True, default=5)
    k: int | None = eqx.field(static=True, default=None)
    warm_start: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        check_rates(self, "gamma_x", "eta_y", "eta_z")
        check_counts(self, "products")
        check_optional(check_counts, self, "k")

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """k is at most the size of y."""
        require(self.k is None or self.k <= flat.y.size, self, "k", self.k, f"at most {flat.y.size}, the size of y")

    def init(self, x: X, y: Y) -> Tree:
        """z starts at 0."""
        return {"x": x, "y": y, "z": jnp.zeros_like(y)}

    def round(self) -> tuple[Stage, ...]:
        """x travels with the first exchange, the new y with the second, z with all but the first."""
        lower = Exchange(only("x", "y"), self.lower, self.take_y)
        first = Exchange(only("y", "z") if self.warm_start else only("y"), self.begin, self.step_z, "stack")
        more = (Repeat(self.products - 1, (Exchange(only("z"), self.solve, self.step_z, "stack"),)),)
        upper = Exchange(only("z"), self.upper, self.take_x, "direction")
        return lower, first, *(more if self.products > 1 else ()), upper

    def lower(self, local: Local, down: Tree) -> Reply:
        """y_i after τ_i local steps; e_i = 0."""
        x, y = down["x"], down["y"]
        up = {"y": sgd_steps(local, 0, x, y, at(self.eta_y, local.round))}
        return Reply(up, carry={"x": x, "y": y, "e": jnp.zeros_like(y)})

    def take_y(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """The mean of y_i, and z where its steps begin."""
        z = server["z"] if self.warm_start else jnp.zeros_like(server["z"])
        return {**server, "y": ctx.project_y(mean["y"]), "z": z}

    def begin(self, local: Local, down: Tree, carry: Tree) -> Reply:
        """The first message, at the new y."""
        z = down["z"] if self.warm_start else jnp.zeros_like(down["y"])
        return self._message(local, 0, z, {**carry, "y": down["y"]})

    def solve(self, local: Local, down: Tree, carry: Tree) -> Reply:
        """The other messages."""
        return self._message(local, local.index + 1, down["z"], carry)

    def _message(self, local: Local, l: Any, z: Y, carry: Tree) -> Reply:
        """m_i = Top_k(r_i), r_i = ∇²_yy g z − ∇_y f + e_i; what is not sent is the next e_i."""
        x, y = carry["x"], carry["y"]
        r = local.g(l, "z").hess(x, y, z) - local.f(l, "z").grad_y(x, y) + carry["e"]
        _, largest = jax.lax.top_k(jnp.abs(r), -(-y.size // 10) if self.k is None else self.k)
        up = {"values": r[largest], "indices": largest.astype(jnp.int32)}
        return Reply(up, carry={**carry, "e": r.at[largest].set(0)})

    def step_z(self, ctx: Context, server: Tree, stacked: Tree) -> Tree:
        """z − η_z Σ (n/P)p_i m_i."""
        weights = jnp.where(ctx.mask, ctx.weights[ctx.ids] * (ctx.n / ctx.active), 0)
        z = server["z"]
        step = (at(self.eta_z, ctx.round) * weights).astype(z.dtype)
        return {**server, "z": z.at[stacked["indices"]].add(-step[:, None] * stacked["values"])}

    def upper(self, local: Local, down: Tree, carry: Tree) -> Vectors:
        """∇_x f − ∇²_xy g z."""
        x, y = carry["x"], carry["y"]
        return {"x": local.f(0, "x").grad_x(x, y) - local.g(0, "x").cross(x, y, down["z"])}

    def take_x(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """x − γ_x Σ (n/P)p_i (∇_x f − ∇²_xy g z)."""
        return {**server, "x": ctx.project_x(server["x"] - at(self.gamma_x, ctx.round) * mean["x"])}
