"""Whose data a search is measured and judged on: everybody's, unless that would cost more than the search itself."""

import inspect
import math

import numpy as np

from rookery.problem.clients import Clients
from rookery.problem.problems import Bilevel, Minimax, Problem

CLIENTS, EXAMPLES = 8, 50
"""The fewest clients of a sample, and examples of each."""
CHEAP = 5000
"""So many examples are judged in milliseconds, whatever a run costs."""


def sample(problem: Problem, clients: Clients, slots: int, examples: float) -> Clients:
    """Clients, evenly spaced, who together have about so many examples; all of them where that is enough or must be.

    Never fewer clients than take part in a round. Where x or y or a loss knows clients by their numbers, nobody is left
    out.
    """
    total = max(clients.lower.total, clients.upper.total)
    examples = max(examples, CHEAP)
    if examples >= total or _knows_clients(problem):
        return clients
    n = clients.n
    count = min(n, max(slots, CLIENTS, math.ceil(n * math.sqrt(examples / total))))
    most = max(EXAMPLES, int(examples / count))
    return clients.some(np.unique(np.linspace(0, n - 1, count).astype(int)), most)


def _knows_clients(problem: Problem) -> bool:
    if isinstance(problem, Bilevel) and problem.lower_level == "global":
        losses = [problem.upper, problem.lower]
    elif isinstance(problem, Minimax):
        losses = [problem.objective]
    else:
        return True
    return any("client" in inspect.signature(loss).parameters for loss in losses)
