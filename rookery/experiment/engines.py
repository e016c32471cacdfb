"""Which engine made a run, as its folder tells it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery.engines.base import Engine
from rookery.engines.flower.engine import Flower
from rookery.engines.simulator import Simulator

ENGINES: dict[str, type[Engine]] = {"simulator": Simulator, "flower": Flower}
"""Those that a folder can name: a file that comes from somebody else must not choose what code is run."""


def engine_table(engine: Engine) -> dict[str, Any]:
    """The engine's name and options, as TOML can hold them."""
    kind = type(engine)
    name = next((name for name, each in ENGINES.items() if each is kind), kind.__qualname__)
    told: dict[str, Any] = {"name": name}
    options: Any = dataclasses.fields(engine) if dataclasses.is_dataclass(engine) else ()
    for field in options:
        value = getattr(engine, field.name)
        if isinstance(value, bool | int | float | str | Path):
            told[field.name] = str(value) if isinstance(value, Path) else value
    return told


def engine_of(table: Mapping[str, Any] | None) -> Engine | None:
    """The engine of a folder's table; None if it has none."""
    if table is None:
        return None
    options = dict(table)
    name = options.pop("name", None)
    if name not in ENGINES:
        raise ValueError(
            f"this run was made with the engine {name!r}, which is not Rookery's: resume it with that engine"
        )
    return ENGINES[name](**options)
