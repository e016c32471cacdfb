"""Client weighting: learn whom to trust, by a few images that the server holds."""

from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.layers import cross_entropy
from rookery.models.networks import LeNet5
from rookery.problem import partition
from rookery.problem.clients import Clients
from rookery.problem.problems import ClientWeighting
from rookery.tasks.inputs import Example, Scaling, Score, examples
from rookery.tasks.task import Defaults, Recipe, Task


class _Loss(eqx.Module):
    """Cross-entropy of the network w."""

    scaling: Scaling

    def logits(self, x: Any, w: LeNet5, images: Array) -> Array:
        return w(self.scaling(images, w.dtype))

    def __call__(self, w: LeNet5, batch: Example) -> Array:
        return cross_entropy(self.logits(None, w, batch["input"]), batch["label"])


class _Score(eqx.Module):
    """Test accuracy and loss of w, the weights x1, x2, ... of the clients, and what the noise clients have together."""

    test: Score
    clean: int = eqx.field(static=True)

    def __call__(self, x: Array, w: LeNet5) -> dict[str, Array]:
        weights = {f"x{i + 1}": x[i] for i in range(x.shape[0])}
        return {**self.test(x, w), "noise": jnp.sum(x[self.clean :]), **weights}


def client_weighting(
    data: Dataset,
    *,
    clients: int = 10,
    seed: int = 0,
    iid: bool = False,
    validation: int = 20,
    share: int | None = None,
    oracle: bool = False,
) -> Task:
    """min over x in the simplex of f_0(w*(x)), w*(x) = argmin Σ x_i f_i(w): cross-entropies of a LeNet-5 w.

    f_0 is on ``validation`` random training images of each label, which the server holds. Of the others, client 1 has
    the first half of the labels, client 2 the next 30 %, client 3 the rest (0–4, 5–7, 8–9); all further clients have
    ``share`` random images each, with random labels. With ``iid`` the first half of the clients have ``share`` random
    images each with their labels, the second half as many with random labels. ``share`` is 5000, with ``iid`` 9000,
    unless given. Noise clients draw from all images that the server does not hold, whoever else has them.

    x starts at equal weights, or with ``oracle`` at those in proportion to the clean clients' labels: 0.5, 0.3, 0.2, 0,
    ... (``iid``: equal for clean clients), at which the algorithm "opt" stays.
    """
    fewest = 2 if iid else 4
    if clients < fewest:
        raise ValueError(f"clients must be at least {fewest}, got {clients}")
    share = share if share is not None else 9000 if iid else 5000
    rng = np.random.default_rng([*b"client weighting", seed])
    of_label = [np.flatnonzero(data.train_labels == c) for c in range(data.classes)]
    if not 1 <= validation < min(map(len, of_label)):
        raise ValueError(f"validation must be in 1..{min(map(len, of_label)) - 1} for {data.name}, got {validation}")
    server = np.concatenate([rng.permutation(rows)[:validation] for rows in of_label])
    rest = np.setdiff1d(np.arange(len(data.train_labels)), server)
    if not 1 <= share <= len(rest):
        raise ValueError(f"share must be in 1..{len(rest)}, the images that the server does not hold, got {share}")
    held, trust = _clean(data, rest, clients, iid, share, seed)
    images, labels = data.train_inputs, data.train_labels
    clean = [examples(images[rows], labels[rows]) for rows in held]
    noise = [_noisy(data, rng.permutation(rest)[:share], rng) for _ in range(clients - len(held))]
    loss = _Loss(Scaling.of(data))
    return Task(
        ClientWeighting(loss),
        Clients([*clean, *noise], server=examples(images[server], labels[server])),
        jnp.asarray(np.pad(trust, (0, len(noise)))) if oracle else jnp.full(clients, 1 / clients),
        LeNet5(data.shape, data.classes, jax.random.key(seed)),
        _Score(Score.of(loss.logits, data), len(held)),
    )


def _clean(
    data: Dataset, rest: np.ndarray, clients: int, iid: bool, share: int, seed: int
) -> tuple[list[np.ndarray], list[float]]:
    """Which examples the clean clients hold, and the weights of an oracle."""
    if iid:
        count = clients // 2
        return [rest[rows] for rows in partition.iid(len(rest), count, seed, share)], [1 / count] * count
    cuts = [0, round(0.5 * data.classes), round(0.8 * data.classes), data.classes]
    groups = [range(first, last) for first, last in pairwise(cuts)]
    parts = partition.by_class(data.train_labels[rest], groups)
    return [rest[rows] for rows in parts], [len(group) / data.classes for group in groups]


def _noisy(data: Dataset, rows: np.ndarray, rng: np.random.Generator) -> Example:
    return examples(data.train_inputs[rows], rng.integers(0, data.classes, len(rows)))


_PAPER = {
    "PrimalDual": {"eta_x": 0.01, "eta_w": 0.1, "eta_lambda": 0.01, "penalty": 1.0},
    "FedNest-CW": {"eta_x": 0.1, "eta_w": 0.1, "neumann_step": 0.1},
    "SUSTAIN-CW": {"eta_x": 0.1, "eta_w": 0.1, "neumann_step": 0.03},
    "RFHO-CW": {"eta_x": 0.1, "eta_w": 0.1},
    "AFL": {"eta_x": 0.001, "eta_w": 0.1},
    "val": {"eta_w": 0.1},
    "avg": {"eta_w": 0.1},
    "opt": {"eta_w": 0.1},
}

CLIENT_WEIGHTING = Recipe(
    "client-weighting",
    "whom to trust: weights of clients, some of them noise, by a few images that the server holds",
    client_weighting,
    {
        "digits": Defaults(
            clients=10, batch_size=32, rounds=400, algorithm="PrimalDual", options={"validation": 10, "share": 120},
            rates={
                "PrimalDual": {"eta_x": 0.01, "eta_w": 0.1, "eta_lambda": 0.01, "penalty": 1.0},
                "FedNest-CW": {"eta_x": 0.1, "eta_w": 0.3, "neumann_step": 0.1},
                "SUSTAIN-CW": {"eta_x": 0.1, "eta_w": 0.3, "neumann_step": 0.03},
                "RFHO-CW": {"eta_x": 0.03, "eta_w": 0.3},
                "AFL": {"eta_x": 0.001, "eta_w": 0.1},
                "val": {"eta_w": 0.1},
                "avg": {"eta_w": 0.3},
                "opt": {"eta_w": 0.3},
            },
        ),
        "mnist": Defaults(clients=10, batch_size=64, rounds=2000, algorithm="PrimalDual", rates=_PAPER),
        "fashion-mnist": Defaults(clients=10, batch_size=64, rounds=6000, algorithm="PrimalDual", rates=_PAPER),
    },
)  # fmt: skip
"""Rates on digits: a small grid on held-out training data. Else: the points of PrimalDual's grids that are nearest to
those, not tuned; η_λ and the steps of the series are in no grid."""
