"""Hyper-representation: learn a representation whose best linear head generalises."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery import partition
from rookery.clients import Clients, Split
from rookery.datasets import Dataset
from rookery.models import Dense, cross_entropy, squared_norm
from rookery.problems import Bilevel, Problem


@dataclass(frozen=True)
class Task:
    """All that ``rk.solve`` needs: problem, clients, a start and metrics."""

    problem: Problem
    clients: Clients
    x0: Any
    y0: Any
    evaluate: Any


class _Upper(eqx.Module):
    """Cross-entropy of the head y on the features x of normalised images."""

    mean: float
    deviation: float

    def logits(self, x: Dense, y: Dense, images: Array) -> Array:
        pixels = (images.reshape(images.shape[0], -1).astype(x.weight.dtype) - self.mean) / self.deviation
        return y(jax.nn.relu(x(pixels)))

    def __call__(self, x: Dense, y: Dense, batch: dict[str, Array]) -> Array:
        return cross_entropy(self.logits(x, y, batch["image"]), batch["label"])


class _Lower(_Upper):
    """The same on training data, with rc‖y‖²."""

    rc: float

    def __call__(self, x: Dense, y: Dense, batch: dict[str, Array]) -> Array:
        return super().__call__(x, y, batch) + self.rc * squared_norm(y)


class _Accuracy(eqx.Module):
    """Accuracy and loss on the test images."""

    upper: _Upper
    images: Array
    labels: Array

    def __call__(self, x: Dense, y: Dense) -> dict[str, Array]:
        logits = self.upper.logits(x, y, self.images)
        return {
            "accuracy": jnp.mean(jnp.argmax(logits, -1) == self.labels),
            "loss": cross_entropy(logits, self.labels),
        }


def hyper_representation(
    data: Dataset, clients: int = 100, hidden: int = 200, rc: float = 0.05, iid: bool = True, seed: int = 0
) -> Task:
    """min over x of the mean validation loss of the head y*(x), y*(x) = argmin of the mean training loss + rc‖y‖².

    x is the first layer of a network pixels–hidden–classes, y its head. Each client holds an equal share of the training
    images: drawn at random, half of them for validation; or two shards of images sorted by label (``iid=False``), a
    fifth for validation.
    """
    share = len(data.train_labels) // clients
    if iid:
        held = partition.iid(len(data.train_labels), clients, seed, per_client=share)
    else:
        held = partition.shards(data.train_labels, clients, seed)
    lower, upper = partition.split(held, 0.5 if iid else 0.2, seed)
    examples = {"image": jnp.asarray(data.train_images), "label": jnp.asarray(data.train_labels)}
    x_key, y_key = jax.random.split(jax.random.key(seed))
    loss = _Upper(data.mean, data.deviation)
    return Task(
        Bilevel(loss, _Lower(data.mean, data.deviation, rc)),
        Clients(Split(examples, lower, "lower"), Split(examples, upper, "upper")),
        Dense(data.pixels, hidden, x_key),
        Dense(hidden, data.classes, y_key),
        _Accuracy(loss, jnp.asarray(data.test_images), jnp.asarray(data.test_labels)),
    )
