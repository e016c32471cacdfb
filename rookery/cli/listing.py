"""``rookery list``: algorithms, tasks, data sets, or the options of a problem."""

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rookery.catalogue import STATUSES, catalogue
from rookery.cli.options import Json
from rookery.cli.output import print_json
from rookery.datasets import DATASETS
from rookery.experiment.source import open_source
from rookery.tasks import RECIPES


def command(
    what: Annotated[str, typer.Argument(help="algorithms, tasks, datasets or options.")] = "algorithms",
    of: Annotated[str | None, typer.Argument(help="Of options: a task, or a problem of your own.")] = None,
    as_json: Json = False,
) -> None:
    """List algorithms, tasks or data sets, or the options of a problem.

    Examples:

      rookery list tasks

      rookery list options data-cleaning

      rookery list options my_problem.py
    """
    if what not in (*_ROWS, "options"):
        raise ValueError(f"list: choose algorithms, tasks, datasets or options, got {what!r}")
    if (what == "options") != (of is not None):
        raise ValueError(
            "list options needs the name of a task or a module" if of is None else f"list {what}: got {of!r} too"
        )
    rows = _ROWS[what]() if of is None else _options(of)
    if as_json:
        print_json(rows)
        return
    if of is not None:
        typer.echo(
            "\n".join(f"{row['option']} = {_as_toml(row['default'])}" for row in rows) or f"{of} has no options."
        )
        return
    if what == "algorithms":
        rows = [_narrow(row) for row in rows]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for number, column in enumerate(rows[0]):
        table.add_column(column, no_wrap=not number, overflow="fold")  # names are never cut
    for row in rows:
        table.add_row(*(str(value) for value in row.values()))
    Console().print(table)
    if what == "algorithms":
        Console().print(f"\n{_LEGEND}")


def _algorithms() -> list[dict[str, Any]]:
    return [
        {
            "algorithm": e.name, "class": e.kind, "problem": e.solves, "exchanges": e.exchanges,
            "2nd derivatives": "yes" if e.second_derivatives else "no",
            "unequal steps": "yes" if e.unequal_steps else "no", "constraints": e.constraints,
            "paper": e.paper, "status": e.status,
        }
        for e in catalogue()
    ]  # fmt: skip


def _tasks() -> list[dict[str, Any]]:
    return [
        {"task": r.name, "what": r.summary, "data sets": ", ".join(r.defaults), "options": ", ".join(r.options)}
        for r in RECIPES.values()
    ]


def _options(name: str) -> list[dict[str, Any]]:
    source = open_source(name)
    defaults = source.default_options(source.datasets[0])
    found = [(name, defaults.get(name)) for name in source.options]
    return [{"option": name, "default": value} for name, value in found]


def _as_toml(value: Any) -> str:
    """A value as one types it after --set; of None, which TOML does not have, a word."""
    if value is None:
        return "(none)"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_as_toml(each) for each in value)}]"
    return json.dumps(value) if isinstance(value, bool | str) else repr(value)


def _datasets() -> list[dict[str, Any]]:
    return [{"data set": name, "what": each.summary} for name, each in DATASETS.items()]


_ROWS = {"algorithms": _algorithms, "tasks": _tasks, "datasets": _datasets}

_LEGEND = (
    "exchanges: round trips in a round. 2nd order: uses second derivatives. unequal steps: clients may make different "
    "numbers of local steps. sets: which of x and y is kept in its constraint set. status: "
    + ", ".join(f"{letter} {meaning}" for letter, meaning in STATUSES.items())
    + "."
)


def _narrow(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the list of algorithms that fits into 80 columns, with the class below the name where they differ."""
    name, kind = row["algorithm"], row["class"]
    heads = {"exchanges": "ex-\nchanges", "2nd derivatives": "2nd\norder", "unequal steps": "unequal\nsteps"}
    heads["constraints"] = "sets"
    rest = {heads.get(head, head): value for head, value in row.items() if head not in ("algorithm", "class")}
    return {"algorithm\n  class": name if name == kind else f"{name}\n  {kind}"} | rest
