"""What may stand in a field of a message: each check gives back a value that the rest of the code can rely on.

A check takes the value and the name of its field, and raises :class:`Malformed` with both if the value is not as it
should be.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rookery.engines.flower.wire.pack import Malformed, brief
from rookery.typing import Tree

T = TypeVar("T")
Check = Callable[[Any, str], T]

Version = tuple[int, int, int]
"""(round, attempt, draw) in which a client's state was made."""
Order = tuple[int, int, int, int]
"""(session, round, attempt, sequence) of a request: a later one is larger."""

MOST = 2**31 - 1
"""The largest number of a round, a client, a step: they are computed with in 32 bits."""
NAME = 100
"""The most letters of a node's name."""
LARGEST_BATCH = 10**6
MOST_STEPS = 10**6
_RUN = re.compile("[0-9a-f]{32}")


class Fields:
    """The entries of a table: each is asked for once, and none is left over."""

    def __init__(self, entries: Mapping[str, Any], where: str):
        self._entries = dict(entries)
        self._where = where

    def __call__(self, name: str, check: Check[T]) -> T:
        """The value of a field, checked."""
        if name not in self._entries:
            raise Malformed(f"{self._where} has no {name}")
        return check(self._entries.pop(name), name)

    def done(self) -> None:
        """Raises if there is more."""
        if self._entries:
            raise Malformed(f"{self._where} has no place for {brief(list(self._entries))}")


# --- kinds of values ------------------------------------------------------------------------------------------------------


def yes(value: Any, name: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise Malformed(f"{name} must be true or false, got {brief(value)}")
    return value


def text(value: Any, name: str) -> str:
    """Any text."""
    if not isinstance(value, str):
        raise Malformed(f"{name} must be a text, got {brief(value)}")
    return value


def table(value: Any, name: str) -> dict[str, Any]:
    """A table of anything."""
    if not isinstance(value, dict):
        raise Malformed(f"{name} must be a table, got {brief(value)}")
    return value


def whole(value: Any, name: str, least: int, most: int) -> int:
    """A whole number between two others."""
    if type(value) is not int or not least <= value <= most:
        raise Malformed(f"{name} must be a whole number in {least}..{most}, got {brief(value)}")
    return value


def within(least: int, most: int) -> Check[int]:
    """The check for a whole number between two others."""
    return lambda value, name: whole(value, name, least, most)


def optional(check: Check[T]) -> Check[T | None]:
    """Nothing, or what another check accepts."""
    return lambda value, name: None if value is None else check(value, name)


def listed(check: Check[T], length: int | None = None) -> Check[list[T]]:
    """A list (of this length) of what another check accepts."""

    def checked(value: Any, name: str) -> list[T]:
        if not isinstance(value, list) or (length is not None and len(value) != length):
            wanted = "a list" if length is None else f"a list of {length}"
            raise Malformed(f"{name} must be {wanted}, got {brief(value)}")
        return [check(each, name) for each in value]

    return checked


def pair(check: Check[T]) -> Check[tuple[T, T]]:
    """Two of what another check accepts."""

    def checked(value: Any, name: str) -> tuple[T, T]:
        one, other = listed(check, 2)(value, name)
        return one, other

    return checked


number = within(0, MOST)
"""Of a round, a client, a step."""
count = within(1, MOST)
steps = within(1, MOST_STEPS)
batch = optional(within(1, LARGEST_BATCH))


# --- what only this package has -------------------------------------------------------------------------------------------


def node_name(value: Any, name: str) -> str:
    """A node's name: it goes into logs."""
    if not text(value, name) or len(value) > NAME or not value.isprintable():
        raise Malformed(f"{name} must have 1 to {NAME} printable letters, got {brief(value)}")
    return str(value)


def run_name(value: Any, name: str) -> str:
    """A run's name is that of a folder of the node, so it is digits and nothing else; nobody can guess it either."""
    if not _RUN.fullmatch(text(value, name)):
        raise Malformed(f"{name} must be 32 hexadecimal digits, got {brief(value)}")
    return str(value)


def order(value: Any, name: str) -> Order:
    """The order of a request; a session is a time in microseconds."""
    session, *rest = listed(within(0, 2**63 - 1), 4)(value, name)
    round, attempt, sequence = (number(each, name) for each in rest)
    return session, round, attempt, sequence


def version(value: Any, name: str) -> Version:
    """A version of a client's state."""
    round, attempt, draw = listed(number, 3)(value, name)
    return round, attempt, draw


def clients(value: Any, name: str) -> list[int]:
    """The numbers of different clients."""
    given = listed(number)(value, name)
    if len(set(given)) != len(given):
        raise Malformed(f"{name} must be different numbers, got {brief(given)}")
    return given


def client(name: str) -> int:
    """A client's number, as it stands as the name of a row."""
    if not (name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name):
        raise Malformed(f"rows are named by the numbers of clients, got {brief(name)}")
    return number(int(name), "a row's client")


def by_client(tree: Tree, name: str) -> dict[int, Tree]:
    """Rows by client."""
    return {client(each): row for each, row in table(tree, name).items()}
