"""``rookery sweep``: a search for rates on held-out training data."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from rookery.cli.interruption import command_line, if_stopped
from rookery.cli.options import (
    Aggregate,
    AlgorithmName,
    BatchSize,
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
    Seed,
    Seeds,
    Set,
    TaskOrFile,
    TestData,
)
from rookery.cli.output import new_folder, note_on_rounds, note_on_test_data
from rookery.experiment.settings import Settings, parse_value, settings_from, write_toml
from rookery.experiment.sweep import Trial, at_edges, best, best_settings, grid, random_rates, sweep
from rookery.solving.history import History


def command(
    task: TaskOrFile,
    grid_: Annotated[
        list[str] | None,
        typer.Option(
            "--grid", help="NAME=V1,V2,…: try these values, in all combinations; NAME+NAME varies two together."
        ),
    ] = None,
    random: Annotated[
        list[str] | None, typer.Option("--random", help="NAME=LOW..HIGH: draw values log-uniformly; needs --trials.")
    ] = None,
    trials: Annotated[int | None, typer.Option(min=1, help="How many configurations to draw.")] = None,
    algorithm: AlgorithmName = None,
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
    seeds: Seeds = None,
    clients_at_once: ClientsAtOnce = None,
    aggregate: Aggregate = None,
    lanes: Annotated[int, typer.Option(min=1, help="Runs computed together in one program.")] = 16,
    out: Annotated[Path | None, typer.Option(help="Folder for sweep.csv and best.toml.")] = None,
    set_: Set = None,
    as_json: Json = False,
) -> None:
    """Search for the rates of an algorithm on TASK, on a problem of your own, or with the settings of a TOML file.

    Configurations are scored on held-out training data, never on test data. A problem of your own must hold them out
    itself: its make(...) is called with held_out=True.

    Examples:

      rookery sweep hyper-representation --algorithm FedBiO --grid eta_x=0.03,0.1,0.3 --grid eta_y=0.1,0.3

      rookery sweep my_problem.py --algorithm FedBiO --grid eta_x=0.03,0.1,0.3

      rookery sweep fair-classification --random eta_x=0.001..1 --trials 20 --seeds 3
    """
    given = {
        "algorithm": algorithm, "dataset": dataset, "clients": clients, "participants": participants,
        "local_steps": local_steps, "batch_size": batch_size, "rounds": rounds, "seed": seed, "seeds": seeds,
        "clients_at_once": clients_at_once, "aggregate": aggregate,
        "data": data, "label": label, "client_column": client_column, "checked_column": checked_column,
        "ignore": tuple(ignore or ()), "fill": fill, "test": test, "model": model,
    }  # fmt: skip
    settings = settings_from(task, given, set_ or [])
    if bool(grid_) == bool(random):
        raise ValueError("sweep needs either --grid NAME=V1,V2 or --random NAME=LOW..HIGH with --trials")
    values, ranges = dict(_values(each) for each in grid_ or []), dict(_range(each) for each in random or [])
    if random:
        if trials is None:
            raise ValueError("--random needs --trials, how many configurations to draw")
        tried = random_rates(ranges, trials, settings.seed)
    else:
        tried = grid(values)
    with if_stopped(f"Nothing of a sweep is kept. Start it again with: {command_line()}"):
        results = sweep(settings, tried, lanes, progress=None if sys.stderr.isatty() else False)
    made = settings.make_tasks()[0]
    for note in filter(None, (note_on_rounds(settings, rounds, task), note_on_test_data(settings))):
        typer.echo(note, err=True)
    winner = best(results, made.higher_is_better)
    edges = at_edges(winner, values, ranges)
    folder = new_folder(settings, settings.algorithm, "sweep") if out is None else out
    folder.mkdir(parents=True, exist_ok=True)
    History([{**t.rates, made.metric: t.scores, "mean": t.mean} for t in results]).to_csv(folder / "sweep.csv")
    write_toml(folder / "best.toml", best_settings(settings, winner).tables())
    if as_json:
        rows = [{"rates": dict(t.rates), "mean": t.mean, "scores": t.scores.tolist()} for t in results]
        summary = {"trials": rows, "best": dict(winner.rates), "at_edge": edges, "file": str(folder / "best.toml")}
        typer.echo(json.dumps(summary))
        return
    Console().print(_table(settings, made.metric, results, winner))
    Console().print(f"Best: {folder / 'best.toml'} (rookery run {shlex.quote(str(folder / 'best.toml'))})")
    _warn_of_edges(edges)


def _table(settings: Settings, metric: str, results: Sequence[Trial], winner: Trial) -> Table:
    table = Table(title=f"{settings.algorithm} on {settings.source.title}/{settings.dataset}, held-out {metric}")
    for column in (*results[0].rates, "mean", "deviation"):
        table.add_column(column, justify="right")
    for trial in results:
        deviation = "–" if trial.deviation is None else f"{trial.deviation:.4g}"
        cells = [f"{value:.4g}" for value in (*trial.rates.values(), trial.mean)]
        table.add_row(*cells, deviation, style="bold" if trial is winner else "")
    return table


def _warn_of_edges(edges: Mapping[str, str]) -> None:
    for name, edge in edges.items():
        beyond = "smaller" if edge == "smallest" else "larger"
        Console().print(f"The best {name} is among the {edge} tried: try {beyond} ones too.")


def _values(text: str) -> tuple[str, list[float]]:
    name, equals, values = text.partition("=")
    parsed = [parse_value(each) for each in values.split(",")]
    if not equals or not all(isinstance(each, int | float) and not isinstance(each, bool) for each in parsed):
        raise ValueError(f"--grid must be NAME=V1,V2,… with numbers, got {text!r}")
    return name, [float(each) for each in parsed]


def _range(text: str) -> tuple[str, tuple[float, float]]:
    name, equals, values = text.partition("=")
    low, dots, high = values.partition("..")
    try:
        ends = float(low), float(high)
    except ValueError:
        ends = 0.0, 0.0
    if not equals or not dots or not 0 < ends[0] < ends[1]:
        raise ValueError(f"--random must be NAME=LOW..HIGH with 0 < LOW < HIGH, got {text!r}")
    return name, ends
