"""What of a network never moves: functions, numbers that are not learned. Comparable, so that programs are compiled once."""

import dataclasses
from collections.abc import Iterator
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import jax
import numpy as np


class Fixed:
    """A value as a static part of a module, equal to another if it does the same.

    A function that is made anew by each call of the function around it equals its twin; Python says that it does not.
    """

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and _same(self.value, other.value, set())

    def __hash__(self) -> int:
        return hash(tuple(_mark(leaf) for leaf in jax.tree.leaves(self.value)))


def _same(one: Any, other: Any, begun: set[tuple[int, int]]) -> bool:
    """Whether two values are equal; of functions, whether they have the same code and captured the same."""
    if one is other or (id(one), id(other)) in begun:  # a function may capture itself
        return True
    if type(one) is not type(other):
        return False
    begun.add((id(one), id(other)))
    if isinstance(one, np.ndarray | jax.Array):
        return _mark(one) == _mark(other) and bool((np.asarray(one) == np.asarray(other)).all())
    parts = list(_parts(one)), list(_parts(other))
    if parts[0]:
        return len(parts[0]) == len(parts[1]) and all(_same(a, b, begun) for a, b in zip(*parts, strict=True))
    leaves, structure = _flatten(one)
    if len(leaves) == 1 and leaves[0] is one:
        return _equal(one, other)
    others, its_structure = _flatten(other)
    return bool(structure == its_structure) and all(_same(a, b, begun) for a, b in zip(leaves, others, strict=True))


def _flatten(value: Any) -> tuple[list[Any], Any]:
    return jax.tree.flatten(value)


def _parts(value: Any) -> Iterator[Any]:
    """What makes a function, or an object with fields, what it is."""
    if isinstance(value, FunctionType):
        yield value.__code__
        yield id(value.__globals__)
        yield [_content(cell) for cell in value.__closure__ or ()]
        yield value.__defaults__
        yield value.__kwdefaults__
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, partial):
        yield from (value.func, value.args, value.keywords)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield type(value)
        yield from (getattr(value, field.name, None) for field in dataclasses.fields(value) if field.compare)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was put into it yet
        return None


def _mark(leaf: Any) -> Any:
    """What equal leaves have in common, quickly."""
    if isinstance(leaf, np.ndarray | jax.Array):
        return leaf.shape, str(leaf.dtype)
    return leaf.__code__ if isinstance(leaf, FunctionType) else type(leaf)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # of things that cannot be compared nobody knows
        return False
