"""Several devices and processes against one, as ratios in one interleaved run: a part of ``make bench``.

    python -m benchmarks.devices                     everything, about ten minutes on two cores
    python -m benchmarks.devices --before HEAD~5     also the plain simulator against that of an older revision

Every side is a group of processes that is started once and then asked for rounds in turn. A process is bound to its cores.
"""

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

REPEATS = 7
ROUNDS = {"mefbo": 60, "mefbo-all": 8, "mefbo-digits": 600, "sgda": 2}
TITLES = {
    "mefbo": "MeFBO, MNIST-shaped, 10 of 100 clients",
    "mefbo-all": "MeFBO, MNIST-shaped, all 100 clients",
    "mefbo-digits": "MeFBO, digits-sized, 10 of 20 clients",
    "sgda": "Local SGDA, CIFAR network, 20 clients",
}


# --- in a process of a side -------------------------------------------------------------------------------------------


def make_case(name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments and options of ``rk.solve``."""
    import numpy as np

    import rookery as rk
    from benchmarks.speed import PROBLEM, SIZES, make, no_metrics

    if name.startswith("mefbo"):
        size = SIZES["digits-sized" if name.endswith("digits") else "MNIST-shaped"]
        clients, x0, y0 = make(**size)
        taking = None if name.endswith("all") else 10
        how = {"participation": taking, "batch_size": size["batch"], "evaluate": no_metrics}
        return (PROBLEM, rk.MeFBO(), clients, x0, y0), how
    from rookery.datasets import Dataset
    from rookery.tasks.fairness import fair_classification

    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (2000, 32, 32, 3), np.uint8), np.arange(2000) % 10
    data = Dataset("noise", images, labels, images[:100], labels[:100], 0.5, 0.25)
    task = fair_classification(data, clients=20)
    algorithm = rk.LocalSGDA(eta_x=1e-3, eta_y=1e-3)
    how = {"batch_size": 50, "local_steps": 5, "evaluate": no_metrics}
    return (task.problem, algorithm, task.clients, task.x0, task.y0), how


def work(name: str, engine: Any) -> None:
    """Answers each line on stdin, a number of rounds, with the seconds that they took."""
    import rookery as rk

    task, how = make_case(name)
    for line in sys.stdin:
        rounds = int(line)
        found = rk.solve(*task, **how, rounds=rounds, every=rounds, engine=engine, progress=False)
        print(json.dumps({"seconds": found.history.last["seconds"]}), flush=True)


STATE = {"n": 1_000_000, "numbers": 100, "participants": 1000, "rounds": 20, "timed": 0}


def grow(engine: Any, chosen: Any, given: dict[str, int] | None = None) -> None:
    """Memory of a run whose clients keep a hundred numbers each, at the end and at the peak in Mbyte; seconds of a round."""
    import jax.numpy as jnp
    import numpy as np

    import rookery as rk

    size = {**STATE, **(given or {})}

    class Remembers(rk.Algorithm):
        """Each client keeps a momentum of its own."""

        solves = ("minimax",)

        def keep(self, x: Any, y: Any) -> Any:
            return {"m": jnp.zeros_like(x)}

        def round(self) -> tuple[Any, ...]:
            return (rk.Exchange(lambda server: server, self.client, lambda ctx, server, mean: mean),)

        def client(self, local: Any, down: Any, keep: Any) -> Any:
            m = 0.9 * keep["m"] + local.f().grad_x(down["x"], down["y"])
            return rk.Reply({"x": down["x"] - 0.1 * m, "y": down["y"]}, keep={"m": m})

    imported = memory("VmRSS")
    own = chosen(size["n"])
    rows = np.asarray(own, np.float32)[:, None] / size["n"]
    split = rk.Split(rows, np.arange(len(own))[:, None])
    clients = rk.Clients(split, first=own.start, n=size["n"])
    del rows
    problem = rk.Minimax(lambda x, y, batch: ((x - batch.mean()) ** 2).mean() - (y**2).mean())
    x0, y0 = np.ones(size["numbers"], np.float32), np.ones(1, np.float32)
    how = {"rounds": size["rounds"], "every": size["rounds"], "participation": size["participants"], "engine": engine}
    found = rk.solve(problem, Remembers(), clients, x0, y0, **how, progress=False, evaluate=nothing)
    told = {"imported": imported, "end": memory("VmRSS"), "peak": memory("VmHWM")}
    seconds = []
    for _ in range(size["timed"]):
        found = rk.solve(problem, Remembers(), clients, x0, y0, **how, progress=False, evaluate=nothing)
        seconds.append(found.history.last["seconds"] / size["rounds"])
    print(json.dumps({**told, "seconds": statistics.median(seconds) if seconds else 0.0}), flush=True)


def nothing(x: Any, y: Any) -> dict[str, Any]:
    return {}


def memory(what: str) -> float:
    """Mbyte of this process, as the kernel counts them."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3


def be_worker(told: dict[str, Any]) -> None:
    """One process of a side."""
    if told["devices"] and told["processes"] == 1:
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={told['devices']}"
    import rookery as rk

    if told["processes"] > 1:
        rk.join(told["coordinator"], told["processes"], told["process"])
    devices = None if not told["devices"] else "all" if told["processes"] > 1 else told["devices"]
    engine = rk.Simulator(**({} if devices is None else {"devices": devices}), **told.get("engine", {}))
    if told["case"] == "memory":
        grow(engine, rk.own_clients, told.get("size"))
    else:
        work(told["case"], engine)
    if told["processes"] > 1:
        rk.leave()


# --- sides ------------------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """Processes that make the same rounds together; ``cores`` has those of each."""

    case: str
    cores: Sequence[set[int]]
    devices: int = 0
    """0: the plain simulator."""
    path: Path = Path(__file__).parent.parent
    """Where the package lies."""
    engine: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @contextmanager
    def running(self) -> Iterator["Side"]:
        """Started, and ended whatever happens."""
        coordinator = f"127.0.0.1:{free_port()}"
        for number, cores in enumerate(self.cores):
            told = {"case": self.case, "devices": self.devices, "processes": len(self.cores), "process": number}
            told |= {"coordinator": coordinator, "engine": self.engine, **self.more}
            line = [sys.executable, str(Path(__file__).resolve()), "--worker", json.dumps(told)]
            environment = {**os.environ, "PYTHONPATH": str(self.path)}
            self.started.append(
                subprocess.Popen(
                    line,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=self.path,
                    env=environment,
                    preexec_fn=lambda cores=cores: os.sched_setaffinity(0, cores),
                )
            )
        try:
            yield self
        finally:
            for process in self.started:
                assert process.stdin is not None
                process.stdin.close()
            for process in self.started:
                try:
                    process.wait(60)
                except subprocess.TimeoutExpired:
                    process.kill()

    def ask(self, rounds: int) -> float:
        """Seconds of a round."""
        for process in self.started:
            assert process.stdin is not None
            print(rounds, file=process.stdin, flush=True)
        return max(answer["seconds"] for answer in self.answers()) / rounds

    def answers(self) -> list[dict[str, float]]:
        """A line of each process."""
        lines = [next((line for line in process.stdout or () if line.startswith("{")), "") for process in self.started]
        if not all(lines):  # others are Gloo's
            raise RuntimeError(f"a process of {self} has ended")
        return [json.loads(line) for line in lines]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def compared(case: str, sides: dict[str, Side]) -> dict[str, list[float]]:
    """Seconds of a round on each side, by turns; the first call of each compiles."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    with ExitStack() as stack:
        for side in sides.values():
            stack.enter_context(side.running())
        for side in sides.values():
            side.ask(2)
        for _ in range(REPEATS):
            for name, side in sides.items():
                found[name].append(side.ask(ROUNDS[case]))
    return found


def ratio(found: dict[str, list[float]], slow: str, fast: str) -> float:
    """How many times as fast the second side is: the median of the ratios."""
    return statistics.median(a / b for a, b in zip(found[slow], found[fast], strict=True))


def balance(n: int, participants: int, devices: int, draws: int = 20_000) -> float:
    """The speed-up that the draws of participants allow: the mean of how many there are over the most on one device."""
    import numpy as np

    rng = np.random.default_rng(0)
    each = -(-n // devices)
    most = [np.bincount(rng.choice(n, participants, False) // each).max() for _ in range(draws)]
    return participants / float(np.mean(most))


def measure(table: Table, before: Path | None = None) -> None:
    """(a) to (d) of what several devices are for."""
    from benchmarks.speed import add

    for case in ("mefbo", "mefbo-all", "sgda"):
        engine = {"clients_at_once": 1} if case == "sgda" else {}
        one = Side(case, [{0}], engine=engine)
        two = Side(case, [{0}, {1}], devices=1, engine=engine)
        found = compared(case, {"one": one, "two": two})
        limit = f" (at most {balance(100, 10, 2):.2f} by the draws)" if case == "mefbo" else ""
        add(table, f"{TITLES[case]}: two processes of one core, times one process of one core{limit}",
            ratio(found, "one", "two"), 1.7, at_least=True)  # fmt: skip
    for case in ("mefbo", "mefbo-all", "mefbo-digits", "sgda"):
        engine = {"clients_at_once": 1} if case == "sgda" else {}
        plain, devices = Side(case, [{0, 1}], engine=engine), Side(case, [{0, 1}], devices=2, engine=engine)
        sides = {"plain": plain, "devices": devices}
        if before is not None:
            sides["before"] = Side(case, [{0, 1}], path=before, engine=engine)
        found = compared(case, sides)
        what = f"{TITLES[case]}: one process with two devices, times the plain simulator on two cores"
        add(table, what, ratio(found, "plain", "devices"), 0.95, at_least=True)
        if before is not None:
            add(table, f"{TITLES[case]}: the plain simulator, times that of before", ratio(found, "before", "plain"),
                0.97, at_least=True)  # fmt: skip
    memories(table)


def memories(table: Table) -> None:
    """n = 10⁶ clients that keep 100 numbers each, in one process and in two, and what a tiny run takes, their floor."""
    from benchmarks.speed import add

    def peak(cores: Sequence[set[int]], devices: int, **size: int) -> float:
        with Side("memory", cores, devices=devices, more={"size": size}).running() as side:
            return max(answer["peak"] for answer in side.answers())

    one, two = peak([{0, 1}], 0), peak([{0}, {1}], 1)
    least, least_of_two = peak([{0, 1}], 0, n=2000), peak([{0}, {1}], 1, n=2000)
    what = "10⁶ clients that keep 100 numbers, P = 1000: memory of each of two processes"
    add(table, f"{what}, {two:.0f} MB, times {one:.0f} MB of one", two / one, 0.6, at_least=False)
    own = two - least_of_two, one - least
    told = f"{what}, above that of 2000 clients, {own[0]:.0f} MB, times {own[1]:.0f} MB of one"
    add(table, told, own[0] / own[1], 0.6, at_least=False)


@contextmanager
def older(revision: str) -> Iterator[Path]:
    """The package as it was in a revision."""
    with tempfile.TemporaryDirectory(prefix="rookery-") as folder:
        archive = subprocess.run(["git", "archive", revision], capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)
        yield Path(folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--worker")
    parser.add_argument("--before")
    given = parser.parse_args()
    if given.worker:
        be_worker(json.loads(given.worker))
        return
    table = Table(title="Several devices (medians of interleaved ratios)")
    for column in ("what", "measured", "goal", "reached"):
        table.add_column(column, justify="left" if column == "what" else "right")
    with ExitStack() as stack:
        measure(table, stack.enter_context(older(given.before)) if given.before else None)
    Console().print(table)


if __name__ == "__main__":
    started = time.perf_counter()
    main()
