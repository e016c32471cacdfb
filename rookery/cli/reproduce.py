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
from rookery.reproduction.compute import Result, compute_all, save, stored
from rookery.reproduction.experiment import Cell, Experiment, experiment, experiments
from rookery.reproduction.page import draw, write_docs
from rookery.reproduction.tune import to_tune, tune
from rookery.reproduction.verdicts import rows, verdicts


def command(
    name: Annotated[str | None, typer.Argument(help="An experiment such as E1, or all.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A smaller version with fewer seeds and rounds.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this SETTING/METHOD, or every one that contains this text.")
    ] = None,
    tune_first: Annotated[
        bool, typer.Option("--tune", help="First search the grids on held-out training data; needs --presets.")
    ] = False,
    presets: Annotated[
        Path | None,
        typer.Option(help="A folder of your own presets, which override the package's; --tune writes there."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Compute again what is already stored.")] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="List all experiments with the time they need on 2 cores.")
    ] = False,
    docs: Annotated[
        bool, typer.Option("--write-docs", help="Write docs/reproduction.md and its appendix from stored results.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the stored results.")] = Path("reproduction"),
    lanes: Annotated[int, typer.Option(min=1, help="Runs computed together in one program, with --tune.")] = 8,
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

    A cell is one method in one setting of an experiment.

    Examples:

      rookery reproduce --list

      rookery reproduce E1 --only iid/MeFBO

      rookery reproduce E6 --quick

      rookery reproduce E5 --tune --presets mine

      rookery reproduce all
    """
    if tune_first and presets is None:
        raise ValueError("--tune needs --presets FOLDER, where it writes presets with the rates that it finds")
    if presets is not None and not (tune_first or presets.is_dir()):
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
        if tune_first and presets is not None:
            for searched in names:
                for setting, method in to_tune(experiment(searched, presets), size, only or ()):
                    found = tune(searched, method, setting, presets, size, lanes)
                    Console().print(f"{setting}/{method}: {found or 'every configuration diverged'}")
        known = experiments(presets)
        chosen = [known[each] for each in names if known[each].cells(size, only or ())]
        _compute(chosen, size, only or (), again, out, jobs or threads())
    for which in chosen:
        _show(which, out, size)
        figure = out / f"{which.name}.png"
        draw(which, out, figure, size)
        Console().print(f"Curves: {figure}")


def _listed(all_experiments: Iterable[Experiment], out: Path) -> Table:
    table = Table()
    for column in ("experiment", "what", "paper", "cells", "stored", "minutes"):
        table.add_column(column)
    for each in all_experiments:
        cells = each.cells()
        have = sum(stored(cell, out) is not None for cell in cells)
        minutes = str(each.preset.get("minutes", "?"))
        table.add_row(each.name, each.title, each.preset["paper"], str(len(cells)), str(have), minutes)
    return table


def _compute(chosen: Sequence[Experiment], size: str, only: Sequence[str], again: bool, out: Path, jobs: int) -> None:
    """Computes and stores the cells that are not stored yet, with a line for each that is done."""
    due = [(which, cell) for which in chosen for cell in which.cells(size, only) if again or stored(cell, out) is None]
    if not due:
        return
    several = min(jobs, len(due)) > 1  # a single cell shows its own progress
    columns = (*Progress.get_default_columns()[:-1], TimeElapsedColumn())
    with Progress(*columns, transient=True, disable=not several) as bar:
        shown = bar.add_task(f"{len(due)} cells, {jobs} at a time", total=len(due))

        def done(cell: Cell, result: Result) -> None:
            save(cell, result, out)
            bar.advance(shown)
            bar.console.print(f"{cell.experiment} {cell.setting}/{cell.method}: {result['seconds']:.0f} s")

        compute_all(due, jobs, done)


def _show(which: Experiment, out: Path, size: str) -> None:
    """Our numbers with the published ones below each, and what became of the paper's claims."""
    smaller = "" if size == "full" else " (a smaller version)"
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
