"""Flower's public API: messages over a ``Grid``, and a node as a ``ClientApp``."""

import logging
import time
from collections.abc import Callable, Collection, Mapping

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from rookery.engines.flower.wire.transport import Answers, Enough

log = logging.getLogger("rookery.flower")

TYPE = "train.rookery"
"""The type of all our messages: what is asked for stands in the message itself."""


def wrapped(buffer: bytes) -> RecordDict:
    """A packed message as the content of one of Flower's."""
    return RecordDict({"rookery": ConfigRecord({"message": buffer})})


def unwrapped(message: Message) -> bytes:
    """The packed message in one of Flower's."""
    buffer = message.content["rookery"]["message"]
    if not isinstance(buffer, bytes):
        raise TypeError(f"a message of ours holds bytes, got {type(buffer).__name__}")
    return buffer


def _nobody() -> set[int]:
    return set()


class OverGrid:
    """Sends over a ``Grid`` and polls for the answers: often at first, then less.

    ``ended()`` are nodes that are known to have ended, from whoever started them: a SuperLink notices after a minute.
    """

    def __init__(self, grid: Grid, poll: float = 0.02, slowest: float = 0.25, ended: Callable[[], set[int]] = _nobody):
        self._grid = grid
        self._poll = poll
        self._slowest = slowest
        self._ended = ended

    def nodes(self) -> list[int]:
        """The nodes that the SuperLink has heard of lately and that have not ended."""
        return sorted(set(self._grid.get_node_ids()) - self._ended())

    def owned(self, node: int) -> Collection[int] | None:
        """Nobody says; see ``claims.py``."""
        return None

    def send(self, requests: Mapping[int, bytes], deadline: float, enough: Enough | None = None) -> Answers:
        """One message a node. Answers are told apart by the message that they reply to: a lost node has no name."""
        end = time.monotonic() + deadline
        messages = [
            Message(wrapped(buffer), dst_node_id=node, message_type=TYPE, ttl=deadline)
            for node, buffer in requests.items()
        ]
        if not messages:
            return {}
        try:
            sent = list(self._grid.push_messages(messages))
        except Exception as error:  # a SuperLink that is restarted in between: the round is tried again
            log.warning("messages could not be sent: %s", error)
            return dict.fromkeys(requests, f"the message could not be sent: {error}")
        waiting = {id: node for id, node in zip(sent, requests, strict=False) if id}
        answers: Answers = {}
        wait = self._poll
        while waiting and time.monotonic() < end and not (enough is not None and enough(answers)):
            ended = self._ended()  # before the look: what such a node still sent is there by now
            got = list(self._grid.pull_messages(list(waiting)))
            for message in got:
                node = waiting.pop(message.metadata.reply_to_message_id, None)
                if node is not None:
                    answers[node] = _answer(message)
            for id in [id for id, node in waiting.items() if node in ended]:
                answers[waiting.pop(id)] = "its process has ended"
            wait = self._poll if got else min(wait * 1.3, self._slowest)
            if waiting:
                time.sleep(max(0.0, min(wait, end - time.monotonic())))
        return answers


def _answer(message: Message) -> bytes | str:
    if message.has_error():
        return f"Flower reports error {message.error.code}: {message.error.reason}"
    try:
        return unwrapped(message)
    except (KeyError, TypeError) as error:
        return f"its answer cannot be read: {error}"


def client_app(answer: Callable[[bytes, Context], bytes]) -> ClientApp:
    """A ``ClientApp`` that hands requests on."""
    app = ClientApp()

    @app.train("rookery")
    def train(message: Message, context: Context) -> Message:
        return Message(wrapped(answer(unwrapped(message), context)), reply_to=message)

    return app
