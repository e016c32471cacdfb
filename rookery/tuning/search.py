"""Successive halving over lanes: many candidates for a few rounds, the best of them for more, a few to the end.

    stage   rounds      who
    0       R/20        candidates spread evenly over the space
    1       R/5         the best of them, and new ones near the best
    2       R/2         the same once more
    3       R           the best of those; then the winner with longer and shorter steps of x, or with other keys
                        where anything is random

Every stage has a share of the budget. A candidate that diverges has spent only the rounds that it made, and another takes
its place. New candidates near the best may leave the ranges where the search began (steps of x always may), so the
space grows in the direction in which the best lies. With ``growth`` a search that ends at an edge of what it tried goes
on beyond it, for at most so many runs more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rookery.tuning.space import Place, Space
from rookery.tuning.trials import Program, Trial

STAGES = ((1 / 20, 0.20, 0.0), (1 / 5, 0.18, 0.14), (1 / 2, 0.14, 0.10), (1.0, 0.12, 0.0))
"""(part of the rounds, share of the budget for those that go on, share for new ones near the best)."""
LEAST = 3.0
"""Below so many runs' worth nothing can be found out."""


@dataclass(frozen=True)
class Progress:
    """What a search is doing, for whoever shows it."""

    stage: int
    left: int
    """Candidates that are still in it."""
    best: float | None
    done: float
    """The part of the budget that is spent."""


class Search:
    """The search for the rates of one algorithm."""

    def __init__(
        self,
        space: Space,
        program: Program,
        rounds: int,
        runs: float,
        *,
        higher: bool,
        random: bool,
        seed: Sequence[int],
        growth: float = 0.0,
        start: float | None = None,
        show: Callable[[Progress], None] = lambda progress: None,
    ):
        self.space, self.program, self.rounds, self.runs = space, program, rounds, runs
        self.sign = -1.0 if higher else 1.0
        self.random = random
        self.growth = growth
        self.start = start
        self.seed = list(seed)
        self.rng = np.random.default_rng([*seed, 1])
        self.show = show
        self.trials: list[Trial] = []

    def cost(self, trial: Trial) -> float:
        """A key by which the best comes first; what diverged comes last."""
        return self.sign * trial.score if trial.alive else float("inf")

    def lasts(self, trial: Trial) -> bool:
        """Whether it is alive and not worse than the start, where the score there is known."""
        return trial.alive and (self.start is None or self.cost(trial) <= self.sign * self.start)

    def spent(self) -> float:
        """Runs' worth of rounds so far."""
        return sum(each.spent.get("rounds", 0) for each in self.trials) / self.rounds

    def best(self, trials: Sequence[Trial] | None = None) -> Trial | None:
        """The best that is alive."""
        alive = [each for each in (self.trials if trials is None else trials) if each.alive]
        return min(alive, key=self.cost, default=None)

    def new(self, place: Place, stage: int, key: int = 0) -> Trial:
        """A new trial."""
        made = Trial(len(self.trials), place, self.space.algorithm(place), key, stage=stage)
        self.trials.append(made)
        return made

    def advance(self, trials: Sequence[Trial], to: int, stage: int) -> list[Trial]:
        """Brings trials to a round; those that diverge stay behind."""
        width = self.program.width
        for first in range(0, len(trials), width):
            part = trials[first : first + width]
            for each in part:
                each.stage = stage
            self.program.advance(part, to)
            here = [each for each in self.trials if each.rounds == to]
            best = self.best(here)
            left = sum(each.alive for each in self.trials if each.stage == stage)
            self.show(Progress(stage, left, None if best is None else best.score, self.spent() / self.runs))
        return [each for each in trials if each.alive]

    def run(self) -> Trial | None:
        """All stages; the winner, or None if everything diverged."""
        pool = self._first()
        for stage in range(1, len(STAGES)):
            pool = self._promote(pool, stage) or pool
        winner = self._choose(pool)
        return None if winner is None else self._grow(winner)

    def _grow(self, best: Trial) -> Trial:
        """Further out, as long as the best lies at an edge of all that was tried and there is growth left to spend."""
        left = self.growth
        while left >= 1:
            tried = [each.place for each in self.trials]
            places = self.space.beyond(best.place, tried)[: int(left)]
            if not places:
                break
            trials = [self.new(place, 3) for place in places]
            self.advance(trials, self.rounds, 3)
            left -= len(trials)
            best = min([best, *trials], key=self.cost)
        return best

    def _rounds(self, stage: int) -> int:
        return max(1, min(self.rounds, round(STAGES[stage][0] * self.rounds)))

    def _first(self) -> list[Trial]:
        """Candidates all over the space, until the stage's share is spent.

        Where steps of x above some length nearly all diverge, the rest of them are drawn from below it, and further down.
        """
        to, limit = self._rounds(0), STAGES[0][1] * self.runs * self.rounds
        most = max(self.program.width, int(2 * limit / to))  # diverged ones cost little, but there is an end
        space, alive = self.space, list[Trial]()
        used = 0.0
        while used + to <= limit and len(self.trials) < most:
            count = min(self.program.width, most - len(self.trials), max(1, int((limit - used) / to)))
            places = space.spread(len(self.trials) + count, np.random.default_rng(self.seed))[len(self.trials) :]
            alive += self.advance([self.new(place, 0) for place in places], to, 0)
            space = self.space.below(self._ceiling())
            used = float(sum(each.spent.get("rounds", 0) for each in self.trials))
        return alive

    def _ceiling(self) -> float:
        """The least x above which nearly everything diverged; infinite if there is none."""
        knob = self.space.free
        tried = sorted((each.place[knob.name], each.diverged) for each in self.trials) if knob is not None else []
        best = float("inf")
        for number in range(len(tried)):
            above = [diverged for _, diverged in tried[number:]]
            if len(above) >= 4 and sum(above) >= 0.8 * len(above):
                best = tried[number][0]
                break
        return best

    def _promote(self, pool: list[Trial], stage: int) -> list[Trial]:
        """Those of a pool that go on to a stage, and new ones near the best of them.

        They go on in the order of their scores, but not too many with steps of x alike: after few rounds the longest steps
        look best, and only more rounds show which of them last. Where one diverges, the next takes its place, and where all
        that went on are worse than the start, further ones go on.
        """
        to, (_, share, fresh) = self._rounds(stage), STAGES[stage]
        queue = self._ordered(pool, stage)
        here: list[Trial] = [each for each in queue if each.rounds >= to]  # so short a run that stages coincide
        queue = [each for each in queue if each.rounds < to]
        limit, before = share * self.runs * self.rounds, self.spent()
        while queue:
            left = limit - (self.spent() - before) * self.rounds
            step = to - queue[0].rounds
            count = min(self.program.width, int(left / step))
            if count < 1 and (any(map(self.lasts, here)) or self.spent() > 1.1 * self.runs):
                break
            part, queue = queue[: max(1, count)], queue[max(1, count) :]
            here += self.advance(part, to, stage)
        parents = sorted(here, key=self.cost)[: 1 + len(here) // 2]
        return here + self._children(parents, int(fresh * self.runs * self.rounds / to), to, stage)

    def _ordered(self, pool: Sequence[Trial], stage: int) -> list[Trial]:
        """By score, at most a few of a bin of half a decade of x before the others of that bin."""
        alike = (2, 2, 2, 1)[stage]
        seen: dict[int, int] = {}
        keyed = []
        for each in sorted(pool, key=self.cost):
            x = next((each.place[knob.name] for knob in self.space.knobs if knob.scale == "free"), 0.0)
            bin = int(np.floor(2 * x))
            seen[bin] = seen.get(bin, 0) + 1
            keyed.append(((seen[bin] - 1) // alike, self.cost(each), each.number, each))
        return [each for *_, each in sorted(keyed, key=lambda k: k[:3])]

    def _children(self, parents: Sequence[Trial], count: int, to: int, stage: int) -> list[Trial]:
        """New candidates near the best, nearer in later stages."""
        if not parents or count < 1:
            return []
        width = 0.12 / stage
        places = [self.space.near(parents[k % len(parents)].place, width, self.rng) for k in range(count)]
        return self.advance([self.new(place, stage) for place in places], to, stage)

    def _choose(self, alive: Sequence[Trial]) -> Trial | None:
        """The winner: longer and shorter steps of the best, or other keys for the best two, with what is left."""
        alive = sorted((each for each in alive if each.rounds == self.rounds), key=self.cost)
        if not alive or not self.lasts(alive[0]):
            return self._rescue(alive)
        left = int(self.runs - self.spent())
        if left < 1:
            return alive[0]
        if not self.random or len(self.program.keys) == 1:
            return self._climb(alive[0], left)
        rivals = alive[:2]
        keys = min(len(self.program.keys), 1 + max(1, left // len(rivals)))
        again = [(each, key) for key in range(1, keys) for each in rivals][:left]
        self.advance([self.new(each.place, 3, key) for each, key in again], self.rounds, 3)
        best = min(rivals, key=self._mean)
        shorter = 0
        while self.start is not None and self._mean(best) > self.sign * self.start and shorter < 3:
            shorter += 1
            best = self._shorter(best, 0.5 * shorter)  # what was good with one key was luck
        return best

    def _mean(self, trial: Trial) -> float:
        """The mean cost of a trial's rates over the keys that they were tried with to the end."""
        same = [each for each in self.trials if each.place is trial.place and each.stage == 3]
        return float(np.mean([self.cost(each) for each in same] or [self.cost(trial)]))

    def _shorter(self, trial: Trial, decades: float) -> Trial:
        """The same with shorter steps of x, tried with two keys; or the trial itself if that is no better."""
        knob = self.space.free
        if knob is None:
            return trial
        place = {**trial.place, knob.name: trial.place[knob.name] - decades}
        made = [self.new(place, 3, key) for key in range(2)]
        self.advance(made, self.rounds, 3)
        return min(trial, made[0], key=self._mean)

    def _climb(self, best: Trial, left: int) -> Trial:
        """Longer steps of x as long as they are better, else shorter ones."""
        knob, step, turned = self.space.free, 0.3, False
        while left >= 1 and knob is not None:
            trial = self.new({**best.place, knob.name: best.place[knob.name] + step}, 3)
            self.advance([trial], self.rounds, 3)
            left -= 1
            if self.cost(trial) < self.cost(best):
                best, turned = trial, True
            elif not turned:
                step, turned = -step, True
            else:
                break
        return best

    def _rescue(self, alive: Sequence[Trial]) -> Trial | None:
        """Nothing lasted to the end: shorter and shorter steps from the best that was seen on the way."""
        ever = alive or sorted((t for t in self.trials if t.rounds), key=lambda each: (-each.rounds, each.number))
        if not ever:
            return None
        place, tried = ever[0].place, list(alive)
        for shorter in range(1, 7):
            below = {
                k.name: place[k.name] - shorter * (0.75 if k.scale == "free" else 0.2) * k.grows
                for k in self.space.knobs
            }
            tried.append(self.new(below, 3))
            if any(map(self.lasts, self.advance(tried[-1:], self.rounds, 3))):
                return tried[-1]
        return self.best(tried)
