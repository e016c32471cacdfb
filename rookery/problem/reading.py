"""What a loss reads, found in its traced program without computing the loss."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, jaxpr_as_fun

Lazy = Callable[[], Any]
"""A value that is computed when it is asked for; None if it depends on what is not known."""


class Read(NamedTuple):
    """A place that is not there."""

    place: int
    length: int
    clamped: bool
    """Whether the program itself asks for the nearest place that is there."""

    def __str__(self) -> str:
        return f"place {self.place} of an axis of length {self.length}"


def depends_on(closed: Any, number: int) -> bool:
    """Whether the results need the argument of this number. A call is taken to need all that it is given."""
    jaxpr = closed.jaxpr
    needed = {var for var in jaxpr.outvars if not isinstance(var, Literal)}
    for eqn in reversed(jaxpr.eqns):
        if not needed.isdisjoint(eqn.outvars):
            needed |= {var for var in eqn.invars if not isinstance(var, Literal)}
    return jaxpr.invars[number] in needed


def out_of_range(closed: Any, arguments: list[Any]) -> Iterator[Read]:
    """Reads beyond the end of an axis, for these values of the arguments (functions that give them, None: not known).

    Only what the indices themselves are made of is computed. Reads inside loops, and those that ask for something else
    to be put in place of what is not there, are left out.
    """
    return _reads(closed.jaxpr, closed.consts, [each or _unknown for each in arguments])


def _unknown() -> None:
    return None


def _reads(jaxpr: Any, consts: Any, arguments: list[Lazy]) -> Iterator[Read]:
    value = _values(jaxpr, consts, arguments)
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "gather":
            yield from _gathered(eqn, value)
        elif eqn.primitive.name == "dynamic_slice":
            yield from _sliced(eqn, value)
        elif (inner := _called(eqn)) is not None:
            yield from _reads(*inner, [partial(value, var) for var in eqn.invars])


def _values(jaxpr: Any, consts: Any, arguments: list[Lazy]) -> Callable[[Any], Any]:
    """A function that computes a variable of the program, and what it is made of, once."""
    lazy = dict(zip(jaxpr.invars, arguments, strict=True))
    known: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    made_by = {var: eqn for eqn in jaxpr.eqns for var in eqn.outvars}

    def value(var: Any) -> Any:
        if isinstance(var, Literal):
            return var.val
        if var not in known:
            known.update({var: lazy[var]()} if var in lazy else computed(made_by[var]))
        return known[var]

    def computed(eqn: Any) -> dict[Any, Any]:
        needed = list(dict.fromkeys(var for var in eqn.invars if not isinstance(var, Literal)))
        inputs = [value(var) for var in needed]
        if any(each is None for each in inputs):
            return dict.fromkeys(eqn.outvars)
        alone = ClosedJaxpr(Jaxpr((), needed, eqn.outvars, [eqn], eqn.effects, jaxpr.debug_info), ())
        try:
            results = jaxpr_as_fun(alone)(*inputs)
        except Exception:  # an operation that cannot be had alone: a check must not stop what would work
            return dict.fromkeys(eqn.outvars)
        return dict(zip(eqn.outvars, results, strict=True))

    return value


def _called(eqn: Any) -> tuple[Any, Any] | None:
    """The program that an equation calls with its own arguments, and that program's constants."""
    for inner in eqn.params.values():
        jaxpr, consts = (inner.jaxpr, inner.consts) if isinstance(inner, ClosedJaxpr) else (inner, ())
        if isinstance(jaxpr, Jaxpr) and _shapes(jaxpr.invars) == _shapes(eqn.invars):
            return jaxpr, consts
    return None


def _shapes(variables: Any) -> list[Any]:
    return [(getattr(var.aval, "shape", None), getattr(var.aval, "dtype", None)) for var in variables]


def _gathered(eqn: Any, value: Callable[[Any], Any]) -> Iterator[Read]:
    mode = str(eqn.params["mode"])
    if "FILL" in mode:
        return
    operand, indices = eqn.invars
    places = value(indices)
    if places is not None:
        for column, axis in enumerate(eqn.params["dimension_numbers"].start_index_map):
            one = np.asarray(places)[..., column]
            yield from _beyond(one, operand.aval.shape[axis], eqn.params["slice_sizes"][axis], "CLIP" in mode)


def _sliced(eqn: Any, value: Callable[[Any], Any]) -> Iterator[Read]:
    operand, *starts = eqn.invars
    for axis, start in enumerate(starts[: operand.aval.ndim]):
        place = value(start)
        if place is not None:
            yield from _beyond(np.asarray(place), operand.aval.shape[axis], eqn.params["slice_sizes"][axis], False)


def _beyond(places: np.ndarray, length: int, size: int, clamped: bool) -> Iterator[Read]:
    if not places.size:
        return
    if places.max() + size > length:
        yield Read(int(places.max()) + size - 1, length, clamped)
    elif places.min() < 0:
        yield Read(int(places.min()), length, clamped)
