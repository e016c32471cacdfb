"""A node: some clients with their data. It answers requests, whatever carries them.

A request is a packed message (``wire/pack.py``); its ``meta["kind"]`` is one of

    begin      a run starts (or this node is new in it): the algorithm's name and rates, seeds, x0 and y0
    exchange   one exchange of one round, for the participants that live here: what is broadcast, and their own rows
    keep       what the clients keep, for evaluation and for the solution
    end        the run is over: what was kept for it is removed

and, where sums are secure, the steps before and after an exchange (``wire/summing.py``):

    advertise  make keys for an exchange
    share      share their secrets among the nodes of the exchange
    confirm    sign who is still there
    unmask     tell the shares that remove the masks from the sum

What each may hold is checked in ``wire/requests.py``, so that a server can touch nothing here but the state of its own
run. Only code that is installed here is run. The answer to a repeated request is the stored one.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rookery.aggregation.privacy import ClientPrivacy
from rookery.aggregation.secure.identity import Identity
from rookery.aggregation.secure.options import SecureSum
from rookery.aggregation.secure.protocol import ProtocolError
from rookery.algorithm.cost import costs_of
from rookery.algorithm.setting import Setting, flat_problem, with_dtype
from rookery.engines.flower.hosted import Hosted, Rows, arrays
from rookery.engines.flower.precision import enable_x64, x64_enabled
from rookery.engines.flower.refusal import Refused
from rookery.engines.flower.site import Site
from rookery.engines.flower.store import Store
from rookery.engines.flower.wire.fields import NAME
from rookery.engines.flower.wire.pack import Malformed, pack, plain
from rookery.engines.flower.wire.requests import Begin, End, Keep, Request, Work, read_request
from rookery.engines.flower.wire.summing import (
    Advertise,
    Confirm,
    Share,
    Step,
    Unmask,
    tell_bytes,
    tell_keys,
    tell_shared,
)
from rookery.problem.clients import Clients, Split
from rookery.problem.participation import Full, Steps
from rookery.typing import Tree

log = logging.getLogger("rookery.flower")

RUNS = 4
"""How many runs a node with a folder has in memory; others are read again when they are asked for."""


class Node:
    """Hosts ``clients`` of the problem that ``open_site()`` gives, and answers requests.

    What clients keep is stored below ``folder``, or in memory only without one. The problem and the data are loaded when
    the first run begins, in its precision. A node with an ``identity`` takes part in runs with secure sums only, and
    only with nodes whose keys it lists.
    """

    def __init__(
        self,
        open_site: Callable[[], Site],
        clients: Sequence[int],
        folder: Path | None = None,
        name: str = "",
        identity: Identity | None = None,
    ):
        if not clients or len(set(clients)) != len(clients) or min(clients) < 0:
            raise ValueError(f"partitions must be different whole numbers, at least one, got {list(clients)}")
        self.clients = sorted(clients)
        self.name = plain(name or "node of " + ", ".join(map(str, self.clients)), NAME - 3)
        self._open_site = open_site
        self._folder = folder
        self._identity = identity
        self._site: Site | None = None
        self._data: Clients | None = None
        self._runs: dict[str, Hosted] = {}
        self._lock = threading.Lock()

    def answer(self, request: bytes) -> bytes:
        """The answer to a request; what goes wrong is told in it."""
        with self._lock:
            try:
                return self._answer(request)
            except Refused as error:
                return self._wrong(str(error), error.kind)
            except (Malformed, ProtocolError) as error:
                return self._wrong(str(error))
            except Exception as error:  # whatever a loss or a loader raises is told, and the node lives on
                return self._wrong(f"{type(error).__name__}: {error}")

    def _wrong(self, text: str, kind: str = "error") -> bytes:
        return pack(None, {"name": self.name, "error": plain(text, 1000), "kind": kind})

    def _rows(self, rows: Rows) -> bytes:
        good, failed = ({str(client): each for client, each in part.items()} for part in rows)
        return pack(good, {"name": self.name, "failed": failed})

    def _answer(self, request: bytes) -> bytes:
        read = read_request(request)
        try:
            return self._answer_to(read, request)
        except (Refused, Malformed, ProtocolError):
            raise
        except Exception as error:
            if self._tells_errors(read):
                raise
            log.warning("%s: a request of run %s failed", self.name, read.run, exc_info=True)
            told = f"{type(error).__name__}: what it says may tell of the data, it is in the log of the node"
            raise Refused("error", told) from None

    def _tells_errors(self, read: Request) -> bool:
        """Whether the server may see more than sums: it is known of the run, before and after a restart, or it begins so."""
        begins = read if isinstance(read, Begin) else None
        known = self._runs.get(read.run) or _begun(self._store(read.run)) or begins
        return self._identity is None and known is not None and known.secure is None

    def _answer_to(self, read: Request, request: bytes) -> bytes:
        match read:
            case Begin():
                return self._begin(read, request)
            case Work() | Advertise() | Share() | Confirm() | Unmask():
                run, digest = self._run(read.run), hashlib.sha256(request).hexdigest()
                if digest not in run.answers:
                    answer = self._exchange(run, read) if isinstance(read, Work) else self._step(run, read)
                    run.answers[digest] = answer
                return run.answers[digest]
            case Keep():
                run = self._run(read.run)
                if run.secure is not None:
                    raise Refused("error", "sums are secure: what clients keep does not leave them")
                return self._rows(run.kept(read))
            case End():
                self._runs.pop(read.run, None)
                self._store(read.run).clear()
                return pack(None, {"name": self.name})

    def _exchange(self, run: Hosted, work: Work) -> bytes:
        if (work.secure is None) != (run.secure is None):
            raise Refused("error", "an exchange has masks in a run with secure sums, and in no other")
        uploads, failed = run.exchange(work)
        if run.secure is None:
            return self._rows((uploads, failed))
        if not uploads:
            raise Refused("error", "; ".join(failed.values()) or "no participants")
        upload = next(iter(uploads.values()))
        masked = run.summed(work.order).mask(work, uploads, run.deviations(work, upload), run.heaviest(work, upload))
        told = {"clients": list(uploads), "failed": {str(client): why for client, why in failed.items()}}
        return pack(masked, {"name": self.name, **told})

    def _step(self, run: Hosted, step: Step) -> bytes:
        """A step of a secure sum beside the exchange."""
        told: dict[str, Any]
        match step:
            case Advertise():
                told = {"keys": tell_keys(run.join(step).advertise())}
            case Share():
                told = tell_shared(run.summed(step.order).share(step))
            case Confirm():
                told = {"signature": run.summed(step.order).confirm(step.survivors).hex()}
            case Unmask():
                told = {"shares": tell_bytes(run.summed(step.order).unmask(step.survivors, step.signatures))}
        return pack(None, {"name": self.name, **told})

    # --- a run starts

    def _begin(self, begin: Begin, request: bytes) -> bytes:
        known = self._find(begin.run)
        if known is not None and known.told != begin.told:
            raise Refused("error", f"the run {begin.run} began here with other settings")
        run = known or self._open(begin)
        if known is None or begin.keep:  # a greeting that comes late must not undo what clients were given
            run.begin(begin.x, begin.y, begin.keep)
            run.store.begin(request)
        self._remember(begin.run, run)
        told = {
            "name": self.name,
            "clients": self.clients,
            "sizes": {name: getattr(run.setting.clients, name).size.tolist() for name in ("lower", "upper")},
            "costs": _costs(run.setting, begin) if begin.costs else [],
        }
        return pack(None, told)

    def _open(self, begin: Begin) -> Hosted:
        """The run that a request begins, with this node's problem and data."""
        if begin.x64 != x64_enabled():
            if self._site is not None:
                raise Refused("error", f"the run has x64 = {begin.x64}, this node began with {not begin.x64}")
            enable_x64(begin.x64)
        if self._site is None:
            self._site = self._open_site()
        if self._identity is not None and begin.secure is None:
            raise Refused("error", "this node takes part in runs with secure sums only")
        if begin.n != self._site.n:
            raise Refused("error", f"the run has {begin.n} clients, the problem here {self._site.n}")
        if self._data is None:
            self._data = self._site.load(self.clients)
        store = self._store(begin.run)
        setting = _setting(begin, self._site, self._data)
        run = Hosted(begin.told, setting, self.clients, store, store.newest())
        if begin.secure is not None:
            run.secure, run.identity, run.n = SecureSum(**begin.secure), self._identity, begin.n
            run.expected = None if begin.privacy is None else begin.privacy["expected"]
            if run.expected is not None and not 1 <= run.expected <= begin.n:
                raise Refused(
                    "error",
                    f"a private run with secure sums must expect 1 to {begin.n} participants, got {run.expected:g}",
                )
        return run

    # --- runs that began here

    def _remember(self, name: str, run: Hosted) -> None:
        self._runs[name] = run
        while self._folder is not None and len(self._runs) > RUNS:
            del self._runs[next(iter(self._runs))]

    def _run(self, name: str) -> Hosted:
        run = self._find(name)
        if run is None:
            raise Refused("unknown-run", f"the run {name} has not begun here")
        return run

    def _find(self, name: str) -> Hosted | None:
        """A run that began here: in memory, or on disk from before a restart."""
        if name not in self._runs:
            begun = _begun(self._store(name))
            if begun is None or begun.run != name:
                return None
            run = self._open(begun)
            run.begin(begun.x, begun.y, begun.keep)
            self._remember(name, run)
        return self._runs[name]

    def _store(self, run: str) -> Store:
        return Store(None if self._folder is None else self._folder / run)


def _begun(store: Store) -> Begin | None:
    """The request that began a run, if it can still be read."""
    stored = store.begun()
    try:
        request = None if stored is None else read_request(stored)
    except Malformed:
        return None
    return request if isinstance(request, Begin) else None


def _setting(begin: Begin, site: Site, data: Clients) -> Setting:
    """The run that a server tells, for this node's problem and data."""
    flat, _ = flat_problem(site.problem, site.x0, site.y0, site.n)
    for name, given, layout in (("x0", begin.x, flat.x), ("y0", begin.y, flat.y)):
        if given.shape != (layout.size,) or given.dtype != layout.dtype:
            here, there = f"{layout.dtype}[{layout.size}]", f"{given.dtype}{list(given.shape)}"
            raise Refused("error", f"{name} of the run is {there}, of the problem here {here}")
    algorithm = with_dtype(site.make_algorithm(begin.algorithm), flat.x.dtype)
    key = jax.random.wrap_key_data(jnp.asarray(begin.key), impl="threefry2x32")
    privacy = None if begin.privacy is None else ClientPrivacy.of_told(begin.privacy)
    fixed = Full(), Steps(*begin.steps), begin.batch_size, key, arrays(begin.x)
    return Setting(flat, algorithm, data, *fixed, privacy=privacy)


def _costs(setting: Setting, begin: Begin) -> list[dict[str, Any]]:
    """What a round costs, for a server that has no data to trace it with: one example stands for everybody's."""

    def row(split: Split) -> Tree:
        return jax.tree.map(lambda leaf: leaf[:1], split.data)

    own = setting.clients
    lower, upper = (Split.shared(row(split), begin.n) for split in (own.lower, own.upper))
    like = replace(setting, clients=Clients(lower, upper, server=row(own.lower)))
    return [asdict(cost) for cost in costs_of(like, *arrays((begin.x, begin.y)))]
