"""Time and memory of a run against its sizes, beside what the formulas of docs/growth.md say.

    python -m benchmarks.scaling            prints the tables, about ten minutes on two cores
    python -m benchmarks.scaling --write    puts them into docs/growth.md

Clients keep d numbers each and make one step on a quadratic of d variables, so that a round is what the engine itself costs.
One side is the plain simulator on one core, the other two processes of one core.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.devices import Side, balance

PAGE = Path(__file__).parent.parent / "docs" / "growth.md"
BASE = {"n": 100_000, "participants": 200, "numbers": 1000}
GRID = {
    "n": [10_000, 100_000, 1_000_000],
    "participants": [50, 200, 800],
    "numbers": [100, 1000, 10_000],
}
TINY = {"n": 2000, "participants": 200, "numbers": 100}
"""A run that is so small that what it takes is the floor of every process: Python, JAX, the compiled program."""
WORD = 4
"""Bytes of a number."""


@dataclass(frozen=True)
class Point:
    """One run: its sizes, on how many processes, and what was measured."""

    n: int
    participants: int
    numbers: int
    processes: int
    seconds: float
    memory: float

    @property
    def most(self) -> float:
        """Participants of the fullest device, in the mean."""
        return self.participants / balance(self.n, self.participants, self.processes, 300)

    @property
    def terms(self) -> list[float]:
        """What the time of a round is a sum of, up to constants."""
        several = self.processes > 1
        return [self.most, self.most * self.numbers, 1.0, float(several), several * float(self.numbers)]

    def bytes(self) -> float:
        """What grows with the run, on each device."""
        own = self.n / self.processes
        return (
            own * (WORD * self.numbers + WORD + 2 * WORD + WORD)
            + WORD * self.n
            + 3 * WORD * self.participants * self.numbers
        )


def sizes() -> list[dict[str, int]]:
    """The base, and one size at a time changed."""
    found = [BASE]
    for name, values in GRID.items():
        for value in values:
            point = {**BASE, name: value}
            if name == "n" and value > BASE["n"]:
                point["numbers"] = 100  # else it does not fit
            if name == "numbers" and value > BASE["numbers"]:
                point["n"] = 10_000
            if point not in found:
                found.append(point)
    return found


def measured(size: dict[str, int], processes: int) -> Point:
    """One run in processes of its own."""
    cores = [{number} for number in range(processes)]
    given = {**size, "rounds": 50, "timed": 3}
    with Side("memory", cores, devices=int(processes > 1), more={"size": given}).running() as side:
        told = side.answers()
    return Point(
        **size, processes=processes, seconds=max(t["seconds"] for t in told), memory=max(t["peak"] for t in told)
    )


def tables() -> str:
    """The measurements as Markdown."""
    floors = {p: measured(TINY, p).memory for p in (1, 2)}
    points = [measured(size, processes) for size in sizes() for processes in (1, 2)]
    terms = np.array([point.terms for point in points])
    seconds = np.array([point.seconds for point in points])
    scale = 1 / seconds  # relative errors
    from scipy.optimize import nnls

    fitted, _ = nnls(terms * scale[:, None], seconds * scale)
    a, b, c, e, f = fitted * 1e6
    lines = [
        f"Constants of this machine, fitted to all rows: a = {a:.2g} µs, b = {1e3 * b:.2g} ns, c = {c:.3g} µs, "
        f"e = {e:.3g} µs, f = {1e3 * f:.2g} ns; a floor of {floors[1]:.0f} MB for one process and {floors[2]:.0f} MB for "
        "one of two.",
        "",
        "| n | P | d | processes | ms a round | by the formula | MB above the floor | by the formula |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for point, row in zip(points, terms, strict=True):
        cells = [
            f"{point.n:,}", f"{point.participants}", f"{point.numbers:,}", f"{point.processes}",
            f"{1e3 * point.seconds:.2f}", f"{1e3 * row @ fitted:.2f}",
            f"{point.memory - floors[point.processes]:.0f}", f"{point.bytes() / 1e6:.0f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join(cells) + " |")
    off = np.abs(terms @ fitted / seconds - 1)
    lines += [
        "",
        f"The formula of time is off by {100 * np.median(off):.0f} % in the median, {100 * off.max():.0f} % at most.",
    ]
    return "\n".join(lines)


def put(page: str, content: str) -> str:
    """The page with its tables replaced."""
    begin, end = "<!-- measured -->", "<!-- end -->"
    head, _, rest = page.partition(begin)
    return f"{head}{begin}\n\n{content}\n\n{end}{rest.partition(end)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    given: Any = parser.parse_args()
    found = tables()
    print(found)
    if given.write:
        PAGE.write_text(put(PAGE.read_text(), found))


if __name__ == "__main__":
    main()
