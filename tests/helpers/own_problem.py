"""Small problem modules as text, for tests of the command and of run folders."""

RIDGE = '''"""A ridge regression on made-up data."""

import jax.numpy as jnp
import numpy as np

import rookery as rk


def upper(x, y, batch):
    return jnp.mean((batch["a"] @ y - batch["b"]) ** 2)


def lower(x, y, batch):
    return upper(x, y, batch) + jnp.sum(jnp.exp(x) * y**2)


def draw(rng, size):
    a = rng.normal(size=(size, 2)).astype(np.float32)
    return {"a": a, "b": a.sum(1) + 0.1 * rng.normal(size=size).astype(np.float32)}
'''
"""Losses and data; what follows makes a problem of them."""

MAKE = f'''{RIDGE}

def make(clients=3, size=8, scale=1.0, levels=[1, 2], word="a", nothing=None, seed=0, held_out=False):
    """A ridge regression."""
    rng = np.random.default_rng(seed)
    data = rk.Clients([draw(rng, size) for _ in range(clients)], [draw(rng, size) for _ in range(clients)])
    test = draw(rng, size)

    def evaluate(x, y):
        return {{"loss": scale * upper(x, y, test), "a": jnp.max(y), "held": float(held_out)}}

    return {{
        "problem": rk.Bilevel(upper, lower), "x0": np.zeros(2, np.float32), "y0": np.zeros(2, np.float32),
        "clients": data, "evaluate": evaluate, "higher_is_better": False, "rounds": 6,
        "algorithm": rk.FedBiO(eta_x=0.1, eta_y=0.1, eta_z=0.1),
    }}
'''
"""A function with options."""

PLAIN = f"""{RIDGE}

problem = rk.Bilevel(upper, lower)
x0, y0 = np.zeros(2, np.float32), np.zeros(2, np.float32)
num_clients = 3
rounds, local_steps, batch_size, participants = 7, 2, 4, 2


def load_client(partition, num_partitions):
    rng = np.random.default_rng(partition)
    return rk.Clients([draw(rng, 8)], [draw(rng, 8)])
"""
"""Names at top level, with a loader."""
