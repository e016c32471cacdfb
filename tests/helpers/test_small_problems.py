"""The hand-coded derivatives of small_problems.py against JAX in float64."""

import jax
import numpy as np
import pytest

from tests.helpers import small_problems as sp
from tests.helpers.marks import slow

pytestmark = pytest.mark.optimized


@pytest.fixture(autouse=True)
def float64():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


ROWS = np.array([0, 3, 3, 7, 11, 1])  # not sorted, one row twice


def batch(data):
    return {name: array[ROWS] for name, array in data.items()}


def same(by_hand, by_jax):
    assert by_jax.dtype == np.float64
    np.testing.assert_allclose(by_hand, by_jax, rtol=1e-12, atol=1e-13)


def points(seed, *sizes):
    rng = np.random.default_rng(seed)
    return [1.5 * rng.standard_normal(size) for size in sizes]


@pytest.mark.parametrize("seed", [slow(0), slow(1), 2])
def test_bilevel(seed):
    problem, splits = sp.make_bilevel(4, seed)
    f, g = batch(splits["upper"][0]), batch(splits["lower"][0])
    x, y = points(seed, problem.dx, problem.dy)
    same(problem.f_x(x, y, ROWS), jax.grad(sp.upper, 0)(x, y, f))
    same(problem.f_y(x, y, ROWS), jax.grad(sp.upper, 1)(x, y, f))
    same(problem.g_x(x, y, ROWS), jax.grad(sp.lower, 0)(x, y, g))
    same(problem.g_y(x, y, ROWS), jax.grad(sp.lower, 1)(x, y, g))
    same(problem.g_yy(x, y, ROWS), jax.hessian(sp.lower, 1)(x, y, g))
    g_xy = jax.jacobian(jax.grad(sp.lower, 0), 1)(x, y, g)
    assert g_xy.shape == (problem.dx, problem.dy)
    same(problem.g_xy(x, y, ROWS), g_xy)


@pytest.mark.parametrize("seed", range(3))
def test_minimax(seed):
    problem, splits = sp.make_minimax(4, seed)
    f = batch(splits["upper"][0])
    x, y = points(seed, problem.dx, problem.dy)
    same(problem.f_x(x, y, ROWS), jax.grad(sp.objective, 0)(x, y, f))
    same(problem.f_y(x, y, ROWS), jax.grad(sp.objective, 1)(x, y, f))
    assert np.linalg.eigvalsh(jax.hessian(sp.objective, 1)(x, y, f)).max() <= -sp.MU


@pytest.mark.parametrize("seed", range(3))
def test_weighting(seed):
    problem, splits = sp.make_weighting(4, seed, server_size=12)
    clients, server = batch(splits["lower"][0]), batch(splits["server"][0])
    (w,) = points(seed, problem.d)
    same(problem.loss(w, ROWS), sp.weighting_loss(w, clients))
    same(problem.grad(w, ROWS), jax.grad(sp.weighting_loss)(w, clients))
    same(problem.hess(w, ROWS), jax.hessian(sp.weighting_loss)(w, clients))
    same(problem.grad0(w, ROWS), jax.grad(sp.weighting_loss)(w, server))


def test_strong_convexity():
    """In y for the lower level, in w for the client losses, on every client."""
    bilevel, splits = sp.make_bilevel(6, 0)
    weighting, clients = sp.make_weighting(6, 0)
    for seed, (lower, rows) in enumerate(zip(splits["lower"][1], clients["lower"][1], strict=True)):
        x, y = points(seed, bilevel.dx, bilevel.dy)
        assert np.linalg.eigvalsh(bilevel.g_yy(x, y, lower)).min() > 0.5
        assert np.linalg.eigvalsh(weighting.hess(y, rows)).min() > 0.5


def test_second_derivatives_move():
    """Nothing is quadratic: the second derivatives depend on both variables."""
    problem, splits = sp.make_bilevel(4, 0)
    rows = splits["lower"][1][0]
    x, y, dx, dy = points(0, problem.dx, problem.dy, problem.dx, problem.dy)
    for derivative in (problem.g_yy, problem.g_xy):
        assert np.abs(derivative(x + dx, y, rows) - derivative(x, y, rows)).max() > 1e-2
        assert np.abs(derivative(x, y + dy, rows) - derivative(x, y, rows)).max() > 1e-2


@pytest.mark.parametrize("make", [sp.make_bilevel, sp.make_minimax, sp.make_weighting])
def test_rows_partition_the_pool(make):
    _, splits = make(5, 1)
    for split, (data, rows) in splits.items():
        size = {len(array) for array in data.values()}
        assert size == {sum(map(len, rows))}
        np.testing.assert_array_equal(np.sort(np.concatenate(rows)), np.arange(*size))
        if split != "server":
            assert len(rows) == 5
            assert len({len(r) for r in rows}) > 1


def test_given_sizes():
    sizes = [5, 12, 7]
    splits = sp.make_bilevel(3, 0, sizes)[1]
    assert [len(rows) for rows in splits["upper"][1]] == sizes
    assert [len(rows) for rows in splits["lower"][1]] == sizes[::-1]
