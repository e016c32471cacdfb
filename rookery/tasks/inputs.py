"""What tasks on images share: pixels to floats, examples, the test metrics."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.datasets import Dataset
from rookery.models.layers import cross_entropy

Example = dict[str, Array]


class Scaling(eqx.Module):
    """Images as they are stored to floats: (pixel − mean)/deviation, inside the compiled program."""

    mean: float | tuple[float, ...] = eqx.field(static=True)
    deviation: float | tuple[float, ...] = eqx.field(static=True)

    @classmethod
    def of(cls, data: Dataset) -> "Scaling":
        """As this data set wants it."""
        return cls(data.mean, data.deviation)

    def __call__(self, images: Array, dtype: Any) -> Array:
        """(examples, height, width, channels)."""
        images = images if images.ndim == 4 else images[..., None]
        return (images.astype(dtype) - jnp.asarray(self.mean, dtype)) / jnp.asarray(self.deviation, dtype)

    def flat(self, images: Array, dtype: Any) -> Array:
        """(examples, pixels)."""
        return self(images, dtype).reshape(images.shape[0], -1)


def examples(images: np.ndarray, labels: np.ndarray) -> Example:
    """What a loss sees of a batch; images stay as they are stored."""
    return {"input": jnp.asarray(images), "label": jnp.asarray(labels, jnp.int32)}


class Score(eqx.Module):
    """Accuracy and mean cross-entropy on the test images, ``chunk`` of them at a time to bound memory.

    ``logits(x, y, images)`` is an Equinox module or a function.
    """

    logits: Callable[[Any, Any, Array], Array]
    images: Array
    labels: Array
    chunk: int = eqx.field(static=True, default=1000)

    @classmethod
    def of(cls, logits: Callable[[Any, Any, Array], Array], data: Dataset) -> "Score":
        """On the test part of a data set."""
        return cls(logits, jnp.asarray(data.test_inputs), jnp.asarray(data.test_labels, jnp.int32))

    def __call__(self, x: Any, y: Any) -> dict[str, Array]:
        """{"accuracy", "loss"}."""

        def one(example: tuple[Array, Array]) -> tuple[Array, Array]:
            image, label = example
            logits = self.logits(x, y, image[None])
            return jnp.argmax(logits[0]) == label, cross_entropy(logits, label[None])

        right, losses = jax.lax.map(one, (self.images, self.labels), batch_size=self.chunk)
        return {"accuracy": jnp.mean(right), "loss": jnp.mean(losses)}
