"""Several nodes on one machine: ``python -m rookery.cli.starter FOLDER SUPERLINK PROBLEM PARTITION...``.

Importing what a node needs takes two seconds of a core. Here it is imported once, and each node is a fork. A node that ends
is started again, unless that happens too often, and the server learns from what is printed here which one it was. A node's
own output goes to its log in the folder.
"""

import os
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from contextlib import suppress
from pathlib import Path

import rookery.engines.flower.wire.adapter  # noqa: F401  (what every node needs; it starts no thread and compiles nothing)
from rookery.cli.node import command as be_node
from rookery.engines.flower.launch.processes import node_number

STARTS, SPAN = 10, 30.0
"""A node is started at most STARTS times in SPAN seconds: one that cannot work at all ends immediately every time."""


def main(folder: Path, superlink: str, problem: str, partitions: list[str]) -> int:
    """Runs until it is asked to stop (returns 0) or a node has ended too often (1)."""
    hosted: dict[int, int] = {}  # the node of each process
    starts = [deque[float](maxlen=STARTS) for _ in partitions]  # when each node was started

    def start(number: int) -> None:
        starts[number].append(time.monotonic())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # NumPy's threads, which survive a fork
            process = os.fork()
        if process == 0:
            os._exit(_be(folder / f"node-{number}", superlink, problem, partitions[number]))
        hosted[process] = number

    asked: list[int] = []  # a signal is only noted: an exception around a fork would be lost
    signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        for number in range(len(partitions)):
            start(number)
        while not asked:
            process, status = os.waitpid(-1, os.WNOHANG)
            if process == 0:
                time.sleep(0.02)
                continue
            number = hosted.pop(process)
            log = (folder / f"node-{number}.log").read_text(errors="replace").strip()
            who = f"node-{number} (Flower's node {_number(process, log)})"
            last = len(starts[number]) == STARTS and time.monotonic() - starts[number][0] < SPAN
            then = "is not started again: " + " | ".join(log.splitlines()[-3:]) if last else "is started again"
            print(f"{who} ended with status {os.waitstatus_to_exitcode(status)} and {then}", flush=True)
            if last:
                return 1
            start(number)
        return 0
    finally:
        for process in hosted:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        for process in hosted:
            with suppress(ChildProcessError):
                os.waitpid(process, 0)


def _number(process: int, log: str) -> int | str:
    """Flower's number of the node that was this process, from its log."""
    number = node_number("".join(line for line in log.splitlines() if f"(process {process}, " in line))
    return "not yet" if number is None else number


def _be(folder: Path, superlink: str, problem: str, partition: str) -> int:
    """Is a node, in a fork. Returns the exit status; the fork must not return to the code it was forked from."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with open(f"{folder}.log", "ab") as log:
            for stream in (1, 2):
                os.dup2(log.fileno(), stream)
        be_node(superlink=superlink, problem=problem, partition=partition, folder=folder, name=folder.name)
        return 0
    except SystemExit as asked:
        return asked.code if isinstance(asked.code, int) else 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
