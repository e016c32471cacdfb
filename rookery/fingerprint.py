"""One number for a value and all that is in it: arrays, pytrees, functions with their code and what they captured."""

import dataclasses
import functools
import hashlib
import inspect
import tokenize
from collections.abc import Mapping
from types import FunctionType, MethodType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def fingerprint(value: Any) -> str:
    """The SHA-256 of a value. Of a function it is that of its source, where there is one, and of what it captured."""
    told = hashlib.sha256()
    _tell(value, told, [])
    return told.hexdigest()


def _tell(value: Any, told: Any, above: list[int]) -> None:
    if id(value) in above:  # a function that captured itself
        told.update(b"again;")
        return
    above = [*above, id(value)]

    def tell(*parts: Any) -> None:
        for part in parts:
            _tell(part, told, above)

    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        told.update(f"{type(value).__name__}:{value!r};".encode())
    elif isinstance(value, jax.Array | np.ndarray | np.generic):
        if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            value = jax.random.key_data(value)
        array = np.asarray(value, order="C")
        told.update(f"{array.dtype}{array.shape}:".encode())
        told.update(array.reshape(-1).view(np.uint8).data)
    elif isinstance(value, Mapping):
        told.update(f"mapping {len(value)}:".encode())
        tell(*(part for key in sorted(value, key=str) for part in (str(key), value[key])))
    elif isinstance(value, list | tuple):
        told.update(f"list {len(value)}:".encode())
        tell(*value)
    elif isinstance(value, FunctionType):
        told.update(_code(value))
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_full(cell)]
        tell(cells, value.__defaults__, value.__kwdefaults__)
    elif isinstance(value, MethodType):
        tell(value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        tell(value.func, value.args, value.keywords)
    elif isinstance(value, type):
        told.update(f"type {value.__module__}.{value.__qualname__};".encode())
    elif dataclasses.is_dataclass(value):
        tell(type(value), {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)})
    else:
        leaves = jax.tree.leaves(value)
        tell(type(value), [] if len(leaves) == 1 and leaves[0] is value else leaves)


def _code(function: FunctionType) -> bytes:
    try:
        return inspect.getsource(function).strip().encode()
    except (
        OSError,
        TypeError,
        SyntaxError,
        tokenize.TokenError,
    ):  # typed in by hand, made by a program, or its file changed
        return function.__code__.co_code + repr(function.__code__.co_names).encode()


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def examples_sum(clients: Any) -> int:
    """A number for the examples of the clients that are here: of parts that others hold, the numbers can be added.

    Each example is hashed with its place, each client with its number, and all are summed, so that it does not matter who
    holds how many. It finds changes; it is no defence against somebody who wants none to be found.
    """
    total = 0
    for salt, split in enumerate((clients.lower, clients.upper)):
        rows, start, size = split.table(np.arange(split.start.shape[-1]))
        places = np.arange(len(rows)) - np.repeat(*_runs(start, size, len(rows)))
        hashes = _mixed(places.astype(np.uint64))
        for number, leaf in enumerate(jax.tree.leaves(split.data)):
            hashes = _mixed(hashes ^ _mixed(_words(np.asarray(leaf), number)[rows]))
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
        own = sums[start + size] - sums[start]
        ids = (clients.first + np.arange(len(start))).astype(np.uint64)
        total += int(_mixed(own ^ _mixed(ids * np.uint64(2) + np.uint64(salt))).sum(dtype=np.uint64))
    return total % 2**64


def _runs(start: np.ndarray, size: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each run of rows begins, and how long it is: clients with the very same examples share one."""
    first = np.unique(start)
    return first, np.diff(np.append(first, length))


def _words(leaf: np.ndarray, number: int) -> np.ndarray:
    """A number for each example: its bytes, eight at a time, times odd constants."""
    content = np.ascontiguousarray(leaf).reshape(len(leaf), -1).view(np.uint8)
    width = -(-content.shape[1] // 8)
    found = np.full(len(leaf), number * 1000 + content.shape[1], np.uint64)
    factors = _mixed(np.arange(1, width + 1, dtype=np.uint64) * np.uint64(2 * number + 1)) | np.uint64(1)
    for word in range(width):
        part = np.zeros((len(leaf), 8), np.uint8)
        piece = content[:, 8 * word : 8 * word + 8]
        part[:, : piece.shape[1]] = piece
        found += part.view("<u8")[:, 0] * factors[word]
    return found


def _mixed(values: np.ndarray) -> np.ndarray:
    """SplitMix64's last steps: every bit of the argument changes half of the result's."""
    values = (values + np.uint64(0x9E3779B97F4A7C15)).astype(np.uint64)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: np.ndarray = values ^ (values >> np.uint64(31))
    return found
