"""FedMBO: minibatch steps, and a Neumann series carried from client to client."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from rookery.algorithm import Algorithm, Context, Exchange, Local, Repeat, Step
from rookery.algorithms.common import check_count, check_rates, only
from rookery.algorithms.fednest import uniform_below
from rookery.clients import Clients
from rookery.keys import Stream
from rookery.participation import Steps
from rookery.problems import Flat
from rookery.schedules import at

Tree = Any


class FedMBO(Algorithm):
    """FedMBO: no local steps; as many independent Neumann chains as participants, each hop at a client drawn anew.

    T times y ← y − γ_y mean ∇_y g(x, y; ζ); then N' uniform on 0..N−1 once for all chains c, and for each of them

        a_c = ∇_y f(x, y; ξ),   a_c ← a_c − (1/ℓ)∇²_yy g(x, y; ζ) a_c, N' times,   h_c = ∇_x f − (N/ℓ)∇²_xy g a_c

    and x ← x − γ_x mean h_c. Every line is a new draw of participants; chains are dealt out to them at random. T + N' + 2
    exchanges. Clients must have equal weights.

    Args:
        gamma_x, gamma_y: steps of the server.
        neumann_step: 1/ℓ.
        inner: T.
        products: N, the number of terms of the series in the mean.
    """

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
        check_count(self, "inner")
        check_count(self, "products")

    def check(self, flat: Flat, clients: Clients, steps: Steps, whole_sets: bool) -> None:
        """A chain visits all clients alike."""
        p = np.asarray(clients.weights)
        if not np.allclose(p, 1 / p.size, rtol=1e-5):
            raise ValueError(
                f"FedMBO: weights must be equal, its chains visit all clients alike, got p from {p.min():g} to {p.max():g}"
            )

    def round(self) -> tuple[Step, ...]:
        """Steps on y, then the chains: their start, up to N − 1 hops, their end."""
        # A chain lives in the server's state from its start to its end: one row a slot.
        inner = Exchange(only("x", "y"), self._inner, self._take_y, draw="fresh")
        first = Exchange(only("x", "y"), self._first, self._deal, {"a": "stack"}, "fresh")
        hop = Exchange(only("x", "y"), self._hop, self._deal, {"a": "stack"}, "fresh", self._wanted, only("a"))
        last = Exchange(only("x", "y"), self._last, self._take_x, draw="fresh", private=only("a"))
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
        hess = local.g(local.index + 1, "z").hess(down["x"], down["y"], down["a"])
        return {"a": down["a"] - at(self.neumann_step, local.round) * hess}, keep, None

    def _last(self, local: Local, down: Tree, keep: Tree, carry: Tree) -> tuple[Tree, Tree, Tree]:
        x, y, scale = down["x"], down["y"], self.products * at(self.neumann_step, local.round)
        return {"x": local.f(0, "x").grad_x(x, y) - local.g(0, "x").cross(x, y, scale * down["a"])}, keep, None

    def _take_y(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {**server, "y": ctx.project_y(server["y"] - at(self.gamma_y, ctx.round) * mean["y"])}

    def _deal(self, ctx: Context, server: Tree, stacked: Tree) -> Tree:
        """The chains in random order: participants are sorted, and a chain must not stay with the first ones.

        Where the next draw has more participants than there are chains, some chains are dealt twice.
        """
        hop = ctx.index + 1 if "a" in server else 0
        slots, most = ctx.mask.size, 2**31 - 1
        lot = Stream(ctx.key("deal")).integers(slots, most, hop, "deal")
        order = jnp.argsort(jnp.where(ctx.mask, lot, most))  # used slots first
        return {**server, "a": stacked["a"][order[jnp.arange(slots) % ctx.active]]}

    def _take_x(self, ctx: Context, server: Tree, mean: Tree) -> Tree:
        return {"x": ctx.project_x(server["x"] - at(self.gamma_x, ctx.round) * mean["x"]), "y": server["y"]}
