"""Tables for the terminal."""

from collections.abc import Mapping

import numpy as np
from rich.table import Table

from rookery.history import History
from rookery.oracles import UNITS


def mean_and_deviation(values: np.ndarray) -> tuple[float, float]:
    """Mean and sample standard deviation over runs (0 for a single one)."""
    values = np.atleast_1d(values)
    return float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else 0.0


def oracle_calls(history: History) -> np.ndarray:
    """All oracle calls of all clients and the server, one column."""
    return np.sum([history[unit] for unit in UNITS], axis=0)


def megabytes(history: History) -> np.ndarray:
    """Megabytes communicated, both ways."""
    return (history["bytes_up"] + history["bytes_down"]) / 1e6


def final_table(runs: Mapping[str, History], metric: str, title: str) -> Table:
    """The last row of each run: the metric over its lanes, and what it cost a lane. The best mean is marked."""
    table = Table(title=title)
    table.add_column("algorithm")
    for column in (f"{metric} %", "rounds", "exchanges", "MB", "oracles", "seconds"):
        table.add_column(column, justify="right", no_wrap=True)
    best = max(mean_and_deviation(history[metric][-1])[0] for history in runs.values())
    for name, history in runs.items():
        mean, deviation = mean_and_deviation(history[metric][-1])
        style = "bold" if mean == best else ""
        table.add_row(
            name,
            f"[{style}]{100 * mean:.2f}[/] ± {100 * deviation:.2f}"
            if style
            else f"{100 * mean:.2f} ± {100 * deviation:.2f}",
            f"{history['round'][-1]}",
            f"{np.mean(history['exchanges'][-1]):.0f}",
            f"{np.mean(megabytes(history)[-1]):.1f}",
            f"{np.mean(oracle_calls(history)[-1]):,.0f}",
            f"{history['seconds'][-1]:.1f}",
        )
    return table
