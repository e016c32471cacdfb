"""Which node may speak for which clients: the operator lists the clients of each node's key.

A SuperLink with ``--enable-supernode-auth`` lets a node in only if it signs with a registered key, and tells the server
which key each node has. So a client that is listed for a key can be claimed by whoever has that key, and by nobody else.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.serverapp import Grid

from rookery.engines.flower.wire.grid import OverGrid
from rookery.engines.flower.wire.listing import partitions

Owners = Mapping[bytes, frozenset[int]]
"""The clients of each public key."""


class KeyedGrid(OverGrid):
    """Sends to nodes with a listed key only."""

    def __init__(self, grid: Grid, owners: Owners, poll: float = 0.02, slowest: float = 0.25):
        super().__init__(grid, poll, slowest)
        self._owners = owners
        self._owned: dict[int, frozenset[int]] = {}

    def nodes(self) -> list[int]:
        """The nodes that are there and whose key is listed."""
        keys = {node.node_id: _der(node.public_key) for node in self._grid.get_nodes()}
        self._owned = {node: self._owners[key] for node, key in keys.items() if key is not None and key in self._owners}
        return sorted(self._owned)

    def owned(self, node: int) -> frozenset[int]:
        """The clients that are listed for its key."""
        return self._owned.get(node, frozenset())


def read_listed(path: Path) -> list[tuple[bytes, list[int]]]:
    """The keys of an operator's list and their clients: a TOML file with a line ``"node-0.pub" = "0-4"`` for each node
    under ``[nodes]``. Names of files are relative to the list.
    """  # fmt: skip
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        listed = tomllib.loads(path.read_text())
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the list of node keys {path} is not TOML: {error}") from None
    if set(listed) != {"nodes"} or not isinstance(listed["nodes"], dict) or not listed["nodes"]:
        raise ValueError(
            f"the list of node keys {path} must have a table [nodes] of clients by key file, and nothing else"
        )
    found: dict[bytes, list[int]] = {}
    taken: dict[int, str] = {}
    for name, clients in listed["nodes"].items():
        own = partitions(str(clients), f"{path}: the clients of {name}")
        key = _read_key(path.parent / name)
        if key in found:
            raise ValueError(f"{path}: the key of {name} is listed twice")
        found[key] = own
        for client in own:
            if client in taken:
                raise ValueError(f"{path}: client {client} is listed for {taken[client]} and for {name}")
            taken[client] = name
    return list(found.items())


def read_owners(path: Path, n: int) -> Owners:
    """The same for a federation of ``n`` clients, each of which is listed once."""
    owners = {key: frozenset(clients) for key, clients in read_listed(path)}
    taken = frozenset().union(*owners.values())
    if taken != set(range(n)):
        wrong = sorted(taken ^ set(range(n)))
        raise ValueError(f"{path} must list the clients 0 to {n - 1}, each once; it is wrong about {wrong[:5]}")
    return owners


def _read_key(path: Path) -> bytes:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    try:
        return _encoded(load_ssh_public_key(path.read_bytes()))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{path} is not a public key in OpenSSH's format: {error}") from None


def _der(told: bytes) -> bytes | None:
    """A key as a SuperLink tells it (PEM); None if it is no key."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        return _encoded(load_pem_public_key(told))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None


def _encoded(key: Any) -> bytes:
    """The same bytes for the same key, whatever file it came from."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return encoded
