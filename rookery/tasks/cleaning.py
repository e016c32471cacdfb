"""Data cleaning: learn a weight for every training sample, so that training on noisy labels does well on clean ones."""

from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.choice import make_model
from rookery.models.layers import cross_entropies, cross_entropy, squared_norm
from rookery.problem import partition
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Bilevel
from rookery.problem.sets import Box
from rookery.tasks.cleaned import MEANINGS, Cleaned, Form, Labels, sample_weights, simple_rivals, what_was_learned
from rookery.tasks.inputs import Example, Scaling, Score, deal, examples, widths
from rookery.tasks.representation import check_network
from rookery.tasks.task import Defaults, Recipe, Task


class _Upper(eqx.Module):
    """Cross-entropy of the network y on clean labels; x has no part in it."""

    scaling: Scaling

    def logits(self, x: Array, y: Any, inputs: Array) -> Array:
        return self.scaling.outputs(y, inputs)

    def __call__(self, x: Array, y: Any, batch: Example) -> Array:
        return cross_entropy(self.logits(x, y, batch["input"]), batch["label"])


class _Lower(_Upper):
    """The mean of w_j · cross-entropy over the batch, on noisy labels, with rc‖y‖²; j is the sample's entry of x."""

    form: Form = eqx.field(static=True)
    rc: float

    def __call__(self, x: Array, y: Any, batch: Example) -> Array:
        losses = cross_entropies(self.logits(x, y, batch["input"]), batch["label"])
        return jnp.mean(sample_weights(self.form, x[batch["j"]]) * losses) + self.rc * squared_norm(y)


def data_cleaning(
    data: Dataset,
    *,
    clients: int = 100,
    seed: int = 0,
    noise: float = 0.7,
    form: Form = "sigmoid",
    split: Literal["iid", "shards", "one-class"] = "iid",
    validation: float | int | None = None,
    bounded: bool = False,
    always_wrong: bool = False,
    oracle: bool = False,
    hidden: Sequence[int] = (200,),
    rc: float = 0.0,
    model: Any = None,
    systematic: bool | None = None,
) -> Task:
    """min over x of the mean validation loss of the network y*(x), y*(x) = argmin of the mean of w_j ℓ_j(y) + rc‖y‖².

    The labels of a fraction ``noise`` of all training samples (0: they are as noisy as they are) are replaced by uniformly
    random ones, which may be the right ones, or with ``always_wrong`` by random wrong ones, or with ``systematic`` by the
    next class, as if somebody took each class for another; those of validation samples stay. x has one entry
    for each training sample of all clients, and a client's data touch only its own: w_j = σ(x_j), from x = 0
    (``form="sigmoid"``), or w_j = x_j, from x = 1 (``form="linear"``), which ``bounded`` keeps in [0, 1]: with
    negative weights the lower level has no minimum. The whole network, ``model`` or inputs–hidden–classes, is y. With
    ``oracle`` x starts at the truth, weight 1 for right labels and 0 for wrong ones: FedAvg, which leaves x where it is,
    is then the ceiling.

    ``split`` is that of hyper-representation, "iid" or "shards", with the fraction ``validation`` held out. Or it is
    "one-class": client m validates on ``validation`` (50) images of class m alone (m modulo the number of classes), and
    trains on three quarters of an equal share of all images, drawn from the others: nobody can clean its data alone.
    """
    check_network(hidden, rc)
    if form not in ("sigmoid", "linear"):
        raise ValueError(f"form must be 'sigmoid' or 'linear', got {form!r}")
    if bounded and form == "sigmoid":
        raise ValueError("bounded must be False for form='sigmoid', whose weights are in (0, 1), got True")
    if split == "one-class":
        lower, upper = _one_class(data.train_labels, clients, seed, 50 if validation is None else validation)
    else:
        lower, upper = deal(data, clients, seed, split, validation)
    training, held = np.concatenate(lower), np.concatenate(upper)
    noisy, wrong = _noisy(data, training, noise, seed, always_wrong)
    if systematic:
        noisy, wrong = _mistaken(data, training, noise, seed)
    entry = np.zeros(len(noisy), np.int32)
    entry[training] = np.arange(len(training))
    clean = examples(data.train_inputs, data.train_labels)
    given = {"input": clean["input"], "label": jnp.asarray(noisy, jnp.int32), "j": jnp.asarray(entry)}
    loss = _Upper(Scaling.of(data))
    validate = Score(loss.logits, jnp.asarray(data.train_inputs[held]), jnp.asarray(data.train_labels[held], jnp.int32))
    model = widths(hidden) if model is None else model
    network = make_model(model, data.shape, data.classes, jax.random.key(seed))
    labels = Labels(data, lower, upper, noisy, wrong if noise else None, form, model)
    test = Score.of(loss.logits, data)
    return Task(
        Bilevel(loss, _Lower(loss.scaling, form, rc), x_set=Box(0.0, 1.0) if bounded else None),
        Clients(Split(given, lower, "lower"), Split(clean, upper, "upper")),
        _first_weights(form, wrong, oracle),
        network,
        Cleaned(test, validate, jnp.asarray(wrong) if noise else None, form),
        search_by=("loss", False),
        contest=simple_rivals(labels, network, test),
        learned=what_was_learned(labels, test),
    )


def _first_weights(form: Form, wrong: np.ndarray, oracle: bool) -> Array:
    """x at the start: equal weights, or those of somebody who knows which labels are wrong."""
    if form == "sigmoid":
        return jnp.where(wrong, -20.0, 20.0) if oracle else jnp.zeros(len(wrong))
    return jnp.where(wrong, 0.0, 1.0) if oracle else jnp.ones(len(wrong))


def _noisy(
    data: Dataset, training: np.ndarray, noise: float, seed: int, always_wrong: bool
) -> tuple[np.ndarray, np.ndarray]:
    """(labels of all images, those of the training samples noisy; which of the training samples have a wrong one)."""
    if not 0 <= noise < 1:
        raise ValueError(f"noise must be a fraction, at least 0 and below 1, got {noise!r}")
    labels = data.train_labels.copy()
    if not noise:
        return labels, np.zeros(len(training), bool)
    labels[training], _ = partition.noisy_labels(labels[training], noise, seed, data.classes, always_wrong)
    return labels, labels[training] != data.train_labels[training]


def _mistaken(data: Dataset, training: np.ndarray, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The same with one mistake for each class: it is taken for the next."""
    wrong = np.zeros(len(training), bool)
    if noise:
        _, wrong = partition.noisy_labels(data.train_labels[training], noise, seed, data.classes)
    labels = data.train_labels.copy()
    labels[training[wrong]] = (labels[training[wrong]] + 1) % data.classes
    return labels, wrong


def _one_class(
    labels: np.ndarray, clients: int, seed: int, validation: float | int
) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
    """(training, validation) images: for validation ``validation`` random ones of a single class each."""
    if not isinstance(validation, int) or validation < 1:
        raise ValueError(f"validation must be a number of images for split='one-class', got {validation!r}")
    groups = [[client % (int(labels.max()) + 1)] for client in range(clients)]
    own = partition.by_class(labels, groups, seed)
    smallest = min(len(images) for images in own)
    if validation >= smallest:
        raise ValueError(f"validation must be below the {smallest} images of a client's class, got {validation!r}")
    upper = partition.split(own, validation, seed)[1]
    rest = np.setdiff1d(np.arange(len(labels)), np.concatenate(upper))
    share = len(labels) * 3 // (4 * clients)
    return [rest[part] for part in partition.iid(len(rest), clients, seed, per_client=share)], upper


_ONE_CLASS = {"form": "linear", "split": "one-class", "noise": 0.8, "rc": 1e-3, "hidden": (128, 64)}

DATA_CLEANING = Recipe(
    "data-cleaning",
    "a weight in (0, 1) for each training sample, to train on noisy labels",
    data_cleaning,
    {
        "digits": Defaults(
            clients=20, participants=10, batch_size=16, rounds=300, algorithm="MeFBO", options={"hidden": (32,)},
            rates={
                "MeFBO": {"gamma_x": 300.0, "gamma_y": 0.3, "gamma_theta": 0.3, "nu": 20.0, "c": 1.0},
                "SimFBO": {"gamma_x": 1000.0, "gamma_y": 0.3, "gamma_z": 0.01},
                "FedAvg": {"eta_y": 0.1},
            },
        ),
        "mnist": Defaults(
            clients=100, participants=10, batch_size=10, rounds=600, algorithm="MeFBO",
            rates={
                "MeFBO": {"gamma_x": 30_000.0, "gamma_y": 0.1, "gamma_theta": 0.1, "nu": 20.0, "c": 1.0},
                "SimFBO": {"gamma_x": 10_000.0, "gamma_y": 0.1, "gamma_z": 0.01},
                "FedAvg": {"eta_y": 0.1},
            },
        ),
        "fashion-mnist": Defaults(
            clients=20, participants=2, batch_size=256, rounds=600, algorithm="MeFBO",
            rates={
                "MeFBO": {"gamma_x": 30_000.0, "gamma_y": 0.15, "gamma_theta": 0.15, "nu": 20.0, "c": 1.0},
                "SimFBO": {"gamma_x": 10_000.0, "gamma_y": 0.1, "gamma_z": 0.01},
                "FedAvg": {"eta_y": 0.15},
            },
        ),
        "cifar-10": Defaults(clients=20, participants=2, batch_size=256, rounds=600, algorithm="MeFBO"),
    },
    own=Defaults(
        clients=10, batch_size=32, rounds=300, algorithm="MeFBO",
        options={"noise": 0.0, "model": "linear"},
    ),
    question="Some training labels are wrong. Can training find out which, and do as if they were not there?",
    meanings=MEANINGS,
)  # fmt: skip

_ONE_CLASS_PAPER = Defaults(
    clients=10, local_steps=5, batch_size=(200, 50), rounds=50, algorithm="FedBiOAcc",
    options={**_ONE_CLASS, "bounded": True},
    rates={
        "FedBiOAcc": {
            "eta_x": 2000.0, "eta_y": 0.4, "eta_z": 0.2, "delta": 30.0, "offset": 10_000.0,
            "c_x": 0.2, "c_y": 0.2, "c_z": 0.2, "tie_batches": True,
        },
        "FedBiO": {"eta_x": 3000.0, "eta_y": 0.6, "eta_z": 0.3, "tie_batches": True},
        "FedAvg": {"eta_y": 1.0},
    },
)  # fmt: skip

DATA_CLEANING_ONE_CLASS = Recipe(
    "data-cleaning-one-class",
    "a weight for each training sample, where a client has clean images of a single class only",
    data_cleaning,
    {
        "digits": Defaults(
            clients=10, local_steps=2, batch_size=(8, 10), rounds=300, algorithm="FedBiOAcc",
            options={**_ONE_CLASS, "noise": 0.7, "validation": 10, "bounded": True, "hidden": (64, 32)},
            rates={
                "FedBiOAcc": {"eta_x": 30.0, "eta_y": 0.6, "eta_z": 0.1, "radius": 1.0},
                "FedBiO": {"eta_x": 6.0, "eta_y": 0.2, "eta_z": 0.02, "radius": 1.0},
                "FedAvg": {"eta_y": 0.1},
            },
        ),
        "mnist": _ONE_CLASS_PAPER,
        "fashion-mnist": _ONE_CLASS_PAPER,
    },
    question="Some training labels are wrong, and each client can check those of one class only. Can they clean together?",
    meanings=MEANINGS,
)  # fmt: skip
