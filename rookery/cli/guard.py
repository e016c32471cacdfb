"""``guard.py PID CORES COMMAND...`` runs a command until it ends, or the process PID is gone: then it is asked to end.

A process that is killed outright cannot stop what it started; this does. Signals are passed on, and this ends as the
command has ended. CORES are those that the command may use, such as 0,1; none is all.
"""

import os
import select
import signal
import subprocess
import sys
import time

PATIENCE = 30.0
"""Seconds to save what was computed."""


def main() -> int:
    """Returns the command's status."""
    parent, cores, command = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(each) for each in cores.split(",")])
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    mine = [number for number, handler in before.items() if handler != signal.SIG_IGN]
    for number in mine:
        signal.signal(number, lambda number, frame: received.append(number))
    woken = _wake_on_signals()
    child = subprocess.Popen(command)
    asked = None
    while child.poll() is None:
        while received:
            child.send_signal(received.pop(0))
        if asked is None and os.getppid() != parent:
            child.terminate()
            asked = time.monotonic()
        if asked is not None and time.monotonic() - asked > PATIENCE:
            child.kill()
        if select.select([woken], [], [], 0.2)[0]:
            os.read(woken, 64)
    if child.returncode < 0:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), -child.returncode)
    return abs(int(child.returncode))


def _wake_on_signals() -> int:
    """A file that can be read when a signal has come, also that the command has ended: so that it is noticed at once."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    return woken


if __name__ == "__main__":
    sys.exit(main())
