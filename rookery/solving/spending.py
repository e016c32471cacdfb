"""What a private run has spent: every exchange of every draw of participants, and how long the rest lasts."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rookery.aggregation.accounting import Ledger, Sampling, concentrated, noise_for
from rookery.aggregation.privacy import SPREAD, ClientPrivacy
from rookery.algorithm.cost import Cost
from rookery.algorithm.exchange import Exchange, Repeat, Stage, count_stages, stacked_parts
from rookery.engines.base import Run, kept_by
from rookery.problem.participation import Bernoulli, Participation, Uniform

Draw = tuple[tuple[int, int], ...]
"""The exchanges made with one draw of participants: the number of each stage, and how often it is executed."""


def draws_of(stages: tuple[Stage, ...]) -> Counter[Draw]:
    """The draws of one round in which nothing is skipped, and how many there are of each kind.

    Where an exchange draws anew that may be skipped, what follows it may belong to the draw before: it is counted there.
    """
    groups: list[Counter[int]] = []
    for number, fresh in _exchanges(stages, 0):
        if fresh or not groups:
            groups.append(Counter())
        groups[-1][number] += 1
    return Counter(tuple(sorted(group.items())) for group in groups)


def _exchanges(stages: Sequence[Stage], number: int) -> Iterator[tuple[int, bool]]:
    """The exchanges of a round in their order: number of the stage, and whether participants are drawn anew."""
    for stage in stages:
        if isinstance(stage, Repeat):
            for _ in range(stage.count):
                yield from _exchanges(stage.stages, number)
            number += count_stages(stage.stages)
        else:
            if isinstance(stage, Exchange):
                yield number, stage.draw == "fresh" and stage.when is None
            number += 1


def names_participants(stages: Sequence[Stage], costs: Sequence[Cost]) -> bool:
    """Whether the server's state shows who took part: its steps ask for that, or some part of an upload is stacked."""
    return bool(stacked_parts(stages)) or any(cost.shows_participants for cost in costs)


def sampling_of(participation: Participation, n: int, shown: bool, keeps: bool) -> Sampling:
    """How participants are drawn, for the accountant; where it is ``shown`` who took part, chance protects nobody.

    The theorem for a fixed number of participants does not hold where clients keep something from round to round. Of
    subclasses nobody knows how they draw.
    """
    expected = participation.expected(n)
    if not shown and not keeps and type(participation) is Uniform and participation.count < n:
        return Sampling("fixed", n, expected)
    if not shown and type(participation) is Bernoulli and participation.probability < 1:
        return Sampling("poisson", n, expected)
    return Sampling("all", n, n)


@dataclass(frozen=True)
class Spent:
    """What a private run has made: a run that goes on from it, under the same terms, goes on from there."""

    executions: tuple[int, ...]
    """How often each stage of a round was executed."""
    terms: Mapping[str, Any]
    """What an execution costs depends on these."""


class Spending:
    """The account of a run: ``executions`` say how often each stage was executed."""

    def __init__(self, privacy: ClientPrivacy, stages: tuple[Stage, ...], sampling: Sampling, expected: float):
        assert privacy.noise is not None
        noise = float(privacy.noise)
        self.epsilon_allowed = privacy.epsilon
        self._draws = draws_of(stages)
        self._stages = count_stages(stages)
        self._each = privacy.cost_of_exchange(expected, noise)
        self._ledger = Ledger(sampling, noise, privacy.delta)
        self._terms = {
            "noise": noise,
            "delta": privacy.delta,
            "a clip that adapts": privacy.adapts,
            "clients": sampling.n,
            "participants on average": expected,
            "sampling": sampling.kind,
            "exchanges of a round": tuple(sorted(self._draws.items())),
        }

    def spent(self, executions: Any) -> Spent:
        """So many executions, under the terms of this account."""
        return Spent(tuple(int(each) for each in executions), self._terms)

    def executions_of(self, spent: Spent) -> np.ndarray:
        """What was executed before, where it costs here what it cost there."""
        for name, mine in self._terms.items():
            if (theirs := spent.terms[name]) != mine:
                raise ValueError(
                    f"privacy: start was made with {name} = {theirs}, this run has {mine}, and what they spend does not "
                    "add up: go on with the algorithm, noise, delta, kind of clip, participation and engine of start"
                )
        return np.asarray(spent.executions, np.int64)

    @property
    def bound(self) -> str:
        """Which theorem the numbers rest on."""
        return self._ledger.bound

    def at_most(self, rounds: int) -> np.ndarray:
        """How often each stage is executed in so many rounds, if nothing is skipped."""
        executions = np.zeros(self._stages, np.int64)
        for draw, times in self._draws.items():
            for number, often in draw:
                executions[number] += times * often * rounds
        return executions

    def epsilon(self, executions: np.ndarray) -> float:
        """What was spent."""
        return self._ledger.epsilon(self._made(executions))

    def left(self, executions: np.ndarray) -> int | None:
        """How many more rounds can be made; None: as many as one likes."""
        if self.epsilon_allowed is None:
            return None
        return self._ledger.lasts(self._made(executions), self._made(self.at_most(1)), self.epsilon_allowed)

    def _made(self, executions: np.ndarray) -> dict[float, int]:
        """For each number of exchanges (in those of a fixed clip), how many draws there were with as many."""
        whole = self.at_most(1)
        found: Counter[float] = Counter()
        for draw, times in self._draws.items():
            counts: list[int] = []
            for number, often in draw:  # a stage of several draws: each has its share
                share = math.ceil(executions[number] * times / max(int(whole[number]), 1))
                counts += [share] * often
            for exchanges, draws in concentrated(counts).items():
                found[exchanges * self._each] += draws
        return dict(found)


def with_noise(
    privacy: ClientPrivacy, stages: tuple[Stage, ...], sampling: Sampling, expected: float, rounds: int | None
) -> ClientPrivacy:
    """The least noise that lasts for all rounds, where none is given."""
    if privacy.noise is not None:
        return privacy
    assert privacy.epsilon is not None
    if rounds is None:
        raise ValueError("privacy: noise must be given here, for nobody knows how many rounds it is to last")
    draws: Counter[float] = Counter()
    for draw, times in draws_of(stages).items():
        draws[sum(often for _, often in draw)] += times * rounds
    wanted = noise_for(sampling, draws, privacy.delta, privacy.epsilon)
    if privacy.adapts:  # 1/z² = 1/noise² + 1/(noise of the shares)²
        rest = 1 / wanted**2 - (SPREAD / (2 * expected)) ** 2
        if rest <= 0:
            raise ValueError(
                f"privacy: with {expected:g} participants on average rk.AdaptiveClip() alone spends more than "
                f"epsilon = {privacy.epsilon:g} in {rounds} rounds: give a fixed clip, more participants or fewer rounds"
            )
        wanted = 1 / math.sqrt(rest) * (1 + 1e-6)  # it becomes a float32
    return replace(privacy, noise=float(wanted))


def counted(activity: Any) -> np.ndarray:
    """How often each stage was executed, in the lane that made most."""
    executed = np.asarray(activity)[..., 0, 0]
    found: np.ndarray = executed.reshape(-1, executed.shape[-1]).max(0)
    return found


def account_of(run: Run) -> Spending | None:
    """The account of a run; None if it is not private."""
    setting = run.setting
    if setting.privacy is None:
        return None
    n, stages = setting.clients.n, setting.algorithm.round()
    first = run.lane(0)
    keeps = kept_by(first.setting.algorithm, first.x, first.y)
    sampling = sampling_of(setting.participation, n, run.shown, keeps)
    return Spending(setting.privacy, stages, sampling, setting.participation.expected(n))
