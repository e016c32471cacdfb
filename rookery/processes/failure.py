"""An error of one process as the others are told it."""

from typing import Any

from rookery.processes.meeting import Peer
from rookery.stopping import Interrupted

_KINDS = (ValueError, TypeError, OSError, ImportError)
"""Those that stay what they are; any other becomes a ``RuntimeError``."""


class Lost(ConnectionError):
    """Another process of the group is gone."""


def line_of(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, KeyboardInterrupt):
        return f"was stopped by {error}" if isinstance(error, Interrupted) else "was interrupted"
    line = " ".join(str(error).split())
    return line if isinstance(error, _KINDS) else f"{type(error).__name__}: {line}"


def tell(error: BaseException, plain: bool, level: int) -> dict[str, Any]:
    """As a part of a message: ``plain`` if others are to raise it as if it were their own."""
    kind = next((each.__name__ for each in _KINDS if isinstance(error, each)), "RuntimeError")
    signal = error.number if isinstance(error, Interrupted) else 2 if isinstance(error, KeyboardInterrupt) else 0
    notes = [str(each) for each in getattr(error, "__notes__", ())]
    return {"kind": kind, "line": line_of(error), "notes": notes, "signal": signal, "plain": plain, "level": level}


def heed(told: dict[str, Any], whose: Peer, own: BaseException | None, is_own: bool) -> BaseException:
    """What to raise when a process has failed: one's own error if it is that one, or says the same, or all know of it."""
    if own is not None:
        as_it_is = is_own or is_known(own) or isinstance(own, KeyboardInterrupt) or line_of(own) == told["line"]
        if as_it_is:
            return make_known(own)
    error: BaseException
    if told["signal"]:
        error = Interrupted(told["signal"])
    elif told["plain"]:
        kinds = {each.__name__: each for each in _KINDS}
        error = kinds.get(told["kind"], RuntimeError)(told["line"])
    else:
        error = ValueError(f"{whose}: {told['line']}")
    for note in told["notes"]:
        error.add_note(note)
    error.__cause__ = own
    return make_known(error)


def make_known(error: BaseException) -> BaseException:
    """Marks an error as one that every process of the group has come to know."""
    error.known_to_all = True  # type: ignore[attr-defined]
    return error


def is_known(error: BaseException) -> bool:
    """Whether every process has come to know of it."""
    return isinstance(error, Lost) or getattr(error, "known_to_all", False)
