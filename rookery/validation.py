"""Checks of what a user gives, before anything is compiled."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.clients import Split
from rookery.keys import as_key
from rookery.layout import Layout
from rookery.oracles import on_batch


def check_count(value: Any, name: str) -> int:
    """An integer of at least 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return int(value)


def check_loss(loss: Callable[..., Array], split: Split, x: Layout, y: Layout, name: str) -> None:
    """The loss gives a scalar of a real dtype on a batch of its data."""
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape[1:]), leaf.dtype), split.data)

    def value(x: Array, y: Array, batch: Any) -> Array:
        return on_batch(loss, batch, lambda: as_key(0), jnp.int32(0))(x, y)

    shape = jax.eval_shape(
        value, jax.ShapeDtypeStruct((x.size,), x.dtype), jax.ShapeDtypeStruct((y.size,), y.dtype), batch
    )
    if shape.shape != () or not jnp.issubdtype(shape.dtype, jnp.floating):
        raise ValueError(f"{name} must return a scalar of floats, got {shape.dtype} of shape {shape.shape}")


def check_mean_form(loss: Callable[..., Array], split: Split, x: Array, y: Array, name: str) -> None:
    """The loss is a mean over its batch (plus terms free of it), as whole sets of unequal sizes need."""
    largest = int(np.argmax(np.asarray(split.size)))
    batch = split.take(largest, jnp.arange(min(3, split.max_size)))
    client = jnp.int32(largest)
    size = jax.tree.leaves(batch)[0].shape[0]
    x, y = x + 0.1, y - 0.1  # away from a start at which the loss may happen to be 0

    def value(rows: slice) -> float:
        return float(loss(x, y, jax.tree.map(lambda leaf: leaf[rows], batch), lambda: as_key(0), client))

    together = value(slice(size))
    alone = [value(slice(i, i + 1)) for i in range(size)]
    mean = float(np.mean(alone))
    if abs(together - mean) > 1e-3 * (abs(together) + max(abs(a) for a in alone)) + 1e-6:
        raise ValueError(
            f"{name} loss must be a mean over its batch (plus terms free of the batch) where clients of unequal sizes use "
            f"their whole sets: it gives {together:g} on {size} examples, but {mean:g} on average on each alone. "
            f"Give batch_size, or clients of equal sizes"
        )
