"""The demonstration: hyper-representation on scikit-learn's digits with six bilevel algorithms."""

import shutil
from pathlib import Path

from rich.console import Console

from rookery.experiment.folder import StoredRun, find_runs
from rookery.experiment.running import start_run
from rookery.experiment.settings import resolve
from rookery.report import final_table, plot_curves, write_page

ALGORITHMS = ("MeFBO", "FedBiO", "FedBiOAcc", "SimFBO", "ASFBO", "LA-ASFBO")


def run_demo(out: Path, rounds: int, seeds: int, progress: bool | None = None) -> list[StoredRun]:
    """Runs every algorithm with all seeds in one program, shows a table and leaves the runs and a report in ``out``.

    The rates are the defaults of the task, from a grid on held-out training data; they show the library and are not the
    last word on the methods.
    """
    console = Console()
    chosen = [
        resolve({"task": "hyper-representation", "algorithm": name, "rounds": rounds, "seeds": seeds})
        for name in ALGORITHMS
    ]
    first = chosen[0]
    console.print(
        f"Hyper-representation on digits: {first.clients} clients, {first.participants} in a round, "
        f"{first.local_steps} local steps, batches of {first.batch_size}; {len(chosen)} algorithms, {rounds} rounds, "
        f"{seeds} seeds each in one compiled program."
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
    console.print("MB and oracle calls: per seed, all clients together; seconds: all seeds, compilation included.")
    console.print(f"Curves: {figure}\nReport: {page}")
    return runs
