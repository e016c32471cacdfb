"""200 rounds on Flower while nodes are killed and answers lost or damaged: ``python -m benchmarks.soak`` (``make soak``).

Three nodes are processes of their own; every five seconds one of them is killed, and a tenth of all answers does not come or
comes damaged: cut off, other bytes, a byte of its head changed, NaN. (A number that was changed into another finite one
cannot be told from an honest one.) The run has to end, as the simulator with the same participants does, and the server's
memory and open files have to stay what they were.

Two algorithms whose clients keep something: FedSGDA-M, where whoever is lost is left out; and FedBiOAcc-Local, where a round
has two exchanges and is repeated with others when somebody is lost, because only such a run can be replayed.
"""

import logging
import os
import random
import signal
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np

import rookery as rk
from benchmarks.growth import HOW, Watched, node_processes, resident, write_problem
from rookery.engines.flower.federation import Federation
from rookery.engines.flower.wire.pack import pack, unpack

ROUNDS, START, KILL_EVERY, FAULTS = 200, 50, 5.0, 0.1
BARS = {"difference": 1e-5, "memory": 5.0, "files": 5.0}
"""At most: of the largest number of an array; Mbyte and open files of the server more than after round 50."""


class Faulty:
    """A transport that loses and damages answers."""

    def __init__(self, transport: Any, dice: random.Random):
        self._transport = transport
        self._dice = dice
        self.happened: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def send(self, requests: Mapping[int, bytes], deadline: float, enough: Any = None) -> dict[int, bytes | str]:
        """What is left of the answers."""
        answers: dict[int, bytes | str] = self._transport.send(requests, deadline, enough)
        for node, answer in list(answers.items()):
            if isinstance(answer, str):
                continue
            self.happened["answers"] += 1
            if self._dice.random() >= FAULTS:
                continue
            if self._dice.random() < 0.5:
                self.happened["lost"] += 1
                del answers[node]
            else:
                self.happened["damaged"] += 1
                answers[node] = self._dice.choice([self._cut, self._noise, self._head, self._nan])(answer)
        return answers

    def _cut(self, answer: bytes) -> bytes:
        return answer[: self._dice.randrange(len(answer))]

    def _noise(self, answer: bytes) -> bytes:
        return self._dice.randbytes(len(answer))

    def _head(self, answer: bytes) -> bytes:
        spoiled = bytearray(answer)
        spoiled[self._dice.randrange(8 + struct.unpack_from("<I", answer, 4)[0])] = self._dice.randrange(256)
        return bytes(spoiled)

    def _nan(self, answer: bytes) -> bytes:
        tree, meta = unpack(answer)
        return pack(jax.tree.map(lambda leaf: leaf * np.nan if leaf.dtype.kind == "f" else leaf, tree), meta)


@dataclass(frozen=True)
class Soaked(Watched):
    """Nodes of ours that are killed, behind a faulty transport."""

    dice: random.Random = field(default_factory=lambda: random.Random(0))
    seen: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def open(self, run: rk.Run) -> Iterator[Federation]:
        """The federation; the killer is at work until the last round is made."""
        with super().open(run) as federation:
            faulty = Faulty(federation.roster.transport, self.dice)
            federation.roster.transport = faulty
            stop = threading.Event()
            killer = threading.Thread(target=self._kill, args=(stop,), daemon=True)
            killer.start()
            try:
                yield federation
            finally:
                stop.set()
                killer.join()
            self.seen.update(faulty.happened, trace=federation.trace)

    def _kill(self, stop: threading.Event) -> None:
        assert self.folder is not None
        dice = random.Random(1)
        while not stop.wait(KILL_EVERY):
            process = dice.choice(list(node_processes(self.folder).values()))
            with suppress(OSError):  # it is just being started again
                if b"rookery.cli.starter" in Path(f"/proc/{process}/cmdline").read_bytes():
                    os.kill(process, signal.SIGKILL)
                    self.seen["killed"] = self.seen.get("killed", 0) + 1


def soak(folder: Path, name: str, **how: Any) -> dict[str, Any]:
    """What happened, and what it came to."""
    file, task = write_problem(folder, rk.registry[name]())
    at: dict[str, tuple[float, float]] = {}
    attempts: list[int] = []

    def after(federation: Federation, round: int) -> None:
        attempts.append(federation.record["attempts"])
        if round in (START, ROUNDS):
            at[str(round)] = resident(os.getpid()), len(os.listdir("/proc/self/fd"))

    participation = how.pop("participation")
    engine = Soaked(nodes=3, problem=file, folder=folder, after=after, attempts=40, pause=0.05, **how)
    begun = time.monotonic()
    found = rk.solve(*task, rounds=ROUNDS, every=ROUNDS, engine=engine, participation=participation, **HOW)
    seconds = time.monotonic() - begun
    trace = engine.seen.pop("trace")
    expected = rk.solve(*task, rounds=ROUNDS, every=ROUNDS, participation=rk.Replay(trace), **HOW)
    memory, files = (after - before for before, after in zip(at[str(START)], at[str(ROUNDS)], strict=True))
    return {
        "rounds": len(trace),
        "seconds": seconds,
        **{what: engine.seen.get(what, 0) for what in ("killed", "answers", "lost", "damaged")},
        "repeated": sum(attempts) - len(attempts),
        "difference": difference(found, expected),
        "memory": memory,
        "files": files,
    }


def difference(found: Any, expected: Any) -> float:
    """The largest of all arrays' differences, as a share of the largest number of the array."""
    one, other = ((s.x, s.y, s.state.server, s.state.keep, s.state.last) for s in (found, expected))
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)]
    return float(np.max([np.abs(a - b).max() / max(np.abs(b).max(), 0.01) for a, b in pairs]))  # a NaN stays one


def main() -> int:
    """Prints the table; 1 if a bar is missed."""
    logging.getLogger("rookery.flower").setLevel(logging.ERROR)  # hundreds of faults are no news here
    cases: dict[str, dict[str, Any]] = {
        "FedSGDA-M": {"participation": 3, "quorum": 0.5},
        "FedBiOAcc-Local": {"participation": 2, "quorum": 1.0},
    }
    missed = []
    for name, how in cases.items():
        with tempfile.TemporaryDirectory(prefix="rookery-") as folder:
            measured = soak(Path(folder), name, **how)
        for what, value in measured.items():
            bar = f" (at most {BARS[what]:g})" if what in BARS else ""
            print(f"{name:<16}{what:<12}{value:10.3g}{bar}", flush=True)
        missed += [f"{name}: {what}" for what, bar in BARS.items() if not measured[what] <= bar]
        missed += [f"{name}: {what}" for what in ("killed", "lost", "damaged") if not measured[what]]
        missed += [f"{name}: rounds"] if measured["rounds"] != ROUNDS else []
    print("missed: " + ", ".join(missed) if missed else "all bars are met")
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
