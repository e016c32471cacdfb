"""The settings of a run: from options or a TOML file, completed with the defaults of its task or module."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w

from rookery import files
from rookery.aggregation.spelled import read_privacy, read_rule
from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.rates import as_kind_of, check_names, make_algorithm, plain
from rookery.algorithms.registry import name_of
from rookery.datasets import OwnFile
from rookery.engines.flower.site import Site
from rookery.experiment.source import OfModule, Source, open_source, stored_data, stored_source
from rookery.names import unknown
from rookery.problem.participation import Participation, Steps
from rookery.solving.trust import check_kinds
from rookery.tasks import Task
from rookery.tasks.task import participation_of, steps_of
from rookery.typing import BatchSize


@dataclass(frozen=True)
class Settings:
    """All that determines the iterates of a run, complete.

    ``task`` is the name of a task or of a module, ``source`` what it stands for. ``seeds`` runs with seeds seed,
    seed + 1, ... are the lanes of one program. With ``held_out`` a part of the training data takes the place of the test
    data, for tuning. ``options`` are the task's, ``rates`` the algorithm's.
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
    source: Source = field(repr=False, compare=False)
    seed: int = 0
    seeds: int = 1
    held_out: bool = False
    clients_at_once: int | None = None
    aggregate: str | None = None
    privacy: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    rates: Mapping[str, Any] = field(default_factory=dict)

    @property
    def participation(self) -> Participation | None:
        """Who takes part, as ``rk.solve`` takes it."""
        return participation_of(self.participants)

    @property
    def steps(self) -> int | Steps:
        """τ, as ``rk.solve`` takes it."""
        return steps_of(self.local_steps)

    @property
    def trust(self) -> dict[str, Any]:
        """The robust rule and the privacy, as ``rk.solve`` takes them."""
        return {
            "aggregate": None if self.aggregate is None else read_rule(self.aggregate),
            "privacy": None if self.privacy is None else read_privacy(self.privacy),
        }

    def make_algorithm(self, **rates: Any) -> Algorithm:
        """The algorithm with its rates, some of them replaced."""
        return make_algorithm(self.source.algorithm(self.algorithm), {**self.rates, **rates})

    def make_tasks(self) -> list[Task]:
        """One task for each seed."""
        seeds = range(self.seed, self.seed + self.seeds)
        return self.source.make(self.dataset, self.clients, seeds, self.held_out, self.options)

    def make_site(self) -> Site:
        """The problem of the first seed, as a node knows it."""
        return self.source.site(self.dataset, self.clients, self.seed, self.held_out, self.options)

    def tables(self) -> dict[str, dict[str, Any]]:
        """[run], [data], [task] and [algorithm] as TOML has them, which :func:`settings_of` takes back."""
        names = [f.name for f in dataclasses.fields(self) if f.name not in _NOT_IN_RUN]
        left_out = [name for name in _OFTEN_ABSENT if getattr(self, name) is None]
        run = {name: plain(getattr(self, name)) for name in names if name not in left_out}
        kind = self.source.algorithm(self.algorithm)
        rates = {f.name: f.default for f in dataclasses.fields(kind)} | dict(self.rates)
        data = self.source.data_table()
        return {
            "run": run,
            **({} if data is None else {"data": {name: plain(value) for name, value in data.items()}}),
            "task": {name: plain(value) for name, value in self.options.items() if value is not None},
            "algorithm": {name: plain(value) for name, value in rates.items() if value is not None},
        }


_NOT_IN_RUN = ("options", "rates", "source")
_OFTEN_ABSENT = ("clients_at_once", "aggregate", "privacy")


def resolve(
    run: Mapping[str, Any],
    task: Mapping[str, Any] | None = None,
    algorithm: Mapping[str, Any] | None = None,
    source: Source | None = None,
) -> Settings:
    """Complete settings from what was given: ``run`` as the options of ``rookery run``, the options of the task and the
    rates of the algorithm. What is None is taken from the defaults of the task on its data set, or of the module.
    ``source`` is what the task's name stands for, where that is known already.
    """  # fmt: skip
    given = {name: value for name, value in run.items() if value is not None}
    known = {f.name for f in dataclasses.fields(Settings)} - set(_NOT_IN_RUN)
    check_names(given, known, "[run]")
    source = open_source(str(given.get("task", ""))) if source is None else source
    dataset = str(given.get("dataset", source.datasets[0]))
    if dataset not in source.datasets:
        raise ValueError(f"dataset must be one of {', '.join(source.datasets)} for {source.title}, got {dataset!r}")
    seeds = _whole(given.get("seeds", 1), "seeds")
    seed = _whole(given.get("seed", 0), "seed", 0, 2**32 - seeds)  # JAX drops what is beyond 32 bits
    held_out = bool(given.get("held_out", False))
    options = source.default_options(dataset)
    check_names(task or {}, set(source.options), f"[task] of {source.title}")
    for key, value in (task or {}).items():
        options[key] = _as_option(options.get(key), value, f"task.{key}")
    defaults = source.defaults(dataset, options, seed, held_out)
    kind = source.algorithm(str(given.get("algorithm", defaults.algorithm)))
    name = name_of(kind)
    rounds = _whole(given.get("rounds", defaults.rounds), "rounds")
    clients = _whole(given.get("clients", defaults.clients), "clients")
    if source.fixed_clients and clients != defaults.clients:
        whose = source.name if isinstance(source, OfModule) else dataset
        raise ValueError(f"clients must be {defaults.clients}, as {whose} has them, got {clients}")
    settings = Settings(
        task=source.name,
        dataset=dataset,
        algorithm=name,
        clients=clients,
        participants=read_participants(given.get("participants", defaults.participants)),
        local_steps=read_steps(given.get("local_steps", defaults.local_steps)),
        batch_size=read_batch_size(given.get("batch_size", defaults.batch_size)),
        rounds=rounds,
        every=_whole(given.get("every", max(1, rounds // 30)), "every"),
        source=source,
        seed=seed,
        seeds=seeds,
        held_out=held_out,
        clients_at_once=_whole(given["clients_at_once"], "clients_at_once") if "clients_at_once" in given else None,
        aggregate=_text(given, "aggregate"),
        privacy=_text(given, "privacy"),
        options=options,
        rates={**defaults.rates.get(name, {}), **(algorithm or {})},
    )
    source.check(settings.make_algorithm(), options, seed, held_out)  # raises if a rate is wrong
    check_kinds(settings.trust["aggregate"], None, settings.trust["privacy"])
    return settings


def _text(given: Mapping[str, Any], name: str) -> str | None:
    return str(given[name]) if name in given else None


def _as_option(default: Any, value: Any, name: str) -> Any:
    made = as_kind_of(default, value, name)
    return list(made) if isinstance(default, list) and isinstance(made, tuple) else made


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
    return settings_of(tables, path.parent)


def settings_of(config: Mapping[str, Any], folder: Path, unchanged: bool = False) -> Settings:
    """The settings in a configuration that lies in a folder; of a run's, what was only told there is left out.

    If the module of a run was changed since, ``unchanged`` refuses that; without, the folder's copy of it is taken.
    """
    if "python" in config:  # what it was made of is in no file
        raise ValueError(f"{folder} was made by rk.run, from Python: the same call of rk.run continues it")
    for name in ("run", "data", "task", "algorithm"):
        if not isinstance(config.get(name, {}), Mapping):
            raise ValueError(f"[{name}] must be a table, got {config[name]!r}")
    told = ("metric", "higher_is_better", "command", "rates_from", "rivals", "model_sha256")
    run = {name: value for name, value in config["run"].items() if name not in told}
    told_of = config.get("source")
    named = isinstance(told_of, Mapping) and told_of.get("name") == run.get("task")  # else the task was changed by hand
    source: Source | None = stored_source(told_of, folder, unchanged) if named else None
    if "data" in config:
        source = open_source(str(run.get("task", "")), stored_data(config["data"], folder))
    return resolve(run, config.get("task"), config.get("algorithm"), source)


def settings_from(task: str, given: Mapping[str, Any], pairs: Sequence[str]) -> Settings:
    """From the name of a task, a module or a TOML file, changed by ``given`` and then by the NAME=VALUE ``pairs``.

    What is None in ``given`` was not given. Rates in a file belong to its algorithm: with another one they are dropped.
    """
    return settings_of_all(task, given, [given.get("algorithm")], pairs)[0]


def settings_of_all(
    task: str, given: Mapping[str, Any], algorithms: Sequence[str | None], pairs: Sequence[str]
) -> list[Settings]:
    """The settings of :func:`settings_from` for several algorithms on one problem.

    A rate that only some of them have is set for those; ALGORITHM.NAME=VALUE sets it for one.
    """
    source: Source
    data, given = _own_data(given)
    if task.endswith(".toml") or (not task.endswith(".py") and Path(task).is_file()):
        read = read_settings(Path(task))
        source, base = read.source, read.tables()
        if data is not None:
            source = open_source(read.task, data)
            del base["run"]["dataset"]
        if source.fixed_clients or data is not None:
            del base["run"]["clients"]  # an option may change how many it has
    else:
        source, base = open_source(task, data), {"run": {"task": task}, "task": {}, "algorithm": {}}
    run = {**base["run"], **{name: value for name, value in given.items() if value is not None and name != "model"}}
    split = [_split_pair(pair) for pair in pairs]
    options = {**base["task"], **_model_in(given, source), **_options_in(split, source)}
    runs = [run if name is None else {**run, "algorithm": name} for name in algorithms]
    first = str(base["run"].get("algorithm", "")).lower()
    own = [base["algorithm"] if str(each.get("algorithm", "")).lower() == first else {} for each in runs]
    plain = [resolve(each, options, rates, source) for each, rates in zip(runs, own, strict=True)]
    kinds = {settings.algorithm: source.algorithm(settings.algorithm) for settings in plain}
    rates = _rates_in(split, source, kinds)
    return [
        resolve(each, options, {**before, **rates[settings.algorithm]}, source)
        if rates[settings.algorithm]
        else settings
        for each, before, settings in zip(runs, own, plain, strict=True)
    ]


def _own_data(given: Mapping[str, Any]) -> tuple[OwnFile | None, dict[str, Any]]:
    """The user's own data among what was given, and the rest."""
    names = [each.name for each in dataclasses.fields(OwnFile) if each.name != "file"]
    rest = {name: value for name, value in given.items() if name not in ("data", *names)}
    about = {name: given[name] for name in names if given.get(name)}
    if given.get("data") is None:
        for name in about:
            raise ValueError(
                f"--{name.replace('_', '-')} says something about data of your own: give them with --data FILE"
            )
        return None, rest
    if rest.get("dataset") is not None:
        raise ValueError(f"--dataset {rest['dataset']} and --data {given['data']}: give one of the two")
    files = {name: str(Path(about[name]).resolve()) for name in ("test",) if name in about}
    return OwnFile(str(Path(str(given["data"])).resolve()), **{**about, **files}), rest


def _model_in(given: Mapping[str, Any], source: Source) -> dict[str, Any]:
    """The option ``model``; the file of one of one's own is found from anywhere."""
    model = given.get("model")
    if model is None:
        return {}
    if "model" not in source.options:
        raise ValueError(f"--model: {source.title} has no choice of a model")
    place, colon, name = str(model).rpartition(":") if ".py:" in str(model) else (str(model), "", "")
    return {"model": f"{Path(place).resolve()}{colon}{name}" if place.endswith(".py") else model}


Pair = tuple[str, str, Any]
"""Of PREFIX.NAME=VALUE the three; the prefix may be empty."""


def _split_pair(pair: str) -> Pair:
    name, equals, text = pair.partition("=")
    if not equals or not name:
        raise ValueError(f"--set must be NAME=VALUE, got {pair!r}")
    where, _, rest = name.rpartition(".")
    return where, rest, parse_value(text)


def _options_in(pairs: Sequence[Pair], source: Source) -> dict[str, Any]:
    """What is an option of the task."""
    return {name: value for where, name, value in pairs if where == "task" or (not where and name in source.options)}


def _rates_in(pairs: Sequence[Pair], source: Source, kinds: Mapping[str, type[Algorithm]]) -> dict[str, dict[str, Any]]:
    """What is a rate of an algorithm, by algorithm; a name that the task has too needs its prefix."""
    fields = {name: [f.name for f in dataclasses.fields(kind)] for name, kind in kinds.items()}
    found: dict[str, dict[str, Any]] = {name: {} for name in kinds}
    for where, name, value in pairs:
        if where == "task":
            continue
        chosen = _meant(where, name, source, kinds)
        owners = [each for each in chosen if name in fields[each]]
        if not where and name in source.options:
            if owners:
                raise ValueError(
                    f"--set {name}: both the task and the algorithm have it, say task.{name} or algorithm.{name}"
                )
            continue
        if not owners:
            options = () if where else tuple(source.options)
            known = sorted({*options, *(each for algorithm in chosen for each in fields[algorithm])})
            raise ValueError(f"--set{f' {where}' if where else ''}: {unknown(name, known)}")
        for each in owners:
            found[each][name] = value
    return found


def _meant(where: str, name: str, source: Source, kinds: Mapping[str, type[Algorithm]]) -> list[str]:
    """The algorithms that a prefix means."""
    if where in ("", "algorithm"):
        return list(kinds)
    try:
        chosen = name_of(source.algorithm(where))
    except ValueError:
        raise ValueError(
            f"--set {where}.{name}: {where!r} must be task, algorithm or the name of an algorithm"
        ) from None
    if chosen not in kinds:
        raise ValueError(f"--set {where}.{name}: {chosen} is not run here, but {', '.join(kinds)}")
    return [chosen]


def write_toml(path: Path, tables: Mapping[str, Any]) -> None:
    """Writes a TOML file, whole or not at all."""
    files.write(path, tomli_w.dumps(dict(tables)).encode())


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
