"""The network that a task has trained: what is stored with it, and what it says of new inputs."""

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.tasks.inputs import Scaling, Score, class_names, recalls
from rookery.tasks.learned import Exhibit, Network, accuracy_by_class

CHUNK = 1000


class OfNetwork(eqx.Module):
    """A task's score of a network alone, without x."""

    score: Any

    def __call__(self, network: Any) -> dict[str, Array]:
        """The metrics."""
        found: dict[str, Array] = self.score(None, network)
        return found


class OfWhole(eqx.Module):
    """The outputs of a whole network y, as a score asks for them."""

    scaling: Scaling

    def __call__(self, x: Any, y: Any, inputs: Array) -> Array:
        """x has no part in them."""
        return self.scaling.outputs(y, inputs)


def by_class(test: Score, data: Dataset, x: Any, y: Any) -> list[Exhibit]:
    """The accuracy of each class on the test examples."""
    right, _ = eqx.filter_jit(test.each)(x, y)
    return [accuracy_by_class(class_names(data), recalls(right, test.labels, data.classes))]


def about_network(data: Dataset, network: Any, model: Any, outputs: int | None = None, **more: Any) -> Network:
    """The network with all that is needed to make it again and to feed it; ``model`` is how it was asked for."""
    encoding = None if data.encoding is None else data.encoding.tables()
    about = {
        "model": model,
        "shape": list(data.shape),
        "outputs": data.classes if outputs is None else outputs,
        "mean": data.mean,
        "deviation": data.deviation,
        "classes": class_names(data),
        "encoding": encoding,
        **more,
    }
    return Network(network, about)


@eqx.filter_jit
def _outputs(scaling: Scaling, network: Any, inputs: Any) -> Array:
    return scaling.outputs(network, inputs)


def predict(scaling: Scaling, network: Any, inputs: np.ndarray) -> np.ndarray:
    """The outputs of a network for inputs as they are stored, some at a time."""
    parts = [_outputs(scaling, network, inputs[at : at + CHUNK]) for at in range(0, len(inputs), CHUNK)]
    return np.concatenate([np.asarray(part) for part in parts])


def probabilities(outputs: np.ndarray) -> np.ndarray:
    """Of each class; of one output, that of the positive class alone."""
    found = jax.nn.sigmoid(outputs) if outputs.shape[1] == 1 else jax.nn.softmax(outputs, -1)
    return np.asarray(found)
