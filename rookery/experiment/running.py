"""Runs in folders: how one is started, gone on with, and stopped.

One process at a time writes in a folder. Whichever engine makes the rounds, the files are the same.
"""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rookery import processes
from rookery.algorithm.setting import State
from rookery.engines.base import Engine, EngineError
from rookery.engines.homes import own_clients, whole
from rookery.engines.simulator import Simulator
from rookery.experiment.arrays import named, write_arrays
from rookery.experiment.checkpoint import Checkpoint, newest, save_checkpoint
from rookery.experiment.engines import check_same, engine_of, engine_table
from rookery.experiment.environment import environment
from rookery.experiment.folder import as_read, locked, metrics, read_config, write_config
from rookery.experiment.log import Log, also_logged
from rookery.experiment.outcome import LEARNED, RIVALS, write_learned, write_rivals
from rookery.experiment.settings import Settings, settings_of
from rookery.experiment.source import COPY
from rookery.files import write
from rookery.fingerprint import examples_sum, fingerprint
from rookery.models.choice import find_own, is_own_file
from rookery.problem.clients import Clients
from rookery.problem.problems import Bilevel
from rookery.problem.validation import warn
from rookery.solving.best import Best
from rookery.solving.history import History
from rookery.solving.lanes import Lanes
from rookery.solving.loop import finished, make_rounds
from rookery.solving.prepare import Prepared, many, prepare, single
from rookery.solving.solution import Solution
from rookery.solving.spending import account_of
from rookery.stopping import Interrupted, ask, asked, heard, stop_if_asked
from rookery.tasks import Task


def prepare_run(
    settings: Settings, tasks: list[Task] | None = None, engine: Engine | None = None
) -> tuple[Prepared, list[Task]]:
    """The run of these settings, checked and ready; its lanes are the seeds, where the engine makes several at once."""
    group = processes.current()
    if tasks is None:
        tasks = settings.make_tasks() if group is None else _own_parts(settings.make_tasks())
    engine = Simulator(settings.clients_at_once) if engine is None else engine
    if isinstance(engine, Simulator) and engine.clients_at_once is None:
        engine = replace(engine, clients_at_once=settings.clients_at_once)
    first = tasks[0]
    how: dict[str, Any] = {
        "participation": settings.participation,
        "local_steps": settings.steps,
        "batch_size": settings.batch_size,
        "engine": engine,
        "metric": first.metric,
        "higher_is_better": first.higher_is_better,
        "rounds": settings.rounds,
        **settings.trust,
    }
    if engine.batches:
        given = many(
            first.problem,
            settings.make_algorithm(),
            [task.clients for task in tasks],
            Lanes([task.x0 for task in tasks]),
            Lanes([task.y0 for task in tasks]),
            keys=range(settings.seed, settings.seed + settings.seeds),
            evaluate=Lanes([task.evaluate for task in tasks]),
            **how,
        )
        return prepare(given), tasks
    if settings.seeds != 1:
        raise ValueError(f"seeds must be 1 on an engine that makes one run at a time, got {settings.seeds}")
    start = first.clients, first.x0, first.y0
    algorithm = settings.make_algorithm()
    given = single(first.problem, algorithm, *start, key=settings.seed, evaluate=first.evaluate, **how)
    return prepare(given), tasks


def _own_parts(tasks: list[Task]) -> list[Task]:
    """The tasks with the data of this process's clients alone.

    Seeds with splits of their own are lanes that share the data, and stay as they are: each device takes what it needs.
    """
    clients = tasks[0].clients
    if any(task.clients is not clients for task in tasks):
        return tasks
    own = clients.cut(own_clients(clients.n))
    return [replace(task, clients=own) for task in tasks]


def start_run(
    settings: Settings,
    folder: Path,
    command: str = "",
    engine: Engine | None = None,
    note: str = "",
    rates_from: str = "",
    rivals: bool = False,
    **how: Any,
) -> Solution:
    """Starts a run in a new folder; ``how`` is that of :func:`resume_run`, ``note`` is shown once all is checked.

    ``rates_from`` is told in ``config.toml``: "default", or nothing if rates were given, stored or found. ``rivals``
    asks for the task's simple rivals as well, once the run is done.
    """
    with processes.together():
        processes.on_first(lambda: check_new(folder))
        placed = None if engine is None else engine.in_folder(folder)
        prepared, tasks = prepare_run(settings, engine=placed)
        config: dict[str, Any] = settings.tables()
        config["run"] |= {"metric": tasks[0].metric, "higher_is_better": tasks[0].higher_is_better}
        config["run"]["command"] = command or f"rookery run {shlex.quote(str(folder / 'config.toml'))}"
        if rates_from:
            config["run"]["rates_from"] = rates_from
        if rivals:
            config["run"]["rivals"] = True
        if (model := _model(settings)) is not None:
            config["run"]["model_sha256"] = model
        config["environment"] = environment()
        if engine is not None:
            config["engine"] = engine_table(engine)
        if (source := settings.source.table()) is not None:
            config["source"] = {**source, "data": _data(tasks)}

        def write_all() -> str:
            check_new(folder)
            if (copy := settings.source.copy()) is not None:
                write(folder / COPY, copy)
            if note:
                Log(folder / "log.txt")(note, stderr=True)
            return write_config(folder, config)

        with _locked(folder):
            seal = processes.on_first(write_all)
            _check_shared(folder, seal)
            with _or_resumed(folder):
                solution = _go(folder, Plan.of(settings), prepared, seal, None, **how)
                _leave(folder, settings, tasks, solution, rivals)
            return solution


@contextmanager
def _or_resumed(folder: Path) -> Iterator[None]:
    """A run that ends because another process is lost, in whatever it was doing, says how it continues."""
    try:
        yield
    except processes.Lost as error:
        again = f"rookery resume {shlex.quote(str(folder))}"
        raise error if again in str(error) else processes.Lost(f"{error}; {again} continues from there") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder is this process's to write in, or that of the first of several."""
    with locked(folder) if processes.is_first() else nullcontext():
        yield


def _check_shared(folder: Path, seal: str) -> None:
    """All processes see the same folder: each writes in it what its own clients keep."""
    if processes.current() is not None and read_config(folder)["checksum"]["sha256"] != seal:
        raise ValueError(f"{folder} must be one that all processes share: process 0 has written another config.toml")


def _leave(folder: Path, settings: Settings, tasks: list[Task], solution: Solution, rivals: bool) -> None:
    """What a run that is done leaves for people; what is there already stays."""
    if processes.current() is not None and tasks[0].learned is not None:
        x, y = whole((solution.x, solution.y))
        if isinstance(tasks[0].problem, Bilevel) and tasks[0].problem.lower_level == "local":
            y = jax.tree.map(lambda leaf: leaf[:, : tasks[0].clients.n], y)
        died: Any = np.asarray(solution.state.died)
        state = State(
            solution.state.round, None, None, died, died
        )  # of the rest the first process alone must touch nothing
        solution = replace(solution, x=x, y=y, state=state)
    processes.on_first(lambda: _left(folder, settings, tasks, solution, rivals))


def _left(folder: Path, settings: Settings, tasks: list[Task], solution: Solution, rivals: bool) -> None:
    log = Log(folder / "log.txt")
    try:
        if not (folder / LEARNED).exists():
            names = write_learned(folder, tasks[0], solution)
            if names:
                log(f"learned: {', '.join(names)}")
        if rivals and not (folder / RIVALS).exists():
            log("simple rivals")
            write_rivals(folder, settings, tasks)
    except Interrupted as stopped:
        stopped.add_note(f"Continue with: rookery resume {shlex.quote(str(folder))}")
        raise


def _model(settings: Settings) -> str | None:
    """The checksum of the file of a network of one's own."""
    model = settings.options.get("model")
    return find_own(str(model)).sha256 if is_own_file(model) else None


def _data(tasks: list[Task]) -> str:
    """The checksum of what a module makes: it may read files that nobody else knows of.

    It is the same however many processes hold the data.
    """
    return fingerprint([(data_mark(task.clients), task.x0, task.y0) for task in tasks])


def data_mark(clients: Clients) -> Any:
    """What stands for the data of all clients, however many processes hold them: of the clients' own it is a sum."""
    group = processes.current()
    total = examples_sum(clients.cut(own_clients(clients.n)))
    if group is not None:
        total = sum(int(each) for each in group.exchange(str(total))) % 2**64
    return total, clients.weights, clients.server


def check_new(folder: Path) -> None:
    """Raises if a folder holds a run."""
    if (folder / "config.toml").exists():
        raise ValueError(f"{folder} holds a run already: choose another folder, or rookery resume {folder}")


def resume_run(folder: Path, engine: Engine | None = None, **how: Any) -> Solution:
    """Goes on with a run that was interrupted; its iterates are those of one that was not.

    Args:
        folder: where it is.
        engine: what makes the rounds; by default what made the earlier ones. It must be given if that is not one of
            Rookery's own.
        how: ``progress`` (a bar, by default on a terminal), ``checkpoint_seconds`` between checkpoints, ``watch``, called
            with (state, history) after each evaluation.
    """
    with processes.together():
        config = read_config(folder)
        with _locked(folder):
            settings = settings_of(config, folder, unchanged=True)
            if config["run"].get("model_sha256") != _model(settings):
                model = settings.options["model"]
                raise ValueError(
                    f"{model} was changed since the run in {folder} began: start a new run, or put it back"
                )
            told = config.get("engine")
            chosen = engine_of(told) if engine is None else engine
            if chosen is not None:
                check_same(chosen, told)
            prepared, tasks = prepare_run(settings, engine=None if chosen is None else chosen.in_folder(folder))
            if "source" in config and config["source"].get("data") != _data(tasks):
                raise ValueError(
                    f"{settings.task} does not make the data any more with which the run in {folder} began: start a new run"
                )
            seal = config["checksum"]["sha256"]
            with _or_resumed(folder):
                solution = _go(folder, Plan.of(settings), prepared, seal, newest(folder, prepared.run, seal), **how)
                _leave(folder, settings, tasks, solution, bool(config["run"].get("rivals", False)))
            return solution


@dataclass(frozen=True)
class Plan:
    """What a run is called in its log, and how long it is."""

    name: str
    rounds: int
    every: int

    @classmethod
    def of(cls, settings: Settings) -> "Plan":
        """That of the run of a task or module."""
        name = f"{settings.algorithm} on {settings.source.title}/{settings.dataset}"
        return cls(name, settings.rounds, settings.every)


def go_in_folder(
    folder: Path, plan: Plan, prepared: Prepared, config: dict[str, Any], again: str = "the same command", **how: Any
) -> Solution:
    """Starts a run that is not one of ``rookery run`` in a folder, or goes on with the one that is there.

    ``again`` is what continues it; ``how`` is that of :func:`resume_run`.
    """
    with processes.together(), _locked(folder):
        if not processes.on_first(lambda: (folder / "config.toml").exists()):
            seal = processes.on_first(lambda: write_config(folder, {**config, "environment": environment()}))
            _check_shared(folder, seal)
            return _go(folder, plan, prepared, seal, None, again=again, **how)
        there = read_config(folder)
        other = sorted(name for name, each in as_read(config).items() if there.get(name) != each)
        if other:
            raise ValueError(f"{folder} holds a run with another {' and '.join(other)}: choose another folder")
        seal = there["checksum"]["sha256"]
        return _go(folder, plan, prepared, seal, newest(folder, prepared.run, seal), again=again, **how)


def _go(
    folder: Path,
    plan: Plan,
    prepared: Prepared,
    seal: str,
    start: Checkpoint | None,
    *,
    again: str = "",
    progress: bool | None = None,
    checkpoint_seconds: float = 10.0,
    watch: Callable[[State, History], None] | None = None,
) -> Solution:
    group, first = prepared.run.group, prepared.run.is_first
    log = Log(folder / "log.txt", first)
    again = again or f"rookery resume {shlex.quote(str(folder))}"
    done = 0 if start is None else int(start.state.round)
    log(f"{plan.name}: {plan.rounds} rounds, from round {done}")
    written = time.monotonic()
    evaluated = False
    if start is not None and start.best is None and prepared.metric is not None:
        log(f"the checkpoint is of an earlier version: the best {prepared.metric} is looked for from round {done} on")
    if start is not None and first:  # the table may be behind or damaged
        write(folder / "history.csv", start.history.as_csv().encode())
    if first:
        _cut_record(folder / "participants.jsonl", done)

    def keep(state: State, history: History) -> None:
        nonlocal evaluated
        if first:
            write(folder / "history.csv", history.as_csv().encode())
        last = history.last
        log(f"round {state.round}: " + ", ".join(f"{k} {np.mean(last[k]):.6g}" for k in metrics(last)))
        evaluated = True

    def remember(state: State, history: History, memory: dict[str, Any], best: Best | None) -> None:
        nonlocal written, evaluated
        session = memory["session"]
        if session is not None and "record" in session:
            _append(folder / "participants.jsonl", {"round": int(state.round) - 1, **session["record"]})
        last = state.round >= plan.rounds or bool((np.asarray(state.died) >= 0).all())
        due = time.monotonic() - written >= checkpoint_seconds
        if group is not None:  # all go by the clock of the first, and stop if one is asked to
            told = group.exchange([due, asked()])
            due = told[0][0]
            for each in (number for _, number in told if number):
                ask(each)
        if session is not None or last or asked() or due:  # what a session remembers is of this very round
            save_checkpoint(folder, Checkpoint(state, history, memory, best), seal, prepared.run)
            written = time.monotonic()
        if evaluated and watch is not None and first:
            watch(state, history)
        evaluated = False
        stop_if_asked()

    def make() -> Solution:
        if start is not None and done >= plan.rounds:
            account = account_of(prepared.run)
            spent = None if account is None else account.spent(start.memory["executions"])
            made = finished(prepared, start.state, start.history, start.best, spent)
        else:
            before = memory = None
            if start is not None:
                before = Solution(None, None, start.history, start.state, prepared.run.lanes, best=start.best)
                memory = start.memory
            made = make_rounds(prepared, plan.rounds - done, plan.every, progress, before, keep, memory, remember)
        for each in made.diverged:
            log(str(each))
        found: dict[str, Any] = {"x": made.x, "y": made.y}
        if made.best is not None:
            found["best"] = {"x": made.best.x, "y": made.best.y}
            for value, round in zip(*map(np.atleast_1d, (made.best.value, made.best.round)), strict=True):
                log(f"best {made.best.metric}: {value:.6g} in round {round}")
        for remark in made.remarks:
            log(remark)
            if first:
                warn(remark)
        told = write_arrays(folder / "result", named(found), prepared.run)
        log(f"done: result.safetensors has the SHA-256 {told['arrays']}")
        for number, part in enumerate(told.get("parts", ())):
            log(f"done: the part of process {number} has the SHA-256 {part['arrays']}")
        return made

    try:
        watched = nullcontext() if group is None else group.watched(f"{again} continues")
        with heard(at_once=False), also_logged(log), watched:  # what is computed is saved when it comes back
            return make()
    except (EngineError, processes.Lost) as error:
        log(str(error))
        raise type(error)(f"{error}; {again} continues from there") from None
    except Interrupted as stopped:
        log(f"stopped by {stopped}")
        stopped.add_note(f"Continue with: {again}")
        raise


def _append(path: Path, line: Mapping[str, Any]) -> None:
    """Adds a line of JSON, to the disk."""
    with open(path, "a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def _cut_record(path: Path, round: int) -> None:
    """Leaves of the record of participants what belongs to the rounds before this one."""
    if path.exists():
        lines = [line for line in path.read_text().splitlines() if json.loads(line)["round"] < round]
        write(path, "".join(line + "\n" for line in lines).encode())
