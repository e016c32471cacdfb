"""The pages of the documentation that show what was reproduced, and their figures: made from stored results alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from rookery.report.figures import Curve, plot_panels
from rookery.report.tables import label
from rookery.reproduction.compute import Result, stored
from rookery.reproduction.experiment import Experiment, experiment, experiments
from rookery.reproduction.verdicts import reached, rows, verdicts

HISTORY = "reproduction_history.md"
"""The appendix, beside the page."""

_INTRODUCTION = """# What was reproduced

`rookery reproduce --write-docs` makes this page: the numbers from the results stored in `reproduction/`, the notes from
the presets. How to read it:

- **Our numbers** are means ± sample standard deviations over seeds. Where seeds diverged, the table says how many, and
  mean and deviation are those of the others. All methods of an experiment share splits, models and seeds; a slow method
  may have only the first few seeds.
- **Rates** were chosen on a held-out part of the training data. *Rates tried* is the number of configurations that the
  last search compared; *none* means that the rates are published ones or were set by hand.
  [How the rates were found]({history}) has the details, and says what had been seen on test data by then.
- **A published number is reached** if our mean is at least as good, give or take one standard error. The rivals'
  numbers count too.
- **A claim** says that one method does better than another. It *holds* if a paired one-sided t-test over seeds gives
  p < 0.05, and is *reversed* if p > 0.95. Where a seed diverged, a sign test takes the place of the t-test, and the
  difference is infinite.
- **Minutes** are sums over cells on 2 cores, without tuning. A cell that ran on one core counts half, since two run at a
  time. Some cells were timed while other work shared the machine, which makes their minutes too many.
"""

_HISTORY = """# How the rates were found

The appendix to [What was reproduced](reproduction.md). For each experiment it says how the rates were searched for, what
was tried by hand, and what had been seen on test data by then. `rookery reproduce --write-docs` makes it from the
presets.
"""


def draw(which: Experiment, folder: Path, path: Path, size: str = "full") -> None:
    """The stored curves as a figure, a panel for each setting."""
    panels: dict[str, dict[str, Curve]] = {}
    for cell in which.cells(size):
        result = stored(cell, folder)
        if result is not None:
            curve = result["curve"]
            mean = which.scale * np.array(curve["mean"], float)
            deviation = which.scale * np.array(curve["deviation"] or np.zeros(len(mean)), float)
            where = np.array(curve["round"] if which.axis == "round" else curve["exchanges"], float)
            panels.setdefault(cell.setting, {})[cell.method] = where.tolist(), mean, deviation
    path.parent.mkdir(parents=True, exist_ok=True)
    up = label(which.metric) + (" (%)" if which.percent else "")
    plot_panels(panels, which.unit, up, path)


def computed(folder: Path) -> dict[str, str]:
    """The experiments that have results, each with the size that is shown."""
    sizes = {
        which.name: next((size for size in ("full", "quick") if rows(which, folder, size)), None)
        for which in experiments().values()
    }
    return {name: size for name, size in sizes.items() if size is not None}


def write_docs(folder: Path, page: Path) -> list[Path]:
    """Writes ``docs/reproduction.md``, its figures and its appendix; returns the two pages."""
    appendix = page.with_name(HISTORY)
    page.write_text(markdown(folder))
    appendix.write_text(history_markdown())
    for name, size in computed(folder).items():
        draw(experiment(name), folder, page.parent / "images" / "reproduction" / f"{name}.png", size)
    return [page, appendix]


def markdown(folder: Path) -> str:
    """``docs/reproduction.md``, from the stored results alone."""
    sizes = computed(folder)
    parts = [_INTRODUCTION.format(history=HISTORY), _overview(sizes, folder)]
    for which in experiments().values():
        size = sizes.get(which.name)
        if size is None:
            parts.append(f"## {which.name}: {which.title}\n\n{which.preset['paper']}. Not computed yet.\n")
            continue
        parts.append(_section(which, folder, size))
    return "\n".join(parts)


def history_markdown() -> str:
    """``docs/reproduction_history.md``: how the rates of each experiment were found."""
    having = [which for which in experiments().values() if which.history]
    return "\n".join(
        [_HISTORY, *(f"## {which.name}\n\n{which.title}.\n\n{which.history.strip()}\n" for which in having)]
    )


def _overview(sizes: Mapping[str, str], folder: Path) -> str:
    """A line for each experiment: how much of it holds."""
    head = ("experiment", "paper", "cells", "published numbers reached", "claims that hold", "not decided", "reversed")
    lines = _table_head(head)
    for name, size in sizes.items():
        which = experiment(name)
        cells = which.cells(size)
        done = sum(stored(cell, folder) is not None for cell in cells)
        good, of = reached(which, folder, size)
        found = [verdict.holds for verdict in verdicts(which, folder, size)]
        counts = [str(found.count(holds)) if found else "" for holds in ("yes", "not decided", "reversed")]
        texts = [name, which.preset["paper"], f"{done} of {len(cells)}", f"{good} of {of}" if of else "none published"]
        lines.append(_table_row([*texts, *counts]))
    cells = [cell for name, size in sizes.items() for cell in experiment(name).cells(size)]
    hours = minutes_on_two_cores([r for cell in cells if (r := stored(cell, folder)) is not None]) / 60
    lines += [
        "",
        f"These cells took {hours:.1f} hours; `rookery reproduce all` computes them, and those that are missing.",
    ]
    return "\n".join(lines) + "\n"


def minutes_on_two_cores(results: Sequence[Result]) -> float:
    """The time to compute these cells on two cores, where two cells on one core each run at a time."""
    return float(sum(r["seconds"] * (0.5 if r["environment"]["cores"] == 1 else 1.0) for r in results) / 60)


def _section(which: Experiment, folder: Path, size: str) -> str:
    """Verdict and notes, the table, its legend, the claims, the figure."""
    table = rows(which, folder, size)
    results = [r for cell in which.cells(size) if (r := stored(cell, folder)) is not None]
    at = which.at(size)
    shows_published = any(any(row.published) for row in table)
    head = ["setting", "method", *(f"{label(which.metric)} after {point} {which.unit}" for point in at)]
    head += [
        *map(label, which.also),
        *([f"published, {point}" for point in at] if shows_published else []),
        "rates tried",
    ]
    notes = " ".join(part for part in (f"{which.preset['paper']}.", _verdict(which, folder, size), which.notes) if part)
    if which.history:
        notes += f" [How the rates were found]({HISTORY}#{which.name.lower()})."
    lines = [f"## {which.name}: {which.title}", "", notes, ""]
    command = f"rookery reproduce {which.name}" + ("" if size == "full" else " --quick")
    made = results[-1]["environment"]
    seeds = "/".join(map(str, sorted({r["settings"]["run"]["seeds"] for r in results})))
    processors = ", ".join(sorted({r["environment"].get("processor", "not recorded") for r in results}))
    lines.append(
        f"`{command}`{'' if size == 'full' else ' (a smaller version)'}: {len(results)} of {len(which.cells(size))} cells, "
        f"{seeds} seeds, {minutes_on_two_cores(results):.0f} minutes on 2 cores ({processors}), {made['date'][:10]}, "
        f"rookery {made['rookery']}, jax {made['jax']}.\n"
    )
    lines += _table_head(head)
    for row in table:
        published = row.published if shows_published else []
        lines.append(_table_row([row.setting, row.name, *row.ours, *row.also, *published, row.tried]))
    if which.legend:
        lines += ["", which.legend.strip()]
    checked = verdicts(which, folder, size)
    if checked:
        lines += ["", *_table_head(["setting", "claim", "difference", "p", "holds"])]
        lines += [
            _table_row([v.setting, f"{v.better} better than {v.worse}", f"{v.difference:+.3g}", v.p_text, v.holds])
            for v in checked
        ]
    lines += ["", f"![The curves of {which.name}](images/reproduction/{which.name}.png)"]
    return "\n".join(lines) + "\n"


def _verdict(which: Experiment, folder: Path, size: str) -> str:
    """In a sentence: how many claims hold, and how many published numbers are reached."""
    found = [verdict.holds for verdict in verdicts(which, folder, size)]
    good, of = reached(which, folder, size)
    parts = [f"{found.count('yes')} of {len(found)} claims hold"] if found else []
    parts += [f"{good} of {of} published numbers are reached"] if of else []
    return f"**{', '.join(parts)}.**" if parts else ""


def _table_head(head: Sequence[str]) -> list[str]:
    return [_table_row(head), "|" + "---|" * len(head)]


def _table_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
