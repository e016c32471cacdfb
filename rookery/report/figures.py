"""Figures by Matplotlib."""

import os
from collections.abc import Mapping

import matplotlib

matplotlib.use("Agg")  # files only, so that it works without a screen

import matplotlib.pyplot as plt
import numpy as np

from rookery.history import History
from rookery.report.tables import megabytes

COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
"""Colours that people with colour blindness can tell apart (Okabe and Ito)."""


def plot_curves(runs: Mapping[str, History], metric: str, title: str, path: str | os.PathLike[str]) -> None:
    """The metric against rounds and against megabytes: the mean over lanes, with a band of one standard deviation."""
    with plt.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                         "grid.alpha": 0.25, "legend.frameon": False}):  # fmt: skip
        figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
        for number, (name, history) in enumerate(runs.items()):
            values = 100 * history[metric].reshape(len(history), -1)
            mean, deviation = values.mean(1), values.std(1)
            sent = megabytes(history).reshape(len(history), -1).mean(1)
            color = COLORS[number % len(COLORS)]
            for axis, where in zip(axes, (history["round"], sent), strict=True):
                axis.plot(where, mean, color=color, label=name, linewidth=1.6)
                axis.fill_between(where, mean - deviation, mean + deviation, color=color, alpha=0.15, linewidth=0)
        final = np.concatenate([100 * np.atleast_1d(history[metric][-1]) for history in runs.values()])
        axes[0].set(xlabel="communication rounds", ylabel=f"test {metric} (%)")
        axes[1].set(xlabel="megabytes communicated", xscale="log")
        axes[0].set_ylim(max(0, final.min() - 25), min(100, final.max() + 2))
        axes[0].legend(loc="lower right")
        figure.suptitle(title)
        figure.savefig(path, dpi=160)
        plt.close(figure)
