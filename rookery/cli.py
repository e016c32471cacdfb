"""The ``rookery`` command."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rookery import __version__
from rookery.catalogue import catalogue
from rookery.demo import run_demo

app = typer.Typer(
    help="Rookery: federated nested optimization (bilevel, minimax, client weighting).",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rookery {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    pass


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the figure goes.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each algorithm, in one program.")] = 3,
) -> None:
    """Compare six bilevel algorithms on scikit-learn's digits: a table and a figure, in about a minute.

    Example: rookery demo --rounds 100 --seeds 5
    """
    run_demo(out, rounds, seeds)


@app.command("list")
def list_algorithms() -> None:
    """List the algorithms: the problems each solves and what it needs."""
    table = Table()
    for column in ("algorithm", "problem", "exchanges", "2nd derivatives", "unequal steps", "paper", "status"):
        table.add_column(column)
    for e in catalogue():
        needs = ("yes" if e.second_derivatives else "no", "yes" if e.unequal_steps else "no")
        table.add_row(e.name, e.solves, str(e.exchanges), *needs, e.paper, e.status)
    Console().print(table)


def main() -> None:
    """The entry point."""
    app()
