"""What a run found."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import numpy as np

from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import State
from rookery.algorithms.rates import tell_algorithm
from rookery.engines.base import Divergence, Stopped
from rookery.solving.best import Best
from rookery.solving.history import COSTS, History
from rookery.solving.notebook import curves, lane_mean, number, paragraph, short, table
from rookery.solving.remarks import of_lane
from rookery.solving.spending import Spent

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Diverged(ArithmeticError):
    """A run met a number that is not finite. ``solution`` holds what was computed up to the round before."""

    def __init__(self, divergence: Divergence, solution: "Solution"):
        super().__init__(str(divergence))
        self.divergence = divergence
        self.solution = solution


@dataclass(frozen=True)
class Solution:
    """What a run found: ``x``, ``y`` and ``history``. ``rk.solve(..., start=solution)`` goes on from here.

    In several processes ``y`` of each client's own, and what clients keep in ``state``, is divided among them; it may have
    rows after those of the clients, which only fill it up.

    Of a batch (``solve_many``) every array has a leading axis of lanes; ``lane(i)`` is one of its runs. ``diverged``
    lists the lanes that were stopped and in which round; ``why(lane)`` looks for the cause.
    """

    x: Any
    y: Any
    history: History
    state: State
    lanes: int | None = None
    diverged: tuple[Stopped, ...] = ()
    diagnose: Callable[[State, Stopped], Divergence] | None = field(default=None, repr=False, compare=False)
    """What :meth:`why` asks."""
    best: Best | None = None
    """The evaluated iterate with the best metric, if ``rk.solve`` was given a ``metric``."""
    remarks: tuple[str, ...] = ()
    """How it went, where there is something to say: sentences of one line, those about a lane with its number."""
    algorithm: Algorithm | None = None
    """The algorithm with its rates, of a solution by ``rk.solve``: those that were given, or found."""
    spent: Spent | None = None
    """What was booked, if the run is private; of lanes, for the one that made most."""

    @property
    def rounds(self) -> int:
        """Rounds done so far."""
        return int(self.state.round)

    def lane(self, lane: int) -> "Solution":
        """One run of a batch."""
        if self.lanes is None or not 0 <= lane < self.lanes:
            raise IndexError(f"lane must be in 0..{(self.lanes or 0) - 1}, got {lane}")

        def pick(tree: Any) -> Any:
            return jax.tree.map(lambda leaf: leaf[lane] if eqx.is_array(leaf) else leaf, tree)

        state = replace(pick(replace(self.state, round=None)), round=self.state.round)
        stopped = tuple(replace(d, lane=None) for d in self.diverged if d.lane == lane)

        def diagnose(_: State, stopped: Stopped) -> Divergence:
            return replace(self.why(lane), lane=None)

        best = None if self.best is None else self.best.lane(lane)
        told = of_lane(self.remarks, lane)
        found = Solution(
            pick(self.x), pick(self.y), self.history.lane(lane), state, None, stopped, diagnose, best, told
        )
        return replace(found, spent=self.spent)

    def plot(self, metric: str | None = None) -> "Figure":
        """A Matplotlib figure of a metric, or of each in a panel, against rounds; lanes are thin lines, with their mean.

        It belongs to no window and leaves ``pyplot`` alone; a notebook shows it, ``figure.savefig(path)`` writes it.

        Args:
            metric: a column of the history; all that ``evaluate`` returned by default.
        """
        columns = [name for name in self.history.columns if name != "round"]
        if metric is not None and metric not in columns:
            raise ValueError(f"metric must be one of {', '.join(columns) or 'no columns'}, got {metric!r}")
        names = self.history.metrics if metric is None else [metric]
        if not names:
            raise ValueError("metric must be given where evaluate returned nothing, got None")
        from rookery.solving.figure import draw_curves  # Matplotlib takes long to import

        return draw_curves(self.history["round"], {name: self._alive(name) for name in names})

    def _alive(self, column: str) -> np.ndarray:
        """A column by lanes, without the metrics that a lane shows after it was stopped."""
        values = self.history.by_lane(column)
        for each in () if column in COSTS else self.diverged:
            values[self.history["round"] > each.round, each.lane or 0] = np.nan
        return values

    def _repr_html_(self) -> str:
        """What was solved, the last metrics, what it cost, what there is to say, and the curves."""
        parts = [paragraph(self._about())]
        if len(self.history):
            values = {name: lane_mean(self._alive(name)) for name in self.history.columns}
            shown = [*self.history.metrics, *(name for name in COSTS if self.history.has_cost(name))]
            parts.append(table(shown, [[number(values[name][-1]) for name in shown]]))
        if self.best is not None:
            pairs = zip(np.atleast_1d(self.best.value), np.atleast_1d(self.best.round), strict=True)
            told = ", ".join(f"{number(value)} in round {number(round)}" for value, round in pairs)
            parts.append(paragraph(f"Best {self.best.metric}: {told}"))
        parts += [paragraph(str(each)) for each in self.diverged] + [paragraph(each) for each in self.remarks]
        rounds = self.history["round"] if len(self.history) else np.zeros(0)
        parts += [curves(name, rounds, self._alive(name)) for name in self.history.metrics]
        return f"<div>{''.join(parts)}</div>"

    def _about(self) -> str:
        sizes = f"x has {_size(self.x, self.lanes):,} and y {_size(self.y, self.lanes):,} numbers"
        told = f"{self.rounds} rounds" + (f", means over {self.lanes} lanes" if self.lanes is not None else "")
        if self.algorithm is None:
            return f"Solution after {told}; {sizes}"
        named = tell_algorithm(self.algorithm)
        rates = ", ".join(f"{name} {short(value)}" for name, value in named["rates"].items())
        return f"{named['name']} ({rates}) after {told}; {sizes}"

    def why(self, lane: int | None = None) -> Divergence:
        """Why a run, or this lane of a batch, diverged: its last round is repeated, one client after the other."""
        for each in self.diverged:
            if each.lane == lane and self.diagnose is not None:
                return self.diagnose(self.state, each)
        stopped = ", ".join(str(each.lane) for each in self.diverged) or "none"
        raise ValueError(f"lane must be one that diverged ({stopped}), got {lane}")


def _size(tree: Any, lanes: int | None) -> int:
    """Numbers in a variable of one lane."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree) if eqx.is_array(leaf)) // (lanes or 1)


def stopped_in(state: State, lanes: int | None) -> tuple[Stopped, ...]:
    """The run, or the lanes, that met a number that is not finite."""
    died = np.atleast_1d(np.asarray(state.died))
    return tuple(Stopped(int(died[i]), None if lanes is None else int(i)) for i in np.flatnonzero(died >= 0))
