"""What a report says about a history: statistics over lanes, costs, names; and tables for the terminal."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from rich.table import Table
from rich.text import Text

from rookery.problem.oracles import UNITS
from rookery.solving.history import History

COSTS = {
    "round": "communication rounds",
    "exchanges": "exchanges",
    "megabytes": "megabytes communicated",
    "megabytes_up": "megabytes sent by clients",
    "megabytes_down": "megabytes sent by the server",
    "oracle_calls": "oracle calls",
    "grad_f": "gradients of f",
    "grad_g": "gradients of g",
    "hvp": "Hessian-vector products",
    "jvp": "Jacobian-vector products",
    "server_grad_f": "gradients of the server's f",
    "seconds": "seconds",
}
"""What a curve can be drawn against, with its label."""

PARTS: dict[str, tuple[tuple[str, ...], float]] = {
    "megabytes": (("bytes_down", "bytes_up"), 1e-6),
    "megabytes_up": (("bytes_up",), 1e-6),
    "megabytes_down": (("bytes_down",), 1e-6),
    "oracle_calls": (UNITS, 1.0),
}
"""Costs that are a sum of columns times a factor."""

_COUNTERS = {"round", "exchanges", "bytes_down", "bytes_up", *UNITS, "seconds"}
_FRACTIONS = {"accuracy", "auroc", "auc", "error"}
_HIGHER = {"accuracy", "auroc", "auc"}
_LOWER = {"loss", "error", "gap", "gradient", "norm", "objective", "residual"}


@dataclass(frozen=True)
class Summary:
    """A column over its lanes, one entry a row: of the ``count`` lanes that have a finite number and still run.

    ``deviation`` is the sample standard deviation, NaN where fewer than two lanes count.
    """

    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray


def lanes(history: History) -> int:
    """How many runs a history holds side by side."""
    row = history.last
    return int(np.size(row["exchanges"])) if "exchanges" in row else max(np.size(value) for value in row.values())


def column(history: History, name: str) -> np.ndarray:
    """A column as (rows, lanes) floats; NaN where a row does not have it."""
    shape = (lanes(history),)
    return np.stack([np.broadcast_to(np.asarray(row.get(name, np.nan), float), shape) for row in history])


def metrics(history: History) -> list[str]:
    """The columns that ``evaluate`` returned and that have one number for each lane."""
    if not len(history):
        return []
    width = lanes(history)

    def is_number(value: object) -> bool:
        array = np.asarray(value)
        return array.dtype.kind in "bifu" and array.shape in ((), (1,), (width,))

    return [
        name
        for name in history.columns
        if name not in _COUNTERS and all(is_number(row[name]) for row in history if name in row)
    ]


def stopped(history: History) -> np.ndarray:
    """(rows, lanes): True from where a lane stands still for good while another makes exchanges.

    The engine freezes a lane that diverged: its metrics stay those of its last good round, which is no result.
    """
    result = np.zeros((len(history), lanes(history)), bool)
    if "exchanges" in history.columns:
        moves = np.diff(column(history, "exchanges"), axis=0) > 0
        still = ~np.logical_or.accumulate(moves[::-1])[::-1]
        result[1:] = still & (still & moves.any(1, keepdims=True)).any(0)
    return result


def summarise(values: np.ndarray) -> Summary:
    """Statistics of (rows, lanes) over the lanes that are finite."""
    fine = np.isfinite(values)
    count = fine.sum(1)
    with np.errstate(all="ignore"):  # no lane, one lane, or squares that overflow: NaN or inf, as they should be
        mean = np.where(fine, values, 0.0).sum(1) / count
        squares = np.where(fine, (values - mean[:, None]) ** 2, 0.0).sum(1)
        deviation = np.sqrt(squares / (count - 1))
    deviation = np.where(count > 1, deviation, np.nan)
    low, high = np.where(fine, values, np.inf).min(1), np.where(fine, values, -np.inf).max(1)
    return Summary(mean, deviation, np.where(count, low, np.nan), np.where(count, high, np.nan), count)


def summary(history: History, metric: str) -> Summary:
    """A metric over the lanes that still run."""
    if metric not in metrics(history):
        raise ValueError(f"metric must be one of {', '.join(metrics(history)) or '(none)'}, got {metric!r}")
    return summarise(np.where(stopped(history), np.nan, column(history, metric)))


def has_cost(history: History, cost: str) -> bool:
    """Whether the history has the columns of a cost."""
    return set(PARTS.get(cost, ((cost,), 1.0))[0]) <= set(history.columns)


def spent(history: History, cost: str) -> np.ndarray:
    """A cost (see ``COSTS``) up to each row: the mean over the lanes that still run; seconds are those of all lanes."""
    if cost not in COSTS:
        raise ValueError(f"a cost must be one of {', '.join(COSTS)}, got {cost!r}")
    names, factor = PARTS.get(cost, ((cost,), 1.0))
    total = factor * sum(column(history, name) for name in names)
    return summarise(np.where(stopped(history), np.nan, total)).mean


def label(metric: str) -> str:
    """A metric's name for readers."""
    return "AUROC" if metric == "auroc" else metric.replace("_", " ")


def _words(metric: str) -> set[str]:
    return set(re.split(r"[\s_-]+", metric.lower()))


def is_fraction(metric: str, histories: Iterable[History]) -> bool:
    """Whether to show it in percent: an accuracy, AUROC or error whose finite values all lie in [0, 1]."""
    if not _words(metric) & _FRACTIONS:
        return False
    values = [column(history, metric) for history in histories if metric in metrics(history)]
    return all(((v >= 0) & (v <= 1))[np.isfinite(v)].all() for v in values)


def direction(metric: str) -> bool | None:
    """Whether higher is better, judging by its name; None if that is not clear."""
    words = _words(metric)
    return True if words & _HIGHER else False if words & _LOWER else None


def best(means: Iterable[float], higher_is_better: bool) -> float:
    """The best of the finite means (NaN if there is none)."""
    finite = [mean for mean in means if np.isfinite(mean)]
    return (max if higher_is_better else min)(finite, default=float("nan"))


def peaks(history: History, metric: str, higher_is_better: bool) -> tuple[np.ndarray, np.ndarray]:
    """(rounds, values) of each lane's best evaluation, the first of equals; NaN for a lane that has none or was stopped."""
    values = column(history, metric)
    values = np.where(np.isfinite(values) & ~stopped(history)[-1], values, np.nan)
    good = np.where(np.isnan(values), -np.inf, values if higher_is_better else -values)
    place = good.argmax(0)
    found = values[place, np.arange(values.shape[1])]
    return np.where(np.isnan(found), np.nan, column(history, "round")[place, 0]), found


def _best_text(history: History, metric: str, higher_is_better: bool, percent: bool) -> str:
    """A second line for the cell: a column of its own would not fit into 80."""
    rounds, values = peaks(history, metric, higher_is_better)
    fine = np.isfinite(values)
    if not (rounds[fine] < history.last["round"]).any():
        return ""
    first, last = rounds[fine].min(), rounds[fine].max()
    when = f"{first:.0f}" if first == last else f"{first:.0f}–{last:.0f}"
    return f"\nbest {_shown(values[fine].mean(), percent)}\n({when})"


def _shown(value: float, percent: bool) -> str:
    return f"{100 * value:.2f}" if percent else f"{value:.4g}"


def _final_text(final: Summary, all_lanes: int, percent: bool, is_best: bool) -> Text:
    mean, deviation, count = final.mean[-1], final.deviation[-1], final.count[-1]
    if not count:
        return Text("not finite", style="red")
    text = Text(_shown(mean, percent), style="bold" if is_best else "")
    if np.isfinite(deviation):
        text.append(f" ± {_shown(deviation, percent)}", style="not bold")
    if count < all_lanes:
        text.append(f" ({count} of {all_lanes})", style="not bold red")
    return text


class Judged(Protocol):
    """Something beside the runs that has metrics too: a simple rival, or a ceiling that does not compete."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def ceiling(self) -> bool:
        """Whether it knows what nobody knows."""

    def over(self, metric: str) -> Summary | None:
        """The metric over seeds, one row; None where there is none."""


def final_table(
    runs: Mapping[str, History],
    metric: str,
    title: str,
    higher_is_better: bool = True,
) -> Table:
    """The last row of each run: the metric over its lanes, and what it cost a lane. The best mean is bold.

    Lanes that are not finite or were stopped are left out of mean and deviation, and counted: "(2 of 3)". Where some lane
    was better at an earlier evaluation, a second line has the mean of each lane's best, and in which rounds those were.
    """
    percent = is_fraction(metric, runs.values())
    finals = {name: summary(history, metric) for name, history in runs.items()}
    top = best((float(final.mean[-1]) for final in finals.values()), higher_is_better)
    table = Table(title=Text(title))
    table.add_column("algorithm", no_wrap=True, min_width=9)
    for heading in (
        f"{label(metric)} %" if percent else label(metric),
        "rounds",
        "exchanges",
        "MB",
        "oracles",
        "seconds",
    ):
        lines = heading if len(heading) <= 12 else heading.replace(" ", "\n", 1)
        table.add_column(Text(lines), justify="right", no_wrap=True)
    shown = {"round": ".0f", "exchanges": ".0f", "megabytes": ",.1f", "oracle_calls": ",.0f", "seconds": ",.1f"}
    for name, history in runs.items():
        costs = [f"{spent(history, cost)[-1]:{form}}" for cost, form in shown.items()]
        final = finals[name]
        text = _final_text(final, lanes(history), percent, bool(final.mean[-1] == top))
        text.append(_best_text(history, metric, higher_is_better, percent), style="not bold dim")
        table.add_row(Text(name), text, *costs)
    return table


def rivals_table(
    runs: Mapping[str, History], metric: str, rivals: Sequence[Judged], higher_is_better: bool = True
) -> Table:
    """What the simple rivals of these runs reached; bold what is better than every run, if it is no ceiling."""
    percent = is_fraction(metric, runs.values())
    beside = [(rival, over) for rival in rivals if (over := rival.over(metric)) is not None]
    ends = [float(summary(history, metric).mean[-1]) for history in runs.values()]
    ends += [float(over.mean[-1]) for rival, over in beside if not rival.ceiling]
    top = best(ends, higher_is_better)
    table = Table()
    table.add_column("simple rivals", no_wrap=True)
    table.add_column(Text(f"{label(metric)} %" if percent else label(metric)), justify="right", no_wrap=True)
    for rival, over in beside:
        is_best = not rival.ceiling and bool(over.mean[-1] == top)
        name = Text(rival.name + (" (ceiling)" if rival.ceiling else ""))
        table.add_row(name, _final_text(over, int(over.count[-1]), percent, is_best))
    return table
