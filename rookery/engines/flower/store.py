"""What a node keeps for its clients between rounds: on disk, so that a restarted node goes on.

A version of a client's state is named by (round, attempt, draw). It is pending when it is written; the server's next
message names the version that was counted, and what is newer was not: it is dropped.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax

from rookery.engines.flower.pack import Malformed, pack, unpack

Tree = Any
Version = tuple[int, int, int]
"""(round, attempt, draw)."""


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
        if self._folder is not None:
            _write(self._folder / "begin.message", request)

    def begun(self) -> bytes | None:
        """The request that began the run, if it did."""
        path = None if self._folder is None else self._folder / "begin.message"
        return None if path is None or not path.exists() else path.read_bytes()

    def hold(self, client: int, where: tuple[int, ...], what: Tree, lasting: bool) -> None:
        """Keeps what a client has in its hands in the draw ``where``; ``lasting`` if there may be more exchanges in it."""
        self._held[client] = where, what
        if self._folder is not None and lasting:
            _write(self._folder / f"client-{client}" / "held", pack(jax.device_get(what), {"where": list(where)}))

    def held(self, client: int, where: tuple[int, ...]) -> Tree:
        """What the client has in its hands in this draw."""
        if client not in self._held and self._folder is not None:
            path = self._folder / f"client-{client}" / "held"
            with suppress(OSError, Malformed):
                what, told = unpack(path.read_bytes())
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
                self._path(client, version).unlink(missing_ok=True)
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
        if self._folder is None:
            return
        _write(self._path(client, version), pack(keep))

    def clear(self) -> None:
        """Removes all of the run."""
        self._versions.clear()
        self._held.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, client: int, version: Version) -> Path:
        assert self._folder is not None
        return self._folder / f"client-{client}" / ("-".join(map(str, version)) + ".state")

    def _load(self, client: int) -> dict[Version, Tree]:
        if client not in self._versions:
            found: dict[Version, Tree] = {}
            if self._folder is not None:
                for path in (self._folder / f"client-{client}").glob("*.state"):
                    round, attempt, draw = map(int, path.stem.split("-"))
                    try:
                        found[round, attempt, draw] = unpack(path.read_bytes())[0]
                    except Malformed:  # as good as lost; the server is told when it asks for it
                        continue
            self._versions[client] = found
        return self._versions[client]


def _write(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with open(part, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
