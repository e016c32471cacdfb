"""Messages between processes: JSON with its length before it, over TCP. Nothing that comes is ever run."""

import ipaddress
import json
import secrets
import socket
import struct
import threading
from contextlib import suppress
from typing import Any, NamedTuple

LARGEST = 64 * 2**20
"""Bytes of a message."""
SHORT = 64 * 2**10
"""Bytes of a message from somebody who is not known yet."""

_SIZE = struct.Struct(">I")
_KEEPALIVE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 13_000}
"""A host that is gone without a word is noticed after 5 + 4·2 seconds; the last of these is in milliseconds."""


class NoMessage(ConnectionError):
    """What came is not what processes of a group send each other."""


class Address(NamedTuple):
    """A host and a port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_here(self) -> bool:
        """Whether nobody but this machine can reach it."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


def read_address(text: str) -> Address:
    """HOST:PORT, or [ADDRESS]:PORT for an address of IPv6."""
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    known = colon and bare and port.isascii() and port.isdigit() and 0 < int(port) < 2**16
    if not known or any(each.isspace() for each in text) or (":" in bare) != host.startswith("["):
        raise ValueError(f"coordinator must be HOST:PORT, such as 10.0.0.1:7000, got {text!r}")
    return Address(bare, int(port))


class Link:
    """One end of a connection. Any thread may send; one alone receives."""

    def __init__(self, connection: socket.socket):
        self._socket = connection
        self._sending = threading.Lock()
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def send(self, message: Any) -> None:
        """Sends it whole."""
        self.send_text(encoded(message))

    def send_text(self, text: bytes) -> None:
        """Sends what :func:`encoded` made."""
        with self._sending:
            self._socket.sendall(_SIZE.pack(len(text)) + text)

    def receive(self, largest: int = LARGEST, seconds: float | None = None) -> Any:
        """The next message. Raises an ``OSError`` at the end, or if a part of it is not there after so many seconds."""
        self._socket.settimeout(seconds)
        try:
            (size,) = _SIZE.unpack(self._exactly(_SIZE.size))
            if size > largest:
                raise NoMessage(f"a message of {size} bytes, where at most {largest} are expected")
            try:
                return json.loads(self._exactly(size))
            except (ValueError, RecursionError):
                raise NoMessage("a message that is no JSON") from None
        finally:
            with suppress(OSError):
                self._socket.settimeout(None)

    def _exactly(self, size: int) -> bytes:
        whole = bytearray()
        while len(whole) < size:
            part = self._socket.recv(min(size - len(whole), 2**20))
            if not part:
                raise ConnectionError("the connection ended")
            whole += part
        return bytes(whole)

    def gone(self) -> bool:
        """Whether the other end, which has nothing to say, has closed it."""
        try:
            self._socket.setblocking(False)
            return self._socket.recv(1, socket.MSG_PEEK) == b""
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            with suppress(OSError):
                self._socket.setblocking(True)

    def close(self) -> None:
        """Ends it, also for a thread that is receiving."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def encoded(message: Any) -> bytes:
    """A message as it is sent. Numbers come back as they were, NaN and infinities too."""
    text = json.dumps(message).encode()
    if len(text) > LARGEST:
        raise ValueError(f"processes can tell each other {LARGEST} bytes at a time, not {len(text)}")
    return text


def listen(address: Address) -> socket.socket:
    """Listens on this machine alone if the address is one of its own loopback, else on all of its addresses.

    A host's own name may mean another address to itself than to others. Port 0 is any that is free.
    """
    if address.is_here:
        family = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(address, family=family, backlog=128)
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", address.port), family=family, backlog=128, dualstack_ipv6=both)


def connect(address: Address, seconds: float) -> Link:
    """A connection to what listens there."""
    connection = socket.create_connection(address, timeout=seconds)
    if connection.getsockname() == connection.getpeername():  # TCP can meet itself where nobody listens yet
        connection.close()
        raise ConnectionRefusedError("nobody listens")
    return Link(connection)


def free_port() -> int:
    """A port that nobody listens on, and that no connection is given by chance: systems take those from 32768 on.

    JAX crashes if its port is taken in the meantime.
    """
    for _ in range(100):
        with suppress(OSError), socket.create_server(("", secrets.choice(range(12_000, 32_000)))) as probe:
            return int(probe.getsockname()[1])
    raise OSError("no port between 12000 and 32000 is free")
