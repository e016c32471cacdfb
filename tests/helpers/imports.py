"""Reads what modules of a package import, and what is wrong with it, from their sources alone.

All imports count: those inside functions and those under ``TYPE_CHECKING`` as well.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Use:
    """Of one import: the module that it reaches, the names that it takes from there, and its line."""

    module: str
    names: tuple[str, ...]
    line: int
    private: tuple[str, ...] = field(default=())
    """Attributes with a leading underscore that are read from the module."""


class House:
    """The modules of a package by their full names (a package's ``__init__`` by the package's), and its rooms.

    ``floors`` are the rooms from top to bottom, those of a floor side by side. A room is the part of a module's name after
    the package's, and a module on no floor belongs to none.
    """

    def __init__(self, package: str, sources: Mapping[str, str], floors: Sequence[Sequence[str]]):
        self.package = package
        self.sources = dict(sources)
        self.trees = {name: ast.parse(source) for name, source in sources.items()}
        self.floor = {room: number for number, rooms in enumerate(floors) for room in rooms}
        self.bottom = set(floors[-1])
        self.packages = {name for name in sources if any(other.startswith(name + ".") for other in sources)}
        self.uses = {name: list(self._uses(name)) for name in sources}

    def room(self, module: str) -> str:
        """The room of a module. Those on the lowest floor are one."""
        name = module.split(".")[1] if "." in module else ""
        return "basics" if name in self.bottom else name

    def without_a_room(self) -> list[str]:
        """Modules that lie on no floor."""
        names = {name.split(".")[1] for name in self.sources if "." in name} - {"__main__"}
        return sorted(names - set(self.floor))

    def upward(self) -> list[str]:
        """Imports from a room that is not below. The package itself and ``__main__`` are above all."""
        found = []
        for name, uses in self.uses.items():
            if self._level(name) < 0:
                continue
            for use in uses:
                if self.room(use.module) != self.room(name) and self._level(use.module) <= self._level(name):
                    found.append(f"{name}:{use.line} imports {use.module}, which is not below it")
        return found

    def private(self) -> list[str]:
        """Private names of one room that are used in another."""
        found = []
        for name, uses in self.uses.items():
            for use in uses:
                if self.room(use.module) == self.room(name):
                    continue
                taken = [each for each in use.names if _is_private(each)] + list(use.private)
                taken += [
                    part for part in use.module.split(".") if _is_private(part) and not self._beside(name, use.module)
                ]
                found += [f"{name}:{use.line} uses {use.module}.{each}" for each in taken]
        return found

    def cycles(self) -> list[str]:
        """Modules of one room that import each other, the shortest way round for each module."""
        found = {}
        for start in self.uses:
            way = self._way_back(start)
            if way is not None:
                first = way.index(min(way))
                way = way[first:] + way[:first]
                found[tuple(way)] = " -> ".join([*way, way[0]])
        return sorted(found.values())

    def _way_back(self, start: str) -> list[str] | None:
        ways, seen = [[start]], {start}
        while ways:
            way = ways.pop(0)
            for use in self.uses[way[-1]]:
                if use.module == start:
                    return way
                if use.module in self.uses and use.module not in seen and self.room(use.module) == self.room(start):
                    seen.add(use.module)
                    ways.append([*way, use.module])
        return None

    def missing(self) -> list[str]:
        """Modules of the package that are imported, or named in a string to be started, and are not there."""
        found = []
        for name, uses in self.uses.items():
            found += [f"{name}:{use.line} imports {use.module}" for use in uses if use.module not in self.sources]
            for node in ast.walk(self.trees[name]):
                if isinstance(node, ast.List):  # a command's words
                    line = " ".join(str(each.value) if isinstance(each, ast.Constant) else "?" for each in node.elts)
                    found += [f"{name}:{node.lineno} names {each}" for each in self.missing_in(line)]
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found += [f"{name}:{node.lineno} names {each}" for each in self.missing_in(node.value)]
        return found

    def missing_in(self, text: str) -> list[str]:
        """Modules that this text starts (``-m package.module`` or ``package.module:function``) and that are not there."""
        named = re.findall(rf"-m ({self.package}(?:\.\w+)*)|\b({self.package}(?:\.\w+)+):\w", text)
        return [each for pair in named for each in pair if each and each not in self.sources]

    def _level(self, module: str) -> int:
        return self.floor.get(module.split(".")[1] if "." in module else "", -1)

    def _beside(self, one: str, other: str) -> bool:
        """Whether a module lies in the folder of another."""
        folder = one if one in self.packages else one.rpartition(".")[0]
        return other.rpartition(".")[0] == folder

    def _uses(self, name: str) -> Iterator[Use]:
        tree = self.trees[name]
        bound: dict[str, tuple[str, int]] = {}  # what a name in this module means, if it is a module
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == self.package:
                        yield Use(alias.name, (), node.lineno)
                        if alias.asname:
                            bound[alias.asname] = alias.name, node.lineno
            elif isinstance(node, ast.ImportFrom):
                base = self._base(name, node)
                if base.split(".")[0] != self.package:
                    continue
                names = [alias.name for alias in node.names if f"{base}.{alias.name}" not in self.sources]
                if names or not node.names:
                    yield Use(base, tuple(names), node.lineno)
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    if inner in self.sources:
                        yield Use(inner, (), node.lineno)
                        bound[alias.asname or alias.name] = inner, node.lineno
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and _is_private(node.attr):
                owner = ast.unparse(node.value)
                if owner in bound:
                    yield Use(bound[owner][0], (), node.lineno, (node.attr,))
                elif owner in self.sources:
                    yield Use(owner, (), node.lineno, (node.attr,))

    def _base(self, name: str, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parts = name.split(".") if name in self.packages else name.split(".")[:-1]
        parts = parts[: len(parts) - node.level + 1]
        return ".".join([*parts, *([node.module] if node.module else [])])


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def renames(tree: ast.AST) -> list[int]:
    """The lines that put one file in the place of another."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = ast.unparse(node.func.value)
        moved = node.func.attr in ("rename", "renames") or f"{owner}.{node.func.attr}" in ("os.replace", "shutil.move")
        of_path = node.func.attr == "replace" and len(node.args) == 1 and not node.keywords  # a string's has two
        if moved or of_path:
            found.append(node.lineno)
    return found
