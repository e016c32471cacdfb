"""Checkpoints: what a run goes on from.

A checkpoint is a file of arrays (the best iterate so far is among them, as ``best.x``, ``best.y`` and so on) and a manifest
that has their checksum, the history so far, the checksum of the run's configuration and one of itself. What is damaged is
left out or refused, and never taken for a result.
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
from safetensors.numpy import load, save

from rookery.algorithm.setting import State
from rookery.engines.base import Run
from rookery.experiment.log import Log
from rookery.files import write
from rookery.solving.best import Best, as_numbers
from rookery.solving.evaluate import output_of
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


def save_checkpoint(folder: Path, found: Checkpoint, seal: str) -> None:
    """Writes a checkpoint (arrays, then a manifest) and removes all but the last two.

    ``seal`` is the checksum of the run's configuration.
    """
    state, best = found.state, found.best
    where = folder / "checkpoints"
    where.mkdir(exist_ok=True)
    body = save(named(replace(state, round=None)) | ({} if best is None else named(_table(best))))
    name = f"round-{state.round:08d}"
    write(where / f"{name}.safetensors", body)
    manifest: dict[str, Any] = {"round": int(state.round), "config": seal, "bytes": len(body)}
    manifest |= {"arrays": hashlib.sha256(body).hexdigest(), "history": found.history.as_csv()}
    manifest |= {"memory": dict(found.memory), "best": None if best is None else [best.metric, best.higher_is_better]}
    manifest = json.loads(json.dumps(manifest))  # as it will be read: JSON's names are strings
    write(where / f"{name}.json", json.dumps({**manifest, "sha256": digest(manifest)}).encode())
    for old in sorted(where.glob("round-*.json"))[:-KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)


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
    """The newest checkpoint that is whole; None if there is none."""
    log = Log(folder / "log.txt")

    def leave_out(path: Path, why: Any) -> None:
        log(f"warning: checkpoint {path.stem} is damaged and left out: {why}", stderr=True)

    for path, told in manifests(folder):
        if isinstance(told, str):
            leave_out(path, told)
            continue
        if told["config"] != seal:
            raise ValueError(f"{path} is of a run with another config.toml: what made {folder} is not known any more")
        try:
            state, best = _read_arrays(path.with_suffix(".safetensors"), told, run)
        except _UNREADABLE as error:
            leave_out(path, error)
            continue
        history = History.of_csv(told["history"])
        return Checkpoint(state, history, told["memory"], best)
    return None


def _read_arrays(path: Path, told: Mapping[str, Any], run: Run) -> tuple[State, Best | None]:
    body = path.read_bytes()
    found = hashlib.sha256(body).hexdigest()
    if found != told["arrays"]:
        raise ValueError(f"{path.name} should have the checksum {told['arrays']}, it has {found}")
    arrays = load(body)
    of_state, of_best = jax.eval_shape(run.initial_state), None
    like = replace(of_state, round=None)
    if told.get("best") is not None:  # a checkpoint from before there was a best has none, and is as good
        x, y = eqx.filter_eval_shape(output_of, run, of_state)
        of_best = _table(Best(x, y, 0, 0.0, *told["best"]))
    names = [_name(path) for path, _ in jax.tree.leaves_with_path(like) + jax.tree.leaves_with_path(of_best)]
    if sorted(names) != sorted(arrays):
        raise ValueError(f"it should hold {', '.join(names)}, it holds {', '.join(arrays)}")
    state: State = jax.tree.map_with_path(lambda path, _: jnp.asarray(arrays[_name(path)]), like)
    state = replace(state, round=int(told["round"]))
    if of_best is None:
        return state, None
    found = jax.tree.map_with_path(lambda path, _: arrays[_name(path)], of_best)["best"]
    return state, as_numbers(Best(**found, metric=told["best"][0], higher_is_better=told["best"][1]))


def digest(content: Any) -> str:
    """The SHA-256 of what JSON, or TOML, can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def named(tree: Any) -> dict[str, np.ndarray]:
    """The arrays of a pytree by their dotted names."""
    leaves = jax.tree.leaves_with_path(tree)
    return {_name(path): np.asarray(leaf, order="C") for path, leaf in leaves}  # a number stays one


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")
