"""A run on disk, and how it is started, gone on with and read.

A folder holds ``config.toml`` (complete: settings, resolved defaults, versions, seed, git revision), ``history.csv``,
``checkpoints/`` (the last two), ``result.safetensors`` when it is done, and ``log.txt``. All files are written under
another name first and then renamed, so that whatever moment a run is killed in, each of them is whole.
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
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from rookery.engines.flower.engine import FederationError, Flower, Remote
from rookery.engines.simulator import Simulator, State
from rookery.history import History
from rookery.settings import Settings, settings_of, write_toml
from rookery.solve import Lanes, Prepared, Solution, prepare, prepare_many
from rookery.tasks import Task

KEPT = 2
"""How many checkpoints are kept: a damaged newest one is no loss of the run."""


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
    def finished(self) -> bool:
        """Whether all its rounds were made."""
        return (self.path / "result.safetensors").exists()


def read_run(folder: Path) -> Run:
    """The run in a folder."""
    config = _read_config(folder)
    table = folder / "history.csv"
    return Run(folder, config, History.from_csv(table) if table.exists() else History())


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
    if (folder / "config.toml").exists():
        raise ValueError(f"{folder} holds a run already: choose another folder, or rookery resume {folder}")
    engine = None if engine is None else _with_folder(engine, folder)
    prepared, tasks = prepare_run(settings, engine=engine)
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = settings.tables()
    config["run"] |= {"metric": tasks[0].metric, "higher_is_better": tasks[0].higher_is_better}
    config["run"]["command"] = command or f"rookery run {shlex.quote(str(folder / 'config.toml'))}"
    config["environment"] = environment()
    if engine is not None:
        config["flower"] = _engine_table(engine)
    _write(folder / "config.toml", lambda path: write_toml(path, config))
    return _go(folder, Plan.of(settings), prepared, None, **how)


def resume_run(folder: Path, **how: Any) -> Solution:
    """Goes on with a run that was interrupted; its iterates are those of one that was not.

    Args:
        folder: where it is.
        how: ``progress`` (a bar, by default on a terminal), ``checkpoint_seconds`` between checkpoints, ``watch``, called
            with (state, history) after each evaluation.
    """
    config = _read_config(folder)
    settings = settings_of(config)
    engine = _with_folder(Flower(**config["flower"]), folder) if "flower" in config else None
    prepared, _ = prepare_run(settings, engine=engine)
    return _go(folder, Plan.of(settings), prepared, _newest(folder, prepared), **how)


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
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.toml").exists():
        _write(folder / "config.toml", lambda path: write_toml(path, {**config, "environment": environment()}))
    return _go(folder, plan, prepared, _newest(folder, prepared))


def _go(
    folder: Path,
    plan: Plan,
    prepared: Prepared,
    start: Solution | None,
    *,
    progress: bool | None = None,
    checkpoint_seconds: float = 10.0,
    watch: Callable[[State, History], None] | None = None,
) -> Solution:
    log = _Log(folder / "log.txt")
    done = start.rounds if start is not None else 0
    log(f"{plan.name}: {plan.rounds} rounds, from round {done}")
    written = time.monotonic()
    on_nodes = isinstance(prepared.engine, Remote)

    def remember(state: State, history: History, memory: dict[str, Any]) -> None:
        with open(folder / "participants.jsonl", "a") as file:
            file.write(json.dumps({"round": int(state.round) - 1, **memory["record"]}) + "\n")
        save_checkpoint(folder, state, history, memory)

    def keep(state: State, history: History) -> None:
        nonlocal written
        _write(folder / "history.csv", history.to_csv)
        last = history.last
        log(f"round {state.round}: " + ", ".join(f"{k} {np.mean(last[k]):.6g}" for k in _metrics(last)))
        due = time.monotonic() - written >= checkpoint_seconds or state.round >= plan.rounds
        if due and not on_nodes:  # there every round is remembered
            save_checkpoint(folder, state, history)
            written = time.monotonic()
        if watch is not None:
            watch(state, history)

    if start is not None and done >= plan.rounds:
        solution = prepared.finish(start)
    else:
        memory = _memory(folder, done) if on_nodes else None
        try:
            with _also_logged(log):
                solution = prepared.go(plan.rounds - done, plan.every, progress, start, keep, memory, remember)
        except FederationError as error:
            log(str(error))
            raise FederationError(f"{error}; rookery resume {folder} goes on from there") from None
    for each in solution.diverged:
        log(str(each))
    arrays = _named({"x": solution.x, "y": solution.y})
    _write(folder / "result.safetensors", lambda path: path.write_bytes(save(arrays)))
    log("done")
    return solution


# --- checkpoints -----------------------------------------------------------------------------------------------------


def save_checkpoint(folder: Path, state: State, history: History, memory: Mapping[str, Any] | None = None) -> None:
    """Writes a checkpoint (arrays, then a manifest with their checksum) and removes all but the last two.

    ``memory`` is what a federation needs beside the state.
    """
    where = folder / "checkpoints"
    where.mkdir(exist_ok=True)
    body = save(_named(replace(state, round=None)))
    name = f"round-{state.round:08d}"
    _write(where / f"{name}.safetensors", lambda path: path.write_bytes(body))
    manifest: dict[str, Any] = {"round": int(state.round), "sha256": hashlib.sha256(body).hexdigest()}
    manifest |= {"bytes": len(body)} | ({} if memory is None else {"memory": dict(memory)})
    _write(where / f"{name}.json", lambda path: path.write_text(json.dumps(manifest)))
    for old in sorted(where.glob("round-*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def _newest(folder: Path, prepared: Prepared) -> Solution | None:
    """The newest checkpoint that is whole, with the history up to it; None if there is none."""
    log = _Log(folder / "log.txt")
    for manifest in sorted((folder / "checkpoints").glob("round-*.json"), reverse=True):
        try:
            state = _read_checkpoint(manifest, prepared)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            log(f"warning: checkpoint {manifest.stem} is damaged and left out: {error}", stderr=True)
            continue
        history = History.from_csv(folder / "history.csv")
        rows = [row for row in history.rows if row["round"] <= state.round]
        return Solution(None, None, History(rows), state, prepared.lanes)
    return None


def _memory(folder: Path, round: int) -> dict[str, Any] | None:
    """What a federation needs to go on from this round; its record of participants is cut off there."""
    path = folder / "checkpoints" / f"round-{round:08d}.json"
    if not path.exists():
        return None
    record = folder / "participants.jsonl"
    if record.exists():  # line t is that of round t
        lines = record.read_text().splitlines()[:round]
        _write(record, lambda path: path.write_text("".join(line + "\n" for line in lines)))
    memory: dict[str, Any] | None = json.loads(path.read_text()).get("memory")
    return memory


def _read_checkpoint(manifest: Path, prepared: Prepared) -> State:
    told = json.loads(manifest.read_text())
    path = manifest.with_suffix(".safetensors")
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != told["sha256"]:
        raise ValueError(f"{path.name} should have the checksum {told['sha256']}, it has {found}")
    arrays = load_file(path)
    like = replace(jax.eval_shape(prepared.initial_state), round=None)
    leaves, structure = jax.tree.flatten_with_path(like)
    names = [_name(path) for path, _ in leaves]
    if sorted(names) != sorted(arrays):
        raise ValueError(f"it should hold {', '.join(names)}, it holds {', '.join(arrays)}")
    state = jax.tree.unflatten(structure, [jnp.asarray(arrays[name]) for name in names])
    return replace(state, round=int(told["round"]))


def _named(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree.leaves_with_path(tree)
    return {_name(path): np.asarray(leaf, order="C") for path, leaf in leaves}  # a number stays one


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _write(path: Path, write: Callable[[Path], Any]) -> None:
    """Writes a file so that it is whole or not there: under another name, to the disk, then renamed."""
    other = path.with_name(path.name + ".part")
    write(other)
    with open(other, "rb+") as file:
        os.fsync(file.fileno())
    os.replace(other, path)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


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


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.toml"
    if not path.exists():
        raise ValueError(f"{folder} holds no run: there is no config.toml in it")
    try:
        return tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
