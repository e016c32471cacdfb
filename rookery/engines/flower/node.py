"""A node: some clients with their data. It answers requests, whatever carries them.

A request is a packed message (``pack.py``); its ``meta["kind"]`` is one of

    begin      a run starts (or this node is new in it): the algorithm's name and rates, seeds, x0 and y0
    exchange   one exchange of one round, for the participants that live here: what is broadcast, and their own rows
    keep       what the clients keep, for evaluation and for the solution
    end        the run is over: what was kept for it is removed

Only code that is installed here is run. The answer to a repeated request is the stored one.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm import Exchange
from rookery.clients import Clients, Split
from rookery.engines.flower.pack import pack, unpack
from rookery.engines.flower.source import Source
from rookery.engines.flower.store import StateLost, Store, Version
from rookery.engines.walk import Setting, costs_of, step_at
from rookery.layout import Layout
from rookery.participation import Full, Steps
from rookery.problems import ClientWeighting, Flat

Tree = Any
log = logging.getLogger("rookery.flower")

RUNS = 4
"""How many runs a node with a folder has in memory; others are read again when they are asked for."""


class Refused(Exception):
    """A request that cannot be answered; ``kind`` tells the server what to do about it."""

    def __init__(self, kind: str, text: str):
        super().__init__(text)
        self.kind = kind


@dataclass
class _Run:
    """One run as this node sees it."""

    setting: Setting
    start: dict[int, Tree]
    """What each client kept before the first round of this run."""
    store: Store
    newest: tuple[int, ...] = ()
    """(session, round, attempt, sequence) of the newest request."""
    answers: dict[str, bytes] = field(default_factory=dict)
    """The answers of this attempt at a round, by the digest of the request."""

    @property
    def several(self) -> bool:
        """Whether a round has more than one exchange."""
        steps = self.setting.algorithm.round()
        return len(steps) > 1 or not isinstance(steps[0], Exchange)


class Node:
    """Hosts ``clients`` of the problem that ``open_source()`` gives, and answers requests.

    What clients keep is stored below ``folder``, or in memory only without one. The problem and the data are loaded when
    the first run begins, in its precision.
    """

    def __init__(
        self, open_source: Callable[[], Source], clients: Sequence[int], folder: Path | None = None, name: str = ""
    ):
        if not clients or len(set(clients)) != len(clients) or min(clients) < 0:
            raise ValueError(f"partitions must be different whole numbers, at least one, got {list(clients)}")
        self.clients = sorted(clients)
        self.name = name or "node of " + ", ".join(map(str, self.clients))
        self._open_source = open_source
        self._folder = folder
        self._source: Source | None = None
        self._data: Clients | None = None
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()

    def answer(self, request: bytes) -> bytes:
        """The answer to a request; what goes wrong is told in it."""
        with self._lock:
            try:
                tree, meta = unpack(request)
                known = {"begin": self._begin, "exchange": self._exchange, "keep": self._keep, "end": self._end}
                if meta.get("kind") not in known:
                    raise Refused("error", f"a request is one of {', '.join(known)}, got {meta.get('kind')!r}")
                return known[meta["kind"]](tree, meta, request)
            except Refused as error:
                return pack(None, {"name": self.name, "error": str(error), "kind": error.kind})
            except (
                Exception
            ) as error:  # whatever a loss or a loader raises is told to the server, and the node lives on
                text = f"{type(error).__name__}: {error}"
                return pack(None, {"name": self.name, "error": text, "kind": "error"})

    # --- a run starts

    def _begin(self, tree: Tree, meta: dict[str, Any], request: bytes) -> bytes:
        if meta["x64"] != x64_enabled():
            if self._source is not None:
                raise Refused("error", f"the run has x64 = {meta['x64']}, this node began with {not meta['x64']}")
            jax.config.update("jax_enable_x64", meta["x64"])
        if self._source is None:
            self._source = self._open_source()
        if meta["n"] != self._source.n:
            raise Refused("error", f"the run has {meta['n']} clients, the problem here {self._source.n}")
        if self._data is None:
            self._data = self._source.load(self.clients)
        setting, x, y = self._setting(tree, meta)
        start = {client: setting.algorithm.keep(x, y) for client in self.clients}
        given = (tree.get("keep") or {}).items()
        start |= {int(client): _arrays(rows) for client, rows in given if int(client) in start}
        run = self._runs.setdefault(meta["run"], _Run(setting, start, self._store(meta["run"])))
        run.start = start
        run.store.begin(request)
        while self._folder is not None and len(self._runs) > RUNS:
            del self._runs[next(iter(self._runs))]
        told = {
            "name": self.name,
            "clients": self.clients,
            "sizes": {name: getattr(self._data, name).size.tolist() for name in ("lower", "upper")},
            "costs": self._costs(setting, x, y, meta["n"]) if meta["costs"] else [],
        }
        return pack(None, told)

    def _costs(self, setting: Setting, x: Array, y: Array, n: int) -> list[dict[str, Any]]:
        """What a round costs, for a server that has no data to trace it with: one example stands for everybody's."""

        def row(split: Split) -> Tree:
            return jax.tree.map(lambda leaf: leaf[:1], split.data)

        own = setting.clients
        lower, upper = (Split.shared(row(split), n) for split in (own.lower, own.upper))
        like = replace(setting, clients=Clients(lower, upper, server=row(own.lower)))
        return [asdict(cost) for cost in costs_of(like, x, y)]

    def _setting(self, tree: Tree, meta: dict[str, Any]) -> tuple[Setting, Array, Array]:
        from rookery.solve import _with_dtype

        assert self._source is not None
        assert self._data is not None
        source = self._source
        x0, y0 = source.x0, source.y0
        if x0 is None and isinstance(source.problem, ClientWeighting):
            x0 = jnp.full(source.n, 1 / source.n, Layout.of(y0, "y0").dtype)
        flat = Flat(source.problem, Layout.of(x0, "x0"), Layout.of(y0, "y0"))
        x, y = _arrays((tree["x"], tree["y"]))
        for name, given, layout in (("x0", x, flat.x), ("y0", y, flat.y)):
            if given.shape != (layout.size,) or given.dtype != layout.dtype:
                here, there = f"{layout.dtype}[{layout.size}]", f"{given.dtype}{list(given.shape)}"
                raise Refused("error", f"{name} of the run is {there}, of the problem here {here}")
        algorithm = _with_dtype(source.make_algorithm(meta["algorithm"]), flat.x.dtype)
        key = jax.random.wrap_key_data(jnp.asarray(tree["key"]), impl="threefry2x32")
        lower, upper = meta["batch_size"]
        setting = Setting(flat, algorithm, self._data, Full(), Steps(*meta["steps"]), (lower, upper), key, x)
        return setting, x, y

    # --- an exchange

    def _exchange(self, tree: Tree, meta: dict[str, Any], request: bytes) -> bytes:
        run = self._run(meta)
        digest = hashlib.sha256(request).hexdigest()
        if digest in run.answers:
            return run.answers[digest]
        order = tuple(meta["order"])
        if order <= run.newest:
            raise Refused("stale", f"request {order} came after {run.newest}")
        if order[:3] != run.newest[:3]:
            run.answers.clear()
        run.newest = order
        self._check_sizes(run, meta)
        uploads, failed = {}, {}
        for client, last, counted in zip(meta["clients"], meta["last"], meta["counted"], strict=True):
            try:
                private = tree["private"].get(str(client), {})
                uploads[str(client)] = self._work(run, meta, client, last, _version(counted), tree["down"], private)
            except StateLost as error:
                failed[str(client)] = str(error)
        run.answers[digest] = pack(uploads, {"name": self.name, "failed": failed})
        return run.answers[digest]

    def _check_sizes(self, run: _Run, meta: dict[str, Any]) -> None:
        """A whole set of unequal sizes is visited example by example: everywhere, if it is so anywhere."""
        for name, equal in meta["equal"].items():
            split = getattr(run.setting.clients, name)
            if split.sizes_equal and not equal:
                object.__setattr__(split, "sizes_equal", False)

    def _work(
        self,
        run: _Run,
        meta: dict[str, Any],
        client: int,
        last: int,
        counted: Version | None,
        down: Tree,
        private: Tree,
    ) -> Tree:
        """A client's part: its upload. What it keeps is stored as pending."""
        if client not in self.clients:
            raise StateLost(f"client {client} does not live here")
        round, attempt, draw = version = tuple(meta["version"])
        where = (*run.newest[:2], attempt, draw)
        if meta["first"]:
            keep, carry = run.start[client], None
            if keep is not None:  # else the algorithm has nothing that clients keep
                stored = run.store.settle(client, counted, round)
                keep = keep if counted is None else stored
        else:
            keep, carry = run.store.held(client, where)
        numbers = (round, meta["index"], client, self.clients.index(client), last)
        numbers, down, keep, carry = _arrays((numbers, {**down, **private}, keep, carry))
        up, keep, carry = client_work(run.setting, meta["exchange"], numbers, down, keep, carry)
        run.store.hold(client, where, (keep, carry), run.several)
        if keep is not None:
            run.store.write(client, version, jax.device_get(keep))
        return jax.device_get(up)

    # --- the rest

    def _keep(self, tree: Tree, meta: dict[str, Any], request: bytes) -> bytes:
        run = self._run(meta)
        kept, failed = {}, {}
        for client, counted in zip(meta["clients"], meta["counted"], strict=True):
            try:
                version = _version(counted)
                found = run.start[client]
                if version is not None and found is not None:
                    found = run.store.read(client, version)
                kept[str(client)] = jax.device_get(found)
            except StateLost as error:
                failed[str(client)] = str(error)
        return pack(kept, {"name": self.name, "failed": failed})

    def _end(self, tree: Tree, meta: dict[str, Any], request: bytes) -> bytes:
        self._runs.pop(meta["run"], None)
        self._store(meta["run"]).clear()
        return pack(None, {"name": self.name})

    def _run(self, meta: dict[str, Any]) -> _Run:
        if meta["run"] not in self._runs:
            begun = self._store(meta["run"]).begun()
            if begun is None:
                raise Refused("unknown-run", f"the run {meta['run']} has not begun here")
            self._begin(*unpack(begun), begun)
        return self._runs[meta["run"]]

    def _store(self, run: str) -> Store:
        return Store(None if self._folder is None else self._folder / _safe(run))


@eqx.filter_jit
def client_work(setting: Setting, number: int, numbers: Any, down: Tree, keep: Tree, carry: Tree) -> Any:
    """(up, keep, carry) of one client in the exchange ``number`` of a round: one program for each exchange."""
    round, index, id, row, last = numbers
    step = step_at(setting.algorithm.round(), number)
    assert isinstance(step, Exchange)
    return step.client(setting.local(id, round, index, last, row=row), down, keep, carry)


def x64_enabled() -> bool:
    """Whether JAX computes in 64 bits here."""
    return bool(jax.config.read("jax_enable_x64"))


def _arrays(tree: Tree) -> Tree:
    """JAX arrays, so that other numbers are not another program; integers in 32 bits, as in the simulator."""

    def array(leaf: Any) -> Array:
        return jnp.asarray(leaf, jnp.int32) if isinstance(leaf, int) else jnp.asarray(np.asarray(leaf))

    return jax.tree.map(array, tree)


def _version(told: Any) -> Version | None:
    if told is None:
        return None
    round, attempt, draw = told
    return round, attempt, draw


def _safe(run: str) -> str:
    """A run's name as that of a folder: it comes from outside."""
    if not run or not all(letter.isalnum() or letter in "-_" for letter in run):
        raise Refused("error", f"a run's name has letters, digits, - and _ only, got {run!r}")
    return run
