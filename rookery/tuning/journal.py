"""What a search has found so far, in a file, so that one that was killed goes on and ends the same.

The search is a function of its seed and of the scores that it has seen. So the journal holds the outcome of each batch of
trials, in order, and a search that starts again reads them instead of computing them. The state of a trial is not stored:
one that goes on is computed again from its start, which gives the same bits.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rookery.files import write


class Journal:
    """The outcomes of batches by algorithm; ``identity`` is what the search depends on.

    Without a path nothing is stored.
    """

    def __init__(self, path: Path | None = None, identity: Mapping[str, Any] | None = None):
        self._path = path
        self._lines: dict[str, list[list[Any]]] = {}
        self._read: dict[str, int] = {}
        self._identity = json.loads(json.dumps(dict(identity or {})))
        if path is not None and path.exists():
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                told, lines = stored["identity"], stored["batches"]
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{path} is damaged: {error}; remove it to search anew") from None
            if told != self._identity:
                other = sorted(name for name in {*told, *self._identity} if told.get(name) != self._identity.get(name))
                raise ValueError(f"{path} is of a search with another {', '.join(other)}: choose another folder")
            self._lines = lines

    def next(self, algorithm: str, batch: list[Any]) -> list[Any] | None:
        """The stored outcome of this batch, if it is the next one of this algorithm."""
        lines, number = self._lines.get(algorithm, []), self._read.get(algorithm, 0)
        if number >= len(lines) or lines[number][0] != json.loads(json.dumps(batch)):
            return None
        self._read[algorithm] = number + 1
        found: list[Any] = lines[number][1]
        return found

    def add(self, algorithm: str, batch: list[Any], outcome: list[Any]) -> None:
        """Stores the outcome of a batch; what was stored beyond this place is of no use any more."""
        number = self._read.get(algorithm, 0)
        self._lines[algorithm] = [*self._lines.get(algorithm, [])[:number], [batch, outcome]]
        self._read[algorithm] = number + 1
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            content = {"identity": self._identity, "batches": self._lines}
            write(self._path, json.dumps(content).encode())
