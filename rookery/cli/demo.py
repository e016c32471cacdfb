"""``rookery demo``: six bilevel algorithms on scikit-learn's digits, then six in ten labels wrong and cleaned."""

import base64
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from rookery.cli.interruption import command_line, if_stopped
from rookery.cli.output import show
from rookery.experiment.folder import StoredRun, find_runs, read_run
from rookery.experiment.outcome import LEARNED
from rookery.experiment.running import start_run
from rookery.experiment.settings import resolve
from rookery.experiment.tuned import Budget, find_rates
from rookery.report import final_table, find_rivals, plot_curves, plot_picture, write_page
from rookery.report.tables import summary

ALGORITHMS = ("MeFBO", "FedBiO", "FedBiOAcc", "SimFBO", "ASFBO", "LA-ASFBO")
WRONG = 0.6
"""The share of the training labels that are wrong."""
SHOWN = 18


def command(
    out: Annotated[Path, typer.Option(help="Folder for the runs, the figures and the report.")] = Path("demo"),
    rounds: Annotated[int, typer.Option(min=1, help="Communication rounds.")] = 300,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of each algorithm; all run in one program.")] = 3,
) -> None:
    """Compare six bilevel algorithms on scikit-learn's digits, then clean wrong labels: tables, figures, a report.

    Takes under two minutes.

    Example: rookery demo --rounds 100 --seeds 5
    """
    with if_stopped(f"Start it again with: {command_line()}"):
        run_demo(out, rounds, seeds)


def run_demo(out: Path, rounds: int, seeds: int, progress: bool | None = None) -> list[StoredRun]:
    """Runs each algorithm with all seeds in one program, then cleans labels; leaves runs, pictures and a report in ``out``.

    The rates are the tasks' defaults, from a grid on held-out training data. They show what the library does and do not
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
    plot_curves(histories, "accuracy", "Hyper-representation on digits", out / "digits.png")
    console.print(
        final_table(histories, "accuracy", f"Test accuracy after {rounds} rounds, mean ± std over {seeds} seeds")
    )
    console.print("MB and oracle calls are per seed, over all clients; seconds are for all seeds, with compilation.")
    cleaned = _clean(out / "cleaning", rounds, progress, console)
    page, picture = out / "report.html", out / "cleaning.png"
    write_page([cleaned, *runs], page, "Rookery on scikit-learn's digits")
    _draw(cleaned, picture)
    console.print(f"Curves: {out / 'digits.png'}\nReport: {page}\nPicture: {picture}")
    return [*runs, cleaned]


def _clean(folder: Path, rounds: int, progress: bool | None, console: Console) -> StoredRun:
    """Six in ten labels wrong: FedBiO finds out which, and simple rivals try."""
    options = {"noise": WRONG, "systematic": True, "validation": 0.1}
    settings = resolve({"task": "data-cleaning", "algorithm": "FedBiO", "rounds": rounds}, options)
    console.print(
        f"\nNow six in ten of the training labels are wrong, at all {settings.clients} clients: somebody took each digit "
        "for the next. One in ten samples was checked. FedBiO learns a weight for every other sample, so that what is "
        "trained on them does well on those; its rates are searched for first."
    )
    if (folder / "config.toml").exists():
        shutil.rmtree(folder)  # of an earlier demonstration
    (settings,), _ = find_rates([settings], folder, Budget(), progress=progress)
    start_run(settings, folder, progress=progress, rivals=True)
    run = read_run(folder)
    show([run])
    return run


def _draw(run: StoredRun, path: Path) -> None:
    """Why one would want this: accuracies, and the digits that were found to be mislabelled."""
    bars = {
        rival.name + (" (ceiling)" if rival.ceiling else ""): 100 * float(np.nanmean(rival.metrics[run.metric]))
        for rival in find_rivals([run]).rivals
    }
    mine = f"cleaning by {run.name}"
    bars[mine] = 100 * float(summary(run.history, run.metric).mean[-1])
    plot_picture(
        path,
        title="Six in ten labels are wrong: who finds out which?",
        bars=dict(sorted(bars.items(), key=lambda each: each[1])),
        up="accuracy on test digits (%)",
        highlight=mine,
        samples=_suspicious(json.loads((run.path / LEARNED).read_text())["exhibits"]),
        right="Digits that were found to be mislabelled",
    )


def _suspicious(exhibits: Sequence[dict[str, Any]]) -> list[tuple[np.ndarray, str]]:
    """The images of the samples that count least, with what they are called and what the model calls them."""
    found = next(each for each in exhibits if each["kind"] == "samples")
    given, said = (found["columns"].index(name) for name in ("given label", "prediction"))
    return [
        (
            np.frombuffer(base64.b64decode(item["image"]["pixels"]), np.uint8).reshape(item["image"]["shape"]),
            f"not {item['cells'][given]} but {item['cells'][said]}",
        )
        for item in found["items"][:SHOWN]
    ]
