"""``rk.Flower``: the engine that runs clients on Flower nodes."""

import ipaddress
import logging
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from rookery.aggregation.robust import Rule
from rookery.aggregation.secure.options import LEAST
from rookery.algorithm.exchange import stacked_parts
from rookery.algorithm.setting import Setting
from rookery.algorithms.registry import name_of
from rookery.engines.base import Engine, Run, kept_by
from rookery.engines.flower.federation import Federation, shows_state
from rookery.engines.flower.launch.processes import (
    Started,
    free_port,
    node_number,
    require_flower,
    start_superlink,
    started,
    wait_for_superlink,
)
from rookery.engines.flower.node import Node
from rookery.engines.flower.reach import check_reach
from rookery.engines.flower.rules import FederationError, Rules
from rookery.engines.flower.site import from_memory
from rookery.engines.flower.wire.transport import Transport
from rookery.problem.participation import Bernoulli
from rookery.problem.validation import warn
from rookery.stopping import heard

log = logging.getLogger("rookery.flower")


@dataclass(frozen=True)
class Remote(Rules, Engine):
    """An engine whose clients are reached by messages. Subclasses say what carries them."""

    batches: ClassVar[bool] = False
    shows_participants: ClassVar[bool] = True
    noise_from_key: ClassVar[bool] = False

    def connect(self, run: Run) -> AbstractContextManager[Transport]:
        """What carries the messages, while it is open."""
        raise NotImplementedError

    @property
    def lasting(self) -> bool:
        """Whether nodes keep clients' state after the run, so that it can be resumed."""
        return False

    def check(self, run: Run) -> None:
        """The server can show the solution, and more participants can be asked than are wanted if that is wished."""
        setting, n = run.setting, run.setting.clients.n
        self.asked(setting.participation, n)
        if setting.attack is not None:
            raise ValueError("attack: attacks are for rk.Simulator() alone, nodes are honest or lie by themselves")
        if setting.aggregate is not None:
            self._check_rule(setting.aggregate, setting.participation.least(n))
        if self.secure is not None:
            self._check_secure(setting, n)
        protected = "privacy" if setting.privacy is not None else "secure sums" if self.secure is not None else None
        if protected is not None and self.collect and kept_by(setting.algorithm, run.x, run.y):
            raise ValueError(f"collect must be False with {protected}: what clients keep is not protected, got True")
        if not self.collect and shows_state(run.setting.algorithm, run.x, run.y):
            raise ValueError(
                "collect must be True where every client has a lower level of its own: y is what they keep, got False"
            )

    def _check_secure(self, setting: Setting, n: int) -> None:
        """The server needs nothing but weighted sums, of enough participants."""
        if setting.aggregate is not None:
            raise ValueError(
                f"aggregate and secure exclude each other: {setting.aggregate} compares uploads one by one, and with "
                "secure sums the server sees their sum alone"
            )
        shown = " and ".join(stacked_parts(setting.algorithm.round()))
        if shown:
            raise ValueError(
                f"secure: {name_of(type(setting.algorithm))} needs the {shown} of every client by itself "
                '("stack"ed, not summed): it cannot be run with secure sums'
            )
        chosen = setting.participation
        few = chosen.slots(n) if isinstance(chosen, Bernoulli) else chosen.least(n)  # a draw of chance is made again
        if few < LEAST:
            raise ValueError(
                f"secure sums must have at least {LEAST} participants: of two, each learns the other's upload from the "
                f"sum, got {few} in a draw of {type(chosen).__name__}"
            )

    def _check_rule(self, rule: Rule, least: int) -> None:
        """It works with as few participants as the quorum lets pass."""
        passing = self.needed(least)
        try:
            rule.check(passing)
        except ValueError as error:
            raise ValueError(f"{error}: the quorum of {self.quorum} lets {passing} pass") from None
        if rule.protects(least) and not rule.protects(passing):
            warn(
                f"aggregate: of fewer than 3 participants {type(rule).__name__} protects nobody, and the quorum of "
                f"{self.quorum} lets {passing} pass"
            )

    @contextmanager
    def open(self, run: Run) -> Iterator[Federation]:
        """The federation of a run. Nodes are waited for, so a signal is heard at once."""
        with heard(at_once=True), self.connect(run) as transport:
            federation = Federation(run, transport, self)
            federation.gather_nodes()
            self.check_nodes(len(set(federation.roster.hosts.values())))
            if self.secure is not None:
                check_reach(run.setting, federation.roster.hosts, self.secure)
            yield federation
            if not self.lasting:
                federation.end()


@dataclass(frozen=True)
class Over(Remote):
    """Any transport: nodes in this process, or one for tests that loses messages."""

    transport: Any = None

    @contextmanager
    def connect(self, run: Run) -> Iterator[Transport]:
        """The transport as it is."""
        if self.transport is None:
            raise ValueError("transport must be given, got None")
        yield self.transport


@dataclass(frozen=True)
class Flower(Remote):
    """Clients on Flower nodes.

    Without ``superlink`` a SuperLink and ``nodes`` nodes are started on this machine and stopped at the end. Given the
    name of a ``problem`` (a module, a Python file, or the TOML file of a run's settings) the nodes are processes that
    load it themselves; without one they are threads of this process that share the problem, over the same network.

    Args:
        nodes: how many nodes to start; clients are dealt out to them in turn.
        problem: where node processes find the problem.
        superlink: HOST:PORT of a SuperLink that is there already, with nodes of its own.
        certificates: the file of the root certificate of that SuperLink.
        keys: a TOML file that lists the clients of each node's key; no other node is spoken to.
        folder: where logs and what clients keep go, so that a run can be resumed; by default a temporary folder.
        quorum: the least share (a float in (0, 1]) or number of a draw's participants whose uploads are counted; below it
            the round is repeated with other participants.
        attempts: how often a round is tried in all.
        deadline: seconds to wait for the uploads of an exchange.
        over_selection: how many times more participants are asked than are wanted; the first to answer are counted.
        patience: seconds to wait for all clients to be there at the start.
        pause: seconds before a round is repeated, doubled each time up to 30.
        collect: whether what clients keep comes to the server at the end, so that the solution is that of the simulator;
            without it, it never leaves them.
        secure: ``rk.SecureSum(...)``: the server sees the sum of the nodes' uploads and none of them. Needs three nodes
            or more.
    """

    nodes: int = 2
    problem: str | None = field(default=None, metadata={"stored": False})  # a run's folder has its own
    superlink: str | None = None
    certificates: Path | None = None
    keys: Path | None = None
    folder: Path | None = field(default=None, metadata={"stored": False})

    def __post_init__(self) -> None:
        super().__post_init__()
        require_flower()
        for name in ("certificates", "keys", "folder"):
            if isinstance(given := getattr(self, name), str):
                object.__setattr__(self, name, Path(given))
        if not isinstance(self.nodes, int) or self.nodes < 1:
            raise ValueError(f"nodes must be an integer of at least 1, got {self.nodes!r}")
        if self.superlink is None:
            self.check_nodes(self.nodes)
        if self.superlink is not None and ":" not in self.superlink:
            raise ValueError(f"superlink must be HOST:PORT, got {self.superlink!r}")
        if self.superlink is not None and self.certificates is None and not is_loopback(self.superlink):
            raise ValueError(
                f"certificates must be given for {self.superlink}: only a SuperLink on this machine is spoken to "
                "without TLS; rookery deploy certs makes some"
            )

        if self.keys is not None and self.certificates is None:
            raise ValueError("keys must be given with superlink and certificates: a node proves its key over TLS only")

    @property
    def ours(self) -> bool:
        """Unless they come to a SuperLink that is there already."""
        return self.superlink is None

    @property
    def lasting(self) -> bool:
        """With a folder, or nodes of others."""
        return self.folder is not None or self.superlink is not None

    def in_folder(self, folder: Path) -> "Flower":
        """Nodes of ours load the task from the run's own settings, and keep what clients keep in its folder."""
        if self.superlink is not None:
            return self
        return replace(self, problem=str(folder / "config.toml"), folder=folder / "nodes")

    @contextmanager
    def connect(self, run: Run) -> Iterator[Transport]:
        """Opens a run on the SuperLink; starts it, and the nodes, if there is none."""
        logging.getLogger("flwr").setLevel(logging.ERROR)
        if self.superlink is not None:
            from rookery.engines.flower.wire.adapter.server import open_run
            from rookery.engines.flower.wire.claims import KeyedGrid, read_owners
            from rookery.engines.flower.wire.grid import OverGrid

            root = None if self.certificates is None else self.certificates.read_bytes()
            owners = None if self.keys is None else read_owners(self.keys, run.setting.clients.n)
            with open_run(self.superlink, root) as grid:
                yield OverGrid(grid) if owners is None else KeyedGrid(grid, owners)
            return
        with ExitStack() as stack:
            folder = self.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rookery-")))
            group = stack.enter_context(started(folder))
            address = f"127.0.0.1:{free_port()}"
            start_superlink(group, int(address.rpartition(":")[2]))
            if self.problem is not None:
                self._start_processes(group, address, run.setting.clients.n)
            from rookery.engines.flower.wire.adapter.server import open_run  # a second, while the SuperLink starts
            from rookery.engines.flower.wire.grid import OverGrid

            wait_for_superlink(group, f"http://{address}")
            if self.problem is None:
                stack.enter_context(self._threads(address, run, folder))
            grid = stack.enter_context(open_run(address))
            yield OverGrid(grid, ended=_Ended(group))

    def _dealt(self, n: int) -> list[list[int]]:
        """The clients of each node."""
        return [list(range(number, n, self.nodes)) for number in range(min(self.nodes, n))]

    def _start_processes(self, group: Started, address: str, n: int) -> None:
        assert self.problem is not None
        command = [sys.executable, "-m", "rookery.cli.starter", str(group.folder), address, self.problem]
        group.start("nodes", command + [",".join(map(str, clients)) for clients in self._dealt(n)])

    @contextmanager
    def _threads(self, address: str, run: Run, folder: Path) -> Iterator[None]:
        from rookery.engines.flower.wire.adapter.node import serve

        setting = run.setting
        x0, y0 = setting.flat.x.unravel(run.x), setting.flat.y.unravel(run.y)
        site = from_memory(setting.flat.problem, setting.clients, x0, y0, setting.algorithm)
        stop = threading.Event()
        threads = []
        for number, clients in enumerate(self._dealt(setting.clients.n)):
            name = f"node-{number}"
            node = Node(lambda: site, clients, folder / name, name)
            threads.append(threading.Thread(target=serve, args=(address, node.answer, stop), name=name, daemon=True))
            threads[-1].start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join(5)


class _Ended:
    """Which of the nodes that we started have ended; raises if the SuperLink or all nodes have."""

    def __init__(self, group: Started):
        self._group = group
        self._numbers: set[int] = set()

    def __call__(self) -> set[int]:
        for line in self._group.news("nodes") if "nodes" in self._group.processes else []:
            log.warning("%s", line)
            self._numbers |= {number for number in [node_number(line)] if number is not None}
        self._group.check()
        return self._numbers


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT (or HOST) is this machine's own: ``localhost``, or a number that is loopback."""
    named = re.fullmatch(r"(?:\[([0-9a-fA-F:]+)\]|([^:@/\[\]]+))(?::[0-9]{1,5})?", address)
    host = address if named is None else named[1] or named[2]
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


__all__ = ["FederationError", "Flower", "Over", "Remote"]
