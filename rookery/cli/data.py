"""``rookery data``: lists, downloads and verifies data sets."""

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rookery.cli.options import Json
from rookery.cli.output import print_json
from rookery.datasets import DATASETS, fetch, verify
from rookery.datasets.files import FileState, where
from rookery.datasets.sources import Published

app = typer.Typer(help="Data sets: list, download, verify.", no_args_is_help=True)


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """List the data sets and where their files were found.

    Example: rookery data list
    """
    rows = [_row(dataset) for dataset in DATASETS.values()]
    if as_json:
        print_json(rows)
        return
    table = Table()
    for column in ("name", "shape", "classes", "where", "MB"):
        table.add_column(column, overflow="fold", justify="right" if column in ("classes", "MB") else "left")
    for row in rows:
        shape = "×".join(map(str, row["shape"]))
        size = "by hand" if row["by_hand"] else f"{row['bytes'] / 1e6:.1f}"
        table.add_row(row["name"], shape, str(row["classes"]), row["where"] or "not here", size)
    Console().print(table)


@app.command("fetch")
def fetch_datasets(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Data sets.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All data sets that can be downloaded.")] = False,
) -> None:
    """Download the missing files of these data sets into the user's cache, and verify the others.

    Example: rookery data fetch mnist omniglot
    """
    if not names and not every:
        raise ValueError(f"fetch needs the names of data sets ({', '.join(DATASETS)}) or --all")
    can_be = [name for name, dataset in DATASETS.items() if not dataset.by_hand]
    for name in can_be if every else names or ():
        paths = fetch(name)
        typer.echo(f"{name}: {paths[0].parent if paths else 'part of scikit-learn'}")


@app.command("verify")
def verify_datasets(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Data sets; by default all.")] = None,
    as_json: Json = False,
) -> None:
    """Compare files with their checksums: those of the named data sets, or of all.

    Of data sets that you must provide there are none: it is said whether they are here.

    Exit status 1 if a file is bad, or if a file of a named data set is missing.

    Example: rookery data verify mnist
    """
    states = [state for name in names or DATASETS for state in verify(name)]
    if as_json:
        print_json([_report(state) for state in states])
    else:
        typer.echo("\n".join(_line(state) for state in states))
    if any(state.status == "bad" or (names and state.status == "missing") for state in states):
        raise typer.Exit(1)


def _row(dataset: Published) -> dict[str, Any]:
    folder = where(dataset)
    return {
        "name": dataset.name,
        "summary": dataset.summary,
        "shape": dataset.shape,
        "classes": dataset.classes,
        "train": dataset.train,
        "test": dataset.test,
        "licence": dataset.licence,
        "bytes": dataset.bytes,
        "by_hand": dataset.by_hand,
        "where": (str(folder) if folder else None) if dataset.files or dataset.by_hand else "scikit-learn",
    }


def _report(state: FileState) -> dict[str, Any]:
    return {
        "name": state.dataset,
        "file": state.file,
        "path": str(state.path) if state.path else None,
        "status": state.status,
        "expected": state.expected,
        "found": state.found,
    }


def _line(state: FileState) -> str:
    line = f"{state.status:8}{state.path or f'{state.dataset}/{state.file}'}"
    match state.status:
        case "ok":
            return f"{line} {' '.join(value for value in state.found if value in state.expected)}"
        case "bad":
            return f"{line} expected {' or '.join(state.expected)} found {' '.join(state.found)}"
        case "here":
            return f"{line} (no checksums are published)"
        case _:
            return line
