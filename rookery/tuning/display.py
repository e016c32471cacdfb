"""What a search is doing, on the terminal or in a notebook."""

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from rookery.solving.notebook import Live, in_notebook
from rookery.tuning.search import STAGES
from rookery.tuning.search import Progress as Step


class Display:
    """A bar for each algorithm: which stage, how many candidates are left, the best so far, the time left."""

    def __init__(self, names: Sequence[str], metric: str, higher: bool, progress: bool | None):
        console = Console(stderr=True)
        self._live = Live() if in_notebook() and progress is not False else None
        self._metric = metric
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.fields[what]}"),
            TimeRemainingColumn(),
            console=console,
            disable=self._live is not None or not (console.is_terminal if progress is None else progress),
            transient=True,
        )
        self._tasks = {name: self._bar.add_task(f"rates of {name}", total=1.0, what="", start=False) for name in names}

    def __enter__(self) -> "Display":
        self._bar.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.__exit__(kind, error, trace)
        if self._live is not None:
            self._live.close(remove=True)

    def show(self, name: str, step: Step) -> None:
        """After a batch of candidates."""
        task = self._tasks[name]
        self._bar.start_task(task)
        best = "" if step.best is None else f", best {self._metric} {step.best:.4g}"
        what = f"stage {step.stage + 1} of {len(STAGES)}, {step.left} candidates left{best}"
        self._bar.update(task, completed=min(1.0, step.done), what=what)
        if self._live is not None:
            self._live.show(f"rates of {name}", step.done, what)
