"""The one line in which a process says what went wrong."""

import os
import sys
from contextlib import suppress

SAID = "ROOKERY_SAID"
"""The variable with the file in which ``rookery launch`` reads what process 0 has said, so that no line is shown twice."""


def say(line: str) -> None:
    """Prints a line to stderr."""
    with suppress(OSError, ValueError):  # nobody may be there to read it
        print(line, file=sys.stderr, flush=True)
    if path := os.environ.get(SAID):
        with suppress(OSError), open(path, "a") as file:
            file.write(line + "\n")
