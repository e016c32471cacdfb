"""What a search found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rookery.algorithm.exchange import Algorithm
from rookery.algorithms.rates import tell_algorithm
from rookery.solving.notebook import number, paragraph, short, table
from rookery.solving.solution import Solution


@dataclass(frozen=True)
class Found:
    """What was found for one algorithm."""

    name: str
    algorithm: Algorithm
    """With its rates."""
    score: float
    """The metric, or Φ, after all rounds; the mean over keys."""
    solution: Solution
    start: float | None
    """Φ at the start."""
    frozen: float | None
    """The metric after all rounds with x held at its start."""
    edges: Mapping[str, str]
    """Of the steps of x that lie at an edge of all that was tried: "smallest" or "largest"."""
    trials: tuple[Mapping[str, Any], ...]
    """Every trial: rates, score (None if it diverged), rounds, stage, key, cost, diverged."""
    spent: Mapping[str, int]
    """Rounds, oracle calls (with those of measuring and judging) and bytes."""
    seconds: float
    remarks: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    """All rates that lie at an end of what was tried, where there is more beyond."""


@dataclass(frozen=True)
class Tuning:
    """What :func:`rookery.tune` found, by algorithm.

    ``best`` is the algorithm with the best score, ready for ``rk.solve``; ``algorithms`` has one with its rates for each
    name, ``solutions`` what it found after all rounds, and ``table`` every trial of all of them.
    """

    metric: str
    higher_is_better: bool
    rounds: int
    budget: Mapping[str, Any]
    found: Mapping[str, Found] = field(repr=False)

    @property
    def algorithms(self) -> dict[str, Algorithm]:
        """Each algorithm with the rates that were found."""
        return {name: each.algorithm for name, each in self.found.items()}

    @property
    def solutions(self) -> dict[str, Solution]:
        """What each found after all rounds, in the search."""
        return {name: each.solution for name, each in self.found.items()}

    @property
    def winner(self) -> str:
        """The name of the best."""
        sign = 1 if self.higher_is_better else -1
        return max(self.found, key=lambda name: sign * self.found[name].score)

    @property
    def best(self) -> Algorithm:
        """The algorithm with the best score, with its rates."""
        return self.found[self.winner].algorithm

    @property
    def table(self) -> list[dict[str, Any]]:
        """Every trial: algorithm, rates, score, rounds, stage, key, calls, bytes, diverged."""
        return [{"algorithm": name, **trial} for name, each in self.found.items() for trial in each.trials]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What one should know about the rates found, in plain sentences."""
        return tuple(f"{name}: {remark}" for name, each in self.found.items() for remark in each.remarks)

    def tables(self) -> dict[str, Any]:
        """All of it as JSON can hold it: what ``tuning.json`` of a folder has."""
        told = {}
        for name, each in self.found.items():
            told[name] = {
                "rates": tell_algorithm(each.algorithm)["rates"],
                "score": each.score,
                "start": each.start,
                "frozen": each.frozen,
                "spent": dict(each.spent),
                "seconds": round(each.seconds, 3),
                "edges": dict(each.edges),
                "remarks": list(each.remarks),
                "trials": [dict(trial) for trial in each.trials],
            }
        return {
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "rounds": self.rounds,
            "budget": dict(self.budget),
            "algorithms": told,
        }

    def _repr_html_(self) -> str:
        """A row for each algorithm, the winner marked, and the remarks."""
        names = list(self.found)
        kinds = list(dict.fromkeys(kind for each in self.found.values() for kind in each.spent))
        rows = []
        for name, each in self.found.items():
            rates = ", ".join(
                f"{rate} {short(value)}" for rate, value in tell_algorithm(each.algorithm)["rates"].items()
            )
            spent = [number(each.spent[kind]) if kind in each.spent else "" for kind in kinds]
            mark = "★ " * (name == self.winner)
            rows.append([mark + name, number(each.score), rates, *spent, f"{each.seconds:.1f}"])
        better = "higher" if self.higher_is_better else "lower"
        about = paragraph(f"Tuning: {self.metric} after {self.rounds} rounds ({better} is better)")
        head = ["algorithm", self.metric, "rates", *(f"{kind} spent" for kind in kinds), "seconds"]
        told = "".join(paragraph(each) for each in self.remarks)
        return f"<div>{about}{table(head, rows, bold=names.index(self.winner))}{told}</div>"

    def __repr__(self) -> str:
        rows = ", ".join(f"{name} {each.score:.6g}" for name, each in self.found.items())
        return f"Tuning({self.metric}: {rows}; best: {self.best!r})"
