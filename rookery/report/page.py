"""The report: one HTML file made from any number of runs. It needs no network and no library.

Statistics are computed here and embedded as JSON; the template ``page.html`` draws them. What comes from configurations
reaches the page as JSON only, and the page turns it into text nodes: nothing in it is read as HTML.
"""

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Sequence
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rookery.experiment.folder import StoredRun
from rookery.report.concluding import conclusion
from rookery.report.describing import configurations, distinct_names, notes
from rookery.report.exhibits import SHARED, figures, read_learned
from rookery.report.figures import COLORS, DASHES
from rookery.report.meaning import meaning
from rookery.report.rivals import Rival, find_rivals
from rookery.report.tables import (
    COSTS,
    best,
    direction,
    has_cost,
    is_fraction,
    label,
    lanes,
    metrics,
    spent,
    summary,
)
from rookery.report.tuning import find_tunings

DARK_COLORS = ("#4C9BDB", "#F0763A", "#22B588", "#E39AC6", "#F3B341", "#9BD8FA", "#F2F2F2", "#777777")
"""The same hues on a dark ground."""


def write_page(runs: Sequence[StoredRun], path: str | os.PathLike[str], title: str | None = None) -> None:
    """Writes the report on ``runs`` to ``path``: curves, final values, how rates were found, configurations,
    commands.

    There is one section for each (task, dataset). Seeds that are not finite or were stopped are left out of means, and
    the page says so.

    Arguments:
        runs: at least one.
        path: the HTML file.
        title: of the page; by default what the runs are about.
    """
    data = page_data(runs, title)
    template = resources.files("rookery.report").joinpath("page.html").read_text(encoding="utf-8")
    script = re.search(r"<script>(.*?)</script>", template, re.DOTALL)
    assert script is not None
    parts = {
        "title": html.escape(data["title"]),
        "palette": _palette(),
        "data": embedded(data),
        # The policy forbids every request and every script but this one.
        "script": base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode(),
    }
    # In one pass: what is put in is not searched again.
    page = re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)
    Path(path).write_text(page, encoding="utf-8", newline="\n")


def embedded(data: Any) -> str:
    """JSON that is safe inside a script element: ``<``, ``>`` and ``&`` are escaped, and there is no NaN."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(runs: Sequence[StoredRun], title: str | None = None) -> dict[str, Any]:
    """Everything that the page shows, ready for JSON (a number that is not finite is None)."""
    if not runs:
        raise ValueError("runs must hold at least one run, got none")
    grouped: dict[tuple[str, str], list[StoredRun]] = {}
    for run in runs:
        about = run.config["run"]
        grouped.setdefault((run.title, str(about.get("dataset", ""))), []).append(run)
    styles: dict[str, int] = {}  # a name looks the same in every section
    sections = [_section(about, members, styles) for about, members in grouped.items()]
    if title is None:
        title = sections[0]["title"] if len(sections) == 1 else "Comparison of runs"
    return {"title": title, "version": version("rookery"), "dashes": DASHES, "costs": COSTS, "sections": sections}


def _section(about: tuple[str, str], runs: Sequence[StoredRun], styles: dict[str, int]) -> dict[str, Any]:
    names = distinct_names(runs)
    described = [_run(run, name, styles.setdefault(name, len(styles))) for run, name in zip(runs, names, strict=True)]
    beside = find_rivals(runs)
    rivals = [_rival(each, styles.setdefault(f"rival {each.name}", len(styles))) for each in beside.rivals]
    shown = _metrics(runs)
    wanted = str(runs[0].config["run"].get("metric", ""))
    chosen = next((metric["name"] for metric in shown if metric["name"] == wanted), shown[0]["name"] if shown else None)
    shown.sort(key=lambda metric: bool(metric["name"] != chosen))
    for metric in shown:
        _mark_best(metric, described, rivals)
    tunings = find_tunings(runs)
    tuned = [each["name"] for tuning in tunings for each in tuning["algorithms"]]
    return {
        "title": _heading(*about),
        "conclusion": conclusion(runs, beside.rivals, names),
        "meaning": meaning(runs, names, [metric["name"] for metric in shown], tuned),
        "metrics": shown,
        "metric": chosen,
        "costs": [
            cost for cost in COSTS if cost == "round" or any(any(run["costs"].get(cost, ())) for run in described)
        ],
        "runs": described,
        "rivals": rivals,
        "rival_seconds": beside.seconds,
        "learned": _learned(runs, described, beside.rivals, rivals, beside.problems, shown),
        "config": configurations([run.config for run in runs]),
        "tunings": tunings,
        "styles": {run.name: each["style"] for run, each in reversed(list(zip(runs, described, strict=True)))},
    }


def _rival(rival: Rival, style: int) -> dict[str, Any]:
    found = {metric: over for metric in rival.metrics if (over := rival.over(metric)) is not None}
    return {
        "name": rival.name,
        "what": rival.what,
        "ceiling": rival.ceiling,
        "style": style,
        "seeds": max((int(over.count[0]) for over in found.values()), default=0),
        "metrics": {
            metric: {"mean": _numbers(over.mean)[0], "deviation": _numbers(over.deviation)[0]}
            for metric, over in found.items()
        },
    }


def _mark_best(metric: dict[str, Any], runs: Sequence[dict[str, Any]], rivals: Sequence[dict[str, Any]]) -> None:
    """Adds which runs and which rivals are the best; a ceiling is no competitor."""
    name = metric["name"]
    finals = [run["metrics"].get(name, {"mean": [None]})["mean"][-1] for run in runs]
    others = [None if each["ceiling"] else each["metrics"].get(name, {"mean": None})["mean"] for each in rivals]
    top = _best([*finals, *others], metric["higher"])
    metric["best"] = [place for place in top if place < len(runs)]
    metric["best_rivals"] = [place - len(runs) for place in top if place >= len(runs)]


def _learned(
    runs: Sequence[StoredRun],
    described: Sequence[dict[str, Any]],
    rivals: Sequence[Rival],
    styled: Sequence[dict[str, Any]],
    problems: Sequence[str],
    shown: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What was learned: figures of all runs and rivals, and what is shown for one run at a time, the best first.

    Marks the metrics that are drawn here, which the table of final values then leaves out.
    """
    found = [read_learned(run) for run in runs]
    named = [(run["name"], run["style"], False, own) for run, (own, _) in zip(described, found, strict=True)]
    named += [
        (each["name"], each["style"], True, list(rival.exhibits)) for rival, each in zip(rivals, styled, strict=True)
    ]
    alone = [[each for each in own if each["kind"] not in SHARED] for own, _ in found]
    drawn = {line["column"] for own in alone for each in own if each["kind"] == "history" for line in each["series"]}
    for metric in shown[1:]:
        metric["drawn"] = metric["name"] in drawn
    order = _order(described, shown[0]) if shown else range(len(runs))
    return {
        "figures": figures(named),
        "runs": [{"run": place, "exhibits": alone[place]} for place in order if alone[place]],
        "problems": [*(each for _, told in found for each in told), *problems],
    }


def _order(runs: Sequence[dict[str, Any]], metric: dict[str, Any]) -> list[int]:
    """The places of runs, the best first, those without a result last."""
    finals = [run["metrics"].get(metric["name"], {"mean": [None]})["mean"][-1] for run in runs]
    sign = 1 if metric["higher"] is False else -1
    return sorted(range(len(runs)), key=lambda place: (finals[place] is None, sign * (finals[place] or 0.0)))


def _heading(task: str, dataset: str) -> str:
    heading = " on ".join(part for part in (task, dataset) if part)
    return heading[:1].upper() + heading[1:] or "Runs"


def _metrics(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    names = dict.fromkeys(name for run in runs for name in metrics(run.history))
    counts = {run.config["run"].get("metric"): run.config["run"].get("higher_is_better") for run in runs}
    return [
        {
            "name": name,
            "label": label(name),
            "percent": is_fraction(name, [run.history for run in runs]),
            "higher": direction(name) if counts.get(name) is None else bool(counts[name]),
        }
        for name in names
    ]


def _best(finals: Sequence[float | None], higher: bool | None) -> list[int]:
    """Which runs have the best mean: none if the metric's direction is not known or there is nothing to compare."""
    means = [np.nan if final is None else float(final) for final in finals]
    if higher is None or np.isfinite(means).sum() < 2:
        return []
    top = best(means, higher)
    return [number for number, mean in enumerate(means) if mean == top]


def _run(run: StoredRun, name: str, style: int) -> dict[str, Any]:
    history = run.history
    described: dict[str, Any] = {
        "name": name,
        "style": style,
        "command": str(run.config["run"].get("command", "")),
        "notes": notes(run),
        "seeds": 0,
        "costs": {},
        "metrics": {},
    }
    if not len(history):
        return described
    over = {metric: summary(history, metric) for metric in metrics(history)}
    described["seeds"] = lanes(history)
    described["costs"] = {cost: _numbers(spent(history, cost)) for cost in COSTS if has_cost(history, cost)}
    described["metrics"] = {
        metric: {
            "mean": _numbers(each.mean),
            "deviation": _numbers(each.deviation),
            "low": _numbers(each.low),
            "high": _numbers(each.high),
            "count": each.count.tolist(),
        }
        for metric, each in over.items()
    }
    return described


def _numbers(values: np.ndarray) -> list[float | int | None]:
    """Rounded to eight digits, more than anyone can see; whole numbers as integers."""
    rounded = [float(f"{value:.8g}") if np.isfinite(value) else None for value in values]
    return [int(value) if value is not None and value.is_integer() else value for value in rounded]


def _palette() -> str:
    def block(colors: Sequence[str]) -> str:
        return " ".join(f"--run{number}: {color};" for number, color in enumerate(colors))

    return f":root {{ {block(COLORS)} }}\n@media screen {{ :root[data-theme=dark] {{ {block(DARK_COLORS)} }} }}"
