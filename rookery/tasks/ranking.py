"""AUROC: a score that ranks positives above negatives, by the minimax form of the area under the ROC curve."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.choice import make_model
from rookery.models.networks import cnn, xavier
from rookery.names import unknown
from rookery.problem import partition
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Minimax
from rookery.tasks.averaging import balanced
from rookery.tasks.inputs import Example, Scaling, area_under_curve, class_names, client_name, examples, held_by
from rookery.tasks.learned import Exhibit, Learned, lines
from rookery.tasks.network import about_network
from rookery.tasks.rivals import Rival, Training
from rookery.tasks.task import Defaults, Recipe, Task


class _Objective(eqx.Module):
    """The mean over the batch of the AUROC loss at the score h = sigmoid(network), ``prior`` being π = P(positive)."""

    scaling: Scaling
    prior: float = eqx.field(static=True)

    def output(self, network: Any, inputs: Array) -> Array:
        return self.scaling.outputs(network, inputs)[:, 0]

    def __call__(self, x: dict[str, Any], y: Array, batch: Example) -> Array:
        h, pi = jax.nn.sigmoid(self.output(x["net"], batch["input"])), self.prior
        positive = (1 - pi) * ((h - x["a"]) ** 2 - 2 * (1 + y) * h)
        negative = pi * ((h - x["b"]) ** 2 + 2 * (1 + y) * h)
        return jnp.mean(jnp.where(batch["label"] == 1, positive, negative)) - pi * (1 - pi) * y**2


class Ranked(eqx.Module):
    """The area under the ROC curve of the test examples, from a network's output: the sigmoid changes no rank."""

    objective: _Objective
    inputs: Array
    labels: Array
    chunk: int = eqx.field(static=True, default=1000)

    def outputs(self, network: Any) -> Array:
        """Of all test examples."""
        found: Array = jax.lax.map(
            lambda given: self.objective.output(network, given[None])[0], self.inputs, batch_size=self.chunk
        )
        return found

    def __call__(self, network: Any) -> dict[str, Array]:
        """{"auroc"}."""
        return {"auroc": area_under_curve(self.outputs(network), self.labels)}


class _Score(eqx.Module):
    """The same of x, which has a network."""

    ranked: Ranked

    def __call__(self, x: dict[str, Any], y: Array) -> dict[str, Array]:
        return self.ranked(x["net"])


def auroc(
    data: Dataset,
    *,
    clients: int = 16,
    seed: int = 0,
    dropped: float = 0.8,
    positive: str | None = None,
    model: Any = None,
) -> Task:
    """min over (network, a, b), max over the scalar w of

        E[(1−π)(h−a)² 1₊ + π(h−b)² 1₋ + 2(1+w)(πh 1₋ − (1−π)h 1₊)] − π(1−π)w²,   π = P(positive), h = sigmoid(network)

    ``positive`` names the positive classes, separated by commas; without, of two named classes the rarer is positive, and
    of others the second half. The fraction ``dropped`` of the negative training examples, chosen at random, is left out,
    and the rest is dealt out evenly, unless the data say who holds what. The test examples are all used. The network is
    ``model``, or FedSGDA's for such images with a Xavier start; a, b and w start at 0.
    """  # fmt: skip
    if not 0 <= dropped < 1:
        raise ValueError(f"dropped must be in [0, 1), got {dropped}")
    which = positive_classes(data, positive)
    every_label, test_labels = (which[labels].astype(np.int32) for labels in (data.train_labels, data.test_labels))
    kept = _kept(every_label, dropped, seed)
    labels = every_label[kept]
    objective = _Objective(Scaling.of(data), float(labels.mean()))
    held = _held(data, kept, every_label, clients, seed)
    key = jax.random.key(seed)
    network = xavier(cnn(data.shape, 1, key), key) if model is None else make_model(model, data.shape, 1, key)
    ranked = Ranked(objective, jnp.asarray(data.test_inputs), jnp.asarray(test_labels))
    names = [name for name, chosen in zip(class_names(data), which, strict=True) if chosen]

    def learned(x: Any, y: Any) -> Learned:
        about = about_network(data, x["net"], "cnn" if model is None else model, 1, positive=", ".join(names))
        return Learned(exhibits=_curve(ranked, x["net"]), model=about)

    return Task(
        Minimax(objective),
        Clients(Split(examples(data.train_inputs, every_label), held, "clients")),
        {"a": jnp.zeros(()), "b": jnp.zeros(()), "net": network},
        jnp.zeros(()),
        _Score(ranked),
        metric="auroc",
        contest=_rivals(data, every_label, held, network, ranked),
        learned=learned,
    )


def positive_classes(data: Dataset, positive: str | None) -> np.ndarray:
    """Which classes are positive: those named, of two that have names the rarer, else the second half."""
    names = class_names(data)
    if positive is not None:
        chosen = [name.strip() for name in str(positive).split(",")]
        for name in chosen:
            if name not in names:
                raise ValueError(f"positive: {unknown(name, names)}")
        found = np.isin(names, chosen)
    elif data.class_names is None:
        found = np.arange(data.classes) >= data.classes // 2
    elif data.classes == 2:
        found = np.arange(2) == int(np.argmin(np.bincount(data.train_labels, minlength=2)))
    else:
        raise ValueError(f"positive must name the positive classes among {', '.join(names)}: there are more than two")
    if found.all() or not found.any():
        raise ValueError(f"positive must leave a class that is negative, got {positive!r}")
    return found


def _held(data: Dataset, kept: np.ndarray, labels: np.ndarray, clients: int, seed: int) -> list[np.ndarray]:
    """Who holds what; each client of the data's own needs positives and negatives."""
    if data.train_clients is None:
        return [kept[rows] for rows in partition.iid(len(kept), clients, seed)]
    held = [np.intersect1d(rows, kept) for rows in held_by(data, clients, seed, "iid")]
    for client, rows in enumerate(held):
        if len(np.unique(labels[rows])) < 2:
            kind = "positive" if len(rows) and labels[rows[0]] == 1 else "negative"
            raise ValueError(
                f"{client_name(data, client)} has {kind} labels only: auroc needs positives and negatives at each client"
            )
    return held


def _kept(labels: np.ndarray, dropped: float, seed: int) -> np.ndarray:
    """All positives and a random part of the negatives; how many does not depend on the seed."""
    negatives = np.flatnonzero(labels == 0)
    order = np.random.default_rng([*b"auroc", seed]).permutation(negatives)
    return np.sort(np.concatenate([np.flatnonzero(labels == 1), order[: round((1 - dropped) * len(order))]]))


def _rivals(data: Dataset, labels: np.ndarray, held: Sequence[np.ndarray], network: Any, ranked: Ranked) -> Training:
    """Plain and class-balanced cross-entropy, whose scores rank as well."""
    rivals = [
        Rival("plain cross-entropy", "Federated averaging of the same network with the usual loss.", held),
        Rival("class balancing", "The same, positives and negatives with equal weights.", held, balanced(labels)),
    ]
    return Training(
        network, Scaling.of(data), data.train_inputs, labels, rivals, ranked,
        exhibits=lambda trained: _curve(ranked, trained),
    )  # fmt: skip


def _curve(ranked: Ranked, network: Any) -> list[Exhibit]:
    """The ROC curve on the test examples, thinned to what can be seen."""
    scores, labels = np.asarray(eqx.filter_jit(ranked.outputs)(network)), np.asarray(ranked.labels)
    order = np.argsort(-scores, kind="stable")
    ends = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # equal scores are one step
    right = np.append(0, np.cumsum(labels[order] == 1)[ends]) / max((labels == 1).sum(), 1)
    wrong = np.append(0, np.cumsum(labels[order] == 0)[ends]) / max((labels == 0).sum(), 1)
    shown = np.unique(np.linspace(0, len(right) - 1, 200).round().astype(int))
    area = float(area_under_curve(jnp.asarray(scores), jnp.asarray(labels)))
    text = "How many positives are found (up) if so many negatives are taken for positive (across)."
    name = f"AUROC {100 * area:.1f} %"
    return [
        lines(
            "ROC curve", text, "negatives taken for positive", "positives found", wrong[shown], right[shown], name, True
        )
    ]


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
        "tiny-imagenet": replace(_PAPER, options={"model": "resnet18"}),
    },
    own=Defaults(
        clients=10, local_steps=5, batch_size=32, rounds=100, algorithm="FedSGDA-M",
        options={"dropped": 0.0, "model": "mlp:32"},
    ),
    question="Positives are rare. How well can a score rank them above negatives?",
    meanings={"auroc": "How often a positive has a higher score than a negative: 100 % is perfect, 50 % is chance."},
)  # fmt: skip
"""Rates on digits: a small grid on held-out training data. Else: points of FedSGDA's grids, which does not say its own,
and not tuned; steps a hundred times as large learn faster on Fashion-MNIST."""
