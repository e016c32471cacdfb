"""A run on disk, and how it is started, gone on with and read.

A folder holds ``config.toml`` (complete: settings, resolved defaults, versions, seed, git revision, and a checksum of all
that), ``history.csv``, ``checkpoints/`` (the last two), ``result.safetensors`` when it is done, and ``log.txt``. All files
are written under another name first and then renamed, so that whatever moment a run is killed in, each of them is whole.
One process at a time writes in a folder.

What a run goes on from is a checkpoint alone: arrays, and a manifest that has their checksum, the history so far, the
checksum of ``config.toml`` and one of itself. What is damaged is left out or refused, and never taken for a result.
"""

import hashlib
import json
import logging
import os
import platform
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tomli_w
from safetensors import SafetensorError
from safetensors.numpy import load, save

from rookery import files
from rookery.algorithm.setting import State
from rookery.engines.flower.engine import FederationError, Flower, Remote
from rookery.engines.simulator import Simulator
from rookery.experiment.settings import Settings, settings_of
from rookery.solving.api import Lanes, Prepared, Solution, prepare, prepare_many
from rookery.solving.history import History
from rookery.stopping import Interrupted, asked, heard, stop_if_asked
from rookery.tasks import Task

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None  # type: ignore[assignment]

KEPT = 2
"""How many checkpoints are kept: a damaged newest one is no loss of the run."""

_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError)
"""What reading a damaged file can raise."""


@dataclass(frozen=True)
class Run:
    """What a folder of a run holds. ``config`` has the tables [run], [task], [algorithm] and [environment]."""

    path: Path
    config: Mapping[str, Any]
    history: History

    @property
    def name(self) -> str:
        """What to call it in a table: the algorithm."""
        return str(self.config["run"]["algorithm"])

    @property
    def metric(self) -> str:
        """The one it is judged by; of a run on nodes, whose server knows no task, the first."""
        if "metric" in self.config["run"]:
            return str(self.config["run"]["metric"])
        found = _metrics(self.history.last) if len(self.history) else []
        if not found:
            raise ValueError(f"{self.path} has no metric: its server evaluated nothing")
        return found[0]

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the metric is better."""
        return bool(self.config["run"].get("higher_is_better", False))

    @property
    def finished(self) -> bool:
        """Whether all its rounds were made."""
        return (self.path / "result.safetensors").exists()


def read_run(folder: Path) -> Run:
    """The run in a folder.

    Raises:
        ValueError: there is none, or it was changed since it was written.
    """
    config = read_config(folder)
    return Run(folder, config, _read_history(folder, config))


def _read_history(folder: Path, config: Mapping[str, Any]) -> History:
    """The table, compared with the newest checkpoint as far as that goes, and beyond it with good sense."""
    path = folder / "history.csv"
    told = next((read for _, read in _manifests(folder) if not isinstance(read, str)), None)
    known = History() if told is None else History.of_csv(told["history"])
    if not path.exists():
        return known
    found = History.from_csv(path)
    rounds = [row["round"] for row in found if type(row.get("round")) is int]
    last = config["run"].get("rounds", 0)
    if len(rounds) < len(found) or not all(a < b <= last for a, b in zip([-1, *rounds], rounds, strict=False)):
        raise ValueError(f"{path} is damaged: its rounds are not rising numbers up to {last}")
    if History(found.rows[: len(known)]).as_csv() != known.as_csv():
        raise ValueError(f"{path} was changed since it was written; rookery resume {folder} writes it anew")
    return found


def find_runs(folders: list[Path]) -> list[Run]:
    """The runs in these folders, or in folders directly inside them."""
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder of a run")
        inside = (
            [folder] if (folder / "config.toml").exists() else sorted(p.parent for p in folder.glob("*/config.toml"))
        )
        if not inside:
            raise ValueError(f"{folder} holds no run: there is no config.toml in it")
        found += [read_run(each) for each in inside]
    return found


def prepare_run(
    settings: Settings, tasks: list[Task] | None = None, engine: Flower | None = None
) -> tuple[Prepared, list[Task]]:
    """The run of these settings, checked and ready; its lanes are the seeds. On nodes there is one seed, and no lanes."""
    tasks = settings.make_tasks() if tasks is None else tasks
    if engine is not None:
        return _prepare_on_nodes(settings, tasks, engine), tasks
    run = prepare_many(
        tasks[0].problem,
        settings.make_algorithm(),
        [task.clients for task in tasks],
        Lanes([task.x0 for task in tasks]),
        Lanes([task.y0 for task in tasks]),
        keys=range(settings.seed, settings.seed + settings.seeds),
        participation=settings.participation,
        local_steps=settings.steps,
        batch_size=settings.batch_size,
        evaluate=Lanes([task.evaluate for task in tasks]),
        engine=Simulator(settings.clients_at_once),
    )
    return run, tasks


def _prepare_on_nodes(settings: Settings, tasks: list[Task], engine: Flower) -> Prepared:
    if settings.seeds != 1:
        raise ValueError(f"seeds must be 1 on Flower nodes, got {settings.seeds}")
    task = tasks[0]
    return prepare(
        task.problem,
        settings.make_algorithm(),
        task.clients,
        task.x0,
        task.y0,
        key=settings.seed,
        participation=settings.participation,
        local_steps=settings.steps,
        batch_size=settings.batch_size,
        evaluate=task.evaluate,
        engine=engine,
    )


def start_run(settings: Settings, folder: Path, command: str = "", engine: Any = None, **how: Any) -> Solution:
    """Starts a run in a new folder, in this process or on nodes (``engine`` is ``rk.Flower(...)``).

    ``how`` is that of :func:`resume_run`.
    """
    _check_new(folder)
    engine = None if engine is None else _with_folder(engine, folder)
    prepared, tasks = prepare_run(settings, engine=engine)
    config: dict[str, Any] = settings.tables()
    config["run"] |= {"metric": tasks[0].metric, "higher_is_better": tasks[0].higher_is_better}
    config["run"]["command"] = command or f"rookery run {shlex.quote(str(folder / 'config.toml'))}"
    config["environment"] = environment()
    if engine is not None:
        config["flower"] = _engine_table(engine)
    with locked(folder):
        _check_new(folder)
        return _go(folder, Plan.of(settings), prepared, _write_config(folder, config), None, **how)


def _check_new(folder: Path) -> None:
    if (folder / "config.toml").exists():
        raise ValueError(f"{folder} holds a run already: choose another folder, or rookery resume {folder}")


def resume_run(folder: Path, **how: Any) -> Solution:
    """Goes on with a run that was interrupted; its iterates are those of one that was not.

    Args:
        folder: where it is.
        how: ``progress`` (a bar, by default on a terminal), ``checkpoint_seconds`` between checkpoints, ``watch``, called
            with (state, history) after each evaluation.
    """
    config = read_config(folder)
    with locked(folder):
        settings = settings_of(config)
        engine = _with_folder(Flower(**config["flower"]), folder) if "flower" in config else None
        prepared, _ = prepare_run(settings, engine=engine)
        seal = config["checksum"]["sha256"]
        return _go(folder, Plan.of(settings), prepared, seal, _newest(folder, prepared, seal), **how)


def _with_folder(engine: Flower, folder: Path) -> Flower:
    """Nodes that load the task from the run's own settings, and keep what they keep in its folder."""
    if engine.superlink is not None:
        return engine
    return replace(engine, problem=str(folder / "config.toml"), folder=folder / "nodes")


def _engine_table(engine: Flower) -> dict[str, Any]:
    """The engine's options as TOML can hold them."""
    values = {f.name: getattr(engine, f.name) for f in fields(engine) if f.name not in ("problem", "folder")}
    return {name: str(v) if isinstance(v, Path) else v for name, v in values.items() if v is not None}


@dataclass(frozen=True)
class Plan:
    """What a run is called in its log, and how long it is."""

    name: str
    rounds: int
    every: int

    @classmethod
    def of(cls, settings: Settings) -> "Plan":
        """That of the run of a task."""
        name = f"{settings.algorithm} on {settings.task}/{settings.dataset}"
        return cls(name, settings.rounds, settings.every)


def go_in_folder(folder: Path, plan: Plan, prepared: Prepared, config: dict[str, Any]) -> Solution:
    """Starts a run that is not one of a task in a folder, or goes on with the one that is there."""
    with locked(folder):
        if not (folder / "config.toml").exists():
            seal = _write_config(folder, {**config, "environment": environment()})
            return _go(folder, plan, prepared, seal, None, again="the same command")
        there = read_config(folder)
        other = sorted(name for name, each in _as_read(config).items() if there.get(name) != each)
        if other:
            raise ValueError(f"{folder} holds a run with another {' and '.join(other)}: choose another folder")
        seal = there["checksum"]["sha256"]
        return _go(folder, plan, prepared, seal, _newest(folder, prepared, seal), again="the same command")


@dataclass(frozen=True)
class _Checkpoint:
    """What a run goes on from: the state with the history up to it, and what else was remembered."""

    solution: Solution
    memory: dict[str, Any]


def _go(
    folder: Path,
    plan: Plan,
    prepared: Prepared,
    seal: str,
    start: _Checkpoint | None,
    *,
    again: str = "",
    progress: bool | None = None,
    checkpoint_seconds: float = 10.0,
    watch: Callable[[State, History], None] | None = None,
) -> Solution:
    log = _Log(folder / "log.txt")
    again = again or f"rookery resume {shlex.quote(str(folder))}"
    solution = None if start is None else start.solution
    done = 0 if solution is None else solution.rounds
    log(f"{plan.name}: {plan.rounds} rounds, from round {done}")
    written = time.monotonic()
    evaluated = False
    on_nodes = isinstance(prepared.engine, Remote)
    if solution is not None:  # it may be behind or damaged
        _write(folder / "history.csv", solution.history.as_csv().encode())
    if on_nodes:
        _cut_record(folder / "participants.jsonl", done)

    def keep(state: State, history: History) -> None:
        nonlocal evaluated
        _write(folder / "history.csv", history.as_csv().encode())
        last = history.last
        log(f"round {state.round}: " + ", ".join(f"{k} {np.mean(last[k]):.6g}" for k in _metrics(last)))
        evaluated = True

    def remember(state: State, history: History, memory: dict[str, Any]) -> None:
        nonlocal written, evaluated
        if on_nodes:
            _append(folder / "participants.jsonl", {"round": int(state.round) - 1, **memory["record"]})
        last = state.round >= plan.rounds or bool((state.died >= 0).all())
        if on_nodes or last or asked() or time.monotonic() - written >= checkpoint_seconds:
            save_checkpoint(folder, state, history, memory, seal)
            written = time.monotonic()
        if evaluated and watch is not None:
            watch(state, history)
        evaluated = False
        stop_if_asked()

    def make() -> Solution:
        if solution is not None and done >= plan.rounds:
            made = prepared.finish(solution)
        else:
            memory = None if start is None else start.memory
            made = prepared.go(plan.rounds - done, plan.every, progress, solution, keep, memory, remember)
        for each in made.diverged:
            log(str(each))
        result = save(_named({"x": made.x, "y": made.y}))
        _write(folder / "result.safetensors", result)
        log(f"done: result.safetensors has the SHA-256 {hashlib.sha256(result).hexdigest()}")
        return made

    try:
        # Nodes are waited for, and each of their rounds is saved; what is computed here is saved when it comes back.
        with heard(at_once=on_nodes), _also_logged(log):
            return make()
    except FederationError as error:
        log(str(error))
        raise FederationError(f"{error}; {again} goes on from there") from None
    except Interrupted as stopped:
        log(f"stopped by {stopped}")
        stopped.add_note(f"Go on with: {again}")
        raise


# --- what is written, and read again ------------------------------------------------------------------------------------


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes a folder this process's to write in, until it lets go or ends in whatever way."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a+") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(f"{folder} is being written by process {file.read().strip() or '(unknown)'}") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        for place in (folder, folder / "checkpoints"):
            files.remove_parts(place)
        yield


def _write_config(folder: Path, tables: Mapping[str, Any]) -> str:
    """Writes ``config.toml`` with its checksum, which is returned."""
    tables = _as_read(tables)
    seal = _digest(tables)
    _write(folder / "config.toml", tomli_w.dumps({**tables, "checksum": {"sha256": seal}}).encode())
    return seal


def read_config(folder: Path) -> dict[str, Any]:
    """The tables of ``config.toml``, if they are what was written."""
    path = folder / "config.toml"
    if not path.exists():
        raise ValueError(f"{folder} holds no run: there is no config.toml in it")
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    tables = {name: each for name, each in config.items() if name != "checksum"}
    if config.get("checksum") != {"sha256": _digest(tables)}:
        raise ValueError(
            f"{path} was changed since the run began (its checksum says so): rookery run {path} --out ANOTHER starts a run "
            "of its own"
        )
    return config


def _as_read(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables as TOML gives them back."""
    return tomllib.loads(tomli_w.dumps(dict(tables)))


def _digest(content: Any) -> str:
    """The SHA-256 of what JSON, or TOML, can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def save_checkpoint(folder: Path, state: State, history: History, memory: Mapping[str, Any], seal: str) -> None:
    """Writes a checkpoint (arrays, then a manifest) and removes all but the last two.

    ``memory`` is what is needed beside state and history, ``seal`` the checksum of the run's configuration.
    """
    where = folder / "checkpoints"
    where.mkdir(exist_ok=True)
    body = save(_named(replace(state, round=None)))
    name = f"round-{state.round:08d}"
    _write(where / f"{name}.safetensors", body)
    manifest: dict[str, Any] = {"round": int(state.round), "config": seal, "bytes": len(body)}
    manifest |= {"arrays": hashlib.sha256(body).hexdigest(), "history": history.as_csv(), "memory": dict(memory)}
    manifest = json.loads(json.dumps(manifest))  # as it will be read: JSON's names are strings
    _write(where / f"{name}.json", json.dumps({**manifest, "sha256": _digest(manifest)}).encode())
    for old in sorted(where.glob("round-*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def _manifests(folder: Path) -> Iterator[tuple[Path, dict[str, Any] | str]]:
    """The manifests, newest first; where one is damaged, what is wrong with it."""
    for path in sorted((folder / "checkpoints").glob("round-*.json"), reverse=True):
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            told = read.pop("sha256")
            if told != _digest(read) or path.stem != f"round-{read['round']:08d}":
                raise ValueError("the manifest is not what its checksum says")
        except (*_UNREADABLE, AttributeError) as error:
            yield path, f"{type(error).__name__}: {error}"
        else:
            yield path, read


def _newest(folder: Path, prepared: Prepared, seal: str) -> _Checkpoint | None:
    """The newest checkpoint that is whole; None if there is none."""
    log = _Log(folder / "log.txt")

    def leave_out(path: Path, why: Any) -> None:
        log(f"warning: checkpoint {path.stem} is damaged and left out: {why}", stderr=True)

    for path, told in _manifests(folder):
        if isinstance(told, str):
            leave_out(path, told)
            continue
        if told["config"] != seal:
            raise ValueError(f"{path} is of a run with another config.toml: what made {folder} is not known any more")
        try:
            state = _read_arrays(path.with_suffix(".safetensors"), told, prepared)
        except _UNREADABLE as error:
            leave_out(path, error)
            continue
        history = History.of_csv(told["history"])
        return _Checkpoint(Solution(None, None, history, state, prepared.lanes), told["memory"])
    return None


def _read_arrays(path: Path, told: Mapping[str, Any], prepared: Prepared) -> State:
    body = path.read_bytes()
    found = hashlib.sha256(body).hexdigest()
    if found != told["arrays"]:
        raise ValueError(f"{path.name} should have the checksum {told['arrays']}, it has {found}")
    arrays = load(body)
    like = replace(jax.eval_shape(prepared.initial_state), round=None)
    leaves, structure = jax.tree.flatten_with_path(like)
    names = [_name(path) for path, _ in leaves]
    if sorted(names) != sorted(arrays):
        raise ValueError(f"it should hold {', '.join(names)}, it holds {', '.join(arrays)}")
    state = jax.tree.unflatten(structure, [jnp.asarray(arrays[name]) for name in names])
    return replace(state, round=int(told["round"]))


def _append(path: Path, line: Mapping[str, Any]) -> None:
    """Adds a line of JSON, to the disk."""
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _cut_record(path: Path, round: int) -> None:
    """Leaves of the record of participants what belongs to the rounds before this one; line t is that of round t."""
    if path.exists():
        lines = path.read_text().splitlines()[:round]
        _write(path, "".join(line + "\n" for line in lines).encode())


def _named(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves_with_path(tree)
    return {_name(path): np.asarray(leaf, order="C") for path, leaf in leaves}  # a number stays one


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _write(path: Path, content: bytes) -> None:
    """Writes a file so that it is whole or not there."""
    files.write(path, content)


# --- what else is told -----------------------------------------------------------------------------------------------


class _Log:
    def __init__(self, path: Path):
        self.path = path

    def __call__(self, line: str, stderr: bool = False) -> None:
        with open(self.path, "a") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {line}\n")
        if stderr:
            print(line, file=sys.stderr)


@contextmanager
def _also_logged(log: _Log) -> Iterator[None]:
    """What a federation tells of its nodes goes to the run's log too."""
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: log(record.getMessage())  # type: ignore[method-assign]
    told = logging.getLogger("rookery.flower")
    told.addHandler(handler)
    try:
        yield
    finally:
        told.removeHandler(handler)


def _metrics(row: Mapping[str, Any]) -> list[str]:
    """The columns of a row that ``evaluate`` gave."""
    names = list(row)
    return names[names.index("seconds") + 1 :]


def environment() -> dict[str, Any]:
    """Versions, the git revision of the working directory, date and hardware."""
    packages = ("rookery", "jax", "jaxlib", "equinox", "optax", "numpy")
    found: dict[str, Any] = {name: version(name) for name in packages}
    found |= {"python": platform.python_version(), "platform": platform.platform(), "cores": usable_cores()}
    found["processor"] = _processor()
    found["date"] = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    for name, command in {"git": ("rev-parse", "HEAD"), "git_changes": ("status", "--porcelain")}.items():
        try:
            told = subprocess.run(
                ("git", *command), capture_output=True, text=True, timeout=5, check=True
            ).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            continue
        found[name] = told if name == "git" else bool(told)
    return found


def usable_cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _processor() -> str:
    """Its name where the system tells it, else the architecture."""
    try:
        told = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in told.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.machine()
