"""Hyper-representation: learn a representation whose best linear head generalises."""

from collections.abc import Sequence
from typing import Any, Literal

import equinox as eqx
import jax
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.choice import Headed, make_model
from rookery.models.layers import Dense, cross_entropy, squared_norm
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Bilevel
from rookery.problem.validation import check_count
from rookery.tasks.inputs import CLASSIFIED, Example, Scaling, Score, deal, dtype_of, examples
from rookery.tasks.learned import Learned
from rookery.tasks.network import OfNetwork, OfWhole, about_network, by_class
from rookery.tasks.rivals import Rival, Training
from rookery.tasks.task import Defaults, Recipe, Task


class _Upper(eqx.Module):
    """Cross-entropy of the head y on the features x of scaled inputs."""

    scaling: Scaling

    def logits(self, x: Any, y: Dense, inputs: Array) -> Array:
        return Headed(x, y)(self.scaling(inputs, dtype_of(x)))

    def __call__(self, x: Any, y: Dense, batch: Example) -> Array:
        return cross_entropy(self.logits(x, y, batch["input"]), batch["label"])


class _Lower(_Upper):
    """The same on training data, with rc‖y‖²."""

    rc: float

    def __call__(self, x: Any, y: Dense, batch: Example) -> Array:
        return super().__call__(x, y, batch) + self.rc * squared_norm(y)


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
    model: Any = None,
) -> Task:
    """min over x of the mean validation loss of the head y*(x), y*(x) = argmin of the mean training loss + rc‖y‖².

    x makes ``hidden`` features of an input, by the network ``model`` (None: one layer) and a ReLU; y is a linear head.
    Each client holds an equal share of the training examples: drawn at random, half of them for validation; or two shards of
    examples sorted by label (``split="shards"``), a fifth for validation. ``validation`` asks for another fraction: ASFBO's
    paper takes 0.25 for both.
    """
    check_network((hidden,), rc)
    lower, upper = deal(data, clients, seed, split, validation)
    data_of_all = examples(data.train_inputs, data.train_labels)
    x_key, y_key = jax.random.split(jax.random.key(seed))
    loss = _Upper(Scaling.of(data))
    model = "linear" if model is None else model
    features, head = make_model(model, data.shape, hidden, x_key), Dense(hidden, data.classes, y_key)
    test = Score.of(loss.logits, data)

    def learned(x: Any, y: Any) -> Learned:
        network = about_network(data, Headed(x, y), model, hidden=hidden)
        return Learned(exhibits=by_class(test, data, x, y), model=network)

    return Task(
        Bilevel(loss, _Lower(loss.scaling, rc)),
        Clients(Split(data_of_all, lower, "lower"), Split(data_of_all, upper, "upper")),
        features,
        head,
        test,
        contest=_rivals(data, lower, upper, Headed(features, head)),
        learned=learned,
    )


def _rivals(data: Dataset, lower: Sequence[np.ndarray], upper: Sequence[np.ndarray], network: Headed) -> Training:
    """The whole network by plain averaging, on all examples or on those that the heads are trained on."""
    scaling = Scaling.of(data)
    test = Score.of(OfWhole(scaling), data)
    held = [np.concatenate(both) for both in zip(lower, upper, strict=True)]
    rivals = [
        Rival("plain federated averaging", "The whole network is averaged, on training and validation data.", held),
        Rival("averaging without validation data", "The whole network, on the training data alone.", lower),
    ]
    return Training(
        network, scaling, data.train_inputs, data.train_labels, rivals, OfNetwork(test),
        exhibits=lambda trained: by_class(test, data, None, trained),
    )  # fmt: skip


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
    own=Defaults(
        clients=10, local_steps=3, batch_size=32, rounds=200, algorithm="MeFBO", options={"hidden": 32, "rc": 0.01}
    ),
    question="Can the clients learn features together, so that a simple linear head on them generalises?",
    meanings=CLASSIFIED,
)  # fmt: skip
