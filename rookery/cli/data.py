"""``rookery data``: which data sets there are, downloads, checksums."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rookery.datasets import DATASETS, fetch, verify
from rookery.datasets.files import FileState, where
from rookery.datasets.sources import Source

app = typer.Typer(help="Data sets: list, download, verify.", no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="As JSON.")]


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, OSError) as error:
        typer.echo(f"rookery data: {error}", err=True)
        raise typer.Exit(2) from error


@app.command("list")
def list_datasets(as_json: Json = False) -> None:
    """List the data sets and where their files were found.

    Example: rookery data list
    """
    with _one_line_errors():
        rows = [_row(dataset) for dataset in DATASETS.values()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    table = Table()
    for column in ("name", "shape", "classes", "where", "MB"):
        table.add_column(column, overflow="fold", justify="right" if column in ("classes", "MB") else "left")
    for row in rows:
        shape = "×".join(map(str, row["shape"]))
        table.add_row(row["name"], shape, str(row["classes"]), row["where"] or "not here", f"{row['bytes'] / 1e6:.1f}")
    Console().print(table)


@app.command("fetch")
def fetch_datasets(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME...", help="Data sets.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """Download what is missing of these data sets into the user's cache, and verify what is there.

    Example: rookery data fetch mnist omniglot
    """
    with _one_line_errors():
        if not names and not every:
            raise ValueError(f"fetch needs names ({', '.join(DATASETS)}) or --all")
        for name in DATASETS if every else names or ():
            paths = fetch(name)
            typer.echo(f"{name}: {paths[0].parent if paths else 'part of scikit-learn'}")


@app.command("verify")
def verify_datasets(
    names: Annotated[list[str] | None, typer.Argument(metavar="[NAME]...", help="Data sets; all if none.")] = None,
    as_json: Json = False,
) -> None:
    """Compare the files with their checksums: of the named data sets, or of all.

    Exit status 1 if a file is bad, or if one of a named data set is missing.

    Example: rookery data verify mnist
    """
    with _one_line_errors():
        states = [state for name in names or DATASETS for state in verify(name)]
    if as_json:
        typer.echo(json.dumps([_report(state) for state in states], indent=2))
    else:
        typer.echo("\n".join(_line(state) for state in states))
    if any(state.status == "bad" or (names and state.status == "missing") for state in states):
        raise typer.Exit(1)


def _row(dataset: Source) -> dict:
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
        "where": (str(folder) if folder else None) if dataset.files else "scikit-learn",
    }


def _report(state: FileState) -> dict:
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
        case _:
            return line
