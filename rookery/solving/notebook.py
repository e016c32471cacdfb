"""What a notebook shows: small tables and curves as HTML, and lines that stay in their place.

All text is escaped. Colours are the page's own, so that light and dark notebooks can both be read.
"""

import html
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

_SECONDS = 0.2
"""Least time between two changes of a line: a browser need not see each."""
_CELL = "text-align:right;padding:2px 10px"


def in_notebook() -> bool:
    """Whether this is a Jupyter kernel; IPython on a terminal is none."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


def number(value: Any) -> str:
    """A number as a table shows it."""
    return f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else f"{float(value):.4g}"


def short(value: Any) -> str:
    """A rate or option as a table shows it."""
    if isinstance(value, Mapping):
        inside = ", ".join(f"{name} {short(each)}" for name, each in value.items() if name != "schedule")
        return f"{value.get('schedule', '')}({inside})"
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def table(head: Sequence[str], rows: Iterable[Sequence[str]], bold: int | None = None) -> str:
    """A table of texts; the row with the number ``bold`` stands out."""
    titles = "".join(f'<th style="{_CELL}">{html.escape(each)}</th>' for each in head)
    lines = []
    for place, row in enumerate(rows):
        weight = ";font-weight:bold" * (place == bold)
        cells = "".join(f'<td style="{_CELL}{weight}">{html.escape(each)}</td>' for each in row)
        lines.append(f"<tr>{cells}</tr>")
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def paragraph(text: str) -> str:
    """A line of text."""
    return f'<div style="padding:2px 0">{html.escape(text)}</div>'


def curves(name: str, rounds: np.ndarray, values: np.ndarray) -> str:
    """A small picture of (rows, lanes) against rounds: thin lines, and their mean; nothing if no two numbers are finite."""
    wide, high = 220, 60
    mean = lane_mean(values)
    fine = np.isfinite(values)
    if np.isfinite(mean).sum() < 2 or np.ptp(rounds) == 0:
        return ""
    low, top = float(values[fine].min()), float(values[fine].max())
    x = wide * (rounds - rounds.min()) / np.ptp(rounds)
    lines = [(values[:, lane], 0.35, 1.0) for lane in range(values.shape[1]) if values.shape[1] > 1]
    drawn = []
    for line, opacity, width in [*lines, (mean, 1.0, 1.8)]:
        y = high * (1 - (line - low) / ((top - low) or 1.0))
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True) if np.isfinite(b))
        style = f'fill="none" stroke="currentColor" stroke-opacity="{opacity}" stroke-width="{width}"'
        drawn.append(f'<polyline points="{points}" {style}/>')
    title = html.escape(f"{name}: {number(low)} to {number(top)}")
    box = f'width="{wide}" height="{high + 4}" viewBox="-2 -2 {wide + 4} {high + 4}"'
    picture = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {box}><title>{title}</title>{"".join(drawn)}</svg>'
    return f'<div style="display:inline-block;margin:4px 16px 4px 0">{picture}<br><small>{title}</small></div>'


def lane_mean(values: np.ndarray) -> np.ndarray:
    """Of (rows, lanes): the mean of what is finite in each row; NaN where nothing is."""
    fine = np.isfinite(values)
    total = np.where(fine, values, 0.0).sum(1)
    return np.where(fine.any(1), total / np.maximum(fine.sum(1), 1), np.nan)


class Live:
    """Lines with bars that a notebook shows in one place, however often they change."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[float, str]] = {}
        self._handle: Any = None
        self._shown = 0.0

    def show(self, name: str, done: float, text: str) -> None:
        """Sets a line: its bar from 0 to 1, and what stands beside it."""
        self._lines[name] = done, text
        if time.monotonic() - self._shown >= _SECONDS:
            self._draw(self._lines)

    def close(self, remove: bool = False) -> None:
        """Draws the last state, or nothing any more."""
        self._draw({} if remove else self._lines)

    def _draw(self, lines: dict[str, tuple[float, str]]) -> None:
        display = sys.modules["IPython"].display.display  # in_notebook() has found it
        told = "".join(
            f'<div style="font-family:monospace">{html.escape(name)} '
            f'<progress max="1" value="{min(1.0, done):.3f}"></progress> {html.escape(text)}</div>'
            for name, (done, text) in lines.items()
        )
        plain = "\n".join(f"{name} {done:.0%} {text}" for name, (done, text) in lines.items())
        content = {"text/html": told, "text/plain": plain}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)
        self._shown = time.monotonic()
