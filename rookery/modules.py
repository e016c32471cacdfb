"""Python files of a user's own: how one is found by name, and run."""

import hashlib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


def split_name(name: str) -> tuple[str, str]:
    """A module's name and what was chosen in it: ``a.py:b`` is ("a.py", "b")."""
    place, colon, attribute = name.rpartition(":")
    chosen = colon and attribute.isidentifier() and len(place) > 1
    return (place, attribute) if chosen else (name, "")


def find_file(place: str) -> Path | None:
    """The file of a module that can be imported by this name, also from the working folder; None if there is none."""
    try:
        with _also_from(Path.cwd()):
            spec = importlib.util.find_spec(place)
    except (ModuleNotFoundError, ValueError):  # a package on the way is not there, or is none
        return None
    except Exception as error:
        raise ValueError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    return Path(spec.origin)


def run_file(place: str, file: Path, origin: Path, content: bytes) -> dict[str, Any]:
    """The names that a module defines: ``content`` is what is run.

    ``place`` is its name, ``file`` where the content was read and ``origin`` where the module was when it was first named:
    what it imports is looked for there. A module that is imported by name is run once, as Python does.
    """
    dotted = not place.endswith(".py")
    if dotted and file == origin:
        with _also_from(Path.cwd()):
            return vars(importlib.import_module(place))
    code = compile(content, str(file), "exec")
    unique = f"{origin.stem}_{hashlib.sha256(content + bytes(origin)).hexdigest()[:8]}"
    module = ModuleType(unique)
    module.__file__ = str(origin)
    module.__package__ = place.rpartition(".")[0] if dotted else ""
    sys.modules[unique] = module  # dataclasses look there for what annotations name
    try:
        with _also_from(origin.parent, Path.cwd() if dotted else origin.parent):
            exec(code, vars(module))
    except BaseException:
        del sys.modules[unique]
        raise
    return vars(module)


@contextmanager
def _also_from(*folders: Path) -> Iterator[None]:
    """Modules are imported from these folders too."""
    added = [str(folder) for folder in folders]
    sys.path[:0] = added
    try:
        yield
    finally:
        for each in added:
            sys.path.remove(each)
            if each not in sys.path:
                sys.path.append(each)  # for what a function imports when it is called


def line_in(error: BaseException, file: Path) -> str:
    """Where in the file it was, as ", line 3"; nothing if it was not there."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename) == file:
        return f", line {error.lineno}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename) == file]
    return f", line {frames[-1].lineno}" if frames else ""
