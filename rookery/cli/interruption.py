"""What a command that was stopped tells the user: the line that continues its work."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

LAUNCHED = "ROOKERY_LAUNCHED"
"""The variable with the line that started several processes, as one would type it."""


def command_line() -> str:
    """The line that started this process, as one would type it; of one that was launched, that of ``rookery launch``."""
    return os.environ.get(LAUNCHED) or shlex.join(["rookery", *sys.argv[1:]])


@contextmanager
def if_stopped(advice: str) -> Iterator[None]:
    """Gives this advice if the work inside is stopped, in place of any that a part of it gives."""
    try:
        yield
    except KeyboardInterrupt as stopped:
        stopped.__notes__ = [advice]
        raise
