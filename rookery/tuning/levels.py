"""A problem as two functions of vectors, F and G, on all data of all clients, whatever its class.

The lower levels of clients that have one each lie side by side in one vector y: G is then their sum, whose minimiser is
each client's own and whose largest curvature is the largest of theirs.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rookery.problem.clients import Clients
from rookery.problem.keys import as_key
from rookery.problem.layout import Layout
from rookery.problem.measures import objectives, server_objective
from rookery.problem.oracles import Objective, on_everybody, on_whole_set
from rookery.problem.problems import Bilevel, ClientWeighting, Flat, Minimax, Problem
from rookery.problem.sets import WholeSpace
from rookery.problem.solvers import accelerated_descent, truncated_newton


@dataclass(frozen=True)
class Levels:
    """F and G, and the vectors that they take."""

    flat: Flat
    f: Objective
    g: Objective
    own: int | None
    """How many lower levels lie side by side; None if there is one for all."""

    def start(self, y: Any) -> Array:
        """The start y, the same for all clients, as one vector."""
        return jnp.tile(self.flat.y.ravel(y), self.own or 1)

    def project_y(self, y: Array) -> Array:
        """On Y, each client's own where there are several."""
        if self.own is None:
            return self.flat.project_y(y)
        return jax.vmap(self.flat.project_y)(y.reshape(self.own, -1)).reshape(-1)

    @property
    def free(self) -> bool:
        """Whether y has no constraints."""
        return isinstance(self.flat.problem.y_set, WholeSpace)

    def solve(self, x: Array, y: Array, outer: int, inner: int) -> Array:
        """The lower level from y on: Newton's method with a bounded number of products, or projected descent."""
        if self.free:
            return truncated_newton(lambda v: self.g.value(x, v), y, outer, inner)
        return accelerated_descent(lambda v: self.g.value(x, v), self.project_y, y, outer * inner)


def levels(problem: Problem, clients: Clients, x: Any, y: Any) -> Levels:
    """F and G of a problem; x and y give the shapes, y that of one client."""
    flat = Flat(problem, Layout.of(x, "x"), Layout.of(y, "y"))
    if isinstance(problem, ClientWeighting):

        def weighted(x: Array, w: Array) -> Array:
            return on_everybody(flat.lower, clients.lower, x, _key)(x, w)

        return Levels(flat, server_objective(flat, clients), Objective(weighted), None)
    if isinstance(problem, Bilevel) and problem.lower_level == "local":
        weights = clients.weights

        def side_by_side(loss: Any, split: Any, p: Array) -> Objective:
            def value(x: Array, ys: Array) -> Array:
                rows = ys.reshape(clients.n, -1)

                def one(client: Array) -> Array:
                    return on_whole_set(loss, split, client, _key, client)(x, rows[client])

                return jnp.vdot(p.astype(x.dtype), jax.lax.map(jax.checkpoint(one), jnp.arange(clients.n)))

            return Objective(value)

        f = side_by_side(flat.upper, clients.upper, weights)
        return Levels(flat, f, side_by_side(flat.lower, clients.lower, jnp.ones_like(weights)), clients.n)
    f, g = objectives(flat, clients)
    return Levels(flat, f, g, None)


def is_minimax(problem: Problem) -> bool:
    """Whether y maximises what x minimises, so that ∇Φ needs no second derivatives."""
    return isinstance(problem, Minimax)


def _key() -> Array:
    return as_key(0)
