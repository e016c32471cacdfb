"""How rates were found: what ``tuning.json`` in a run's folder says, as sentences, as figures of the page and as a table.

The file is written by a search for rates; here it is only read. It lies in the folder of a run, or in the folder above, for
a comparison.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from rookery.experiment.folder import StoredRun
from rookery.report.tables import label

FILE = "tuning.json"
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
"""What reading a damaged file can raise."""


def find_tunings(runs: Sequence[StoredRun]) -> list[dict[str, Any]]:
    """What the page shows of the searches for these runs' rates: each file once, with the algorithms that are here.

    Raises:
        ValueError: a file is damaged.
    """
    chosen: dict[Path, list[str]] = {}
    for run in runs:
        for path in (run.path / FILE, run.path.parent / FILE):
            if path.is_file():
                chosen.setdefault(path, []).append(run.name)
                break
    found = []
    for path, names in chosen.items():
        try:
            tuning = json.loads(path.read_text(encoding="utf-8"))
            here = {name: each for name, each in tuning["algorithms"].items() if name in names}
            if here:
                found.append(tuning_data({**tuning, "algorithms": here}))
        except _UNREADABLE as error:
            raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from None
    return found


def tuning_data(tuning: Mapping[str, Any]) -> dict[str, Any]:
    """A search as the page draws it, ready for JSON (a number that is not finite is None)."""
    higher = bool(tuning["higher_is_better"])
    return {
        "metric": label(str(tuning["metric"])),
        "higher": higher,
        "algorithms": [_algorithm(name, each, tuning, higher) for name, each in tuning["algorithms"].items()],
    }


def _algorithm(name: str, found: Mapping[str, Any], tuning: Mapping[str, Any], higher: bool) -> dict[str, Any]:
    points = _points(found["trials"])
    chosen = {str(rate): value for rate, value in found["rates"].items()}
    edges = {str(rate): str(edge) for rate, edge in (found.get("edges") or {}).items()}
    for point in points:
        point["chosen"] = all(_same(point["rates"].get(rate), value) for rate, value in chosen.items())
    known = [*(point["score"] for point in points), _number(found.get("frozen"))]
    ends, log = _axis([score for score in known if score is not None], higher)
    return {
        "name": str(name),
        "told": told(found, int(tuning["rounds"])),
        "paid": paid(found, tuning.get("budget") or {}),
        "rates": [[rate, _text(value), edges.get(rate)] for rate, value in chosen.items()],
        "remarks": [str(each) for each in found.get("remarks") or ()],
        "frozen": _number(found.get("frozen")),
        "searched": _searched(points),
        "stages": max((point["stage"] for point in points), default=0),
        "range": ends,
        "log": log,
        "points": points,
    }


def _points(trials: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A point for each configuration, as it was when it was last looked at."""
    last: dict[str, dict[str, Any]] = {}
    for trial in trials:
        rates = {str(name): value for name, value in trial["rates"].items()}
        key = json.dumps(rates, sort_keys=True)
        point = {"rates": rates, "stage": int(trial["stage"]), "rounds": int(trial["rounds"])}
        point |= {"score": _number(trial["score"]), "diverged": bool(trial.get("diverged")) or trial["score"] is None}
        if key not in last or point["stage"] >= last[key]["stage"]:
            last[key] = point
    return list(last.values())


def _searched(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """The rates that differ between configurations and that a logarithmic axis can show."""
    names = dict.fromkeys(name for point in points for name in point["rates"])

    def fits(name: str) -> bool:
        values = [point["rates"].get(name) for point in points]
        return all(_positive(value) for value in values) and len(set(values)) > 1

    return [name for name in names if fits(name)]


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _same(one: Any, other: Any) -> bool:
    if _positive(one) and _positive(other):
        return math.isclose(one, other, rel_tol=1e-6)
    return bool(one == other)


def _axis(scores: Sequence[float], higher: bool) -> tuple[list[float], bool]:
    """From where to where the axis of scores goes, and whether it is logarithmic, as for losses over decades.

    What is far worse than the rest must not squeeze it.
    """
    if not scores:
        return [0.0, 1.0], False
    if not higher and min(scores) > 0 and max(scores) / min(scores) > 20:
        middle, least = float(np.median(scores)), min(scores)
        most = min(max(scores), middle * (middle / least) ** 3)
        room = (most / least) ** 0.06
        return [least / room, most * room], True
    good = np.asarray(scores) * (1 if higher else -1)
    top, middle = float(good.max()), float(np.median(good))
    bottom = max(float(good.min()), middle - 3 * (top - middle)) if top > middle else float(good.min())
    room = 0.06 * (top - bottom) or 0.05 * abs(top) or 1.0
    ends = (bottom - room, top + room)
    return (list(ends) if higher else [-ends[1], -ends[0]]), False


def told(found: Mapping[str, Any], rounds: int) -> str:
    """In plain words what the budget bought one algorithm; ``found`` is its entry, ``rounds`` those of a whole run."""
    points = _points(found["trials"])
    after: dict[int, int] = {}
    for trial in found["trials"]:
        stage = int(trial["stage"])
        after[stage] = max(after.get(stage, 0), int(trial["rounds"]))
    parts = [f"{len(points)} configuration{'' if len(points) == 1 else 's'} tried"]
    lost = sum(point["diverged"] for point in points)
    if lost:
        parts.append(f"{lost} diverged")
    whole = sum(point["rounds"] >= rounds and not point["diverged"] for point in points)
    words = " went on after {} rounds"
    for stage in sorted(after)[1:]:
        if after[stage] >= rounds and whole:
            break
        reached = sum(point["stage"] >= stage for point in points)
        parts.append(f"{reached}{words.format(after.get(stage - 1, 0))}")
        words = " after {}"
    if whole and len(after) > 1:
        parts.append(f"{whole} made all {rounds}")
    text = ", ".join(parts)
    score = _number(found.get("score"))
    if score is None:
        return f"{text}; none has a score"
    frozen, start = _number(found.get("frozen")), _number(found.get("start"))
    against = [f"{frozen:.4g} with x frozen"] if frozen is not None else []
    against += [f"{start:.4g} at the start"] if start is not None else []
    return f"{text}; best {score:.4g}" + (f" against {' and '.join(against)}" if against else "")


def paid(found: Mapping[str, Any], budget: Mapping[str, Any]) -> str:
    """What an algorithm's search cost, and of how much; empty if that is not known."""
    spent = found.get("spent") or {}
    unit = str(budget.get("unit", "rounds"))
    forms = {"rounds": "{:,.0f} rounds", "calls": "{:,.0f} oracle calls"}
    parts = []
    for name, form in forms.items():
        if _number(spent.get(name)) is not None:
            of = f" of {budget['amount']:,.0f}" if name == unit and _number(budget.get("amount")) is not None else ""
            parts.append(form.format(spent[name]) + of)
    if _number(spent.get("bytes")) is not None:
        of = (
            f" of {budget['amount'] / 1e6:,.4g}"
            if unit == "bytes" and _number(budget.get("amount")) is not None
            else ""
        )
        parts.append(f"{spent['bytes'] / 1e6:,.4g}{of} MB")
    if _number(found.get("seconds")) is not None:
        parts.append(f"{found['seconds']:,.3g} s")
    return ", ".join(parts)


def tuning_table(tuning: Mapping[str, Any]) -> Table:
    """The rates that were found for each algorithm and what they are worth. The best score is bold.

    A rate at an edge of what was tried has an arrow that points beyond it.
    """
    higher = bool(tuning["higher_is_better"])
    algorithms = tuning["algorithms"]
    scores = [_number(each.get("score")) for each in algorithms.values()]
    known = [score for score in scores if score is not None]
    top = (max if higher else min)(known) if known else None
    by_phi = tuning["metric"] == "phi"
    metric = "Φ" if by_phi else label(str(tuning["metric"]))
    judged = "Φ, the upper objective where the lower level has followed" if by_phi else f"{metric} on held-out data"
    table = Table(title=Text(f"Rates by {judged}, {tuning['rounds']} rounds"))
    table.add_column("algorithm")
    table.add_column("rates", overflow="fold")
    for heading in (metric, "at the start" if by_phi else "x frozen", "tried", "diverged"):
        table.add_column(Text(heading), justify="right", no_wrap=True)
    for (name, each), score in zip(algorithms.items(), scores, strict=True):
        edges = each.get("edges") or {}
        arrows = {"largest": " ↑", "smallest": " ↓"}
        searched = {name for trial in each["trials"] for name in trial["rates"]}
        rates = [
            f"{rate} {_text(value)}{arrows.get(str(edges.get(rate)), '')}"
            for rate, value in each["rates"].items()
            if rate in searched
        ]
        points = _points(each["trials"])
        best = Text(_told(score), style="bold" if score is not None and score == top and len(known) > 1 else "")
        counts = len(points), sum(point["diverged"] for point in points)
        beside = _told(_number(each.get("start" if by_phi else "frozen")))
        table.add_row(Text(str(name)), Text("\n".join(rates)), best, beside, *map(str, counts))
    return table


def _told(score: float | None) -> str:
    return "–" if score is None else f"{score:.4g}"


def _text(value: Any) -> str:
    if isinstance(value, Mapping) and "scale" in value:
        return f"{_text(value['scale'])} (slowly growing)" if value.get("exponent", 0) > 0 else _text(value["scale"])
    return f"{value:.4g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _number(value: Any) -> float | None:
    """A finite number, or None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)
