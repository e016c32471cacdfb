"""Robust rules: what the server receives of an exchange where some participants may lie.

A weighted sum Σ w_i u_i is S·(a mean with weights w_i / S), S = Σ w_i. A rule replaces the mean and keeps the mass S, so
that what an algorithm counts on (weights that sum to 1, or to n/|C|·Σ p_i) still holds. Every part of an upload is treated
by itself: parts have different scales, and a norm over all of them would see the largest only.
"""

import math
from numbers import Integral, Real
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array


class Rule(eqx.Module):
    """Base class of the rules: a robust mean of rows."""

    weighted: ClassVar[bool] = True
    """Whether it keeps the weights of an exchange; else every participant counts the same."""

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """The robust mean of the rows (participants, numbers) in ``mask``.

        ``weights`` sum to 1 and are 0 outside of it; ``centre`` is the point around which lengths are measured: what was
        broadcast, where participants upload what became of it, else 0.
        """
        raise NotImplementedError

    def check(self, least: int) -> None:
        """Raises ``ValueError`` where the rule cannot work with so few participants."""

    def protects(self, least: int) -> bool:
        """Whether one that lies may be outvoted among so few."""
        return least >= 3

    def bears(self) -> float | None:
        """How much of the weight may lie; None where it is not weights that decide."""
        return None


class TrimmedMean(Rule):
    """The mean of each number without its largest and its smallest values.

    Args:
        share: of the weight that is cut off at each end, in (0, 0.5): as many participants may lie. A fraction of a
            participant is cut off as such.
    """

    share: float = eqx.field(static=True)

    def __init__(self, share: float):
        self.share = _number(share, "TrimmedMean: share")
        if not 0 < self.share <= 0.499:  # beyond, what is left is no more than what rounding may be off by
            raise ValueError(
                f"TrimmedMean: share must be in (0, 0.499], for half of all cannot lie, got {self.share!r}"
            )

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """What is left between the two ends, by weight."""
        values, upto, own = _by_size(rows, weights)
        low = self.share + _slack(rows)  # else rounding leaves liars some of their weight, which times 1e30 is much
        high = 1 - low
        kept = jnp.clip(jnp.minimum(upto, high) - jnp.maximum(upto - own, low), 0)
        return jnp.where(kept > 0, kept * values, 0).sum(0) / kept.sum(0)

    def check(self, least: int) -> None:
        """So many that at least one is cut off at each end."""
        if self.share * least < 1 - 1e-9:
            raise ValueError(
                f"aggregate: TrimmedMean({self.share:g}) needs at least {math.ceil(1 / self.share - 1e-9)} participants, or "
                f"not even one is cut off; there may be only {least}"
            )

    def bears(self) -> float:
        """What is cut off."""
        return self.share


class Median(Rule):
    """The weighted median of each number."""

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """The middle value, or the mean of the two in the middle."""
        return _median(rows, weights)

    def bears(self) -> float:
        """Half."""
        return 0.5


class GeometricMedian(Rule):
    """The point with the least weighted sum of distances to all uploads (RFA: Pillutla, Kakade, Harchaoui, 2022).

    Args:
        iterations: of Weiszfeld's algorithm, from the median of each number.
    """

    iterations: int = eqx.field(static=True)

    def __init__(self, iterations: int = 32):
        self.iterations = _whole(iterations, 1, "GeometricMedian: iterations")

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """Weiszfeld's algorithm, which leaves an upload that it is at by Vardi and Zhang's step (2000)."""
        start = _median(rows, weights)
        small = jnp.finfo(rows.dtype)
        scale = _typical(_norm(rows - start), mask)

        def nearer(_: Any, point: Array) -> Array:
            length = _norm(rows - point)
            here = length <= 16 * small.eps * scale
            pull = jnp.where(here, 0, weights / jnp.maximum(length, small.tiny))
            total = pull.sum()
            target = _combined(pull / jnp.maximum(total, small.tiny), rows)
            force = total * _norm(target - point)  # of all others, against the weight of those that are here
            stay = jnp.minimum(1, jnp.where(here, weights, 0).sum() / jnp.maximum(force, small.tiny))
            return jnp.where(total > 0, (1 - stay) * target + stay * point, point)

        found: Array = jax.lax.fori_loop(0, self.iterations, nearer, start)
        return found

    def bears(self) -> float:
        """Half."""
        return 0.5


class Krum(Rule):
    """The one upload that is nearest to its neighbours (Blanchard et al., 2017).

    Args:
        f: how many participants may lie; there must be at least 2f + 3.
    """

    weighted: ClassVar[bool] = False
    f: int = eqx.field(static=True)

    def __init__(self, f: int):
        self.f = _whole(f, 1, "Krum: f, the number of participants that may lie,")

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """The row with the least sum of squared distances to the |C| − f − 2 nearest others."""
        score = _krum_scores(rows, mask, self.f)
        best = jnp.argmin(score)
        return jnp.where(jnp.isfinite(score[best]), rows[best], jnp.nan)  # all so far apart that nobody is near

    def check(self, least: int) -> None:
        """2f + 3 of them."""
        if least < 2 * self.f + 3:
            raise ValueError(
                f"aggregate: {type(self).__name__} with f = {self.f} needs at least {2 * self.f + 3} participants (2f + 3), "
                f"there may be only {least}"
            )


class MultiKrum(Rule):
    """The weighted mean of the m uploads that are nearest to their neighbours (Blanchard et al., 2017).

    Args:
        f: how many participants may lie; there must be at least 2f + 3.
        m: how many uploads are taken; |C| − f at most.
    """

    f: int = eqx.field(static=True)
    m: int = eqx.field(static=True)

    def __init__(self, f: int, m: int):
        self.f = _whole(f, 1, "MultiKrum: f, the number of participants that may lie,")
        self.m = _whole(m, 1, "MultiKrum: m, the number of uploads that are taken,")

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """Those with the m best scores."""
        score = _krum_scores(rows, mask, self.f)
        taken = (jnp.argsort(jnp.argsort(score)) < self.m) & jnp.isfinite(score)
        chosen = jnp.where(taken, weights, 0)
        chosen = jnp.where(chosen.sum() > 0, chosen, taken.astype(weights.dtype))  # those may happen to have no weight
        return jnp.where(taken.any(), _combined(chosen / chosen.sum(), rows), jnp.nan)

    def check(self, least: int) -> None:
        """2f + 3 of them, and m honest ones."""
        Krum(self.f).check(least)
        if self.m > least - self.f:
            raise ValueError(
                f"aggregate: MultiKrum takes m = {self.m} uploads, but of {least} participants {self.f} may lie"
            )


class NormClip(Rule):
    """The weighted mean of uploads whose length is at most a bound; longer ones are shortened.

    Of a part that is an average of what was broadcast under the same name, the way from there is what is shortened.

    Args:
        bound: a length, or "median": that of the participant in the middle.
    """

    bound: float | Literal["median"] = eqx.field(static=True)

    def __init__(self, bound: float | Literal["median"]):
        self.bound = _length(bound, "NormClip: bound")

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """The mean of shortened ways."""
        return centre + _combined(weights, _shortened(rows - centre, self.bound, mask))

    def protects(self, least: int) -> bool:
        """A bound that is given bounds whoever lies."""
        return self.bound != "median" or least >= 3


class CenteredClip(Rule):
    """Moves from the median to the mean of shortened ways, a few times (Karimireddy, He, Jaggi, 2021).

    The paper begins at what the last round received; a median needs no memory and is a good start in the first round too.

    Args:
        radius: to which ways are shortened, or "median": the length in the middle.
        iterations: how often.
    """

    radius: float | Literal["median"] = eqx.field(static=True)
    iterations: int = eqx.field(static=True)

    def __init__(self, radius: float | Literal["median"] = "median", iterations: int = 5):
        self.radius = _length(radius, "CenteredClip: radius")
        self.iterations = _whole(iterations, 1, "CenteredClip: iterations")

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """v ← v + Σ w_i (u_i − v) min(1, τ/‖u_i − v‖)."""

        def move(_: Any, point: Array) -> Array:
            return point + _combined(weights, _shortened(rows - point, self.radius, mask))

        found: Array = jax.lax.fori_loop(0, self.iterations, move, _median(rows, weights))
        return found

    def bears(self) -> float:
        """Half, as the median that it begins at."""
        return 0.5


def robust_sum(rule: Rule, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
    """What takes the place of Σ w_i u_i: the mass of the weights times the robust mean.

    An upload with a number that is not finite is nobody's: else a single NaN would end the run. Where all are such, NaN is
    what comes of them, for the run has diverged.
    """
    sound = mask & jnp.isfinite(rows).all(-1)
    mass, left = weights.sum(), jnp.where(sound, weights, 0).sum()
    share = jnp.where(sound & (left > 0), weights / jnp.where(left > 0, left, 1), 0)
    rows = jnp.where(sound[:, None], rows, 0)
    mean = jnp.where(left > 0, rule.mean(rows, share.astype(rows.dtype), sound, centre), jnp.nan)
    return jnp.where(mass > 0, mass.astype(rows.dtype) * mean, 0)


# --- pieces -----------------------------------------------------------------------------------------------------------


def _by_size(rows: Array, weights: Array) -> tuple[Array, Array, Array]:
    """Each column sorted, and beside each value the weight of all up to it and its own."""
    order = jnp.argsort(rows, axis=0)
    own = weights[order]
    return jnp.take_along_axis(rows, order, 0), jnp.cumsum(own, 0), own


def _median(rows: Array, weights: Array) -> Array:
    values, upto, own = _by_size(rows, weights)
    slack = _slack(rows)
    there = own > 0

    def first(reached: Array) -> Array:
        return jnp.take_along_axis(values, jnp.argmax(reached & there, 0)[None], 0)[0]

    return (first(upto >= 0.5 - slack) + first(upto > 0.5 + slack)) / 2


def _slack(rows: Array) -> float:
    """What a sum of weights may be off by."""
    return 16 * float(jnp.finfo(rows.dtype).eps)


def _norm(rows: Array) -> Array:
    return jnp.sqrt(jnp.sum(rows**2, -1))


def _combined(weights: Array, rows: Array) -> Array:
    """Σ w_i u_i, where what has no weight may be anything."""
    return jnp.where(weights[:, None] > 0, weights[:, None] * rows, 0).sum(0)


def _typical(lengths: Array, mask: Array) -> Array:
    """The length in the middle."""
    return jnp.nanmedian(jnp.where(mask, lengths, jnp.nan))


def _shortened(rows: Array, bound: float | str, mask: Array) -> Array:
    length = _norm(rows)
    most = _typical(length, mask) if isinstance(bound, str) else jnp.asarray(bound, rows.dtype)
    factor = jnp.minimum(1, most / jnp.maximum(length, jnp.finfo(rows.dtype).tiny))
    return jnp.where(factor[:, None] > 0, factor[:, None] * rows, 0)


def _krum_scores(rows: Array, mask: Array, f: int) -> Array:
    """For each row the sum of squared distances to its nearest |C| − f − 2 others; of a row that is not there, infinity."""
    distance = jax.lax.map(lambda row: jnp.sum((rows - row) ** 2, -1), rows)
    itself = jnp.eye(rows.shape[0], dtype=bool)
    distance = jnp.sort(jnp.where(mask[None] & ~itself, distance, jnp.inf), -1)
    nearest = jnp.arange(rows.shape[0]) < jnp.maximum(mask.sum() - f - 2, 1)
    return jnp.where(mask, jnp.where(nearest, distance, 0).sum(-1), jnp.inf)


def _number(value: Any, name: str) -> float:
    """A number as Python has it, of NumPy's too; an array is none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        raise ValueError(f"{name} must be a number, got {value!r}")
    return float(value)


def _whole(value: Any, least: int, name: str) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def _length(value: Any, name: str) -> float | Literal["median"]:
    if isinstance(value, str) and value == "median":
        return "median"
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not 0 < float(value) < float("inf"):
        raise ValueError(f'{name} must be a positive number or "median", got {value!r}')
    return float(value)
