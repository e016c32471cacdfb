"""Functions that are made anew for every seed: which of them are the same, and how those that only capture other arrays
become lanes of one program.
"""

from collections.abc import Callable, Mapping, Sequence
from types import CellType, FunctionType
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery.problem.layout import same_structure

DEEPEST = 20
"""How many functions may capture one another; beyond that one captures itself."""


class Captured(eqx.Module):
    """A function whose captured values are leaves, so that other values can take their place."""

    values: tuple[Any, ...]
    defaults: tuple[Any, ...] | None
    named: dict[str, Any] | None
    like: Callable[..., Any] = eqx.field(static=True)

    def __call__(self, *arguments: Any) -> Any:
        """The function with these values."""
        like: Any = self.like
        cells = tuple(CellType(value) for value in self.values)
        made = FunctionType(like.__code__, like.__globals__, like.__name__, self.defaults, cells)
        made.__kwdefaults__ = self.named
        return made(*arguments)


def same(one: Any, other: Any, depth: int = 0) -> bool:
    """Whether two values are equal; of functions, whether they have the same code and captured the same."""
    if one is other or depth > DEEPEST:
        return True
    if isinstance(one, FunctionType) and isinstance(other, FunctionType):
        if not _same_code(one, other):
            return False
        pairs = zip(_captured(one), _captured(other), strict=True)
        return all(same(a, b, depth + 1) for a, b in pairs)
    if isinstance(one, np.ndarray | jax.Array) and isinstance(other, np.ndarray | jax.Array):
        return one.shape == other.shape and one.dtype == other.dtype and bool((np.asarray(one) == other).all())
    leaves, others = jax.tree.leaves(one), jax.tree.leaves(other)
    if len(leaves) == 1 and leaves[0] is one:
        return _equal(one, other)
    return same_structure(one, other) and all(same(a, b, depth + 1) for a, b in zip(leaves, others, strict=True))


def as_lanes(functions: Sequence[Any], depth: int = 0) -> list[Any]:
    """The functions of all lanes with what they captured as leaves, where they have the same code; else as they are."""
    first = functions[0]
    if all(each is first for each in functions) or depth > DEEPEST:
        return list(functions)
    if not all(isinstance(each, FunctionType) and _same_code(first, each) for each in functions):
        return [_with_arrays(each) for each in functions]
    cells, defaults, named = (
        _columns([part(each) for each in functions], depth) for part in (_cells, _defaults, _named)
    )
    return [
        Captured(
            tuple(values), tuple(plain) or None, dict(zip(first.__kwdefaults__ or {}, keywords, strict=True)), first
        )
        for values, plain, keywords in zip(cells, defaults, named, strict=True)
    ]


def _columns(lanes: Sequence[Sequence[Any]], depth: int) -> list[list[Any]]:
    """Value by value, as lanes; then lane by lane again."""
    columns = [_numbers(as_lanes(column, depth + 1)) for column in zip(*lanes, strict=True)]
    return [[column[lane] for column in columns] for lane in range(len(lanes))]


def _numbers(column: list[Any]) -> list[Any]:
    """Numbers that differ between lanes become arrays; others stay what a program is compiled for."""
    floats = all(isinstance(each, float) for each in column)
    return [jnp.asarray(each) for each in column] if floats and len(set(column)) > 1 else column


def _with_arrays(value: Any) -> Any:
    return jax.tree.map(lambda leaf: jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf, value)


def _same_code(one: FunctionType, other: FunctionType) -> bool:
    return one.__code__ == other.__code__ and one.__globals__ is other.__globals__


def _captured(function: FunctionType) -> list[Any]:
    return [*_cells(function), *_defaults(function), *_named(function)]


def _cells(function: FunctionType) -> list[Any]:
    found = []
    for cell in function.__closure__ or ():
        try:
            found.append(cell.cell_contents)
        except ValueError:  # nothing was put into it yet
            found.append(None)
    return found


def _defaults(function: FunctionType) -> Sequence[Any]:
    return function.__defaults__ or ()


def _named(function: FunctionType) -> Sequence[Any]:
    named: Mapping[str, Any] = function.__kwdefaults__ or {}
    return list(named.values())


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # of things that cannot be compared nobody knows
        return False
