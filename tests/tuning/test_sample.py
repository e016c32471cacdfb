"""Large federations are measured and judged on a sample of their data."""

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.problem.keys import as_key
from rookery.problem.oracles import on_everybody
from rookery.tuning.sample import sample


def upper(x, y, a):
    return jnp.mean(jnp.sum((y - a) ** 2, -1))


def lower(x, y, a):
    return jnp.mean(jnp.sum((y - a - x) ** 2, -1))


def clients_of(sizes):
    rng = np.random.default_rng(0)
    return rk.Clients([rng.normal(size=(size, 2)) + i for i, size in enumerate(sizes)])


@pytest.mark.parametrize("sizes", [[200] * 40, list(range(300, 340))])
def test_a_sample_is_of_the_same_data(sizes):
    clients = clients_of(sizes)
    part = sample(rk.Bilevel(upper, lower), clients, 10, 1000)
    assert 10 <= part.n < 40
    assert part.lower.max_size < max(sizes)
    assert part.upper is part.lower
    assert float(part.weights.sum()) == pytest.approx(1)
    chosen = np.unique(np.linspace(0, 39, part.n).astype(int))
    most = part.lower.max_size
    loss = on_everybody(lambda x, y, a, key, client: upper(x, y, a), part.lower, part.weights, lambda: as_key(0))
    data = np.asarray(clients.lower.data)
    rows = [data[int(clients.lower.start[i]) :][: min(most, sizes[i])] for i in chosen]
    want = np.mean([np.mean(np.sum(row**2, -1)) for row in rows])
    assert float(loss(jnp.zeros(2), jnp.zeros(2))) == pytest.approx(want, rel=1e-6)


def test_nobody_is_left_out_where_that_is_cheap_or_clients_have_numbers():
    clients = clients_of([200] * 40)
    assert sample(rk.Bilevel(upper, lower), clients, 10, 8000) is clients
    numbered = rk.Bilevel(upper, lambda x, y, a, client: lower(x, y, a) * (1 + client))
    assert sample(numbered, clients, 10, 100) is clients
    assert sample(rk.Bilevel(upper, lower, lower_level="local"), clients, 10, 100) is clients


@pytest.mark.slow
def test_a_large_federation_is_tuned():
    rng = np.random.default_rng(0)
    clients = rk.Clients([rng.normal(size=(60, 2)) for _ in range(400)])
    shifted = rk.Bilevel(lambda x, y, a: upper(x, y, a + 3), lower)  # y* = mean + x, so x* = 3
    assert sample(shifted, clients, 10, 300).n < 400
    given = shifted, "FedBiO", clients, jnp.zeros(2), jnp.zeros(2)
    solution = rk.solve(*given, rounds=40, participation=10, batch_size=8)
    np.testing.assert_allclose(solution.x, [3.0, 3.0], atol=0.5)
