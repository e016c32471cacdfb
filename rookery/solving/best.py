"""The best of the iterates that a run evaluated."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery.engines.homes import is_divided


@dataclass(frozen=True)
class Best:
    """The evaluated iterate with the best metric: ``x`` and ``y``, the ``round`` it is of, and its ``value``.

    The start counts, the first of equals wins, and what is not finite never does (``value`` is NaN if nothing was). Of a
    batch every array has a leading axis of lanes: each has a best of its own.
    """

    x: Any
    y: Any
    round: Any
    value: Any
    metric: str
    higher_is_better: bool

    def lane(self, lane: int) -> "Best":
        """That of one run of a batch."""
        x, y = jax.tree.map(lambda leaf: leaf[lane] if _is_array(leaf) else leaf, (self.x, self.y))
        return replace(self, x=x, y=y, round=int(self.round[lane]), value=float(self.value[lane]))

    def on_device(self) -> "Best":
        """The same with arrays of JAX, as a solution's own x and y are."""
        x, y = jax.tree.map(lambda leaf: jnp.asarray(leaf) if _is_array(leaf) else leaf, (self.x, self.y))
        return replace(self, x=x, y=y)


def begun(metric: str, higher_is_better: bool, value: Any, round: Any, output: tuple[Any, Any]) -> Best:
    """The first iterate that was evaluated."""
    number = np.asarray(value, float)
    value = np.where(np.isfinite(number), number, np.nan)
    x, y = _on_host(output)
    return as_numbers(Best(x, y, np.broadcast_to(round, value.shape), value, metric, higher_is_better))


def improved(best: Best, value: Any, round: Any, output: Callable[[], tuple[Any, Any]]) -> Best:
    """The best, now that another iterate was evaluated; ``output`` is asked for (x, y) only if some lane has improved."""
    value, old = np.asarray(value, float), np.asarray(best.value)
    gain = value > old if best.higher_is_better else value < old
    wins = np.isfinite(value) & (gain | np.isnan(old))
    if not wins.any():
        return best

    def chosen(new: Any, old: Any) -> Any:
        if not _is_array(new):
            return old
        where = jnp.where if is_divided(new) else np.where
        return where(wins.reshape(wins.shape + (1,) * (new.ndim - wins.ndim)), new, old)

    x, y = jax.tree.map(chosen, _on_host(output()), (best.x, best.y))
    rounds = np.where(wins, round, best.round)
    return as_numbers(replace(best, x=x, y=y, round=rounds, value=np.where(wins, value, old)))


def as_numbers(best: Best) -> Best:
    """Round and value as Python numbers where there are no lanes."""
    return best if np.ndim(best.value) else replace(best, round=int(best.round), value=float(best.value))


def _on_host(tree: Any) -> Any:
    """A copy that does not go when the next round consumes the state; what is divided among processes stays so."""

    def copy(leaf: Any) -> Any:
        if is_divided(leaf):
            return jnp.copy(leaf)
        return np.array(leaf) if _is_array(leaf) else leaf

    return jax.tree.map(copy, tree)


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, np.ndarray | np.generic)
