"""What a node answers, as the server reads it.

A server takes nothing from an answer but numbers within bounds, short printable texts and arrays by client. Whatever is
not so is an answer that says what is wrong with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rookery.algorithm.cost import Cost
from rookery.engines.flower.wire.fields import (
    NAME,
    Fields,
    by_client,
    client,
    clients,
    count,
    listed,
    node_name,
    pair,
    table,
    text,
    within,
    yes,
)
from rookery.engines.flower.wire.pack import Malformed, brief, plain, unpack
from rookery.problem.oracles import UNITS
from rookery.typing import Tree


@dataclass(frozen=True)
class Greeting:
    """What a node says of itself when a run begins."""

    name: str
    clients: list[int]
    sizes: dict[str, list[int]]
    """How many examples each of its clients has, by level."""
    costs: list[Cost]
    """What each step of a round costs, if the node was asked."""


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
            got = Fields(meta, "the answer")
            return Answer({}, {}, plain(got("error", text)), got("kind", text), plain(got("name", text), NAME))
        failed = meta.get("failed", {})
        if not isinstance(failed, dict) or not all(isinstance(reason, str) for reason in failed.values()):
            raise Malformed(f"failed must be a table of texts by client, got {brief(failed)}")
        reasons = {client(each): plain(reason) for each, reason in failed.items()}
        return Answer({} if tree is None else by_client(tree, "the answer"), reasons)
    except Malformed as error:
        return Answer({}, {}, f"its answer cannot be read: {plain(str(error))}")


def read_greeting(answer: bytes | str, n: int, exchanges: Sequence[bool], asked: bool) -> Greeting | Answer:
    """A node's greeting, or the answer that says why it has none.

    ``n`` is the number of clients; ``exchanges`` says of each step of a round whether it is an exchange, and ``asked``
    whether the node was asked what they cost.
    """
    read = read_answer(answer)
    if read.error is not None:
        return read
    assert isinstance(answer, bytes)
    try:
        return _greeting(Fields(unpack(answer)[1], "the greeting"), n, list(exchanges), asked)
    except Malformed as error:
        return Answer({}, {}, f"its greeting cannot be read: {plain(str(error))}")


def _greeting(got: Fields, n: int, exchanges: list[bool], asked: bool) -> Greeting:
    name, own = got("name", node_name), got("clients", clients)
    if not own or max(own) >= n:
        raise Malformed(f"clients must be numbers in 0..{n - 1}, at least one, got {brief(own)}")
    sizes = got("sizes", table)
    if set(sizes) != {"lower", "upper"}:
        raise Malformed(f"sizes must be those of lower and upper, got {brief(list(sizes))}")
    counts = {level: listed(count, len(own))(each, f"sizes.{level}") for level, each in sizes.items()}
    costs = got("costs", listed(_cost))
    if (asked or costs) and [cost.exchange for cost in costs] != exchanges:
        raise Malformed(f"costs must be those of the {len(exchanges)} steps of a round")
    return Greeting(name, own, counts, costs)


def _cost(value: Any, name: str) -> Cost:
    got = Fields(table(value, name), name)
    size = within(0, 2**40)
    cost = Cost(
        exchange=got("exchange", yes),
        down=got("down", size),
        up=got("up", size),
        calls=got("calls", _calls),
        start_calls=got("start_calls", _calls),
        local_steps=got("local_steps", yes),
        server_calls=got("server_calls", _calls),
        upload={text(part, name): text(each, name) for part, each in got("upload", table).items()},
        shows_participants=got("shows_participants", yes),
    )
    got.done()
    return cost


def _calls(value: Any, name: str) -> dict[str, tuple[int, int]]:
    if not set(table(value, name)) <= set(UNITS):
        raise Malformed(f"{name} must be of {', '.join(UNITS)}, got {brief(list(value))}")
    signed = pair(within(-(2**40), 2**40))
    return {unit: signed(each, name) for unit, each in value.items()}
