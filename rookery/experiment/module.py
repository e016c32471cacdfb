"""Modules that define a problem: how one is found and run, and what its options are."""

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from rookery.experiment.definition import Definition, Misdefined, read_definition

TOLD = ("seed", "held_out")
"""Parameters of ``make`` that a run sets itself; they are no options."""


class Module:
    """A problem module that was run: the names it defined, and the file that defined them.

    ``name`` is as the user gave it, ``origin`` where the module was when it was first named: what it imports, and what it
    opens beside itself, is looked for there.
    """

    def __init__(self, name: str, file: Path, origin: Path, content: bytes):
        self.name, self.file, self.origin, self.content = name, file, origin, content
        place, self.attribute = split_name(name)
        self.sha256 = hashlib.sha256(content).hexdigest()
        stem = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
        self.title = f"{stem}:{self.attribute}" if self.attribute else stem
        with telling(self, "importing it"):
            self._names = _run(place, file, origin, content)
        self._made: tuple[Any, Definition] | None = None
        self._chosen = self._choose()
        _ = self.options  # raises if one cannot be

    @property
    def summary(self) -> str:
        """The first line of its docstring, or of its function's."""
        text = inspect.getdoc(self._chosen) if callable(self._chosen) else self._names.get("__doc__")
        text = text or self._names.get("__doc__") or "a problem of one's own"
        return str(text).strip().partition("\n")[0]

    @cached_property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options of ``make``, with their defaults; none of a module without one."""
        if not callable(self._chosen):
            return {}
        found = {}
        for name, parameter in inspect.signature(self._chosen).parameters.items():
            if name in TOLD:
                continue
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise Misdefined(f"{self.name}: {self._function} must name its options, got {parameter}")
            if parameter.default is parameter.empty:
                raise Misdefined(f"{self.name}: {self._function} must have a default for its option {name}")
            if not _is_plain(parameter.default):
                raise Misdefined(
                    f"{self.name}: {self._function}: the default of {name} must be a number, a word, True, False, None "
                    f"or a list of those, got a {type(parameter.default).__name__}"
                )
            found[name] = parameter
        return found

    def asks_for(self, name: str) -> bool:
        """Whether ``make`` is told the seed, or whether data are to be held out."""
        return callable(self._chosen) and name in inspect.signature(self._chosen).parameters

    def define(self, options: Mapping[str, Any], seed: int, held_out: bool) -> Definition:
        """What the module defines with these options."""
        if not callable(self._chosen):
            with telling(self, "reading it"):
                return read_definition(self._chosen, strict=bool(self.attribute))
        named = inspect.signature(self._chosen).parameters
        told = {name: value for name, value in zip(TOLD, (seed, held_out), strict=True) if name in named}
        asked = repr(sorted({**options, **told}.items()))
        if self._made is None or self._made[0] != asked:  # settings are resolved first, then the same is run
            with telling(self, self._function):
                made = self._chosen(**options, **told)
                if not isinstance(made, Mapping):
                    raise Misdefined(f"{self._function} must return a dictionary, got a {type(made).__name__}")
                self._made = asked, read_definition(made, strict=True)
        return self._made[1]

    @property
    def _function(self) -> str:
        return self.attribute or "make"

    def _choose(self) -> Callable[..., Any] | Mapping[str, Any]:
        """The function that makes the problem, or the names that define it."""
        if self.attribute:
            if self.attribute not in self._names:
                raise Misdefined(f"{self.name}: the module does not define {self.attribute}")
            chosen = self._names[self.attribute]
            if not isinstance(chosen, Mapping) and not callable(chosen):
                raise Misdefined(f"{self.name}: {self.attribute} must be a function or a dictionary, got {chosen!r}")
            return chosen  # type: ignore[no-any-return]
        make = self._names.get("make")
        if callable(make) and "problem" in self._names:
            raise Misdefined(
                f"{self.name} defines both problem and make: remove one of them, or choose with {self.name}:make"
            )
        if callable(make):
            return make  # type: ignore[no-any-return]
        if "problem" not in self._names:
            raise Misdefined(f"{self.name} must define problem (with y0, and x0 and clients), or a function make(...)")
        return self._names


def find_module(name: str) -> Module | None:
    """The module of this name (``file.py``, ``package.module``, either with ``:name``); None if it is no such name."""
    place, _ = split_name(name)
    if place.endswith(".py"):
        file = Path(place).resolve()
        if not file.is_file():
            raise ValueError(f"there is no file {place}")
        return load_module(name, file, file, file.read_bytes())
    if not all(part.isidentifier() for part in place.split(".")):
        return None
    with _also_from(Path.cwd()):
        found = _find(place)
    if found is None:
        if "." not in place and place == name:
            return None  # a task, misspelt
        raise ValueError(f"there is no module {place}: give package.module or the path of a .py file")
    return load_module(name, found, found, found.read_bytes())


def _find(place: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(place)
    except (ModuleNotFoundError, ValueError):  # a package on the way is not there, or is none
        return None
    except Exception as error:
        raise ValueError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error
    if spec is None or spec.origin is None or not spec.has_location:
        return None
    return Path(spec.origin)


@lru_cache(maxsize=4)
def load_module(name: str, file: Path, origin: Path, content: bytes) -> Module:
    """The module with this content, run once."""
    return Module(name, file, origin, content)


def split_name(name: str) -> tuple[str, str]:
    """A module's name and what was chosen in it: ``a.py:b`` is ("a.py", "b")."""
    place, colon, attribute = name.rpartition(":")
    chosen = colon and attribute.isidentifier() and len(place) > 1
    return (place, attribute) if chosen else (name, "")


def _run(place: str, file: Path, origin: Path, content: bytes) -> dict[str, Any]:
    """The names that the module defines."""
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


@contextmanager
def telling(module: Module, doing: str) -> Iterator[None]:
    """What goes wrong in a module's own code is told in one line: the module, the error and where it was."""
    try:
        yield
    except Misdefined as error:
        if str(error).startswith(module.name):
            raise
        raise Misdefined(f"{module.name}: {error}") from None
    except (Exception, SystemExit) as error:
        where = _line(error, module.file)
        text = " ".join(str(error).split())
        raise ValueError(f"{module.name}{where}: {doing} failed: {type(error).__name__}: {text}") from error


def _line(error: BaseException, file: Path) -> str:
    """Where in the file it was, as ", line 3"; nothing if it was not there."""
    if isinstance(error, SyntaxError) and error.filename and Path(error.filename) == file:
        return f", line {error.lineno}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename) == file]
    return f", line {frames[-1].lineno}" if frames else ""


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(each) and each is not None for each in value)
    return value is None or isinstance(value, bool | int | float | str)
