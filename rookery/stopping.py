"""Ctrl-C and SIGTERM: a run ends after the rounds at hand, with a checkpoint of them.

An exception raised wherever a signal happens to arrive would leave threads of compiled code behind, which abort the
process when the interpreter ends, and a second one would stop the cleaning up after the first.
"""

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PATIENCE = 3
"""The signal that is not waited for: this one ends the process as it stands."""

_heard: list[int] = []
"""The signals since the outermost :func:`heard` was opened: they are the process's, as its handlers are."""


class Interrupted(KeyboardInterrupt):
    """A signal asked to stop. Notes say how to go on."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.number = number

    @property
    def status(self) -> int:
        """The exit status that shells know: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.number


def asked() -> int:
    """The signal that was heard; 0 if none."""
    return _heard[0] if _heard else 0


def ask(number: int) -> None:
    """As if this signal had been heard: another process has heard it, and all stop together."""
    if not _heard:
        _heard.append(number)


def stop_if_asked() -> None:
    """Raises :class:`Interrupted` if a signal was heard."""
    if asked():
        raise Interrupted(_heard[0])


@contextmanager
def heard(at_once: bool) -> Iterator[None]:
    """While open, the first signal raises :class:`Interrupted`: at once, or at the next :func:`stop_if_asked` or the end.

    The second changes nothing, and the third ends the process. A signal that is ignored stays so; in a thread other than
    the main one, which alone hears signals, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def hear(number: int, frame: Any) -> None:
        _heard.append(number)
        if len(_heard) >= _PATIENCE:
            end(128 + number)
        if at_once and len(_heard) == 1:
            raise Interrupted(number)

    def raise_again(lost: Any) -> None:
        """What is raised in a callback of the garbage collector or a ``__del__`` is printed and forgotten."""
        if not isinstance(lost.exc_value, Interrupted):
            hook(lost)
            return
        _heard.clear()
        _thread.start_new_thread(_send_soon, (lost.exc_value.number,))  # a Thread would be waited for, in here

    hook, sys.unraisablehook = sys.unraisablehook, raise_again
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    mine = [each for each in _SIGNALS if before[each] not in (signal.SIG_IGN, None)]
    outermost = not any(getattr(handler, "__qualname__", "") == hear.__qualname__ for handler in before.values())
    for each in mine:
        signal.signal(each, hear)
    try:
        if at_once:
            stop_if_asked()  # one that was heard outside of here
        yield
        if not at_once:
            stop_if_asked()
    finally:
        sys.unraisablehook = hook
        for each in mine:
            signal.signal(each, before[each])
        if outermost:
            _heard.clear()


def _send_soon(number: int) -> None:
    time.sleep(0.1)
    _thread.interrupt_main(signal.Signals(number))


def end(status: int) -> None:
    """Ends the process as it stands: the interpreter's own end would wait for threads, or abort them."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            if stream.isatty():
                stream.write("\x1b[?25h")  # a progress bar hides the cursor
            stream.flush()
    os._exit(status)
