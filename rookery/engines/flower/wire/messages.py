"""What may stand in a message: read once, where it arrives, into what the rest of the code can rely on.

A node takes nothing from a request but numbers within bounds, names of algorithms and hexadecimal digests; a server
takes nothing else from an answer. Whatever is not so is :class:`Malformed`.
"""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.algorithm.cost import Cost
from rookery.engines.flower.store import Version
from rookery.engines.flower.wire.pack import Malformed, brief, pack, plain, unpack
from rookery.problem.oracles import UNITS
from rookery.typing import Tree

MOST = 2**31 - 1
"""The largest number of a round, a client, a step: they are computed with in 32 bits."""
NAME = 100
"""The most letters of a node's name."""
LARGEST_BATCH = 10**6
MOST_STEPS = 10**6
_RUN = re.compile("[0-9a-f]{32}")


# --- requests, as a node reads them -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begin:
    """A run starts, or this node is new in it."""

    run: str
    n: int
    x64: bool
    algorithm: dict[str, Any]
    batch_size: tuple[int | None, int | None]
    steps: tuple[int, int]
    costs: bool
    x: np.ndarray
    y: np.ndarray
    key: np.ndarray
    keep: dict[int, Tree]
    """What some clients keep at the start, if it is not the algorithm's own start."""
    told: str
    """A digest of all but ``keep`` and ``costs``: a run has one, however often it is begun."""


@dataclass(frozen=True)
class Work:
    """One exchange of one round, for the participants that live here."""

    run: str
    order: tuple[int, int, int, int]
    """(session, round, attempt, sequence)."""
    exchange: int
    index: int
    version: Version
    first: bool
    clients: list[int]
    last: list[int]
    counted: list[Version | None]
    equal: dict[str, bool]
    down: dict[str, Tree]
    private: dict[int, dict[str, Tree]]


@dataclass(frozen=True)
class Keep:
    """What clients keep is asked for."""

    run: str
    clients: list[int]
    counted: list[Version | None]


@dataclass(frozen=True)
class End:
    """The run is over."""

    run: str


Request = Begin | Work | Keep | End


def read_request(buffer: bytes) -> Request:
    """A request, checked."""
    tree, meta = unpack(buffer)
    known: dict[Any, Callable[[Tree, _Fields], Request]] = {
        "begin": _begin,
        "exchange": _work,
        "keep": _keep,
        "end": lambda tree, got: End(got("run", _run)),
    }
    kind = meta.get("kind")
    if not isinstance(kind, str) or kind not in known:
        raise Malformed(f"a request is one of {', '.join(known)}, got {brief(kind)}")
    got = _Fields(meta, f"the {kind} request")
    got("kind", _text)
    request = known[kind](tree, got)
    got.done()
    return request


def _begin(tree: Tree, got: "_Fields") -> Begin:
    parts = _named(tree, "x", "y", "key", "keep")
    for name in ("x", "y", "key"):
        if not isinstance(parts[name], np.ndarray) or parts[name].ndim != 1:
            raise Malformed(f"{name} of a begin request must be an array of one dimension")
    if parts["key"].shape != (2,) or parts["key"].dtype != np.uint32:
        raise Malformed(f"key of a begin request must be two uint32, got {parts['key'].dtype}{parts['key'].shape}")
    run, n, x64 = got("run", _run), got("n", _count), got("x64", _yes)
    algorithm = got("algorithm", _algorithm)
    batch_size = got("batch_size", lambda value, name: _pair(value, name, _batch))
    steps = got("steps", lambda value, name: _pair(value, name, _steps))
    same = {"run": run, "n": n, "x64": x64, "algorithm": algorithm, "batch_size": batch_size, "steps": steps}
    told = hashlib.sha256(pack([parts[name] for name in ("x", "y", "key")], same)).hexdigest()
    keep = _by_client(parts["keep"], "keep")
    costs = got("costs", _yes)
    return Begin(run, n, x64, algorithm, batch_size, steps, costs, parts["x"], parts["y"], parts["key"], keep, told)


def _work(tree: Tree, got: "_Fields") -> Work:
    parts = _named(tree, "down", "private")
    down, private = parts["down"], _by_client(parts["private"], "private")
    if not isinstance(down, dict) or not all(isinstance(row, dict) for row in private.values()):
        raise Malformed("down, and what is private to a client, must be tables of arrays")
    request = Work(
        got("run", _run),
        got("order", _order),
        got("exchange", _number),
        got("index", _number),
        got("version", _version),
        got("first", _yes),
        clients := got("clients", _clients),
        got("last", lambda value, name: _list(value, name, _last, len(clients))),
        got("counted", lambda value, name: _list(value, name, _counted, len(clients))),
        got("equal", lambda value, name: _equal(value, name)),
        down,
        private,
    )
    if request.order[1:3] != request.version[:2]:
        raise Malformed(f"order {request.order} and version {request.version} must be of one round and attempt")
    return request


def _keep(tree: Tree, got: "_Fields") -> Keep:
    if tree is not None:
        raise Malformed("a keep request has no arrays")
    run, clients = got("run", _run), got("clients", _clients)
    return Keep(run, clients, got("counted", lambda value, name: _list(value, name, _counted, len(clients))))


# --- answers, as the server reads them ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Greeting:
    """What a node says of itself when a run begins."""

    name: str
    clients: list[int]
    sizes: dict[str, list[int]]
    costs: list[Cost]


@dataclass(frozen=True)
class Answer:
    """An answer to anything else: rows by client, and what is wrong."""

    rows: dict[int, Tree]
    failed: dict[int, str]
    """Clients that could not do their part, with the reason."""
    error: str | None = None
    kind: str = ""
    name: str = ""


def read_answer(answer: bytes | str) -> Answer:
    """An answer; what is wrong with it, if anything, is its ``error``. A string says what went wrong on the way."""
    if isinstance(answer, str):
        return Answer({}, {}, plain(answer))
    try:
        tree, meta = unpack(answer)
        if "error" in meta:
            got = _Fields(meta, "the answer")
            return Answer({}, {}, plain(got("error", _text)), got("kind", _text), plain(got("name", _text), NAME))
        failed = meta.get("failed", {})
        if not isinstance(failed, dict) or not all(isinstance(text, str) for text in failed.values()):
            raise Malformed(f"failed must be a table of texts by client, got {brief(failed)}")
        reasons = {_client(client): plain(text) for client, text in failed.items()}
        return Answer({} if tree is None else _by_client(tree, "the answer"), reasons)
    except Malformed as error:
        return Answer({}, {}, f"its answer cannot be read: {plain(str(error))}")


def read_greeting(answer: bytes | str, n: int, exchanges: list[bool], asked: bool) -> Greeting | Answer:
    """A node's greeting, or the answer that says why it has none.

    ``n`` is the number of clients; ``exchanges`` says of each step of a round whether it is an exchange, and ``asked``
    whether the node was asked what they cost.
    """
    read = read_answer(answer)
    if read.error is not None:
        return read
    assert isinstance(answer, bytes)
    got = _Fields(unpack(answer)[1], "the greeting")
    try:
        name, clients = got("name", _printable), got("clients", _clients)
        if not clients or max(clients) >= n:
            raise Malformed(f"clients must be numbers in 0..{n - 1}, at least one, got {brief(clients)}")
        sizes = _table(got("sizes", lambda value, name: value), "sizes")
        if set(sizes) != {"lower", "upper"}:
            raise Malformed(f"sizes must be those of lower and upper, got {brief(list(sizes))}")
        sizes = {name: _list(each, f"sizes.{name}", _count, len(clients)) for name, each in sizes.items()}
        costs = _list(got("costs", lambda value, name: value), "costs", _cost)
        if (asked or costs) and [cost.exchange for cost in costs] != exchanges:
            raise Malformed(f"costs must be those of the {len(exchanges)} steps of a round")
        return Greeting(name, clients, sizes, costs)
    except Malformed as error:
        return Answer({}, {}, f"its greeting cannot be read: {plain(str(error))}")


def _cost(value: Any, name: str) -> Cost:
    got = _Fields(_table(value, name), name)
    cost = Cost(
        got("exchange", _yes),
        got("down", _bytes),
        got("up", _bytes),
        got("calls", _calls),
        got("start_calls", _calls),
        got("local_steps", _yes),
        got("server_calls", _calls),
        {_text(part, name): _text(each, name) for part, each in got("upload", _table).items()},
    )
    got.done()
    return cost


# --- the parts ----------------------------------------------------------------------------------------------------------


class _Fields:
    """The entries of a table: each is asked for once, and none is left over."""

    def __init__(self, table: Mapping[str, Any], where: str):
        self._table = dict(table)
        self._where = where

    def __call__(self, name: str, check: Callable[[Any, str], Any]) -> Any:
        if name not in self._table:
            raise Malformed(f"{self._where} has no {name}")
        return check(self._table.pop(name), name)

    def done(self) -> None:
        """Raises if there is more."""
        if self._table:
            raise Malformed(f"{self._where} has no place for {brief(list(self._table))}")


def _whole(value: Any, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise Malformed(f"{name} must be a whole number in {least}..{most}, got {brief(value)}")
    return value


def _number(value: Any, name: str) -> int:
    return _whole(value, name, 0, MOST)


def _count(value: Any, name: str) -> int:
    return _whole(value, name, 1, MOST)


def _last(value: Any, name: str) -> int:
    return _whole(value, name, -1, MOST)


def _bytes(value: Any, name: str) -> int:
    return _whole(value, name, 0, 2**40)


def _microseconds(value: Any, name: str) -> int:
    return _whole(value, name, 0, 2**63 - 1)


def _signed(value: Any, name: str) -> int:
    return _whole(value, name, -(2**40), 2**40)


def _steps(value: Any, name: str) -> int:
    return _whole(value, name, 1, MOST_STEPS)


def _batch(value: Any, name: str) -> int | None:
    return None if value is None else _whole(value, name, 1, LARGEST_BATCH)


def _yes(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise Malformed(f"{name} must be true or false, got {brief(value)}")
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{name} must be a text, got {brief(value)}")
    return value


def _printable(value: Any, name: str) -> str:
    if not _text(value, name) or len(value) > NAME or not value.isprintable():
        raise Malformed(f"{name} must have 1 to {NAME} printable letters, got {brief(value)}")
    return str(value)


def _run(value: Any, name: str) -> str:
    """Its name is that of a folder of the node, so it is digits and nothing else; nobody can guess it either."""
    if not _RUN.fullmatch(_text(value, name)):
        raise Malformed(f"{name} must be 32 hexadecimal digits, got {brief(value)}")
    return str(value)


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"{name} must be a table, got {brief(value)}")
    return value


def _list(value: Any, name: str, check: Callable[[Any, str], Any], length: int | None = None) -> list[Any]:
    if not isinstance(value, list) or (length is not None and len(value) != length):
        wanted = "a list" if length is None else f"a list of {length}"
        raise Malformed(f"{name} must be {wanted}, got {brief(value)}")
    return [check(each, name) for each in value]


def _pair(value: Any, name: str, check: Callable[[Any, str], Any]) -> tuple[Any, Any]:
    one, other = _list(value, name, check, 2)
    return one, other


def _order(value: Any, name: str) -> tuple[int, int, int, int]:
    session, round, attempt, sequence = _list(value, name, _microseconds, 4)
    return session, _number(round, name), _number(attempt, name), _number(sequence, name)


def _version(value: Any, name: str) -> Version:
    round, attempt, draw = _list(value, name, _number, 3)
    return round, attempt, draw


def _counted(value: Any, name: str) -> Version | None:
    return None if value is None else _version(value, name)


def _clients(value: Any, name: str) -> list[int]:
    clients: list[int] = _list(value, name, _number)
    if len(set(clients)) != len(clients):
        raise Malformed(f"{name} must be different numbers, got {brief(clients)}")
    return clients


def _client(name: str) -> int:
    """A client's number, as it stands as the name of a row."""
    if not (name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name):
        raise Malformed(f"rows are named by the numbers of clients, got {brief(name)}")
    return _number(int(name), "a row's client")


def _by_client(tree: Tree, name: str) -> dict[int, Tree]:
    return {_client(client): row for client, row in _table(tree, name).items()}


def _named(tree: Tree, *names: str) -> dict[str, Tree]:
    if not isinstance(tree, dict) or set(tree) != set(names):
        raise Malformed(f"the request must have the arrays {', '.join(names)}")
    return tree


def _equal(value: Any, name: str) -> dict[str, bool]:
    got = _Fields(_table(value, name), name)
    equal = {which: got(which, _yes) for which in ("lower", "upper")}
    got.done()
    return equal


def _calls(value: Any, name: str) -> dict[str, tuple[int, int]]:
    if not set(_table(value, name)) <= set(UNITS):
        raise Malformed(f"{name} must be of {', '.join(UNITS)}, got {brief(list(value))}")
    return {unit: _pair(each, name, _signed) for unit, each in value.items()}


def _algorithm(value: Any, name: str) -> dict[str, Any]:
    got = _Fields(_table(value, name), name)
    told = {"name": got("name", _text), "rates": got("rates", _table)}
    got.done()
    for rate, each in told["rates"].items():
        if type(each) is int:  # a number of steps or terms of the algorithm's own
            _whole(each, rate, -MOST_STEPS, MOST_STEPS)
    return told
