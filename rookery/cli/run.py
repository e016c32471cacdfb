"""``rookery run``: one algorithm on one task or problem of one's own, into a new folder."""

import shlex
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from rookery.aggregation.secure.options import SecureSum
from rookery.cli.interruption import command_line, if_stopped
from rookery.cli.joining import joined
from rookery.cli.options import (
    Aggregate,
    AlgorithmName,
    BatchSize,
    BudgetUnit,
    CheckedColumn,
    CheckpointSeconds,
    ClientColumn,
    Clients,
    ClientsAtOnce,
    Coordinator,
    Dataset,
    Devices,
    Distributed,
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
    Privacy,
    ProcessCount,
    ProcessNumber,
    Rounds,
    Runs,
    Secure,
    Seed,
    Seeds,
    Set,
    TaskOrFile,
    TestData,
    Track,
)
from rookery.cli.output import finish, new_folder, note_on_rounds
from rookery.cli.rates import as_unit, rates_from, tuned
from rookery.cli.track import check_trackers, tracked
from rookery.engines.base import Engine
from rookery.engines.flower.engine import Flower
from rookery.engines.simulator import Simulator
from rookery.experiment.checkpoint import digest
from rookery.experiment.running import check_new, prepare_run, start_run
from rookery.experiment.settings import Settings, settings_from
from rookery.experiment.tuned import Budget, has_rates
from rookery.processes import current, is_first, on_first
from rookery.tuning.tune import BUDGET


def command(
    task: TaskOrFile,
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
    every: Every = None,
    seed: Seed = None,
    seeds: Seeds = None,
    clients_at_once: ClientsAtOnce = None,
    aggregate: Aggregate = None,
    privacy: Privacy = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; by default a new one in runs/.")] = None,
    set_: Set = None,
    no_tune: NoTune = False,
    no_rivals: NoRivals = False,
    budget: Runs = BUDGET,
    unit: BudgetUnit = "rounds",
    checkpoint_seconds: CheckpointSeconds = 10.0,
    track: Track = None,
    engine: Annotated[str, typer.Option(help="simulator, or flower: real nodes on this machine.")] = "simulator",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes to start, with --engine flower.")] = 2,
    secure: Secure = None,
    devices: Devices = None,
    coordinator: Coordinator = None,
    processes: ProcessCount = None,
    process: ProcessNumber = None,
    distributed: Distributed = False,
    as_json: Json = False,
) -> None:
    """Run an algorithm on TASK: a task (see rookery list tasks), a problem of your own, or the settings of a TOML file.

    The folder of the run holds its configuration, history, checkpoints and result. Options that are not given have the
    task's defaults. Where no rates are given or stored, they are searched for first, and config.toml has them. A problem
    of your own is judged by its metric, or by the first that its evaluate returns.

    A task takes data of your own with --data. What was learned is in the folder too: tables for people, model.safetensors
    for rookery predict, and report.html. Simple rivals are trained beside it, unless --no-rivals.

    With --devices clients live on several devices. On several machines start the same command on each, with --coordinator,
    --processes and --process, or with --distributed where a cluster tells; rookery launch does it on one machine.

    Examples:

      rookery run hyper-representation

      rookery run data-cleaning --algorithm FedBiOAcc --dataset mnist --seeds 3 --set eta_x=0.1

      rookery run data-cleaning --data patients.csv --label diagnosis --client-column hospital --model mlp:64

      rookery run my_problem.py --algorithm FedBiO --rounds 200

      rookery run best.toml --seeds 10 --out runs/final

      rookery run hyper-representation --rounds 20 --engine flower --nodes 2

      rookery run hyper-representation --clients 1000 --devices 4
    """
    given = {
        "algorithm": algorithm, "dataset": dataset, "clients": clients, "participants": participants,
        "local_steps": local_steps, "batch_size": batch_size, "rounds": rounds, "every": every, "seed": seed,
        "seeds": seeds, "clients_at_once": clients_at_once,
        "aggregate": aggregate, "privacy": privacy,
        "data": data, "label": label, "client_column": client_column, "checked_column": checked_column,
        "ignore": tuple(ignore or ()), "fill": fill, "test": test, "model": model,
    }  # fmt: skip
    trackers = check_trackers(track or [])
    if engine not in ("simulator", "flower"):
        raise ValueError(f"--engine must be simulator or flower, got {engine!r}")
    if secure is not None and engine != "flower":
        raise ValueError("--secure is for --engine flower: the simulator has no nodes that something is hidden from")
    flower = _nodes(nodes, secure, privacy) if engine == "flower" else None
    with joined(coordinator, processes, process, distributed, devices) as used:
        if engine == "flower" and used is not None:
            raise ValueError(
                "--devices and several processes are for --engine simulator: nodes of Flower have their own"
            )
        settings = settings_from(task, given, set_ or [])
        _check_same(settings)
        folder = Path(on_first(lambda: str(new_folder(settings, settings.algorithm)))) if out is None else out
        on_first(lambda: check_new(folder))
        again = f"Continue with: {command_line()}" + (f" --out {shlex.quote(str(folder))}" if out is None else "")

        def search() -> dict[str, Any]:
            if flower is not None and not has_rates(settings):
                _check_quietly(settings, flower)
            (found,), _ = tuned([settings], folder, Budget(budget, as_unit(unit)), no_tune=no_tune, as_json=as_json)
            return dict(found.rates)

        with if_stopped(again):
            settings = replace(settings, rates=on_first(search))
        how: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds, "note": note_on_rounds(settings, rounds, task)}
        how |= {"rates_from": rates_from(settings), "rivals": not no_rivals}
        if engine == "flower":
            how["engine"] = flower
        elif used is not None:
            how["engine"] = Simulator(devices=used)
        with tracked(trackers if is_first() else [], folder) as watch:
            finish(folder, lambda: start_run(settings, folder, command_line(), watch=watch, **how), as_json)


def _check_quietly(settings: Settings, engine: Engine) -> None:
    """What nodes refuse is refused before a search, which is made without them; what there is to warn of, the run says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepare_run(settings, engine=engine)


def _nodes(nodes: int, secure: float | None, privacy: str | None) -> Flower:
    """What clients keep stays with them where something is to be hidden."""
    hidden = secure is not None or privacy is not None
    return Flower(nodes=nodes, secure=None if secure is None else SecureSum(secure), collect=not hidden)


def _check_same(settings: Settings) -> None:
    """All processes were started with the same options; where the problem's file lies may differ between machines."""
    if (group := current()) is not None:
        tables: dict[str, Any] = settings.tables()
        group.same("options", digest({**tables, "run": {**tables["run"], "task": ""}, "data": None}))
