"""Loss tuning: train on imbalanced classes with a loss whose weights, scales and shifts are chosen on validation data."""

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.choice import make_model
from rookery.models.layers import cross_entropies, squared_norm
from rookery.problem import partition
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Bilevel
from rookery.tasks.averaging import averaging
from rookery.tasks.inputs import CLASSIFIED, Example, Scaling, Score, class_names, deal, examples, recalls, widths
from rookery.tasks.learned import Learned, Rows, table
from rookery.tasks.network import about_network, by_class
from rookery.tasks.representation import check_network
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

    def logits(self, x: Any, y: Any, inputs: Array) -> Array:
        return self.scaling.outputs(y, inputs)

    def __call__(self, x: VectorScaling, y: Any, batch: Example) -> Array:
        return self.loss(self.logits(x, y, batch["input"]), batch["label"])


class _Lower(eqx.Module):
    """The network's loss as x says, with rc‖y‖²."""

    scaling: Scaling
    rc: float

    def __call__(self, x: VectorScaling, y: Any, batch: Example) -> Array:
        logits = self.scaling.outputs(y, batch["input"])
        return x(logits, batch["label"]) + self.rc * squared_norm(y)


class Balanced(eqx.Module):
    """On the test examples: the mean over classes of the share that is right, the share of all, and the mean loss."""

    test: Score
    classes: int = eqx.field(static=True)

    def __call__(self, x: Any, y: Any) -> dict[str, Array]:
        """The metrics."""
        right, losses = self.test.each(x, y)
        recall = recalls(right, self.test.labels, self.classes)
        return {"balanced_accuracy": jnp.mean(recall), "accuracy": jnp.mean(right), "loss": jnp.mean(losses)}


def loss_tuning(
    data: Dataset,
    *,
    clients: int = 100,
    seed: int = 0,
    hidden: int = 200,
    rc: float = 0.0,
    factor: float | None = 100.0,
    split: Literal["iid", "shards"] = "iid",
    validation: float | None = None,
    model: Any = None,
) -> Task:
    """min over x = (ω, δ, ι) of the mean weighted validation loss of the network y*(x), trained with the loss that x says.

    Class c keeps its first ⌈(n/C)·factor^{−c/(C−1)}⌉ training examples, so that the first class is ``factor`` times as
    large as the last; None leaves classes as they are. Lower level: :class:`VectorScaling` + rc‖y‖², y the network
    ``model``, or inputs–hidden–classes; upper level: the same with δ = 1, ι = 0 and weights proportional to
    factor^{c/(C−1)}, or to the inverse sizes of the classes as they are, of Euclidean norm 1. Clients hold equal shares, as
    in hyper-representation. x starts at ω = 1, δ = 1, ι = 0: plain training.
    """
    check_network((hidden,), rc)
    if factor is not None:
        kept = partition.long_tailed(data.train_labels, factor, data.classes, len(data.train_labels) // data.classes)
        data = data.part(kept)
        weights = class_weights(data.classes, factor)
    else:
        weights = inverse_sizes(data.train_labels, data.classes)
    lower, upper = deal(data, clients, seed, split, validation)
    data_of_all = examples(data.train_inputs, data.train_labels)
    loss = _Upper(Scaling.of(data), VectorScaling.weighted(weights))
    model = widths((hidden,)) if model is None else model
    network = make_model(model, data.shape, data.classes, jax.random.key(seed))
    test = Score.of(loss.logits, data)

    def learned(x: Any, y: Any) -> Learned:
        rows = _class_weights(data, x, test, y)
        text = "What the training loss was made of: weight, scale and shift of each class."
        shown = [*by_class(test, data, x, y), table("Learned loss", text, rows)]
        return Learned({"class_weights.csv": rows}, shown, about_network(data, y, model))

    return Task(
        Bilevel(loss, _Lower(loss.scaling, rc)),
        Clients(Split(data_of_all, lower, "lower"), Split(data_of_all, upper, "upper")),
        VectorScaling.weighted(jnp.ones(data.classes)),
        network,
        Balanced(test, data.classes),
        metric="balanced_accuracy",
        contest=averaging(data, [np.concatenate(both) for both in zip(lower, upper, strict=True)], network, Balanced),
        learned=learned,
    )


def _class_weights(data: Dataset, x: VectorScaling, test: Score, y: Any) -> Rows:
    right, _ = eqx.filter_jit(test.each)(x, y)
    recall = np.asarray(recalls(right, test.labels, data.classes))
    sizes = np.bincount(data.train_labels, minlength=data.classes)
    cells = (class_names(data), sizes, *map(np.asarray, (x.omega, x.delta, x.iota)), recall)
    columns = ("class", "training_examples", "weight", "scale", "shift", "test_accuracy")
    return Rows(columns, list(zip(*cells, strict=True)))


def inverse_sizes(labels: np.ndarray, classes: int) -> Array:
    """ω_c ∝ 1/n_c, ‖ω‖ = 1."""
    weights = 1 / np.maximum(np.bincount(labels, minlength=classes), 1)
    return jnp.asarray(weights / np.linalg.norm(weights), jnp.result_type(float))


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
    own=Defaults(
        clients=10, local_steps=3, batch_size=32, rounds=600, algorithm="MeFBO",
        options={"factor": None, "model": "mlp:32", "rc": 1e-3},  # without rc a separable lower level has no minimum
    ),
    question="Some classes are rare. Which weights of the training loss make the classifier good at all classes alike?",
    meanings={
        **CLASSIFIED,
        "balanced_accuracy": "The mean over the classes of the share of their test examples that is classified right: each "
        "class counts the same, however rare it is.",
    },
)  # fmt: skip
