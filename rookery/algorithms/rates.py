"""An algorithm by its name and numbers, as TOML files and messages tell it."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import equinox as eqx

from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.registry import name_of
from rookery.names import unknown
from rookery.problem import schedules


def tell_algorithm(algorithm: Algorithm) -> dict[str, Any]:
    """What somebody else needs to make the same algorithm: its name, and its rates and options as JSON can hold them."""
    values = {f.name: getattr(algorithm, f.name) for f in dataclasses.fields(algorithm)}
    rates = {name: plain(value) for name, value in values.items() if value is not None}
    return {"name": name_of(type(algorithm)), "rates": rates}


def make_algorithm(kind: type[Algorithm], rates: Mapping[str, Any]) -> Algorithm:
    """An algorithm with these rates and options, as TOML and JSON have them."""
    name, fields = name_of(kind), {f.name: f for f in dataclasses.fields(kind)}
    check_names(rates, set(fields), f"[algorithm] {name}")
    return kind(**{key: _rate(fields[key], value, f"{name}.{key}") for key, value in rates.items()})


SCHEDULES: dict[str, Any] = {"Power": schedules.Power, "Cosine": schedules.Cosine}


def _rate(field: Any, value: Any, name: str) -> Any:
    if isinstance(value, Mapping):
        kind = SCHEDULES.get(str(value.get("schedule")))
        if kind is None:
            raise ValueError(f"{name}.schedule must be one of {', '.join(SCHEDULES)}, got {value.get('schedule')!r}")
        numbers = {key: each for key, each in value.items() if key != "schedule"}
        check_names(numbers, {f.name for f in dataclasses.fields(kind)}, f"{name}: {kind.__name__}")
        try:
            return kind(**{key: float(each) for key, each in numbers.items()})
        except TypeError as error:
            raise ValueError(f"{name}: {error}") from None
    if isinstance(value, schedules.Schedule) or value is None:
        return value
    if field.metadata.get("static"):
        return as_kind_of(field.default, value, name)
    if isinstance(value, list | tuple):
        if not all(isinstance(each, int | float) and not isinstance(each, bool) for each in value):
            raise ValueError(f"{name} must be a number or a list of numbers, got {value!r}")
        return tuple(float(each) for each in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number or a schedule, got {value!r}")
    return float(value)


def as_kind_of(default: Any, value: Any, name: str) -> Any:
    """The value, if it is of the kind of the default."""
    kinds: dict[Any, Any] = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}
    wanted = kinds.get(type(default))
    if wanted is None:
        return tuple(value) if isinstance(value, list) else value
    if not isinstance(value, wanted) or (bool not in wanted and isinstance(value, bool)):
        raise ValueError(f"{name} must be {_article(type(default))}, got {value!r}")
    return float(value) if isinstance(default, float) else value


def _article(kind: type) -> str:
    return {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}[kind]


def check_names(given: Mapping[str, Any], known: set[str], where: str) -> None:
    """Raises where a name is not known; ``where`` says in which table it stood."""
    for name in given:
        if name not in known:
            raise ValueError(f"{where}: {unknown(name, sorted(known))}")


def plain(value: Any) -> Any:
    """A value that TOML can hold."""
    if value is None:
        return "all"
    if isinstance(value, schedules.Schedule):
        fields = {f.name: float(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"schedule": type(value).__name__, **fields}
    if isinstance(value, tuple):
        return [plain(each) for each in value]
    if eqx.is_array(value):
        return value.tolist()
    return value
