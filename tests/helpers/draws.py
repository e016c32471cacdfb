"""The library's random choices, replayed for the NumPy transcriptions."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from rookery.problem.keys import ALGORITHM, BATCH, PARTICIPANTS, SERVER, Stream, as_key, fold
from rookery.problem.participation import Steps, check_participation


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

    def participants(self, t, fresh=0):
        ids, mask = _participants(self.participation, self.key, self.n, jnp.int32(t), jnp.int32(fresh))
        return np.asarray(ids)[np.asarray(mask)]

    def steps(self, t, i):
        return self._steps.low if self._steps.fixed else int(_steps(self._steps, self.key, jnp.int32(i), jnp.int32(t)))

    def below(self, t, name, count):
        """The server's own number of round t, uniform on 0..count−1."""
        return int(Stream(fold(self.key, ALGORITHM, t, name)).integers(1, count, 0, name)[0])

    def inner_step(self, t, count):
        """PrimalDual's k̂ of round t, uniform on 0..count−1."""
        return int(jax.random.randint(fold(self.key, ALGORITHM, t, "inner step"), (), 0, count, jnp.int32))

    def rows(self, split, i, t, step, name, size=None):
        part = getattr(self.clients, split)
        i = 0 if split == "server" else i
        if self.batch_size is None:
            return np.asarray(part.rows(i, jnp.arange(int(part.size[i]))))
        number = int(name.removeprefix("neumann")) if name.startswith("neumann") else 0
        name = "neumann" if number else name
        address = np.array([i, t, step, number], np.int32)
        size = size or self.batch_size
        name = name if split == "server" else f"{split} {name}"
        return np.asarray(_rows(self.key, part.index, part.start, part.size, address, size, split == "server", name))


@eqx.filter_jit
def _participants(participation, key, n, t, fresh):
    return participation.draw(fold(key, PARTICIPANTS, t, fresh), n, t)


@eqx.filter_jit
def _steps(steps, key, i, t):
    return steps.draw(key, i, t)


@partial(jax.jit, static_argnames=("count", "at_server", "name"))
def _rows(key, index, start, size, address, count, at_server, name):
    i, t, step, number = address
    stream = Stream(key, SERVER, t) if at_server else Stream(key, BATCH, i, t)
    rows = start[i] + stream.integers(count, size[i], step, name, number)
    return rows if index is None else index[rows]
