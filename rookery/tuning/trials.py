"""The lanes of a search: many candidates side by side, advanced in steps and regrouped between them."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.algorithm.exchange import Algorithm
from rookery.algorithm.setting import State, with_dtype
from rookery.algorithms.registry import name_of
from rookery.devices import threads
from rookery.engines.base import Run
from rookery.problem.clients import Clients
from rookery.problem.keys import as_key
from rookery.problem.oracles import UNITS
from rookery.solving.evaluate import Evaluation
from rookery.solving.lanes import stack
from rookery.solving.loop import counters
from rookery.solving.prepare import Prepared
from rookery.stopping import stop_if_asked
from rookery.tuning.journal import Journal
from rookery.tuning.judge import FULL, Effort, phi
from rookery.tuning.space import Place

WIDTH = 8
"""Lanes of a program: enough to fill two cores, few enough that the last candidates do not run beside idle lanes."""


@dataclass
class Trial:
    """A candidate with one key: where it is in its run, and how it was judged on the way."""

    number: int
    place: Place
    algorithm: Algorithm
    key: int
    """Which of the search's keys it has."""
    rounds: int = 0
    state: Any = field(default=None, repr=False)
    score: float = float("nan")
    diverged: bool = False
    stage: int = 0
    spent: dict[str, int] = field(default_factory=dict)

    @property
    def outcome(self) -> dict[str, Any]:
        """What a journal holds of it."""
        score = self.score if np.isfinite(self.score) else None
        return {"rounds": self.rounds, "score": score, "diverged": self.diverged, "spent": dict(self.spent)}

    def take(self, outcome: Mapping[str, Any]) -> None:
        """What a journal held; the state is computed again if it is needed."""
        self.rounds, self.diverged, self.spent = outcome["rounds"], outcome["diverged"], dict(outcome["spent"])
        self.score = float("nan") if outcome["score"] is None else float(outcome["score"])
        self.state = None

    @property
    def alive(self) -> bool:
        """Whether it can go on."""
        return not self.diverged and bool(np.isfinite(self.score))


class Program:
    """One compiled program of lanes for all trials of an algorithm.

    ``metric`` is one of the numbers that the prepared ``evaluate`` returns, or None: then a trial is judged by Φ.
    """

    def __init__(
        self,
        prepared: Prepared,
        keys: Sequence[Any],
        metric: str | None,
        like: tuple[Any, Any],
        anchor: Array,
        judges: Clients | None = None,
        effort: Effort = FULL,
        journal: Journal | None = None,
    ):
        self.prepared, self.keys, self.metric, self.like = prepared, [as_key(key) for key in keys], metric, like
        self.anchor, self.effort = anchor, effort
        self.judges = prepared.run.setting.clients if judges is None else judges
        self.journal = journal or Journal()
        self.name = name_of(type(prepared.run.setting.algorithm))
        self.run = prepared.run
        self.width = self.run.lanes or 1

    def advance(self, trials: Sequence[Trial], to: int) -> None:
        """Brings trials, all in the same round, to round ``to``, and judges them."""
        for first in range(0, len(trials), self.width):
            part = list(trials[first : first + self.width])
            batch: list[Any] = [to, [each.number for each in part]]
            told = self.journal.next(self.name, batch)
            if told is None:
                stop_if_asked()
                self.restore(part)
                self._advance(part, to)
                self.journal.add(self.name, batch, [each.outcome for each in part])
            else:
                for each, outcome in zip(part, told, strict=True):
                    each.take(outcome)

    def restore(self, trials: Sequence[Trial]) -> None:
        """The states of trials whose rounds were made before the search was stopped."""
        lost = [each for each in trials if each.rounds and each.state is None]
        if lost:
            again = [replace(each, rounds=0, state=None, spent={}) for each in lost]
            self._advance(again, lost[0].rounds)
            for each, made in zip(lost, again, strict=True):
                each.state = made.state

    def _advance(self, trials: list[Trial], to: int) -> None:
        idle = self.width - len(trials)
        lanes = trials + [trials[0]] * idle
        dtype = self.run.setting.flat.x.dtype
        algorithms = stack([with_dtype(each.algorithm, dtype) for each in lanes], "algorithm")
        setting = replace(self.run.setting, algorithm=algorithms, key=jnp.stack([self.keys[t.key] for t in lanes]))
        run = replace(self.run, setting=setting)
        state = self._state(run, lanes)
        if idle:
            asleep = np.arange(self.width) >= len(trials)
            state = replace(state, died=jnp.where(jnp.asarray(asleep), jnp.maximum(state.died, 0), state.died))
        with self.prepared.engine.open(replace(run, start=state)) as session:
            before = trials[0].rounds
            state, activity = session.advance(state, to - before)
            counted = counters(run.lanes, session.costs, np.asarray(activity, np.int64))
        died = np.asarray(state.died)
        scores = self._judge(replace(self.prepared, run=run), state, len(trials))
        for lane, trial in enumerate(trials):
            trial.diverged = bool(died[lane] >= 0)
            made = (int(died[lane]) if trial.diverged else to) - trial.rounds
            calls = sum(int(counted[unit][lane]) for unit in UNITS)
            sent = int(counted["bytes_up"][lane] + counted["bytes_down"][lane])
            for unit, amount in (("rounds", made), ("calls", calls), ("bytes", sent)):
                trial.spent[unit] = trial.spent.get(unit, 0) + amount
            if self.metric is None and not trial.diverged:
                trial.spent["calls"] += self.effort.products * self.judges.n
            trial.rounds = trial.rounds + made if trial.diverged else to
            trial.score = float("nan") if trial.diverged else float(scores[lane])
            trial.state = (
                None if trial.diverged else jax.tree.map(lambda leaf, lane=lane: leaf[lane], replace(state, round=None))
            )

    def _state(self, run: Run, lanes: Sequence[Trial]) -> State:
        if lanes[0].state is None:
            return run.initial_state()
        stacked: State = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[each.state for each in lanes])
        return replace(stacked, round=lanes[0].rounds)

    def _judge(self, prepared: Prepared, state: State, count: int) -> np.ndarray:
        if self.metric is not None:
            return np.asarray(Evaluation(prepared)(state)[self.metric], float)
        flat, clients = self.run.setting.flat, self.judges
        output = self.run.setting.algorithm.output
        xs, ys = jax.vmap(output)(state.server, state.keep)

        def one(lane: int) -> float:
            return float(
                phi(flat.problem, clients, self.like, self.effort, xs[lane], ys[lane].reshape(-1), self.anchor)[0]
            )

        with ThreadPoolExecutor(threads()) as pool:
            return np.array(list(pool.map(one, range(count))))
