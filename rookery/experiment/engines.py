"""Which engine made a run, as its folder tells it."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery.aggregation.secure.options import SecureSum
from rookery.engines.base import Engine
from rookery.engines.flower.engine import Flower
from rookery.engines.simulator import Simulator

ENGINES: dict[str, type[Engine]] = {"simulator": Simulator, "flower": Flower}
"""Those that a folder can name: a file that comes from somebody else must not choose what code is run."""


def engine_table(engine: Engine) -> dict[str, Any]:
    """The engine's name and options, as TOML can hold them."""
    options: dict[str, Any] = {}
    fields: Any = dataclasses.fields(engine) if dataclasses.is_dataclass(engine) else ()
    for field in fields:
        value = getattr(engine, field.name)
        if isinstance(value, bool | int | float | str | Path) and field.metadata.get("stored", True):
            options[field.name] = str(value) if isinstance(value, Path) else value
        elif isinstance(value, SecureSum):
            options[field.name] = dataclasses.asdict(value)
    return {"name": engine_name(engine), "options": options}


def engine_name(engine: Engine) -> str:
    """Its name in :data:`ENGINES`; of one that is not Rookery's, the place of its class."""
    kind = type(engine)
    return next((name for name, each in ENGINES.items() if each is kind), f"{kind.__module__}.{kind.__qualname__}")


def engine_of(table: Mapping[str, Any] | None) -> Engine | None:
    """The engine of a folder's table; None if it has none."""
    if table is None:
        return None
    name = str(table.get("name"))
    if name not in ENGINES:
        raise ValueError(
            f"this run was made with the engine {name}, which is not Rookery's: resume it with that engine"
        )
    return ENGINES[name](**table.get("options", {}))


def check_same(engine: Engine, table: Mapping[str, Any] | None) -> None:
    """What one engine remembers is nothing to another."""
    made = "simulator" if table is None else str(table.get("name"))
    if engine_name(engine) != made:
        raise ValueError(f"engine must be that of the run ({made}), got {engine_name(engine)}")
