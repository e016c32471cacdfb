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
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from importlib import resources
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from rookery.experiment.folder import StoredRun
from rookery.report.figures import COLORS, DASHES
from rookery.report.tables import (
    COSTS,
    best,
    column,
    direction,
    has_cost,
    is_fraction,
    label,
    lanes,
    metrics,
    spent,
    stopped,
    summary,
)
from rookery.report.tuning import find_tunings

DARK_COLORS = ("#4C9BDB", "#F0763A", "#22B588", "#E39AC6", "#F3B341", "#9BD8FA", "#F2F2F2", "#777777")
"""The same hues on a dark ground."""

_SETTINGS = ("clients", "participants", "local_steps", "batch_size", "rounds", "seeds")
_TABLES = ("run", "task", "algorithm", "environment")
_NOT_COMPARED = {("run", "command"), ("run", "task"), ("run", "dataset"), ("run", "algorithm")}
_LONGEST_SUFFIX = 40


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
    shown = _metrics(runs)
    for metric in shown:
        finals = [run["metrics"].get(metric["name"], {"mean": [None]})["mean"][-1] for run in described]
        metric["best"] = _best(finals, metric["higher"])
    wanted = str(runs[0].config["run"].get("metric", ""))
    chosen = next((metric["name"] for metric in shown if metric["name"] == wanted), shown[0]["name"] if shown else None)
    rows = configurations([run.config for run in runs])
    same = {row["key"]: row["values"][0] for row in rows if row["table"] == "run" and not row["differs"]}
    return {
        "title": _heading(*about),
        "settings": [[key.replace("_", " "), same[key]] for key in _SETTINGS if key in same],
        "metrics": shown,
        "metric": chosen,
        "costs": [
            cost for cost in COSTS if cost == "round" or any(any(run["costs"].get(cost, ())) for run in described)
        ],
        "runs": described,
        "config": rows,
        "tunings": find_tunings(runs),
        "styles": {run.name: each["style"] for run, each in reversed(list(zip(runs, described, strict=True)))},
    }


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
    means = [np.nan if final is None else final for final in finals]
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


def notes(run: StoredRun) -> list[str]:
    """What a reader must know about a run: seeds left out of the mean, an early end."""
    history = run.history
    if not len(history):
        return ["No evaluation yet."]
    rounds, width, halted = column(history, "round")[:, 0], lanes(history), stopped(history)
    found = []
    if halted.any():
        first = rounds[halted.any(1)][0]
        found.append(_left_out(int(halted.any(0).sum()), width, f"diverged and stopped before round {first:.0f}"))
    holes: dict[tuple[int, int], list[str]] = {}
    for metric in metrics(history):
        has_it = np.array([[metric in row] for row in history])
        bad = ~np.isfinite(column(history, metric)) & ~halted & has_it
        if bad.any():
            holes.setdefault((int(bad.any(0).sum()), int(rounds[bad.any(1)][0])), []).append(label(metric))
    for (count, first_round), names in holes.items():
        found.append(_left_out(count, width, f"no finite {', '.join(names)}, first in round {first_round}"))
    planned = run.config["run"].get("rounds")
    if isinstance(planned, int) and rounds[-1] < planned:
        found.append(f"Ended at round {rounds[-1]:.0f} of {planned}.")
    return found


def _left_out(count: int, width: int, why: str) -> str:
    return f"{count} of {width} seeds left out of the mean: {why}."


def distinct_names(runs: Sequence[StoredRun]) -> list[str]:
    """A distinct name for each run: its algorithm, with what differs or the folder added where several share it."""
    names = [run.name for run in runs]
    names = _tell_apart(names, lambda members: _suffixes([runs[i].config for i in members]))
    names = _tell_apart(names, lambda members: _tails([runs[i].path for i in members]))
    return _tell_apart(names, lambda members: [f"#{number}" for number, _ in enumerate(members, 1)])


def _tell_apart(names: Sequence[str], suffixes: Callable[[list[int]], Sequence[str]]) -> list[str]:
    """Appends a suffix to each name that occurs more than once."""
    result = list(names)
    for name, count in Counter(names).items():
        if count > 1:
            members = [number for number, each in enumerate(names) if each == name]
            for number, suffix in zip(members, suffixes(members), strict=True):
                result[number] = f"{name} ({suffix})" if suffix else name
    return result


def _suffixes(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What differs between configurations, or nothing if that is too long."""
    rows = [row for row in configurations(configs) if row["differs"] and row["table"] != "environment"]
    rows = [row for row in rows if row["key"] != "every"]  # how often a run is evaluated does not identify it
    texts = [
        ", ".join(f"{row['key']}={row['values'][number]}" for row in rows if row["values"][number] is not None)
        for number in range(len(configs))
    ]
    return texts if max(map(len, texts)) <= _LONGEST_SUFFIX else [""] * len(texts)


def _tails(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that tell them apart; whole paths would reveal where somebody works."""
    parts = [Path(path).parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        tails = ["/".join(part[-length:]) for part in parts]
        if len(set(tails)) == len(set(parts)):
            break
    return tails


def configurations(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Configurations side by side, a row for each key.

    ``values`` holds a text for each configuration (None: it does not have the key), ``differs`` whether not all are
    equal, ``marks`` which to highlight: those other than the most common value, or all if no value is the most common.
    The date of a run is no difference.
    """
    flat = [_flat(config) for config in configs]
    known = {name: number for number, name in enumerate(_TABLES)}
    keys = sorted(dict.fromkeys(key for each in flat for key in each), key=lambda key: known.get(key[0], len(known)))
    rows = []
    for table, key in keys:
        if (table, key) in _NOT_COMPARED:
            continue
        values = [each.get((table, key)) for each in flat]
        differs = len(set(values)) > 1 and (table, key) != ("environment", "date")
        marks = _marks(values) if differs else [False] * len(values)
        rows.append({"table": table, "key": key, "values": values, "differs": differs, "marks": marks})
    return rows


def _marks(values: Sequence[str | None]) -> list[bool]:
    present = Counter(value for value in values if value is not None)
    (common, count), *others = present.most_common()
    tie = bool(others) and others[0][1] == count
    return [bool(others) and value is not None and (tie or value != common) for value in values]


def _flat(config: Mapping[str, Any]) -> dict[tuple[str, str], str]:
    """{(table, key): text}; versions inside [environment] are keys of their own."""
    flat: dict[tuple[str, str], str] = {}
    for table, content in config.items():
        for key, value in content.items() if isinstance(content, Mapping) else [("", content)]:
            if table == "environment" and isinstance(value, Mapping):
                flat.update({(table, f"{key}.{name}"): _text(each) for name, each in value.items()})
            else:
                flat[table, str(key)] = _text(value)
    return flat


def _text(value: Any) -> str:
    """A value as TOML writes it, strings without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, Mapping):
        return "{" + _joined(f"{key} = {_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + _joined(map(_text, value)) + "]"
    return str(value)


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)


def _palette() -> str:
    def block(colors: Sequence[str]) -> str:
        return " ".join(f"--run{number}: {color};" for number, color in enumerate(colors))

    return f":root {{ {block(COLORS)} }}\n@media screen {{ :root[data-theme=dark] {{ {block(DARK_COLORS)} }} }}"
