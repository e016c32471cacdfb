"""``rookery compare``: several algorithms on one task."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rookery.cli.interruption import command_line, if_stopped
from rookery.cli.options import (
    BatchSize,
    Clients,
    ClientsAtOnce,
    Dataset,
    Every,
    Json,
    LocalSteps,
    Participants,
    Rounds,
    Seed,
    Seeds,
    Set,
    TaskName,
)
from rookery.cli.output import final, new_folder, print_json, show, write_report
from rookery.experiment.folder import find_runs
from rookery.experiment.running import resume_run, start_run
from rookery.experiment.settings import settings_from


def command(
    task: TaskName,
    algorithms: Annotated[str, typer.Option("--algorithms", help="Their names, separated by commas.")],
    dataset: Dataset = None,
    clients: Clients = None,
    participants: Participants = None,
    local_steps: LocalSteps = None,
    batch_size: BatchSize = None,
    rounds: Rounds = None,
    every: Every = None,
    seed: Seed = None,
    seeds: Seeds = None,
    clients_at_once: ClientsAtOnce = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the runs; by default a new one in runs/.")] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Compare algorithms on a task, with the same splits, seeds and minibatches: a table, a figure and a report.

    Example: rookery compare hyper-representation --algorithms MeFBO,FedBiO,SimFBO --seeds 3
    """
    given = {
        "dataset": dataset, "clients": clients, "participants": participants, "local_steps": local_steps,
        "batch_size": batch_size, "rounds": rounds, "every": every, "seed": seed, "seeds": seeds,
        "clients_at_once": clients_at_once,
    }  # fmt: skip
    chosen = [name.strip() for name in algorithms.split(",") if name.strip()]
    all_settings = [settings_from(task, {**given, "algorithm": name}, set_ or []) for name in chosen]
    names = [settings.algorithm for settings in all_settings]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"--algorithms must be different names separated by commas, got {algorithms!r}")
    folder = new_folder(f"{all_settings[0].task}-comparison") if out is None else out
    same_folder = f" --out {shlex.quote(str(folder))}" if out is None else ""
    with if_stopped(f"Continue with: {command_line()}{same_folder}"):
        for settings in all_settings:
            where = folder / settings.algorithm
            if (where / "config.toml").exists():
                resume_run(where)
            else:
                start_run(settings, where)
    runs = find_runs([folder / name for name in names])
    page, figure = write_report(runs, folder / "report.html")
    if as_json:
        print_json({each.name: final(each) for each in runs})
        return
    show(runs)
    Console().print(f"Report: {page}\nFigure: {figure}")
