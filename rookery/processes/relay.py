"""Between JAX's client in this process and JAX's service in process 0: a wire that does not tell when it is cut.

JAX aborts a process, with a stack trace, as soon as its connection to process 0 closes. Here the connection of JAX ends in
this very process, and stays open until we have said in one line what happened.
"""

import socket
import threading
from contextlib import suppress

from rookery.processes.wire import Address


class Relay:
    """Listens on a port of this machine and passes all on to an address, both ways."""

    def __init__(self, target: Address):
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = [self._listener]
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="rookery-relay", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near = self._listener.accept()[0]
            except OSError:
                return
            try:
                far = socket.create_connection(self._target, timeout=10)
            except OSError:
                near.close()  # JAX tries again
                continue
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                one.settimeout(None)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_pass_on, args=(one, other), name="rookery-relay", daemon=True).start()

    def close(self) -> None:
        """Ends all connections."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _pass_on(source: socket.socket, target: socket.socket) -> None:
    """Until one of them ends; the other stays open."""
    with suppress(OSError):
        while part := source.recv(2**16):
            target.sendall(part)
