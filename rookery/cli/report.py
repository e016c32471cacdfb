"""``rookery report``: a page and figures from finished or unfinished runs."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rookery.cli.output import show, write_report
from rookery.experiment.folder import find_runs


def command(
    folders: Annotated[list[Path], typer.Argument(help="Folders of runs, or folders that contain such folders.")],
    out: Annotated[Path, typer.Option(help="The HTML page to write.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Make one self-contained HTML page, and a figure as PNG and PDF, from any number of runs.

    Example: rookery report runs/* --out report.html
    """
    runs = find_runs(folders)
    empty = [str(each.path) for each in runs if not len(each.history)]
    if empty:
        raise ValueError(f"there is no evaluation yet in {', '.join(empty)}")
    page, figure = write_report(runs, out, title)
    show(runs)
    Console().print(f"Report: {page}\nFigure: {figure}")
