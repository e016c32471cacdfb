"""Few-shot learning: a common representation from which every client learns the heads of its own small tasks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset, MiniImageNet, Omniglot
from rookery.models.choice import Headed, make_model
from rookery.models.layers import ConvFeatures, Dense
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Bilevel
from rookery.problem.validation import check_count
from rookery.tasks.draws import Class, Cut, Draw, Drawn, own_classes, own_way
from rookery.tasks.heads import Heads, NewTasks, Normalised, Queries, Support, Tasks, nearest_mean_error
from rookery.tasks.inputs import Scaling
from rookery.tasks.learned import Exhibit, Learned, picture
from rookery.tasks.rivals import Contest, Effort, Result, Rival, Training, hold
from rookery.tasks.task import Defaults, Recipe, Task

SHOWN = 4
"""Test tasks in a report."""


def few_shot(
    data: Omniglot | MiniImageNet | Dataset,
    *,
    clients: int = 11,
    seed: int = 0,
    way: int | None = 5,
    shot: int = 1,
    queries: int = 15,
    tasks: int = 10,
    alphabets: tuple[int, int, int] | None = (33, 5, 12),
    per_client: int | None = 3,
    test_tasks: int = 40,
    filters: int = 64,
    layers: int = 4,
    strided: bool = False,
    rc: float = 0.01,
    steps: int = 100,
    model: Any = None,
    orientations: int | None = None,
) -> Task:
    """min over x of the mean query loss of heads y*(x), each learned from the few support images of its own task.

    x is a convolutional network that makes features. A client has ``tasks`` tasks for the whole run, drawn at the start:
    ``way`` classes, with ``shot`` support and ``queries`` query images of each. A class is a character in one of four
    orientations. y holds a head for each task of the client and never leaves it (``lower_level="local"``); its lower
    level is the sum over tasks of the mean support loss + rc‖head‖², so that a step of a head is the same however many
    tasks there are. An example of a batch is one image with the numbers of its task and its class.

    ``alphabets`` are cut at random into so many for training, validation and test. A client holds the characters of
    ``per_client`` training alphabets; where there are fewer than clients · per_client, alphabets are held by several
    clients, who share out the drawings of each character. Images with digits instead of characters (a ``Dataset``) are
    taken as alphabets of one character. So are those of MiniImageNet, but they are cut from its official parts, and a
    photograph has one orientation, unless ``orientations=4`` makes four classes of each of its classes.

    On data of one's own (``alphabets`` None) a class is a class, as it stands: three fifths of the classes are for training,
    a fifth each for validation and test, ``way`` is 5 or as many as those have, and clients hold their own examples of the
    training classes, or share them out. x is ``model`` (by default a hidden layer); None takes the convolutional network,
    which costs many times as much; ``strided=True`` gives it strides in the place of pooling. Features are centred and
    have the norm 1: what another norm would do, ``rc`` does.

    "accuracy" (test) and "validation_error" are those of ``test_tasks`` new tasks each, from classes nobody trains on,
    with a head that makes ``steps`` gradient steps on the support examples (:func:`adapted`); "own_accuracy" is that of
    the clients' heads on their query examples.
    """
    if alphabets is None:
        way = way or own_way(data)
    counts: dict[str, Any] = {
        "clients": clients,
        "way": way,
        "shot": shot,
        "queries": queries,
        "tasks": tasks,
        "test_tasks": test_tasks,
    }
    for name, value in {**counts, "filters": filters, "layers": layers, "steps": steps}.items():
        check_count(value, name)
    assert way is not None
    rng = np.random.default_rng([*b"few_shot", seed])
    draw = Draw(rng, way, shot + queries)
    if alphabets is None:
        assert isinstance(data, Dataset)
        drawn = own_classes(data, draw, clients, tasks, test_tasks)
    else:
        drawn = _alphabets(
            data, draw, alphabets, clients, per_client or 1, tasks, test_tasks, _turns(data, orientations)
        )
    validation, test = (Tasks.of(each.inputs, shot) for each in (drawn.validation, drawn.test))
    mine = Tasks.of(drawn.own.inputs, shot)
    scaling = Scaling(*_moments(data.images)) if isinstance(data, Omniglot) else Scaling(data.mean, data.deviation)
    loss = Queries(scaling)
    x0 = Normalised(_network(model, mine.support.shape[2:], filters, layers, strided, jax.random.key(seed)))
    features = jax.eval_shape(lambda: loss.features(x0, mine.support[0])).shape[1]
    held = NewTasks(loss, test, validation, mine, way, rc, steps)

    def learned(x: Any, y: Any) -> Learned:
        return Learned(exhibits=_shown(held, x, shot))

    return Task(
        Bilevel(loss, Support(scaling, rc), lower_level="local"),
        Clients(_split(mine.support, mine.support_labels, clients), _split(mine.query, mine.query_labels, clients)),
        x0,
        Heads.zero(tasks, features, way),
        held,
        metric="validation_error",  # so that a sweep never sees the test alphabets
        higher_is_better=False,
        contest=_Simple(held, x0, drawn.own, clients, jax.random.key(seed), features),
        learned=learned,
    )


def _network(model: Any, shape: tuple[int, ...], filters: int, layers: int, strided: bool, key: Array) -> Any:
    """The network that makes features: ``model``; else convolutions of images, a hidden layer for rows of a table."""
    if model is None and len(shape) == 1:
        model = "mlp"
    if model is not None:
        return make_model(model, shape, filters, key)
    return ConvFeatures(1 if len(shape) == 2 else shape[2], filters, layers, key, strided=strided)


def _shown(held: NewTasks, x: Any, shot: int) -> list[Exhibit]:
    """Some test tasks: what was learned from, and what was said of new examples; of tables there is nothing to see."""
    if held.test.support.ndim < 4:
        return []
    groups = []
    for number in range(min(SHOWN, held.test.support.shape[0])):
        task = Tasks(*(part[number] for part in held.test))
        said = np.asarray(eqx.filter_jit(held.logits)(x, task)).argmax(1)
        right = float(np.mean(said == task.query_labels))
        names = [chr(ord("A") + label) for label in range(held.way)]
        each = np.linspace(0, len(said) - 1, min(len(said), 2 * held.way)).astype(int)
        groups.append(
            {
                "caption": f"Task {number + 1}: {right:.0%} of {len(said)} new images right",
                "support": [
                    {"image": picture(np.asarray(image)), "label": names[label]}
                    for image, label in zip(task.support, task.support_labels, strict=True)
                ],
                "query": [
                    {"image": picture(np.asarray(image)), "label": names[label], "predicted": names[said[i]]}
                    for i, image, label in zip(each, task.query[each], task.query_labels[each], strict=True)
                ],
            }
        )
    text = (
        f"Tasks with classes nobody trained on: a head learns from {shot} image{'s' * (shot > 1)} of each class and is "
        "asked about new ones."
    )
    return [{"kind": "groups", "title": "New tasks", "text": text, "groups": groups}]


class _OnNew(eqx.Module):
    """How well the features of a whole network serve new tasks."""

    held: NewTasks

    def __call__(self, network: Headed) -> dict[str, Array]:
        return self.held.on_new_tasks(network.features)


@dataclass(frozen=True)
class _Simple(Contest):
    """Features of plain averaging, features that nobody has trained, and no features at all."""

    held: NewTasks
    x0: Any
    own: Drawn
    clients: int
    key: Array
    features: int

    def hold(
        self, others: Sequence[Contest], apart: Contest, effort: Effort, metric: str, higher: bool
    ) -> list[Result]:
        """New tasks are what all are judged by."""
        simple = [each for each in others if isinstance(each, _Simple)]
        trained = hold([each.training() for each in simple], self.training(), effort, metric, higher)
        untrained = [each.held.on_new_tasks(each.x0) for each in simple]
        means = [each.nearest_means() for each in simple]
        return [
            *trained,
            Result("untrained features", "Heads on the network as it starts.", _over(untrained)),
            Result(
                "nearest mean", "Each example goes to the class with the nearest mean, of raw inputs.", _over(means)
            ),
        ]

    def training(self) -> Training:
        """One network for all training classes, by plain averaging; then only its features are used."""
        classes, labels = np.unique(self.own.classes, return_inverse=True)
        inputs = self.own.inputs
        each = inputs.shape[2]
        rows = np.split(np.arange(labels.size * each), self.clients)
        network = Headed(self.x0, Dense(self.features, len(classes), self.key))
        what = "One classifier of all training classes; heads on its features."
        rival = Rival("plain federated averaging", what, rows)
        flat = inputs.reshape(-1, *inputs.shape[3:])
        return Training(
            network, self.held.upper.scaling, flat, np.repeat(labels.reshape(-1), each), [rival], _OnNew(self.held)
        )

    def nearest_means(self) -> dict[str, Array]:
        """Of raw inputs, in the Euclidean distance."""

        def error(tasks: Tasks) -> Array:
            def one(task: Tasks) -> Array:
                support, query = (part.reshape(len(part), -1).astype(float) for part in (task.support, task.query))
                return nearest_mean_error(support, task.support_labels, query, task.query_labels, self.held.way)

            return jnp.mean(jax.lax.map(one, tasks))

        return {"accuracy": 1 - error(self.held.test), "validation_error": error(self.held.validation)}


def _over(seeds: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    return {name: [float(each[name]) for each in seeds] for name in seeds[0]}


def _turns(data: Any, orientations: int | None) -> range:
    """By how many right angles images are turned to be another class."""
    if orientations is None:
        orientations = 1 if isinstance(data, MiniImageNet) else 4
    check_count(orientations, "orientations")
    if orientations > 4:
        raise ValueError(f"orientations must be at most 4, got {orientations}")
    return range(orientations)


def _alphabets(
    data: Omniglot | MiniImageNet | Dataset,
    draw: Draw,
    alphabets: tuple[int, int, int],
    clients: int,
    per_client: int,
    tasks: int,
    test_tasks: int,
    turns: range,
) -> Cut:
    """Tasks of characters, each in several orientations."""
    images, alphabet = _characters(data)
    known = data.part if isinstance(data, MiniImageNet) else None
    training, *others = _cut(draw.rng, len(np.unique(alphabet)), alphabets, known)
    held = _hold(training, clients, per_client, images.shape[1], draw.examples)

    def turned(characters: np.ndarray, part: slice) -> list[Class]:
        return [
            Class(int(4 * character + turn), partial(np.rot90, images[character, part], turn, (1, 2)))
            for character in characters
            for turn in turns
        ]

    own = [
        draw(tasks, [each for a, part in own for each in turned(np.flatnonzero(alphabet == a), part)]) for own in held
    ]
    everything = slice(images.shape[1])
    validation, test = (
        draw(test_tasks, turned(np.flatnonzero(np.isin(alphabet, each)), everything)) for each in others
    )
    return Cut(Drawn.joined(own), validation, test)


def _characters(data: Omniglot | MiniImageNet | Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Drawings (characters, drawings, height, width[, colours]), and the alphabet of each character.

    Of a data set with classes all images are taken, equally many of each: here whole characters are held out.
    """
    if isinstance(data, Omniglot):
        return data.images, data.alphabet
    if isinstance(data, MiniImageNet):
        return data.images, np.arange(len(data.part))
    images = np.concatenate([data.train_inputs, data.test_inputs])
    labels = np.concatenate([data.train_labels, data.test_labels])
    fewest = int(np.bincount(labels, minlength=data.classes).min())
    return np.stack([images[labels == c][:fewest] for c in range(data.classes)]), np.arange(data.classes)


def _moments(images: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the pixels."""
    return float(images.mean()), float(images.std())


def _cut(
    rng: np.random.Generator, count: int, alphabets: tuple[int, int, int], known: np.ndarray | None
) -> list[np.ndarray]:
    """Random alphabets for training, validation and test; if it is known which part one is ``known`` for, from that."""
    if len(alphabets) != 3 or min(alphabets) < 1 or sum(alphabets) > count:
        raise ValueError(f"alphabets must be three positive numbers, together at most {count}, got {alphabets!r}")
    if known is None:
        return np.split(rng.permutation(count)[: sum(alphabets)], np.cumsum(alphabets)[:2])
    most = np.bincount(known, minlength=3)
    if (np.array(alphabets) > most).any():
        raise ValueError(f"alphabets must be at most {tuple(most.tolist())}, the official parts, got {alphabets!r}")
    return [rng.permutation(np.flatnonzero(known == part))[:number] for part, number in enumerate(alphabets)]


def _hold(training: np.ndarray, clients: int, per_client: int, drawings: int, needed: int) -> list[list[Any]]:
    """What each client holds: pairs (alphabet, the part of the drawings of each of its characters)."""
    if not 1 <= per_client <= len(training):
        raise ValueError(f"per_client must be in 1..{len(training)}, the training alphabets, got {per_client!r}")
    holders = -(-clients * per_client // len(training))
    size = drawings // holders
    if size < needed:
        raise ValueError(
            f"clients={clients} with per_client={per_client}: {holders} of them share the {drawings} drawings of a "
            f"character, but a task needs {needed} (shot + queries)"
        )
    places = np.arange(clients * per_client).reshape(clients, per_client)
    parts = [slice(k * size, (k + 1) * size) for k in range(holders)]
    return [[(training[p % len(training)], parts[p // len(training)]) for p in row] for row in places]


def _split(images: Array, labels: Array, clients: int) -> Split:
    """Tasks (tasks of all clients, examples, ...) as examples of the clients, with the number of the client's task."""
    count, size = labels.shape
    task = np.repeat(np.tile(np.arange(count // clients, dtype=np.int32), clients), size)
    data = {"input": images.reshape(-1, *images.shape[2:]), "label": labels.reshape(-1), "task": task}
    return Split(data, np.split(np.arange(count * size), clients), "tasks")


FEW_SHOT = Recipe(
    "few-shot",
    "a common representation from which each client learns the heads of its own tasks with few images",
    few_shot,
    {
        "digits": Defaults(
            clients=8, local_steps=3, batch_size=(None, 32), rounds=60, algorithm="FedBiO-Local",
            options={
                "alphabets": (6, 2, 2), "per_client": 6, "tasks": 6, "test_tasks": 20, "filters": 16, "layers": 3,
            },
            rates={
                "FedBiO-Local": {"eta_x": 0.05, "eta_y": 0.4, "neumann_step": 0.5},
                "FedBiOAcc-Local": {
                    "eta_x": 0.25, "eta_y": 4.0, "neumann_step": 0.5, "delta": 2.0, "offset": 10_000.0, "c_x": 100.0,
                    "c_y": 100.0,
                },
            },
        ),
        "omniglot": Defaults(
            clients=11, local_steps=5, batch_size=(None, 32), rounds=300, algorithm="FedBiO-Local",
            rates={"FedBiO-Local": {"eta_x": 0.1, "eta_y": 0.4, "neumann_step": 0.5}},
        ),
        "mini-imagenet": Defaults(  # with the paper's rates, never tried
            clients=4, local_steps=5, batch_size=(50, 32), rounds=300, algorithm="FedBiO-Local",
            options={"alphabets": (64, 16, 20), "per_client": 16},
            rates={
                "FedBiO-Local": {"eta_x": 0.1, "eta_y": 0.05, "neumann_step": 0.01},
                "FedBiOAcc-Local": {
                    "eta_x": 1.0, "eta_y": 0.05, "neumann_step": 0.01, "delta": 2.0, "offset": 10_000.0, "c_x": 100.0,
                    "c_y": 100.0,
                },
            },
        ),
    },
    own=Defaults(
        clients=5, local_steps=3, batch_size=(None, 32), rounds=60, algorithm="FedBiO-Local",
        options={"alphabets": None, "way": None, "per_client": None, "tasks": 6, "queries": 5, "test_tasks": 20,
                 "filters": 32, "model": "mlp:64"},
    ),
    validates_itself=True,
    question="Can the clients learn features together from which new classes are told apart by a few examples?",
    meanings={
        "accuracy": "The share that is right of new examples of test classes, told apart by a few examples of each.",
        "loss": "The mean cross-entropy on these examples.",
        "validation_error": "The share that is wrong, of classes that are kept for validation.",
        "nearest_mean_error": "The same if no head is learned: the class with the nearest mean of features is said.",
        "own_accuracy": "The share that is right of the clients' own new examples, by their own heads.",
    },
)  # fmt: skip
