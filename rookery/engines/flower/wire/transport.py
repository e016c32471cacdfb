"""What carries requests to nodes and answers back."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

Answers = dict[int, bytes | str]
"""The answer of each node; a string says what went wrong on the way."""
Enough = Callable[[Answers], bool]
"""Whether the answers so far will do, so that the others need not be waited for."""


class Transport(Protocol):
    """Nodes have numbers; one request to each goes out, and what comes back by the deadline (in seconds) is returned."""

    def nodes(self) -> list[int]:
        """The nodes that are there now."""

    def owned(self, node: int) -> Collection[int] | None:
        """The clients that a node may speak for; ``None`` if nobody says."""

    def send(self, requests: Mapping[int, bytes], deadline: float, enough: Enough | None = None) -> Answers:
        """The answers to one request a node; nodes that did not answer in time are missing."""


class Answering(Protocol):
    """Whatever answers requests: a node."""

    def answer(self, request: bytes) -> bytes:
        """The answer to a request."""


class Direct:
    """Nodes in this process, asked one after the other."""

    def __init__(self, nodes: Sequence[Answering]):
        self._nodes = dict(enumerate(nodes))

    def nodes(self) -> list[int]:
        """All of them."""
        return list(self._nodes)

    def owned(self, node: int) -> None:
        """Nobody says."""

    def send(self, requests: Mapping[int, bytes], deadline: float, enough: Enough | None = None) -> Answers:
        """Every answer, or as many as are enough."""
        answers: Answers = {}
        for number, request in requests.items():
            answers[number] = self._nodes[number].answer(request)
            if enough is not None and enough(answers):
                break
        return answers
