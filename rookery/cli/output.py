"""What commands leave behind: folders of runs, tables on the terminal, JSON, reports."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console
from rich.text import Text

from rookery.experiment.folder import StoredRun, read_run
from rookery.experiment.settings import Settings
from rookery.experiment.source import OfModule
from rookery.processes import is_first
from rookery.report import conclusion, final_table, find_rivals, plot_curves, rivals_table, write_page
from rookery.report.tables import peaks
from rookery.solving.history import History
from rookery.solving.solution import Solution


def new_folder(settings: Settings, *words: str) -> Path:
    """The first of runs/TASK-WORDS-1, runs/TASK-WORDS-2, … that does not exist."""
    name = "-".join([settings.source.title.replace(":", "-"), *words])
    number = 1
    while (Path("runs") / f"{name}-{number}").exists():
        number += 1
    return Path("runs") / f"{name}-{number}"


def finish(folder: Path, work: Callable[[], Solution], as_json: bool) -> None:
    """Does the work of a run and shows its last row. Exit status 1 if every seed diverged."""
    solution = work()
    causes = [str(solution.why(each.lane)) for each in solution.diverged]  # looked for by all processes
    if is_first():
        _show_end(folder, as_json, causes)
    if len(solution.diverged) == solution.lanes:
        raise typer.Exit(1)


def _show_end(folder: Path, as_json: bool, causes: Sequence[str]) -> None:
    done = read_run(folder)
    if as_json:
        print_json(final(done))
    else:
        show([done])
        write_page([done], folder / "report.html")
        Console().print(f"Run: {folder}\nReport: {folder / 'report.html'}", soft_wrap=True)
    for each in causes:
        typer.echo(f"Diverged: {each}", err=True)


def note_on_rounds(settings: Settings, given: int | None, task: str) -> str:
    """How many rounds there are, where nobody has said it; else nothing."""
    source = settings.source
    if given is None and not task.endswith(".toml") and isinstance(source, OfModule) and not source.says("rounds"):
        return f"{settings.rounds} rounds: neither --rounds nor {source.name} says how many."
    return ""


def note_on_test_data(settings: Settings) -> str:
    """What to know where a search for rates is judged by the same data as the runs after it; else nothing."""
    source = settings.source
    if isinstance(source, OfModule) and not source.holds_out:
        return f"Rates are scored by what runs are judged by: {source.name} has no make(..., held_out) that holds data out."
    return ""


def print_json(content: Any) -> None:
    """For programs."""
    typer.echo(json.dumps(content, indent=2))


def final(run: StoredRun) -> dict[str, Any]:
    """The last row, and for each seed its best value and the round of it, as JSON has them."""
    last = {name: np.asarray(value).tolist() for name, value in run.history.last.items()}
    rounds, values = peaks(run.history, run.metric, run.higher_is_better)
    best = {"value": values.tolist(), "round": [None if np.isnan(each) else int(each) for each in rounds]}
    return {"folder": str(run.path), "metric": run.metric, "final": last, "best": best}


def show(runs: Sequence[StoredRun]) -> None:
    """A table for each task and data set, and in words what it says."""
    groups: dict[tuple[str, str], list[StoredRun]] = {}
    for each in runs:
        groups.setdefault((each.title, each.config["run"]["dataset"]), []).append(each)
    for (task, dataset), members in groups.items():
        first, rivals = members[0], find_rivals(members)
        named = _labelled(members)
        title = f"{task} on {dataset}"
        Console().print(final_table(named, first.metric, title, first.higher_is_better))
        if rivals.rivals:
            Console().print(rivals_table(named, first.metric, rivals.rivals, first.higher_is_better))
        for problem in rivals.problems:
            Console().print(Text(problem, style="red"))
        Console().print(Text(conclusion(members, rivals.rivals, list(named))))


def write_report(runs: Sequence[StoredRun], page: Path, title: str | None = None) -> tuple[Path, Path]:
    """Writes the page, and a PDF and a PNG figure of the runs of its first task; returns page and PNG."""
    page.parent.mkdir(parents=True, exist_ok=True)
    write_page(runs, page, title)
    alike = [each for each in runs if each.title == runs[0].title]
    heading = title or f"{runs[0].title} on {runs[0].config['run']['dataset']}"
    rivals = find_rivals(alike).rivals
    for suffix in (".pdf", ".png"):
        plot_curves(_labelled(alike), runs[0].metric, heading, page.with_suffix(suffix), rivals=rivals)
    return page, page.with_suffix(".png")


def _labelled(runs: Sequence[StoredRun]) -> dict[str, History]:
    names = [each.name for each in runs]
    return {_label(each, names.count(each.name) == 1): each.history for each in runs}


def _label(run: StoredRun, alone: bool) -> str:
    """The algorithm; the folder where there are several runs of it; and whether nobody has looked for its rates."""
    notes = [*([] if alone else [run.path.name])]
    if run.config["run"].get("rates_from") == "default":
        notes.append("untuned")
    return f"{run.name} ({', '.join(notes)})" if notes else run.name
