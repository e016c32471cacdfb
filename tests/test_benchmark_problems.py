"""Φ of the benchmarks' problems against plain NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.problems import problems


def held(split):
    return [
        {name: np.asarray(leaf, np.float64) for name, leaf in split.take(i, np.arange(int(split.size[i]))).items()}
        for i in range(split.clients)
    ]


def test_ridge():
    made = problems()["ridge"]()
    x = made.x0 + jnp.asarray(np.random.default_rng(0).normal(size=40), made.x0.dtype)
    train, held_out = held(made.clients.lower), held(made.clients.upper)
    matrix = np.mean([d["input"].T @ d["input"] / len(d["target"]) for d in train], 0) + np.diag(np.exp(x))
    y = np.linalg.solve(matrix, np.mean([d["input"].T @ d["target"] / len(d["target"]) for d in train], 0))
    phi = np.mean([np.mean((d["input"] @ y - d["target"]) ** 2) for d in held_out])
    np.testing.assert_allclose(made.phi(x, made.y0), phi, rtol=1e-5)


def test_quadratic():
    made = problems()["scaled-quadratic"]()
    x = jnp.asarray(30 * np.random.default_rng(0).normal(size=8), made.x0.dtype)
    H, M, b, t = (np.asarray(made.clients.lower.data[name], np.float64) for name in "HMbt")
    y = np.linalg.solve(H.mean(0), M.mean(0) @ np.asarray(x, np.float64) + b.mean(0))
    phi = 0.5 * np.mean(np.sum((y - t) ** 2, 1)) + 0.5e-5 * float(x @ x)
    np.testing.assert_allclose(made.phi(x, made.y0), phi, rtol=1e-4)


@pytest.mark.slow
def test_lanes_and_what_is_no_number():
    """Lanes are those of one point each; a point that is not a number has an infinite Φ and does not end the others."""
    made = problems()["cleaning"]()
    points = jnp.stack([made.x0, made.x0 + jnp.nan, made.x0 - 1e6])
    starts = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), made.y0)
    found = np.asarray(jax.vmap(made.phi)(points, starts))
    np.testing.assert_allclose(found[0], made.phi(made.x0, made.y0), rtol=1e-5)
    assert np.isinf(found[1])
    np.testing.assert_allclose(found[2], np.log(2), rtol=1e-5)  # without examples y is 0
