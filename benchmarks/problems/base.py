"""What a problem of the benchmark is, and the data sets they are made from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn import datasets

import rookery as rk


@dataclass(frozen=True)
class Problem:
    """A small federated problem with the setting in which it is solved, and the exact Φ by which a solution is judged.

    ``phi(x, y)`` is a compiled function of the x and y of a solution, which can be mapped over lanes: the upper objective
    on all data at the exact lower solution y*(x); y matters only where the lower level has many minima. It is infinite
    where Φ is not a number or y*(x) could not be found. ``optimum`` is the lowest Φ that ``optimum.descend`` found.
    """

    name: str
    problem: rk.Bilevel | rk.Minimax | rk.ClientWeighting
    clients: rk.Clients
    x0: Any
    y0: Any
    rounds: int
    participation: int | None
    local_steps: int
    batch_size: int | None
    phi: Callable[[Any, Any], Any]
    optimum: float | None = None


def table(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The inputs of one of scikit-learn's own data sets, each column of mean 0 and variance 1, and the raw targets."""
    inputs, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
    spread = inputs.std(0)
    return ((inputs - inputs.mean(0)) / np.where(spread > 0, spread, 1)).astype(np.float32), targets


def diabetes(noise: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The inputs of diabetes with ``noise`` columns that mean nothing, and the targets in their own unit, 25 to 346."""
    inputs, targets = table("diabetes")
    junk = rng.normal(size=(len(inputs), noise)).astype(np.float32)
    return np.concatenate([inputs, junk], 1), targets.astype(np.float32)


def standard(values: np.ndarray) -> np.ndarray:
    """``values`` with mean 0 and variance 1."""
    return ((values - values.mean()) / values.std()).astype(np.float32)


def halves(count: int, clients: int, rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Training and validation examples of clients, drawn at random: half of all each, the same number for everybody."""
    share = count // (2 * clients)
    parts = rng.permutation(count)[: 2 * clients * share].reshape(2, clients, share)
    return list(parts[0]), list(parts[1])


def skewed(labels: np.ndarray, clients: int, alpha: float, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The same, with labels and numbers of examples that differ between clients: Dirichlet(alpha)."""
    held = rk.partition.dirichlet(labels, clients, seed, alpha, min_size=8)
    return rk.partition.split(held, 0.5, seed)


def examples(inputs: np.ndarray, targets: np.ndarray, **more: np.ndarray) -> dict[str, np.ndarray]:
    """A table of examples; targets that are classes are integers."""
    classes = np.issubdtype(targets.dtype, np.integer)
    return {"input": inputs, "target": targets.astype(np.int32 if classes else np.float32), **more}
