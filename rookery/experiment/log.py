"""The log of a run's folder."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path


class Log:
    """Adds lines with their time. Of several processes one is the writer, and the others say nothing."""

    def __init__(self, path: Path, writer: bool = True):
        self.path, self.writer = path, writer

    def __call__(self, line: str, stderr: bool = False) -> None:
        """Adds a line, and shows it if asked to."""
        if not self.writer:
            return
        with open(self.path, "a") as file:
            file.write(f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {line}\n")
        if stderr:
            print(line, file=sys.stderr)


@contextmanager
def also_logged(log: Log) -> Iterator[None]:
    """What an engine tells goes to the run's log too."""
    handler = logging.Handler(logging.INFO)
    handler.emit = lambda record: log(record.getMessage())  # type: ignore[method-assign]
    told = logging.getLogger("rookery")
    told.addHandler(handler)
    try:
        yield
    finally:
        told.removeHandler(handler)
