"""Few-shot learning: a common representation from which every client learns the heads of its own small tasks."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset, Omniglot
from rookery.models.layers import ConvFeatures, cross_entropy, squared_norm
from rookery.problem.clients import Clients, Split
from rookery.problem.problems import Bilevel
from rookery.problem.validation import check_count
from rookery.tasks.inputs import Example, Scaling
from rookery.tasks.task import Defaults, Recipe, Task


class Heads(eqx.Module):
    """A linear head for each task of a client: weights (tasks, features, classes) and biases (tasks, classes)."""

    weight: Array
    bias: Array

    @classmethod
    def zero(cls, tasks: int, features: int, classes: int) -> "Heads":
        """All entries 0."""
        return cls(jnp.zeros((tasks, features, classes)), jnp.zeros((tasks, classes)))

    def __call__(self, features: Array, task: Array) -> Array:
        """The logits of each example by the head of its task.

        All heads are applied and one is chosen: the gradient of picking a head by its number would be a scatter.
        """
        logits = jnp.einsum("bf,tfc->btc", features, self.weight) + self.bias
        return jnp.einsum("btc,bt->bc", logits, jax.nn.one_hot(task, self.bias.shape[0], dtype=logits.dtype))


class _Upper(eqx.Module):
    """Mean cross-entropy over the query images of all tasks of a client."""

    scaling: Scaling

    def features(self, x: ConvFeatures, images: Array) -> Array:
        return x(self.scaling(images, x.scales[0].dtype))

    def __call__(self, x: ConvFeatures, y: Heads, batch: Example) -> Array:
        return cross_entropy(y(self.features(x, batch["input"]), batch["task"]), batch["label"])


class _Lower(_Upper):
    """The sum over a client's tasks of their mean cross-entropy on support images, with rc‖y‖²."""

    rc: float

    def __call__(self, x: ConvFeatures, y: Heads, batch: Example) -> Array:
        return y.bias.shape[0] * super().__call__(x, y, batch) + self.rc * squared_norm(y)


class _Tasks(NamedTuple):
    """Images (tasks, examples, height, width) and labels (tasks, examples) to learn a head from, and to judge it by."""

    support: Array
    support_labels: Array
    query: Array
    query_labels: Array

    @classmethod
    def of(cls, images: np.ndarray, shot: int) -> "_Tasks":
        """From images (tasks, way, shot + queries, height, width)."""
        count, way, _, *shape = images.shape

        def part(chosen: np.ndarray) -> tuple[Array, Array]:
            labels = np.broadcast_to(np.arange(way, dtype=np.int32)[:, None], chosen.shape[:3])
            return jnp.asarray(chosen.reshape(count, -1, *shape)), jnp.asarray(labels.reshape(count, -1))

        return cls(*part(images[:, :, :shot]), *part(images[:, :, shot:]))


class _Held(eqx.Module):
    """Accuracies: of heads learned on new tasks with characters nobody trains on, and of the clients' own heads.

    "accuracy" and "loss" are those of test tasks, "validation_error" that of validation tasks.
    """

    upper: _Upper
    test: _Tasks
    validation: _Tasks
    own: _Tasks
    way: int = eqx.field(static=True)
    rc: float
    steps: int = eqx.field(static=True)

    def __call__(self, x: ConvFeatures, y: Heads) -> dict[str, Array]:
        def new(task: _Tasks) -> tuple[Array, Array]:
            weight, bias = adapted(
                self.upper.features(x, task.support), task.support_labels, self.way, self.rc, self.steps
            )
            return _judged(self.upper.features(x, task.query) @ weight + bias, task.query_labels)

        def known(task: tuple[_Tasks, Array, Array]) -> tuple[Array, Array]:
            images, weight, bias = task
            return _judged(self.upper.features(x, images.query) @ weight + bias, images.query_labels)

        accuracy, loss = jax.lax.map(new, self.test)
        validation, _ = jax.lax.map(new, self.validation)
        weight, bias = (each.reshape(-1, *each.shape[2:]) for each in (y.weight, y.bias))
        own, _ = jax.lax.map(known, (self.own, weight, bias))
        return {
            "accuracy": jnp.mean(accuracy),
            "loss": jnp.mean(loss),
            "validation_error": 1 - jnp.mean(validation),
            "own_accuracy": jnp.mean(own),
        }


def _judged(logits: Array, labels: Array) -> tuple[Array, Array]:
    return jnp.mean(jnp.argmax(logits, -1) == labels), cross_entropy(logits, labels)


def adapted(features: Array, labels: Array, way: int, rc: float, steps: int) -> tuple[Array, Array]:
    """The head (W, b) after ``steps`` gradient steps of 1/L from 0 on the mean cross-entropy + rc‖(W, b)‖².

    L = ½ mean(‖φ‖² + 1) + 2rc is a bound of the curvature, φ an example's features.
    """
    bordered = jnp.concatenate([features, jnp.ones_like(features[:, :1])], 1)
    hot = jax.nn.one_hot(labels, way, dtype=features.dtype)
    bound = 0.5 * jnp.mean(jnp.sum(bordered**2, 1)) + 2 * rc

    def step(_: Array, head: Array) -> Array:
        slope = bordered.T @ (jax.nn.softmax(bordered @ head) - hot) / len(labels)
        return head - (slope + 2 * rc * head) / bound

    head = jax.lax.fori_loop(0, steps, step, jnp.zeros((bordered.shape[1], way), features.dtype))
    return head[:-1], head[-1]


def few_shot(
    data: Omniglot | Dataset,
    *,
    clients: int = 11,
    seed: int = 0,
    way: int = 5,
    shot: int = 1,
    queries: int = 15,
    tasks: int = 10,
    alphabets: tuple[int, int, int] = (33, 5, 12),
    per_client: int = 3,
    test_tasks: int = 40,
    filters: int = 64,
    layers: int = 4,
    rc: float = 0.01,
    steps: int = 100,
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
    taken as alphabets of one character.

    "accuracy" (test) and "validation_error" are those of ``test_tasks`` new tasks each, from alphabets nobody trains on,
    with a head that makes ``steps`` gradient steps on the support images (:func:`adapted`); "own_accuracy" is that of
    the clients' heads on their query images.
    """
    counts = {
        "clients": clients,
        "way": way,
        "shot": shot,
        "queries": queries,
        "tasks": tasks,
        "test_tasks": test_tasks,
    }
    for name, value in {**counts, "filters": filters, "layers": layers, "steps": steps}.items():
        check_count(value, name)
    images, alphabet = _characters(data)
    rng = np.random.default_rng([*b"few_shot", seed])
    training, *others = _cut(rng, len(np.unique(alphabet)), alphabets)
    draw = _Draw(rng, images, way, shot + queries)
    held = _hold(training, clients, per_client, images.shape[1], shot + queries)
    own = np.stack([draw(tasks, [(np.flatnonzero(alphabet == a), part) for a, part in each]) for each in held])
    everything = slice(images.shape[1])
    validation, test = (
        _Tasks.of(draw(test_tasks, [(np.flatnonzero(np.isin(alphabet, each)), everything)]), shot) for each in others
    )
    mine = _Tasks.of(own.reshape(-1, *own.shape[2:]), shot)
    scaling = Scaling(data.mean, data.deviation) if isinstance(data, Dataset) else Scaling(*_moments(images))
    loss = _Upper(scaling)
    x0 = ConvFeatures(1 if images.ndim == 4 else images.shape[4], filters, layers, jax.random.key(seed))
    features = jax.eval_shape(lambda: loss.features(x0, mine.support[0])).shape[1]
    return Task(
        Bilevel(loss, _Lower(scaling, rc), lower_level="local"),
        Clients(_split(mine.support, mine.support_labels, clients), _split(mine.query, mine.query_labels, clients)),
        x0,
        Heads.zero(tasks, features, way),
        _Held(loss, test, validation, mine, way, rc, steps),
        metric="validation_error",  # so that a sweep never sees the test alphabets
        higher_is_better=False,
    )


def _characters(data: Omniglot | Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Drawings (characters, drawings, height, width), and the alphabet of each character.

    Of a data set with classes all images are taken, equally many of each: here whole characters are held out.
    """
    if isinstance(data, Omniglot):
        return data.images, data.alphabet
    images = np.concatenate([data.train_inputs, data.test_inputs])
    labels = np.concatenate([data.train_labels, data.test_labels])
    fewest = int(np.bincount(labels, minlength=data.classes).min())
    return np.stack([images[labels == c][:fewest] for c in range(data.classes)]), np.arange(data.classes)


def _moments(images: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the pixels."""
    return float(images.mean()), float(images.std())


def _cut(rng: np.random.Generator, count: int, alphabets: tuple[int, int, int]) -> list[np.ndarray]:
    """Random alphabets for training, validation and test."""
    if len(alphabets) != 3 or min(alphabets) < 1 or sum(alphabets) > count:
        raise ValueError(f"alphabets must be three positive numbers, together at most {count}, got {alphabets!r}")
    return np.split(rng.permutation(count)[: sum(alphabets)], np.cumsum(alphabets)[:2])


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


class _Draw:
    """Draws tasks: images (tasks, way, examples, height, width)."""

    def __init__(self, rng: np.random.Generator, images: np.ndarray, way: int, examples: int):
        self._rng, self._images, self._way, self._examples = rng, images, way, examples

    def __call__(self, tasks: int, held: list[tuple[np.ndarray, slice]]) -> np.ndarray:
        """From pairs (characters, part of the drawings of each)."""
        classes = [(character, part, turns) for own, part in held for character in own for turns in range(4)]
        if self._way > len(classes):
            raise ValueError(f"way must be at most {len(classes)}, the classes that somebody holds, got {self._way!r}")
        return np.stack([self._task(classes) for _ in range(tasks)])

    def _task(self, classes: list[tuple[int, slice, int]]) -> np.ndarray:
        chosen = self._rng.permutation(len(classes))[: self._way]
        return np.stack([self._drawings(*classes[number]) for number in chosen])

    def _drawings(self, character: int, part: slice, turns: int) -> np.ndarray:
        drawings = self._rng.permutation(self._images[character, part])[: self._examples]
        return np.rot90(drawings, turns, (1, 2))


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
    },
)  # fmt: skip
