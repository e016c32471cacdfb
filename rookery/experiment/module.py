"""Modules that define a problem: how one is found and run, and what its options are."""

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from rookery.experiment.definition import Definition, Misdefined, read_definition
from rookery.modules import find_file, line_in, run_file, split_name

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
            self._names = run_file(place, file, origin, content)
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
    found = find_file(place)
    if found is None:
        if "." not in place and place == name:
            return None  # a task, misspelt
        raise ValueError(f"there is no module {place}: give package.module or the path of a .py file")
    return load_module(name, found, found, found.read_bytes())


@lru_cache(maxsize=4)
def load_module(name: str, file: Path, origin: Path, content: bytes) -> Module:
    """The module with this content, run once."""
    return Module(name, file, origin, content)


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
        where = line_in(error, module.file)
        text = " ".join(str(error).split())
        raise ValueError(f"{module.name}{where}: {doing} failed: {type(error).__name__}: {text}") from error


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(_is_plain(each) and each is not None for each in value)
    return value is None or isinstance(value, bool | int | float | str)
