"""Random numbers by name.

Every draw has its own key, folded from integers: the run's seed, the purpose, the client, the round, the local step, the
split and the name of the draw. Nothing depends on the order in which clients are visited or answer, and the simulator
and a deployed node that hold the same seed make the same draws. Always threefry, always 32-bit integers and floats, so
that a float64 run sees the batches of a float32 run.
"""

import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

BATCH, PARTICIPANTS, STEPS, SERVER, ALGORITHM, NOISE = range(6)
"""Purposes: clients' minibatches, who takes part, local steps, the server's minibatches, its other draws, noise."""


def as_key(key: Any, name: str = "key") -> Array:
    """A threefry key from a seed or a key."""
    if isinstance(key, int) and not isinstance(key, bool):
        if not -(2**63) <= key < 2**63:
            raise ValueError(f"{name} must be a seed of at most 64 bits, got {key}")
        words = np.array([key >> 32 & 0xFFFFFFFF, key & 0xFFFFFFFF], np.uint32)  # without x64 JAX takes the lower half
        made: Array = jax.random.wrap_key_data(jnp.asarray(words), impl="threefry2x32")
        return made
    if isinstance(key, Array) and key.shape == () and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if str(jax.random.key_impl(key)) != "threefry2x32":
            raise ValueError(f"{name} must be a threefry2x32 key, got {jax.random.key_impl(key)}")
        return key
    raise TypeError(f"{name} must be an integer seed or a jax.random.key(...), got {key!r}")


def fold(key: Array, *numbers: Any) -> Array:
    """``jax.random.fold_in`` over several integers; a string stands for its CRC-32."""
    words = jax.random.key_data(key)
    for number in numbers:
        number = jnp.uint32(zlib.crc32(number.encode())) if isinstance(number, str) else jnp.asarray(number)
        words = jnp.stack(_threefry(words[0], words[1], jnp.uint32(0), number.astype(jnp.uint32)))
    found: Array = jax.random.wrap_key_data(words, impl="threefry2x32")
    return found


class Stream:
    """All draws of one client (or of the server) in one round.

    A draw is named by its step, a name and maybe a number; its i-th word is the threefry block (key, (address, i)). So a
    minibatch costs one call, where a chain of ``fold_in`` and ``randint`` costs six, most of the time to compile.
    """

    def __init__(self, key: Array, *numbers: Any):
        self._key = jax.lax.optimization_barrier(jax.random.key_data(fold(key, *numbers)))

    def _address(self, step: Any, name: str, number: Any) -> Array:
        """32 bits for (step, name, number): steps and numbers are spread by two odd constants."""
        mixed = jnp.uint32(zlib.crc32(name.encode())) + jnp.asarray(step).astype(jnp.uint32) * jnp.uint32(0x9E3779B1)
        found: Array = mixed + jnp.asarray(number).astype(jnp.uint32) * jnp.uint32(0x85EBCA77)
        return found

    def _words(self, address: Array, count: int, first: int) -> tuple[Array, Array]:
        index = jnp.arange(first, first + count, dtype=jnp.uint32)
        found: tuple[Array, Array] = _threefry(self._key[0], self._key[1], jnp.full_like(index, address), index)
        return found

    def integers(self, count: int, below: Any, step: Any, name: str, number: Any = 0) -> Array:
        """``count`` uniform integers in 0..below−1 (up to a bias of below/2³²)."""
        high, low = self._words(self._address(step, name, number), (count + 1) // 2, 0)
        words = jnp.concatenate([high, low])[:count]
        drawn = (words % jnp.asarray(below).astype(jnp.uint32)).astype(jnp.int32)
        found: Array = jax.lax.optimization_barrier(drawn)  # else XLA fuses it into the gather, once for every pixel
        return found

    def key(self, step: Any, name: str, number: Any = 0) -> Array:
        """A key for whatever else is random at this address (dropout in a loss)."""
        high, low = self._words(self._address(step, name, number), 1, 0x7FFFFFFF)
        found: Array = jax.random.wrap_key_data(jnp.concatenate([high, low]), impl="threefry2x32")
        return found


@jax.jit
def _threefry(key0: Array, key1: Array, x0: Array, x1: Array) -> tuple[Array, Array]:
    """Threefry-2x32 with 20 rounds, written out: one fused kernel, where JAX's on CPU is a loop that costs more than
    the minibatch it draws. The same numbers, as a test asserts.
    """
    keys = (key0, key1, key0 ^ key1 ^ jnp.uint32(0x1BD11BDA))
    x0, x1 = x0 + keys[0], x1 + keys[1]
    for group in range(5):
        for turn in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x0 = x0 + x1
            x1 = ((x1 << turn) | (x1 >> (32 - turn))) ^ x0
        x0 = x0 + keys[(group + 1) % 3]
        x1 = x1 + keys[(group + 2) % 3] + jnp.uint32(group + 1)
    return x0, x1
