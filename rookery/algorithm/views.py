"""What an algorithm's functions see: a participant its :class:`Local`, the server its :class:`Context`."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rookery.aggregation.attacks import Attack, LabelFlip
from rookery.problem.clients import Clients, Split
from rookery.problem.keys import ALGORITHM, BATCH, SERVER, Stream, fold
from rookery.problem.layout import Layout
from rookery.problem.oracles import Objective, Tally, on_batch, on_whole_set
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat, Minimax
from rookery.typing import Tree, X, Y


class _Oracles:
    """What a client and the server have in common: draws of their data, and projections."""

    def __init__(self, flat: Flat, tally: Tally | None):
        self._flat = flat
        self._tally = tally

    @property
    def x_layout(self) -> Layout:
        """Where the entries of the pytree x lie in its vector."""
        return self._flat.x

    def project_x(self, x: X) -> X:
        """Projection on X."""
        return self._flat.project_x(x)

    def project_y(self, y: Y) -> Y:
        """Projection on Y."""
        return self._flat.project_y(y)

    def _objective(
        self,
        unit: str,
        split: Split,
        row: Any,
        client: Any,
        batch_size: int | None,
        stream: Stream,
        address: tuple[Any, str, Any],
    ) -> Objective:
        loss = self._loss(unit)
        own = partial(stream.key, *address)
        if batch_size is None:
            value = on_whole_set(loss, split, row, own, client)
        else:
            position = stream.integers(batch_size, split.size[row], *address)
            value = on_batch(loss, split.take(row, position), own, client)
        return Objective(value, unit, self._tally)

    def _loss(self, unit: str) -> Callable[..., Array]:
        return self._flat.lower if unit == "grad_g" else self._flat.upper


class Local(_Oracles):
    """What a participant sees: oracles on draws of its own data, and who and when it is.

    id, round, index     the client's number, the round, the pass of the enclosing ``Repeat``
    tau, max_tau         its number of local steps (maybe traced), and the largest possible one
    last                 the last round in which it was counted, −1 if never
    x0                   x at the start of the run, which everybody knows
    """

    def __init__(
        self,
        flat: Flat,
        clients: Clients,
        key: Array,
        batch_size: tuple[int | None, int | None],
        steps: Steps,
        *,
        id: Any,
        round: Any,
        index: Any,
        last: Any,
        x0: Array,
        row: Any = None,
        tally: Tally | None = None,
        stop: Any = None,
        attack: Attack | None = None,
    ):
        super().__init__(flat, tally)
        self._attack = attack
        self._clients = clients
        self._key = key
        self._streams = {0: Stream(key, BATCH, id, round)}
        self._batch_size = batch_size
        self._row = id if row is None else row  # where the client's data lie: a node holds only its own clients
        self._stop = stop  # local loops end before this step; only a repetition that looks for a bad step sets it
        self.id = id
        self.round = round
        self.index = index
        self.last = last
        self.x0 = x0
        self._steps = steps
        self._tau: Any = None

    @property
    def tau(self) -> Any:
        """τ_i: a number if it is the same for all, else drawn for this client and round."""
        if self._tau is None:
            self._tau = self._steps.draw(self._key, self.id, self.round)
        return self._tau

    @property
    def max_tau(self) -> int:
        """The largest τ_i possible."""
        return self._steps.high

    @property
    def made_steps(self) -> bool:
        """Whether τ_i was ever asked for."""
        return self._tau is not None

    def f(self, step: Any = 0, draw: str = "x", *, ahead: int = 0, times: int = 1) -> Objective:
        """The upper objective on a minibatch of upper data named by (round + ahead, step, draw), ``times`` as large."""
        return self._on("grad_f", self._clients.upper, self._batch_size[1], ahead, times, (step, "upper " + draw, 0))

    def g(self, step: Any = 0, draw: str = "x", *, ahead: int = 0, times: int = 1, number: Any = 0) -> Objective:
        """The lower objective on a minibatch of lower data; ``number`` tells apart draws of one name.

        Of a minimax problem it is −f, on the data and with the batch size of f.
        """
        address = (step, "lower " + draw, number)
        if isinstance(self._flat.problem, Minimax):
            return self._on("grad_g", self._clients.upper, self._batch_size[1], ahead, times, address)
        return self._on("grad_g", self._clients.lower, self._batch_size[0], ahead, times, address)

    def _on(
        self, unit: str, split: Split, size: int | None, ahead: int, times: int, address: tuple[Any, str, Any]
    ) -> Objective:
        if ahead not in self._streams:
            self._streams[ahead] = Stream(self._key, BATCH, self.id, self.round + ahead)
        size = None if size is None else size * times
        return self._objective(unit, split, self._row, self.id, size, self._streams[ahead], address)

    def _loss(self, unit: str) -> Callable[..., Array]:
        """An attacker that flips labels takes its examples for others."""
        loss, attack = super()._loss(unit), self._attack
        if not isinstance(attack, LabelFlip):
            return loss
        lies = attack.lies(self._key, self._clients.n, self.id, self.round)

        def poisoned(x: X, y: Y, batch: Tree, key: Any, client: Any) -> Array:
            wrong = attack.poisoned(batch)
            return loss(x, y, jax.tree.map(lambda a, b: jnp.where(lies, a, b), wrong, batch), key, client)

        return poisoned

    def loop(self, body: Callable[[Any, Tree], Tree], start: Tree, first: int = 0) -> Tree:
        """The local loop: ``state = body(k, state)`` for k = first, ..., τ−1."""
        tau = self.tau
        if self._tally is not None:
            with self._tally.repeated((-first, 1)):
                return body(jnp.int32(first), start)
        if isinstance(tau, int) and self._stop is None:
            if tau - first <= 1:  # no loop: it would only cost time to compile
                return body(first, start) if tau > first else start
            return jax.lax.fori_loop(first, tau, body, start)

        end = tau if self._stop is None else jnp.minimum(tau, self._stop)

        def masked(k: Any, state: Tree) -> Tree:
            return jax.tree.map(lambda new, old: jnp.where(k < end, new, old), body(k, state), state)

        return jax.lax.fori_loop(first, self.max_tau, masked, start)

    def repeat(self, count: int, body: Callable[[Any, Tree], Tree], start: Tree) -> Tree:
        """``state = body(k, state)`` for k = 0, ..., count−1: a loop of fixed length (a Neumann series, say)."""
        if self._tally is not None:
            with self._tally.repeated((count, 0)):
                return body(jnp.int32(0), start)
        return jax.lax.fori_loop(0, count, body, start)

    def at_start(self, first: Callable[[], Tree], otherwise: Callable[[], Tree]) -> Tree:
        """``first()`` in round 0, ``otherwise()`` in all others; only one of them is computed."""
        if self._tally is not None:
            with self._tally.start():
                first()
            with self._tally.start(times=-1):
                otherwise()
            return otherwise()
        return jax.lax.cond(self.round == 0, first, otherwise)


class Context(_Oracles):
    """What the server sees of an exchange.

    round, index         the round, the pass of the enclosing ``Repeat``
    n, weights           the number of clients and their p_i
    ids, mask            the participants' slots, and which are used. In private rounds whoever reads them shows who takes
                         part: then nothing is gained by drawing participants by chance
    """

    def __init__(
        self,
        flat: Flat,
        clients: Clients,
        key: Array,
        batch_size: tuple[int | None, int | None],
        steps: Steps,
        *,
        round: Any,
        index: Any,
        ids: Array,
        mask: Array,
        expected: float | None = None,
        tally: Tally | None = None,
    ):
        super().__init__(flat, tally)
        self._clients = clients
        self._key = key
        self._batch_size = batch_size
        self._steps = steps
        self.round = round
        self.index = index
        self.n = clients.n
        self.weights = clients.weights
        self._ids = ids
        self._mask = mask
        self._expected = expected

    @property
    def ids(self) -> Array:
        """The slots of the participants."""
        self._note_shown()
        return self._ids

    @property
    def mask(self) -> Array:
        """Which slots are used."""
        self._note_shown()
        return self._mask

    def _note_shown(self) -> None:
        if self._tally is not None:
            self._tally.shows_participants = True

    @property
    def share(self) -> Any:
        """|C|/n, which makes p_i of the weights (n/|C|)·p_i of a direction; in private rounds these have E|C| instead."""
        return self.active / self.n if self._expected is None else self._expected / self.n

    @property
    def active(self) -> Array:
        """|C|, the number of participants."""
        return self.mask.sum()

    def key(self, name: str) -> Array:
        """A key for a draw of the server's own in this round."""
        return fold(self._key, ALGORITHM, self.round, name)

    def mean_steps(self) -> Any:
        """Σ_j p_j τ_j of this round over all clients, absent ones too."""
        return self._steps.mean(self._key, self.round, self.weights)

    def f(self, step: Any = 0, draw: str = "x") -> Objective:
        """The upper objective on a minibatch of the server's own data."""
        if self._clients.server is None:
            raise ValueError("server: this algorithm needs data at the server, give Clients(..., server=examples)")
        stream = Stream(self._key, SERVER, self.round)
        return self._objective(
            "server_grad_f", self._clients.server, 0, 0, self._batch_size[1], stream, (step, draw, 0)
        )
