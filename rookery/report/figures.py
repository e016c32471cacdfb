"""Figures by Matplotlib, as a paper wants them.

Matplotlib is imported when the first figure is drawn: it takes a fifth of the time in which the command starts.
"""

import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes

from rookery.report.tables import COSTS, Judged, is_fraction, label, spent, summary
from rookery.solving.history import History

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#666666")
"""Colours that people with colour blindness can tell apart: Okabe and Ito, a dark grey for their yellow."""

GREY = "#B5BAC0"
"""Of what is not named, or not to stand out."""

DASHES: tuple[tuple[float, ...], ...] = ((), (6, 3), (2, 2), (8, 3, 2, 3))
"""After eight runs the colours come again, with the next pattern of dashes."""

STYLE: Any = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.5,
    "grid.alpha": 0.3,
    "pdf.fonttype": 42,  # TrueType: publishers refuse Type 3
    "ps.fonttype": 42,
    "svg.fonttype": "none",
}
"""Of all figures, for ``pyplot.rc_context``."""


def pyplot() -> Any:
    """Matplotlib's ``pyplot``, for files only, so that it works without a screen."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def line_style(number: int) -> tuple[str, tuple[float, ...]]:
    """Colour and dashes of the run with this number."""
    return COLORS[number % len(COLORS)], DASHES[number // len(COLORS) % len(DASHES)]


def plot_curves(
    runs: Mapping[str, History],
    metric: str,
    title: str,
    path: str | os.PathLike[str],
    against: Sequence[str] = ("round", "megabytes"),
    rivals: Sequence[Judged] = (),
) -> None:
    """The metric against each cost of ``against``: the mean over lanes, with a band of one standard deviation.

    The suffix of ``path`` chooses the format (.pdf, .png, ...). A panel has the width of a column of a paper. Lanes that
    are not finite or were stopped are left out.

    Arguments:
        runs: histories by name; all must have the metric.
        metric: a column of the histories; accuracy, AUROC and error are drawn in percent.
        title: above the panels; may be empty.
        path: the file to write.
        against: costs, see ``rookery.report.tables.COSTS``.
        rivals: simple methods; those that have the metric are dashed lines across the panels.
    """
    if not runs:
        raise ValueError("runs must hold at least one history")
    if not against:
        raise ValueError(f"against must name at least one of {', '.join(COSTS)}")
    percent = is_fraction(metric, runs.values())
    unit = 100.0 if percent else 1.0
    levels = {rival.name: float(over.mean[-1]) for rival in rivals if (over := rival.over(metric)) is not None}
    plt = pyplot()
    with plt.rc_context(STYLE):
        width = 3.4 * len(against)
        figure, axes = plt.subplots(
            1, len(against), figsize=(width, 2.75), sharey=True, squeeze=False, layout="constrained"
        )
        for axis, cost in zip(axes[0], against, strict=True):
            _draw(axis, runs, metric, cost, unit)
            _across(axis, levels, unit, len(runs))
            axis.set_xlabel(COSTS[cost])
        axes[0, 0].set_ylabel(f"{label(metric)} (%)" if percent else label(metric))
        _limit(axes[0, 0], runs, metric, percent, list(levels.values()))
        columns = max(1, min(len(runs) + len(levels), int(width / (1.9 if levels else 1.1))))
        handles, names = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=columns, handlelength=2.2, columnspacing=1.4)
        if title:
            figure.suptitle(title, fontsize=9)
        figure.savefig(path, dpi=300, bbox_inches="tight", pad_inches=0.03)
        plt.close(figure)


Curve = tuple[Sequence[float], np.ndarray, np.ndarray]
"""Where, the mean, and its standard deviation."""


def plot_panels(panels: Mapping[str, Mapping[str, Curve]], across: str, up: str, path: str | os.PathLike[str]) -> None:
    """A panel for each setting with a curve for each method, up to three side by side (of four, two).

    A method has the same colour in all panels. ``across`` and ``up`` are the labels of the axes.
    """
    names = list(dict.fromkeys(name for curves in panels.values() for name in curves))
    columns = 2 if len(panels) == 4 else min(3, len(panels))
    rows = -(-len(panels) // columns)
    plt = pyplot()
    with plt.rc_context(STYLE):
        size = (3.2 * columns, 2.3 * rows + 0.5)
        figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
        for axis in axes.flat[len(panels) :]:
            axis.set_axis_off()
        for axis, (title, curves) in zip(axes.flat, panels.items(), strict=False):
            axis.set_title(title)
            for name, (where, mean, deviation) in curves.items():
                _band(axis, names.index(name), name, (where, mean, deviation))
            axis.set_xlabel(across)
            axis.margins(x=0.02)
            ends = [mean[np.isfinite(mean)][-1] for _, mean, _ in curves.values() if np.isfinite(mean).any()]
            if up.endswith("(%)") and ends and min(ends) > 50:  # where the comparison is decided, not where all start
                axis.set_ylim(min(ends) - 10, min(100.0, axis.get_ylim()[1]))
        for row in axes:
            row[0].set_ylabel(up)
        handles = {
            name: each for axis in axes.flat for each, name in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        figure.legend(
            handles.values(), handles, loc="outside lower center", ncols=max(1, min(len(handles), int(size[0] / 1.5)))
        )
        figure.savefig(path, dpi=130, bbox_inches="tight", pad_inches=0.03)
        plt.close(figure)


@dataclass(frozen=True)
class Power:
    """Points (x, y), a power law y = floor + factor · x^power that was fitted, and the power that was claimed."""

    reached: Mapping[int, float]
    missed: Mapping[int, float]
    """Points of which only a lower bound is known."""
    fitted: Sequence[int]
    """The x of the fit."""
    floor: float
    factor: float
    power: float
    """NaN if nothing was fitted."""
    told: str
    """The power, with its interval."""
    claimed: float


def plot_powers(panels: Mapping[str, Power], across: str, up: str, path: str | os.PathLike[str]) -> None:
    """A panel for each method, on logarithmic scales: the points, what was fitted, the claimed power dashed."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    plt = pyplot()
    with plt.rc_context(STYLE):
        size = (2.6 * max(1, len(panels)), 2.8)
        figure, axes = plt.subplots(
            1, max(1, len(panels)), figsize=size, sharey=True, squeeze=False, layout="constrained"
        )
        for number, (axis, (title, each)) in enumerate(zip(axes[0], panels.items(), strict=False)):
            color, _ = line_style(number)
            axis.set_title(title)
            axis.plot(list(each.reached), list(each.reached.values()), "o", color=color, markersize=4)
            axis.plot(list(each.missed), list(each.missed.values()), "^", color=color, markersize=5, fillstyle="none")
            if np.isfinite(each.power):
                x = np.geomspace(min(each.fitted), max(each.fitted), 50)
                fitted = each.floor + each.factor * x**each.power
                axis.plot(x, fitted, color=color, linewidth=1.2, label=f"slope {each.told}")
                guide = each.floor + each.factor * x[0] ** each.power * (x / x[0]) ** each.claimed
                dashed = {"color": "#666666", "linestyle": (0, (4, 3)), "linewidth": 1}
                axis.plot(x, guide, **dashed, label=f"claimed: {each.claimed:g}")
                axis.legend(loc="lower left")
            axis.set_xscale("log", base=2)
            axis.set_yscale("log", base=2)
            for scale in (axis.xaxis, axis.yaxis):
                scale.set_major_formatter(FuncFormatter(plain_number))
                scale.set_minor_formatter(NullFormatter())
            axis.set_xlabel(across)
        axes[0, 0].set_ylabel(up)
        figure.savefig(path, dpi=130, bbox_inches="tight", pad_inches=0.03)
        plt.close(figure)


def plot_picture(
    path: str | os.PathLike[str],
    *,
    title: str,
    bars: Mapping[str, float],
    up: str = "accuracy (%)",
    highlight: str | None = None,
    samples: Sequence[tuple[np.ndarray, str]] = (),
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]] | None = None,
    beside: Mapping[str, float] | None = None,
    right: str = "",
    axes: tuple[str, str] = ("", ""),
) -> None:
    """One picture of why one would want this: on the left a bar for each method, on the right what was learned.

    Arguments:
        path: the file to write; its suffix chooses the format.
        title: above all; a sentence.
        bars: a value for each method, from top to bottom.
        up: what the bars measure.
        highlight: the bar that matters; the others are grey.
        samples: images (height, width[, colours]) of any numbers, each with a caption, in a grid.
        curves: or (x, y) for each name, such as ROC curves.
        beside: or a further bar for each name, such as clients and their weights.
        right: heading of the right panel.
        axes: labels of its axes, across and up; of ``beside`` only the first is used.
    """
    panels = [each for each in (samples, curves, beside) if each]
    if len(panels) != 1:
        raise ValueError(f"exactly one of samples, curves and beside must be given, got {len(panels)}")
    if not bars:
        raise ValueError("bars must hold at least one value, got none")
    if highlight is not None and highlight not in bars:
        raise ValueError(f"highlight must be one of {', '.join(bars)}, got {highlight!r}")
    plt = pyplot()
    with plt.rc_context(STYLE):
        height = max(3.5, 0.13 * max(len(bars), len(beside or ())))
        figure = plt.figure(figsize=(8.6, height), layout="constrained")
        figure.get_layout_engine().set(w_pad=0.12, wspace=0.06)
        figure.suptitle(title, fontsize=11, fontweight="bold")
        one, other = figure.subfigures(1, 2, width_ratios=(1, 1.15))
        _row_of_bars(one.subplots(), bars, up, highlight)
        other.suptitle(right, fontsize=9)
        if samples:
            _grid(other, samples)
        elif curves:
            _plain_curves(other.subplots(), curves, axes)
        elif beside:
            _row_of_bars(other.subplots(), beside, axes[0], None)
        figure.savefig(path, dpi=200, bbox_inches="tight", pad_inches=0.08)
        plt.close(figure)


def _row_of_bars(axis: "Axes", bars: Mapping[str, float], across: str, highlight: str | None) -> None:
    """Horizontal bars with their values at the end: names of any length can be read."""
    values = list(bars.values())
    colors = [COLORS[0] if highlight in (None, name) else GREY for name in bars]
    drawn = axis.barh(range(len(bars)), values, color=colors, height=0.68)
    many = len(bars) > 12
    names = [name if len(name) <= 18 else "\n".join(textwrap.wrap(name, 18)) for name in bars]
    axis.set_yticks(range(len(bars)), names, fontsize=6 if many else 8.5)
    axis.bar_label(drawn, [_short(value) for value in values], padding=3, fontsize=6 if many else 9)
    room = max(len(bars), 3.5) / 2  # two bars are not to fill the panel
    axis.set_ylim((len(bars) - 1) / 2 + room, (len(bars) - 1) / 2 - room)
    axis.margins(x=0.14)
    axis.set_xlabel(across)
    axis.grid(visible=False)
    axis.spines["left"].set_visible(min(values) < 0)
    axis.tick_params(axis="y", length=0)


def _short(value: float) -> str:
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def _grid(figure: Any, samples: Sequence[tuple[np.ndarray, str]]) -> None:
    columns = max(2, round((2 * len(samples)) ** 0.5)) if len(samples) > 3 else len(samples)
    rows = -(-len(samples) // columns)
    cells = np.atleast_1d(figure.subplots(rows, columns)).ravel()
    for cell in cells:
        cell.set_axis_off()
    for cell, (image, caption) in zip(cells, samples, strict=False):
        shown = np.asarray(image)
        shown = shown[..., 0] if shown.ndim == 3 and shown.shape[-1] == 1 else shown
        cell.imshow(shown, cmap="gray_r", interpolation="nearest")
        cell.set_title(caption, fontsize=7, pad=2)


def _plain_curves(
    axis: "Axes", curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], axes: tuple[str, str]
) -> None:
    for number, (name, (x, y)) in enumerate(curves.items()):
        color, dashes = line_style(number)
        axis.plot(x, y, color=color, linestyle=(0, dashes) if dashes else "-", linewidth=1.5, label=name)
    axis.set_xlabel(axes[0])
    axis.set_ylabel(axes[1])
    axis.legend(loc="best")


def _band(axis: "Axes", number: int, name: str, curve: Curve) -> None:
    where, mean, deviation = np.asarray(curve[0]), curve[1], np.nan_to_num(curve[2])
    color, dashes = line_style(number)
    pattern = (0, dashes) if dashes else "-"
    axis.plot(where, mean, color=color, linestyle=pattern, linewidth=1.2, label=name, marker="." * (len(mean) == 1))
    axis.fill_between(where, mean - deviation, mean + deviation, color=color, alpha=0.15, linewidth=0)


def _draw(axis: "Axes", runs: Mapping[str, History], metric: str, cost: str, unit: float) -> None:
    from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, NullFormatter

    totals = [spent(history, cost)[-1] for history in runs.values()]
    # Costs that differ by far are only comparable on a logarithmic scale; round 0 has cost 0 and falls out of it.
    logarithmic = cost != "round" and min(totals) > 0 and max(totals) > 5 * min(totals)
    for number, (name, history) in enumerate(runs.items()):
        where, over = spent(history, cost), summary(history, metric)
        shown = np.isfinite(over.mean) & ((where > 0) | (not logarithmic))
        _band(axis, number, name, (where[shown], unit * over.mean[shown], unit * over.deviation[shown]))
    if logarithmic:
        axis.set_xscale("log")
        low, high = axis.get_xlim()
        if high < 100 * low:  # few powers of ten: say also 2 and 5
            axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(FuncFormatter(plain_number) if max(totals) < 1e5 else EngFormatter(sep=""))
        axis.xaxis.set_minor_formatter(NullFormatter())
    elif max(totals) >= 1e4:
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    axis.margins(x=0.02)


def _across(axis: "Axes", levels: Mapping[str, float], unit: float, taken: int) -> None:
    """A dashed line for each rival; ``taken`` colours are the runs'."""
    for number, (name, level) in enumerate(levels.items(), taken):
        color, _ = line_style(number)
        axis.axhline(unit * level, color=color, linestyle=(0, (4, 3)), linewidth=1, label=name)


def plain_number(value: float, position: float) -> str:
    """For the ticks of an axis: as few digits as it takes."""
    return f"{value:g}"


def _limit(axis: "Axes", runs: Mapping[str, History], metric: str, percent: bool, levels: Sequence[float] = ()) -> None:
    """Scales the ordinate to where the comparison is decided, not to where all start."""
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    means = [over.mean[np.isfinite(over.mean)] for over in (summary(history, metric) for history in runs.values())]
    means = [mean for mean in means if mean.size]
    if not means:
        return
    everything = np.concatenate([*means, np.array(levels)])
    if percent:
        final = 100 * np.array([*(mean[-1] for mean in means), *levels])
        top = 100 * everything.max()
        if final.mean() > 50:  # an accuracy; an error falls and is shown from its start
            axis.set_ylim(max(0.0, 100 * everything.min() - 2, final.min() - 25), min(100.0, top + 2))
        else:
            axis.set_ylim(0.0, min(100.0, top + 2))
    elif everything.min() > 0 and everything.max() > 20 * everything.min():
        axis.set_yscale("log")
        if everything.max() < 1000 * everything.min():
            axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axis.yaxis.set_major_formatter(ScalarFormatter())
            axis.yaxis.set_minor_formatter(NullFormatter())
