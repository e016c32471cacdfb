"""FedMBO: minibatch steps, and a Neumann series carried from client to client."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Stage
from rookery.algorithm.views import Context, Local
from rookery.algorithms.checks import check_counts, check_rates
from rookery.algorithms.fednest import uniform_below
from rookery.algorithms.steps import only
from rookery.problem.keys import Stream
from rookery.problem.schedules import at
from rookery.typing import Tree, Weighting


class FedMBO(Algorithm):
    """FedMBO: no local steps; as many independent Neumann chains as participants, each hop at a client drawn anew.

    T times y ← y − γ_y mean ∇_y g(x, y; ζ); then N' uniform on 0..N−1 once for all chains c, and for each of them

        a_c = ∇_y f(x, y; ξ),   a_c ← a_c − (1/ℓ)∇²_yy g(x, y; ζ) a_c, N' times,   h_c = ∇_x f − (N/ℓ)∇²_xy g a_c

    and x ← x − γ_x mean h_c. All participants are drawn anew each time, and chains are dealt out to them at random. T + N' +
    2 exchanges. Clients are drawn uniformly: their derivatives count n·p_i times, that is once if weights are equal.

    Args:
        gamma_x, gamma_y: steps of the server.
        neumann_step: 1/ℓ.
        inner: T.
        products: N, the number of terms of the series in the mean.
    """

    name: ClassVar[str] = "FedMBO"

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    paper: ClassVar[str] = "FedMBO"
    status: ClassVar[str] = "K"

    gamma_x: Any = 0.1
    gamma_y: Any = 0.1
    neumann_step: Any = 0.1
    inner: int = eqx.field(static=True, default=1)
    products: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        check_rates(self, "gamma_x", "gamma_y", "neumann_step")
        check_counts(self, "inner")
        check_counts(self, "products")

    def round(self) -> tuple[Stage, ...]:
        """Steps on y, then the chains: their start, up to N − 1 hops, their end.

        The server's state holds the chains from their start to their end, one row ``a`` a slot.
        """
        rows: Weighting = {"a": "stack"}
        inner = Exchange(only("x", "y"), self._inner, self._take_y, "direction", "fresh")
        first = Exchange(only("x", "y"), self._first, self._start, rows, "fresh")
        hop = Exchange(only("x", "y"), self._hop, self._move, rows, "fresh", self._wanted, private=only("a"))
        last = Exchange(only("x", "y"), self._last, self._take_x, "direction", "fresh", private=only("a"))
        hops = (Repeat(self.products - 1, (hop,)),) if self.products > 1 else ()
        return Repeat(self.inner, (inner,)), first, *hops, last

    def _wanted(self, server: Tree, ctx: Context) -> Any:
        """Whether the hop number index + 1 is one of the N'."""
        return ctx.index < uniform_below(ctx, "neumann", self.products)

    def _inner(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return {"y": local.g(local.index, "y").grad_y(down["x"], down["y"])}, keep, None

    def _first(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return {"a": local.f(0, "z").grad_y(down["x"], down["y"])}, keep, None

    def _hop(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        return {"a": local.g(local.index + 1, "z").hess(down["x"], down["y"], down["a"])}, keep, None

    def _last(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        x, y, scale = down["x"], down["y"], self.products * at(self.neumann_step, local.round)
        return {"x": local.f(0, "x").grad_x(x, y) - local.g(0, "x").cross(x, y, scale * down["a"])}, keep, None

    def _take_y(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "y": ctx.project_y(server["y"] - at(self.gamma_y, ctx.round) * mean["y"])}

    def _start(self, ctx: Context, server: Tree, stacked: Tree) -> Tree:
        return {**server, "a": _dealt(ctx, 0, _weighted(ctx, stacked["a"]))}

    def _move(self, ctx: Context, server: Tree, stacked: Tree) -> Tree:
        a = server["a"] - at(self.neumann_step, ctx.round) * _weighted(ctx, stacked["a"])
        return {**server, "a": _dealt(ctx, ctx.index + 1, a)}

    def _take_x(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
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
