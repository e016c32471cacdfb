"""``rookery init``: a problem of one's own to begin with."""

import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from rookery.files import write

NAME = "my_problem.py"


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder to write my_problem.py in.")],
) -> None:
    """Write DIR/my_problem.py: a problem of your own, which runs as it is and is meant to be changed.

    Example: rookery init study
    """
    path = folder / NAME
    named = shlex.quote(str(path))
    if path.exists():
        raise ValueError(f"{path} is there already: choose another folder")
    write(path, resources.files("rookery.cli").joinpath("my_problem.txt").read_bytes())
    lines = [
        f"rookery run {named} --seeds 3",
        f"rookery list options {named}",
        f"rookery tune {named} --algorithms FedBiO,MeFBO",
        f"rookery compare {named} --algorithms FedBiO,MeFBO,SimFBO",
        f"rookery sweep {named} --grid eta_x=0.3,1,3",
        f"rookery run {named} --rounds 20 --engine flower --nodes 2",
    ]
    typer.echo(f"{path} is a problem of your own. Try:\n\n" + "\n".join(f"  {line}" for line in lines))
