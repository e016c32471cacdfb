"""``--track``: what a run evaluates, told to TensorBoard, Trackio, Weights & Biases or MLflow as it comes.

A tracker has one run for each seed, with the tables of ``config.toml`` as its parameters and every metric and cost at
step = round. ``tracking.json`` in the run's folder remembers which runs those are and how far they are, so that a run that
is resumed goes on in them. A tracker that fails is left alone; the run goes on.
"""

import contextvars
import importlib
import io
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rookery.algorithm.setting import State
from rookery.experiment.folder import StoredRun, read_config
from rookery.files import write
from rookery.problem.validation import warn
from rookery.solving.history import History

MEMORY = "tracking.json"
Watch = Callable[[State, History], None]


@dataclass(frozen=True)
class Told:
    """What a tracker is told about one seed before its first row."""

    folder: Path
    project: str
    name: str
    seed: int
    parameters: Mapping[str, Any]
    known: str | None
    """The tracker's own name for it, if it goes on."""


class Tracked(Protocol):
    """One seed in a tracker. ``id`` finds it again."""

    id: str

    def log(self, row: Mapping[str, float], round: int) -> None:
        """Adds a row."""

    def end(self, how: str) -> None:
        """Marks the end: finished, failed or interrupted."""


class TensorBoard:
    """Event files in the run's own folder; a resumed run adds a file beside the first."""

    def __init__(self, package: Any, told: Told):
        self.id = f"seed-{told.seed}"
        # Its files are named by the second: one that is opened soon after another would replace it.
        own = f".{secrets.token_hex(3)}"
        self._writer = package.SummaryWriter(str(told.folder / "tensorboard" / self.id), filename_suffix=own)
        if told.known is None:
            rows = [f"    {name} = {value}" for name, value in told.parameters.items()]  # four spaces: as it is
            self._writer.add_text("config", "\n".join(rows), 0)

    def log(self, row: Mapping[str, float], round: int) -> None:
        """Adds a row, to the disk."""
        for name, value in row.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, how: str) -> None:
        """Marks the end in a text."""
        self._writer.add_text("end", how)
        self._writer.close()


class Trackio:
    """Trackio, which writes to this machine unless its environment variables say otherwise."""

    def __init__(self, package: Any, told: Told):
        # Trackio finds a run again by its name alone.
        self.id = told.known or f"{told.name}-{secrets.token_hex(3)}"
        self._levels = package.AlertLevel
        how = {"config": dict(told.parameters), "group": told.folder.resolve().name, "resume": "allow", "embed": False}
        with redirect_stdout(io.StringIO()):  # it prints how to look at a project, for each seed again
            # A context of its own: ``init`` ends the run that it finds in the present one, and seeds go on together.
            self._run = contextvars.Context().run(package.init, told.project, name=self.id, **how)

    def log(self, row: Mapping[str, float], round: int) -> None:
        """Adds a row."""
        self._run.log(dict(row), step=round)

    def end(self, how: str) -> None:
        """Marks the end with an alert: Trackio's runs have no status."""
        with redirect_stdout(io.StringIO()):
            self._run.alert(how, level=self._levels.INFO if how == "finished" else self._levels.ERROR)
            self._run.finish()


class WandB:
    """Weights & Biases, offline where WANDB_MODE says so."""

    def __init__(self, package: Any, told: Told):
        self.id = told.known or f"{secrets.token_hex(4)}-{told.seed}"
        self._run = package.init(
            project=os.environ.get("WANDB_PROJECT", told.project),
            name=told.name,
            id=self.id,
            resume="allow",
            group=told.folder.resolve().name,
            config=dict(told.parameters),
            dir=str(told.folder),
            reinit="create_new",  # seeds go on together
        )

    def log(self, row: Mapping[str, float], round: int) -> None:
        """Adds a row."""
        self._run.log(dict(row), step=round)

    def end(self, how: str) -> None:
        """Marks the end by an exit code."""
        self._run.finish(exit_code=0 if how == "finished" else 1)


class MLflow:
    """MLflow, at the tracking URI that its environment variable or default says."""

    _STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}  # noqa: RUF012  (never changed)
    _AT_ONCE = 100
    _LONGEST = 6000

    def __init__(self, package: Any, told: Told):
        self._entities = package.entities
        self._client = package.MlflowClient()
        if told.known is not None:
            self.id = told.known
            self._client.update_run(self.id, status="RUNNING")
            return
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", told.project)
        there = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if there is None else there.experiment_id
        self.id = self._client.create_run(experiment, run_name=told.name).info.run_id
        rows = [self._entities.Param(key, str(value)[: self._LONGEST]) for key, value in told.parameters.items()]
        for first in range(0, len(rows), self._AT_ONCE):  # what its servers take
            self._client.log_batch(self.id, params=rows[first : first + self._AT_ONCE])

    def log(self, row: Mapping[str, float], round: int) -> None:
        """Adds a row; what MLflow does not take in a name becomes an underscore."""
        now = int(1000 * time.time())
        items = [(re.sub(r"[^\w\-. /]", "_", name), value) for name, value in row.items()]
        self._client.log_batch(self.id, metrics=[self._entities.Metric(*item, now, round) for item in items])

    def end(self, how: str) -> None:
        """Marks the end by a status."""
        self._client.set_terminated(self.id, self._STATUS[how])


TRACKERS: dict[str, tuple[str, Callable[[Any, Told], Tracked]]] = {
    "tensorboard": ("tensorboardX", TensorBoard),
    "trackio": ("trackio", Trackio),
    "wandb": ("wandb", WandB),
    "mlflow": ("mlflow", MLflow),
}
"""The package of each, and what speaks with it."""


def check_trackers(names: Sequence[str]) -> list[str]:
    """The trackers that --track named, each once, if they are known and installed."""
    for name in names:
        if name not in TRACKERS:
            raise ValueError(f"--track must be one of {', '.join(TRACKERS)}, got {name!r}")
        try:
            with redirect_stdout(sys.stderr):
                importlib.import_module(TRACKERS[name][0])
        except ImportError:
            raise ValueError(f"--track {name} needs a package: pip install 'rookery[{name}]'") from None
    return list(dict.fromkeys(names))


@contextmanager
def tracked(names: Sequence[str], folder: Path) -> Iterator[Watch | None]:
    """What ``start_run`` and ``resume_run`` take as ``watch``, for a run in this folder; None where there is no tracker.

    When the block ends, so do the tracker's runs: as finished, or failed (a seed that diverged too), or interrupted.
    """
    followers = [Follower(name, folder) for name in names]
    how = "failed"

    def watch(state: State, history: History) -> None:
        for each in followers:
            each.told(lambda each=each: each.follow(state, history))  # type: ignore[misc]

    try:
        yield watch if followers else None
        how = "finished"
    except KeyboardInterrupt:
        how = "interrupted"
        raise
    finally:
        for each in followers:
            each.told(lambda each=each: each.end(how))  # type: ignore[misc]


class Follower:
    """One tracker of the run in a folder."""

    def __init__(self, name: str, folder: Path):
        self._name, self._folder = name, folder
        self._seeds: list[Tracked] = []
        self._round = -1
        self._died = np.zeros(0, bool)
        self._works = True

    def told(self, what: Callable[[], None]) -> None:
        """Does this unless the tracker has failed before; if it fails now, warns once."""
        if not self._works:
            return
        try:
            with redirect_stdout(sys.stderr):  # stdout is for --json
                what()
        except Exception as error:
            self._works = False
            warn(f"{self._name} failed, the run goes on without it: {type(error).__name__}: {error}")

    def follow(self, state: State, history: History) -> None:
        """Adds the rows that the tracker does not have yet."""
        self._died = np.atleast_1d(np.asarray(state.died)) >= 0
        if not self._seeds:
            self._open(len(self._died), history)
        for row in history:
            if row["round"] > self._round:
                for lane, seed in enumerate(self._seeds):
                    seed.log(_numbers(row, lane), int(row["round"]))
        self._round = int(history.last["round"])
        self._remember()

    def end(self, how: str) -> None:
        """Ends the tracker's runs; a seed that diverged has failed, whatever became of the others."""
        for seed, died in zip(self._seeds, self._died, strict=True):
            seed.end("failed" if died else how)

    def _open(self, seeds: int, history: History) -> None:
        config = read_config(self._folder)
        memory = self._memory().get(self._name, {"runs": [None] * seeds, "round": -1})
        package, kind = TRACKERS[self._name]
        project = re.sub(r"[^\w.-]", "-", StoredRun(self._folder, config, history).title)
        parameters = dict(_flat({key: table for key, table in config.items() if key != "checksum"}))
        first = int(config["run"].get("seed", 0))
        for lane, known in enumerate(memory["runs"]):
            name = f"{self._folder.resolve().name}-seed-{first + lane}"
            told = Told(self._folder, project, name, first + lane, parameters, known)
            self._seeds.append(kind(importlib.import_module(package), told))
        self._round = memory["round"]

    def _memory(self) -> dict[str, Any]:
        path = self._folder / MEMORY
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    def _remember(self) -> None:
        mine = {"runs": [seed.id for seed in self._seeds], "round": self._round}
        write(self._folder / MEMORY, json.dumps({**self._memory(), self._name: mine}).encode(), lasting=False)


def _numbers(row: Mapping[str, Any], lane: int) -> dict[str, float]:
    """The row of one seed."""
    return {name: float(v[lane] if np.ndim(v) else v) for name, v in row.items() if name != "round"}


def _flat(tables: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Each value with the names of its tables, ``algorithm.eta_x``."""
    for name, value in tables.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, value
