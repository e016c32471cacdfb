"""FedMBO: minibatch steps, and a Neumann series carried from client to client."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Stage
from rookery.algorithm.rate import rate
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_rates
from rookery.algorithms.steps import only, uniform_below
from rookery.problem.keys import Stream
from rookery.problem.schedules import at
from rookery.typing import Tree, Vectors, Weighting


class FedMBO(Algorithm):
    """FedMBO: no local steps; as many independent Neumann chains as participants, each hop at a client drawn anew.

    Minhui Huang, Dewei Zhang, Kaiyi Ji. Achieving linear speedup in non-iid federated bilevel learning. International
    Conference on Machine Learning (PMLR), pp. 14039–14059, 2023. Its box was not at hand: from general knowledge; that
    N' is shared by the chains and that hops draw without replacement is defined here.

    Bilevel, one lower level for all clients, strongly convex in y. With N' uniform on 0..N−1, once for all chains c:

        y ← y − γ_y mean ∇_y g(x, y; ζ), T times
        a_c = ∇_y f(x, y; ξ),   a_c ← a_c − (1/ℓ)∇²_yy g(x, y; ζ) a_c, N' times,   h_c = ∇_x f − (N/ℓ)∇²_xy g a_c
        x ← x − γ_x mean h_c

    All participants are drawn anew each time, and chains are dealt out to them at random. T + N' + 2 exchanges. Clients
    are drawn uniformly: their derivatives count n·p_i times, that is once if weights are equal. Paper → here: 1/ℓ →
    neumann_step.

    Args:
        gamma_x, gamma_y: steps of the server; no values published by the papers at hand ("grid search").
        neumann_step: 1/ℓ.
        inner: T.
        products: N, the number of terms of the series in the mean.
    """

    name: ClassVar[str] = "FedMBO"
    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedMBO"
    status: ClassVar[str] = "K"

    gamma_x: Any = rate(0.1, "free")
    gamma_y: Any = rate(0.1, "1/L")
    neumann_step: Any = rate(0.1, "1/L")
    inner: int = eqx.field(static=True, default=1)
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_rates(self, "gamma_x", "gamma_y", "neumann_step")
        check_counts(self, "inner", "products")

    def round(self) -> tuple[Stage, ...]:
        """Steps on y, then the chains: their start, up to N − 1 hops, their end.

        The server's state holds the chains from their start to their end, one row ``a`` a slot.
        """
        rows: Weighting = {"a": "stack"}
        inner = Exchange(only("x", "y"), self.slope_y, self.take_y, "direction", "fresh")
        first = Exchange(only("x", "y"), self.start, self.take_start, rows, "fresh")
        hop = Exchange(only("x", "y"), self.hop, self.take_hop, rows, "fresh", self.wanted, private=only("a"))
        last = Exchange(only("x", "y"), self.end, self.take_x, "direction", "fresh", private=only("a"))
        hops = (Repeat(self.products - 1, (hop,)),) if self.products > 1 else ()
        return Repeat(self.inner, (inner,)), first, *hops, last

    def slope_y(self, local: Local, down: Tree) -> Vectors:
        """∇_y g."""
        return {"y": local.g(local.index, "y").grad_y(down["x"], down["y"])}

    def take_y(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """y − γ_y mean ∇_y g."""
        return {**server, "y": ctx.project_y(server["y"] - at(self.gamma_y, ctx.round) * mean["y"])}

    def start(self, local: Local, down: Tree) -> Vectors:
        """∇_y f, where a chain begins."""
        return {"a": local.f(0, "z").grad_y(down["x"], down["y"])}

    def take_start(self, ctx: Context, server: Tree, stacked: Tree) -> Tree:
        """The chains, dealt out for the next draw."""
        return {**server, "a": _dealt(ctx, 0, _weighted(ctx, stacked["a"]))}

    def wanted(self, server: Tree, ctx: Context) -> Any:
        """Whether the hop number index + 1 is one of the N'."""
        return ctx.index < uniform_below(ctx, "neumann", self.products)

    def hop(self, local: Local, down: Tree) -> Vectors:
        """∇²_yy g a_c."""
        return {"a": local.g(local.index + 1, "z").hess(down["x"], down["y"], down["a"])}

    def take_hop(self, ctx: Context, server: Tree, stacked: Tree) -> Tree:
        """a_c − (1/ℓ)∇²_yy g a_c, dealt out for the next draw."""
        a = server["a"] - at(self.neumann_step, ctx.round) * _weighted(ctx, stacked["a"])
        return {**server, "a": _dealt(ctx, ctx.index + 1, a)}

    def end(self, local: Local, down: Tree) -> Vectors:
        """h_c = ∇_x f − (N/ℓ)∇²_xy g a_c."""
        x, y, scale = down["x"], down["y"], self.products * at(self.neumann_step, local.round)
        return {"x": local.f(0, "x").grad_x(x, y) - local.g(0, "x").cross(x, y, scale * down["a"])}

    def take_x(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        """x − γ_x mean h_c; the chains are gone."""
        return {"x": ctx.project_x(server["x"] - at(self.gamma_x, ctx.round) * mean["x"]), "y": server["y"]}


def _weighted(ctx: Context, rows: Array) -> Array:
    return (ctx.n * ctx.weights[ctx.ids]).astype(rows.dtype)[:, None] * rows


def _dealt(ctx: Context, hop: Any, chains: Array) -> Array:
    """The chains in random order: participants are sorted, and a chain must not stay with the first ones.

    Where the next draw has more participants than this one, some chains are dealt twice; where it has fewer, some end.
    """
    most, stream = 2**31 - 1, Stream(ctx.key("deal"))
    lot = jax.vmap(lambda id: stream.integers(1, most, hop, "deal", id)[0])(ctx.ids)
    order = jnp.argsort(jnp.where(ctx.mask, lot, most))  # used slots first
    return chains[order[jnp.arange(lot.size) % ctx.active]]
