"""What a federation's memory does over 500 rounds: ``python -m benchmarks.growth``.

The resident memory (Mbyte) of the server and of each node after every 50 rounds, with nodes as processes and as threads of
the server. After the first 50 rounds it must not grow by more than 5 Mbyte.
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rookery as rk
from rookery.algorithm.setting import State
from rookery.engines.flower.engine import Flower
from rookery.engines.flower.federation import Federation

ROUNDS, EVERY, MOST = 500, 50, 5.0
HOW: dict[str, Any] = {"batch_size": 4, "evaluate": lambda x, y: {}, "progress": False}

PROBLEM = """
import numpy as np
import rookery as rk

num_clients = 6

def upper(x, y, batch):
    return (0.5 * ((y - batch["b"]) ** 2).sum(1) + 0.5 * batch["s"] * (x @ x)).mean() - 0.3 * x.sum()

def lower(x, y, batch):
    return (0.5 * batch["s"] * ((y - x - batch["a"]) ** 2).sum(1)).mean()

def objective(x, y, batch):
    own = 0.5 * batch["s"] * (x @ x) + (batch["a"] @ x) * y.mean() - 0.5 * ((y - batch["b"]) ** 2).sum(1)
    return own.mean() - 0.3 * x.sum()

problem = {"bilevel-local": rk.Bilevel(upper, lower, lower_level="local"), "minimax": rk.Minimax(objective)}["KIND"]
x0, y0 = np.linspace(-1, 1, 200, dtype=np.float32), np.linspace(1, 0, 200, dtype=np.float32)

def rows(seed, size):
    rng = np.random.default_rng(seed)
    made = {"a": rng.standard_normal((size, 200)) / 20, "b": rng.standard_normal((size, 200)), "s": 0.5 + rng.random(size)}
    return {name: values.astype(np.float32) for name, values in made.items()}

def load_client(partition, num_partitions):
    return rk.Clients([rows(partition, 8)], [rows(100 + partition, 8)])
"""
"""A small problem, so that the messages are all there is."""


def write_problem(folder: Path, algorithm: rk.Algorithm) -> tuple[str, tuple[Any, ...]]:
    """The file of the problem, for nodes, and what ``rk.solve`` takes."""
    file = folder / "small_problem.py"
    file.write_text(PROBLEM.replace("KIND", algorithm.solves[0]))
    names: dict[str, Any] = {}
    exec(file.read_text(), names)
    lower, upper = zip(*((names["rows"](i, 8), names["rows"](100 + i, 8)) for i in range(6)), strict=True)
    return str(file), (names["problem"], algorithm, rk.Clients(list(lower), list(upper)), names["x0"], names["y0"])


def resident(process: int) -> float:
    """Mbyte of memory that a process holds of its own: pages of files, which the kernel takes back as it likes, aside."""
    found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


def node_processes(folder: Path) -> dict[str, int]:
    """The newest process of each node that wrote its log into this folder."""
    logs = {path.stem: path.read_text() for path in sorted(folder.glob("node-*.log"))}
    told = {name: re.findall(r"\(process (\d+), Flower's node", text) for name, text in logs.items()}
    return {name: int(found[-1]) for name, found in told.items() if found}


@dataclass(frozen=True)
class Watched(Flower):
    """Calls ``after`` with the federation and the number of rounds after each round."""

    after: Callable[[Federation, int], None] = lambda federation, round: None

    @contextmanager
    def open(self, run: rk.Run) -> Iterator[Federation]:
        """The federation, watched."""
        with super().open(run) as federation:
            advance = federation.advance

            def watched(state: State, rounds: int) -> Any:
                done = advance(state, rounds)
                self.after(federation, done[0].round)
                return done

            federation.advance = watched  # type: ignore[method-assign]
            yield federation


def measure(folder: Path, processes: bool) -> dict[str, list[float]]:
    """Mbyte of each process every 50 rounds of FedBiOAcc-Local: clients keep something, a round has two exchanges."""
    file, task = write_problem(folder, rk.registry["FedBiOAcc-Local"]())
    seen: dict[str, list[float]] = {}

    def after(federation: Federation, round: int) -> None:
        if round % EVERY == 0:
            for name, process in {"server": os.getpid(), **(node_processes(folder) if processes else {})}.items():
                seen.setdefault(name, []).append(resident(process))

    engine = Watched(nodes=2, problem=file if processes else None, folder=folder, after=after)
    rk.solve(*task, rounds=ROUNDS, engine=engine, every=ROUNDS, participation=3, **HOW)
    return seen


def main() -> int:
    """Prints the table; 1 if something grew too much."""
    worst = 0.0
    for kind in ("processes", "threads"):
        with tempfile.TemporaryDirectory(prefix="rookery-") as folder:
            seen = measure(Path(folder), kind == "processes")
        print(f"nodes as {kind}\nround   " + "".join(f"{r:>7}" for r in range(EVERY, ROUNDS + 1, EVERY)) + "   growth")
        for name, values in seen.items():
            growth = values[-1] - values[0]
            worst = max(worst, growth)
            print(f"{name:<8}" + "".join(f"{value:7.1f}" for value in values) + f"{growth:9.1f}", flush=True)
    print(f"most growth after round {EVERY}: {worst:.1f} Mbyte (at most {MOST:g})")
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
