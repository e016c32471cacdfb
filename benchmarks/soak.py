"""200 rounds on Flower while nodes are killed and answers lost or damaged: ``python -m benchmarks.soak`` (``make soak``).

    python -m benchmarks.soak [--only secure] [--rounds 40]

Three nodes are processes of their own; every five seconds one of them is killed, and a tenth of all answers does not come or
comes damaged: cut off, other bytes, a byte of its head changed, NaN. (A number that was changed into another finite one
cannot be told from an honest one.) The run has to end, as the simulator with the same participants does, and the server's
memory and open files have to stay what they were.

Two algorithms whose clients keep something: FedSGDA-M, where whoever is lost is left out; and FedBiOAcc-Local, where a round
has two exchanges and is repeated with others when somebody is lost, because only such a run can be replayed.

FedSGDA-M again with secure sums, and with secure sums of private rounds: 60 rounds on five nodes of which three must stay,
one killed every 15 seconds, since a round waits for whoever just came back. There a digit of a share is changed in the place
of NaN: masked numbers are integers, any of which is as good as another, so that nobody can tell a masked sum with other
numbers from an honest one. What clients keep does not come to the server and is not compared. The noise of the private
rounds is next to none, so that they can be replayed; ε must be no less than the simulator's.
"""

import argparse
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

import equinox as eqx
import jax
import numpy as np

import rookery as rk
from benchmarks.growth import HOW, Watched, node_processes, resident, write_problem
from rookery.engines.flower.federation import Federation
from rookery.engines.flower.wire.pack import pack, unpack

ROUNDS, START, KILL_EVERY, FAULTS = 200, 50, 5.0, 0.1
BARS = {"difference": 1e-5, "memory": 5.0, "files": 5.0}
"""At most: of the largest number of an array; Mbyte and open files of the server more than after round 50."""
SECURE: dict[str, Any] = {
    "algorithm": "FedSGDA-M",
    "rounds": 60,
    "kill_every": 15.0,
    "nodes": 5,
    "quorum": 0.5,
    "secure": rk.SecureSum(threshold=0.6),
    "collect": False,
}
CASES: dict[str, dict[str, Any]] = {
    "FedSGDA-M": {"algorithm": "FedSGDA-M", "participation": 3, "quorum": 0.5},
    "FedBiOAcc-Local": {"algorithm": "FedBiOAcc-Local", "participation": 2, "quorum": 1.0},
    "secure": SECURE,
    "secure-private": {**SECURE, "privacy": rk.ClientPrivacy(clip=1.0, noise=1e-9, delta=1e-3)},
}


class Faulty:
    """A transport that loses and damages answers."""

    def __init__(self, transport: Any, dice: random.Random, secure: bool):
        self._transport = transport
        self._dice = dice
        self._damages = [self._cut, self._noise, self._head, *([self._share] * 3 if secure else [self._nan])]
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
                answers[node] = self._dice.choice(self._damages)(answer)
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

    def _share(self, answer: bytes) -> bytes:
        """Another digit in a share that removes masks; in an answer without shares, another byte in its head."""
        tree, meta = unpack(answer)
        if not meta.get("shares"):
            return self._head(answer)
        self.happened["shares"] += 1
        party = self._dice.choice(sorted(meta["shares"]))
        old = meta["shares"][party]
        meta["shares"][party] = f"{(int(old[0], 16) + 1) % 16:x}" + old[1:]
        return pack(tree, meta)


@dataclass(frozen=True)
class Soaked(Watched):
    """Nodes of ours that are killed, behind a faulty transport."""

    kill_every: float = KILL_EVERY
    dice: random.Random = field(default_factory=lambda: random.Random(0))
    seen: dict[str, Any] = field(default_factory=dict)

    @contextmanager
    def open(self, run: rk.Run) -> Iterator[Federation]:
        """The federation; the killer is at work until the last round is made."""
        with super().open(run) as federation:
            faulty = Faulty(federation.roster.transport, self.dice, self.secure is not None)
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
        while not stop.wait(self.kill_every):
            process = dice.choice(list(node_processes(self.folder).values()))
            with suppress(OSError):  # it is just being started again
                if b"rookery.cli.starter" in Path(f"/proc/{process}/cmdline").read_bytes():
                    os.kill(process, signal.SIGKILL)
                    self.seen["killed"] = self.seen.get("killed", 0) + 1


def soak(folder: Path, rounds: int, algorithm: str, **how: Any) -> dict[str, Any]:
    """What happened, and what it came to."""
    file, task = write_problem(folder, rk.registry[algorithm]())
    at: dict[int, tuple[float, float]] = {}
    attempts: list[int] = []
    start = min(START, rounds // 4)

    def after(federation: Federation, round: int) -> None:
        attempts.append(federation.record["attempts"])
        if round in (start, rounds):
            at[round] = resident(os.getpid()), len(os.listdir("/proc/self/fd"))

    given = {**HOW, "rounds": rounds, "every": rounds, "privacy": how.pop("privacy", None)}
    participation = how.pop("participation", None)
    engine = Soaked(**{"nodes": 3, **how}, problem=file, folder=folder, after=after, attempts=40, pause=0.05)
    begun = time.monotonic()
    found = rk.solve(*task, engine=engine, participation=participation, **given)
    seconds = time.monotonic() - begun
    trace = engine.seen.pop("trace")
    replayed = Recorded(trace, participation)
    expected = rk.solve(*task, participation=replayed, **given)
    memory, files = (after - before for before, after in zip(at[start], at[rounds], strict=True))
    needed = ["killed", "lost", "damaged", *(["shares"] if engine.secure is not None else [])]
    measured = {
        "rounds": len(trace),
        "seconds": seconds,
        **{what: engine.seen.get(what, 0) for what in ("answers", *needed)},
        "repeated": sum(attempts) - len(attempts),
        "left out": sum(len(task[2].weights) - len(counted) for counted, *_ in trace) if participation is None else 0,
        "difference": difference(found, expected, engine.collect),
        "memory": memory,
        "files": files,
    }
    if given["privacy"] is not None:
        measured["epsilon"], measured["at least"] = (s.history.last["epsilon"] for s in (found, expected))
    return measured


class Recorded(rk.Replay):
    """The participants of a run again, with the weights of private rounds as they were: those of all that were asked."""

    def __init__(self, trace: list[list[list[int]]], asked: int | None):
        super().__init__(trace)
        self.asked = asked

    asked: int | None = eqx.field(static=True)

    def expected(self, n: int) -> float:
        """As many as were asked, whoever came."""
        return float(n if self.asked is None else self.asked)


def difference(found: Any, expected: Any, kept: bool) -> float:
    """The largest of all arrays' differences, as a share of the largest number of the array."""
    one, other = ((s.x, s.y, s.state.server, s.state.last, s.state.keep if kept else None) for s in (found, expected))
    pairs = [(np.asarray(a), np.asarray(b)) for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)]
    return float(np.max([np.abs(a - b).max() / max(np.abs(b).max(), 0.01) for a, b in pairs]))  # a NaN stays one


def missed(measured: Mapping[str, Any], rounds: int) -> list[str]:
    """The bars that are not met; faults that did not happen are no test."""
    wrong = [what for what, bar in BARS.items() if not measured[what] <= bar]
    wrong += [what for what in ("killed", "lost", "damaged", "shares") if not measured.get(what, 1)]
    wrong += ["epsilon"] if not measured.get("epsilon", 0.0) >= measured.get("at least", 0.0) else []
    return wrong + (["rounds"] if measured["rounds"] != rounds else [])


def main() -> int:
    """Prints the table; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=list(CASES), help="this case alone")
    parser.add_argument("--rounds", type=int, help=f"in the place of {ROUNDS}, or of what the case has")
    chosen = parser.parse_args()
    logging.getLogger("rookery.flower").setLevel(logging.ERROR)  # hundreds of faults are no news here
    wrong = []
    for name in [chosen.only] if chosen.only else CASES:
        case = {"rounds": ROUNDS, **CASES[name], **({} if chosen.rounds is None else {"rounds": chosen.rounds})}
        with tempfile.TemporaryDirectory(prefix="rookery-") as folder:
            measured = soak(Path(folder), **case)
        for what, value in measured.items():
            bar = f" (at most {BARS[what]:g})" if what in BARS else ""
            print(f"{name:<16}{what:<12}{value:10.3g}{bar}", flush=True)
        wrong += [f"{name}: {what}" for what in missed(measured, case["rounds"])]
    print("missed: " + ", ".join(wrong) if wrong else "all bars are met")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
