"""What was learned, for people to look at: ``learned.json`` in the folder of a run, as the page draws it.

An exhibit is of one of six kinds. Bars and lines of equal title are one figure with a series for each run and rival; the
others are shown for one run at a time. What is damaged is left out, and the page says so.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rookery.experiment.folder import StoredRun
from rookery.report.reading import Damaged, cell, clean, items, mapping, number, read_json, text
from rookery.report.tables import column, metrics, summary
from rookery.solving.history import History

FILE = "learned.json"
MANY = 300
"""Samples or rows of one exhibit."""
WIDEST = 512
"""Pixels of a side of an image."""

Exhibit = dict[str, Any]


def read_learned(run: StoredRun) -> tuple[list[Exhibit], list[str]]:
    """The exhibits of a run, and a sentence for each thing that cannot be shown."""
    path = run.path / FILE
    if not path.is_file():
        return [], []
    try:
        found = read_json(path).get("exhibits")
        if not isinstance(found, list):
            raise Damaged("it has no list of exhibits")
    except Damaged as error:
        return [], [f"{FILE} of {clean(run.name)} is damaged: {error}."]
    return read_exhibits(found, f"{FILE} of {clean(run.name)}", run.history)


def read_exhibits(
    found: Sequence[Any], where: str, history: History | None = None, kinds: Sequence[str] = ()
) -> tuple[list[Exhibit], list[str]]:
    """The exhibits of a list, and a sentence for each that is damaged; ``kinds`` says which may come, if not all."""
    exhibits, problems = [], []
    for position, each in enumerate(found[:MANY], 1):
        try:
            exhibits.append(_exhibit(each, history, kinds or tuple(_KINDS)))
        except Damaged as error:
            problems.append(f"Exhibit {position} in {where} is damaged: {error}.")
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            missing = f"it has no {clean(error)}" if isinstance(error, KeyError) else clean(error)
            problems.append(f"Exhibit {position} in {where} is damaged: {missing}.")
    return exhibits, problems


def _exhibit(found: Any, history: History | None, kinds: Sequence[str]) -> Exhibit:
    found = mapping(found, "it")
    kind = found["kind"]
    if kind not in kinds:
        raise Damaged(f"its kind {clean(kind)[:40]!r} is none of {', '.join(kinds)}")
    made = {"kind": kind, "title": text(found["title"], "its title"), "text": text(found.get("text", ""), "its text")}
    return {**made, **(_history(found, history or History()) if kind == "history" else _KINDS[kind](found))}


def _samples(found: Mapping[str, Any]) -> Exhibit:
    columns = items(found["columns"], "columns", lambda each: text(each, "a column"))

    def item(each: Any) -> dict[str, Any]:
        cells = items(mapping(each, "an item")["cells"], "cells", cell)
        if len(cells) != len(columns):
            raise Damaged(f"an item has {len(cells)} cells for {len(columns)} columns")
        image = _image(each["image"]) if each.get("image") is not None else None
        return {"cells": cells, "image": image, "values": items(each.get("values", []), "values", _pair)}

    return {"columns": columns, "items": items(found["items"], "items", item, MANY)}


def _pair(found: Any) -> list[str]:
    pair = items(found, "a value", cell)
    if len(pair) != 2:
        raise Damaged("a value must be a name and a value")
    return pair


def _image(found: Any) -> dict[str, Any]:
    """Checked, so that the page can draw it: as many bytes as its shape says."""
    shape, pixels = mapping(found, "an image")["shape"], found["pixels"]
    fits = isinstance(shape, list) and len(shape) == 3 and all(type(each) is int for each in shape)
    if not fits or not all(1 <= side <= WIDEST for side in shape[:2]) or shape[2] not in (1, 3):
        raise Damaged(f"the shape {clean(shape)[:40]} of an image is not [height, width, 1 or 3] of at most {WIDEST}")
    if not isinstance(pixels, str):
        raise Damaged("the pixels of an image are no text")
    try:
        size = len(base64.b64decode(pixels, validate=True))
    except (binascii.Error, ValueError):
        raise Damaged("the pixels of an image are not base64") from None
    if size != shape[0] * shape[1] * shape[2]:
        raise Damaged(f"an image of shape {shape} has {size} bytes")
    return {"shape": shape, "pixels": pixels}


def _bars(found: Mapping[str, Any]) -> Exhibit:
    labels, values = items(found["labels"], "labels", cell), items(found["values"], "values", number)
    if len(labels) != len(values):
        raise Damaged(f"it has {len(labels)} labels and {len(values)} values")
    return {"labels": labels, "values": values, "percent": bool(found.get("percent", False))}


def _lines(found: Mapping[str, Any]) -> Exhibit:
    x, y = (items(found[name], name, number, 100_000) for name in ("x", "y"))
    if len(x) != len(y):
        raise Damaged(f"x has {len(x)} entries and y {len(y)}")
    points = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
    points = points[:: max(1, len(points) // 500)] + points[-1:]  # more than one can see would only fill the page
    words = {name: text(found.get(name, ""), name) for name in ("across", "up", "name")}
    ends = {"x": [short(a) for a, _ in points], "y": [short(b) for _, b in points]}
    return {**words, **ends, "diagonal": bool(found.get("diagonal", False))}


def _history(found: Mapping[str, Any], history: History) -> Exhibit:
    """Columns of the history, the mean over seeds."""
    names = mapping(found["columns"], "columns")
    known = metrics(history)
    missing = [name for name in names if name not in known]
    if missing or not names:
        raise Damaged(f"the history has no column {clean(missing[0])[:60]!r}" if missing else "it names no column")
    series = [
        {"name": text(label, "a label"), "column": name, "y": [short(each) for each in summary(history, name).mean]}
        for name, label in names.items()
    ]
    rounds = [short(each) for each in column(history, "round")[:, 0]]
    return {"up": text(found.get("up", ""), "up"), "x": rounds, "series": series}


def _table(found: Mapping[str, Any]) -> Exhibit:
    columns = items(found["columns"], "columns", cell)
    rows = items(found["rows"], "rows", lambda row: items(row, "a row", cell), MANY)
    if any(len(row) != len(columns) for row in rows):
        raise Damaged(f"not every row has {len(columns)} cells")
    return {"columns": columns, "rows": rows}


def _groups(found: Mapping[str, Any]) -> Exhibit:
    def example(each: Any) -> dict[str, Any]:
        found = mapping(each, "an example")
        told = {name: cell(found[name]) for name in ("label", "predicted") if name in found}
        return {"image": _image(found["image"]), "label": told["label"], "predicted": told.get("predicted")}

    def group(each: Any) -> dict[str, Any]:
        sets = {name: items(mapping(each, "a group")[name], name, example, MANY) for name in ("support", "query")}
        return {"caption": text(each.get("caption", ""), "caption"), **sets}

    return {"groups": items(found["groups"], "groups", group, 50)}


_KINDS: dict[str, Callable[[Mapping[str, Any]], Exhibit]] = {
    "samples": _samples,
    "bars": _bars,
    "lines": _lines,
    "history": lambda found: {},  # needs the history too
    "table": _table,
    "groups": _groups,
}
SHARED = ("bars", "lines")
"""Kinds that are drawn for all runs together."""


def short(value: float | None) -> float | None:
    """Six digits, more than anyone can see in a figure."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.6g}")


def figures(named: Sequence[tuple[str, int, bool, Sequence[Exhibit]]]) -> list[Exhibit]:
    """The bars and lines of equal title as one figure each.

    ``named`` has for each run or rival its name, the number of its style, whether it is a rival, and its exhibits.
    """
    found: dict[tuple[str, str], Exhibit] = {}
    for name, style, rival, exhibits in named:
        for each in exhibits:
            if each["kind"] not in SHARED:
                continue
            figure = found.setdefault((each["kind"], each["title"]), {**_frame(each), "series": []})
            own = {"name": name, "style": style, "rival": rival}
            if each["kind"] == "lines":
                own |= {"note": each["name"], "x": each["x"], "y": each["y"]}
            else:
                figure["labels"] += [text for text in each["labels"] if text not in figure["labels"]]
                own["values"] = dict(zip(each["labels"], map(short, each["values"]), strict=True))
            figure["series"].append(own)
    for figure in found.values():
        for own in figure["series"] if figure["kind"] == "bars" else ():
            own["values"] = [own["values"].get(each) for each in figure["labels"]]
    return list(found.values())


def _frame(exhibit: Exhibit) -> Exhibit:
    """A figure without its series."""
    names = ("kind", "title", "text", "percent", "across", "up", "diagonal")
    frame = {name: exhibit[name] for name in names if name in exhibit}
    return {**frame, "labels": []} if exhibit["kind"] == "bars" else frame
