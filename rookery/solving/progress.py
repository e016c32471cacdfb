"""The progress bar, and how many rounds are computed between its moves."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rookery.engines.base import Run
from rookery.processes import Group
from rookery.solving.notebook import Live, in_notebook


class Pace:
    """How many rounds to compute at a time, so that a call lasts about a second: the bar moves and Ctrl-C is heard.

    An engine with a ``stride`` of its own is asked for that many. Processes that make a run together must ask for the same
    number, so all go by the slowest clock.
    """

    def __init__(self, stride: int | None, group: Group | None = None) -> None:
        self.rounds = stride or 1  # it may take long
        self._fixed = stride is not None
        self._group = group

    def __enter__(self) -> None:
        self._clock = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._clock
        if self._group is not None and error[0] is None:
            self.seconds = max(self._group.exchange(self.seconds))
        if self._fixed:
            return
        if self.seconds < 0.3:
            self.rounds *= 8
        elif self.seconds > 3:
            self.rounds = max(1, self.rounds // 4)


@contextmanager
def progress_bar(
    run: Run, rounds: int, progress: bool | None
) -> Iterator[Callable[[int, float | None, dict[str, Any] | None], None]]:
    """A function that moves the bar: (rounds made, rounds a second, metrics). Shown on a terminal and in a notebook."""
    lanes = "" if run.lanes is None else f" ×{run.lanes}"
    name = type(run.setting.algorithm).__name__ + lanes
    progress = progress if run.is_first else False  # one bar for all
    if in_notebook() and progress is not False:
        with _line(name, rounds) as show:
            yield show
        return
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[metrics]}"),
        console=console,
        disable=not (console.is_terminal if progress is None else progress),
    )
    with bar:
        task = bar.add_task(name, total=rounds, speed="compiling", metrics="")

        def show(made: int, speed: float | None, metrics: dict[str, Any] | None) -> None:
            bar.update(task, advance=made, **_told(speed, metrics))

        yield show


@contextmanager
def _line(name: str, rounds: int) -> Iterator[Callable[[int, float | None, dict[str, Any] | None], None]]:
    """The same as one line of a notebook."""
    live, done, told = Live(), 0, {"speed": "compiling", "metrics": ""}

    def show(made: int, speed: float | None, metrics: dict[str, Any] | None) -> None:
        nonlocal done
        done += made
        told.update(_told(speed, metrics))
        live.show(name, done / rounds, f"{done}/{rounds}  {told['speed']}  {told['metrics']}")

    show(0, None, None)
    try:
        yield show
    finally:
        live.close()


def _told(speed: float | None, metrics: dict[str, Any] | None) -> dict[str, Any]:
    """What is new beside the bar."""
    told: dict[str, Any] = {}
    if speed is not None:
        told["speed"] = f"{speed:.3g} rounds/s"
    if metrics is not None:
        told["metrics"] = "  ".join(f"{name} {_mean(value):.4g}" for name, value in list(metrics.items())[:2])
    return told


def _mean(values: Any) -> float:
    """Over the lanes that go on; NaN if none does."""
    finite = np.asarray(values, float)[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")
