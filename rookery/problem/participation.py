"""Who takes part in a round, and how many local steps each makes."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.problem.keys import STEPS, Stream
from rookery.typing import ClientWeights, Ids, Mask


class Participation(eqx.Module):
    """Draws the participants of a round into a fixed number of slots, so that shapes are static."""

    def slots(self, n: int) -> int:
        """The number of slots among ``n`` clients."""
        raise NotImplementedError

    def draw(self, key: Array, n: int, round: Any, number: Any = 0) -> tuple[Ids, Mask]:
        """(ids, mask) of draw ``number`` of a round: ids in increasing order where the mask is true.

        A slot that is not used repeats a real id.
        """
        raise NotImplementedError

    def check(self, n: int) -> None:
        """Raises ``ValueError`` if this cannot be done with ``n`` clients."""

    def expected(self, n: int) -> float:
        """E|C|, the number of participants on average."""
        return float(self.slots(n))

    def least(self, n: int) -> int:
        """The smallest number of participants that there may be."""
        return self.slots(n)


class Full(Participation):
    """Everybody, every round."""

    def slots(self, n: int) -> int:
        """All of them."""
        return n

    def draw(self, key: Array, n: int, round: Any, number: Any = 0) -> tuple[Ids, Mask]:
        """All ids."""
        return jnp.arange(n, dtype=jnp.int32), jnp.ones(n, bool)


class Uniform(Participation):
    """``count`` clients, uniformly without replacement."""

    count: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not isinstance(self.count, int) or self.count < 1:
            raise ValueError(f"Uniform: count must be an integer of at least 1, got {self.count!r}")

    def slots(self, n: int) -> int:
        """``count`` of them."""
        return self.count

    def draw(self, key: Array, n: int, round: Any, number: Any = 0) -> tuple[Ids, Mask]:
        """Floyd's algorithm: O(count) whatever n is."""
        if self.count == n:
            return Full().draw(key, n, round)
        return _floyd(key, n, self.count, jnp.int32(self.count))

    def check(self, n: int) -> None:
        """At most ``n`` participants."""
        if self.count > n:
            raise ValueError(f"participation: cannot draw {self.count} participants from {n} clients")


class Bernoulli(Participation):
    """Every client is active with ``probability``, independently; drawn again until at least one is.

    The number of active clients comes from the binomial distribution without zero, then the set is uniform.
    """

    probability: float = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not isinstance(self.probability, int | float) or not 0 < self.probability <= 1:
            raise ValueError(f"Bernoulli: probability must be in (0, 1], got {self.probability!r}")

    def slots(self, n: int) -> int:
        """All that occur but once in 10⁹ rounds (all n for up to 64 clients)."""
        from scipy.stats import binom  # a second of everybody's start otherwise

        return n if n <= 64 else min(n, int(binom.isf(1e-9, n, self.probability)) + 1)

    def expected(self, n: int) -> float:
        """As if nobody might come too."""
        return self.probability * n

    def least(self, n: int) -> int:
        """One, unless all come always."""
        return n if self.probability == 1 else 1

    def draw(self, key: Array, n: int, round: Any, number: Any = 0) -> tuple[Ids, Mask]:
        """|C| from a table, then Floyd's algorithm."""
        if self.probability == 1:
            return Full().draw(key, n, round)
        from scipy.stats import binom

        slots = self.slots(n)
        table = binom.cdf(np.arange(1, slots + 1), n, self.probability) - binom.pmf(0, n, self.probability)
        u = jax.random.uniform(Stream(key).key(0, "number"), (), jnp.float32)
        count = 1 + jnp.searchsorted(jnp.asarray(table[:-1] / table[-1], jnp.float32), u, side="right")
        return _floyd(key, n, slots, count.astype(jnp.int32))


class Replay(Participation):
    """Repeats recorded participants: ``trace[t]`` lists the ids of round t, or a list of them for each of its draws.

    A round (or draw) beyond the record repeats the last one.
    """

    ids: Array
    mask: Array

    def __init__(self, trace: Sequence[Any]):
        if not all(_is_list(ids) for ids in trace):
            raise TypeError(f"Replay: every round needs a list of ids, got {trace!r}")
        rounds = [[list(draw) for draw in ids] if all(map(_is_list, ids)) else [list(ids)] for ids in trace if len(ids)]
        if not rounds or len(rounds) != len(trace) or any(not draw for draws in rounds for draw in draws):
            raise ValueError(f"Replay: every round needs at least one participant, got {trace!r}")
        for round, draws in enumerate(rounds):
            for ids in draws:
                if not all(isinstance(id, int | np.integer) for id in ids):
                    raise TypeError(f"Replay: ids must be integers, got {ids} in round {round}")
                if len(set(ids)) != len(ids):
                    raise ValueError(f"Replay: a client takes part once a round, got {ids} in round {round}")
        width, most = max(len(d) for r in rounds for d in r), max(len(r) for r in rounds)
        full = [r + [r[-1]] * (most - len(r)) for r in rounds]
        self.ids = jnp.asarray([[sorted(d) + [min(d)] * (width - len(d)) for d in r] for r in full], jnp.int32)
        self.mask = jnp.arange(width) < jnp.asarray([[[len(d)] for d in r] for r in full])

    def slots(self, n: int) -> int:
        """As many as the fullest round has."""
        return int(self.ids.shape[2])

    def least(self, n: int) -> int:
        """As many as the emptiest round has."""
        return int(self.mask.sum(-1).min())

    def draw(self, key: Array, n: int, round: Any, number: Any = 0) -> tuple[Ids, Mask]:
        """The recorded round."""
        at = jnp.minimum(round, self.ids.shape[0] - 1), jnp.minimum(number, self.ids.shape[1] - 1)
        return self.ids[at], self.mask[at]

    def check(self, n: int) -> None:
        """All recorded ids are below ``n``."""
        if not 0 <= int(self.ids.min()) <= int(self.ids.max()) < n:
            bad = int(self.ids.min()) if int(self.ids.min()) < 0 else int(self.ids.max())
            raise ValueError(f"participation: recorded ids must be in 0..{n - 1}, got {bad}")


def _is_list(value: Any) -> bool:
    """NumPy's ``ndim`` does not take unequal lists."""
    return value.ndim > 0 if hasattr(value, "ndim") else isinstance(value, Sequence) and not isinstance(value, str)


def _floyd(key: Array, n: int, slots: int, count: Array) -> tuple[Ids, Mask]:
    """``count`` <= ``slots`` different numbers below ``n``, uniformly, in increasing order."""
    slot = jnp.arange(slots, dtype=jnp.int32)
    last = jnp.maximum(n - count + slot, 0)  # the s-th number is drawn from 0..n−count+s
    tries = Stream(key).integers(slots, last + 1, 0, "who")

    def pick(s: Array, chosen: Array) -> Array:
        taken = jnp.any((chosen == tries[s]) & (slot < s))
        return chosen.at[s].set(jnp.where(taken, last[s], tries[s]))

    chosen = jax.lax.fori_loop(0, slots, pick, jnp.zeros(slots, jnp.int32)) if slots > 1 else tries
    mask = slot < count
    chosen = jnp.sort(jnp.where(mask, chosen, n))
    return jnp.where(mask, chosen, chosen[0]), mask


class Steps(eqx.Module):
    """Local steps drawn for each client and round, uniformly from ``low`` to ``high`` inclusive."""

    low: int = eqx.field(static=True)
    high: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not (isinstance(self.low, int) and isinstance(self.high, int)) or not 1 <= self.low <= self.high:
            raise ValueError(f"Steps: need integers 1 <= low <= high, got low={self.low!r}, high={self.high!r}")

    @staticmethod
    def of(value: "int | Steps") -> "Steps":
        """``Steps(5, 5)`` from 5."""
        if isinstance(value, Steps):
            return value
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ValueError(f"local_steps must be an integer of at least 1 or rk.Steps(low, high), got {value!r}")
        return Steps(value, value)

    @property
    def fixed(self) -> bool:
        """Whether every client makes the same number of steps."""
        return self.low == self.high

    def draw(self, key: Array, client: Any, round: Any) -> Any:
        """τ_i of a round: a plain number if it is fixed."""
        if self.fixed:
            return self.low
        return self.low + Stream(key, STEPS, client, round).integers(1, self.high - self.low + 1, 0, "steps")[0]

    def mean(self, key: Array, round: Any, weights: ClientWeights) -> Any:
        """Σ_j p_j τ_j of a round over all clients, absent ones too."""
        if self.fixed:
            return float(self.low)
        drawn = jax.vmap(lambda client: self.draw(key, client, round))(jnp.arange(weights.shape[0]))
        return jnp.vdot(weights, drawn.astype(weights.dtype))


def check_participation(value: Any, n: int) -> Participation:
    """``None`` is everybody, a number is ``Uniform``."""
    if value is None:
        return Full()
    chosen = Uniform(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(chosen, Participation):
        raise TypeError(f"participation must be rk.Uniform(10), rk.Bernoulli(0.5), rk.Full() or alike, got {value!r}")
    chosen.check(n)
    return chosen
