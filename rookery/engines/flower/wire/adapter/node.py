"""A node's side of a SuperLink: messages come in, answers go out, and broken connections are made again."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.run import RunNotRunningException
from flwr.supernode import fleet_http_connection

from rookery.engines.flower.wire.adapter.objects import inflatable_utils
from rookery.engines.flower.wire.grid import TYPE, unwrapped, wrapped
from rookery.engines.flower.wire.pack import plain
from rookery.engines.flower.wire.reach import NotAdmitted, wait_until_reachable

log = logging.getLogger("rookery.flower")

Answer = Callable[[bytes], bytes]


def _raise_instead_of_exit(code: int, message: str | None = None, *_: Any, **__: Any) -> NoReturn:
    """Flower would end this process, and with it the caller's."""
    raise NotAdmitted(" ".join(str(message).split()))


class _NoInterrupt:
    """``os`` for Flower's heartbeat: on a refusal it would send this process a Ctrl-C.

    The next request is refused as well, and :func:`serve` then waits for the node to be admitted again.
    """

    @staticmethod
    def getpid() -> int:
        return 0

    @staticmethod
    def kill(process: int, number: int) -> None:
        log.info("a heartbeat was refused")


_connection: Any = fleet_http_connection
_connection.flwr_exit = _raise_instead_of_exit
_connection.os = _NoInterrupt


def serve(
    address: str,
    answer: Answer,
    stop: threading.Event,
    *,
    certificates: bytes | None = None,
    key: Path | None = None,
    patience: float = 90.0,
    poll: float = 0.02,
    slowest: float = 0.1,
    admitted: Callable[[int], None] = lambda node: None,
) -> None:
    """Answers the messages of a SuperLink until ``stop`` is set, through broken connections too.

    A node with a key that was lost keeps its name until the SuperLink has missed it, so it is let in again only then:
    for ``patience`` seconds a refusal is not final.
    """
    keys = None if key is None else _keys(key)
    wait_until_reachable(address, certificates, max(patience, 1.0))
    refused_since: float | None = None
    while not stop.is_set():
        try:
            with fleet_http_connection.http_request_response(address, certificates is None, certificates, keys) as link:
                refused_since = None
                admitted(link[0])
                Link(link, answer).work(stop, poll, slowest)
        except NotAdmitted as error:
            refused_since = refused_since or time.monotonic()
            if time.monotonic() - refused_since > patience:
                raise
            log.info("not admitted yet: %s", error)
        stop.wait(1.0)


def _keys(path: Path) -> tuple[Any, Any]:
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key

    private = load_ssh_private_key(path.read_bytes(), None)
    return private, private.public_key()


def _refusal(reason: str, message: Message) -> Message:
    log.warning("%s", plain(reason))
    return Message(Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=plain(reason)), reply_to=message)


class Link:
    """A node's connection while it holds."""

    def __init__(self, callbacks: tuple[Any, ...], answer: Answer):
        _, self._receive, self._send, _, _, self._pull, self._push, self._confirm = callbacks
        self._answer = answer

    def work(self, stop: threading.Event, poll: float, slowest: float) -> None:
        """Answers messages until ``stop`` is set or the connection breaks; ``poll`` and ``slowest`` are in seconds."""
        wait = poll
        while not stop.is_set():
            try:
                got = self._receive()
                if got is None:
                    stop.wait(wait)
                    wait = min(wait * 1.2, slowest)
                    continue
                wait = poll
                self._handle(*got)
            except RunNotRunningException:
                log.info("a message of a run that is over")
            except inflatable_utils.ObjectPullError as error:
                log.warning("a message was lost: %s", error)

    def _handle(self, head: Message, tree: Any) -> None:
        run = head.metadata.run_id
        names = [part.object_id for part in iterate_object_tree(tree)]
        contents = inflatable_utils.pull_objects(names, lambda name: self._pull(run, name))
        self._confirm(run, head.metadata.message_id)
        started = time.monotonic()
        try:
            message: Any = inflatable_utils.inflate_object_from_contents(tree.object_id, contents)
            message.metadata.__dict__["_message_id"] = tree.object_id
            reply = self._reply(message)
        except Exception as error:  # whatever somebody sent, this node lives on
            head.metadata.__dict__["_message_id"] = tree.object_id
            reply = _refusal(f"a message that cannot be read: {type(error).__name__}: {error}", head)
        reply.metadata.__dict__["_message_id"] = reply.object_id
        self._deliver(run, reply, time.monotonic() - started)

    def _reply(self, message: Message) -> Message:
        if message.metadata.message_type != TYPE:  # only our own code is run here
            return _refusal(f"this node answers {TYPE} only, got {message.metadata.message_type}", message)
        return Message(wrapped(self._answer(unwrapped(message))), reply_to=message)

    def _deliver(self, run: int, reply: Message, seconds: float) -> None:
        """Sends the reply; again, if the SuperLink was restarted in between."""
        with no_object_id_recompute():
            parts, tree = get_all_nested_objects(reply), get_object_tree(reply)
            for attempt in range(3):
                wanted, session = self._send(reply, tree, seconds)
                try:
                    inflatable_utils.push_objects(
                        parts,
                        lambda name, content, session=session: self._push(run, session, name, content),  # type: ignore[misc]
                        object_ids_to_push=wanted,
                    )
                    return
                except inflatable_utils.ObjectPushError as error:
                    log.warning("a reply was cut off (attempt %d): %s", attempt + 1, error)
