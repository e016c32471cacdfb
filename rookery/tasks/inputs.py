"""What tasks on labelled examples share: inputs to floats, networks, who holds what, the test metrics."""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.layers import cross_entropies
from rookery.problem import partition

Example = dict[str, Array]
CLASSIFIED = {
    "accuracy": "The share of the test examples that is classified right.",
    "loss": "The mean cross-entropy on the test examples.",
}
"""What the metrics of a classifier mean."""


class Scaling(eqx.Module):
    """Inputs as they are stored to floats: (input − mean)/deviation, inside the compiled program."""

    mean: float | tuple[float, ...] = eqx.field(static=True)
    deviation: float | tuple[float, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, data: Dataset) -> "Scaling":
        """As this data set wants it."""
        return cls(data.mean, data.deviation)

    def __call__(self, inputs: Array, dtype: Any) -> Array:
        """(examples, features) of a table, (examples, height, width, channels) of images."""
        inputs = inputs[..., None] if inputs.ndim == 3 else inputs
        return (inputs.astype(dtype) - jnp.asarray(self.mean, dtype)) / jnp.asarray(self.deviation, dtype)

    def outputs(self, network: Any, inputs: Array) -> Array:
        """What a network makes of inputs as they are stored."""
        found: Array = network(self(inputs, dtype_of(network)))
        return found


def dtype_of(network: Any) -> Any:
    """The precision of a network's numbers, which its inputs should have."""
    return jax.tree.leaves(eqx.filter(network, eqx.is_inexact_array))[0].dtype


def widths(hidden: Sequence[int]) -> str:
    """The name of a network with these hidden layers, as ``model`` takes it."""
    return f"mlp:{','.join(map(str, hidden))}" if hidden else "linear"


def examples(inputs: np.ndarray, labels: np.ndarray) -> Example:
    """What a loss sees of a batch; inputs stay as they are stored."""
    return {"input": jnp.asarray(inputs), "label": jnp.asarray(labels, jnp.int32)}


def held_by(data: Dataset, clients: int, seed: int, split: str) -> list[np.ndarray]:
    """The training examples of every client: as the data say, or dealt out in equal shares.

    ``split`` is "iid": drawn at random; or "shards": two shards of the examples sorted by label.
    """
    if split not in ("iid", "shards"):
        raise ValueError(f"split must be 'iid' or 'shards', got {split!r}")
    if data.train_clients is not None:
        check_clients(data, clients)
        return [np.flatnonzero(data.train_clients == client) for client in range(clients)]
    labels = data.train_labels
    if split == "iid":
        share = len(labels) // clients if clients <= len(labels) else None
        return partition.iid(len(labels), clients, seed, per_client=share)
    return partition.shards(labels, clients, seed)


def check_clients(data: Dataset, clients: int) -> None:
    """The number of clients is that of the data."""
    if data.client_names is not None and clients != len(data.client_names):
        raise ValueError(f"clients must be {len(data.client_names)}, as the data have them, got {clients}")


def deal(
    data: Dataset, clients: int, seed: int, split: str, validation: float | None
) -> tuple[Sequence[np.ndarray], Sequence[np.ndarray]]:
    """The (training, validation) examples of every client.

    Checked labels are for validation. Where nobody has checked any, a part of a client's examples is: half of them
    (``split="iid"``), a fifth ("shards"), or the fraction ``validation``.
    """
    if validation is not None and not 0 < validation < 1:
        raise ValueError(f"validation must be a fraction between 0 and 1, or None, got {validation!r}")
    held = held_by(data, clients, seed, split)
    if data.train_checked is None:
        return partition.split(held, validation or (0.5 if split == "iid" else 0.2), seed)
    if validation is not None:
        raise ValueError(f"validation must not be given where labels were checked: those validate, got {validation!r}")
    checked = data.train_checked
    parts = [(rows[~checked[rows]], rows[checked[rows]]) for rows in held]
    for client, both in enumerate(parts):
        for rows, kind in zip(both, ("unchecked", "checked"), strict=True):
            if not len(rows):
                raise ValueError(
                    f"{client_name(data, client)} has no {kind} label: this task needs some of both at each client"
                )
    return [lower for lower, _ in parts], [upper for _, upper in parts]


def client_name(data: Dataset, client: int) -> str:
    """What to call a client."""
    return f"client {client + 1}" if data.client_names is None else f"client {data.client_names[client]!r}"


def client_names(data: Dataset, clients: int) -> list[str]:
    """What to call all of them, in tables."""
    return [str(number + 1) for number in range(clients)] if data.client_names is None else list(data.client_names)


def class_names(data: Dataset) -> list[str]:
    """What to call the classes, in tables."""
    return [str(number) for number in range(data.classes)] if data.class_names is None else list(data.class_names)


class Score(eqx.Module):
    """Accuracy and mean cross-entropy on test examples, ``chunk`` of them at a time to bound memory.

    ``logits(x, y, inputs)`` is an Equinox module or a function.
    """

    logits: Callable[[Any, Any, Array], Array]
    inputs: Array
    labels: Array
    chunk: int = eqx.field(static=True, default=1000)

    @classmethod
    def of(cls, logits: Callable[[Any, Any, Array], Array], data: Dataset) -> "Score":
        """On the test part of a data set."""
        return cls(logits, jnp.asarray(data.test_inputs), jnp.asarray(data.test_labels, jnp.int32))

    def each(self, x: Any, y: Any) -> tuple[Array, Array]:
        """(whether it is right, cross-entropy) of each example."""

        def one(example: tuple[Array, Array]) -> tuple[Array, Array]:
            given, label = example
            logits = self.logits(x, y, given[None])
            return jnp.argmax(logits[0]) == label, cross_entropies(logits, label[None])[0]

        found: tuple[Array, Array] = jax.lax.map(one, (self.inputs, self.labels), batch_size=self.chunk)
        return found

    def __call__(self, x: Any, y: Any) -> dict[str, Array]:
        """{"accuracy", "loss"}."""
        right, losses = self.each(x, y)
        return {"accuracy": jnp.mean(right), "loss": jnp.mean(losses)}


def recalls(right: Array, labels: Array, classes: int) -> Array:
    """The share that is right in each class; NaN for one that has no example."""
    of_class = labels[:, None] == jnp.arange(classes)
    return jnp.sum(of_class * right[:, None], 0) / jnp.sum(of_class, 0)


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
