"""Fair classification: a network whose worst class is as good as can be."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.layers import cross_entropies
from rookery.models.networks import ConvNet, cnn
from rookery.problem import partition
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Minimax
from rookery.problem.sets import Simplex
from rookery.tasks.inputs import Example, Scaling, examples
from rookery.tasks.task import Defaults, Recipe, Task


class _Objective(eqx.Module):
    """The mean over the batch of weight · y_label · cross-entropy; with weight n_i/n_ic its mean is Σ_c y_c L_c."""

    scaling: Scaling

    def logits(self, x: ConvNet, images: Array) -> Array:
        return x(self.scaling(images, x.dtype))

    def __call__(self, x: ConvNet, y: Array, batch: Example) -> Array:
        hot = jax.nn.one_hot(batch["label"], y.shape[0], dtype=y.dtype)
        losses = cross_entropies(self.logits(x, batch["input"]), batch["label"])
        return jnp.mean(batch["weight"].astype(y.dtype) * (hot @ y) * losses)


class _Score(eqx.Module):
    """On the test images: the share that is right, of all and of the worst class, and the mean cross-entropy."""

    objective: _Objective
    images: Array
    labels: Array
    classes: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True, default=1000)

    def __call__(self, x: ConvNet, y: Array) -> dict[str, Array]:
        def one(example: tuple[Array, Array]) -> tuple[Array, Array]:
            image, label = example
            logits = self.objective.logits(x, image[None])
            return jnp.argmax(logits[0]) == label, cross_entropies(logits, label[None])[0]

        right, losses = jax.lax.map(one, (self.images, self.labels), batch_size=self.chunk)
        of_class = self.labels[:, None] == jnp.arange(self.classes)
        recall = jnp.sum(of_class * right[:, None], 0) / jnp.sum(of_class, 0)
        return {"accuracy": jnp.mean(right), "worst_accuracy": jnp.nanmin(recall), "loss": jnp.mean(losses)}


def fair_classification(data: Dataset, *, clients: int = 20, seed: int = 0) -> Task:
    """min over x, max over y in the simplex of mean_i Σ_c y_c L_c^i(x), L_c^i the mean loss of class c at client i.

    x is FedSGDA's network for such images. Every client holds an equal part of every class. An example of class c at
    client i carries the weight n_i/n_ic (all examples over those of its class), so that the mean over a batch of weight
    · y_label · loss is an unbiased estimate of Σ_c y_c L_c^i, and equal to it on the whole set. y starts at 1/C.
    """
    held = partition.by_class(data.train_labels, [range(data.classes)] * clients, seed)
    objective = _Objective(Scaling.of(data))
    every = {
        **examples(data.train_inputs, data.train_labels),
        "weight": jnp.asarray(_weights(data.train_labels, held, data.classes)),
    }
    return Task(
        Minimax(objective, y_set=Simplex()),
        Clients(Split(every, held, "clients")),
        cnn(data.shape, data.classes, jax.random.key(seed)),
        jnp.full(data.classes, 1 / data.classes),
        _Score(objective, jnp.asarray(data.test_inputs), jnp.asarray(data.test_labels, jnp.int32), data.classes),
    )


def _weights(labels: np.ndarray, held: list[np.ndarray], classes: int) -> np.ndarray:
    """For each example n_i/n_ic of its client i and class c."""
    weights = np.zeros(len(labels), np.float32)
    for rows in held:
        counts = np.bincount(labels[rows], minlength=classes)
        weights[rows] = len(rows) / counts[labels[rows]]
    return weights


_PAPER = Defaults(
    clients=20, local_steps=20, batch_size=50, rounds=100, algorithm="FedSGDA+",
    rates={
        "FedSGDA+": {"eta_x": 0.1, "eta_y": 0.001},
        "Local SGDA+": {"eta_x": 0.1, "eta_y": 0.001},
    },
)  # fmt: skip

FAIR_CLASSIFICATION = Recipe(
    "fair-classification",
    "a network whose worst class is as good as can be",
    fair_classification,
    {
        "digits": Defaults(
            clients=20, local_steps=10, batch_size=32, rounds=60, algorithm="FedSGDA+",
            rates={
                "FedSGDA+": {"eta_x": 0.3, "eta_y": 0.001, "gamma_x": 1.5},
                "Local SGDA+": {"eta_x": 0.1, "eta_y": 0.001},
                "Local SGDA": {"eta_x": 0.1, "eta_y": 0.001},
                "FedSGDA-M": {"eta_x": 0.3, "eta_y": 0.001, "alpha": 0.5, "beta": 0.5},
                "SAGDA": {"eta_x": 0.3, "eta_y": 0.001},
            },
        ),
        "mnist": _PAPER,
        "fashion-mnist": _PAPER,
        "cifar-10": _PAPER,
    },
)  # fmt: skip
"""Rates on digits: a small grid on held-out training data. Else: points of FedSGDA's grids, which does not say its own;
twelve rounds on held-out Fashion-MNIST chose between two of them, MNIST and CIFAR-10 have the same."""
