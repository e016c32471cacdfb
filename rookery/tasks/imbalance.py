"""Loss tuning: train on imbalanced classes with a loss whose weights, scales and shifts are chosen on validation data."""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.layers import MLP, cross_entropies, squared_norm
from rookery.problem import partition
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Bilevel
from rookery.tasks.inputs import Example, Scaling, examples
from rookery.tasks.representation import check_network, deal
from rookery.tasks.task import Defaults, Recipe, Task


class VectorScaling(eqx.Module):
    """The vector-scaling loss: the mean over the batch of −ω_l log softmax_l(δ_1 h_1 + ι_1, ..., δ_C h_C + ι_C).

    h are the logits and l the label of an example; ω, δ and ι have one entry a class.
    """

    omega: Array
    delta: Array
    iota: Array

    @classmethod
    def weighted(cls, omega: Array) -> "VectorScaling":
        """Cross-entropy with class weights: δ = 1, ι = 0."""
        return cls(omega, jnp.ones_like(omega), jnp.zeros_like(omega))

    def __call__(self, logits: Array, labels: Array) -> Array:
        """The loss of a batch."""
        hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
        return jnp.mean((hot @ self.omega) * cross_entropies(self.delta * logits + self.iota, labels))


class _Upper(eqx.Module):
    """The network's cross-entropy with fixed class weights; x has no part in it."""

    scaling: Scaling
    loss: VectorScaling

    def logits(self, x: VectorScaling, y: MLP, images: Array) -> Array:
        return y(self.scaling.flat(images, y.layers[0].weight.dtype))

    def __call__(self, x: VectorScaling, y: MLP, batch: Example) -> Array:
        return self.loss(self.logits(x, y, batch["input"]), batch["label"])


class _Lower(eqx.Module):
    """The network's loss as x says, with rc‖y‖²."""

    scaling: Scaling
    rc: float

    def __call__(self, x: VectorScaling, y: MLP, batch: Example) -> Array:
        logits = y(self.scaling.flat(batch["input"], y.layers[0].weight.dtype))
        return x(logits, batch["label"]) + self.rc * squared_norm(y)


class _Balanced(eqx.Module):
    """On the test images: the mean over classes of the share that is right, the share of all, and the mean loss."""

    upper: _Upper
    images: Array
    labels: Array
    classes: int = eqx.field(static=True)
    chunk: int = eqx.field(static=True, default=1000)

    def __call__(self, x: VectorScaling, y: MLP) -> dict[str, Array]:
        def one(example: tuple[Array, Array]) -> tuple[Array, Array]:
            image, label = example
            logits = self.upper.logits(x, y, image[None])
            return jnp.argmax(logits[0]) == label, cross_entropies(logits, label[None])[0]

        right, losses = jax.lax.map(one, (self.images, self.labels), batch_size=self.chunk)
        of_class = self.labels[:, None] == jnp.arange(self.classes)
        recall = jnp.sum(of_class * right[:, None], 0) / jnp.sum(of_class, 0)
        return {"balanced_accuracy": jnp.mean(recall), "accuracy": jnp.mean(right), "loss": jnp.mean(losses)}


def loss_tuning(
    data: Dataset,
    *,
    clients: int = 100,
    seed: int = 0,
    hidden: int = 200,
    rc: float = 0.0,
    factor: float = 100.0,
    split: Literal["iid", "shards"] = "iid",
    validation: float | None = None,
) -> Task:
    """min over x = (ω, δ, ι) of the mean weighted validation loss of the network y*(x), trained with the loss that x says.

    Class c keeps its first ⌈(n/C)·factor^{−c/(C−1)}⌉ training images, so that the first class is ``factor`` times as
    large as the last. Lower level: :class:`VectorScaling` + rc‖y‖², y a network pixels–hidden–classes; upper level: the
    same with δ = 1, ι = 0 and weights proportional to factor^{c/(C−1)}, of Euclidean norm 1. Clients hold equal shares,
    as in hyper-representation. x starts at ω = 1, δ = 1, ι = 0: plain training.
    """
    check_network((hidden,), rc)
    kept = partition.long_tailed(data.train_labels, factor, data.classes, len(data.train_labels) // data.classes)
    labels = data.train_labels[kept]
    lower, upper = deal(labels, clients, seed, split, validation)
    data_of_all = examples(data.train_inputs[kept], labels)
    loss = _Upper(Scaling.of(data), VectorScaling.weighted(class_weights(data.classes, factor)))
    return Task(
        Bilevel(loss, _Lower(loss.scaling, rc)),
        Clients(Split(data_of_all, lower, "lower"), Split(data_of_all, upper, "upper")),
        VectorScaling.weighted(jnp.ones(data.classes)),
        MLP((data.pixels, hidden, data.classes), jax.random.key(seed)),
        _Balanced(loss, jnp.asarray(data.test_inputs), jnp.asarray(data.test_labels, jnp.int32), data.classes),
        metric="balanced_accuracy",
    )


def class_weights(classes: int, factor: float) -> Array:
    """ω_c ∝ factor^{c/(C−1)}, ‖ω‖ = 1: the inverse of the classes' sizes."""
    weights = factor ** (np.arange(classes) / max(classes - 1, 1))
    return jnp.asarray(weights / np.linalg.norm(weights), jnp.result_type(float))


LOSS_TUNING = Recipe(
    "loss-tuning",
    "class weights, scales and shifts of the training loss for imbalanced classes",
    loss_tuning,
    {
        "digits": Defaults(
            clients=10, participants=5, local_steps=3, batch_size=16, rounds=300, algorithm="MeFBO",
            options={"hidden": 64, "factor": 20.0},
            rates={
                "MeFBO": {"gamma_x": 3.0, "gamma_y": 0.3, "gamma_theta": 0.3, "nu": 20.0, "c": 3.0},
                "SimFBO": {"gamma_x": 0.1, "gamma_y": 0.2, "gamma_z": 0.01},
                "FedBiO": {"eta_x": 0.1, "eta_y": 0.1, "eta_z": 0.01},
                "FedBiOAcc": {"eta_x": 1.0, "eta_y": 0.3, "eta_z": 0.1},
                "FedAvg": {"eta_y": 0.3},
            },
        ),
        "mnist": Defaults(
            clients=100, participants=10, batch_size=10, rounds=600, algorithm="MeFBO",
            rates={
                "MeFBO": {"gamma_x": 1.0, "gamma_y": 0.2, "gamma_theta": 0.2, "nu": 20.0, "c": 1.0},
                "SimFBO": {"gamma_x": 0.08, "gamma_y": 0.05, "gamma_z": 0.01},
                "FedAvg": {"eta_y": 0.2},
            },
        ),
        "fashion-mnist": Defaults(
            clients=100, participants=10, batch_size=10, rounds=600, algorithm="MeFBO",
            rates={
                "MeFBO": {"gamma_x": 0.3, "gamma_y": 0.1, "gamma_theta": 0.1, "nu": 20.0, "c": 1.0},
                "SimFBO": {"gamma_x": 0.08, "gamma_y": 0.05, "gamma_z": 0.01},
                "FedAvg": {"eta_y": 0.2},
            },
        ),
    },
)  # fmt: skip
