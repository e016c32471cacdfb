"""``rookery resume``: an interrupted run is continued."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rookery.cli.joining import joined
from rookery.cli.options import (
    CheckpointSeconds,
    Coordinator,
    Devices,
    Distributed,
    Json,
    ProcessCount,
    ProcessNumber,
    Track,
)
from rookery.cli.output import finish
from rookery.cli.track import check_trackers, tracked
from rookery.engines.simulator import Simulator
from rookery.experiment.running import resume_run
from rookery.processes import is_first
from rookery.solving.solution import Solution


def command(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    checkpoint_seconds: CheckpointSeconds = 10.0,
    track: Track = None,
    devices: Devices = None,
    coordinator: Coordinator = None,
    processes: ProcessCount = None,
    process: ProcessNumber = None,
    distributed: Distributed = False,
    as_json: Json = False,
) -> None:
    """Continue a run that was interrupted. The result is the same as without the interruption.

    On how many devices, and in how many processes, the run was begun does not matter: say what to use now.

    Examples:

      rookery resume runs/hyper-representation-MeFBO-1

      rookery launch --processes 2 -- resume runs/hyper-representation-MeFBO-1
    """
    finished = (folder / "result.safetensors").exists()
    trackers = check_trackers(track or [])
    how: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds}

    def work() -> Solution:
        with tracked(trackers if is_first() else [], folder) as watch:
            solution = resume_run(folder, watch=watch, **how)
        if finished and is_first():
            typer.echo(f"{folder} is already finished.", err=True)
        return solution

    with joined(coordinator, processes, process, distributed, devices) as used:
        if used is not None:
            how["engine"] = Simulator(devices=used)
        finish(folder, work, as_json)
