"""What a secure sum costs beside the plain one: ``python -m benchmarks.secure [--quick] [--participants 10 50 200]``.

FedBiO on a problem with ``--size`` numbers in x and y; everybody takes part. Nodes are in this process and asked one after
the other, so that bytes are those of the real messages (headers too) and a node's seconds are its own. Plain and secure
rounds take turns, and what is printed is the median. A tenth of the nodes also drops out after it has shared its secrets, so
that the server has to recover their masks. The last row has ten participants on each node, which sums them before it masks.

The error is that of the first round's sum, against the sum of the plain round's uploads in float64.
"""

import argparse
import logging
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import jax
import numpy as np

import rookery as rk
from rookery.engines.flower import round as rounds_module
from rookery.engines.flower.engine import Over
from rookery.engines.flower.federation import Federation
from rookery.engines.flower.node import Node
from rookery.engines.flower.site import from_memory
from rookery.engines.flower.summing import Summing
from rookery.engines.flower.wire.pack import unpack
from rookery.engines.flower.wire.requests import Work, read_request
from rookery.engines.flower.wire.transport import Direct
from rookery.solving.prepare import prepare, single

SECURE = rk.SecureSum(threshold=0.6)


def upper(x: Any, y: Any, batch: Any) -> Any:
    """A quadratic, so that the messages are nearly all there is."""
    return (0.5 * ((y - batch["b"]) ** 2).sum(1)).mean() + 0.05 * (x @ x)


def lower(x: Any, y: Any, batch: Any) -> Any:
    """Strongly convex in y."""
    return (0.5 * ((y - x - batch["a"]) ** 2).sum(1)).mean()


@dataclass(frozen=True)
class Case:
    """So many participants on so many nodes, the first of which drop out before they upload."""

    participants: int
    nodes: int
    gone: int

    def __str__(self) -> str:
        return f"{self.participants} | {self.nodes} | {self.gone}"


class Meter(Direct):
    """Counts bytes and seconds; nodes below ``gone`` do not answer exchanges. The first of these messages are kept."""

    def __init__(self, nodes: list[Node], gone: int):
        super().__init__(nodes)
        self.gone = gone
        self.down = self.up = 0
        self.seconds = 0.0
        self.kept: list[tuple[bytes, bytes]] | None = []

    def send(self, requests: Mapping[int, bytes], deadline: float, enough: Any = None) -> dict[int, bytes | str]:
        """The answers of those that stay."""
        answers: dict[int, bytes | str] = {}
        for number, request in requests.items():
            self.down += len(request)
            is_exchange = unpack(request)[1]["kind"] == "exchange"
            if is_exchange and number < self.gone:
                continue
            begun = time.perf_counter()
            answer = self._nodes[number].answer(request)
            self.seconds += time.perf_counter() - begun
            self.up += len(answer)
            answers[number] = answer
            if is_exchange and self.kept is not None:
                self.kept.append((request, answer))
        return answers


class Noted(Summing):
    """Keeps the last sum."""

    last: dict[str, Any]

    def total(self) -> dict[str, Any]:
        """The sum; a copy is kept, since the round goes on to correct the weights in what it is given."""
        found = super().total()
        Noted.last = dict(found)
        return found


class Side:
    """A federation with its meter: plain or secure."""

    def __init__(self, stack: ExitStack, run: rk.Run, site: Any, case: Case, secure: rk.SecureSum | None):
        groups = [list(range(node, case.participants, case.nodes)) for node in range(case.nodes)]
        self.meter = Meter([Node(lambda: site, group) for group in groups], case.gone)
        engine = Over(transport=self.meter, secure=secure, collect=False, attempts=1)
        self._federation: Federation = stack.enter_context(engine.open(run))
        self._state = run.initial_state()
        self.measured: list[dict[str, float]] = []

    def advance(self) -> None:
        """One more round, measured."""
        self.meter.down, self.meter.up, self.meter.seconds = 0, 0, 0.0
        begun = time.perf_counter()
        self._state, _ = self._federation.advance(self._state, 1)
        seconds = time.perf_counter() - begun
        nodes = self.meter.seconds
        found = {
            "down": self.meter.down,
            "up": self.meter.up,
            "seconds": seconds,
            "server": seconds - nodes,
            "nodes": nodes,
        }
        self.measured.append(found)

    def median(self, what: str) -> float:
        """Of all rounds but the first, which compiles."""
        return statistics.median(each[what] for each in self.measured[1:])


@contextmanager
def sides(case: Case, size: int) -> Iterator[tuple[Side, Side]]:
    """The plain federation and the secure one, of the same problem."""
    rng = np.random.default_rng(0)
    half = size // 2

    def rows() -> dict[str, np.ndarray]:
        return {name: rng.standard_normal((2, half)).astype(np.float32) for name in ("a", "b")}

    clients = rk.Clients([rows() for _ in range(case.participants)], [rows() for _ in range(case.participants)])
    task = rk.Bilevel(upper, lower), rk.FedBiO(), clients, np.zeros(half, np.float32), np.ones(half, np.float32)
    run = prepare(single(*task, evaluate=lambda x, y: {})).run
    site = from_memory(task[0], *task[2:])
    with ExitStack() as stack:
        yield Side(stack, run, site, case, None), Side(stack, run, site, case, SECURE)


def error(plain: Side, secure: Side) -> float:
    """The largest of the decoded sum of the first round, against one in float64 of what was uploaded bare."""
    weights: dict[int, dict[str, float]] = {}
    for request, _ in secure.meter.kept or ():
        work = read_request(request)
        assert isinstance(work, Work)
        assert work.secure is not None
        for place, client in enumerate(work.clients):
            weights[client] = {part: own[place] for part, own in work.secure.weights.items()}
    uploads = {int(name): row for _, answer in plain.meter.kept or () for name, row in unpack(answer)[0].items()}
    worst = 0.0
    for part, found in Noted.last.items():
        each = [weights[client][part] * np.asarray(row[part], np.float64) for client, row in uploads.items()]
        worst = max(worst, float(np.abs(np.sum(each, axis=0) - np.concatenate(jax.tree.leaves(found))).max()))
    return worst


def measure(case: Case, size: int, repeats: int) -> dict[str, float]:
    """Medians of both, the median of the ratios of seconds, and the error."""
    with mock.patch.object(rounds_module, "Summing", Noted), sides(case, size) as (plain, secure):
        plain.advance()
        secure.advance()
        worst = error(plain, secure)
        plain.meter.kept = secure.meter.kept = None
        for _ in range(repeats):
            plain.advance()
            secure.advance()
    both = {"plain": plain, "secure": secure}
    found = {f"{name} {what}": side.median(what) for name, side in both.items() for what in side.measured[0]}
    pairs = zip(plain.measured[1:], secure.measured[1:], strict=True)
    found["ratio"] = statistics.median(b["seconds"] / a["seconds"] for a, b in pairs)
    bound = (case.nodes - case.gone) * 2.0 ** -(SECURE.fraction_bits + 1)
    return {**found, "error": worst, "bound": bound}


def report(found: Mapping[Case, Mapping[str, float]], size: int) -> str:
    """Markdown: the verdict, what travels, and how long it takes."""
    alone = [case for case in found if not case.gone and case.nodes == case.participants]
    verdict = "; ".join(
        f"with {case.nodes} nodes {(each := found[case])['secure up'] / each['plain up']:.2f} times the bytes up, "
        f"{each['secure down'] / each['plain down']:.2f} times the bytes down, {each['ratio']:.1f} times the seconds"
        for case in alone
    )
    worst = max(each["error"] for each in found.values())
    within = "within" if all(each["error"] <= each["bound"] for each in found.values()) else "NOT within"
    lines = [
        f"A secure round of FedBiO with {size:,} numbers in x and y takes, beside a plain one, {verdict}; the largest error "
        f"of a sum was {worst:.1e}, {within} the bound.",
        "",
        "| participants | nodes | gone | kB up a node | kB down a node | MB up in all | MB down in all | error | at most |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for case, each in found.items():
        cells = [
            f"{each[f'{side} {way}'] / case.nodes / 1e3:.1f}" for way in ("up", "down") for side in ("plain", "secure")
        ]
        cells += [f"{each[f'{side} {way}'] / 1e6:.2f}" for way in ("up", "down") for side in ("plain", "secure")]
        pairs = " | ".join(f"{a} → {b}" for a, b in zip(cells[::2], cells[1::2], strict=True))
        lines.append(f"| {case} | {pairs} | {each['error']:.1e} | {each['bound']:.1e} |")
    lines += [
        "",
        "| participants | nodes | gone | ms of a node | ms of the server | ms of a round, nodes one by one | ratio |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for case, each in found.items():
        nodes, server, whole = (
            " → ".join(f"{1e3 * each[f'{side} {what}'] / over:.3g}" for side in ("plain", "secure"))
            for what, over in (("nodes", case.nodes), ("server", 1), ("seconds", 1))
        )
        lines.append(f"| {case} | {nodes} | {server} | {whole} | {each['ratio']:.1f} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="10 and 20 participants, 1000 numbers")
    parser.add_argument("--participants", type=int, nargs="+", default=[10, 50, 200])
    parser.add_argument("--size", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    logging.getLogger("rookery.flower").setLevel(logging.ERROR)  # that nodes are gone is no news here
    numbers, size = ([10, 20], 1000) if chosen.quick else (chosen.participants, chosen.size)
    cases = [Case(n, n, gone) for n in numbers for gone in (0, n // 10)]
    if max(numbers) // 10 >= 3 or chosen.quick:
        cases.append(Case(max(numbers), max(3, max(numbers) // 10), 0))
    print(report({case: measure(case, size, chosen.repeats) for case in cases}, size))


if __name__ == "__main__":
    main()
