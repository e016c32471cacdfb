"""Hyper-representation: learn a representation whose best linear head generalises."""

from collections.abc import Sequence
from typing import Literal

import equinox as eqx
import jax
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.layers import Dense, cross_entropy, squared_norm
from rookery.problem import partition
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Bilevel
from rookery.problem.validation import check_count
from rookery.tasks.inputs import Example, Scaling, Score, examples
from rookery.tasks.task import Defaults, Recipe, Task


class _Upper(eqx.Module):
    """Cross-entropy of the head y on the features x of normalised images."""

    scaling: Scaling

    def logits(self, x: Dense, y: Dense, images: Array) -> Array:
        return y(jax.nn.relu(x(self.scaling.flat(images, x.weight.dtype))))

    def __call__(self, x: Dense, y: Dense, batch: Example) -> Array:
        return cross_entropy(self.logits(x, y, batch["input"]), batch["label"])


class _Lower(_Upper):
    """The same on training data, with rc‖y‖²."""

    rc: float

    def __call__(self, x: Dense, y: Dense, batch: Example) -> Array:
        return super().__call__(x, y, batch) + self.rc * squared_norm(y)


def deal(
    labels: np.ndarray, clients: int, seed: int, split: str, validation: float | None
) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
    """The (training, validation) images of every client, an equal share of all images each.

    ``split`` is "iid": drawn at random, half of them for validation; or "shards": two shards of the images sorted by
    label, a fifth for validation. ``validation`` asks for another fraction.
    """
    if split not in ("iid", "shards"):
        raise ValueError(f"split must be 'iid' or 'shards', got {split!r}")
    if validation is not None and not 0 < validation < 1:
        raise ValueError(f"validation must be a fraction between 0 and 1, or None, got {validation!r}")
    if split == "iid":
        held = partition.iid(len(labels), clients, seed, per_client=len(labels) // clients)
    else:
        held = partition.shards(labels, clients, seed)
    return partition.split(held, validation or (0.5 if split == "iid" else 0.2), seed)


def check_network(hidden: Sequence[int], rc: float) -> None:
    """Widths are positive, a regularisation is not negative."""
    for width in hidden:
        check_count(width, "hidden")
    if not 0 <= rc < float("inf"):
        raise ValueError(f"rc must be a number of at least 0, got {rc!r}")


def hyper_representation(
    data: Dataset,
    *,
    clients: int = 100,
    seed: int = 0,
    hidden: int = 200,
    rc: float = 0.05,
    split: Literal["iid", "shards"] = "iid",
    validation: float | None = None,
) -> Task:
    """min over x of the mean validation loss of the head y*(x), y*(x) = argmin of the mean training loss + rc‖y‖².

    x is the first layer of a network pixels–hidden–classes, y its head. Each client holds an equal share of the training
    images: drawn at random, half of them for validation; or two shards of images sorted by label (``split="shards"``),
    a fifth for validation. ``validation`` asks for another fraction: ASFBO's paper takes 0.25 for both.
    """
    check_network((hidden,), rc)
    lower, upper = deal(data.train_labels, clients, seed, split, validation)
    data_of_all = examples(data.train_inputs, data.train_labels)
    x_key, y_key = jax.random.split(jax.random.key(seed))
    loss = _Upper(Scaling.of(data))
    return Task(
        Bilevel(loss, _Lower(loss.scaling, rc)),
        Clients(Split(data_of_all, lower, "lower"), Split(data_of_all, upper, "upper")),
        Dense(data.pixels, hidden, x_key),
        Dense(hidden, data.classes, y_key),
        Score.of(loss.logits, data),
    )


HYPER_REPRESENTATION = Recipe(
    "hyper-representation",
    "a representation whose best linear head generalises (one head for all clients)",
    hyper_representation,
    {
        "digits": Defaults(
            clients=20, participants=10, local_steps=3, batch_size=32, rounds=300, algorithm="MeFBO",
            options={"hidden": 32, "rc": 0.01},
            rates={
                "MeFBO": {"gamma_x": 3.0, "gamma_y": 0.1, "gamma_theta": 0.3, "nu": 10.0, "c": 1.0},
                "FedBiO": {"eta_x": 0.3, "eta_y": 0.1},
                "FedBiOAcc": {"eta_x": 3.0, "eta_y": 0.3},
                "SimFBO": {"gamma_x": 1.0, "gamma_y": 0.1},
                "ASFBO": {"gamma_x": 0.1, "gamma_y": 0.1},
                "LA-ASFBO": {"gamma_x": 0.1, "gamma_y": 0.1},
            },
        ),
        "mnist": Defaults(
            clients=100, participants=10, batch_size=64, rounds=600, algorithm="MeFBO",
            rates={
                "MeFBO": {"gamma_x": 1.0, "gamma_y": 0.3, "gamma_theta": 0.3, "nu": 2.0},
                "SimFBO": {"gamma_x": 0.2, "gamma_y": 0.1, "gamma_z": 0.05},
                "FedNest": {"eta_x": 0.02, "eta_y": 0.01},
                "LFedNest": {"eta_x": 0.02, "eta_y": 0.01},
            },
        ),
        "fashion-mnist": Defaults(clients=100, participants=10, batch_size=64, rounds=600, algorithm="MeFBO"),
    },
)  # fmt: skip
