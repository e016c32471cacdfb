"""Where a problem comes from: a module of one's own, or the settings of a task."""

import dataclasses
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rookery.engines.flower.site import Site, from_memory
from rookery.experiment.settings import read_settings
from rookery.problem.problems import Problem


def from_settings(path: Path) -> Site:
    """The task of a run's settings (its ``config.toml``); a client's data are its part of the task's split."""
    settings = dataclasses.replace(read_settings(path), seeds=1)
    task = settings.make_tasks()[0]
    site = from_memory(task.problem, task.clients, task.x0, task.y0)
    server = task.clients.server
    load_server = None if server is None else lambda: server.data
    return dataclasses.replace(site, load_server=load_server, evaluate=task.evaluate)


def from_module(name: str) -> Site:
    """The problem that a module defines; ``name`` is ``package.module`` or the path of a Python file."""
    module = _import(name)

    def get(attribute: str) -> Any:
        if not hasattr(module, attribute):
            raise ValueError(f"the problem module {name} must define {attribute}")
        return getattr(module, attribute)

    problem, n = get("problem"), get("num_clients")
    if not isinstance(problem, Problem):
        raise TypeError(f"{name}: problem must be rk.Bilevel, rk.Minimax or rk.ClientWeighting, got {problem!r}")
    if not isinstance(n, int) or n < 1:
        raise ValueError(f"{name}: num_clients must be a whole number of at least 1, got {n!r}")
    optional = ("load_server", "weights", "evaluate")
    more = {each: getattr(module, each) for each in optional if hasattr(module, each)}
    own = getattr(module, "algorithms", {})
    return Site(problem, getattr(module, "x0", None), get("y0"), n, get("load_client"), algorithms=own, **more)


def open_site(name: str) -> Site:
    """A module, a Python file, or a TOML file of settings."""
    return from_settings(Path(name)) if name.endswith(".toml") else from_module(name)


def _import(name: str) -> ModuleType:
    if not name.endswith(".py"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and not name.startswith(error.name):
                raise
            raise ValueError(f"there is no module {name}: give package.module or the path of a .py file") from None
    path = Path(name).resolve()
    if not path.is_file():
        raise ValueError(f"there is no file {name}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module
