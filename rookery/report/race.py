"""Many methods against what they cost, in one figure."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rookery.report.figures import COLORS, GREY, STYLE, plain_number, pyplot


@dataclass(frozen=True)
class Race:
    """A curve against several costs: each cost and the mean, at the same points."""

    costs: Mapping[str, np.ndarray]
    mean: np.ndarray


def plot_race(
    rows: Mapping[str, Mapping[str, Race]],
    named: Sequence[str],
    costs: Sequence[tuple[str, str]],
    up: str,
    path: str | os.PathLike[str],
) -> None:
    """A row of panels for each setting and in it one for each cost, on a logarithmic scale.

    Arguments:
        rows: of each setting, the methods' curves.
        named: methods with a colour and a name, at most as many as there are colours; the others are grey.
        costs: what to draw against, with its label.
        up: label of the axes upwards.
        path: the file to write; its suffix chooses the format.
    """
    from matplotlib.ticker import FuncFormatter, NullFormatter

    if len(named) > len(COLORS):
        raise ValueError(f"named must hold at most {len(COLORS)} methods, got {len(named)}")
    plt = pyplot()
    with plt.rc_context(STYLE):
        size = (3.0 * len(costs), 2.4 * len(rows) + 0.5)
        figure, axes = plt.subplots(
            len(rows), len(costs), figsize=size, sharey="row", sharex="col", squeeze=False, layout="constrained"
        )
        for line, (setting, curves) in zip(axes, rows.items(), strict=True):
            order = sorted(curves, key=lambda name: name in named)  # what is named lies above
            for axis, (cost, across) in zip(line, costs, strict=True):
                for name in order:
                    where, mean = curves[name].costs[cost], curves[name].mean
                    drawn = (where > 0) & np.isfinite(mean)
                    color, width = (COLORS[named.index(name)], 1.4) if name in named else (GREY, 0.8)
                    axis.plot(where[drawn], mean[drawn], color=color, linewidth=width, label=name)
                    axis.plot(where[drawn][-1:], mean[drawn][-1:], "o", color=color, markersize=3)
                axis.set_xscale("log")
                axis.xaxis.set_major_formatter(FuncFormatter(plain_number))
                axis.xaxis.set_minor_formatter(NullFormatter())
                if axis in axes[-1]:
                    axis.set_xlabel(across)
            ends = [race.mean[np.isfinite(race.mean)][-1] for race in curves.values() if np.isfinite(race.mean).any()]
            line[0].set_ylabel(f"{setting}: {up}")
            if ends and max(ends) > min(ends):  # a method that learned little is not to flatten the others
                line[0].set_ylim(max(min(ends) - 5, max(ends) - 30), max(ends) + 1.5)
        lines = {name: each for axis in axes.flat for each, name in zip(*axis.get_legend_handles_labels(), strict=True)}
        others = [lines[name] for name in lines if name not in named][:1]
        shown = [name for name in named if name in lines]
        figure.legend(
            [*(lines[name] for name in shown), *others],
            [*shown, *(["all others"] if others else [])],
            loc="outside lower center",
            ncols=5,
        )
        figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.03)
        plt.close(figure)
