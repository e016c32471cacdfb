"""What a report says of runs: their names, what differs between them, and what a reader must know."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from rookery.experiment.folder import StoredRun
from rookery.report.tables import column, label, lanes, metrics, stopped

_TABLES = ("run", "task", "algorithm", "environment")
_NOT_COMPARED = {("run", "command"), ("run", "task"), ("run", "dataset"), ("run", "algorithm")}
_LONGEST_SUFFIX = 40


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
                flat.update({(table, f"{key}.{name}"): text(each) for name, each in value.items()})
            else:
                flat[table, str(key)] = text(value)
    return flat


def text(value: Any) -> str:
    """A value as TOML writes it, strings without quotes."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    if isinstance(value, Mapping):
        return "{" + _joined(f"{key} = {text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + _joined(map(text, value)) + "]"
    return str(value)


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(texts)
