"""Client weighting: learn whom to trust, by a few images that the server holds."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.choice import make_model
from rookery.models.layers import cross_entropy
from rookery.problem import partition
from rookery.problem.clients import Clients
from rookery.problem.problems import ClientWeighting
from rookery.tasks.inputs import CLASSIFIED, Example, Scaling, Score, client_name, client_names, examples, held_by
from rookery.tasks.learned import Learned, Rows, bars
from rookery.tasks.network import OfNetwork, OfWhole, about_network, by_class
from rookery.tasks.rivals import Rival, Training
from rookery.tasks.task import Defaults, Recipe, Task


class _Loss(eqx.Module):
    """Cross-entropy of the network w."""

    scaling: Scaling

    def logits(self, x: Any, w: Any, inputs: Array) -> Array:
        return self.scaling.outputs(w, inputs)

    def __call__(self, w: Any, batch: Example) -> Array:
        return cross_entropy(self.logits(None, w, batch["input"]), batch["label"])


class _Score(eqx.Module):
    """Test accuracy and loss of w, the weights x1, x2, ... of the clients, and what those with ``noise`` have together."""

    test: Score
    noisy: tuple[int, ...] = eqx.field(static=True)

    def __call__(self, x: Array, w: Any) -> dict[str, Array]:
        weights = {f"x{i + 1}": x[i] for i in range(x.shape[0])}
        noise = {"noise": jnp.sum(x[jnp.asarray(self.noisy)])} if self.noisy else {}
        return {**self.test(x, w), **noise, **weights}


def client_weighting(
    data: Dataset,
    *,
    clients: int = 10,
    seed: int = 0,
    iid: bool = False,
    validation: int | None = 20,
    share: int | None = None,
    oracle: bool = False,
    noisy: int | None = None,
    model: Any = None,
) -> Task:
    """min over x in the simplex of f_0(w*(x)), w*(x) = argmin Σ x_i f_i(w): cross-entropies of the network w.

    f_0 is on ``validation`` random training examples of each label (None: 10, or half of the rarest), which the server
    holds; or on those whose labels were checked, where the data say so. Of the others, client 1 has the first half of the
    labels, client 2 the next 30 %, client 3 the rest (0–4, 5–7, 8–9); all further clients have ``share`` random examples
    each, with random labels. With ``iid`` the first half of the clients have ``share`` random examples each with their
    labels, the second half as many with random labels. ``share`` is 5000, with ``iid`` 9000, unless given. Noise clients
    draw from all examples that the server does not hold, whoever else has them.

    With ``noisy`` nothing of this is planted: clients are those of the data, or hold equal shares, and only the labels of
    the last ``noisy`` (0: none) of them are replaced by random ones.

    x starts at equal weights, or with ``oracle`` at those in proportion to the clean clients' labels: 0.5, 0.3, 0.2, 0,
    ... (``iid``: equal for clean clients), at which the algorithm "opt" stays. w is the network ``model``, or a LeNet-5.
    """
    rng = np.random.default_rng([*b"client weighting", seed])
    server = _server(data, validation, rng)
    rest = np.setdiff1d(np.arange(len(data.train_labels)), server)
    if noisy is None:
        held, labels, trust = _planted(data, rest, clients, iid, share, seed, rng)
    else:
        held, labels, trust = _as_they_are(data, rest, clients, noisy, seed, rng)
    bad = tuple(int(client) for client in np.flatnonzero(np.asarray(trust) == 0))
    own = [examples(data.train_inputs[rows], given) for rows, given in zip(held, labels, strict=True)]
    loss = _Loss(Scaling.of(data))
    model = "lenet" if model is None else model
    network = make_model(model, data.shape, data.classes, jax.random.key(seed))
    test = Score.of(loss.logits, data)
    return Task(
        ClientWeighting(loss),
        Clients(own, server=examples(data.train_inputs[server], data.train_labels[server])),
        jnp.asarray(trust) if oracle else jnp.full(clients, 1 / clients),
        network,
        _Score(test, bad),
        search_by=None if noisy is None else ("loss", False),
        contest=_rivals(data, held, labels, server, bad, network),
        learned=_what_was_learned(data, held, bad, test, model),
    )


def _server(data: Dataset, validation: int | None, rng: np.random.Generator) -> np.ndarray:
    """The training examples that the server holds."""
    if data.train_checked is not None:
        return np.flatnonzero(data.train_checked)
    of_label = [np.flatnonzero(data.train_labels == c) for c in range(data.classes)]
    fewest = min(map(len, of_label))
    validation = min(10, fewest // 2) if validation is None else validation
    if not 1 <= validation < fewest:
        raise ValueError(f"validation must be in 1..{fewest - 1} for {data.name}, got {validation}")
    return np.concatenate([rng.permutation(rows)[:validation] for rows in of_label])


Parts = tuple[list[np.ndarray], list[np.ndarray], list[float]]
"""Of all clients the examples, their labels, and the weight that somebody would give who knows all."""


def _planted(
    data: Dataset, rest: np.ndarray, clients: int, iid: bool, share: int | None, seed: int, rng: np.random.Generator
) -> Parts:
    """PrimalDual's clients: clean ones with labels of their own, the others noise."""
    fewest = 2 if iid else 4
    if clients < fewest:
        raise ValueError(f"clients must be at least {fewest}, got {clients}")
    share = share if share is not None else 9000 if iid else 5000
    if not 1 <= share <= len(rest):
        raise ValueError(f"share must be in 1..{len(rest)}, the images that the server does not hold, got {share}")
    held, trust = _clean(data, rest, clients, iid, share, seed)
    labels = [data.train_labels[rows] for rows in held]
    for _ in range(clients - len(held)):
        held.append(rng.permutation(rest)[:share])
        labels.append(rng.integers(0, data.classes, share))
    return held, labels, trust + [0.0] * (clients - len(trust))


def _as_they_are(
    data: Dataset, rest: np.ndarray, clients: int, noisy: int, seed: int, rng: np.random.Generator
) -> Parts:
    """The clients of the data, or equal shares; the last ``noisy`` of them with random labels."""
    if not 0 <= noisy < clients:
        raise ValueError(f"noisy must be in 0..{clients - 1}, below the number of clients, got {noisy}")
    if data.train_clients is None:
        held = [rest[rows] for rows in partition.iid(len(rest), clients, seed)]
    else:
        held = [np.intersect1d(rows, rest) for rows in held_by(data, clients, seed, "iid")]
    for client, rows in enumerate(held):
        if not len(rows):
            raise ValueError(f"{client_name(data, client)} has no example that the server does not hold")
    labels = [data.train_labels[rows] for rows in held]
    for client in range(clients - noisy, clients):
        labels[client] = rng.integers(0, data.classes, len(held[client]))
    good = clients - noisy
    return held, labels, [1 / good] * good + [0.0] * noisy


def _rivals(
    data: Dataset,
    held: Sequence[np.ndarray],
    labels: Sequence[np.ndarray],
    server: np.ndarray,
    bad: Sequence[int],
    network: Any,
) -> Training:
    """Everybody alike, the server alone, and without the bad clients where they are known."""
    rows = np.concatenate([*held, server])
    given = np.concatenate([*labels, data.train_labels[server]])
    ends = np.cumsum([len(part) for part in held])
    own = np.split(np.arange(ends[-1]), ends[:-1])
    alone = [np.arange(ends[-1], len(rows))]
    rivals = [
        Rival("equal weights", "Plain federated averaging: every client counts the same.", own),
        Rival("the server's data alone", "Only what the server holds is trained on.", alone),
    ]
    if bad:
        known = np.ones(len(rows))
        known[np.concatenate([own[client] for client in bad])] = 0
        told = "Federated averaging without the clients whose labels are noise, which nobody knows."
        rivals.append(Rival("without the bad clients", told, own, known, ceiling=True))
    scaling = Scaling.of(data)
    test = Score.of(OfWhole(scaling), data)
    return Training(
        network, scaling, data.train_inputs[rows], given, rivals, OfNetwork(test),
        exhibits=lambda trained: by_class(test, data, None, trained),
    )  # fmt: skip


def _what_was_learned(
    data: Dataset, held: Sequence[np.ndarray], bad: Sequence[int], test: Score, model: Any
) -> Callable[[Any, Any], Learned]:
    def learned(x: Any, w: Any) -> Learned:
        names, weights = client_names(data, len(held)), np.asarray(x, float)
        columns = ["client", "examples", "weight"] + ["planted_noise"] * bool(bad)
        cells: list[Any] = [names, [len(rows) for rows in held], weights]
        if bad:
            cells.append([client in bad for client in range(len(held))])
        rows = Rows(columns, list(zip(*cells, strict=True)))
        told = "How much each client counts in training, at the end. The weights sum to 1."
        over = {
            "kind": "history",
            "title": "Clients' weights over the rounds",
            "text": "How the weights were found.",
            "columns": {f"x{number + 1}": name for number, name in enumerate(names)},
            "up": "weight",
        }
        shown = [bars("Clients' weights", told, names, weights), over, *by_class(test, data, None, w)]
        return Learned({"clients.csv": rows}, shown, about_network(data, w, model))

    return learned


def _clean(
    data: Dataset, rest: np.ndarray, clients: int, iid: bool, share: int, seed: int
) -> tuple[list[np.ndarray], list[float]]:
    """Which examples the clean clients hold, and the weights of an oracle."""
    if iid:
        count = clients // 2
        return [rest[rows] for rows in partition.iid(len(rest), count, seed, share)], [1 / count] * count
    cuts = [0, round(0.5 * data.classes), round(0.8 * data.classes), data.classes]
    groups = [range(first, last) for first, last in pairwise(cuts)]
    parts = partition.by_class(data.train_labels[rest], groups)
    return [rest[rows] for rows in parts], [len(group) / data.classes for group in groups]


_PAPER = {
    "PrimalDual": {"eta_x": 0.01, "eta_w": 0.1, "eta_lambda": 0.01, "penalty": 1.0},
    "FedNest-CW": {"eta_x": 0.1, "eta_w": 0.1, "neumann_step": 0.1},
    "SUSTAIN-CW": {"eta_x": 0.1, "eta_w": 0.1, "neumann_step": 0.03},
    "RFHO-CW": {"eta_x": 0.1, "eta_w": 0.1},
    "AFL": {"eta_x": 0.001, "eta_w": 0.1},
    "val": {"eta_w": 0.1},
    "avg": {"eta_w": 0.1},
    "opt": {"eta_w": 0.1},
}

CLIENT_WEIGHTING = Recipe(
    "client-weighting",
    "whom to trust: weights of clients, some of them noise, by a few images that the server holds",
    client_weighting,
    {
        "digits": Defaults(
            clients=10, batch_size=32, rounds=400, algorithm="PrimalDual", options={"validation": 10, "share": 120},
            rates={
                "PrimalDual": {"eta_x": 0.01, "eta_w": 0.1, "eta_lambda": 0.01, "penalty": 1.0},
                "FedNest-CW": {"eta_x": 0.1, "eta_w": 0.3, "neumann_step": 0.1},
                "SUSTAIN-CW": {"eta_x": 0.1, "eta_w": 0.3, "neumann_step": 0.03},
                "RFHO-CW": {"eta_x": 0.03, "eta_w": 0.3},
                "AFL": {"eta_x": 0.001, "eta_w": 0.1},
                "val": {"eta_w": 0.1},
                "avg": {"eta_w": 0.3},
                "opt": {"eta_w": 0.3},
            },
        ),
        "mnist": Defaults(clients=10, batch_size=64, rounds=2000, algorithm="PrimalDual", rates=_PAPER),
        "fashion-mnist": Defaults(clients=10, batch_size=64, rounds=6000, algorithm="PrimalDual", rates=_PAPER),
    },
    own=Defaults(
        clients=10, batch_size=32, rounds=300, algorithm="PrimalDual",
        options={"noisy": 0, "validation": None, "model": "mlp:32"},
    ),
    question="Which clients can be trusted, judged by the few examples that the server holds?",
    meanings={
        **CLASSIFIED,
        "noise": "What the clients with random labels weigh together: the less, the better they were found out.",
    },
)  # fmt: skip
"""Rates on digits: a small grid on held-out training data. Else: the points of PrimalDual's grids that are nearest to
those, not tuned; η_λ and the steps of the series are in no grid."""
