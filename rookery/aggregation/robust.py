"""Robust rules: what the server receives of an exchange where some participants may lie.

A weighted sum Σ w_i u_i is S·(a mean with weights w_i / S), S = Σ w_i. A rule replaces the mean and keeps the mass S, so
that what an algorithm counts on (weights that sum to 1, or to n/|C|·Σ p_i) still holds. Every part of an upload is treated
by itself: parts have different scales, and a norm over all of them would see the largest only.
"""

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


class TrimmedMean(Rule):
    """The mean of each number without its largest and its smallest values.

    Args:
        share: of the weight that is cut off at each end, in (0, 0.5): as many participants may lie. A fraction of a
            participant is cut off as such.
    """

    share: float = eqx.field(static=True)

    def __check_init__(self) -> None:
        if not _is_number(self.share) or not 0 < self.share < 0.5:
            raise ValueError(
                f"TrimmedMean: share must be in (0, 0.5), for more than half cannot lie, got {self.share!r}"
            )

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """What is left between the two ends, by weight."""
        values, upto, own = _by_size(rows, weights)
        low, high = self.share, 1 - self.share
        kept = jnp.clip(jnp.minimum(upto, high) - jnp.maximum(upto - own, low), 0)
        return jnp.where(kept > 0, kept * values, 0).sum(0) / kept.sum(0)

    def check(self, least: int) -> None:
        """At least three, or there is nothing between the ends."""
        if least < 3:
            raise ValueError(f"aggregate: TrimmedMean needs at least 3 participants, there may be only {least}")


class Median(Rule):
    """The weighted median of each number."""

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """The middle value, or the mean of the two in the middle."""
        return _median(rows, weights)


class GeometricMedian(Rule):
    """The point with the least weighted sum of distances to all uploads (RFA: Pillutla, Kakade, Harchaoui, 2022).

    Args:
        iterations: of Weiszfeld's algorithm, from the median of each number.
    """

    iterations: int = eqx.field(static=True, default=32)

    def __check_init__(self) -> None:
        _check_whole(self.iterations, 1, "GeometricMedian: iterations")

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """Weiszfeld's algorithm, with distances bounded from below."""
        start = _median(rows, weights)
        scale = jnp.where(mask, _norm(rows - start), 0)
        tiny = jnp.finfo(rows.dtype).eps * _typical(scale, mask) + jnp.finfo(rows.dtype).tiny

        def nearer(_: Any, point: Array) -> Array:
            pull = weights / jnp.maximum(_norm(rows - point), tiny)
            return _combined(pull / pull.sum(), rows)

        found: Array = jax.lax.fori_loop(0, self.iterations, nearer, start)
        return found


class Krum(Rule):
    """The one upload that is nearest to its neighbours (Blanchard et al., 2017).

    Args:
        f: how many participants may lie; there must be at least 2f + 3.
    """

    weighted: ClassVar[bool] = False
    f: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        _check_whole(self.f, 1, f"{type(self).__name__}: f, the number of participants that may lie,")

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """The row with the least sum of squared distances to the |C| − f − 2 nearest others."""
        return rows[jnp.argmin(_krum_scores(rows, mask, self.f))]

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

    def __check_init__(self) -> None:
        _check_whole(self.f, 1, "MultiKrum: f, the number of participants that may lie,")
        _check_whole(self.m, 1, "MultiKrum: m, the number of uploads that are taken,")

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """Those with the m best scores."""
        score = _krum_scores(rows, mask, self.f)
        place = jnp.argsort(jnp.argsort(score))
        chosen = jnp.where((place < self.m) & mask, weights, 0)
        plain = jnp.where((place < self.m) & mask, 1.0, 0.0).astype(weights.dtype)
        chosen = jnp.where(chosen.sum() > 0, chosen, plain)  # those may happen to have no weight
        return _combined(chosen / chosen.sum(), rows)

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

    def __check_init__(self) -> None:
        _check_length(self.bound, "NormClip: bound")

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """The mean of shortened ways."""
        return centre + _combined(weights, _shortened(rows - centre, self.bound, mask))


class CenteredClip(Rule):
    """Moves from the median to the mean of shortened ways, a few times (Karimireddy, He, Jaggi, 2021).

    The paper begins at what the last round received; a median needs no memory and is a good start in the first round too.

    Args:
        radius: to which ways are shortened, or "median": the length in the middle.
        iterations: how often.
    """

    radius: float | Literal["median"] = eqx.field(static=True, default="median")
    iterations: int = eqx.field(static=True, default=5)

    def __check_init__(self) -> None:
        _check_length(self.radius, "CenteredClip: radius")
        _check_whole(self.iterations, 1, "CenteredClip: iterations")

    def mean(self, rows: Array, weights: Array, mask: Array, centre: Array) -> Array:
        """v ← v + Σ w_i (u_i − v) min(1, τ/‖u_i − v‖)."""

        def move(_: Any, point: Array) -> Array:
            return point + _combined(weights, _shortened(rows - point, self.radius, mask))

        found: Array = jax.lax.fori_loop(0, self.iterations, move, _median(rows, weights))
        return found


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
    slack = 16 * jnp.finfo(rows.dtype).eps
    there = own > 0

    def first(reached: Array) -> Array:
        return jnp.take_along_axis(values, jnp.argmax(reached & there, 0)[None], 0)[0]

    return (first(upto >= 0.5 - slack) + first(upto > 0.5 + slack)) / 2


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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(value: Any, least: int, name: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")


def _check_length(value: Any, name: str) -> None:
    if value != "median" and not (_is_number(value) and 0 < value < float("inf")):
        raise ValueError(f'{name} must be a positive number or "median", got {value!r}')
