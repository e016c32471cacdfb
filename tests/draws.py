"""The library's random choices, replayed for the NumPy transcriptions."""

import jax
import jax.numpy as jnp
import numpy as np

from rookery.keys import BATCH, PARTICIPANTS, SERVER, Stream, as_key, fold
from rookery.participation import Steps, check_participation


class Draws:
    def __init__(self, clients, *, key=0, participation=None, local_steps=1, batch_size=None):
        self.clients = clients
        self.n = clients.n
        self.p = np.asarray(clients.weights)
        self.key = as_key(key)
        self.participation = check_participation(participation, clients.n)
        self._steps = Steps.of(local_steps)
        self.max_steps = self._steps.high
        self.batch_size = batch_size
        self._integers = jax.jit(self._draw, static_argnames=("count", "purpose", "name"))

    def participants(self, t, fresh=0):
        ids, mask = self.participation.draw(fold(self.key, PARTICIPANTS, t, fresh), self.n, t)
        return np.asarray(ids)[np.asarray(mask)]

    def steps(self, t, i):
        return int(self._steps.draw(self.key, i, t))

    def rows(self, split, i, t, step, name, size=None):
        part = getattr(self.clients, split)
        i = 0 if split == "server" else i
        if self.batch_size is None:
            return np.asarray(part.rows(i, jnp.arange(int(part.size[i]))))
        number = int(name.removeprefix("neumann")) if name.startswith("neumann") else 0
        name = "neumann" if number else name
        full = name if split == "server" else f"{split} {name}"
        position = self._integers(size or self.batch_size, SERVER if split == "server" else BATCH, full, i, t, step,
                                  number, part.size[i])  # fmt: skip
        return np.asarray(part.rows(i, position))

    def _draw(self, count, purpose, name, i, t, step, number, below):
        stream = Stream(self.key, purpose, t) if purpose == SERVER else Stream(self.key, purpose, i, t)
        return stream.integers(count, below, step, name, number)
