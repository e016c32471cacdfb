"""``rookery resume``: an interrupted run is continued."""

from pathlib import Path
from typing import Annotated, Any

import typer

from rookery.cli.options import CheckpointSeconds, Json, Track
from rookery.cli.output import finish
from rookery.cli.track import check_trackers, tracked
from rookery.experiment.running import resume_run
from rookery.solving.solution import Solution


def command(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.")],
    checkpoint_seconds: CheckpointSeconds = 10.0,
    track: Track = None,
    as_json: Json = False,
) -> None:
    """Continue a run that was interrupted. The result is the same as without the interruption.

    Example: rookery resume runs/hyper-representation-MeFBO-1
    """
    finished = (folder / "result.safetensors").exists()
    trackers = check_trackers(track or [])
    how: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds}

    def work() -> Solution:
        with tracked(trackers, folder) as watch:
            solution = resume_run(folder, watch=watch, **how)
        if finished:
            typer.echo(f"{folder} is already finished.", err=True)
        return solution

    finish(folder, work, as_json)
