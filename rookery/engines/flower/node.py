"""A node: some clients with their data. It answers requests, whatever carries them.

A request is a packed message (``pack.py``); its ``meta["kind"]`` is one of

    begin      a run starts (or this node is new in it): the algorithm's name and rates, seeds, x0 and y0
    exchange   one exchange of one round, for the participants that live here: what is broadcast, and their own rows
    keep       what the clients keep, for evaluation and for the solution
    end        the run is over: what was kept for it is removed

What each may hold is checked in ``messages.py``, so that a server can touch nothing here but the state of its own run.
Only code that is installed here is run. The answer to a repeated request is the stored one.
"""

import copy
import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm.cost import costs_of, described
from rookery.algorithm.exchange import Exchange
from rookery.algorithm.setting import Setting, with_dtype
from rookery.algorithm.walk import count_stages, stage_at
from rookery.engines.flower.site import Site
from rookery.engines.flower.store import StateLost, Store
from rookery.engines.flower.wire.messages import NAME, Begin, End, Keep, Work, read_request
from rookery.engines.flower.wire.pack import Malformed, pack, plain
from rookery.problem.clients import Clients, Split
from rookery.problem.layout import Layout, same_structure
from rookery.problem.participation import Full, Steps
from rookery.problem.problems import ClientWeighting, Flat
from rookery.typing import Tree

log = logging.getLogger("rookery.flower")

RUNS = 4
"""How many runs a node with a folder has in memory; others are read again when they are asked for."""


TOLERANCE = 3600.0
"""Seconds that a server's clock may be ahead of this node's; a session is the time at which its server started."""


class Refused(Exception):
    """A request that cannot be answered; ``kind`` tells the server what to do about it."""

    def __init__(self, kind: str, text: str):
        super().__init__(text)
        self.kind = kind


@dataclass
class _Run:
    """One run as this node sees it."""

    told: str
    """The digest of what began it."""
    setting: Setting
    start: dict[int, Tree]
    """What each client kept before the first round of this run."""
    store: Store
    newest: tuple[int, ...]
    """(session, round, attempt, sequence) of the newest request."""
    answers: dict[str, bytes] = field(default_factory=dict)
    """The answers of this attempt at a round, by the digest of the request."""
    downloads: dict[int, dict[str, str]] = field(default_factory=dict)
    """The dtypes and shapes of what each exchange brought: others would be compiled for, and the program kept."""

    @property
    def several(self) -> bool:
        """Whether a round has more than one exchange."""
        steps = self.setting.algorithm.round()
        return len(steps) > 1 or not isinstance(steps[0], Exchange)


class Node:
    """Hosts ``clients`` of the problem that ``open_site()`` gives, and answers requests.

    What clients keep is stored below ``folder``, or in memory only without one. The problem and the data are loaded when
    the first run begins, in its precision.
    """

    def __init__(
        self, open_site: Callable[[], Site], clients: Sequence[int], folder: Path | None = None, name: str = ""
    ):
        if not clients or len(set(clients)) != len(clients) or min(clients) < 0:
            raise ValueError(f"partitions must be different whole numbers, at least one, got {list(clients)}")
        self.clients = sorted(clients)
        self.name = plain(name or "node of " + ", ".join(map(str, self.clients)), NAME - 3)
        self._open_source = open_site
        self._folder = folder
        self._source: Site | None = None
        self._data: Clients | None = None
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()

    def answer(self, request: bytes) -> bytes:
        """The answer to a request; what goes wrong is told in it."""
        with self._lock:
            try:
                return self._answer(request)
            except Refused as error:
                return self._wrong(str(error), error.kind)
            except Malformed as error:
                return self._wrong(str(error))
            except (
                Exception
            ) as error:  # whatever a loss or a loader raises is told to the server, and the node lives on
                return self._wrong(f"{type(error).__name__}: {error}")

    def _wrong(self, text: str, kind: str = "error") -> bytes:
        return pack(None, {"name": self.name, "error": plain(text, 1000), "kind": kind})

    def _answer(self, request: bytes) -> bytes:
        read = read_request(request)
        if isinstance(read, Begin):
            return self._begin(read, request)
        if isinstance(read, Work):
            return self._exchange(read, hashlib.sha256(request).hexdigest())
        return self._keep(read) if isinstance(read, Keep) else self._end(read)

    # --- a run starts

    def _begin(self, begin: Begin, request: bytes) -> bytes:
        known = self._find(begin.run)
        if known is not None and known.told != begin.told:
            raise Refused("error", f"the run {begin.run} began here with other settings")
        run = known or self._open(begin)
        if known is None or begin.keep:  # a greeting that comes late must not undo what clients were given
            run.start = self._starts(run, begin)
            run.store.begin(request)
        self._remember(begin.run, run)
        told = {
            "name": self.name,
            "clients": self.clients,
            "sizes": {name: getattr(run.setting.clients, name).size.tolist() for name in ("lower", "upper")},
            "costs": self._costs(run.setting, begin) if begin.costs else [],
        }
        return pack(None, told)

    def _open(self, begin: Begin) -> _Run:
        """The run that a request begins, with this node's problem and data."""
        if begin.x64 != x64_enabled():
            if self._source is not None:
                raise Refused("error", f"the run has x64 = {begin.x64}, this node began with {not begin.x64}")
            jax.config.update("jax_enable_x64", begin.x64)
        if self._source is None:
            self._source = self._open_source()
        if begin.n != self._source.n:
            raise Refused("error", f"the run has {begin.n} clients, the problem here {self._source.n}")
        if self._data is None:
            self._data = self._source.load(self.clients)
        store = self._store(begin.run)
        return _Run(begin.told, self._setting(begin, self._source, self._data), {}, store, store.newest())

    def _starts(self, run: _Run, begin: Begin) -> dict[int, Tree]:
        """What each client keeps before the first round: the algorithm's own start, or what the run goes on from."""
        own = run.setting.algorithm.keep(*_arrays((begin.x, begin.y)))
        for client, row in begin.keep.items():
            self._check_here([client])
            if not _alike(row, own):
                raise Refused("error", f"client {client} keeps {described(own)}, the run begins with {described(row)}")
        return {client: _arrays(begin.keep[client]) if client in begin.keep else own for client in self.clients}

    def _remember(self, name: str, run: _Run) -> None:
        self._runs[name] = run
        while self._folder is not None and len(self._runs) > RUNS:
            del self._runs[next(iter(self._runs))]

    def _costs(self, setting: Setting, begin: Begin) -> list[dict[str, Any]]:
        """What a round costs, for a server that has no data to trace it with: one example stands for everybody's."""

        def row(split: Split) -> Tree:
            return jax.tree.map(lambda leaf: leaf[:1], split.data)

        own = setting.clients
        lower, upper = (Split.shared(row(split), begin.n) for split in (own.lower, own.upper))
        like = replace(setting, clients=Clients(lower, upper, server=row(own.lower)))
        return [asdict(cost) for cost in costs_of(like, *_arrays((begin.x, begin.y)))]

    def _setting(self, begin: Begin, source: Site, data: Clients) -> Setting:

        x0, y0 = source.x0, source.y0
        if x0 is None and isinstance(source.problem, ClientWeighting):
            x0 = jnp.full(source.n, 1 / source.n, Layout.of(y0, "y0").dtype)
        flat = Flat(source.problem, Layout.of(x0, "x0"), Layout.of(y0, "y0"))
        for name, given, layout in (("x0", begin.x, flat.x), ("y0", begin.y, flat.y)):
            if given.shape != (layout.size,) or given.dtype != layout.dtype:
                here, there = f"{layout.dtype}[{layout.size}]", f"{given.dtype}{list(given.shape)}"
                raise Refused("error", f"{name} of the run is {there}, of the problem here {here}")
        algorithm = with_dtype(source.make_algorithm(begin.algorithm), flat.x.dtype)
        key = jax.random.wrap_key_data(jnp.asarray(begin.key), impl="threefry2x32")
        return Setting(flat, algorithm, data, Full(), Steps(*begin.steps), begin.batch_size, key, _arrays(begin.x))

    # --- an exchange

    def _exchange(self, work: Work, digest: str) -> bytes:
        run = self._run(work.run)
        if digest in run.answers:
            return run.answers[digest]
        self._check_here(work.clients)
        brought = self._check_download(run, work)
        self._check_order(run, work.order)
        if work.order[:3] != run.newest[:3]:
            run.answers.clear()
        run.newest = work.order
        run.store.note(work.order)
        self._check_sizes(run, work)
        uploads, failed = {}, {}
        for place, client in enumerate(work.clients):
            try:
                uploads[str(client)] = self._work(run, work, place)
            except StateLost as error:
                failed[str(client)] = str(error)
        if uploads:
            run.downloads[work.exchange] = brought
        run.answers[digest] = pack(uploads, {"name": self.name, "failed": failed})
        return run.answers[digest]

    def _check_here(self, clients: Sequence[int]) -> None:
        for client in clients:
            if client not in self.clients:
                raise Refused("error", f"client {client} does not live here")

    def _check_order(self, run: _Run, order: tuple[int, ...]) -> None:
        """The newest request is never an old one sent again; and no time that is still to come may lock its servers out."""
        ahead = order[0] / 1e6 - time.time()
        if ahead > TOLERANCE:
            raise Refused("error", f"the server's clock is {ahead:.0f} s ahead of this node's: set them")
        if order <= run.newest:
            raise Refused("stale", f"request {order} came after {run.newest}")

    def _check_download(self, run: _Run, work: Work) -> dict[str, str]:
        """The dtypes and shapes of what each client is brought: the same for all, and every time."""
        steps = run.setting.algorithm.round()
        if work.exchange >= count_stages(steps) or not isinstance(stage_at(steps, work.exchange), Exchange):
            raise Refused("error", f"step {work.exchange} of a round is no exchange")
        if work.private and set(work.private) != set(work.clients):
            raise Refused("error", f"private must be given for {work.clients}, it is for {sorted(work.private)}")
        now, before = _downloads(work), run.downloads.get(work.exchange)
        if now is None or (before is not None and now != before):
            raise Refused("error", f"exchange {work.exchange} brings {now} to its clients, before it was {before}")
        return now

    def _check_sizes(self, run: _Run, work: Work) -> None:
        """A whole set of unequal sizes is visited example by example: everywhere, if it is so anywhere."""
        for name, equal in work.equal.items():
            split = getattr(run.setting.clients, name)
            if split.sizes_equal and not equal:
                clients, unequal = copy.copy(run.setting.clients), copy.copy(split)
                object.__setattr__(unequal, "sizes_equal", False)
                object.__setattr__(clients, name, unequal)
                run.setting = replace(run.setting, clients=clients)

    def _work(self, run: _Run, work: Work, place: int) -> Tree:
        """A client's part: its upload. What it keeps is stored as pending."""
        client, last, counted = work.clients[place], work.last[place], work.counted[place]
        round, attempt, draw = work.version
        where = (*run.newest[:2], attempt, draw)
        if work.first:
            keep, carry = run.start[client], None
            if keep is not None:  # else the algorithm has nothing that clients keep
                stored = run.store.settle(client, counted, round)
                keep = keep if counted is None else stored
        else:
            keep, carry = run.store.held(client, where)
        numbers = (round, work.index, client, self.clients.index(client), last)
        down = {**work.down, **work.private.get(client, {})}
        numbers, down, keep, carry = _arrays((numbers, down, keep, carry))
        up, keep, carry = client_work(run.setting, work.exchange, numbers, down, keep, carry)
        run.store.hold(client, where, (keep, carry), run.several)
        if keep is not None:
            run.store.write(client, work.version, jax.device_get(keep))
        return jax.device_get(up)

    # --- the rest

    def _keep(self, asked: Keep) -> bytes:
        run = self._run(asked.run)
        self._check_here(asked.clients)
        kept, failed = {}, {}
        for client, version in zip(asked.clients, asked.counted, strict=True):
            try:
                found = run.start[client]
                if version is not None and found is not None:
                    found = run.store.read(client, version)
                kept[str(client)] = jax.device_get(found)
            except StateLost as error:
                failed[str(client)] = str(error)
        return pack(kept, {"name": self.name, "failed": failed})

    def _end(self, end: End) -> bytes:
        self._runs.pop(end.run, None)
        self._store(end.run).clear()
        return pack(None, {"name": self.name})

    def _run(self, name: str) -> _Run:
        run = self._find(name)
        if run is None:
            raise Refused("unknown-run", f"the run {name} has not begun here")
        return run

    def _find(self, name: str) -> _Run | None:
        """A run that began here: in memory, or on disk from before a restart."""
        if name not in self._runs:
            begun = _begun(self._store(name))
            if begun is None or begun.run != name:
                return None
            run = self._open(begun)
            run.start = self._starts(run, begun)
            self._remember(name, run)
        return self._runs[name]

    def _store(self, run: str) -> Store:
        return Store(None if self._folder is None else self._folder / run)


@eqx.filter_jit
def client_work(setting: Setting, number: int, numbers: Any, down: Tree, keep: Tree, carry: Tree) -> Any:
    """(up, keep, carry) of one client in the exchange ``number`` of a round: one program for each exchange."""
    round, index, id, row, last = numbers
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    return stage.work(setting.local(id, round, index, last, row=row), down, keep, carry)


def x64_enabled() -> bool:
    """Whether JAX computes in 64 bits here."""
    return bool(jax.config.read("jax_enable_x64"))


def _arrays(tree: Tree) -> Tree:
    """JAX arrays, so that other numbers are not another program; integers in 32 bits, as in the simulator."""

    def array(leaf: Any) -> Array:
        return jnp.asarray(leaf, jnp.int32) if isinstance(leaf, int) else jnp.asarray(np.asarray(leaf))

    return jax.tree.map(array, tree)


def _alike(one: Tree, other: Tree) -> bool:
    return same_structure(one, other) and described(one) == described(other)


def _begun(store: Store) -> Begin | None:
    """The request that began a run, if it can still be read."""
    stored = store.begun()
    try:
        request = None if stored is None else read_request(stored)
    except Malformed:
        return None
    return request if isinstance(request, Begin) else None


def _downloads(work: Work) -> dict[str, str] | None:
    """The dtypes and shapes that each client of a request is brought; none if they are not the same for all."""
    rows = [described(work.private.get(client, {})) for client in work.clients]
    return {**described(work.down), **rows[0]} if rows and all(row == rows[0] for row in rows) else None
