"""Speed, as ratios in one interleaved run: ``make bench``.

The machine may be shared and noisy, so the two sides of a ratio take turns and the median of the ratios is reported.
PyTorch works in a process of its own, which sleeps while the other side is timed.
"""

import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import rookery as rk
from rookery.models.layers import Dense, cross_entropy, squared_norm

SIZES = {
    "MNIST-shaped": {"d_in": 784, "hidden": 200, "n": 100, "rows": 300, "batch": 64},
    "digits-sized": {"d_in": 64, "hidden": 32, "n": 20, "rows": 36, "batch": 32},
}
ROUNDS = {"MNIST-shaped": 40, "digits-sized": 1000}
TORCH_ROUNDS = {"MNIST-shaped": 10, "digits-sized": 30}
REPEATS = 7


def no_metrics(x: Any, y: Any) -> dict[str, Any]:
    return {}


def upper(x: Dense, y: Dense, batch: Any) -> jax.Array:
    return cross_entropy(y(jax.nn.relu(x(batch["image"]))), batch["label"])


def lower(x: Dense, y: Dense, batch: Any) -> jax.Array:
    return upper(x, y, batch) + 0.05 * squared_norm(y)


PROBLEM = rk.Bilevel(upper, lower)


def make(d_in: int, hidden: int, n: int, rows: int, batch: int) -> tuple[rk.Clients, Dense, Dense]:
    """Gaussian classes, the data of the PyTorch loop."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 2 * n * rows)
    images = rng.normal(size=(10, d_in))[labels] + rng.normal(size=(labels.size, d_in))
    data = {"image": images.astype(np.float32), "label": labels.astype(np.int32)}
    held = np.arange(labels.size).reshape(n, 2 * rows)
    clients = rk.Clients(rk.Split(data, list(held[:, :rows])), rk.Split(data, list(held[:, rows:])))
    keys = jax.random.split(jax.random.key(0))
    return clients, Dense(d_in, hidden, keys[0]), Dense(hidden, 10, keys[1])


def seconds_per_round(algorithm: rk.Algorithm, made: Any, size: dict[str, int], rounds: int) -> float:
    clients, x0, y0 = made
    solution = rk.solve(PROBLEM, algorithm, clients, x0, y0, rounds=rounds, every=rounds, participation=10,
                        batch_size=size["batch"], evaluate=no_metrics, progress=False)  # fmt: skip
    return float(solution.history.last["seconds"]) / rounds


def torch_worker(pipe: Connection) -> None:
    """Times rounds of the PyTorch loop on request: (algorithm, size name, threads)."""
    import torch

    from benchmarks import torch_loop

    loops: dict[str, Callable[..., Any]] = {"MeFBO": torch_loop.mefbo_rounds, "FedBiO": torch_loop.fedbio_rounds}
    problems = {
        name: torch_loop.make_problem(size["d_in"], size["hidden"], size["n"], size["rows"])
        for name, size in SIZES.items()
    }
    while (request := pipe.recv()) is not None:
        algorithm, size, threads = request
        torch.set_num_threads(threads)
        problem, rounds, batch = problems[size], TORCH_ROUNDS[size], SIZES[size]["batch"]
        start = time.perf_counter()
        loops[algorithm](problem, rounds, 10, batch, 1)
        pipe.send((time.perf_counter() - start) / rounds)


def matmul_rate() -> float:
    """Floating-point operations a second of a 2048² float32 product."""
    a = jnp.asarray(np.random.default_rng(0).normal(size=(2048, 2048)), jnp.float32)
    product = jax.jit(lambda a: a @ a)
    product(a).block_until_ready()
    start = time.perf_counter()
    for _ in range(5):
        product(a).block_until_ready()
    return 5 * 2 * 2048**3 / (time.perf_counter() - start)


def operations(algorithm: str, size: dict[str, int]) -> float:
    """Operations of one round of ten clients in the products with the first layer (which are nearly all).

    MeFBO: forward and backward for f and for g: 4 products. FedBiO: 1 for ∇_y g, 2 for ∇_x f, 2 for ∇²_xy g z, 1 for
    ∇_y f and 1 for ∇²_yy g z, on five batches: 7 products.
    """
    products = {"MeFBO": 4, "FedBiO": 7}[algorithm]
    return 10 * products * 2 * size["batch"] * size["d_in"] * size["hidden"]


def against_torch(table: Table) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=torch_worker, args=(theirs,), daemon=True)
    process.start()
    algorithms: dict[str, rk.Algorithm] = {"MeFBO": rk.MeFBO(), "FedBiO": rk.FedBiO()}
    try:
        for name, size in SIZES.items():
            made = make(**size)
            for algorithm, instance in algorithms.items():
                ratios, fractions, speeds = [], [], []
                seconds_per_round(instance, made, size, 2)  # compiles
                for threads in (1, 2):
                    ours.send((algorithm, name, threads))
                    ours.recv()
                for _ in range(REPEATS):
                    mine = seconds_per_round(instance, made, size, ROUNDS[name])
                    loop = []
                    for threads in (1, 2):
                        ours.send((algorithm, name, threads))
                        loop.append(ours.recv())
                    ratios.append(min(loop) / mine)
                    speeds.append(1 / mine)
                    fractions.append(operations(algorithm, size) / mine / matmul_rate())
                goal = 3 if name == "MNIST-shaped" else 30
                what = f"{name} ({size['d_in']}-{size['hidden']}-10, n={size['n']}, batch {size['batch']})"
                add(table, f"{algorithm}, {what}: {statistics.median(speeds):.0f} rounds/s, times a PyTorch loop",
                    statistics.median(ratios), goal, at_least=True)  # fmt: skip
                if name == "MNIST-shaped":
                    add(table, f"{algorithm}, {name}: share of a 2048² product's operations a second",
                        statistics.median(fractions), 0.4, at_least=True)  # fmt: skip
    finally:
        ours.send(None)
        process.join()


def ten_seeds(table: Table) -> None:
    size = SIZES["digits-sized"]
    clients, x0, y0 = make(**size)

    def run(seeds: int) -> float:
        solution = rk.solve_many(
            PROBLEM, rk.MeFBO(), clients, x0, y0, keys=range(seeds), rounds=500, every=500, participation=10,
            batch_size=size["batch"], evaluate=no_metrics, progress=False,
        )  # fmt: skip
        return float(solution.history.last["seconds"])

    run(1), run(10)
    ratios = [run(10) / run(1) for _ in range(REPEATS)]
    add(table, "MeFBO, digits-sized: ten seeds in one program, times one", statistics.median(ratios), 6, at_least=False)


def many_clients(table: Table) -> None:
    """The same million of examples, held by a hundred or by a million clients; ten take part."""
    total = 1_000_000
    rng = np.random.default_rng(0)
    data = {"image": rng.normal(size=(total, 16)).astype(np.float32), "label": rng.integers(0, 10, total, np.int32)}

    def made(n: int) -> tuple[rk.Clients, Dense, Dense]:
        split = rk.Split(data, list(np.arange(total).reshape(n, -1)))
        keys = jax.random.split(jax.random.key(0))
        return rk.Clients(split, split), Dense(16, 16, keys[0]), Dense(16, 10, keys[1])

    sides = {n: made(n) for n in (100, 1_000_000)}
    size = {"batch": 8}
    for side in sides.values():
        seconds_per_round(rk.MeFBO(), side, size, 2)
    ratios = []
    for _ in range(REPEATS):
        few, many = (seconds_per_round(rk.MeFBO(), side, size, 3000) for side in sides.values())
        ratios.append(many / few)
    add(table, "MeFBO: round with 10⁶ clients, times one with 100", statistics.median(ratios), 1.3, at_least=False)


def first_round(table: Table) -> None:
    size = {**SIZES["digits-sized"], "hidden": 33}  # a size that was not compiled before
    clients, x0, y0 = make(**size)
    start = time.perf_counter()
    rk.solve(PROBLEM, rk.MeFBO(), clients, x0, y0, rounds=1, participation=10, batch_size=32, progress=False)
    add(table, "MeFBO, digits-sized: seconds from rk.solve to the first finished round",
        time.perf_counter() - start, 5, at_least=False)  # fmt: skip


def fednest(table: Table) -> None:
    """T = 1, 25 local SVRG steps, N = 5, one outer step: 0.3 s a communication round in its authors' code."""
    clients, x0, y0 = make(**SIZES["MNIST-shaped"])
    algorithm = rk.FedNest(eta_x=0.02, eta_y=0.25, products=5)
    seconds = []
    for rounds in (1, 10, 10, 10):
        solution = rk.solve(PROBLEM, algorithm, clients, x0, y0, rounds=rounds, every=rounds, participation=10,
                            local_steps=25, batch_size=64, evaluate=no_metrics, progress=False)  # fmt: skip
        last = solution.history.last
        seconds.append(last["seconds"] / last["exchanges"])
    what = "FedNest, MNIST-shaped, 25 local steps: seconds an exchange"
    add(table, what, statistics.median(seconds[1:]), 0.03, at_least=False)


def flower(table: Table) -> None:
    from benchmarks.federation import measure

    for what, (value, goal) in measure().items():
        if goal is None:
            table.add_row(what, f"{value:.3g}", "", "")
        else:
            add(table, what, value, goal, at_least=False)


def add(table: Table, what: str, value: float, goal: float, *, at_least: bool) -> None:
    good = value >= goal if at_least else value <= goal
    table.add_row(what, f"{value:.3g}", f"{'≥' if at_least else '≤'} {goal:g}", "yes" if good else "[bold]no[/]")


def main() -> None:
    table = Table(title="Speed (medians of interleaved ratios)")
    for column in ("what", "measured", "goal", "reached"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for measure in (first_round, ten_seeds, many_clients, fednest, against_torch, flower):
        measure(table)
    Console().print(table)


if __name__ == "__main__":
    main()
