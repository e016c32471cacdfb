"""What a run found."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import numpy as np

from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import State
from rookery.engines.base import Divergence, Stopped
from rookery.solving.best import Best
from rookery.solving.history import History
from rookery.solving.remarks import of_lane


class Diverged(ArithmeticError):
    """A run met a number that is not finite. ``solution`` holds what was computed up to the round before."""

    def __init__(self, divergence: Divergence, solution: "Solution"):
        super().__init__(str(divergence))
        self.divergence = divergence
        self.solution = solution


@dataclass(frozen=True)
class Solution:
    """What a run found: ``x``, ``y`` and ``history``. ``rk.solve(..., start=solution)`` goes on from here.

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
        return Solution(pick(self.x), pick(self.y), self.history.lane(lane), state, None, stopped, diagnose, best, told)

    def why(self, lane: int | None = None) -> Divergence:
        """Why a run, or this lane of a batch, diverged: its last round is repeated, one client after the other."""
        for each in self.diverged:
            if each.lane == lane and self.diagnose is not None:
                return self.diagnose(self.state, each)
        stopped = ", ".join(str(each.lane) for each in self.diverged) or "none"
        raise ValueError(f"lane must be one that diverged ({stopped}), got {lane}")


def stopped_in(state: State, lanes: int | None) -> tuple[Stopped, ...]:
    """The run, or the lanes, that met a number that is not finite."""
    died = np.atleast_1d(np.asarray(state.died))
    return tuple(Stopped(int(died[i]), None if lanes is None else int(i)) for i in np.flatnonzero(died >= 0))
