"""``rookery reproduce``: the papers' experiments."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from rich.table import Table

from rookery.cli.interruption import command_line, if_stopped
from rookery.devices import threads
from rookery.report.tables import label
from rookery.reproduction.compute import Result, compute_all, missing_data, save, stored
from rookery.reproduction.experiment import Cell, Experiment, experiment, experiments
from rookery.reproduction.page import core_minutes, draw, expected_minutes, write_docs
from rookery.reproduction.speed_up import speed_ups
from rookery.reproduction.speed_up import table as speed_up_table
from rookery.reproduction.verdicts import rows, verdicts


def command(
    name: Annotated[str | None, typer.Argument(help="An experiment such as E1, or all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version with fewer seeds and rounds.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this SETTING/METHOD, or every one that contains this text.")
    ] = None,
    presets: Annotated[
        Path | None, typer.Option(help="A folder of your own presets, which override the package's.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Compute again what is already stored.")] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List all experiments with the time they need on 2 cores.")
    ] = False,
    docs: Annotated[bool, typer.Option("--write-docs", help="Write docs/reproduction.md from stored results.")] = False,
    out: Annotated[Path, typer.Option(help="Folder of the stored results.")] = Path("reproduction"),
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cells computed at a time, each on a core.",
            show_default="the number of cores, 1 on a GPU or TPU",
        ),
    ] = None,
) -> None:
    """Reproduce experiment NAME of a paper and show published numbers beside ours. Stored results are kept.

    A cell is one method in one setting of an experiment. It first finds its rates, on held-out training data and with the
    same budget as all others. What was stopped or killed goes on with the same command.

    Examples:

      rookery reproduce --list

      rookery reproduce E1 --only iid/MeFBO

      rookery reproduce E6 --quick

      rookery reproduce all
    """
    if presets is not None and not presets.is_dir():
        raise ValueError(f"--presets {presets}: there is no such folder")
    if list_:
        Console().print(_listed(experiments(presets).values(), out))
        return
    if docs:
        for page in write_docs(out, Path("docs/reproduction.md")):
            Console().print(f"Written: {page}")
        return
    if name is None:
        raise ValueError("reproduce needs the name of an experiment, or --list, or --write-docs")
    size = "quick" if quick else "full"
    names = list(experiments(presets)) if name == "all" else [name]
    if not any(experiment(each, presets).cells(size, only or ()) for each in names):
        raise ValueError(f"--only {' '.join(only or ())}: {name} has no cell with this in its SETTING/METHOD")
    with if_stopped(f"What is done is stored. Continue with: {command_line()}"):
        known = experiments(presets)
        chosen = [known[each] for each in names if known[each].cells(size, only or ())]
        if name == "all":
            chosen = _with_data(chosen, size)
        _compute(chosen, size, only or (), again, out, jobs or threads())
    for which in chosen:
        _show(which, out, size)
        figure = out / f"{which.name}.png"
        draw(which, out, figure, size)
        Console().print(f"Curves: {figure}")


def _with_data(chosen: Sequence[Experiment], size: str) -> list[Experiment]:
    """Those whose data are here, or can be downloaded; a line for each of the others."""
    found = []
    for which in chosen:
        if missing := missing_data(which.cells(size)):
            Console().print(f"{which.name} is left out: {', '.join(missing)} must be put into $ROOKERY_DATA by hand")
        else:
            found.append(which)
    return found


def _listed(all_experiments: Iterable[Experiment], out: Path) -> Table:
    table = Table()
    for column in ("experiment", "what", "paper"):
        table.add_column(column, no_wrap=column == "experiment")
    for column in ("cells", "stored", "minutes"):
        table.add_column(column, justify="right")
    for each in all_experiments:
        cells = each.cells()
        have = sum(stored(cell, out) is not None for cell in cells)
        needs = expected_minutes([(each, cell) for cell in cells], 2)
        table.add_row(each.name, each.title, each.preset["paper"], str(len(cells)), str(have), needs)
    return table


def _compute(chosen: Sequence[Experiment], size: str, only: Sequence[str], again: bool, out: Path, jobs: int) -> None:
    """Computes and stores the cells that are not stored yet, with a line for each that is done."""
    due = [(which, cell) for which in chosen for cell in which.cells(size, only) if again or stored(cell, out) is None]
    if not due:
        return
    several = min(jobs, len(due)) > 1  # a single cell shows its own progress
    console = Console()
    cells = f"{len(due)} cell{'s' * (len(due) > 1)}"
    time = f", about {expected_minutes(due, jobs)} minutes" if size == "full" else ""
    console.print(f"{cells}, {jobs} at a time{time}. What was stopped goes on with the same command.")
    columns = (*Progress.get_default_columns()[:-1], TimeElapsedColumn())
    with Progress(*columns, transient=True, disable=not several) as bar:
        shown = bar.add_task(f"{cells}, {jobs} at a time", total=len(due))

        def done(cell: Cell, result: Result) -> None:
            save(cell, result, out)
            bar.advance(shown)
            bar.console.print(
                f"{cell.experiment} {cell.setting}/{cell.method}: {core_minutes(result):.1f} minutes of a core"
            )

        compute_all(due, jobs, out, done)


def _show(which: Experiment, out: Path, size: str) -> None:
    """Our numbers with the published ones below each, and what became of the paper's claims."""
    smaller = "" if size == "full" else " (a smaller version)"
    if which.form == "speed-up":
        head, found = speed_up_table(speed_ups(which, out, size))
        table = Table(*head, title=f"{which.name}: {which.title}{smaller}", caption=which.legend)
        for cells in found:
            table.add_row(*cells)
        Console().print(table)
        return
    lines = rows(which, out, size)
    caption = "Below each number the published one." if any(any(row.published) for row in lines) else None
    table = Table(title=f"{which.name}: {which.title}{smaller}", caption=caption)
    table.add_column("setting")
    table.add_column("method")
    measure = label(which.metric) + (" %" if which.percent else "")
    for column in (*(f"{measure} after {point} {which.unit}" for point in which.at(size)), *map(label, which.also)):
        table.add_column(column, justify="right")
    for row in lines:
        pairs = zip(row.ours, row.published, strict=True)
        values = [f"{ours}\n[dim]{published}[/dim]" if published else ours for ours, published in pairs]
        table.add_row(row.setting, row.name, *values, *row.also)
    Console().print(table)
    if which.legend:
        Console().print(which.legend, markup=False)
    for v in verdicts(which, out, size):
        Console().print(
            f"{v.setting}: {v.better} better than {v.worse}? {v.holds.capitalize()} "
            f"(difference {v.difference:+.3g}, p {v.p_text})"
        )
