"""``rookery compare``: several algorithms on one task or problem of one's own."""

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
    Every,
    Fill,
    Ignore,
    Json,
    Label,
    LocalSteps,
    Model,
    NoRivals,
    NoTune,
    OwnData,
    Participants,
    Rounds,
    Runs,
    Seed,
    Seeds,
    Set,
    TaskOrFile,
    TestData,
    Track,
)
from rookery.cli.output import final, new_folder, note_on_rounds, print_json, show, write_report
from rookery.cli.rates import as_unit, rates_from, rates_given, tuned
from rookery.cli.track import check_trackers, tracked
from rookery.experiment.folder import find_runs
from rookery.experiment.outcome import RIVALS, write_rivals
from rookery.experiment.running import resume_run, start_run
from rookery.experiment.settings import settings_of_all
from rookery.experiment.tuned import Budget, forget
from rookery.tuning.tune import BUDGET


def command(
    task: TaskOrFile,
    algorithms: Annotated[str, typer.Option("--algorithms", help="Their names, separated by commas.")],
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
    every: Every = None,
    seed: Seed = None,
    seeds: Seeds = None,
    clients_at_once: ClientsAtOnce = None,
    aggregate: Aggregate = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs; by default a new one in runs/.")] = None,
    set_: Set = None,
    no_tune: NoTune = False,
    no_rivals: NoRivals = False,
    budget: Runs = BUDGET,
    unit: BudgetUnit = "rounds",
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Compare algorithms on a problem, with the same splits, seeds and minibatches: a table, a figure and a report.

    The rates of all algorithms are searched for first, on held-out data and with the same budget, but for those whose rates
    are given. --no-tune takes what is stored for the task, and marks algorithms that have nothing but their defaults as
    untuned. --set NAME=VALUE sets a rate of those algorithms that have it, --set FedBiO.NAME=VALUE of one.

    Examples:

      rookery compare hyper-representation --algorithms MeFBO,FedBiO,SimFBO --seeds 3

      rookery compare auroc --data loans.csv --label defaulted --algorithms FedSGDA-M,CODASCA

      rookery compare my_problem.py --algorithms MeFBO,FedBiO --set FedBiO.eta_x=0.1
    """
    given = {
        "dataset": dataset, "clients": clients, "participants": participants, "local_steps": local_steps,
        "batch_size": batch_size, "rounds": rounds, "every": every, "seed": seed, "seeds": seeds,
        "clients_at_once": clients_at_once, "aggregate": aggregate,
        "data": data, "label": label, "client_column": client_column, "checked_column": checked_column,
        "ignore": tuple(ignore or ()), "fill": fill, "test": test, "model": model,
    }  # fmt: skip
    chosen = [name.strip() for name in algorithms.split(",") if name.strip()]
    if not chosen:
        raise ValueError(f"--algorithms must be different names separated by commas, got {algorithms!r}")
    all_settings = settings_of_all(task, given, chosen, set_ or [])
    names = [settings.algorithm for settings in all_settings]
    if len(set(names)) != len(names):
        raise ValueError(f"--algorithms must be different names separated by commas, got {algorithms!r}")
    if all_settings[0].privacy is not None and len(names) > 1:
        raise ValueError(
            "privacy: algorithms are compared with the same keys, and so with the same noise: run each by itself, with a "
            "--seed of its own"
        )
    trackers = check_trackers(track or [])
    note = note_on_rounds(all_settings[0], rounds, task)
    folder = new_folder(all_settings[0], "comparison") if out is None else out
    same_folder = f" --out {shlex.quote(str(folder))}" if out is None else ""
    with if_stopped(f"Continue with: {command_line()}{same_folder}"):
        if not all((folder / name / "config.toml").exists() for name in names):
            allowed = Budget(budget, as_unit(unit))
            given_rates = rates_given(all_settings)
            all_settings, _ = tuned(
                all_settings, folder, allowed, no_tune=no_tune, as_json=as_json, given=given_rates, keep=True
            )
        for settings in all_settings:
            where = folder / settings.algorithm
            with tracked(trackers, where) as watch:
                if (where / "config.toml").exists():
                    resume_run(where, watch=watch)
                else:
                    start_run(settings, where, note=note, rates_from=rates_from(settings), watch=watch)
                    note = ""
        forget(folder)
        if not no_rivals and not (folder / RIVALS).exists():
            write_rivals(folder, all_settings[0])
    runs = find_runs([folder / name for name in names])
    page, figure = write_report(runs, folder / "report.html")
    if as_json:
        print_json({each.name: final(each) for each in runs})
        return
    show(runs)
    Console().print(f"Report: {page}\nFigure: {figure}")
