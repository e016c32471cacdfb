"""What cleaning has found: metrics, suspicious samples, and the simple rivals that look for them too."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.tasks.inputs import CLASSIFIED, Scaling, Score, area_under_curve, class_names, client_names
from rookery.tasks.learned import Exhibit, Learned, Rows, picture, separated
from rookery.tasks.network import OfNetwork, about_network, by_class, predict
from rookery.tasks.rivals import SUSPICION, Rival, Training

Form = Literal["sigmoid", "linear"]
MEANINGS = {
    **CLASSIFIED,
    "validation_error": "The share of the validation examples that is classified wrong.",
    "noisy_weight": "The mean weight of the samples with wrong labels: the less, the cleaner.",
    "clean_weight": "The mean weight of the samples with right labels.",
    SUSPICION: "How well a low weight tells a wrong label from a right one: 100 % is perfect, 50 % is chance.",
}
SHOWN = 24
"""Suspicious samples in a report."""


def sample_weights(form: Form, x: Array) -> Array:
    """The weights of samples with the entries x: σ(x), or x itself."""
    return jax.nn.sigmoid(x) if form == "sigmoid" else x


class Cleaned(eqx.Module):
    """On the test examples accuracy and loss; the error on all validation examples.

    Where it is known which labels are ``wrong``: the mean weights of wrong and right ones, and the area under the ROC curve
    of a low weight as the sign of a wrong label.
    """

    test: Score
    validation: Score
    wrong: Array | None
    form: Form = eqx.field(static=True)

    def __call__(self, x: Array, y: Any) -> dict[str, Array]:
        """The metrics."""
        found = {
            **self.test(x, y),
            "validation_error": jnp.maximum(1 - self.validation(x, y)["accuracy"], 0),
        }
        if self.wrong is None:
            return found
        weights = sample_weights(self.form, x)
        return {
            **found,
            "noisy_weight": jnp.mean(weights, where=self.wrong),
            "clean_weight": jnp.mean(weights, where=~self.wrong),
            SUSPICION: area_under_curve(-x, self.wrong.astype(int)),
        }


@dataclass(frozen=True)
class Labels:
    """Who holds which samples with which labels; ``wrong`` tells of the training samples, where it is known."""

    data: Dataset
    lower: Sequence[np.ndarray]
    upper: Sequence[np.ndarray]
    given: np.ndarray
    wrong: np.ndarray | None
    form: Form
    model: str | None

    @property
    def training(self) -> np.ndarray:
        """The samples whose labels may be wrong, in the order of x."""
        return np.concatenate(list(self.lower))

    def pooled(self) -> list[np.ndarray]:
        """Of each client all its samples."""
        return [np.concatenate(both) for both in zip(self.lower, self.upper, strict=True)]


def simple_rivals(labels: Labels, network: Any, test: Score) -> Training:
    """Plain averaging, the validation data alone, and the ceiling where it is known; beside them, ranking."""
    data, held, alone = labels.data, labels.pooled(), [np.concatenate(list(labels.upper))]
    rivals = [
        Rival("plain federated averaging", "All samples count alike, whatever their labels.", held),
        Rival("validation data alone", "Only the samples that validate are trained on.", alone),
    ]
    if labels.wrong is not None:
        right = np.ones(len(labels.given))
        right[labels.training[labels.wrong]] = 0
        told = "Federated averaging without the wrong labels, which nobody knows."
        rivals.append(Rival("without the wrong labels", told, held, right, ceiling=True))

    def shown(trained: Any) -> list[Exhibit]:
        return by_class(test, data, None, trained)

    return Training(
        network, Scaling.of(data), data.train_inputs, labels.given, rivals, OfNetwork(test),
        ranked=labels.training, truth=labels.wrong, exhibits=shown,
    )  # fmt: skip


def what_was_learned(labels: Labels, test: Score) -> Callable[[Any, Any], Learned]:
    """Weights of all samples, the most suspicious ones to look at, the model."""

    def learned(x: Any, y: Any) -> Learned:
        weights = _weights(labels, np.asarray(sample_weights(labels.form, jnp.asarray(x))), y)
        shown = [_suspicious(labels, weights), *by_class(test, labels.data, x, y)]
        return Learned({"weights.csv": weights}, shown, about_network(labels.data, y, labels.model))

    return learned


def _weights(labels: Labels, weights: np.ndarray, network: Any) -> Rows:
    """A row for each training sample, the least weight first."""
    data, training = labels.data, labels.training
    owner = np.repeat(np.arange(len(labels.lower)), [len(rows) for rows in labels.lower])
    names, clients = class_names(data), client_names(data, len(labels.lower))
    predicted = predict(Scaling.of(data), network, data.train_inputs[training]).argmax(1)
    rows = training if data.train_rows is None else data.train_rows[training]
    found = separated(weights)
    columns = ["sample", "client", "given_label", "weight", "suspicious", "prediction"]
    cells: list[Any] = [rows, [clients[i] for i in owner], [names[i] for i in labels.given[training]], weights, found,
                        [names[i] for i in predicted]]  # fmt: skip
    if labels.wrong is not None:
        columns.append("planted_wrong")
        cells.append(labels.wrong)
    table = list(zip(*cells, strict=True))
    order = np.argsort(weights, kind="stable")
    return Rows(columns, [table[place] for place in order])


def _suspicious(labels: Labels, weights: Rows) -> Exhibit:
    """The samples with the least weights: their picture, or their row."""
    data, training = labels.data, labels.training
    rows = training if data.train_rows is None else data.train_rows[training]
    place = dict(zip(rows.tolist(), training.tolist(), strict=True))
    items = []
    for row in weights.rows[:SHOWN]:
        cells = [_share(cell) if isinstance(cell, float | np.floating) else _word(cell) for cell in row]
        stored = data.train_inputs[place[_plain(row[0])]]
        item: dict[str, Any] = {"cells": cells}
        image = picture(stored) if stored.ndim > 1 else None
        if image is not None:
            item["image"] = image
        elif data.encoding is not None:
            item["values"] = [list(pair) for pair in data.encoding.values(stored)]
        items.append(item)
    count = int(np.sum(weights["suspicious"]))
    text = (
        f"The samples that count least. {count} of {len(weights.rows)} are suspicious: their weights belong to the lower "
        "of two groups. weights.csv has them all."
    )
    columns = [column.replace("_", " ") for column in weights.columns]
    return {
        "kind": "samples",
        "title": "Most suspicious training samples",
        "text": text,
        "columns": columns,
        "items": items,
    }


def _share(weight: Any) -> str:
    return "below 0.001" if abs(weight) < 0.001 else f"{weight:.3f}"


def _word(cell: Any) -> str:
    return ("yes" if cell else "no") if isinstance(cell, bool | np.bool_) else str(cell)


def _plain(cell: Any) -> Any:
    return cell.item() if isinstance(cell, np.generic) else cell
