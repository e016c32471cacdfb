"""The group of processes that make a run together: what they tell each other, and what happens when one is gone.

Process 0 is in the middle: every other one has a link to it and to nobody else. A thread for each link listens all the time,
because the main thread may sit inside compiled code that waits for a process which will not come.
"""

import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from rookery.processes.failure import Lost, heed, line_of, make_known, tell
from rookery.processes.meeting import Peer
from rookery.processes.saying import say
from rookery.processes.wire import Link, encoded
from rookery.stopping import end

GRACE = 8.0
"""Seconds that the main thread has to come to know that a process is lost; then this process is ended."""
UNWINDING = 16.0
"""Seconds that it has from there to leave :meth:`Group.watched`: it may still wait for what was computed."""
OVERDUE = 12.0
"""Seconds after which a process that does not come to hear of another's error is taken to be stuck."""

NEWS = 5.0
"""Seconds in which the loss that made compiled code fail is known."""

_STATUS = re.compile(
    r"(?s)(.*: )?(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): "
)
_LEFT = "has left the others"
_T = TypeVar("_T")


class Group:
    """The processes that :func:`rookery.processes.join` brought together.

    All of them make the same calls in the same order, from one thread; what they tell each other is JSON: None, booleans,
    numbers, strings, lists, and dictionaries whose keys are strings. An error that one raises here is raised by all.
    """

    def __init__(self, number: int, peers: Sequence[Peer], links: Mapping[int, Link]):
        self._number = number
        self._peers = tuple(peers)
        self._links = dict(links)
        self._changed = threading.Condition()
        self._inbox: dict[int, deque[dict[str, Any]]] = {each: deque() for each in links}
        self._losing = False
        self._loss: str | None = None
        self._known = False  # by the main thread
        self._parted: set[int] = set()  # who has said goodbye
        self._over = False  # all have
        self._closed = False
        self._advice: list[str] = []
        self._depth = 0
        self._settled: int | None = None  # the outermost block of ``together`` that all know has failed
        self._overdue: dict[int, threading.Timer] = {}
        for each, link in links.items():
            threading.Thread(target=self._listen, args=(each, link), name="rookery-group", daemon=True).start()

    @property
    def number(self) -> int:
        """That of this process: 0 is the first."""
        return self._number

    @property
    def count(self) -> int:
        """How many processes there are."""
        return len(self._peers)

    def __repr__(self) -> str:
        return f"<process {self.number} of {self.count}>"

    # --- what the main threads do together

    def exchange(self, value: Any) -> list[Any]:
        """The values of all processes, by number."""
        return self._swap("exchange", {"value": value})

    def first(self, work: Callable[[], _T]) -> _T:
        """Process 0 alone does this work. All return its value, or raise the same error."""
        if self.number:
            return self._swap("first", {"value": None})[0]  # type: ignore[no-any-return]
        try:
            value = work()
        except Exception as error:
            self._fail("first", error, plain=True)
        return self._swap("first", {"value": value})[0]  # type: ignore[no-any-return]

    def all_well(self, work: Callable[[], _T]) -> _T:
        """Every process does this work. If it succeeds on all, each returns its own value; else all raise."""
        with self.together():
            return work()

    @contextmanager
    def together(self) -> Iterator[None]:
        """What goes wrong inside goes wrong on all: at their next exchange in here, or at the end.

        The process with the lowest number whose error it is raises it as it is, and so does one whose error says the same;
        the others raise a ``ValueError`` that names that process. A signal stops all.
        """
        self._depth += 1
        try:
            yield
        except Lost:
            raise
        except (Exception, KeyboardInterrupt) as error:
            if (lost := self.cause(error)) is not None:
                raise lost from error
            if self._settled is None or self._depth < self._settled:
                self._fail("together", error)
            raise
        else:
            self._swap("together", {"value": None})
        finally:
            if self._settled == self._depth:
                self._settled = None
            self._depth -= 1

    def same(self, what: str, digest: str) -> None:
        """Raises on every process if they do not all have the same digest of something."""
        sides: dict[str, list[str]] = {}
        for number, each in enumerate(self._swap(f"same {what}", {"value": digest})):
            sides.setdefault(each, []).append(str(number))
        if len(sides) > 1:
            told = "; ".join(
                f"{each[:12]} on process{'es' * (len(who) > 1)} {', '.join(who)}" for each, who in sides.items()
            )
            raise make_known(ValueError(f"all processes must be given the same {what}, and they are not: {told}"))

    @contextmanager
    def watched(self, advice: str) -> Iterator[None]:
        """While open, what to do is added to the line in which a lost process is told, if this one has to be ended."""
        self._advice.append(advice)
        try:
            yield
        finally:
            with self._changed:
                self._advice.pop()
                self._changed.notify_all()

    def cause(self, error: BaseException) -> Lost | None:
        """The loss behind an error, if there is one: of compiled code, whose sums over processes fail in words of their own.

        JAX raises a ``JaxRuntimeError``, or a ``ValueError`` that begins like one ("UNKNOWN: Gloo all-reduce failed: …").
        """
        compiled = isinstance(error, RuntimeError | ValueError) and _STATUS.match(str(error))
        return self.lost(NEWS) if compiled else None

    def lost(self, seconds: float) -> Lost | None:
        """Whether a process was lost. Waits for the news so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._loss is not None, seconds)
            if self._loss is None:
                return None
            self._known = True
            self._changed.notify_all()
            return Lost(self._loss)

    # --- the end

    @property
    def broken(self) -> bool:
        """Whether a process was lost."""
        return self._loss is not None

    def part(self, seconds: float | None = None) -> None:
        """Says goodbye, and waits until all have. Raises :class:`Lost` if one ends without a word."""
        with self._changed:
            self._parted.add(self.number)
        if self.number:
            self._send(0, encoded({"kind": "bye"}))
        with self._changed:
            self._changed.wait_for(self._all_parted, seconds)
            self._raise_loss()
            if not self._all_parted():
                raise Lost(f"others did not come to an end within {seconds:g} s")
            self._over = True
        if not self.number:
            self._send_all({"kind": "over"})

    def _all_parted(self) -> bool:
        return self._over or self._loss is not None or len(self._parted) == self.count

    def abandon(self, error: BaseException) -> None:
        """Ends without the others: they are told why this process is lost."""
        how = line_of(error) if isinstance(error, KeyboardInterrupt) else f"failed: {line_of(error)}"
        told = {"kind": "lost", "number": self.number, "how": how}
        if self.number:
            self._send(0, encoded(told))
        else:
            self._send_all(told)

    def close(self) -> None:
        """Ends the links."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for timer in self._overdue.values():
            timer.cancel()
        for link in self._links.values():
            link.close()

    # --- one step of all

    def _fail(self, step: str, error: BaseException, plain: bool = False) -> NoReturn:
        """Tells that the work of this process failed, and raises."""
        level = self._depth + 1 if plain else self._depth
        with suppress(Lost):  # its own error says more
            self._swap(step, {"failed": tell(error, plain, level)}, error)
        raise error

    def _swap(self, step: str, told: dict[str, Any], own: BaseException | None = None) -> list[Any]:
        """Tells the others a value, or that there is none; returns all values, or raises if one has none."""
        message = {"kind": "step", "step": step, **told}
        text = encoded(message)
        if self.number:
            self._send(0, text)
            answer = self._take()[0]
        else:
            if "failed" in told:
                self._expect(0, told["failed"])
            answer = _answer({0: json.loads(text), **self._take()})
            self._send_all(answer)
        if "values" in answer:
            return list(answer["values"])
        failed, number = answer["failed"], answer["number"]
        if failed["level"] <= self._depth:
            self._settled = failed["level"]
        raise heed(failed, self._peers[number], own, number == self.number)

    def _take(self) -> dict[int, dict[str, Any]]:
        """The next message of everybody at the other end of a link."""
        with self._changed:
            self._changed.wait_for(self._taken)
            self._raise_loss()
            left = [each for each, box in self._inbox.items() if not box and each in self._parted]
            if not left:
                for timer in self._overdue.values():
                    timer.cancel()
                self._overdue.clear()
                return {each: box.popleft() for each, box in self._inbox.items()}
            self._known = True
        self._lose(left[0], _LEFT)
        raise Lost(f"{self._peers[left[0]]} {_LEFT}")

    def _taken(self) -> bool:
        """Whether there is nothing more to wait for: all have spoken, or one will not."""
        silent = [each for each, box in self._inbox.items() if not box]
        return self._loss is not None or not silent or not self._parted.isdisjoint(silent)

    def _raise_loss(self) -> None:
        if self._loss is not None:
            self._known = True
            self._changed.notify_all()
            raise Lost(self._loss)

    def _send(self, number: int, text: bytes) -> None:
        with suppress(OSError):  # who listens to that link notices
            self._links[number].send_text(text)

    def _send_all(self, message: dict[str, Any], but: int = 0) -> None:
        text = encoded(message)
        for each in self._links:
            if each != but:
                self._send(each, text)

    # --- the threads

    def _listen(self, number: int, link: Link) -> None:
        while True:
            try:
                message = link.receive()
                self._hear(number, message)
            except (OSError, TypeError, KeyError, AttributeError):  # its end, or what is no message of ours
                with self._changed:
                    expected = number in self._parted or self._closed or self._over
                if not expected:
                    self._lose(number, "ended")
                return

    def _hear(self, number: int, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "lost":
            self._lose(message["number"], message["how"])
        elif kind == "step" and self.number in self._parted:
            self._send(number, encoded({"kind": "lost", "number": self.number, "how": _LEFT}))
        else:
            with self._changed:
                if kind == "bye":
                    self._parted.add(number)
                elif kind == "over":
                    self._over = True
                else:
                    self._inbox[number].append(message)
                    if "failed" in message and kind == "step":
                        self._expect(number, message["failed"])
                self._changed.notify_all()

    def _expect(self, number: int, failed: dict[str, Any]) -> None:
        """All must come to hear of a failure: who does not waits in vain, inside compiled code, for who failed."""
        how = failed["line"] if failed["signal"] else f"failed: {failed['line']}"
        timer = threading.Timer(OVERDUE, self._lose, (number, how))
        timer.daemon = True
        self._overdue[number] = timer
        timer.start()

    def _lose(self, number: int, how: str) -> None:
        """From now on this process is lost: the first loss counts, whatever follows from it."""
        with self._changed:
            if self._losing or self._over or self._closed:
                return
            self._losing = True
        if (
            not self.number
        ):  # before the main thread here can know and end: the others must not take it for the lost one
            self._send_all({"kind": "lost", "number": number, "how": how}, but=number)
        with self._changed:
            self._loss = f"{self._peers[number]} {how}"
            self._changed.notify_all()
        threading.Thread(target=self._see_to_the_end, name="rookery-group", daemon=True).start()

    def _see_to_the_end(self) -> None:
        """Ends this process unless its main thread comes to know of the loss, and comes out of the work at hand."""
        with self._changed:
            advice = list(self._advice)
            heard = self._changed.wait_for(lambda: self._known or self._closed, GRACE)
            if heard and self._changed.wait_for(lambda: not self._advice or self._closed, UNWINDING):
                return
        say("; ".join([f"Error: {self._loss}", *advice[-1:]]))
        end(1)


def _answer(told: Mapping[int, dict[str, Any]]) -> dict[str, Any]:
    """What process 0 answers all, once it has heard everybody."""
    failed = {each: told[each]["failed"] for each in sorted(told) if "failed" in told[each]}
    if failed:
        first = min(failed)
        level = min(each["level"] for each in failed.values())
        return {"kind": "answer", "number": first, "failed": {**failed[first], "level": level}}
    steps = {each: told[each]["step"] for each in sorted(told)}
    other = [each for each in steps if steps[each] != steps[0]]
    if other:
        line = f"the processes do not do the same: {steps[0]!r} on process 0, {steps[other[0]]!r} on process {other[0]}"
        return {"kind": "answer", "number": 0, "failed": tell(ValueError(line), plain=True, level=0)}
    return {"kind": "answer", "values": [told[each]["value"] for each in sorted(told)]}
