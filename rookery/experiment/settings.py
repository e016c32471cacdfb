"""The settings of a run: from options or a TOML file, completed with the defaults of its task."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from rookery import files
from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.rates import as_kind_of, check_names, make_algorithm, plain
from rookery.algorithms.registry import by_name, name_of
from rookery.datasets import load, load_omniglot
from rookery.names import unknown
from rookery.problem.participation import Bernoulli, Participation, Steps, Uniform
from rookery.tasks import RECIPES, Recipe, Task
from rookery.typing import BatchSize


@dataclass(frozen=True)
class Settings:
    """All that determines the iterates of a run, complete.

    ``seeds`` runs with seeds seed, seed + 1, ... are the lanes of one program. With ``held_out`` a part of the training
    data takes the place of the test data, for tuning. ``options`` are the task's, ``rates`` the algorithm's.
    """

    task: str
    dataset: str
    algorithm: str
    clients: int
    participants: int | float | None
    local_steps: int | tuple[int, int]
    batch_size: BatchSize
    rounds: int
    every: int
    seed: int = 0
    seeds: int = 1
    held_out: bool = False
    clients_at_once: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rates: Mapping[str, Any] = field(default_factory=dict)

    @property
    def recipe(self) -> Recipe:
        """The task's recipe."""
        return RECIPES[self.task]

    @property
    def participation(self) -> Participation | None:
        """Who takes part, as ``rk.solve`` takes it."""
        if self.participants is None:
            return None
        return Bernoulli(self.participants) if isinstance(self.participants, float) else Uniform(self.participants)

    @property
    def steps(self) -> int | Steps:
        """τ, as ``rk.solve`` takes it."""
        return Steps(*self.local_steps) if isinstance(self.local_steps, tuple) else self.local_steps

    def make_algorithm(self, **rates: Any) -> Algorithm:
        """The algorithm with its rates, some of them replaced."""
        return make_algorithm(by_name(self.algorithm), {**self.rates, **rates})

    def make_tasks(self) -> list[Task]:
        """One task for each seed."""
        data: Any = None
        if self.dataset == "omniglot":
            data = load_omniglot()  # has validation alphabets of its own
        elif self.dataset != "synthetic":
            data = load(self.dataset)
            data = data.held_out() if self.held_out else data
        seeds = range(self.seed, self.seed + self.seeds)
        return [self.recipe.make(data, clients=self.clients, seed=seed, **self.options) for seed in seeds]

    def tables(self) -> dict[str, dict[str, Any]]:
        """[run], [task] and [algorithm] as TOML has them, which :func:`resolve` takes back."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("options", "rates")]
        run = {name: plain(getattr(self, name)) for name in names if name != "clients_at_once"}
        if self.clients_at_once is not None:
            run["clients_at_once"] = self.clients_at_once
        kind = by_name(self.algorithm)
        rates = {f.name: f.default for f in dataclasses.fields(kind)} | dict(self.rates)
        return {
            "run": run,
            "task": {name: plain(value) for name, value in self.options.items() if value is not None},
            "algorithm": {name: plain(value) for name, value in rates.items() if value is not None},
        }


def resolve(
    run: Mapping[str, Any], task: Mapping[str, Any] | None = None, algorithm: Mapping[str, Any] | None = None
) -> Settings:
    """Complete settings from what was given: ``run`` as the options of ``rookery run``, the options of the task and the
    rates of the algorithm. What is None is taken from the defaults of the task on its data set.
    """  # fmt: skip
    given = {name: value for name, value in run.items() if value is not None}
    known = {f.name for f in dataclasses.fields(Settings)} - {"options", "rates"}
    check_names(given, known, "[run]")
    recipe = recipe_of(str(given.get("task", "")))
    dataset = str(given.get("dataset", next(iter(recipe.defaults))))
    if dataset not in recipe.defaults:
        raise ValueError(f"dataset must be one of {', '.join(recipe.defaults)} for {recipe.name}, got {dataset!r}")
    defaults = recipe.defaults[dataset]
    kind = by_name(str(given.get("algorithm", defaults.algorithm)))
    name = name_of(kind)
    rounds = _whole(given.get("rounds", defaults.rounds), "rounds")
    seeds = _whole(given.get("seeds", 1), "seeds")
    options = {
        key: p.default for key, p in recipe.options.items() if p.default is not p.empty
    } | dict(defaults.options)  # fmt: skip
    check_names(task or {}, set(recipe.options), f"[task] of {recipe.name}")
    for key, value in (task or {}).items():
        options[key] = as_kind_of(options.get(key), value, f"task.{key}")
    rates = {**defaults.rates.get(name, {}), **(algorithm or {})}
    settings = Settings(
        task=recipe.name,
        dataset=dataset,
        algorithm=name,
        clients=_whole(given.get("clients", defaults.clients), "clients"),
        participants=read_participants(given.get("participants", defaults.participants)),
        local_steps=read_steps(given.get("local_steps", defaults.local_steps)),
        batch_size=read_batch_size(given.get("batch_size", defaults.batch_size)),
        rounds=rounds,
        every=_whole(given.get("every", max(1, rounds // 30)), "every"),
        seed=_whole(given.get("seed", 0), "seed", 0, 2**32 - seeds),  # JAX drops what is beyond 32 bits
        seeds=seeds,
        held_out=bool(given.get("held_out", False)),
        clients_at_once=_whole(given["clients_at_once"], "clients_at_once") if "clients_at_once" in given else None,
        options=options,
        rates=rates,
    )
    settings.make_algorithm()  # raises if a rate is wrong
    return settings


def recipe_of(name: str) -> Recipe:
    """The task of this name."""
    if name not in RECIPES:
        raise ValueError(f"task: {unknown(name, RECIPES)}")
    return RECIPES[name]


def read_settings(path: Path) -> Settings:
    """Settings from a TOML file with the tables [run], [task] and [algorithm]."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, nested without end
        raise ValueError(f"{path} is not TOML: {error}") from None
    if not isinstance(tables.get("run"), dict) or "task" not in tables["run"]:
        raise ValueError(
            f"{path} must have a table [run] with at least task = ..., got {', '.join(tables) or 'nothing'}"
        )
    return settings_of(tables)


def settings_of(config: Mapping[str, Any]) -> Settings:
    """The settings in a configuration; of a run's, what was only told there is left out."""
    for name in ("run", "task", "algorithm"):
        if not isinstance(config.get(name, {}), Mapping):
            raise ValueError(f"[{name}] must be a table, got {config[name]!r}")
    told = ("metric", "higher_is_better", "command")
    run = {name: value for name, value in config["run"].items() if name not in told}
    return resolve(run, config.get("task"), config.get("algorithm"))


def settings_from(task: str, given: Mapping[str, Any], pairs: Sequence[str]) -> Settings:
    """From the name of a task or a TOML file, changed by ``given`` and then by the NAME=VALUE ``pairs``.

    What is None in ``given`` was not given. Rates in a file belong to its algorithm: with another one they are dropped.
    """
    if task.endswith(".toml") or Path(task).is_file():
        base = read_settings(Path(task)).tables()
        if given.get("algorithm") not in (None, base["run"]["algorithm"]):
            base["algorithm"] = {}
    else:
        base = {"run": {"task": task}, "task": {}, "algorithm": {}}
    run = {**base["run"], **{name: value for name, value in given.items() if value is not None}}
    recipe = recipe_of(run["task"])
    plain = resolve(run, base["task"], base["algorithm"])
    options, rates = assignments(list(pairs), recipe, plain.algorithm)
    return resolve(run, {**base["task"], **options}, {**base["algorithm"], **rates})


def write_toml(path: Path, tables: Mapping[str, Any]) -> None:
    """Writes a TOML file, whole or not at all."""
    files.write(path, tomli_w.dumps(dict(tables)).encode())


def assignments(pairs: list[str], recipe: Recipe, algorithm: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options of the task and rates of the algorithm from NAME=VALUE; a name that both have needs its prefix."""
    rates = {f.name for f in dataclasses.fields(by_name(algorithm))}
    tables: dict[str, dict[str, Any]] = {"task": {}, "algorithm": {}}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise ValueError(f"--set must be NAME=VALUE, got {pair!r}")
        where, dot, rest = name.partition(".")
        if dot and where in tables:
            tables[where][rest] = parse_value(text)
            continue
        owners = [table for table, names in (("task", set(recipe.options)), ("algorithm", rates)) if name in names]
        if len(owners) > 1:
            raise ValueError(
                f"--set {name}: both the task and the algorithm have it, say task.{name} or algorithm.{name}"
            )
        if not owners:
            raise ValueError(f"--set: {unknown(name, sorted({*recipe.options, *rates}))}")
        tables[owners[0]][name] = parse_value(text)
    return tables["task"], tables["algorithm"]


def parse_value(text: str) -> Any:
    """A value as TOML would read it; what is not TOML is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _whole(value: Any, name: str, least: int = 1, most: int = 2**31 - 1) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = least - 1
    if not least <= number <= most or isinstance(value, bool):
        bounds = f"of at least {least}" if number < least else f"of at most {most}"
        raise ValueError(f"{name} must be a whole number {bounds}, got {value!r}")
    return number


def read_participants(value: Any) -> int | float | None:
    """A number of clients, a probability of taking part, or None for all."""
    if value is None or value == "all":
        return None
    text = str(value)
    try:
        if text.isdigit() and int(text) >= 1:
            return int(text)
        if not text.isdigit() and 0 < float(text) <= 1:
            return float(text)
    except ValueError:
        pass
    raise ValueError(f"participants must be a number of clients, a probability in (0, 1] or 'all', got {value!r}")


def read_steps(value: Any) -> int | tuple[int, int]:
    """A number of local steps, or a range."""
    parts = list(value) if isinstance(value, list | tuple) else str(value).split("-")
    if len(parts) == 1:
        return _whole(parts[0], "local_steps")
    if len(parts) != 2:
        raise ValueError(f"local_steps must be a number or a range like 5-15, got {value!r}")
    low, high = (_whole(part, "local_steps") for part in parts)
    if low > high:
        raise ValueError(f"local_steps must be a range from low to high, got {value!r}")
    return low, high


def read_batch_size(value: Any) -> BatchSize:
    """One size, or (lower, upper); None takes whole sets."""
    parts = list(value) if isinstance(value, list | tuple) else [value] if value is None else str(value).split(",")
    if not 1 <= len(parts) <= 2:
        raise ValueError(f"batch_size must be a number, 'all' or LOWER,UPPER, got {value!r}")
    sizes = [None if part in (None, "all", "None") else _whole(part, "batch_size") for part in parts]
    return sizes[0] if len(sizes) == 1 else (sizes[0], sizes[1])
