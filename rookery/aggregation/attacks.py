"""Attacks, for simulation: what some clients upload instead of what they should.

``rk.solve(..., attack=rk.attacks.SignFlip(clients=2))`` lets two clients lie. They keep and carry what an honest client
would; what they upload is forged, in every exchange and every part of it. Attackers that know what the others upload
(``ALittle``, ``InnerProduct``) see all of the draw's honest uploads.
"""

from collections.abc import Callable
from numbers import Integral, Real
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.problem.keys import fold
from rookery.typing import Tree


class Attack(eqx.Module):
    """Base class: who lies, and from which round on.

    Args:
        clients: how many clients lie, drawn with the run's key; or the numbers of those that do.
        start: the first round in which they do.
    """

    clients: int | tuple[int, ...] = eqx.field(static=True)
    start: int = eqx.field(static=True, default=0)

    def __init__(self, clients: Any, start: int = 0):
        self.clients = _who(clients)
        if not _is_whole(start) or start < 0:
            raise ValueError(f"attack: start must be a round, a whole number of at least 0, got {start!r}")
        self.start = int(start)

    def check(self, n: int) -> None:
        """Raises ``ValueError`` unless there are such clients among ``n``, and an honest one."""
        if isinstance(self.clients, tuple) and max(self.clients) >= n:
            raise ValueError(f"attack: clients must be in 0..{n - 1}, got {max(self.clients)}")
        number = self.clients if isinstance(self.clients, int) else len(self.clients)
        if number >= n:
            raise ValueError(f"attack: clients must leave one of the {n} clients honest, got {number}")

    def liars(self, key: Array, n: int) -> Array:
        """Which of the n clients lie."""
        if isinstance(self.clients, tuple):
            return jnp.zeros(n, bool).at[jnp.asarray(self.clients)].set(True)
        return jax.random.permutation(fold(key, "liars"), n) < self.clients

    def lies(self, key: Array, n: int, ids: Array, round: Any) -> Array:
        """Which of these clients lie in a round."""
        found: Array = self.liars(key, n)[ids] & (round >= self.start)
        return found

    def forged(self, rows: Array, there: Array, honest: Array, key: Array) -> Array:
        """What each row (participants, numbers) would be, were it forged.

        ``there`` are the rows of participants, ``honest`` those of them that are not forged. Rows are ways from what was
        broadcast, where participants upload what became of it.
        """
        return rows

    def poisoned(self, batch: Tree) -> Tree:
        """What an attacker's examples are taken for."""
        return batch


class SignFlip(Attack):
    """The upload turned round, ``scale`` times as long."""

    scale: float = eqx.field(static=True, default=1.0)

    def __init__(self, clients: Any, start: int = 0, *, scale: float = 1.0):
        super().__init__(clients, start)
        self.scale = _number(scale, "scale")

    def forged(self, rows: Array, there: Array, honest: Array, key: Array) -> Array:
        """−scale·u_i."""
        return -self.scale * rows


class GaussianNoise(Attack):
    """The upload with noise, ``scale`` times as large as the honest uploads are."""

    scale: float = eqx.field(static=True, default=10.0)

    def __init__(self, clients: Any, start: int = 0, *, scale: float = 10.0):
        super().__init__(clients, start)
        self.scale = _number(scale, "scale")

    def forged(self, rows: Array, there: Array, honest: Array, key: Array) -> Array:
        """u_i + scale·(root mean square of the honest uploads)·ξ."""
        size = jnp.sqrt(jnp.where(honest[:, None], rows**2, 0).sum() / jnp.maximum(honest.sum() * rows.shape[1], 1))
        return rows + self.scale * size * jax.random.normal(key, rows.shape, rows.dtype)


class LargeValues(Attack):
    """Every number is ``size``."""

    size: float = eqx.field(static=True, default=1e3)

    def __init__(self, clients: Any, start: int = 0, *, size: float = 1e3):
        super().__init__(clients, start)
        self.size = _number(size, "size")

    def forged(self, rows: Array, there: Array, honest: Array, key: Array) -> Array:
        """size, everywhere."""
        return jnp.full_like(rows, self.size)


class ALittle(Attack):
    """The mean of the honest uploads, moved by some of their standard deviations: a lie that hides (Baruch et al., 2019).

    Args:
        clients, start: as for every attack.
        deviations: how far; by default the farthest that leaves the liars among the majority, as in the paper.
    """

    deviations: float | None = eqx.field(static=True, default=None)

    def __init__(self, clients: Any, start: int = 0, *, deviations: float | None = None):
        super().__init__(clients, start)
        self.deviations = None if deviations is None else _number(deviations, "deviations")

    def forged(self, rows: Array, there: Array, honest: Array, key: Array) -> Array:
        """mean − z·deviation, z the quantile of (|C| − f − s)/(|C| − f), s = ⌊|C|/2 + 1⌋ − f."""
        mean, deviation = _moments(rows, honest)
        z: Any = self.deviations
        if z is None:
            z = self.hidden(there.sum(), there.sum() - honest.sum())
        return jnp.broadcast_to(mean - jnp.asarray(z, rows.dtype) * deviation, rows.shape)

    @staticmethod
    def hidden(total: Any, liars: Any) -> Array:
        """z for so many participants, of whom so many lie; 0 where a majority would need half of the honest or more."""
        good = jnp.maximum(total - liars, 1)
        supporters = jnp.maximum(total // 2 + 1 - liars, 0)
        found: Array = jax.scipy.stats.norm.ppf(jnp.clip((good - supporters) / good, 0.5, 0.999))
        return found


class InnerProduct(Attack):
    """The mean of the honest uploads turned round, ``scale`` times as long (Xie, Koyejo, Gupta, 2020)."""

    scale: float = eqx.field(static=True, default=1.0)

    def __init__(self, clients: Any, start: int = 0, *, scale: float = 1.0):
        super().__init__(clients, start)
        self.scale = _number(scale, "scale")

    def forged(self, rows: Array, there: Array, honest: Array, key: Array) -> Array:
        """−scale·mean."""
        mean, _ = _moments(rows, honest)
        return jnp.broadcast_to(-self.scale * mean, rows.shape)


class LabelFlip(Attack):
    """Honest work on wrong labels: ``flip(batch)`` is what an attacker takes its examples for.

    Args:
        clients, start: as for every attack.
        flip: a function of a batch of examples, such as ``lambda b: {**b, "label": 9 - b["label"]}``.
    """

    flip: Callable[[Tree], Tree] = eqx.field(static=True, default=lambda batch: batch)

    def __init__(self, clients: Any, start: int = 0, *, flip: Callable[[Tree], Tree] | None = None):
        super().__init__(clients, start)
        if flip is None:
            raise ValueError(
                "attack: LabelFlip needs flip, a function of a batch, for only you know which part of it is a label: "
                'flip=lambda b: {**b, "label": 9 - b["label"]}'
            )
        if not callable(flip):
            raise TypeError(f"attack: flip must be a function of a batch, got {flip!r}")
        self.flip = flip

    def poisoned(self, batch: Tree) -> Tree:
        """The batch with other labels, of the same shapes and dtypes."""
        return jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), self.flip(batch), batch)


def _who(clients: Any) -> int | tuple[int, ...]:
    """A number of clients, or the numbers of some, of NumPy's too."""
    if _is_whole(clients) and clients >= 1:
        return int(clients)
    listed = isinstance(clients, list | tuple | range | np.ndarray) and np.ndim(clients) == 1
    if listed and len(clients) and all(_is_whole(each) and each >= 0 for each in clients):
        who = tuple(int(each) for each in clients)
        if len(set(who)) == len(who):
            return who
    raise ValueError(
        "attack: clients must be a number of at least 1, or a list of clients (different whole numbers of at least 0), got "
        f"{clients!r}"
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _moments(rows: Array, honest: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each number over the honest rows."""
    weights = (honest / jnp.maximum(honest.sum(), 1)).astype(rows.dtype)
    mean = jnp.where(honest[:, None], weights[:, None] * rows, 0).sum(0)
    return mean, jnp.sqrt(jnp.where(honest[:, None], weights[:, None] * (rows - mean) ** 2, 0).sum(0))


def _number(value: Any, name: str) -> float:
    if not isinstance(value, Real) or isinstance(value, bool) or not 0 < float(value) < float("inf"):
        raise ValueError(f"attack: {name} must be a positive number, got {value!r}")
    return float(value)
