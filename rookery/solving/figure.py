"""The curves of a history as a Matplotlib figure, without ``pyplot``: nobody's backend or current figure changes."""

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rookery.solving.notebook import lane_mean

_COLOR = "#0072B2"
_COLUMNS = 3


class Curves(Figure):
    """A figure that notebooks show as it is, whether or not ``pyplot`` is in use."""

    def _repr_png_(self) -> bytes:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=110, facecolor="white")  # readable in a dark notebook too
        return picture.getvalue()


def draw_curves(rounds: np.ndarray, columns: dict[str, np.ndarray]) -> Curves:
    """A panel for each column of (rows, lanes), against rounds: lanes as thin lines, and their mean."""
    wide = min(_COLUMNS, len(columns))
    high = -(-len(columns) // wide)
    figure = Curves(figsize=(3.4 * wide + 0.6 * (wide == 1), 2.6 * high), layout="constrained")
    panels = figure.subplots(high, wide, squeeze=False).ravel()
    for panel, (name, values) in zip(panels, columns.items(), strict=False):
        _panel(panel, name, rounds, np.where(np.isfinite(values), values, np.nan))
    for panel in panels[len(columns) :]:
        panel.remove()
    return figure


def _panel(panel: Axes, name: str, rounds: np.ndarray, values: np.ndarray) -> None:
    if values.shape[1] > 1:
        panel.plot(rounds, values, color=_COLOR, linewidth=0.7, alpha=0.4)
    panel.plot(rounds, lane_mean(values), color=_COLOR, linewidth=1.6, marker="." * (len(rounds) == 1))
    panel.set_title(name, fontsize=10, parse_math=False)  # a name with $ in it is no formula
    panel.set_xlabel("round")
    panel.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    panel.grid(alpha=0.3, linewidth=0.5)
    panel.spines[["top", "right"]].set_visible(False)
