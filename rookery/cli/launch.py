"""``rookery launch``: a run of several processes on this machine."""

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from rookery import devices as machine
from rookery.cli.interruption import LAUNCHED
from rookery.cli.options import Devices
from rookery.processes import SAID, free_port, say

SETTINGS = {"allow_interspersed_args": False}
"""What follows the first word is the command's that is launched."""
PATIENCE = 15.0
"""Seconds that the others have to notice that one has failed, say so, and end."""
FORCE = 10.0
"""Seconds that they have after SIGTERM."""

GUARD = Path(__file__).with_name("guard.py")
"""It needs nothing but Python, and starts at once."""

_COMMANDS = ("run", "resume")
_OURS = ("--coordinator", "--processes", "--process", "--distributed", "--devices")
_LAST = 3
"""The signal that is not waited for."""
_SHOWN = 20
"""Lines of a process that are shown."""


def command(
    context: typer.Context,
    arguments: Annotated[
        list[str], typer.Argument(metavar="COMMAND...", help="run … or resume …, with all that belongs to it.")
    ],
    processes: Annotated[int, typer.Option(min=1, help="How many processes to start.")],
    devices: Devices = None,
) -> None:
    """Make a run in several processes on this machine, which share its cores and the clients of the run.

    The first process shows the progress and the result. If one fails, all are stopped.
    Ctrl-C stops all, once the rounds at hand are saved. A run that was stopped goes on with
    resume, in as many processes as you like.

    On several machines, start the command on each instead, with a number of its own:
    rookery run … --coordinator HOST:PORT --processes N --process I

    Examples:

      rookery launch --processes 4 -- run hyper-representation --clients 1000

      rookery launch --processes 2 --devices 2 -- run my_problem.py --algorithm FedBiO --out runs/first

      rookery launch --processes 4 -- resume runs/first
    """
    check_command(arguments)
    debug = bool(context.parent and context.parent.params.get("debug"))
    address = f"127.0.0.1:{free_port()}"
    commands = [command_of(number, processes, address, arguments, devices, debug=debug) for number in range(processes)]
    line = shlex.join(["rookery", *sys.argv[1:]])
    status = launch(commands, divide(machine.cores(), processes), {LAUNCHED: line})
    if status:
        raise typer.Exit(status)


def check_command(arguments: Sequence[str]) -> None:
    """Raises unless this is something to launch."""
    if arguments[0] not in _COMMANDS:
        raise ValueError(f"rookery launch can start {' and '.join(_COMMANDS)}, not {arguments[0]!r}")
    for each in arguments[1:]:
        if (name := each.partition("=")[0]) in _OURS:
            before = name in ("--processes", "--devices")
            what = f"give it before {arguments[0]}" if before else "it is for processes that are started one by one"
            raise ValueError(f"{name} is not for a command that is launched: {what}")


def command_of(
    number: int, count: int, address: str, arguments: Sequence[str], devices: str | None = None, debug: bool = False
) -> list[str]:
    """The command of one process."""
    own = ["--coordinator", address, "--processes", str(count), "--process", str(number)]
    own += [] if devices is None else ["--devices", devices]
    start = [sys.executable, "-m", "rookery", *(["--debug"] if debug else [])]
    return [*start, arguments[0], *own, *arguments[1:]]


def divide(cores: Sequence[int], count: int) -> list[list[int]]:
    """Cores for each process, nearly as many for all; none, which means all, if there are too few for each to have one."""
    if len(cores) < count:
        return [[] for _ in range(count)]
    least, more = divmod(len(cores), count)
    ends = [(number + 1) * least + min(number + 1, more) for number in range(count)]
    return [list(cores[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]


def launch(
    commands: Sequence[Sequence[str]],
    cores: Sequence[Sequence[int]],
    variables: dict[str, str],
    patience: float = PATIENCE,
    force: float = FORCE,
) -> int:
    """Runs these commands side by side until all have ended; returns the status of the first that failed, else 0."""
    with tempfile.TemporaryDirectory(prefix="rookery-launch-") as name, _heard() as signals:
        group = _Processes(Path(name), commands, cores, variables)
        try:
            group.wait(signals, patience, force)
        finally:
            group.kill()
        group.report(interrupted=bool(signals))
        return group.status


@contextmanager
def _heard() -> Iterator[list[int]]:
    """The signals that ask to stop, in a list; one that is ignored stays so."""
    signals: list[int] = []
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    for each, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(each, lambda number, frame: signals.append(number))
    try:
        yield signals
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class _Processes:
    """What was started: the first with the terminal, the others with a file each; all in sessions of their own.

    So a terminal's Ctrl-C comes here alone, and each gets it once. A guard ends each when this process is gone.
    """

    def __init__(
        self,
        folder: Path,
        commands: Sequence[Sequence[str]],
        cores: Sequence[Sequence[int]],
        variables: dict[str, str],
    ):
        self.folder = folder
        self.failed: int | None = None
        self.stopped = False
        self.started: list[subprocess.Popen[bytes]] = []
        try:
            for number, (command, own) in enumerate(zip(commands, cores, strict=True)):
                self.started.append(self._start(number, command, own, variables))
        except BaseException:
            self.kill()
            raise

    def _start(
        self, number: int, command: Sequence[str], cores: Sequence[int], variables: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        guard = [sys.executable, "-IS", str(GUARD), str(os.getpid()), ",".join(map(str, cores))]
        how: dict[str, Any] = {"start_new_session": True}
        environment = {**os.environ, **variables}
        if number == 0:
            return subprocess.Popen([*guard, *command], env={**environment, SAID: str(self.folder / "said")}, **how)
        with open(self.folder / str(number), "wb") as out:
            how |= {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            return subprocess.Popen([*guard, *command], env=environment, **how)

    def wait(self, signals: Sequence[int], patience: float, force: float) -> None:
        """Until all have ended. If one fails and nobody has asked them to stop, the others are stopped."""
        passed_on, since = 0, 0.0
        while any(each.poll() is None for each in self.started):
            for number in signals[passed_on:]:
                passed_on += 1
                self._send(number if passed_on < _LAST else signal.SIGKILL)
            if self._notice() and not since:
                since = time.monotonic()
            if since and not signals and time.monotonic() > since + patience and not self.stopped:
                self.stopped = True
                self._send(signal.SIGTERM)
            if self.stopped and not signals and time.monotonic() > since + patience + force:
                self._send(signal.SIGKILL)
            time.sleep(0.02)
        self._notice()

    def _notice(self) -> bool:
        """Whether one has failed; the first that is seen to have is remembered, before those that end because of it."""
        if self.failed is None:
            failed = [number for number, each in enumerate(self.started) if each.poll()]
            codes = [self.started[number].returncode for number in failed]
            killed = [
                number for number, code in zip(failed, codes, strict=True) if code < 0 and code != -signal.SIGABRT
            ]
            self.failed = next(iter([*killed, *failed]), None)
        return self.failed is not None

    def _send(self, number: int) -> None:
        for each in self.started:
            if each.poll() is None:
                with suppress(ProcessLookupError):
                    if number == signal.SIGKILL:
                        os.killpg(each.pid, number)
                    else:
                        each.send_signal(number)  # the guard passes it on

    def kill(self) -> None:
        """Leaves nobody behind: also what a guard that was killed has left."""
        for each in self.started:
            if each.poll() is None or each.returncode < 0:  # else the guard has seen the end of it
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(each.pid, signal.SIGKILL)
            each.wait()

    @property
    def status(self) -> int:
        """That of the first that failed, as shells have it."""
        code = 0 if self.failed is None else self.started[self.failed].returncode
        return code if code >= 0 else 128 - code

    def report(self, interrupted: bool) -> None:
        """What the others said, if something went wrong and the first has not said it; and how it ended, if nobody has."""
        if self.failed is None:
            return
        told = _lines(self.folder / "said")
        told += self._show_others(told)
        code = self.started[self.failed].returncode
        if interrupted or (code > 0 and (self.failed == 0 or told)):
            return
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        rest = "; the others were stopped" if self.stopped else ""
        missed = any(f"process {self.failed} (" in each for each in told)  # what failed is told, but not how
        say(f"{'Process' if missed else 'Error: process'} {self.failed} {how}{rest}")

    def _show_others(self, said: Sequence[str]) -> list[str]:
        """Shows their last lines, each one once, with the number of the process before it; returns them."""
        known = [text for each in said if (text := _bare(each))]
        shown: list[str] = []
        for number in range(1, len(self.started)):
            new = [line for line in _lines(self.folder / str(number)) if line and line not in shown]
            for line in new[-_SHOWN:]:
                text = _bare(line)
                if not any(each in text or text in each for each in known):
                    say(f"process {number}: {line}")
                    shown.append(line)
        return shown


def _lines(path: Path) -> list[str]:
    text = path.read_text(errors="replace") if path.exists() else ""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    return [line.rstrip() for line in plain.splitlines()]


def _bare(line: str) -> str:
    """Without what only says that it is an error."""
    return re.sub(r"^(Error|Warning): ", "", line).strip()
