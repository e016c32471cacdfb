"""What a candidate is worth: Φ(x), the upper objective where the lower level has followed, not at the raw y.

A large step of x can make the upper objective small while y is far from the lower solution. So a candidate is judged
after some steps of the lower level alone, on all data, from its own y: what somebody would get who kept x and finished the
lower level. docs/tuning.md has an example in which the raw objective prefers the wrong candidate.
"""

from typing import Any, NamedTuple

import equinox as eqx
from jax import Array

from rookery.problem.clients import Clients
from rookery.problem.problems import Problem
from rookery.tuning.levels import levels


class Effort(NamedTuple):
    """How far the lower level is followed in a judgement: Newton steps, and products in each."""

    outer: int = 3
    inner: int = 12

    @property
    def products(self) -> int:
        """At most so many oracle calls of each client a judgement."""
        return self.outer * (self.inner + 2)

    @classmethod
    def within(cls, products: float) -> "Effort":
        """The most that costs no more than so many calls of each client."""
        outer = 3 if products >= 30 else 2 if products >= 14 else 1
        return cls(outer, int(min(12, max(3, products // outer - 2))))


FULL = Effort()


@eqx.filter_jit
def phi(
    problem: Problem, clients: Clients, like: tuple[Any, Any], effort: Effort, x: Array, y: Array
) -> tuple[Array, Array]:
    """Φ at vectors x and y, and the y of the lower level that it was taken at; ``like`` are pytrees x and y.

    One program for everything that a search judges: it is compiled once, and a call takes milliseconds.
    """
    both = levels(problem, clients, *like)
    solved = both.solve(x, y, effort.outer, effort.inner)
    return both.f.value(x, solved), solved
