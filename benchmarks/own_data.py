"""When does nesting pay? Every task on tables and images that no preset knows, by name and without rates.

    python -m benchmarks.own_data [--only TASK] [--seeds 3] [--store FOLDER] [--again] [--write]

Each case writes files as a user has them, reads them, searches for rates, solves, and trains the simple rivals of the task
with as many rounds; the seed decides the data, what is planted, the network's start and the draws. Results are stored case
by case, so it can be stopped; ``--write`` puts the table into the docs. A case is a process of its own, and its seconds
are those of the first seed: reading, search, run and rivals with all compilation, as a user's command has them.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.own_files import Maker, breast_cancer, forest, glyphs, many_kinds, wine
from rookery.tasks import RECIPES
from rookery.tasks.rivals import SUSPICION

DOCS = Path(__file__).parent.parent / "docs"
MARKS = "<!-- own data -->", "<!-- end of own data -->"
UNLIKE = tuple(round(200 * 20 ** (-number / 7)) for number in range(8))


@dataclass(frozen=True)
class Case:
    """A task on data: what is planted, how many clients, and the metric of the table where it is not the task's own."""

    task: str
    data: str
    make: Maker
    planted: str
    options: Mapping[str, Any] = field(default_factory=dict)
    clients: int | None = None
    metric: str | None = None

    @property
    def name(self) -> str:
        """For files."""
        return re.sub(r"\W+", "-", f"{self.task} {self.data} {self.planted}")


NEW = "5 new classes, 1 example of each"
WRONG = {"noise": 0.4, "always_wrong": True}
FEW = {**WRONG, "validation": 0.1}
HALF_CHECKED, TENTH_CHECKED = (f"40 % of the labels wrong, {share} of all checked" for share in ("half", "a tenth"))
ALIKE = (0.2,) * 5
CASES = (
    Case("data-cleaning", "breast cancer", breast_cancer, HALF_CHECKED, WRONG),
    Case("data-cleaning", "breast cancer", breast_cancer, TENTH_CHECKED, FEW),
    Case("data-cleaning", "forest", partial(forest, shares=ALIKE), HALF_CHECKED, {**WRONG, "model": "mlp:32"}),
    Case("data-cleaning", "forest", partial(forest, shares=ALIKE), TENTH_CHECKED, {**FEW, "model": "mlp:32"}),
    Case("data-cleaning", "PNGs", glyphs, HALF_CHECKED, WRONG),
    Case("data-cleaning", "PNGs", glyphs, TENTH_CHECKED, FEW),
    Case("client-weighting", "breast cancer", breast_cancer, "3 of 8 clients noise", {"noisy": 3}, 8),
    Case("client-weighting", "forest", partial(forest, shares=ALIKE), "3 of 8 clients noise", {"noisy": 3}, 8),
    Case("client-weighting", "PNGs", glyphs, "3 of 8 clients noise", {"noisy": 3}, 8),
    Case("loss-tuning", "forest", forest, "classes 20 : 1"),
    Case("loss-tuning", "PNGs", partial(glyphs, sizes=UNLIKE), "classes 20 : 1"),
    Case("fair-classification", "forest", forest, "classes 20 : 1"),
    Case("fair-classification", "PNGs", partial(glyphs, sizes=UNLIKE), "classes 20 : 1"),
    Case("auroc", "forest", partial(forest, shares=(0.95, 0.05)), "5 % positive"),
    Case("auroc", "PNGs", partial(glyphs, sizes=(570, 30), tested=200, alike=True), "5 % positive"),
    Case("hyper-representation", "wine", wine, "nothing"),
    Case("hyper-representation", "PNGs", glyphs, "nothing"),
    Case("few-shot", "25 kinds", partial(many_kinds, each=60), NEW, metric="accuracy"),
    Case("few-shot", "PNGs", partial(glyphs, sizes=(60,) * 25, tested=0), NEW, metric="accuracy"),
)  # fmt: skip


def run(case: Case, seed: int) -> dict[str, Any]:
    """What the task and its rivals reach with one seed."""
    began = time.perf_counter()
    recipe = RECIPES[case.task]
    assert recipe.own is not None
    with tempfile.TemporaryDirectory() as folder:
        data = case.make(Path(folder), seed).read()
    options = {**recipe.options_of_own(), **case.options}
    task = recipe.of(data, case.clients or recipe.own.clients, seed, options, recipe.own)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks on curves; the table has the last value, whatever it is
        solution = task.solve(key=seed, progress=False)
        rivals = task.rivals(key=seed)
    metric = case.metric or task.metric
    last = solution.history.last
    return {
        "algorithm": recipe.own.algorithm,
        "metric": metric,
        "nested": float(last[metric]),
        "area": float(last[SUSPICION]) if SUSPICION in last else None,
        "rivals": [
            {"name": each.name, "ceiling": each.ceiling, "value": float(each.metrics[metric][0]),
             "area": float(each.metrics[SUSPICION][0]) if SUSPICION in each.metrics else None}
            for each in rivals
        ],
        "seconds": time.perf_counter() - began,
        "rates": repr(solution.algorithm),
    }  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A case over seeds: mean and standard deviation in percent, of the nested method and of each rival by its name."""

    case: Case
    algorithm: str
    metric: str
    nested: tuple[float, float]
    plain: tuple[float, float]
    other: tuple[str, tuple[float, float]]
    ceiling: tuple[float, float] | None
    ahead: tuple[float, float]
    """Seed by seed, of the better of plain averaging and the best other rival."""
    areas: tuple[tuple[float, float], tuple[float, float]] | None
    seconds: float

    @classmethod
    def of(cls, case: Case, seeds: Sequence[Mapping[str, Any]]) -> "Row":
        """From the results of :func:`run`."""
        names = [each["name"] for each in seeds[0]["rivals"]]
        by_name = {name: spread([each["rivals"][place]["value"] for each in seeds]) for place, name in enumerate(names)}
        ceilings = [each["name"] for each in seeds[0]["rivals"] if each["ceiling"]]
        others = {name: value for name, value in by_name.items() if name not in (names[0], *ceilings)}
        best = max(others, key=lambda name: others[name][0])
        rival = names.index(best if others[best] > by_name[names[0]] else names[0])
        ahead = spread([each["nested"] - each["rivals"][rival]["value"] for each in seeds])
        area = None
        if seeds[0]["area"] is not None:
            ranked = [next(r["area"] for r in each["rivals"] if r["area"] is not None) for each in seeds]
            area = spread([each["area"] for each in seeds]), spread(ranked)
        return cls(
            case, seeds[0]["algorithm"], seeds[0]["metric"], spread([each["nested"] for each in seeds]), by_name[names[0]],
            (best, others[best]), by_name[ceilings[0]] if ceilings else None, ahead, area, seeds[0]["seconds"],
        )  # fmt: skip

    @property
    def pays(self) -> str:
        """A difference within its own deviation over seeds is none."""
        mean, deviation = self.ahead
        word = "no clear difference" if abs(mean) <= deviation else "yes" if mean > 0 else "no"
        return f"{word} ({mean:+.1f} ± {deviation:.1f})"


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation in percent."""
    return 100 * float(np.mean(values)), 100 * float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def table(rows: Sequence[Row]) -> str:
    """Markdown."""
    lines = [
        "| task | data, and what is planted | algorithm | metric (%) | nested | plain averaging | best other simple rival | "
        "ceiling | does nesting pay? | s |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        name, value = row.other
        lines.append(
            f"| {row.case.task} | {row.case.data}: {row.case.planted} | {row.algorithm} | {row.metric.replace('_', ' ')} | "
            f"**{_told(row.nested)}** | {_told(row.plain)} | {_told(value)} ({name}) | "
            f"{_told(row.ceiling) if row.ceiling else ''} | {row.pays} | {row.seconds:.0f} |"
        )
    found = [row for row in rows if row.areas is not None]
    if found:
        lines += [
            "",
            "How well the wrong labels were found (area under the ROC curve of “suspicious”, in percent; 50 is chance):",
            "",
        ]
        lines += ["| data | cleaning's weights | a pooled model's loss |", "|---|---|---|"]
        for row in found:
            assert row.areas is not None
            lines.append(f"| {row.case.data}: {row.case.planted} | **{_told(row.areas[0])}** | {_told(row.areas[1])} |")
    return "\n".join(lines)


def _told(value: tuple[float, float]) -> str:
    return f"{value[0]:.1f} ± {value[1]:.1f}"


def write(rows: Sequence[Row]) -> None:
    """Puts the table into docs/tasks.md, and of each task its rows into its own page, between the marks."""
    parts = {DOCS / "tasks.md": table(rows)}
    for task in dict.fromkeys(row.case.task for row in rows):
        parts[DOCS / "tasks" / f"{task}.md"] = table([row for row in rows if row.case.task == task])
    first, last = MARKS
    for page, made in parts.items():
        text = page.read_text()
        if first not in text or last not in text:
            raise ValueError(f"{page.name} must have the marks {first} and {last}")
        page.write_text(re.sub(f"{first}.*?{last}", lambda _, made=made: f"{first}\n{made}\n{last}", text, flags=re.S))


def stored(case: Case, seeds: int, store: Path, again: bool) -> list[dict[str, Any]]:
    """From a file, or computed in a process of its own, as a user's command is."""
    file = store / f"{case.name}.json"
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() and not again else []
    if len(found) < seeds:
        how = ["--one", case.name, "--seeds", str(seeds), "--store", str(store)]
        subprocess.run([sys.executable, "-m", "benchmarks.own_data", *how], check=True)
        found = json.loads(file.read_text())
    return found[:seeds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="a task")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--store", type=Path, default=Path("runs/own_data"))
    parser.add_argument("--again", action="store_true", help="compute what is stored once more")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.store.mkdir(parents=True, exist_ok=True)
    if options.one is not None:
        (case,) = (each for each in CASES if each.name == options.one)
        found = [run(case, seed) for seed in range(options.seeds)]
        (options.store / f"{case.name}.json").write_text(json.dumps(found, indent=1))
        return
    chosen = [case for case in CASES if options.only in (None, case.task)]
    if not chosen:
        raise SystemExit(
            f"--only must be one of {', '.join(dict.fromkeys(case.task for case in CASES))}, got {options.only!r}"
        )
    if options.write and len(chosen) < len(CASES):
        raise SystemExit("--write needs all tasks, got --only")
    rows = []
    for case in chosen:
        rows.append(Row.of(case, stored(case, options.seeds, options.store, options.again)))
        print(table(rows[-1:]).splitlines()[2], flush=True)
    print(table(rows))
    if options.write:
        write(rows)


if __name__ == "__main__":
    main()
