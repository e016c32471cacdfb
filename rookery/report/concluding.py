"""The conclusion of a report: one paragraph, made from the numbers, that somebody understands who knows no algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rookery.experiment.folder import StoredRun
from rookery.report.describing import distinct_names
from rookery.report.rivals import Rival
from rookery.report.tables import Summary, is_fraction, label, lanes, metrics, spent, stopped, summary
from rookery.tasks import RECIPES, Recipe


@dataclass(frozen=True)
class _Judged:
    """A run or a rival at its end: the mean over seeds, their deviation (NaN for one seed)."""

    name: str
    mean: float
    spread: float
    seeds: int
    run: StoredRun | None = None


@dataclass(frozen=True)
class _Scale:
    """How values of the metric are compared and told."""

    name: str
    percent: bool
    higher: bool

    def value(self, each: _Judged, spread: bool = True) -> str:
        unit, digits = (100.0, ".1f") if self.percent else (1.0, ".4g")
        told = f"{unit * each.mean:{digits}}"
        if spread and np.isfinite(each.spread):
            told += f" ± {unit * each.spread:{'.1f' if self.percent else '.2g'}}"
        return told + " %" * self.percent

    def gap(self, one: _Judged, other: _Judged) -> str:
        """How far apart two are, without a sign."""
        size = abs(one.mean - other.mean)
        if self.percent:
            return f"{100 * size:.1f} points" if round(100 * size, 1) != 1 else "1.0 point"
        part = f" ({100 * size / abs(other.mean):.0f} %)" if other.mean and size < 10 * abs(other.mean) else ""
        return f"{size:.3g}{part}"

    def lead(self, one: _Judged, other: _Judged) -> float:
        """By how much ``one`` is better."""
        return (one.mean - other.mean) * (1 if self.higher else -1)

    def alike(self, one: _Judged, other: _Judged) -> bool:
        """Whether they differ by no more than the seeds of either do, or than can be told here."""
        least = 0.0005 if self.percent else 1e-6 * max(abs(one.mean), abs(other.mean))
        spreads = [each.spread for each in (one, other) if np.isfinite(each.spread)]
        return abs(one.mean - other.mean) <= max([least, *spreads])


def recipe_of(run: StoredRun) -> Recipe | None:
    """The recipe of a run's task; None for a problem of one's own."""
    return None if "source" in run.config else RECIPES.get(str(run.config["run"].get("task", "")))


def conclusion(runs: Sequence[StoredRun], rivals: Sequence[Rival] = (), names: Sequence[str] | None = None) -> str:
    """What was asked, who won by how much, against what simple methods reach, and at what cost; in one paragraph.

    The difference between two is told as none where it is within the spread over seeds, the larger of their standard
    deviations.

    Arguments:
        runs: of one task and data set; at least one.
        rivals: simple methods for the same task.
        names: what to call the runs; by default their algorithms, told apart.
    """
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    names = distinct_names(runs) if names is None else names
    metric = next((run.metric for run in runs if len(run.history) or "metric" in run.config["run"]), "")
    histories = [run.history for run in runs]
    scale = _Scale(metric, is_fraction(metric, histories), next(run.higher_is_better for run in runs))
    found = [_judge(run, name, metric) for run, name in zip(runs, names, strict=True)]
    ranked = sorted((each for each in found if each), key=lambda each: -each.mean if scale.higher else each.mean)
    parts = [_asked(runs[0], metric)]
    if ranked:
        parts += [_won(ranked, scale), *_beside(ranked[0], rivals, scale), _cost(ranked, scale)]
    else:
        parts.append("No run has a result yet.")
    parts += [_trouble(run, name, metric) for run, name in zip(runs, names, strict=True)]
    return " ".join(part for part in parts if part)


def _judge(run: StoredRun, name: str, metric: str) -> _Judged | None:
    if metric not in metrics(run.history):
        return None
    over = summary(run.history, metric)
    return _of(name, over, run) if over.count[-1] else None


def _of(name: str, over: Summary, run: StoredRun | None = None) -> _Judged:
    return _Judged(name, float(over.mean[-1]), float(over.deviation[-1]), int(over.count[-1]), run)


def _asked(run: StoredRun, metric: str) -> str:
    recipe = recipe_of(run)
    if recipe is not None and recipe.question:
        return recipe.question
    dataset = str(run.config["run"].get("dataset", ""))
    title = run.title[:1].upper() + run.title[1:] or "A problem"
    return f"{title}{f' on {dataset}' if dataset else ''}" + (f", judged by {label(metric)}." if metric else ".")


def _won(ranked: Sequence[_Judged], scale: _Scale) -> str:
    best = ranked[0]
    noun = label(scale.name)
    reached = f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun} of {scale.value(best)}"
    if len(ranked) == 1:
        return f"{best.name} reaches {reached}."
    close = [each for each in ranked[1:] if scale.alike(best, each)]
    if close:
        tied = [f"{each.name} ({scale.value(each)})" for each in (best, *close[:2])]
        tied += [f"{len(close) - 2} more"] if len(close) > 2 else []
        why = "by less than their spread over seeds" if best.seeds > 1 else "by nothing that one seed could show"
        return f"No clear winner by {noun}: {_and(tied)} differ {why}."
    luck = ", with one seed each, so that a small difference may be luck" if best.seeds == 1 else ""
    others = f", the next best of {len(ranked)}" if len(ranked) > 2 else ""
    return f"{best.name} wins with {reached}, {scale.gap(best, ranked[1])} ahead of {ranked[1].name}{others}{luck}."


def _beside(best: _Judged, rivals: Sequence[Rival], scale: _Scale) -> list[str]:
    """Against the best simple rival, and how far from the ceiling."""
    judged = [(each, _of(each.name, over)) for each in rivals if (over := each.over(scale.name)) is not None]
    simple = sorted(
        (one for rival, one in judged if not rival.ceiling), key=lambda one: -one.mean if scale.higher else one.mean
    )
    parts = []
    if simple:
        parts.append(_against(best, simple[0], scale))
    for ceiling in [one for rival, one in judged if rival.ceiling][:1]:
        told = f"{ceiling.name}, {scale.value(ceiling, False)}"
        if scale.alike(best, ceiling) or scale.lead(best, ceiling) > 0:
            parts.append(f"That is as good as the ceiling ({told}).")
        else:
            parts.append(f"The ceiling ({told}) is {scale.gap(best, ceiling)} away.")
    return parts


def _against(best: _Judged, rival: _Judged, scale: _Scale) -> str:
    if scale.alike(best, rival):
        return f"But {rival.name}, a simple rival, did as well ({scale.value(rival)}): nesting does not pay here."
    if scale.lead(best, rival) < 0:
        return (
            f"But {rival.name}, a simple rival, did better, by {scale.gap(best, rival)} ({scale.value(rival)}): "
            "nesting does not pay here."
        )
    return f"The best simple rival, {rival.name}, reaches {scale.value(rival)}: nesting gains {scale.gap(best, rival)}."


def _cost(ranked: Sequence[_Judged], scale: _Scale) -> str:
    """What the best took; and of equals, who sends the least."""
    best = ranked[0]
    assert best.run is not None
    history = best.run.history
    rounds, megabytes, seconds = (float(spent(history, cost)[-1]) for cost in ("round", "megabytes", "seconds"))
    size = _megabytes(megabytes)
    if lanes(history) > 1:
        told = f"{best.name} took {rounds:,.0f} rounds and {size} of messages a seed, and {_seconds(seconds)} for all seeds."
    else:
        told = f"{best.name} took {rounds:,.0f} rounds, {size} of messages and {_seconds(seconds)}."
    equals = [(each, _sent(each)) for each in ranked if scale.alike(best, each)]
    cheapest, least = min(equals, key=lambda each: each[1])
    if len(equals) > 1 and least < 0.9 * megabytes:
        told += f" Of those that are as good, {cheapest.name} sends the least ({_megabytes(least)})."
    return told


def _sent(each: _Judged) -> float:
    assert each.run is not None
    return float(spent(each.run.history, "megabytes")[-1])


def _megabytes(amount: float) -> str:
    return f"{amount:,.0f} MB" if amount >= 100 else f"{amount:.3g} MB"


def _seconds(amount: float) -> str:
    return f"{amount / 60:,.0f} minutes" if amount >= 300 else f"{amount:.3g} s"


def _trouble(run: StoredRun, name: str, metric: str) -> str:
    """What is not as it should be with a run."""
    history = run.history
    if not len(history):
        return f"{name} has not been evaluated yet."
    width = lanes(history)
    lost = stopped(history)[-1]
    if metric in metrics(history):
        over = summary(history, metric)
        gone = width - int(over.count[-1])
    else:
        gone = int(lost.sum())
    told = []
    if gone:
        which = "" if width == 1 else " in all seeds" if gone == width else f" in {gone} of {width} seeds"
        told.append(f"{name} diverged{which}" + (", which do not count." if 0 < gone < width else "."))
    made, planned = int(np.max(history.last["round"])), run.config["run"].get("rounds")
    if isinstance(planned, int) and made < planned and gone < width:
        told.append(f"{name} is unfinished: {made:,} of {planned:,} rounds.")
    return " ".join(told)


def _and(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
