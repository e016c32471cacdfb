"""Ctrl-C while the command is still importing what it needs: a line and no traceback. Imported before all else."""

import os
import signal
import sys
from typing import Any


def _is_command(line: list[str]) -> bool:
    """Whether this process is ``rookery`` or ``python -m rookery``, and no program that imports the library."""
    return line[1:3] == ["-m", "rookery"] or (len(line) > 1 and os.path.basename(line[1]) in ("rookery", "rookery.exe"))


def _end(number: int, frame: Any) -> None:
    os.write(2, b"Interrupted.\n" if number == signal.SIGINT else b"Terminated.\n")
    os._exit(128 + number)


if _is_command(sys.orig_argv):
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) == usual:  # one that is ignored stays so
            signal.signal(number, _end)
