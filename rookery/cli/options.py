"""The options that several commands share."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from rookery.algorithms.registry import registry
from rookery.cli.track import TRACKERS
from rookery.datasets import DATASETS
from rookery.tasks import RECIPES


def _completion(known: Iterable[str]) -> Callable[[str], list[str]]:
    """For shells: the known names that begin like this, in any case."""
    return lambda incomplete: [name for name in known if name.lower().startswith(incomplete.lower())]


TaskOrFile = Annotated[
    str,
    typer.Argument(
        help="A task, a problem of your own (file.py or package.module, with :NAME for a function or dictionary in it), "
        "or a TOML file of settings.",
        autocompletion=_completion(RECIPES),
    ),
]
AlgorithmName = Annotated[
    str | None, typer.Option(help="Algorithm; see rookery list.", autocompletion=_completion(registry))
]
Dataset = Annotated[
    str | None, typer.Option(help="Data set; see rookery list datasets.", autocompletion=_completion(DATASETS))
]
OwnData = Annotated[
    str | None,
    typer.Option(
        "--data", help="Data of your own: a table (.csv, .parquet), arrays (.npz) or a folder of images by class."
    ),
]
Label = Annotated[str | None, typer.Option(help="With --data: the column of the labels.")]
ClientColumn = Annotated[str | None, typer.Option(help="With --data: the column that says whose a row is.")]
CheckedColumn = Annotated[
    str | None, typer.Option(help="With --data: the column that says which labels somebody has checked.")
]
Ignore = Annotated[
    list[str] | None, typer.Option(help="With --data: a column to leave out; may be given several times.")
]
Fill = Annotated[
    bool, typer.Option("--fill", help="With --data: fill missing values by medians and a category of their own.")
]
TestData = Annotated[
    str | None, typer.Option("--test", help="With --data: another file to test on; by default a fifth of the rows.")
]
Model = Annotated[
    str | None, typer.Option(help="The network: linear, mlp:64,64, cnn, lenet, resnet18, or FILE.py:make of your own.")
]
NoRivals = Annotated[bool, typer.Option("--no-rivals", help="Do not train the simple rivals of the task.")]
Clients = Annotated[int | None, typer.Option(help="Number of clients.")]
Participants = Annotated[
    str | None, typer.Option(help="Clients in a round: a number, a probability such as 0.5, or all.")
]
LocalSteps = Annotated[str | None, typer.Option(help="Local steps: a number, or a range such as 5-15.")]
BatchSize = Annotated[str | None, typer.Option(help="Size of minibatches: a number, all, or LOWER,UPPER.")]
Rounds = Annotated[
    int | None, typer.Option(help="Communication rounds; 100 for a problem of your own that does not say.")
]
Every = Annotated[int | None, typer.Option(help="Rounds between evaluations.")]
Seed = Annotated[int | None, typer.Option(help="The first seed.")]
Seeds = Annotated[int | None, typer.Option(help="Number of seeds; all run in one program.")]
ClientsAtOnce = Annotated[int | None, typer.Option(help="Clients computed at a time; fewer need less memory.")]
Aggregate = Annotated[
    str | None,
    typer.Option(help='A robust rule instead of the mean: "TrimmedMean(0.2)", Median, "Krum(2)"; see docs/trust.md.'),
]
Privacy = Annotated[
    str | None,
    typer.Option(help='Private rounds: "clip=0.5, noise=1.0, delta=1e-5", or epsilon=8 in place of noise.'),
]
Secure = Annotated[
    float | None,
    typer.Option(
        help="Secure sums on nodes: the server sees the sum of uploads alone, as long as this share of the nodes stays, "
        "such as 0.6."
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", help="NAME=VALUE: an option of the task or a rate of the algorithm; ALGORITHM.NAME=VALUE: of that one."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON to stdout, for programs.")]
Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Also tell a tracker: tensorboard, trackio, wandb or mlflow; may be given several times.",
        autocompletion=_completion(TRACKERS),
    ),
]
CheckpointSeconds = Annotated[float, typer.Option(min=0, help="Least time between checkpoints, in seconds.")]
Problem = Annotated[str, typer.Option(help="The problem: a Python file, package.module, or a run's TOML file.")]
SuperLink = Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")]
RootCertificates = Annotated[Path | None, typer.Option(help="The root certificate of the SuperLink.")]
NoTune = Annotated[
    bool, typer.Option("--no-tune", help="Take the rates that are stored, else the defaults; do not search for any.")
]
Runs = Annotated[
    float, typer.Option("--budget", help="What the search for rates may cost for each algorithm, in runs; at least 3.")
]
BudgetUnit = Annotated[str, typer.Option("--unit", help="What the budget is counted in: rounds, calls or bytes.")]
Coordinator = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="One of several processes: where the first can be reached.")
]
ProcessCount = Annotated[int | None, typer.Option("--processes", min=1, help="With --coordinator: how many there are.")]
ProcessNumber = Annotated[
    int | None, typer.Option("--process", min=0, help="With --coordinator: which one this is: 0, 1, …")
]
Distributed = Annotated[
    bool,
    typer.Option("--distributed", help="One of several processes, as a cluster tells: SLURM, Open MPI, a TPU pod."),
]
Devices = Annotated[
    str | None, typer.Option(help="Devices to use, in each process: a number or all. On a CPU as many are made.")
]
