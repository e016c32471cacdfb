"""Checkpoints: what a run goes on from.

A checkpoint is a file of arrays (the best iterate so far is among them, as ``best.x``, ``best.y`` and so on) and a manifest
that has their checksum, the history so far, the checksum of the run's configuration and one of itself. What is damaged is
left out or refused, and never taken for a result. Of a run of several processes each writes the rows of its own clients
(``arrays.py``), and the manifest is written when all files are there; any number of devices or processes goes on from it.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError

from rookery.algorithm.setting import State
from rookery.engines.base import Run
from rookery.engines.homes import without_fill
from rookery.experiment.arrays import named, read_arrays, write_arrays
from rookery.experiment.log import Log
from rookery.files import write
from rookery.problem.layout import dotted
from rookery.solving.best import Best, as_numbers
from rookery.solving.evaluate import keeps_output, output_of
from rookery.solving.history import History

KEPT = 2
"""How many checkpoints are kept: a damaged newest one is no loss of the run."""

_UNREADABLE = (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError)
"""What reading a damaged file can raise."""


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from: a state, the history up to it, and what else was remembered."""

    state: State
    history: History
    memory: Mapping[str, Any]
    best: Best | None = None


def save_checkpoint(folder: Path, found: Checkpoint, seal: str, run: Run) -> None:
    """Writes a checkpoint (arrays, then a manifest) and removes all but the last two.

    ``seal`` is the checksum of the run's configuration. All processes of the run must call it.
    """
    state, best = found.state, found.best
    where = folder / "checkpoints"
    where.mkdir(exist_ok=True)
    if run.homes is not None and run.group is None:  # a checkpoint knows no devices
        keep, last = without_fill((state.keep, state.last), run.homes, run.lanes is not None)
        state = replace(state, keep=keep, last=last)
    name = f"round-{state.round:08d}"
    arrays = named(replace(state, round=None)) | ({} if best is None else named(_table(best)))
    told = write_arrays(where / name, arrays, run)
    if not run.is_first:
        return
    manifest: dict[str, Any] = {"round": int(state.round), "config": seal, **told, "history": found.history.as_csv()}
    manifest |= {"memory": dict(found.memory), "best": None if best is None else [best.metric, best.higher_is_better]}
    manifest = json.loads(json.dumps(manifest))  # as it will be read: JSON's names are strings
    write(where / f"{name}.json", json.dumps({**manifest, "sha256": digest(manifest)}).encode())
    for old in sorted(where.glob("round-*.json"))[:-KEPT]:
        old.unlink()
    kept = {path.stem for path in where.glob("round-*.json")}
    for path in where.glob("round-*.safetensors"):
        if path.name.partition(".")[0] not in kept:
            path.unlink(missing_ok=True)


def manifests(folder: Path) -> Iterator[tuple[Path, dict[str, Any] | str]]:
    """The manifests, newest first; where one is damaged, what is wrong with it."""
    for path in sorted((folder / "checkpoints").glob("round-*.json"), reverse=True):
        try:
            read = json.loads(path.read_text(encoding="utf-8"))
            told = read.pop("sha256")
            if told != digest(read) or path.stem != f"round-{read['round']:08d}":
                raise ValueError("the manifest is not what its checksum says")
        except (*_UNREADABLE, AttributeError) as error:
            yield path, f"{type(error).__name__}: {error}"
        else:
            yield path, read


def _table(best: Best) -> dict[str, Any]:
    """A best as arrays below one name, which no part of a state has."""
    return {"best": {"x": best.x, "y": best.y, "round": np.asarray(best.round), "value": np.asarray(best.value)}}


def newest(folder: Path, run: Run, seal: str) -> Checkpoint | None:
    """The newest checkpoint that is whole, for every process of the run; None if there is none."""
    log = Log(folder / "log.txt", run.is_first)

    def leave_out(path: Path, why: Any) -> None:
        log(f"warning: checkpoint {path.stem} is damaged and left out: {why}", stderr=True)

    for path, told in manifests(folder):
        if isinstance(told, str):
            leave_out(path, told)
            continue
        if told["config"] != seal:
            raise ValueError(f"{path} is of a run with another config.toml: what made {folder} is not known any more")
        wrong, found = "", None
        try:
            found = _read_arrays(path.with_suffix(""), told, run)
        except _UNREADABLE as error:
            wrong = str(error)
        if run.group is not None:
            wrong = next((each for each in run.group.exchange(wrong) if each), "")
        if wrong or found is None:
            leave_out(path, wrong)
            continue
        history = History.of_csv(told["history"])
        return Checkpoint(found[0], history, told["memory"], found[1])
    return None


def _read_arrays(where: Path, told: Mapping[str, Any], run: Run) -> tuple[State, Best | None]:
    stored = read_arrays(where, told, run)
    of_state, of_best = jax.eval_shape(run.initial_state), None
    like = replace(of_state, round=None)
    if told.get("best") is not None:  # a checkpoint from before there was a best has none, and is as good
        x, y = eqx.filter_eval_shape(output_of, run, of_state)
        of_best = _table(Best(x, y, 0, 0.0, *told["best"]))
    names = [*named(like), *named(of_best)]
    if sorted(names) != sorted(stored.names):
        raise ValueError(f"it should hold {', '.join(names)}, it holds {', '.join(sorted(stored.names))}")
    everybody = run.setting.clients.n

    def table(name: str) -> Any:
        if run.homes is None:
            return jnp.asarray(stored.rows(name, 0, everybody))
        return run.homes.table(lambda first, stop: stored.rows(name, first, stop), run.lanes is not None)

    def of_server(name: str) -> Any:
        leaf = stored.whole[name]
        return jnp.asarray(leaf) if run.homes is None else run.homes.everywhere(leaf)

    def read(path: Any, _: Any) -> Any:
        name = dotted(path)
        return table(name) if name == "last" or name.startswith("keep") else of_server(name)

    state: State = replace(jax.tree.map_with_path(read, like), round=int(told["round"]))
    if of_best is None:
        return state, None

    def of_best_one(path: Any, _: Any) -> Any:
        name = dotted(path)
        if name in stored.whole and not (run.group is not None and name.startswith("best.y") and by_client):
            return stored.whole[name]
        return stored.rows(name, 0, everybody) if run.group is None else table(name)

    by_client = keeps_output(run)
    found = jax.tree.map_with_path(of_best_one, of_best)["best"]
    return state, as_numbers(Best(**found, metric=told["best"][0], higher_is_better=told["best"][1]))


def digest(content: Any) -> str:
    """The SHA-256 of what JSON, or TOML, can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()
