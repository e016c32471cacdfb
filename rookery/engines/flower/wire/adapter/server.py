"""The server's side of a SuperLink: a run of its own, and the ``Grid`` of that run.

To import this takes a second, half of which is Flower's command line: best done while a SuperLink starts.
"""

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from flwr.app import Message
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import SubStatus
from flwr.common.serde import context_from_proto, context_to_proto, fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullTaskInputRequest, PushTaskOutputRequest
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control.control_http_client import ControlHttpClient
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid, http_grid

from rookery.engines.flower.wire.adapter.objects import inflatable_utils
from rookery.engines.flower.wire.reach import wait_until_reachable

log = logging.getLogger("rookery.flower")

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


_grid: Any = http_grid
_grid.pull_objects = _pull_readable


@contextmanager
def open_run(address: str, certificates: bytes | None = None, patience: float = 30.0) -> Iterator[Grid]:
    """A new run on a SuperLink (started with ``--isolation process``) and the ``Grid`` of its server: this process."""
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
def _at_work(grid: HttpGrid) -> Iterator[None]:
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
