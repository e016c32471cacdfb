"""What a node keeps for its clients between rounds: on disk, so that a restarted node goes on.

A version of a client's state is named by (round, attempt, draw). It is pending when it is written; the server's next
message names the version that was counted, and what is newer was not: it is dropped.

A run has a folder of its own. The store makes it and marks it; it writes nowhere else, and removes no folder that has
no mark. Nobody but the node's user can read it: what clients keep tells of their data.
"""

import os
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import jax

from rookery import files
from rookery.engines.flower.wire.fields import Version
from rookery.engines.flower.wire.pack import Malformed, pack, unpack
from rookery.typing import Tree

MARK = "rookery-run"
"""The file that says whose a folder is."""
_STATE = re.compile(r"(\d{1,10})-(\d{1,10})-(\d{1,10})\.state")


class StateLost(Exception):
    """The server counts on a version of a client's state that is not here."""


class Store:
    """What a node knows of one run: the request that began it, the versions of each client's state, and what a client
    carries to its next exchange. In memory only if there is no folder.
    """

    def __init__(self, folder: Path | None):
        self._folder = folder
        self._versions: dict[int, dict[Version, Tree]] = {}
        self._held: dict[int, tuple[tuple[int, ...], Tree]] = {}

    def begin(self, request: bytes) -> None:
        """Keeps the request that began the run."""
        if self._folder is None:
            return
        if not self._is_ours:
            self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            if self._folder.is_symlink() or not all(files.is_part(path, MARK) for path in self._folder.iterdir()):
                raise ValueError(f"{self._folder} is there already, and is not the folder of a run")
            self._write(MARK, self._folder.name.encode())
        files.remove_parts(self._folder)
        self._write("begin.message", request)

    def begun(self) -> bytes | None:
        """The request that began the run, if it did."""
        return self._read("begin.message") if self._is_ours else None

    def note(self, order: Sequence[int]) -> None:
        """Keeps the order of the newest request: after a restart too, no older one is taken for it."""
        if self._folder is not None:
            self._write("order", pack(None, {"order": list(order)}))

    def newest(self) -> tuple[int, ...]:
        """The order of the newest request."""
        stored = self._read("order") if self._is_ours else None
        with suppress(Malformed):
            order = None if stored is None else unpack(stored)[1].get("order")
            if isinstance(order, list) and all(type(each) is int for each in order):
                return tuple(order)
        return ()

    def hold(self, client: int, where: tuple[int, ...], what: Tree, lasting: bool) -> None:
        """Keeps what a client has in its hands in the draw ``where``; ``lasting`` if there may be more exchanges in it."""
        self._held[client] = where, what
        if self._folder is not None and lasting:
            self._write(f"client-{client:d}/held", pack(jax.device_get(what), {"where": list(where)}))

    def held(self, client: int, where: tuple[int, ...]) -> Tree:
        """What the client has in its hands in this draw."""
        if client not in self._held and (stored := self._read(f"client-{client:d}/held")) is not None:
            with suppress(Malformed):
                what, told = unpack(stored)
                if isinstance(told.get("where"), list) and isinstance(what, tuple) and len(what) == 2:
                    self._held[client] = tuple(told["where"]), what
        if client not in self._held or self._held[client][0] != where:
            raise StateLost(f"client {client} was not here at the start of this draw")
        return self._held[client][1]

    def settle(self, client: int, counted: Version | None, round: int) -> Tree:
        """What the client keeps as of the version that was counted (None: the start); all newer ones are dropped.

        Of the versions of this round's draws the one before the round stays too: the server may be resumed from there.
        """
        versions = self._load(client)
        wanted = {counted}
        if counted is not None and counted[0] >= round:
            wanted |= {max((v for v in versions if v[0] < round), default=None)}
        for version in [v for v in versions if v not in wanted]:
            del versions[version]
            if self._folder is not None:
                self._inside(_name(client, version)).unlink(missing_ok=True)
        return self.read(client, counted)

    def read(self, client: int, version: Version | None) -> Tree:
        """A version; ``None`` is the start, of which nothing is stored."""
        if version is None:
            return None
        versions = self._load(client)
        if version not in versions:
            raise StateLost(f"the state of client {client} after round {version[0]} is not here")
        return versions[version]

    def write(self, client: int, version: Version, keep: Tree) -> None:
        """Adds a version, whole or not at all."""
        self._load(client)[version] = keep
        if self._folder is not None:
            self._write(_name(client, version), pack(keep))

    def clear(self) -> None:
        """Removes all of the run."""
        self._versions.clear()
        self._held.clear()
        if self._folder is not None and self._is_ours:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _load(self, client: int) -> dict[Version, Tree]:
        if client not in self._versions:
            self._versions[client] = {} if self._folder is None else self._stored(client)
        return self._versions[client]

    # --- files

    def _stored(self, client: int) -> dict[Version, Tree]:
        """The versions of a client's state on disk that can be read."""
        folder = self._inside(f"client-{client:d}/held").parent
        if self._is_ours:
            files.remove_parts(folder)
        found: dict[Version, Tree] = {}
        for path in folder.glob("*.state"):
            named, stored = _STATE.fullmatch(path.name), self._read(f"client-{client:d}/{path.name}")
            if named is None or stored is None:
                continue
            round, attempt, draw = map(int, named.groups())
            with suppress(Malformed):  # as good as lost; the server is told when it asks for it
                found[round, attempt, draw] = unpack(stored)[0]
        return found

    @property
    def _is_ours(self) -> bool:
        """Whether the run's folder is a folder that a store made."""
        folder = self._folder
        if folder is None or folder.is_symlink():
            return False
        return self._read(MARK) == folder.name.encode()

    def _inside(self, name: str) -> Path:
        """A file of the run's folder. Names are made of numbers; this is for the day that one is not."""
        assert self._folder is not None
        path = self._folder / name
        if not path.parent.resolve().is_relative_to(self._folder.parent.resolve() / self._folder.name):
            raise ValueError(f"{path} is not in the folder of its run")
        return path

    def _read(self, name: str) -> bytes | None:
        if self._folder is None:
            return None
        try:
            return _read(self._inside(name))
        except OSError:
            return None

    def _write(self, name: str, content: bytes) -> None:
        path = self._inside(name)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        files.write(path, content, private=True, lasting=False)  # several in every exchange


def _name(client: int, version: Version) -> str:
    round, attempt, draw = version
    return f"client-{client:d}/{round:d}-{attempt:d}-{draw:d}.state"


def _read(path: Path) -> bytes:
    """What is in a file; a link is not followed."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
        return file.read()
