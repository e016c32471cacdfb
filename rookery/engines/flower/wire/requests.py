"""What a server asks of a node: written by the server, and read once where it arrives.

A node takes nothing from a request but numbers within bounds, names of algorithms and hexadecimal digests. Whatever is
not so is :class:`Malformed`.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rookery.aggregation.privacy import PARTS
from rookery.engines.flower.wire.fields import (
    MOST,
    MOST_STEPS,
    Fields,
    Order,
    Version,
    batch,
    by_client,
    clients,
    count,
    listed,
    number,
    optional,
    order,
    pair,
    run_name,
    steps,
    table,
    text,
    version,
    whole,
    within,
    yes,
)
from rookery.engines.flower.wire.pack import Malformed, brief, pack, unpack
from rookery.engines.flower.wire.summing import STEPS, Masking, Step, masking, secure_sum
from rookery.typing import Tree


@dataclass(frozen=True)
class Begin:
    """A run starts, or this node is new in it."""

    run: str
    n: int
    x64: bool
    algorithm: dict[str, Any]
    """Its name and rates."""
    batch_size: tuple[int | None, int | None]
    steps: tuple[int, int]
    costs: bool
    """Whether the node shall tell what a round costs."""
    x: Any
    y: Any
    key: Any
    keep: dict[int, Tree]
    """What some clients keep at the start, if it is not the algorithm's own start."""
    privacy: dict[str, Any] | None = None
    """How uploads are clipped, if they are: the clip (None if it is told in each exchange), by part or whole; and how many
    participants are expected, which weights are made for."""
    secure: dict[str, Any] | None = None
    """The options of secure sums, if the run has them: then no upload leaves the node without a mask."""

    def packed(self) -> bytes:
        """The request as it travels."""
        tree = {"x": self.x, "y": self.y, "key": self.key, "keep": _rows(self.keep)}
        return pack(jax.device_get(tree), {"kind": "begin", **self._same(), "costs": self.costs})

    @property
    def told(self) -> str:
        """A digest of all but ``keep`` and ``costs``: a run has one, however often it is begun."""
        return hashlib.sha256(pack([self.x, self.y, self.key], self._same())).hexdigest()

    def _same(self) -> dict[str, Any]:
        """What is the same however often the run is begun."""
        return {
            "run": self.run,
            "n": self.n,
            "x64": self.x64,
            "algorithm": self.algorithm,
            "batch_size": list(self.batch_size),
            "steps": list(self.steps),
            "privacy": self.privacy,
            "secure": self.secure,
        }


@dataclass(frozen=True)
class Work:
    """One exchange of one round, for the participants that live here."""

    run: str
    order: Order
    exchange: int
    index: int
    version: Version
    """Of what the clients will keep."""
    first: bool
    """Whether it is the first exchange of a draw."""
    clients: list[int]
    last: list[int]
    """The round in which each was last counted, −1 if never."""
    counted: list[Version | None]
    """The version of each one's state that was counted, if any."""
    equal: dict[str, bool]
    """Whether all clients have equally many examples, by level."""
    down: dict[str, Tree]
    private: dict[int, dict[str, Tree]]
    clips: Any = None
    """The clips of each part of an upload, where they are not told once for all."""
    secure: Masking | None = None
    """What a secure sum needs beside."""

    @property
    def common(self) -> bytes:
        """A digest of what all parties of a secure sum must be told alike."""
        told = {} if self.secure is None else self.secure.common
        meta = {"exchange": self.exchange, "index": self.index, "version": list(self.version), "first": self.first}
        meta |= {"equal": dict(sorted(self.equal.items())), **told}
        return hashlib.sha256(pack({"down": self.down, "clips": self.clips}, meta)).digest()

    def packed(self) -> bytes:
        """The request as it travels."""
        meta = {
            "kind": "exchange",
            "run": self.run,
            "order": list(self.order),
            "exchange": self.exchange,
            "index": self.index,
            "version": list(self.version),
            "first": self.first,
            "clients": self.clients,
            "last": self.last,
            "counted": self.counted,
            "equal": self.equal,
            "secure": None if self.secure is None else self.secure.told(),
        }
        return pack({"down": self.down, "private": _rows(self.private), "clips": self.clips}, meta)


@dataclass(frozen=True)
class Keep:
    """What clients keep is asked for."""

    run: str
    clients: list[int]
    counted: list[Version | None]

    def packed(self) -> bytes:
        """The request as it travels."""
        return pack(None, {"kind": "keep", "run": self.run, "clients": self.clients, "counted": self.counted})


@dataclass(frozen=True)
class End:
    """The run is over."""

    run: str

    def packed(self) -> bytes:
        """The request as it travels."""
        return pack(None, {"kind": "end", "run": self.run})


Request = Begin | Work | Keep | End | Step


def _rows(rows: dict[int, Tree]) -> dict[str, Tree]:
    return {str(client): row for client, row in rows.items()}


# --- reading --------------------------------------------------------------------------------------------------------------


def read_request(buffer: bytes) -> Request:
    """A request, checked."""
    tree, meta = unpack(buffer)
    known: dict[str, Callable[[Tree, Fields], Request]] = {
        "begin": _begin,
        "exchange": _work,
        "keep": _keep,
        "end": lambda tree, got: End(got("run", run_name)),
        **STEPS,
    }
    kind = meta.get("kind")
    if not isinstance(kind, str) or kind not in known:
        raise Malformed(f"a request is one of {', '.join(known)}, got {brief(kind)}")
    got = Fields(meta, f"the {kind} request")
    got("kind", text)
    request = known[kind](tree, got)
    got.done()
    return request


def _begin(tree: Tree, got: Fields) -> Begin:
    parts = _named(tree, "x", "y", "key", "keep")
    for name in ("x", "y", "key"):
        if not isinstance(parts[name], np.ndarray) or parts[name].ndim != 1:
            raise Malformed(f"{name} of a begin request must be an array of one dimension")
    key = parts["key"]
    if key.shape != (2,) or key.dtype != np.uint32:
        raise Malformed(f"key of a begin request must be two uint32, got {key.dtype}{key.shape}")
    return Begin(
        run=got("run", run_name),
        n=got("n", count),
        x64=got("x64", yes),
        algorithm=got("algorithm", _algorithm),
        batch_size=got("batch_size", pair(batch)),
        steps=got("steps", pair(steps)),
        costs=got("costs", yes),
        x=parts["x"],
        y=parts["y"],
        key=key,
        keep=by_client(parts["keep"], "keep"),
        privacy=got("privacy", optional(_privacy)),
        secure=got("secure", optional(secure_sum)),
    )


def _work(tree: Tree, got: Fields) -> Work:
    parts = _named(tree, "down", "private", "clips")
    down, private = parts["down"], by_client(parts["private"], "private")
    if not isinstance(down, dict) or not all(isinstance(row, dict) for row in private.values()):
        raise Malformed("down, and what is private to a client, must be tables of arrays")
    asked = got("clients", clients)
    request = Work(
        run=got("run", run_name),
        order=got("order", order),
        exchange=got("exchange", number),
        index=got("index", number),
        version=got("version", version),
        first=got("first", yes),
        clients=asked,
        last=got("last", listed(within(-1, MOST), len(asked))),
        counted=got("counted", listed(optional(version), len(asked))),
        equal=got("equal", _equal),
        down=down,
        private=private,
        clips=_clips(parts["clips"]),
        secure=got("secure", optional(masking)),
    )
    if request.order[1:3] != request.version[:2]:
        raise Malformed(f"order {request.order} and version {request.version} must be of one round and attempt")
    return request


def _keep(tree: Tree, got: Fields) -> Keep:
    if tree is not None:
        raise Malformed("a keep request has no arrays")
    run, asked = got("run", run_name), got("clients", clients)
    return Keep(run, asked, got("counted", listed(optional(version), len(asked))))


def _named(tree: Tree, *names: str) -> dict[str, Tree]:
    if not isinstance(tree, dict) or set(tree) != set(names):
        raise Malformed(f"the request must have the arrays {', '.join(names)}")
    return tree


def _privacy(value: Any, name: str) -> dict[str, Any]:
    got = Fields(table(value, name), name)
    clip, noise, by = got("clip", optional(_length)), got("noise", _length), got("by", text)
    expected = got("expected", _length)
    got.done()
    if by not in ("part", "whole"):
        raise Malformed(f"{name}.by must be part or whole, got {brief(by)}")
    return {"clip": clip, "noise": noise, "by": by, "expected": expected}


def _length(value: Any, name: str) -> float:
    if type(value) is not float or not 0 < value < float("inf"):
        raise Malformed(f"{name} must be a positive number, got {brief(value)}")
    return value


def _clips(value: Any) -> Any:
    good = isinstance(value, np.ndarray) and value.shape == (PARTS,) and value.dtype.kind == "f"
    if value is not None and not (good and np.isfinite(value).all() and (value > 0).all()):
        raise Malformed(f"clips must be {PARTS} positive numbers")
    return value


def _equal(value: Any, name: str) -> dict[str, bool]:
    got = Fields(table(value, name), name)
    equal = {which: got(which, yes) for which in ("lower", "upper")}
    got.done()
    return equal


def _algorithm(value: Any, name: str) -> dict[str, Any]:
    got = Fields(table(value, name), name)
    chosen, rates = got("name", text), got("rates", table)
    got.done()
    for rate, each in rates.items():
        if type(each) is int:  # a number of steps or terms of the algorithm's own
            whole(each, rate, -MOST_STEPS, MOST_STEPS)
    return {"name": chosen, "rates": rates}
