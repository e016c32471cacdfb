"""The demonstration: hyper-representation on scikit-learn's digits with six bilevel algorithms."""

from pathlib import Path

from rich.console import Console

from rookery.algorithm import Algorithm
from rookery.algorithms.fedbio import FedBiO, FedBiOAcc
from rookery.algorithms.mefbo import MeFBO
from rookery.algorithms.simfbo import ASFBO, LAASFBO, SimFBO
from rookery.datasets import digits
from rookery.history import History
from rookery.report import final_table, plot_curves
from rookery.solve import Lanes, solve_many
from rookery.tasks import hyper_representation

ALGORITHMS: dict[str, Algorithm] = {
    "MeFBO": MeFBO(gamma_x=3.0, gamma_y=0.3, gamma_theta=0.3, nu=2.0, c=1.0),
    "FedBiO": FedBiO(eta_x=0.3, eta_y=0.1, eta_z=0.03),
    "FedBiOAcc": FedBiOAcc(eta_x=1.0, eta_y=0.3, eta_z=0.1, c_x=1.0, c_y=0.3, c_z=0.3),
    "SimFBO": SimFBO(gamma_x=0.3, gamma_y=0.1, gamma_z=0.03),
    "ASFBO": ASFBO(gamma_x=0.3, gamma_y=0.3, clip_x=(0.01, 0.3)),
    "LA-ASFBO": LAASFBO(gamma_x=0.3, gamma_y=0.3, clip_x=(0.01, 0.3)),
}
"""Rates from a small grid on this task (one seed); they show the library, not the last word on the methods."""


def run_demo(out: Path, rounds: int, seeds: int, progress: bool | None = None) -> dict[str, History]:
    """Runs every algorithm with all seeds in one program, shows a table and leaves the curves in ``out``."""
    console = Console()
    data = digits()
    tasks = [hyper_representation(data, clients=20, hidden=32, rc=0.01, seed=seed) for seed in range(seeds)]
    console.print(
        f"Hyper-representation on digits: {tasks[0].clients.n} clients, 10 in a round, 3 local steps, batches of 32; "
        f"{len(ALGORITHMS)} algorithms, {rounds} rounds, {seeds} seeds each in one compiled program."
    )
    histories = {}
    for name, algorithm in ALGORITHMS.items():
        solution = solve_many(
            tasks[0].problem,
            algorithm,
            [task.clients for task in tasks],
            Lanes([task.x0 for task in tasks]),
            Lanes([task.y0 for task in tasks]),
            rounds=rounds,
            keys=range(seeds),
            participation=10,
            local_steps=3,
            batch_size=32,
            evaluate=tasks[0].evaluate,
            every=max(1, rounds // 30),
            progress=progress,
        )
        histories[name] = solution.history
    out.mkdir(parents=True, exist_ok=True)
    figure = out / "digits.png"
    plot_curves(histories, "accuracy", "Hyper-representation on digits", figure)
    console.print(
        final_table(histories, "accuracy", f"Test accuracy after {rounds} rounds, mean ± std over {seeds} seeds")
    )
    console.print("MB and oracle calls: per seed, all clients together; seconds: all seeds, compilation included.")
    console.print(f"Curves: {figure}")
    return histories
