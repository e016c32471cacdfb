"""``rookery demo``: hyper-representation on scikit-learn's digits with six bilevel algorithms."""

import shutil
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from rookery.cli.interruption import command_line, if_stopped
from rookery.experiment.folder import StoredRun, find_runs
from rookery.experiment.running import start_run
from rookery.experiment.settings import resolve
from rookery.report import final_table, plot_curves, write_page

ALGORITHMS = ("MeFBO", "FedBiO", "FedBiOAcc", "SimFBO", "ASFBO", "LA-ASFBO")


def command(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the figure and the report.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each algorithm; all run in one program.")] = 3,
) -> None:
    """Compare six bilevel algorithms on scikit-learn's digits, in about a minute: a table, a figure and a report.

    Example: rookery demo --rounds 100 --seeds 5
    """
    with if_stopped(f"Start it again with: {command_line()}"):
        run_demo(out, rounds, seeds)


def run_demo(out: Path, rounds: int, seeds: int, progress: bool | None = None) -> list[StoredRun]:
    """Runs each algorithm with all seeds in one program, shows a table and leaves the runs and a report in ``out``.

    The rates are the task's defaults, from a grid on held-out training data. They show what the library does and do not
    settle which method is better.
    """
    console = Console()
    chosen = [
        resolve({"task": "hyper-representation", "algorithm": name, "rounds": rounds, "seeds": seeds})
        for name in ALGORITHMS
    ]
    first = chosen[0]
    console.print(
        f"Hyper-representation on digits: {first.clients} clients, {first.participants} in a round, "
        f"{first.local_steps} local steps, batches of {first.batch_size}; {len(chosen)} algorithms, {rounds} rounds; "
        f"the {seeds} seeds of an algorithm are one compiled program."
    )
    for settings in chosen:
        folder = out / settings.algorithm
        if (folder / "config.toml").exists():
            shutil.rmtree(folder)  # of an earlier demonstration
        start_run(settings, folder, progress=progress)
    runs = find_runs([out / name for name in ALGORITHMS])
    histories = {run.name: run.history for run in runs}
    figure, page = out / "digits.png", out / "report.html"
    plot_curves(histories, "accuracy", "Hyper-representation on digits", figure)
    write_page(runs, page, "Hyper-representation on digits")
    console.print(
        final_table(histories, "accuracy", f"Test accuracy after {rounds} rounds, mean ± std over {seeds} seeds")
    )
    console.print("MB and oracle calls are per seed, over all clients; seconds are for all seeds, with compilation.")
    console.print(f"Curves: {figure}\nReport: {page}")
    return runs
