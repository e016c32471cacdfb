"""An engine that is not in the package: the simulator behind a queue. It is all that an engine of one's own needs."""

import queue
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field

import rookery as rk


@dataclass(frozen=True)
class Queued(rk.Engine):
    """A thread makes the rounds; requests and answers go through queues. ``orders`` notes what it was asked for."""

    batches = True
    inner: rk.Simulator = field(default_factory=rk.Simulator)
    orders: list[int] = field(default_factory=list, compare=False)

    @contextmanager
    def open(self, run):
        with self.inner.open(run) as inner:
            session = QueuedSession(inner, self.orders, 0 if run.memory is None else run.memory["made"])
            worker = threading.Thread(target=session.work)
            worker.start()
            try:
                yield session
            finally:
                session.requests.put(None)
                worker.join()

    def diagnose(self, run, state, stopped):
        return self.inner.diagnose(run, state, stopped)


class QueuedSession:
    """Every call of ``advance`` is a request."""

    stride = 2

    def __init__(self, inner, orders, made):
        self.inner, self.orders, self.made, self.costs = inner, orders, made, inner.costs
        self.requests, self.answers = queue.Queue(), queue.Queue()

    def work(self):
        while (request := self.requests.get()) is not None:
            self.answers.put(self.inner.advance(*request))

    def advance(self, state, rounds):
        self.orders.append(rounds)
        self.made += rounds
        self.requests.put((state, rounds))
        return self.answers.get(timeout=300)

    def gather(self, state, final):
        return self.inner.gather(state, final)

    def memory(self):
        return {"made": self.made}
