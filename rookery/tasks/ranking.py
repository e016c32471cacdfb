"""AUROC: a score that ranks positives above negatives, by the minimax form of the area under the ROC curve."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.networks import ConvNet, cnn, xavier
from rookery.problem import partition
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Minimax
from rookery.tasks.inputs import Example, Scaling, examples
from rookery.tasks.task import Defaults, Recipe, Task


class _Objective(eqx.Module):
    """The mean over the batch of the AUROC loss at the score h = sigmoid(network), ``prior`` being π = P(positive)."""

    scaling: Scaling
    prior: float = eqx.field(static=True)

    def output(self, x: dict[str, Any], images: Array) -> Array:
        net: ConvNet = x["net"]
        return net(self.scaling(images, net.dtype))[:, 0]

    def __call__(self, x: dict[str, Any], y: Array, batch: Example) -> Array:
        h, pi = jax.nn.sigmoid(self.output(x, batch["input"])), self.prior
        positive = (1 - pi) * ((h - x["a"]) ** 2 - 2 * (1 + y) * h)
        negative = pi * ((h - x["b"]) ** 2 + 2 * (1 + y) * h)
        return jnp.mean(jnp.where(batch["label"] == 1, positive, negative)) - pi * (1 - pi) * y**2


class _Score(eqx.Module):
    """The area under the ROC curve of the test images, from the network's output: the sigmoid changes no rank."""

    objective: _Objective
    images: Array
    labels: Array
    chunk: int = eqx.field(static=True, default=1000)

    def __call__(self, x: dict[str, Any], y: Array) -> dict[str, Array]:
        outputs = jax.lax.map(
            lambda image: self.objective.output(x, image[None])[0], self.images, batch_size=self.chunk
        )
        return {"auroc": area_under_curve(outputs, self.labels)}


def area_under_curve(scores: Array, labels: Array) -> Array:
    """P(the score of a positive exceeds that of a negative), ties counted half; ``labels`` are 1 and 0.

    Exact, by a sort of the negatives and two searches for each positive.
    """
    positive = labels == 1
    negatives = jnp.sort(jnp.where(positive, jnp.inf, scores))  # positives after all negatives
    count = jnp.sum(~positive)
    below = jnp.minimum(jnp.searchsorted(negatives, scores, side="left"), count)
    not_above = jnp.minimum(jnp.searchsorted(negatives, scores, side="right"), count)
    return jnp.sum(jnp.where(positive, (below + not_above) / (2 * count), 0)) / jnp.sum(positive)


def auroc(data: Dataset, *, clients: int = 16, seed: int = 0, dropped: float = 0.8) -> Task:
    """min over (network, a, b), max over the scalar w of

        E[(1−π)(h−a)² 1₊ + π(h−b)² 1₋ + 2(1+w)(πh 1₋ − (1−π)h 1₊)] − π(1−π)w²,   π = P(positive), h = sigmoid(network)

    The first half of the classes is negative, the second positive; the fraction ``dropped`` of the negative training
    images, chosen at random, is left out, and the rest is dealt out evenly. The test images are all used. The network is
    FedSGDA's for such images, with a Xavier start; a, b and w start at 0.
    """  # fmt: skip
    if not 0 <= dropped < 1:
        raise ValueError(f"dropped must be in [0, 1), got {dropped}")
    kept = _kept(data, dropped, seed)
    labels = _binary(data.train_labels[kept], data.classes)
    objective = _Objective(Scaling.of(data), float(labels.mean()))
    held = [kept[rows] for rows in partition.iid(len(kept), clients, seed)]
    every = examples(data.train_inputs, _binary(data.train_labels, data.classes))
    key = jax.random.key(seed)
    return Task(
        Minimax(objective),
        Clients(Split(every, held, "clients")),
        {"a": jnp.zeros(()), "b": jnp.zeros(()), "net": xavier(cnn(data.shape, 1, key), key)},
        jnp.zeros(()),
        _Score(objective, jnp.asarray(data.test_inputs), jnp.asarray(_binary(data.test_labels, data.classes))),
        metric="auroc",
    )


def _binary(labels: np.ndarray, classes: int) -> np.ndarray:
    """1 for the second half of the classes."""
    return (labels >= classes // 2).astype(np.int32)


def _kept(data: Dataset, dropped: float, seed: int) -> np.ndarray:
    """All positives and a random part of the negatives; how many does not depend on the seed."""
    positive = _binary(data.train_labels, data.classes) == 1
    negatives = np.flatnonzero(~positive)
    order = np.random.default_rng([*b"auroc", seed]).permutation(negatives)
    return np.sort(np.concatenate([np.flatnonzero(positive), order[: round((1 - dropped) * len(order))]]))


_PAPER = Defaults(
    clients=16, local_steps=20, batch_size=50, rounds=100, algorithm="FedSGDA-M",
    rates={
        "FedSGDA-M": {"eta_x": 0.01, "eta_y": 0.01, "alpha": 0.1, "beta": 0.1},
        "Local SGDA": {"eta_x": 0.01, "eta_y": 0.01},
        "Momentum Local SGDA": {"eta_x": 0.01, "eta_y": 0.01, "beta_x": 0.5, "beta_y": 0.5},
        "CODA+": {"eta": 0.01},
        "CODASCA": {"eta": 0.01, "gamma": 1.5},
        "SAGDA": {"eta_x": 0.01, "eta_y": 0.01, "gamma_x": 1.5, "gamma_y": 1.5},
    },
)  # fmt: skip

AUROC = Recipe(
    "auroc",
    "a score that ranks positives above negatives, on imbalanced classes",
    auroc,
    {
        "digits": Defaults(
            clients=16, local_steps=10, batch_size=32, rounds=60, algorithm="FedSGDA-M",
            rates={
                "FedSGDA-M": {"eta_x": 1.0, "eta_y": 0.1, "alpha": 0.5, "beta": 0.5},
                "Local SGDA": {"eta_x": 1.0, "eta_y": 0.1},
                "Momentum Local SGDA": {"eta_x": 1.0, "eta_y": 1.0, "beta_x": 0.5, "beta_y": 0.5},
                "CODA+": {"eta": 1.0},
                "CODASCA": {"eta": 1.0, "gamma": 1.5},
                "SAGDA": {"eta_x": 1.0, "eta_y": 1.0},
            },
        ),
        "mnist": _PAPER,
        "fashion-mnist": _PAPER,
        "cifar-10": _PAPER,
    },
)  # fmt: skip
"""Rates on digits: a small grid on held-out training data. Else: points of FedSGDA's grids, which does not say its own,
and not tuned; steps a hundred times as large learn faster on Fashion-MNIST."""
