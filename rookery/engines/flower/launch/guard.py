"""``guard.py PID COMMAND...`` runs a command until it ends, is asked to end, or the process PID is gone.

A process that is killed outright cannot stop what it started; this does.
"""

import os
import signal
import subprocess
import sys
import time


def main() -> int:
    """Returns the command's status."""
    parent = int(sys.argv[1])
    child = subprocess.Popen(sys.argv[2:])
    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, frame: asked.append(received))
    since = None
    while child.poll() is None:
        if since is None and (asked or os.getppid() != parent):
            child.terminate()
            since = time.monotonic()
        if since is not None and time.monotonic() - since > 5:
            child.kill()
        time.sleep(0.1)
    return child.returncode if child.returncode >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
