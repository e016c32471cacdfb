"""Heads of few-shot learning: their losses, how one is learned from few examples, and how well that serves new tasks."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.models.layers import cross_entropy, squared_norm
from rookery.tasks.inputs import Example, Scaling


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


class Queries(eqx.Module):
    """Mean cross-entropy over the query images of all tasks of a client."""

    scaling: Scaling

    def features(self, x: Any, inputs: Array) -> Array:
        """What x makes of inputs as they are stored."""
        return self.scaling.outputs(x, inputs)

    def __call__(self, x: Any, y: Heads, batch: Example) -> Array:
        """The upper objective."""
        return cross_entropy(y(self.features(x, batch["input"]), batch["task"]), batch["label"])


class Support(Queries):
    """The sum over a client's tasks of their mean cross-entropy on support images, with rc‖y‖²."""

    rc: float

    def __call__(self, x: Any, y: Heads, batch: Example) -> Array:
        """The lower objective."""
        return y.bias.shape[0] * super().__call__(x, y, batch) + self.rc * squared_norm(y)


class Normalised(eqx.Module):
    """A network whose outputs are features of mean 0 and norm 1, so that a head's curvature is about 1 at most.

    Were the norm free, training would let it grow, and the curvature with it, which bounds the steps of the heads. Another
    norm would only be another penalty of the heads.
    """

    network: Any

    def __call__(self, batch: Array) -> Array:
        """The features of each example."""
        found = self.network(batch)
        away = found - jnp.mean(found, -1, keepdims=True)
        scaled: Array = away / jnp.sqrt((jnp.mean(away**2, -1, keepdims=True) + 1e-5) * found.shape[-1])
        return scaled


class Tasks(NamedTuple):
    """Images (tasks, examples, height, width) and labels (tasks, examples) to learn a head from, and to judge it by."""

    support: Array
    support_labels: Array
    query: Array
    query_labels: Array

    @classmethod
    def of(cls, images: np.ndarray, shot: int) -> "Tasks":
        """From images (tasks, way, shot + queries, height, width)."""
        count, way, _, *shape = images.shape

        def part(chosen: np.ndarray) -> tuple[Array, Array]:
            labels = np.broadcast_to(np.arange(way, dtype=np.int32)[:, None], chosen.shape[:3])
            return jnp.asarray(chosen.reshape(count, -1, *shape)), jnp.asarray(labels.reshape(count, -1))

        return cls(*part(images[:, :, :shot]), *part(images[:, :, shot:]))


class NewTasks(eqx.Module):
    """Accuracies: of heads learned on new tasks with characters nobody trains on, and of the clients' own heads.

    "accuracy" and "loss" are those of test tasks, "validation_error" that of validation tasks; "nearest_mean_error" is
    the error on these if no head is learned: a query example goes to the class with the nearest mean of the features.
    """

    upper: Queries
    test: Tasks
    validation: Tasks
    own: Tasks
    way: int = eqx.field(static=True)
    rc: float
    steps: int = eqx.field(static=True)

    def __call__(self, x: Any, y: Heads) -> dict[str, Array]:
        """The metrics."""

        def known(task: tuple[Tasks, Array, Array]) -> tuple[Array, Array]:
            examples, weight, bias = task
            return judged(self.upper.features(x, examples.query) @ weight + bias, examples.query_labels)

        weight, bias = (each.reshape(-1, *each.shape[2:]) for each in (y.weight, y.bias))
        own, _ = jax.lax.map(known, (self.own, weight, bias))
        return {**self.on_new_tasks(x), "own_accuracy": jnp.mean(own)}

    def on_new_tasks(self, x: Any) -> dict[str, Array]:
        """Of a representation alone."""

        def new(task: Tasks) -> tuple[Array, Array]:
            return judged(self.logits(x, task), task.query_labels)

        def both(task: Tasks) -> tuple[Array, Array]:
            support, query = self.upper.features(x, task.support), self.upper.features(x, task.query)
            right, _ = judged(self._logits(support, task, query), task.query_labels)
            return right, nearest_mean_error(support, task.support_labels, query, task.query_labels, self.way)

        accuracy, loss = jax.lax.map(new, self.test)
        validation, nearest = jax.lax.map(both, self.validation)
        return {
            "accuracy": jnp.mean(accuracy),
            "loss": jnp.mean(loss),
            "validation_error": 1 - jnp.mean(validation),
            "nearest_mean_error": jnp.mean(nearest),
        }

    def logits(self, x: Any, task: Tasks) -> Array:
        """Of a task's query examples, by a head that was learned from its support examples."""
        return self._logits(self.upper.features(x, task.support), task, self.upper.features(x, task.query))

    def _logits(self, support: Array, task: Tasks, query: Array) -> Array:
        weight, bias = adapted(support, task.support_labels, self.way, self.rc, self.steps)
        return query @ weight + bias


def nearest_mean_error(support: Array, labels: Array, query: Array, answers: Array, way: int) -> Array:
    """The error if each query goes to the class whose support has the nearest mean, in the Euclidean distance."""
    hot = jax.nn.one_hot(labels, way, dtype=support.dtype)
    means = hot.T @ support / jnp.sum(hot, 0)[:, None]
    distance = jnp.sum((query[:, None] - means) ** 2, -1)
    return jnp.mean(jnp.argmin(distance, 1) != answers)


def judged(logits: Array, labels: Array) -> tuple[Array, Array]:
    """(accuracy, mean cross-entropy)."""
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
