"""The only file that uses modules of Flower that are not public: they are those of ``flwr`` 1.41.

A node speaks the SuperLink's Fleet API itself, so that its process and its compiled functions live on from message to
message; the server opens a run through the Control API and then holds a ``Grid`` in its own process. What only the
server needs is imported by it alone: it takes half a second of a node's start.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, SubStatus
from flwr.common.serde import context_from_proto, context_to_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable import inflatable_utils
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode import fleet_http_connection

from rookery.engines.flower.launch.processes import NotAdmitted, wait_until_reachable
from rookery.engines.flower.wire.grid import TYPE, unwrapped, wrapped
from rookery.engines.flower.wire.pack import plain

if TYPE_CHECKING:
    from flwr.superlink.grid import HttpGrid

log = logging.getLogger("rookery.flower")

Answer = Callable[[bytes], bytes]

_functions: tuple[Any, ...] = (inflatable_utils.pull_objects, inflatable_utils.pull_and_inflate_object_from_tree)
for _pull in _functions:
    _pull.__kwdefaults__["initial_backoff"] = 0.02  # else whoever asks for an object too early waits a second
    _pull.__kwdefaults__["max_time"] = 20.0


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


fleet_http_connection.flwr_exit = _raise_instead_of_exit
_heart: Any = fleet_http_connection
_heart.os = _NoInterrupt


# --- the server ---------------------------------------------------------------------------------------------------------

_PROJECT = """[project]
name = "rookery-run"
version = "0.1.0"
description = "A run whose server is a process of its own: there is no code in here"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "rookery"
[tool.flwr.app.components]
serverapp = "rookeryrun.app:server"
clientapp = "rookeryrun.app:client"
[tool.flwr.app.config]
"""


def ready_to_serve() -> None:
    """Imports what the server needs: a second, best spent while a SuperLink starts."""
    import flwr.cli.build  # noqa: F401
    from flwr.superlink.grid import http_grid

    grid: Any = http_grid
    grid.pull_objects = _pull_readable


def _pull_readable(object_ids: list[str], **more: Any) -> dict[str, bytes]:
    """The parts of a node's reply. One that cannot be put together counts as lost: Flower would end the server for it."""
    contents: dict[str, bytes] = inflatable_utils.pull_objects(object_ids, **more)
    try:
        found = inflatable_utils.inflate_object_from_contents(object_ids[-1], dict(contents))
        if not isinstance(found, Message):
            raise TypeError(f"a reply is a Message, got {type(found).__name__}")
    except Exception as error:
        raise inflatable_utils.ObjectPullError(object_ids[-1], f"{type(error).__name__}: {error}") from None
    return contents


@contextmanager
def open_run(address: str, certificates: bytes | None = None, patience: float = 30.0) -> Iterator[Grid]:
    """A new run on a SuperLink (started with ``--isolation process``) and the ``Grid`` of its server: this process."""
    from flwr.superlink.grid import HttpGrid

    ready_to_serve()
    bundle = _bundle()
    wait_until_reachable(address, certificates, patience)
    insecure = certificates is None
    control = ControlHttpClient.from_server_address(
        address, insecure, certificates, interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")]
    )
    runtime = RuntimeHttpClient.from_server_address(
        address,
        insecure,
        certificates,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="SuperExec")],
        retry_invoker=make_simple_http_retry_invoker(),
    )
    try:
        run = control.StartRun(StartRunRequest(fab=fab_to_proto(bundle))).run_id
        grid = HttpGrid(address, insecure, certificates, token=_token(runtime, run, patience))
    finally:
        runtime.close()
        control.close()
    with _at_work(grid):
        yield grid


def _bundle() -> Fab:
    from flwr.cli.build import build_fab_from_files

    content, _ = build_fab_from_files(
        {
            "pyproject.toml": _PROJECT.encode(),
            "rookeryrun/__init__.py": b"",
            "rookeryrun/app.py": b"server = client = None\n",
        }
    )
    return Fab(hashlib.sha256(content).hexdigest(), content, {})


def _token(runtime: RuntimeHttpClient, run: int, patience: float) -> str:
    """The right to be the server of a run."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        task = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
        if task.HasField("task") and task.token:
            if task.task.run_id != run:
                raise ConnectionError(f"the SuperLink has another run waiting ({task.task.run_id}): stop it first")
            return str(task.token)
        time.sleep(0.02)
    raise ConnectionError("the SuperLink gives no server's task: start it with --isolation process")


@contextmanager
def _at_work(grid: "HttpGrid") -> Iterator[None]:
    client = grid._runtime_client
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    status, details = SubStatus.FAILED, "the server stopped"
    try:
        given = client.PullTaskInput(PullTaskInputRequest())
        TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
        TaskIdentity.node_id = given.context.node_id
        grid.set_run(run_from_proto(given.run))
        context = context_to_proto(context_from_proto(given.context))
        yield
        status, details = SubStatus.COMPLETED, ""
    finally:
        heartbeat.stop()
        _quietly(
            lambda: client.PushTaskOutput(PushTaskOutputRequest(context=context, sub_status=status, details=details))
        )
        grid.close()


def _quietly(action: Callable[[], Any]) -> None:
    """What is done for good order only: a SuperLink that is gone is no error at the end."""
    try:
        action()
    except Exception as error:
        log.debug("at the end of a run: %s", error)


def local_run() -> Run:
    """A run for a ``Grid`` inside this process, and this process as its server: for tests."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Run.create_empty(run_id=1)


def over_the_wire(message: Message) -> Message:
    """A message as it arrives: taken apart and put together again."""
    name = message.object_id
    contents = {key: each.deflate() for key, each in get_all_nested_objects(message).items()}
    arrived: Any = inflatable_utils.inflate_object_from_contents(name, contents)
    arrived.metadata.__dict__["_message_id"] = name
    assert isinstance(arrived, Message)
    return arrived


# --- a node -------------------------------------------------------------------------------------------------------------


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
                _Link(link, answer).work(stop, poll, slowest)
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


class _Link:
    """A node's connection while it holds."""

    def __init__(self, callbacks: tuple[Any, ...], answer: Answer):
        _, self._receive, self._send, _, _, self._pull, self._push, self._confirm = callbacks
        self._answer = answer

    def work(self, stop: threading.Event, poll: float, slowest: float) -> None:
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
