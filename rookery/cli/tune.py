"""``rookery tune``: finds the rates of algorithms on a problem."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rookery.cli.interruption import command_line, if_stopped
from rookery.cli.options import (
    Aggregate,
    BatchSize,
    BudgetUnit,
    CheckedColumn,
    ClientColumn,
    Clients,
    ClientsAtOnce,
    Dataset,
    Fill,
    Ignore,
    Json,
    Label,
    LocalSteps,
    Model,
    OwnData,
    Participants,
    Rounds,
    Runs,
    Seed,
    Set,
    TaskOrFile,
    TestData,
)
from rookery.cli.output import new_folder
from rookery.cli.rates import as_unit, tell_of_test_data
from rookery.experiment.settings import settings_of_all, write_toml
from rookery.experiment.tuned import FILE, Budget, find_rates
from rookery.report.tuning import tuning_table
from rookery.tuning.tune import BUDGET


def command(
    task: TaskOrFile,
    algorithms: Annotated[
        str | None, typer.Option("--algorithms", help="Their names, separated by commas; by default that of the task.")
    ] = None,
    dataset: Dataset = None,
    data: OwnData = None,
    label: Label = None,
    client_column: ClientColumn = None,
    checked_column: CheckedColumn = None,
    ignore: Ignore = None,
    fill: Fill = False,
    test: TestData = None,
    model: Model = None,
    clients: Clients = None,
    participants: Participants = None,
    local_steps: LocalSteps = None,
    batch_size: BatchSize = None,
    rounds: Rounds = None,
    seed: Seed = None,
    clients_at_once: ClientsAtOnce = None,
    aggregate: Aggregate = None,
    budget: Runs = BUDGET,
    unit: BudgetUnit = "rounds",
    out: Annotated[Path | None, typer.Option(help="Folder for tuning.json and a TOML file for each algorithm.")] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Find the rates of algorithms on TASK: a task, a problem of your own, or the settings of a TOML file.

    The curvature of the problem is measured, then candidates are tried as lanes of one program: many for a few rounds, the
    best of them for more, a few to the end. They are judged on held-out data by the task's metric, or, of a problem that
    names none, by the upper objective after the lower level has followed. All algorithms have the same budget. A search
    that was interrupted is continued by the same command.

    Examples:

      rookery tune my_problem.py --algorithms FedBiO,MeFBO

      rookery tune data-cleaning --algorithms FedBiO,FedNest --budget 12 --unit calls
    """
    given = {
        "dataset": dataset, "clients": clients, "participants": participants, "local_steps": local_steps,
        "batch_size": batch_size, "rounds": rounds, "seed": seed, "clients_at_once": clients_at_once,
        "aggregate": aggregate,
        "data": data, "label": label, "client_column": client_column, "checked_column": checked_column,
        "ignore": tuple(ignore or ()), "fill": fill, "test": test, "model": model,
    }  # fmt: skip
    names: list[str | None] = [None]
    if algorithms is not None:
        names = [name.strip() for name in algorithms.split(",") if name.strip()]
    if not names:
        raise ValueError(f"--algorithms must be names separated by commas, got {algorithms!r}")
    all_settings = settings_of_all(task, given, names, set_ or [])
    folder = new_folder(all_settings[0], "tuning") if out is None else out
    same_folder = f" --out {shlex.quote(str(folder))}" if out is None else ""
    with if_stopped(f"Continue with: {command_line()}{same_folder}"):
        found, tuning = find_rates(
            all_settings,
            folder,
            Budget(budget, as_unit(unit)),
            again=True,
            ready=lambda: tell_of_test_data(all_settings[0]),
        )
    files = {each.algorithm: folder / f"{each.algorithm}.toml" for each in found}
    for each in found:
        write_toml(files[each.algorithm], each.tables())
    told = json.loads((folder / FILE).read_text(encoding="utf-8"))
    if as_json:
        typer.echo(json.dumps({**told, "files": {name: str(path) for name, path in files.items()}}))
        return
    Console().print(tuning_table(told))
    for remark in tuning.remarks if tuning is not None else ():
        typer.echo(f"Note: {remark}.", err=True)
    best = files[tuning.winner] if tuning is not None else next(iter(files.values()))
    Console().print(f"Best: {best} (rookery run {shlex.quote(str(best))})", soft_wrap=True)
