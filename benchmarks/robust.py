"""What robust rules protect, and what they break: rules against attacks, and rules where nobody lies.

    python -m benchmarks.robust [--quick] [--seeds 2] [--workers 1] [--only data-cleaning]

On scikit-learn's digits a fifth of the clients lie; "a little is enough" is 1.5 standard deviations. Rates are the task's
own, or found by ``rk.tune`` with the plain mean and without an attack; they are the same for every rule. Seeds are lanes:
the seed decides the split, what is planted, the network's start, the draws and who lies. The first tables have no liars: how
far from the known solution of a quadratic problem a rule stops; and how far if the median replaces the mean of some parts of
an upload alone. All attacks share one program for each algorithm and rule,
so that little of the time is compilation.
"""

import argparse
import multiprocessing
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import rookery as rk
from rookery.aggregation.attacks import LabelFlip
from rookery.aggregation.robust import Rule
from rookery.algorithm.intake import Intake
from rookery.algorithms.registry import by_name
from rookery.datasets import load
from rookery.tasks import RECIPES, Task
from rookery.tasks.rivals import SUSPICION
from rookery.tasks.task import participation_of, steps_of

FORGED = ("sign flip", "Gaussian noise", "large values", "a little is enough", "inner product")
ATTACKS = ("none", *FORGED, "label flip")
DEVIATIONS = 1.5
"""Of a little is enough; where a fifth lies, the paper's own number is 0."""


def _same(batch: Any) -> Any:
    """Of all attacks one function: another would be another program."""
    return batch


class AnyAttack(LabelFlip):
    """One of all attacks, by a number that is an array: one program serves them all."""

    which: Array = eqx.field(default_factory=lambda: jnp.int32(0))
    classes: int = eqx.field(static=True, default=2)

    def __init__(self, clients: int, which: int, classes: int):
        super().__init__(clients, flip=_same)
        self.which = jnp.int32(which)
        self.classes = classes

    def forged(self, rows: Array, there: Array, honest: Array, key: Array) -> Array:
        """By the attack of this number; nobody's and that on labels leave uploads as they are."""
        of = rk.attacks
        kinds = [
            *(kind(self.clients) for kind in (of.SignFlip, of.GaussianNoise, of.LargeValues)),
            of.ALittle(self.clients, deviations=DEVIATIONS),
            of.InnerProduct(self.clients),
        ]
        branches = [
            lambda: rows,
            *(lambda kind=kind: kind.forged(rows, there, honest, key) for kind in kinds),
            lambda: rows,
        ]
        lie: Array = jax.lax.switch(self.which, branches)
        return lie

    def poisoned(self, batch: Any) -> Any:
        """The last class is taken for the first, and so on."""
        flips = self.which == len(ATTACKS) - 1
        return {**batch, "label": jnp.where(flips, self.classes - 1 - batch["label"], batch["label"])}


def rules(liars: int, clients: int) -> dict[str, Rule | None]:
    """Each rule, told how many may lie."""
    return {
        "mean": None,
        "TrimmedMean": rk.TrimmedMean(liars / clients),
        "Median": rk.Median(),
        "GeometricMedian": rk.GeometricMedian(),
        "Krum": rk.Krum(liars),
        "MultiKrum": rk.MultiKrum(liars, clients - liars),
        'NormClip("median")': rk.NormClip("median"),
        "CenteredClip": rk.CenteredClip(),
    }


@dataclass(frozen=True)
class Case:
    """A task with an algorithm; ``rounds`` where fewer than the task's own do."""

    task: str
    algorithm: str
    metric: str
    rounds: int | None = None
    data: str = "digits"


CASES = (
    Case("data-cleaning", "MeFBO", "accuracy", 150),
    Case("data-cleaning", "FedBiO", "accuracy", 150),
    Case("data-cleaning", "FedBiOAcc", "accuracy", 150),
    Case("auroc", "FedSGDA-M", "auroc", 20),
    Case("auroc", "CODASCA", "auroc", 20),
)
HONEST = (
    Case("quadratic-bilevel", "FedBiO", "distance", 500, "synthetic"),
    Case("quadratic-bilevel", "FedBiOAcc", "distance", 500, "synthetic"),
    Case("quadratic-bilevel", "SimFBO", "distance", 500, "synthetic"),
    Case("quadratic-minimax", "FedSGDA-M", "distance", 500, "synthetic"),
)
SPREADS = (0.0, 0.3, 1.0)
PARTS = {
    "nothing": (),
    "x": ("x", "d_x"),
    "y": ("y", "d_y"),
    "z": ("z", "d_z"),
    "x, y, z": ("x", "y", "z"),
    "d_x, d_y, d_z": ("d_x", "d_y", "d_z"),
    "everything": ("x", "y", "z", "d_x", "d_y", "d_z"),
}
"""Of an upload: a variable with its momentum, and all of one kind."""
TINY = {"data-cleaning": 10, "auroc": 3}


@dataclass(frozen=True)
class Cell:
    """A metric over seeds, and in how many of them the run diverged."""

    values: tuple[float, ...]
    diverged: int

    def __str__(self) -> str:
        if self.diverged:
            return (
                "diverged" if self.diverged == len(self.values) else f"diverged ({self.diverged} of {len(self.values)})"
            )
        return f"{100 * np.mean(self.values):.1f} ± {100 * np.std(self.values):.1f}"


Cells = dict[tuple[str, str], Cell]


@dataclass(frozen=True)
class Done:
    """What a case gave: its metric, how well suspicious labels are found, its rates, and the time it took."""

    case: Case
    cells: Cells
    suspected: Cells
    rates: str
    seconds: float


def how(case: Case, seeds: int, quick: bool, **options: Any) -> tuple[list[Task], dict[str, Any]]:
    """The task of each seed, everybody taking part in every round, and how it is solved."""
    recipe = RECIPES[case.task]
    told = recipe.defaults[case.data]
    data = load(case.data) if case.data != "synthetic" else None
    made = [recipe.of(data, told.clients, seed, {**told.options, **options}, told) for seed in range(seeds)]
    rounds = TINY.get(case.task, 10) if quick else case.rounds or told.rounds
    return made, {
        "rounds": rounds, "every": rounds, "progress": False, "participation": participation_of(None),
        "local_steps": steps_of(told.local_steps), "batch_size": told.batch_size,
    }  # fmt: skip


def algorithm_of(case: Case, given: Mapping[str, Any]) -> Any:
    """With the task's rates, or with those that are found on training data with the plain mean."""
    recipe = RECIPES[case.task]
    told = recipe.defaults[case.data]
    if case.algorithm in told.rates:
        return by_name(case.algorithm)(**told.rates[case.algorithm])
    data = recipe.without_test(load(case.data))
    apart = recipe.make(data, clients=told.clients, seed=100, **told.options)
    metric, higher = apart.searched
    tuned = {name: value for name, value in given.items() if name != "every"}
    return rk.tune(
        apart.problem, case.algorithm, apart.clients, apart.x0, apart.y0, evaluate=apart.evaluate, metric=metric,
        higher_is_better=higher, **tuned,
    ).best  # fmt: skip


def rates_of(algorithm: Any) -> str:
    """Its numbers, as they are printed below a table."""
    numbers = {name: value for name, value in vars(algorithm).items() if isinstance(value, float | int | Array)}
    told = ", ".join(f"{name} {float(value):.3g}" for name, value in numbers.items() if not isinstance(value, bool))
    return f"{type(algorithm).name} ({told})"


def solved(made: Sequence[Task], algorithm: Any, given: Mapping[str, Any], **more: Any) -> rk.Solution:
    """All seeds at once."""
    return rk.solve_many(
        made[0].problem, [algorithm] * len(made), [each.clients for each in made], rk.Lanes([each.x0 for each in made]),
        rk.Lanes([each.y0 for each in made]), keys=list(range(len(made))),
        evaluate=rk.Lanes([each.evaluate for each in made]), **given, **more,
    )  # fmt: skip


def attacked(case: Case, seeds: int, quick: bool) -> Done:
    """The metric under each (rule, attack), and how well suspicious labels are found where that is a metric too."""
    warnings.simplefilter("ignore")  # the rules' remarks on weights and the curves' on divergence: the table has both
    began = time.perf_counter()
    made, given = how(case, seeds, quick)
    clients = made[0].clients.n
    liars = clients // 5
    algorithm = algorithm_of(case, given)
    classes = load(case.data).classes if case.task == "data-cleaning" else 2
    found, suspected = {}, {}
    for name, rule in rules(liars, clients).items():
        for which, attack in enumerate(ATTACKS):
            lie = AnyAttack(liars, which, classes)
            solution = solved(made, algorithm, given, aggregate=rule, attack=lie)
            last, stopped = solution.history.last, len(solution.diverged)
            found[name, attack] = Cell(tuple(map(float, last[case.metric])), stopped)
            if SUSPICION in last:
                suspected[name, attack] = Cell(tuple(map(float, last[SUSPICION])), stopped)
        jax.clear_caches()
    return Done(case, found, suspected, rates_of(algorithm), time.perf_counter() - began)


def honest(case: Case, seeds: int, quick: bool) -> Done:
    """‖x − x⋆‖/‖x⋆‖ of each rule among clients that differ by so much, and nobody lies."""
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    found: Cells = {}
    algorithm = algorithm_of(case, {})
    for name, rule in rules(2, 10).items():
        for spread in SPREADS:
            made, given = how(case, seeds, quick, spread=spread)
            solution = solved(made, algorithm, given, aggregate=rule)
            lengths = [float(jnp.linalg.norm(each.evaluate.x)) for each in made]
            values = np.asarray(solution.history.last["distance"]) / lengths
            found[name, str(spread)] = Cell(tuple(map(float, values)), len(solution.diverged))
        jax.clear_caches()
    return Done(case, found, {}, rates_of(algorithm), time.perf_counter() - began)


def by_parts(case: Case, seeds: int, quick: bool) -> Cells:
    """The same where the median replaces the mean of some parts alone; clients differ as much as they do at most."""
    warnings.simplefilter("ignore")
    by_rule = Intake._by_rule
    algorithm, found = algorithm_of(case, {}), {}
    made, given = how(case, seeds, quick, spread=SPREADS[-1])
    lengths = [float(jnp.linalg.norm(each.evaluate.x)) for each in made]
    for name, parts in PARTS.items():

        def some(intake: Intake, rows: dict[str, Any], parts: Sequence[str] = parts) -> dict[str, Any]:
            plain = replace(intake, setting=replace(intake.setting, aggregate=None))
            robust, mean = by_rule(intake, rows), by_rule(plain, rows)
            return {part: (robust if part in parts else mean)[part] for part in rows}

        with mock.patch.object(Intake, "_by_rule", some):
            solution = solved(made, algorithm, given, aggregate=rk.Median())
        values = np.asarray(solution.history.last["distance"]) / lengths
        found[case.algorithm, name] = Cell(tuple(map(float, values)), len(solution.diverged))
        jax.clear_caches()  # the next is another program, and looks like this one
    return found


def table_of_parts(found: Cells, seeds: int) -> str:
    """Markdown, a row for each algorithm."""
    said = f"mean and deviation over seeds 0..{seeds - 1}"
    title = f"**Quadratic bilevel**, nobody lies, clients differ by {SPREADS[-1]}: ‖x − x⋆‖/‖x⋆‖ in percent where the median"
    lines = [
        f"{title} replaces the mean of these parts alone ({said})",
        "",
        "| " + " | ".join(["algorithm", *PARTS]) + " |",
    ]
    lines.append("|" + "---|" * (len(PARTS) + 1))
    for algorithm in dict.fromkeys(algorithm for algorithm, _ in found):
        lines.append("| " + " | ".join([algorithm, *(str(found[algorithm, parts]) for parts in PARTS)]) + " |")
    return "\n".join(lines)


def table(columns: Sequence[str], rows: Sequence[tuple[Case, Cells]], names: Sequence[str]) -> str:
    """Markdown."""
    lines = ["| " + " | ".join(["algorithm", "rule", *columns]) + " |", "|" + "---|" * (len(columns) + 2)]
    for case, cells in rows:
        for name in names:
            told = [str(cells[name, column]) for column in columns]
            lines.append("| " + " | ".join([case.algorithm, name, *told]) + " |")
    return "\n".join(lines)


def tables(done: Sequence[Done], seeds: int) -> str:
    """All tables of one task."""
    case, names, said = done[0].case, list(rules(2, 10)), f"mean and deviation over seeds 0..{seeds - 1}"
    rates = "Rates: " + "; ".join(each.rates for each in done) + "."
    if case.data == "synthetic":
        title = f"**{case.task}**, nobody lies: ‖x − x⋆‖/‖x⋆‖ in percent, by how much clients differ ({said})"
        return "\n\n".join(
            [title, table(list(map(str, SPREADS)), [(each.case, each.cells) for each in done], names), rates]
        )
    said = f"{said}; a little is {DEVIATIONS} standard deviations"
    title = f"**{case.task}**, {case.metric} in percent after {case.rounds} rounds ({said})"
    parts = [title, table(ATTACKS, [(each.case, each.cells) for each in done], names), rates]
    suspected = [(each.case, each.suspected) for each in done if each.suspected]
    if suspected:
        found = "how well a low weight tells a wrong label: area under the ROC curve in percent, 50 is chance"
        parts += [f"**{case.task}**, {found}", table(ATTACKS, suspected, names)]
    return "\n\n".join(parts)


def main() -> None:
    """All cases, and a table for each task as soon as it is ready."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few rounds: whether it runs")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", help="a task, or 'parts'")
    chosen = parser.parse_args()
    began = time.perf_counter()
    wanted = [(job, case) for job, cases in ((honest, HONEST), (attacked, CASES)) for case in cases
              if chosen.only in (None, case.task)]  # fmt: skip
    with ProcessPoolExecutor(chosen.workers, multiprocessing.get_context("spawn")) as pool:
        bilevel = [case for case in HONEST if case.task == "quadratic-bilevel" and chosen.only in (None, "parts")]
        parts = [pool.submit(by_parts, case, chosen.seeds, chosen.quick) for case in bilevel]
        waiting = [pool.submit(job, case, chosen.seeds, chosen.quick) for job, case in wanted]
        for task in dict.fromkeys(case.task for _, case in wanted):
            own = [each for each, (_, case) in zip(waiting, wanted, strict=True) if case.task == task]
            done = []
            for each in own:
                done.append(each.result())
                print(f"{task}, {done[-1].case.algorithm}: {done[-1].seconds:.0f} s", file=sys.stderr, flush=True)
            print(tables(done, chosen.seeds) + "\n", flush=True)
        if parts:
            merged = {which: cell for each in parts for which, cell in each.result().items()}
            print(table_of_parts(merged, chosen.seeds) + "\n", flush=True)
    print(f"{time.perf_counter() - began:.0f} s in all, {chosen.workers} processes.")


if __name__ == "__main__":
    main()
