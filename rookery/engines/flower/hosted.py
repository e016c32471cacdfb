"""One run as a node sees it: what its clients keep, which request is the newest, and the clients' part of an exchange."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.aggregation.privacy import WITHIN
from rookery.aggregation.secure.identity import Identity
from rookery.aggregation.secure.options import SecureSum
from rookery.algorithm.cost import described
from rookery.algorithm.exchange import Exchange, count_stages
from rookery.algorithm.intake import Intake
from rookery.algorithm.setting import Setting
from rookery.algorithm.walk import stage_at
from rookery.engines.flower.masking import ROUNDING, Sum
from rookery.engines.flower.refusal import Refused
from rookery.engines.flower.store import StateLost, Store
from rookery.engines.flower.wire.fields import Order
from rookery.engines.flower.wire.requests import Keep, Work
from rookery.engines.flower.wire.summing import Advertise
from rookery.problem.layout import same_structure
from rookery.typing import Tree

TOLERANCE = 3600.0
"""Seconds that a server's clock may be ahead of this node's; a session is the time at which its server started."""

Rows = tuple[dict[int, Tree], dict[int, str]]
"""Arrays of some clients, and the reasons why others have none."""


@dataclass
class Hosted:
    """A run that began on a node, for the clients that live there."""

    told: str
    """The digest of what began it."""
    setting: Setting
    clients: Sequence[int]
    """Those that live here, in the order of the setting's data."""
    store: Store
    newest: tuple[int, ...]
    """(session, round, attempt, sequence) of the newest request."""
    start: dict[int, Tree] = field(default_factory=dict)
    """What each client kept before the first round of this run."""
    answers: dict[str, bytes] = field(default_factory=dict)
    """The answers of this attempt at a round, by the digest of the request."""
    downloads: dict[int, dict[str, str]] = field(default_factory=dict)
    """The dtypes and shapes of what each exchange brought: others would be compiled for, and the program kept."""
    secure: SecureSum | None = None
    """How uploads are summed where nobody may see them."""
    identity: Identity | None = None
    """The keys of all nodes that may take part in such a sum."""
    n: int = 0
    """All clients of the run."""
    expected: float | None = None
    """How many of them take part on average, in a private run."""
    sum: Sum | None = None
    """The secure sum that this node takes part in; in memory only, so that nobody finds its secrets afterwards."""

    def begin(self, x: Any, y: Any, given: Mapping[int, Tree]) -> None:
        """Sets what each client keeps before the first round: the algorithm's own start, or what is given for it."""
        own = self.setting.algorithm.keep(*arrays((x, y)))
        self.check_here(list(given))
        for client, row in given.items():
            if not same_structure(row, own) or described(row) != described(own):
                raise Refused("error", f"client {client} keeps {described(own)}, the run begins with {described(row)}")
        self.start = {client: arrays(given[client]) if client in given else own for client in self.clients}

    def check_here(self, clients: Sequence[int]) -> None:
        """Raises unless all these clients live here."""
        for client in clients:
            if client not in self.clients:
                raise Refused("error", f"client {client} does not live here")

    # --- an exchange

    def exchange(self, work: Work) -> Rows:
        """The uploads of the clients of a request, which must be newer than all before."""
        self.check_here(work.clients)
        brought = self._check_download(work)
        if self.secure is None:
            self._go_on_to(work.order)
        else:
            self.summed(work.order)  # raises unless its keys were agreed
        self._follow_sizes(work)
        uploads, failed = {}, {}
        for place, client in enumerate(work.clients):
            try:
                uploads[client] = self._work(work, place)
            except StateLost as error:
                failed[client] = str(error)
        if uploads:
            self.downloads[work.exchange] = brought
        return uploads, failed

    def _go_on_to(self, order: Order) -> None:
        """A new request; the answers of an earlier attempt are not asked for again."""
        self._check_order(order)
        if order[:3] != self.newest[:3]:
            self.answers.clear()
        self.newest = order
        self.store.note(order)

    # --- a secure sum

    def join(self, asked: Advertise) -> Sum:
        """Begins a secure sum."""
        if self.secure is None:
            raise Refused("error", "this run has no secure sums")
        self._go_on_to(asked.order)
        self.sum = Sum(asked, self.told, self.secure, self.identity)
        return self.sum

    def summed(self, order: Order) -> Sum:
        """The secure sum of an exchange."""
        if self.sum is None or self.sum.order != order:
            raise Refused("stale", f"request {order} belongs to a secure sum that this node does not take part in")
        return self.sum

    def deviations(self, work: Work, upload: dict[str, Tree]) -> dict[str, float]:
        """Of the noise that all nodes together add to each part of the sum, if the run is private."""
        if self.setting.privacy is None:
            return {}
        assert work.secure is not None
        parts = set(upload)
        if set(work.secure.most) != parts:
            raise Refused("error", f"the largest weights of {sorted(parts)} must be told in a private run")
        most = work.secure.most.get(WITHIN, 0.0)
        assert self.expected is not None
        if most * self.expected > 1 + ROUNDING:  # its noise does not grow with it
            raise Refused(
                "error",
                f"the weights of {WITHIN!r} must be at most {1 / self.expected:g} as the run began, got {most:g}",
            )
        return {part: float(each) for part, each in self._intake(work).deviations(work.secure.most, parts).items()}

    def heaviest(self, work: Work, upload: dict[str, Tree]) -> dict[str, float]:
        """What the weights of each part may be in all: averages' are 1, others' are scaled by n over who came."""
        if self.expected is not None:  # the fixed weights of private rounds: n·p_i/E|C|
            return dict.fromkeys(upload, self.n / self.expected)
        intake = self._intake(work)
        return {part: 1.0 if intake.weighting(part) == "average" else float(self.n) for part in upload}

    def _intake(self, work: Work) -> Intake:
        """What a node knows of it."""
        stage = stage_at(self.setting.algorithm.round(), work.exchange)
        assert isinstance(stage, Exchange)
        clips = None if work.clips is None else np.broadcast_to(work.clips, (work.exchange + 1, *work.clips.shape))
        return Intake(self.setting, stage, work.exchange, 0, 0, None, None, None, clips, work.down)  # type: ignore[arg-type]

    def _check_order(self, order: tuple[int, ...]) -> None:
        """The newest request is never an old one sent again; and no time that is still to come may lock its servers out."""
        ahead = order[0] / 1e6 - time.time()
        if ahead > TOLERANCE:
            raise Refused("error", f"the server's clock is {ahead:.0f} s ahead of this node's: set them")
        if order <= self.newest:
            raise Refused("stale", f"request {order} came after {self.newest}")

    def _check_download(self, work: Work) -> dict[str, str]:
        """The dtypes and shapes of what each client is brought: the same for all, and every time."""
        stages = self.setting.algorithm.round()
        if work.exchange >= count_stages(stages) or not isinstance(stage_at(stages, work.exchange), Exchange):
            raise Refused("error", f"stage {work.exchange} of a round is no exchange")
        if work.private and set(work.private) != set(work.clients):
            raise Refused("error", f"private must be given for {work.clients}, it is for {sorted(work.private)}")
        if self.secure is not None and work.private:  # not what all are told alike
            stage = stage_at(stages, work.exchange)
            strange = [set(row) & set(work.down) for row in work.private.values()]
            if getattr(stage, "private", None) is None or any(strange):
                raise Refused("error", f"exchange {work.exchange} brings nothing to one client alone that all are told")
        now, before = _downloads(work), self.downloads.get(work.exchange)
        if now is None or (before is not None and now != before):
            raise Refused("error", f"exchange {work.exchange} brings {now} to its clients, before it was {before}")
        return now

    def _follow_sizes(self, work: Work) -> None:
        """A whole set of unequal sizes is visited example by example: everywhere, if it is so anywhere."""
        for name, equal in work.equal.items():
            split = getattr(self.setting.clients, name)
            if split.sizes_equal and not equal:
                clients, unequal = copy.copy(self.setting.clients), copy.copy(split)
                object.__setattr__(unequal, "sizes_equal", False)
                object.__setattr__(clients, name, unequal)
                self.setting = replace(self.setting, clients=clients)

    def _work(self, work: Work, place: int) -> Tree:
        """A client's part: its upload. What it keeps is stored as pending."""
        client, last, counted = work.clients[place], work.last[place], work.counted[place]
        round, attempt, draw = work.version
        where = (*self.newest[:2], attempt, draw)
        if work.first:
            keep, carry = self.start[client], None
            if keep is not None:  # else the algorithm has nothing that clients keep
                stored = self.store.settle(client, counted, round)
                keep = keep if counted is None else stored
        else:
            keep, carry = self.store.held(client, where)
        numbers = (round, work.index, client, self.clients.index(client), last)
        down = {**work.down, **work.private.get(client, {})}
        numbers, down, clips, keep, carry = arrays((numbers, down, work.clips, keep, carry))
        public = tuple(sorted(work.down))
        up, keep, carry = client_work(self.setting, work.exchange, public, numbers, down, clips, keep, carry)
        self.store.hold(client, where, (keep, carry), self._has_several_stages)
        if keep is not None:
            self.store.write(client, work.version, jax.device_get(keep))
        return jax.device_get(up)

    @property
    def _has_several_stages(self) -> bool:
        """Whether there may be more exchanges in a draw."""
        stages = self.setting.algorithm.round()
        return len(stages) > 1 or not isinstance(stages[0], Exchange)

    # --- what clients keep

    def kept(self, asked: Keep) -> Rows:
        """What some clients keep, in the versions that were counted."""
        self.check_here(asked.clients)
        kept, failed = {}, {}
        for client, version in zip(asked.clients, asked.counted, strict=True):
            try:
                found = self.start[client]
                if version is not None and found is not None:
                    found = self.store.read(client, version)
                kept[client] = jax.device_get(found)
            except StateLost as error:
                failed[client] = str(error)
        return kept, failed


@eqx.filter_jit
def client_work(
    setting: Setting,
    number: int,
    public: tuple[str, ...],
    numbers: Any,
    down: Tree,
    clips: Any,
    keep: Tree,
    carry: Tree,
) -> Any:
    """(up, keep, carry) of one client in the exchange ``number`` of a round: one program for each exchange.

    ``public`` are the parts of ``down`` that everybody is told.
    """
    round, index, id, row, last = numbers
    stage = stage_at(setting.algorithm.round(), number)
    assert isinstance(stage, Exchange)
    up, keep, carry = stage.work(setting.local(id, round, index, last, row=row), down, keep, carry)
    if setting.privacy is not None:
        told = {name: down[name] for name in public}
        stages = count_stages(setting.algorithm.round())
        every = None if clips is None else jnp.broadcast_to(clips, (stages, *clips.shape))
        me = jnp.reshape(id, (1,)), jnp.ones(1, bool)
        up = Intake(setting, stage, number, round, index, None, *me, every, told).leaving(up)
    return up, keep, carry


def arrays(tree: Tree) -> Tree:
    """JAX arrays, so that other numbers are not another program; integers in 32 bits, as in the simulator."""

    def array(leaf: Any) -> Array:
        return jnp.asarray(leaf, jnp.int32) if isinstance(leaf, int) else jnp.asarray(np.asarray(leaf))

    return jax.tree.map(array, tree)


def _downloads(work: Work) -> dict[str, str] | None:
    """The dtypes and shapes that each client of a request is brought; none if they are not the same for all."""
    rows = [described(work.private.get(client, {})) for client in work.clients]
    return {**described(work.down), **rows[0]} if rows and all(row == rows[0] for row in rows) else None
