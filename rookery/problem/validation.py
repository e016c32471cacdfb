"""Checks of what a user gives, before anything is compiled."""

import os
import sys
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.problem.clients import Split
from rookery.problem.keys import as_key
from rookery.problem.layout import Layout, describe, dotted, without_torch
from rookery.problem.oracles import on_batch
from rookery.problem.problems import ClientWeighting, Flat, Minimax, Problem
from rookery.problem.reading import depends_on, out_of_range
from rookery.problem.sets import WholeSpace


def check_count(value: Any, name: str) -> int:
    """An integer of at least 1."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1, got {value!r}")
    return int(value)


def check_loss(flat: Flat, which: str, split: Split, clients: int) -> bool:
    """The loss works on its data, gives a scalar of a real dtype and reads no place that is not there.

    ``which`` is "lower" or "upper". Returns whether the loss depends on x.
    """
    name = _called(flat.problem, which)
    rows = _extreme_rows(split)
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((len(rows), *leaf.shape[1:]), leaf.dtype), split.data)
    try:
        jaxpr, shape = _traced(flat, which, batch, flat.x, flat.y)
    except Exception as error:
        raise _failure(flat, which, batch, name, error) from error
    if shape.shape != () or not jnp.issubdtype(shape.dtype, jnp.floating):
        raise ValueError(f"{name} must return a scalar of floats, got {shape.dtype} of shape {shape.shape}")
    known = [partial(_rows, leaf, rows) for leaf in jax.tree.leaves(split.data)]
    for read in out_of_range(jaxpr, [None, None, lambda: jnp.int32(clients - 1), *known]):  # x and y are not known
        told = f"{name}: index out of range: it reads {read}"
        if read.clamped:  # asked for by mode="clip", or by vmap of a single index: the two cannot be told apart
            warn(f"{told}; the last place is taken instead")
        else:
            raise ValueError(f"{told}, where JAX would silently take the last one. Is x0 or y0 too short?")
    return bool(depends_on(jaxpr, 0))


def warn(message: str) -> None:
    """A warning at the line of the caller's own that led here."""
    inside, level, frame = f"{Path(__file__).parents[1]}{os.sep}", 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, UserWarning, stacklevel=level)


def _called(problem: Problem, which: str) -> str:
    """What a user calls the loss."""
    if isinstance(problem, Minimax):
        return "objective"
    if isinstance(problem, ClientWeighting):
        return "loss" if which == "lower" else "validation loss"
    return f"{which} loss"


def _traced(flat: Flat, which: str, batch: Any, x: Layout, y: Layout) -> tuple[Any, Any]:
    """The program of a loss of vectors x, y, the client's number and a batch, and what it returns."""
    flat = Flat(flat.problem, x, y)
    loss = flat.lower if which == "lower" else flat.upper

    def value(x: Array, y: Array, client: Array, batch: Any) -> Array:
        return on_batch(loss, batch, lambda: as_key(0), client)(x, y)

    vectors = (jax.ShapeDtypeStruct((each.size,), each.dtype) for each in (x, y))
    number = jax.ShapeDtypeStruct((), jnp.int32)
    traced: tuple[Any, Any] = jax.make_jaxpr(value, return_shape=True)(*vectors, number, batch)
    return traced


def _failure(flat: Flat, which: str, batch: Any, name: str, error: Exception) -> Exception:
    """What a loss that raised was given, and what may be the matter."""
    told = (str(error).strip().splitlines() or [""])[0]
    given = f"x: {flat.x}, y: {flat.y}, batch: {describe(batch)}"
    hint = ""
    if isinstance(flat.problem, ClientWeighting):
        given = f"w: {flat.y}, batch: {describe(batch)}"
    elif _works(flat, which, batch):
        hint = ". It works with x and y exchanged: a loss is called with (x, y, batch), and x0 comes before y0"
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(f"{name}: {type(error).__name__}: {told} (it was called with {given}){hint}")


def _works(flat: Flat, which: str, batch: Any) -> bool:
    """Whether the loss would work with x and y exchanged."""
    try:
        _, shape = _traced(flat, which, batch, flat.y, flat.x)
    except Exception:  # whatever a user's function raises
        return False
    return bool(shape.shape == ())


def _extreme_rows(split: Split) -> list[int]:
    """Two examples, and those in which some integer is largest or smallest: an index out of range is one of them."""
    leaves = jax.tree.leaves(split.data)
    length = leaves[0].shape[0]
    held = np.arange(length) if split.index is None else np.unique(np.asarray(split.index))
    rows = [held[0], held[-1]]
    for leaf in leaves:
        if jnp.issubdtype(leaf.dtype, jnp.integer) and 0 < leaf.size <= 16 * length:  # not images
            values = np.asarray(leaf).reshape(length, -1)[held]
            rows += [held[values.max(1).argmax()], held[values.min(1).argmin()]]
    return [int(row) for row in rows]


def _rows(leaf: Array, rows: list[int]) -> Array:
    return jnp.asarray(np.asarray(leaf)[rows])


def check_start(flat: Flat, name: str, values: Sequence[Any]) -> list[Array]:
    """Where to start, as vectors, one a lane: finite, and in its set."""
    layout = flat.x if name == "x0" else flat.y
    chosen = flat.problem.x_set if name == "x0" else flat.problem.y_set
    for value in values:
        for path, leaf in jax.tree.leaves_with_path(jax.tree.map(without_torch, value)):
            if eqx.is_inexact_array_like(leaf) and not np.isfinite(np.asarray(leaf)).all():
                where = dotted(path)
                raise ValueError(f"{name}{where and '.'}{where} must be finite, got {_first_bad(leaf)}")
    vectors = [layout.ravel(value) for value in values]
    if isinstance(chosen, WholeSpace):
        return vectors
    stacked = jnp.stack(vectors)
    away = np.asarray(_away(flat, name, stacked))
    if (away > 1e-5 * (1 + np.abs(np.asarray(stacked)).max(1))).any():
        lane = f" in lane {int(away.argmax())}" if len(values) > 1 else ""
        raise ValueError(
            f"{name} must be in {chosen!r}, got one with an entry that is {away.max():.3g} away from it{lane}"
        )
    return vectors


@eqx.filter_jit
def _away(flat: Flat, name: str, vectors: Array) -> Array:
    """How far the entry of each vector is from its set that is farthest."""
    project = flat.project_x if name == "x0" else flat.project_y
    return jnp.abs(jax.vmap(project)(vectors) - vectors).max(1)


def _first_bad(leaf: Any) -> float:
    values = np.ravel(np.asarray(leaf))
    return float(values[~np.isfinite(values)][0])


def check_batch(size: int | None, split: Split, name: str) -> None:
    """Warns of a minibatch that is larger than what it is drawn from; ``name`` is "lower", "upper" or "server"."""
    sizes = np.asarray(split.size)
    client = int(sizes.argmin())
    if size is not None and size > sizes[client]:
        whose = "examples of the server" if name == "server" else f"{name} examples of client {client}"
        warn(
            f"batch_size {size} is more than the {sizes[client]} {whose}: they are drawn with replacement. "
            "None takes whole sets"
        )


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
