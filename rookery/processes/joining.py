"""Makes this process one of several, for JAX and for Rookery."""

import atexit
import errno
import json
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from rookery.processes.failure import Lost, is_known, line_of
from rookery.processes.group import Group
from rookery.processes.meeting import Door, Hello, Peer, call, introduce, receive
from rookery.processes.relay import Relay
from rookery.processes.wire import Address, free_port, listen, read_address
from rookery.stopping import end

TIMEOUT = 120.0
"""Seconds that processes wait for each other at the start."""
LEAVING = 10.0
"""Seconds that a process which ends with an error waits for the others to end."""

_TIMES: dict[str, Any] = {"heartbeat_timeout_seconds": 3600, "shutdown_timeout_seconds": 30}
"""JAX's own. It aborts a process without a heartbeat: long after we have noticed a loss, but also one that was suspended."""
_ROOM = 1024
"""Bytes in which process 0 tells where it is, if a cluster brought the processes together."""
_T = TypeVar("_T")


@dataclass
class _Here:
    """What this process is one of."""

    group: Group | None = None
    door: Door | None = None
    relay: Relay | None = None
    broken: bool = False


_here = _Here()


def join(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    timeout: float = TIMEOUT,
) -> Group:
    """Makes this process one of several that make runs together. It comes before anything is computed.

    Every process makes the same call, but for its number. Without arguments all is found out where a cluster tells it:
    SLURM, Open MPI, TPU pods.

    Args:
        coordinator: HOST:PORT at which process 0 can be reached. Whoever can reach that port could take part: it
            belongs into a network of your own.
        processes: how many there are.
        process: which one this is: 0, 1, …
        timeout: seconds to wait for the others.

    Raises:
        ValueError: on all processes alike, if one does not come, or does not fit the others: another number of processes,
            a number that is taken, other versions, another precision.
    """
    if _here.group is not None:
        raise ValueError(
            f"join: this is process {_here.group.number} of {_here.group.count} already; leave comes first"
        )
    given = {"coordinator": coordinator, "processes": processes, "process": process}
    missing = [name for name, value in given.items() if value is None]
    if 0 < len(missing) < len(given):
        raise ValueError(f"join: {' and '.join(missing)} must be given as well; or nothing, where a cluster tells it")
    atexit.register(_at_exit)
    try:
        if coordinator is None or processes is None or process is None:
            _here.group = _detected(timeout)
        else:
            _here.group = _named(read_address(coordinator), processes, process, timeout)
    except BaseException:
        _close()
        raise
    return _here.group


def _named(address: Address, count: int, number: int, timeout: float) -> Group:
    """Brings processes together that were told their numbers."""
    for name, value, least in (("processes", count, 1), ("process", number, 0)):
        if type(value) is not int or value < least:
            raise ValueError(f"join: {name} must be a whole number of at least {least}, got {value!r}")
    own = introduce(number, count, started=_has_started())
    if count == 1 and number == 0:
        return Group(0, [own.peer], {})
    here = Address("127.0.0.1", 0)
    if number == 0:
        group, port = _receive(_listen(address, own), own, timeout)
        here = here._replace(port=port)
        bind = str(here) if address.is_here else None
    else:
        group, port = _visit([address], own, timeout)
        _here.relay = Relay(Address("127.0.0.1" if address.is_here else address.host, port))
        here, bind = _here.relay.address, None
    method = "deactivate"  # what a cluster tells is for who was told nothing
    with _no_proxy(here.host):
        _initialize(
            group, timeout, coordinator_address=str(here), num_processes=count, process_id=number,
            coordinator_bind_address=bind, cluster_detection_method=method,
        )  # fmt: skip
    return group


def _detected(timeout: float) -> Group:
    """Brings processes together that a cluster has started. JAX knows how; then we need a channel of our own."""
    if _has_started():
        raise ValueError("join must come before anything is computed")
    _initialize(None, timeout)
    number, count = jax.process_index(), jax.process_count()
    if count == 1:
        return Group(0, [introduce(0, 1).peer], {})
    listener = listen(Address("", 0)) if number == 0 else None
    token = secrets.token_hex(16)
    port = listener.getsockname()[1] if listener else 0
    told = _told_by_first({"token": token, "port": port, "hosts": _names_of_this_host()})
    own = introduce(number, count, token=told["token"])
    if listener is not None:
        _here.door = Door(listener, token)
        return _receive(_here.door, own, timeout)[0]
    return _visit([Address(host, told["port"]) for host in told["hosts"]], own, timeout)[0]


def _listen(address: Address, own: Hello) -> Door:
    try:
        _here.door = Door(listen(address))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:  # by another process 0 perhaps: then all are to know
            with suppress(OSError):
                call([address], own, 5.0)[0].close()
        raise ValueError(f"process 0 cannot listen at {address}: {error.strerror or error}") from None
    return _here.door


def _receive(door: Door, own: Hello, timeout: float) -> tuple[Group, int]:
    """Process 0: waits for the others, and tells them who there is and where JAX's service will be."""
    arrivals = receive(door, own, timeout)
    port = free_port()
    peers = [own.peer, *(each.hello.peer for each in arrivals)]
    for each in arrivals:
        with suppress(OSError):  # the group notices
            each.link.send({"peers": [asdict(peer) for peer in peers], "port": port})
    return Group(0, peers, {each.hello.peer.number: each.link for each in arrivals}), port


def _visit(addresses: list[Address], own: Hello, timeout: float) -> tuple[Group, int]:
    """The other processes: find process 0, and hear who there is and where JAX's service will be."""
    link, answer = call(addresses, own, timeout)
    return Group(own.peer.number, [Peer(**each) for each in answer["peers"]], {0: link}), answer["port"]


def _initialize(group: Group | None, timeout: float, **where: Any) -> None:
    with suppress(AttributeError):  # it would take SIGTERM for itself, and say nothing of it
        jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(initialization_timeout=int(timeout) or 1, **_TIMES, **where)
    except ValueError:
        if where:
            raise
        raise ValueError("join: no cluster tells what to do; give coordinator, processes and process") from None
    except RuntimeError as error:
        _here.broken = True
        lost = None if group is None else group.lost(1.0)
        if lost is not None:
            raise lost from None
        failed = ValueError(f"JAX could not bring the processes together: {line_of(error)}")
        if group is not None:
            group.abandon(failed)
        raise failed from error


@contextmanager
def _no_proxy(host: str) -> Iterator[None]:
    """JAX speaks to this host directly: gRPC would ask an HTTP proxy even for this machine, in vain and for minutes."""
    name = "no_grpc_proxy"
    before = os.environ.get(name)
    usual = before or os.environ.get("no_proxy") or os.environ.get("NO_PROXY")
    os.environ[name] = f"{usual},{host}" if usual else host
    with suppress(AttributeError):
        jax.config.update("jax_check_proxy_envs", False)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _has_started() -> bool:
    """Whether JAX has devices already. There is no public question, but one setting cannot be changed any more."""
    name = "jax_num_cpu_devices"
    before = getattr(jax.config, name)
    try:
        jax.config.update(name, before + 1 if before > 0 else 1)
    except RuntimeError:
        return True
    jax.config.update(name, before)
    return False


def _names_of_this_host() -> list[str]:
    """Under which others may reach it, and at last that for those on the same machine."""
    names = [socket.gethostname()]
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent: it tells the address that faces the network
        names.append(probe.getsockname()[0])
    return [*names, "127.0.0.1"]


def _told_by_first(message: Any) -> Any:
    """What process 0 says, by way of its devices."""
    text = json.dumps(message).encode().ljust(_ROOM)
    told = multihost_utils.broadcast_one_to_all(np.frombuffer(text, np.uint8))
    return json.loads(np.asarray(told, np.uint8).tobytes())


# --- the end ----------------------------------------------------------------------------------------------------------


def leave(error: BaseException | None = None) -> None:
    """Ends the group; all processes do so. Waits until the others have come to their end too; does nothing if there is none.

    With an error that ends this process: others that do not know of it are told.

    Raises:
        Lost: if another process ended without leaving, and there is no error that is raised anyway.
    """
    group, _here.group = _here.group, None
    if group is None:
        return
    try:
        if error is not None and not is_known(error):
            group.abandon(error)
            raise Lost("this process has failed")
        group.part(None if error is None else LEAVING)
        jax.distributed.shutdown()
    except BaseException as other:
        _here.broken = True
        if error is None or not isinstance(other, Lost | RuntimeError):
            raise
    finally:
        group.close()
        _close()


def _close() -> None:
    """Listens no more. After a loss the relay stays: JAX would abort this process."""
    if _here.door is not None:
        _here.door.close()
        _here.door = None
    if _here.relay is not None and not broken():
        _here.relay.close()
        _here.relay = None


def _at_exit() -> None:
    """Before JAX's own end, which waits for others that may not come."""
    with suppress(Lost):
        leave(getattr(sys, "last_value", None))
    if broken():
        end(1)


def current() -> Group | None:
    """The group that this process is one of."""
    return _here.group


def is_first() -> bool:
    """Whether this is process 0, or alone: the one that writes and shows."""
    return _here.group is None or _here.group.number == 0


def broken() -> bool:
    """Whether a process was lost: this one must then end through :func:`rookery.stopping.end`."""
    return _here.broken or (_here.group is not None and _here.group.broken)


def together() -> AbstractContextManager[None]:
    """:meth:`Group.together` of this process's group, if there is one."""
    return nullcontext() if _here.group is None else _here.group.together()


def on_first(work: Callable[[], _T]) -> _T:
    """:meth:`Group.first` of this process's group; the work itself if there is none."""
    return work() if _here.group is None else _here.group.first(work)
