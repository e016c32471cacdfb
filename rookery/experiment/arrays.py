"""Arrays in files that do not know on how many devices or processes they were made.

What the server has is in ``NAME.safetensors``. Tables of clients are there too if one process made the run; of several, each
writes the rows of its own clients, as ``NAME.clients-0-of-2.safetensors`` and so on, so that nobody ever holds them all. Any
number of processes reads them, each the rows that it needs.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import Array
from safetensors import safe_open
from safetensors.numpy import load, save

from rookery.engines.base import Run
from rookery.engines.homes import is_divided
from rookery.files import write
from rookery.problem.layout import dotted

CHUNK = 1 << 24
"""Bytes that are hashed at a time."""


def named(tree: Any) -> dict[str, Any]:
    """The arrays of a pytree by their dotted names."""
    return {dotted(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def file_of(where: Path) -> Path:
    """The file of what is not in parts."""
    return where.with_name(f"{where.name}.safetensors")


def part_of(where: Path, number: int, count: int) -> Path:
    """The file of one process's clients."""
    return where.with_name(f"{where.name}.clients-{number}-of-{count}.safetensors")


def write_arrays(where: Path, arrays: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """Writes arrays by name; all processes of a run must call it. Returns what :func:`read_arrays` needs to be told."""
    group, homes = run.group, run.homes
    if group is None or homes is None:
        return _written(file_of(where), {name: np.asarray(leaf, order="C") for name, leaf in arrays.items()})
    divided = {name: leaf for name, leaf in arrays.items() if is_divided(leaf)}
    own = {name: _own_rows(leaf, len(homes.own), run.lanes is not None) for name, leaf in divided.items()}
    with group.together():
        mine = {"rows": [homes.own.start, homes.own.stop]}
        if divided:
            mine |= _written(part_of(where, group.number, group.count), own)
        told: dict[str, Any] = {}
        if group.number == 0:
            rest = {name: np.asarray(leaf, order="C") for name, leaf in arrays.items() if name not in divided}
            told = _written(file_of(where), rest)
        everybody = group.exchange([mine, told])
    parts = {"parts": [each for each, _ in everybody]} if divided else {}
    return {**everybody[0][1], **parts}


def _written(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    body = save(dict(arrays))
    write(path, body)
    return {"bytes": len(body), "arrays": hashlib.sha256(body).hexdigest()}


def _own_rows(leaf: Array, count: int, lanes: bool) -> np.ndarray:
    """The rows of the clients that live in this process, without those that only fill up."""
    axis = int(lanes)
    shards = sorted(leaf.addressable_shards, key=lambda shard: shard.index[axis].start or 0)
    whole = np.concatenate([np.asarray(shard.data) for shard in shards], axis)
    return np.ascontiguousarray(whole[:, :count] if lanes else whole[:count])


@dataclass(frozen=True)
class Stored:
    """Arrays that were written: those that are whole, and where the rows of the others are."""

    whole: Mapping[str, np.ndarray]
    parts: tuple[tuple[range, Path], ...]
    names: frozenset[str]
    """All of them."""
    lanes: bool

    def rows(self, name: str, first: int, stop: int) -> np.ndarray:
        """The rows of some clients; no others are read."""
        if name in self.whole:
            leaf = self.whole[name]
            return leaf[:, first:stop] if self.lanes else leaf[first:stop]
        pieces: list[np.ndarray] = []
        for held, path in self.parts:
            low, high = max(first, held.start) - held.start, min(stop, held.stop) - held.start
            if low < high or not pieces:  # an empty piece tells the shape
                with safe_open(path, "numpy") as file:
                    told, high = file.get_slice(name), max(low, high)
                    low, high = (0, 0) if low >= high else (low, high)
                    pieces.append(told[:, low:high] if self.lanes else told[low:high])
        return np.concatenate(pieces, int(self.lanes))


def read_arrays(where: Path, told: Mapping[str, Any], run: Run) -> Stored:
    """What was written, if it is what its checksums say; of parts only those are looked at that this process needs.

    Raises:
        ValueError, OSError: a file is missing or damaged.
    """
    body = file_of(where).read_bytes()
    _check(file_of(where), hashlib.sha256(body).hexdigest(), told["arrays"])
    whole = load(body)
    parts = []
    needed = range(run.setting.clients.n) if run.homes is None else run.homes.own
    every = told.get("parts", [])
    names = set(whole)
    for number, each in enumerate(every):
        held, path = range(*map(int, each["rows"])), part_of(where, number, len(every))
        if number == 0 or max(held.start, needed.start) < min(held.stop, needed.stop):
            _check(path, _hash(path), each["arrays"])
        parts.append((held, path))
    if parts:
        if [each.start for each, _ in parts] + [run.setting.clients.n] != [0] + [each.stop for each, _ in parts]:
            raise ValueError(f"the parts of {where.name} are not those of {run.setting.clients.n} clients")
        with safe_open(parts[0][1], "numpy") as file:
            names |= set(file.keys())
    return Stored(whole, tuple(parts), frozenset(names), run.lanes is not None)


def _check(path: Path, found: str, told: str) -> None:
    if found != told:
        raise ValueError(f"{path.name} should have the checksum {told}, it has {found}")


def _hash(path: Path) -> str:
    told = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            told.update(chunk)
    return told.hexdigest()
