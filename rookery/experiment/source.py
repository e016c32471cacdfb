"""Where a problem comes from: a task of the package, or a module of one's own. Runs do not care which."""

import dataclasses
import hashlib
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.rates import check_names
from rookery.algorithms.registry import by_name, check_solves, problem_class, registry
from rookery.datasets import Dataset, OwnFile, load, load_mini_imagenet, load_omniglot
from rookery.engines.flower.site import Site, from_memory
from rookery.experiment.captured import as_lanes, same
from rookery.experiment.definition import Definition
from rookery.experiment.module import Module, find_module, load_module, telling
from rookery.names import unknown
from rookery.solving.lanes import stack_different
from rookery.tasks import RECIPES, Defaults, Recipe, Task

OWN = "own"
"""The data set of a module, where one is shown."""
COPY = "problem.py"
"""The copy of a module in the folder of a run."""
_BY_CLASS: dict[str, Callable[[], Any]] = {"omniglot": load_omniglot, "mini-imagenet": load_mini_imagenet}
"""Data sets with classes for validation that are no test data: nothing need be held out of them."""


class Source(ABC):
    """A problem by name: its options, the defaults of a run, and how it is made."""

    name: str
    """As the user gives it, and as a run's settings have it."""
    title: str
    """As tables and pages show it."""
    summary: str
    datasets: tuple[str, ...]
    """Those that it can be made of; the first is the default."""

    @property
    @abstractmethod
    def options(self) -> Mapping[str, inspect.Parameter]:
        """What ``--set`` reaches, with defaults."""

    @abstractmethod
    def default_options(self, dataset: str) -> dict[str, Any]:
        """The options' values on a data set."""

    @abstractmethod
    def defaults(self, dataset: str, options: Mapping[str, Any], seed: int, held_out: bool) -> Defaults:
        """Settings of a run."""

    @abstractmethod
    def make(
        self, dataset: str, clients: int, seeds: Sequence[int], held_out: bool, options: Mapping[str, Any]
    ) -> list[Task]:
        """A task for each seed. With ``held_out`` none of them knows the test data."""

    @abstractmethod
    def site(self, dataset: str, clients: int, seed: int, held_out: bool, options: Mapping[str, Any]) -> Site:
        """The problem as a node knows it."""

    def check(self, algorithm: Algorithm, options: Mapping[str, Any], seed: int, held_out: bool) -> None:  # noqa: B027
        """Raises where it can be seen at once that the algorithm is not one for this problem."""

    def algorithm(self, name: str) -> type[Algorithm]:
        """The algorithm of this name."""
        return by_name(name)

    @property
    def fixed_clients(self) -> bool:
        """Whether nobody else can say how many clients there are."""
        return False

    def data_table(self) -> dict[str, Any] | None:
        """What a run's settings say about data of one's own."""
        return None

    def table(self) -> dict[str, Any] | None:
        """What a run's folder must know to find it again; None of a task, whose name is enough."""
        return None

    def copy(self) -> bytes | None:
        """What a run's folder keeps of it."""
        return None


class OfTask(Source):
    """A task of the package, on a data set that it knows or on data of one's own."""

    def __init__(self, recipe: Recipe, own: OwnFile | None = None):
        self.recipe, self.own = recipe, own
        self.name = self.title = recipe.name
        self.summary = recipe.summary
        if own is not None and recipe.own is None:
            raise ValueError(f"--data: {recipe.name} takes no data of your own")
        self.datasets = tuple(recipe.defaults) if own is None else (Path(own.file).name,)

    @cached_property
    def _data(self) -> Dataset:
        assert self.own is not None
        return self.own.read()

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """Those of the recipe."""
        return self.recipe.options

    @property
    def fixed_clients(self) -> bool:
        """Whether the data say who the clients are."""
        return self.own is not None and self._data.client_names is not None

    def default_options(self, dataset: str) -> dict[str, Any]:
        """Those of the recipe, and what it says for the data set."""
        if self.own is not None:
            return self.recipe.options_of_own()
        plain = {name: p.default for name, p in self.options.items() if p.default is not p.empty}
        return plain | dict(self.recipe.defaults[dataset].options)

    def defaults(self, dataset: str, options: Mapping[str, Any], seed: int, held_out: bool) -> Defaults:
        """Those of the recipe; the clients are those of the data where they say who they are."""
        if self.own is None:
            return self.recipe.defaults[dataset]
        assert self.recipe.own is not None
        names = self._data.client_names
        return self.recipe.own if names is None else replace(self.recipe.own, clients=len(names))

    def make(
        self, dataset: str, clients: int, seeds: Sequence[int], held_out: bool, options: Mapping[str, Any]
    ) -> list[Task]:
        """From data that are loaded once."""
        data: Any = None
        if self.own is not None:
            data = self.recipe.without_test(self._data) if held_out else self._data
        elif dataset in _BY_CLASS:
            data = _BY_CLASS[dataset]()
        elif dataset != "synthetic":
            data = load(dataset)
            data = data.held_out() if held_out else data
        return [self.recipe.make(data, clients=clients, seed=seed, **options) for seed in seeds]

    def site(self, dataset: str, clients: int, seed: int, held_out: bool, options: Mapping[str, Any]) -> Site:
        """A client's data are its part of the task's split."""
        task = self.make(dataset, clients, [seed], held_out, options)[0]
        site = from_memory(task.problem, task.clients, task.x0, task.y0)
        server = task.clients.server
        load_server = None if server is None else lambda: server.data
        return replace(site, load_server=load_server, evaluate=task.evaluate)

    def data_table(self) -> dict[str, Any] | None:
        """Where the data are and how they are read, with their checksum; None of a data set that the task knows."""
        if self.own is None:
            return None
        told = {name: value for name, value in dataclasses.asdict(self.own).items() if value not in (None, (), False)}
        return {**told, "sha256": self._sha256}

    @cached_property
    def _sha256(self) -> str:
        assert self.own is not None
        return self.own.sha256()


class OfModule(Source):
    """A module of one's own."""

    def __init__(self, module: Module):
        self.module = module
        self.name, self.title, self.summary = module.name, module.title, module.summary
        self.datasets = (OWN,)
        self._last: Definition | None = None

    @property
    def options(self) -> Mapping[str, inspect.Parameter]:
        """The parameters of its ``make``."""
        return self.module.options

    def default_options(self, dataset: str) -> dict[str, Any]:
        """The defaults of its parameters."""
        return {name: parameter.default for name, parameter in self.options.items()}

    def _define(self, options: Mapping[str, Any], seed: int, held_out: bool) -> Definition:
        self._last = self.module.define(options, seed, held_out)
        return self._last

    def defaults(self, dataset: str, options: Mapping[str, Any], seed: int, held_out: bool) -> Defaults:
        """What the module says about a run, and everybody in 100 rounds of one step on whole batches where it does not."""
        return self._define(options, seed, held_out).defaults()

    def make(
        self, dataset: str, clients: int, seeds: Sequence[int], held_out: bool, options: Mapping[str, Any]
    ) -> list[Task]:
        """One task for all seeds, unless ``make`` asks for the seed."""
        if not self.module.asks_for("seed"):
            return [self._task(options, seeds[0], held_out)] * len(seeds)
        return _in_one_program(self.name, [self._task(options, seed, held_out) for seed in seeds])

    def _task(self, options: Mapping[str, Any], seed: int, held_out: bool) -> Task:
        defined = self._define(options, seed, held_out)
        with telling(self.module, "making its task"):
            return defined.task()

    def site(self, dataset: str, clients: int, seed: int, held_out: bool, options: Mapping[str, Any]) -> Site:
        """Only what is hosted is loaded, where the module can load one client."""
        defined = self._define(options, seed, held_out)
        with telling(self.module, "making its site"):
            return defined.site()

    def check(self, algorithm: Algorithm, options: Mapping[str, Any], seed: int, held_out: bool) -> None:
        """The problem is at hand."""
        check_solves(algorithm, self._define(options, seed, held_out).problem)

    def algorithm(self, name: str) -> type[Algorithm]:
        """One of the module's own, or of the package."""
        own = {} if self._last is None else self._last.own_algorithms()
        if name or self._last is None:
            return by_name(name, own)
        wanted = problem_class(self._last.problem)
        fitting = ", ".join(each for each, kind in {**registry, **own}.items() if wanted in kind.solves)
        raise ValueError(
            f"algorithm must be given for {self.name}, with --algorithm or as algorithm in the module. Algorithms for a "
            f"{wanted} problem: {fitting}"
        )

    @property
    def fixed_clients(self) -> bool:
        """The module has them."""
        return True

    @property
    def holds_out(self) -> bool:
        """Whether a search for rates is told from a run, so that it need not see what the run is judged by."""
        return self.module.asks_for("held_out")

    def says(self, name: str) -> bool:
        """Whether it defines this setting of a run."""
        return self._last is not None and getattr(self._last, name) is not None

    def table(self) -> dict[str, Any]:
        """Its file, with a checksum."""
        module = self.module
        moved = {} if module.file == module.origin else {"origin": str(module.origin)}
        told = {"name": self.name, "title": self.title, "file": str(module.file), **moved}
        return {**told, "sha256": module.sha256}

    def copy(self) -> bytes:
        """The file as it was run."""
        return self.module.content


def open_source(name: str, own: OwnFile | None = None) -> Source:
    """The task or the module of this name: the one way from a name to a problem. ``own`` are data for a task.

    ``name`` is that of a task, ``package.module``, the path of a ``.py`` file, or one of the last two with ``:name``, a
    function or a dictionary in the module.
    """
    if name in RECIPES:
        return OfTask(RECIPES[name], own)
    if own is not None:
        taking = [each for each, recipe in RECIPES.items() if recipe.own is not None]
        raise ValueError(f"--data is for tasks: {unknown(name, taking)}")
    module = find_module(name)
    if module is None:
        raise ValueError(f"task: {unknown(name, RECIPES)}, or the name of a Python file")
    return OfModule(module)


def stored_data(table: Any, where: Path) -> OwnFile:
    """The data that settings name, which must be what they were if their checksum is told."""
    known = {each.name for each in dataclasses.fields(OwnFile)}
    if not isinstance(table, Mapping) or not isinstance(table.get("file"), str):
        raise ValueError(f"[data] in {where} must be a table with file = ..., got {table!r}")
    check_names({name: None for name in table if name != "sha256"}, known, "[data]")
    texts = {name: value for name, value in table.items() if name not in ("ignore", "fill", "sha256")}
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ValueError(f"[data] {name} must be a word, got {value!r}")
    ignore = table.get("ignore", ())
    if not isinstance(ignore, list | tuple) or not all(isinstance(each, str) for each in ignore):
        raise ValueError(f"[data] ignore must be a list of columns, got {ignore!r}")
    own = OwnFile(**texts, ignore=tuple(ignore), fill=bool(table.get("fill", False)))
    if "sha256" in table and own.sha256() != table["sha256"]:
        raise ValueError(f"{own.file} is not what it was when {where} was written: put it back, or start a new run")
    return own


def stored_source(table: Any, folder: Path, unchanged: bool) -> OfModule:
    """The module that a run was started with: its file, or the copy in the run's folder if the file is gone.

    If the file was changed since, ``unchanged`` refuses it; without, the copy is taken.
    """
    names = ("name", "file", "sha256")
    if not isinstance(table, Mapping) or not all(isinstance(table.get(name), str) for name in names):
        raise ValueError(f"[source] must be a table with the words {', '.join(names)}, got {table!r}")
    name, file, copy = str(table["name"]), Path(str(table["file"])), folder / COPY
    origin = Path(str(table.get("origin", file)))
    if file.is_file():
        found = _if_same(name, file, origin, str(table["sha256"]))
        if found is not None:
            return OfModule(found)
        if unchanged:
            raise ValueError(
                f"{file} was changed since the run in {folder} began: start a new run, or put the file back as it was; "
                f"{copy} is a copy of it"
            )
    found = _if_same(name, copy, origin, str(table["sha256"])) if copy.is_file() else None
    if found is None:
        raise ValueError(f"the module {file} is gone or changed, and {copy} is no copy of it")
    if file.is_file():
        warnings.warn(f"{file} was changed since the run in {folder}: {copy} is run, the copy of it", stacklevel=2)
    return OfModule(found)


def _if_same(name: str, file: Path, origin: Path, sha256: str) -> Module | None:
    """The module in a file, unless the file has another checksum; then nothing of it is run."""
    content = file.read_bytes()
    return load_module(name, file, origin, content) if hashlib.sha256(content).hexdigest() == sha256 else None


def _in_one_program(name: str, tasks: list[Task]) -> list[Task]:
    """The tasks of several seeds as lanes: the problem must be the same, and what ``evaluate`` captured becomes arrays."""
    first = tasks[0]
    for number, task in enumerate(tasks):
        if not same(task.problem, first.problem):
            raise ValueError(
                f"{name}: the problem of seed number {number} is another one than that of the first: let losses depend on "
                "the seed through the clients' data, x0 and y0 only, or run one seed at a time"
            )
    judges = as_lanes([task.evaluate for task in tasks])
    try:
        stack_different(judges, "evaluate", "to capture arrays of the same shapes")
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return [replace(task, problem=first.problem, evaluate=judge) for task, judge in zip(tasks, judges, strict=True)]
