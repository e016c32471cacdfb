"""How processes that start at different times come together: process 0 receives the others, and checks that they fit.

What does not fit is told to all in the same line.
"""

import os
import platform
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import jax

from rookery.processes.wire import SHORT, Address, Link, NoMessage, connect

LINGER = 2.0
"""Seconds that process 0 waits for further processes once something is wrong, so that they are told as well."""
_SPEAK = 10.0
"""Seconds in which somebody who has connected must say who it is."""
_MANY = 256
"""Connections that may be silent at a time."""
_FLAGS = ("jax_enable_x64", "jax_threefry_partitionable", "jax_default_matmul_precision")
"""Of JAX: processes that differ in them would compile different programs."""


@dataclass(frozen=True)
class Peer:
    """One of the processes."""

    number: int
    host: str
    process_id: int

    def __str__(self) -> str:
        return f"process {self.number} ({self.host}, process id {self.process_id})"


@dataclass(frozen=True)
class Hello:
    """What a process says of itself first."""

    peer: Peer
    count: int
    traits: Mapping[str, str]
    """Versions and flags, which all must have in common."""
    started: bool = False
    """Whether it has computed something, and cannot become one of several any more."""
    token: str = ""
    """What process 0 has let the others know by another way, if there is one."""

    def told(self) -> dict[str, Any]:
        """As a message."""
        return {"rookery": "hello", **asdict(self)}


def introduce(number: int, count: int, started: bool = False, token: str = "") -> Hello:
    """What this process says."""
    versions = {name: version(name) for name in ("rookery", "jax", "jaxlib")}
    python = ".".join(platform.python_version_tuple()[:2])
    flags = {name: str(getattr(jax.config, name, None)) for name in _FLAGS}
    peer = Peer(number, socket.gethostname(), os.getpid())
    return Hello(peer, count, {**versions, "python": python, **flags}, started, token)


def _read_hello(message: Any) -> Hello:
    """Raises if this is anything else."""
    try:
        peer = Peer(**message["peer"])
        hello = Hello(peer, message["count"], message["traits"], message["started"], message["token"])
        numbers = [peer.number, peer.process_id, hello.count]
        words = [peer.host, hello.token, *hello.traits, *hello.traits.values()]
    except (TypeError, KeyError, AttributeError):
        raise NoMessage("no hello") from None
    fine = type(hello.started) is bool and all(type(each) is int for each in numbers)
    if message.get("rookery") != "hello" or not fine or not all(isinstance(each, str) for each in words):
        raise NoMessage("no hello")
    return hello


class Arrival:
    """A process that has said who it is, and waits for an answer."""

    def __init__(self, hello: Hello, link: Link):
        self.hello = hello
        self.link = link

    def refuse(self, line: str) -> None:
        """Tells why it cannot take part."""
        with suppress(OSError):
            self.link.send({"refused": line})
        self.link.close()


class Door:
    """Where process 0 receives. Whoever talks no sense, or does not know the token, is turned away unheard."""

    def __init__(self, listener: socket.socket, token: str = ""):
        self._listener = listener
        self._token = token
        self._arrivals: queue.SimpleQueue[Arrival] = queue.SimpleQueue()
        self._why: Callable[[Hello], str] | None = None
        self._lock = threading.Lock()
        self._silent = threading.BoundedSemaphore(_MANY)
        threading.Thread(target=self._accept, name="rookery-door", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            if not self._silent.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._greet, args=(connection,), name="rookery-door", daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        try:
            link = Link(connection)
            hello = _read_hello(link.receive(SHORT, _SPEAK))
            if hello.token != self._token:
                raise NoMessage("another token")
        except OSError:
            connection.close()
            return
        finally:
            self._silent.release()
        with self._lock:
            if self._why is None:
                self._arrivals.put(Arrival(hello, link))
                return
        Arrival(hello, link).refuse(self._why(hello))

    def wait(self, seconds: float) -> Arrival | None:
        """The next that arrives, if one does."""
        try:
            return self._arrivals.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return None

    def shut(self, why: Callable[[Hello], str]) -> None:
        """Tells whoever arrives from now on why it cannot take part."""
        with self._lock:
            self._why = why
        while (late := self.wait(0)) is not None:
            late.refuse(why(late.hello))

    def close(self) -> None:
        """Listens no more."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # also for the thread that waits
        self._listener.close()


def receive(door: Door, own: Hello, seconds: float) -> list[Arrival]:
    """The other processes of the group, by number. If they do not fit, a ``ValueError``, here and on all that came."""
    end = time.monotonic() + seconds
    here: list[Arrival] = []
    while len({0, *(each.hello.peer.number for each in here)}) < own.count and time.monotonic() < end:
        arrival = door.wait(min(0.5, end - time.monotonic()))
        here = [each for each in here if not each.link.gone()]  # it may have been started anew
        if arrival is not None:
            here.append(arrival)
            if _clash(_hellos(own, here)):
                end = min(end, time.monotonic() + LINGER)
    line = wrong(_hellos(own, here), own.count, seconds)
    if line:
        door.shut(lambda hello: line)
        for each in here:
            each.refuse(line)
        raise ValueError(line)
    door.shut(lambda hello: f"{hello.peer} came too late: the group of {own.count} processes of {own.peer} is complete")
    return sorted(here, key=lambda each: each.hello.peer.number)


def _hellos(own: Hello, here: Iterable[Arrival]) -> list[Hello]:
    return [own, *(each.hello for each in here)]


def wrong(hellos: Sequence[Hello], count: int, seconds: float) -> str:
    """What keeps these processes from being a group, in a line; nothing if all is well."""
    return _clash(hellos) or _difference(hellos) or _missing(hellos, count, seconds)


def _clash(hellos: Sequence[Hello]) -> str:
    """What no further process can make good."""
    counts = _by(hellos, lambda each: str(each.count))
    if len(counts) > 1:
        return f"the processes disagree about how many there are: {_sides(counts)}"
    numbers = _by(hellos, lambda each: str(each.peer.number))
    for number, same in numbers.items():
        if not 0 <= int(number) < hellos[0].count:
            return f"{same[0]}: there are {hellos[0].count} processes, 0 to {hellos[0].count - 1}"
        if len(same) > 1:
            who = " and ".join(f"{each.host}, process id {each.process_id}" for each in same)
            return f"process {number} is there more than once: {who}"
    late = [str(each.peer) for each in hellos if each.started]
    return f"{late[0]} has computed something already: join must come before anything is computed" if late else ""


def _difference(hellos: Sequence[Hello]) -> str:
    for name in sorted({name for each in hellos for name in each.traits}):
        sides = _by(hellos, lambda each: each.traits.get(name, "none"))  # noqa: B023
        if len(sides) > 1:
            return f"the processes differ in {name}: {_sides(sides)}"
    return ""


def _missing(hellos: Sequence[Hello], count: int, seconds: float) -> str:
    absent = sorted(set(range(count)) - {each.peer.number for each in hellos})
    if not absent:
        return ""
    numbers = ", ".join(map(str, absent))
    return f"of {count} processes {len(absent)} did not come within {seconds:g} s: number {numbers}"


def _by(hellos: Iterable[Hello], key: Callable[[Hello], str]) -> dict[str, list[Peer]]:
    sides: dict[str, list[Peer]] = {}
    for each in sorted(hellos, key=lambda each: each.peer.number):
        sides.setdefault(key(each), []).append(each.peer)
    return sides


def _sides(sides: Mapping[str, Sequence[Peer]]) -> str:
    return "; ".join(f"{value} on {', '.join(map(str, who))}" for value, who in sides.items())


def call(addresses: Sequence[Address], own: Hello, seconds: float) -> tuple[Link, dict[str, Any]]:
    """Says hello to process 0 at the first of these addresses where it answers; returns the link and what it answered.

    It may not have started yet, so all are tried again and again.
    """
    end = time.monotonic() + seconds
    reason = ""
    while (left := end - time.monotonic()) > 0:
        for address in addresses:
            try:
                return _ask(address, own, min(5.0, left), seconds + LINGER + _SPEAK)
            except NoMessage:
                if len(addresses) == 1:
                    raise ValueError(f"what listens at {address} is no process of Rookery") from None
                reason = "something else listens there"
            except OSError as error:
                reason = error.strerror or str(error)
        time.sleep(0.2)
    where = " or ".join(map(str, addresses))
    raise ValueError(f"process 0 did not answer {own.peer} at {where} within {seconds:g} s ({reason})")


def _ask(address: Address, own: Hello, to_connect: float, to_answer: float) -> tuple[Link, dict[str, Any]]:
    link = connect(address, to_connect)
    try:
        link.send(own.told())
        answer = link.receive(seconds=to_answer)
        if not isinstance(answer, dict) or not ("refused" in answer or "peers" in answer):
            raise NoMessage("no answer to a hello")
    except BaseException:
        link.close()
        raise
    if "refused" in answer:
        link.close()
        raise ValueError(str(answer["refused"]))
    return link, answer
