"""Reading what others left beside a run: JSON that may be damaged or hostile becomes plain values, or a ``Damaged``.

What passes here is text without control characters, numbers that JSON can hold, and no more of either than a page can show.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

LARGEST = 32_000_000
"""Bytes of a file."""
LONGEST = 600
"""Characters of a text."""
MOST = 2000
"""Entries of a list."""

T = TypeVar("T")


class Damaged(ValueError):
    """A file is not what it should be; the message says where."""


def read_json(path: Path) -> Mapping[str, Any]:
    """The object in a file."""
    try:
        if path.stat().st_size > LARGEST:
            raise Damaged(f"it has more than {LARGEST / 1e6:.0f} MB")
        found = json.loads(path.read_text(encoding="utf-8"))
    except Damaged:
        raise
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Damaged(f"it is not JSON ({clean(reason)})") from None
    return mapping(found, "the file")


def clean(value: Any) -> str:
    """Text for a page or a terminal: of one line, without control characters, cut where it is far too long."""
    words = " ".join(str(value).split())
    shown = "".join(each if each.isprintable() else "\ufffd" for each in words[: LONGEST + 1])
    return shown if len(shown) <= LONGEST else shown[:LONGEST] + "…"


def text(value: Any, what: str) -> str:
    """A string, made clean."""
    if not isinstance(value, str):
        raise Damaged(f"{what} is no text")
    return clean(value)


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """An object of JSON."""
    if not isinstance(value, Mapping):
        raise Damaged(f"{what} is no object")
    return value


def items(value: Any, what: str, read: Callable[[Any], T], most: int = MOST) -> list[T]:
    """A list, each entry read."""
    if not isinstance(value, list):
        raise Damaged(f"{what} is no list")
    if len(value) > most:
        raise Damaged(f"{what} has {len(value)} entries, more than {most}")
    return [read(each) for each in value]


def number(value: Any) -> float | None:
    """A finite number; None for what is not finite or not known."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise Damaged(f"{clean(value)[:40]!r} is no number")
    return float(value)


def cell(value: Any) -> str:
    """A cell of a table: text, or a number with as many digits as one reads."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return str(value) if abs(value) < 10**15 else f"{number(value):.4g}"
    if isinstance(value, float):
        return f"{value:.4g}"
    return text(value, "a cell")
