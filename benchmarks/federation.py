"""Speed of a federation on this machine: two warm nodes, 640 kB each way, beside the stock Flower App."""

import csv
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import rookery as rk
from rookery.engines.flower.engine import Flower
from rookery.engines.flower.federation import Federation
from rookery.engines.flower.launch.processes import run_stock, started
from rookery.experiment.settings import Settings, resolve, write_toml

HIDDEN = 1880
"""MeFBO sends x, y and θ: 65 + 2·10 numbers for each hidden unit, and 20; with 1880 units 640 kB."""
ROUNDS = 12


def settings() -> Settings:
    run = {"task": "hyper-representation", "clients": 2, "participants": "all", "local_steps": 1, "batch_size": 8}
    return resolve({**run, "algorithm": "MeFBO", "rounds": ROUNDS, "every": ROUNDS}, {"hidden": HIDDEN})


@dataclass(frozen=True)
class Timed(Flower):
    """Notes when the federation is ready for its first exchange, and when each round is done."""

    times: list[float] = field(default_factory=list)

    @contextmanager
    def open(self, run: rk.Run) -> Iterator[Federation]:
        """The federation, watched."""
        with super().open(run) as federation:
            self.times.append(time.perf_counter())
            advance = federation.advance

            def watched(*arguments: Any) -> Any:
                done = advance(*arguments)
                self.times.append(time.perf_counter())
                return done

            federation.advance = watched  # type: ignore[method-assign]
            yield federation


def warm(folder: Path, processes: bool = True) -> tuple[float, float, float]:
    """Seconds to the first exchange, to the end of the first round, and of an exchange after that (the median)."""
    folder.mkdir()
    chosen = settings()
    problem = folder / "settings.toml"
    write_toml(problem, chosen.tables())
    task = chosen.make_tasks()[0]
    engine = Timed(nodes=2, problem=str(problem) if processes else None)
    start = time.perf_counter()
    rk.solve(
        task.problem, chosen.make_algorithm(), task.clients, task.x0, task.y0, rounds=ROUNDS, every=ROUNDS, batch_size=8,
        engine=engine, progress=False,
    )  # fmt: skip
    ready, *done = engine.times
    rounds = [b - a for a, b in itertools.pairwise(done)]
    return ready - start, done[0] - start, statistics.median(rounds)


def stock(folder: Path) -> float:
    """Seconds of an exchange by the app that ``rookery deploy init`` writes, on Flower's own programs (the median)."""
    programs = Path(sys.executable).parent
    problem, app, out = folder / "settings.toml", folder / "app", folder / "out"
    write_toml(problem, settings().tables())
    subprocess.run(
        [programs / "rookery", "deploy", "init", app, "--problem", problem], check=True, stdout=subprocess.DEVNULL
    )
    config = f'algorithm="MeFBO" rounds=4 every=1 participants="all" batch-size="8" out="{out}"'
    with started(folder / "site") as group:
        run_stock(app, group, 2, config).check_returncode()
    with (out / "history.csv").open() as file:
        seconds = [float(row["seconds"]) for row in csv.DictReader(file)]
    return statistics.median(b - a for a, b in itertools.pairwise(seconds))


def measure() -> dict[str, tuple[float, float | None]]:
    """What was measured, with its goal if it has one. Nodes start twice: with nothing compiled, then not."""
    with tempfile.TemporaryDirectory(prefix="rookery-") as folder:
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(folder) / "compiled")
        new, new_done, _ = warm(Path(folder) / "new")
        again, again_done, exchange = warm(Path(folder) / "again")
        threads, _, by_threads = warm(Path(folder) / "threads", processes=False)
        (Path(folder) / "stock").mkdir()
        beside = stock(Path(folder) / "stock")
    return {
        "Flower, two warm nodes, 640 kB each way: seconds an exchange": (exchange, 0.5),
        "Flower, nodes as threads (the default): seconds an exchange": (by_threads, 0.5),
        "Flower, nodes as threads: seconds from rk.solve to the first exchange": (threads, 5.0),
        "Flower, nodes as processes: seconds from rk.solve to the first exchange": (again, 5.0),
        "Flower: the same for a problem that is new to this machine": (new, 5.0),
        "Flower: seconds from rk.solve to the end of round 1": (again_done, None),
        "Flower: the same for a problem that is new to this machine, in which nodes compile": (new_done, None),
        "Flower, the stock App beside it: seconds an exchange": (beside, None),
    }


if __name__ == "__main__":
    for what, (value, goal) in measure().items():
        print(f"{what}: {value:.3g}" + (f" (at most {goal:g})" if goal is not None else ""))
