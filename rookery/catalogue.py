"""All algorithms in one table: what each solves and what it needs, read from the algorithms themselves."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from rookery import files
from rookery.algorithm.cost import Cost, costs_of
from rookery.algorithm.exchange import Algorithm, Exchange, Repeat, Stage
from rookery.algorithm.setting import Setting
from rookery.algorithms.registry import by_name, name_of, registry
from rookery.problem.clients import Clients
from rookery.problem.keys import as_key
from rookery.problem.layout import Layout
from rookery.problem.participation import Steps, Uniform
from rookery.problem.problems import Bilevel, ClientWeighting, Flat, Minimax, Problem
from rookery.problem.sets import Set
from rookery.tasks import RECIPES

STATUSES = {
    "P": "read in the paper",
    "C": "seen in public code",
    "K": "from general knowledge of the publication",
    "D": "defined here",
}
"""Where an algorithm's update comes from, by the letters of its status."""


@dataclass(frozen=True)
class Entry:
    """One algorithm."""

    name: str
    kind: str
    """The class, as in ``rk.ExactGD``."""
    solves: str
    paper: str
    status: str
    exchanges: int
    """A round, with default options and none skipped."""
    second_derivatives: bool
    unequal_steps: bool
    constraints: str
    """The variables that it keeps in their sets: "x, y", "x", "y" or "no"."""
    summary: str


@cache
def catalogue() -> tuple[Entry, ...]:
    """Every algorithm of the package with its defaults. Nothing is computed: a round is only traced."""
    return tuple(describe(kind()) for kind in registry.values())


def describe(algorithm: Algorithm) -> Entry:
    """What an algorithm needs, by tracing one round of it on a tiny problem in which two of three clients take part."""
    projected: set[str] = set()
    costs = _costs(algorithm, _Noted("x", projected), _Noted("y", projected))
    calls = {unit for cost in costs for unit in (*cost.calls, *cost.start_calls)}
    return Entry(
        name_of(type(algorithm)),
        type(algorithm).__name__,
        ", ".join(algorithm.solves),
        algorithm.paper,
        algorithm.status,
        _exchanges(algorithm.round()),
        bool(calls & {"hvp", "jvp"}),
        any(cost.local_steps for cost in costs) and _takes_unequal_steps(algorithm),
        ", ".join(sorted(projected)) or "no",
        (type(algorithm).__doc__ or "").strip().splitlines()[0],
    )


def _exchanges(stages: tuple[Stage, ...]) -> int:
    return sum(
        stage.count * _exchanges(stage.stages) if isinstance(stage, Repeat) else isinstance(stage, Exchange)
        for stage in stages
    )


class _Noted(Set):
    """No constraint, but it notes that something was projected onto it."""

    name: str
    noted: set[str] = eqx.field(static=True)

    def project(self, tree: Any) -> Any:
        self.noted.add(self.name)
        return tree

    def tangent(self, v: Any, d: Any) -> Any:
        return d


def _tiny(kind: str, x_set: Any = None, y_set: Any = None) -> tuple[Flat, Clients]:
    def loss(x: Array, y: Array, batch: Array) -> Array:
        return jnp.mean(batch) * jnp.sum(x**2) + jnp.sum((y - x[:2]) ** 2)

    problems: dict[str, Problem] = {
        "bilevel": Bilevel(loss, loss, x_set, y_set),
        "bilevel-local": Bilevel(loss, loss, x_set, y_set, lower_level="local"),
        "minimax": Minimax(loss, x_set, y_set),
        "weighting": ClientWeighting(lambda w, batch: jnp.mean(batch) * jnp.sum(w**2), None, x_set, y_set),
    }
    data = [jnp.ones(2), jnp.ones(2), jnp.ones(2)]
    layouts = Layout.of(jnp.ones(3), "x0"), Layout.of(jnp.ones(2), "y0")
    return Flat(problems[kind], *layouts), Clients(data, server=jnp.ones(2))


def _costs(algorithm: Algorithm, *sets: Set) -> list[Cost]:
    flat, clients = _tiny(algorithm.solves[0], *sets)
    x, y = jnp.full(3, 1 / 3), jnp.ones(2)
    return costs_of(Setting(flat, algorithm, clients, Uniform(2), Steps(1, 1), (1, 1), as_key(0), x), x, y)


def _takes_unequal_steps(algorithm: Algorithm) -> bool:
    flat, clients = _tiny(algorithm.solves[0])
    try:
        algorithm.check(flat, clients, Steps(1, 2), False)
    except ValueError:
        return False
    return True


def markdown() -> str:
    """The table for the documentation, with the legend of its letters."""
    rows = ["| algorithm | class | problem | exchanges a round | second derivatives | unequal local steps | constraints | "
            "paper | status |",
            "|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for entry in catalogue():
        rows.append(
            f"| {entry.name} | `rk.{entry.kind}` | {entry.solves} | {entry.exchanges} | {_yes(entry.second_derivatives)} | "
            f"{_yes(entry.unequal_steps)} | {entry.constraints} | {entry.paper} | {entry.status} |"
        )
    legend = ", ".join(f"**{letter}** {meaning}" for letter, meaning in STATUSES.items())
    return "\n".join([*rows, "", f"Status: {legend}."])


def tasks_markdown() -> str:
    """The table of tasks for the documentation."""
    rows = ["| task | what is learned | problem | data sets | options |", "|---|---|---|---|---|"]
    for recipe in RECIPES.values():
        kind = by_name(next(iter(recipe.defaults.values())).algorithm).solves[0]
        options = ", ".join(f"`{name}`" for name in recipe.options) or "none"
        rows.append(f"| {recipe.name} | {recipe.summary} | {kind} | {', '.join(recipe.defaults)} | {options} |")
    return "\n".join(rows)


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def update(page: Path, table: str) -> None:
    """Writes the table between the marks of a documentation page."""
    text = page.read_text()
    text = re.sub(r"<!-- table -->.*?<!-- end -->", f"<!-- table -->\n{table}\n<!-- end -->", text, flags=re.S)
    files.write(page, text.encode())


if __name__ == "__main__":
    docs = Path(__file__).parent.parent / "docs"
    for name, made in {"fidelity": markdown(), "algorithms": markdown(), "tasks": tasks_markdown()}.items():
        update(docs / f"{name}.md", made)
