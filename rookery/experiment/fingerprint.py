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
