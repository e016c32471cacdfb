"""Inner solves: no line search takes a NaN, tolerances are those of the precision, and each says whether it converged."""

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.problem.solvers import conjugate_gradients, newton, projected_descent
from tests.helpers import quadratics as q

pytestmark = pytest.mark.optimized

BOTH = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def log_cosh(v):
    """Its slope is not a number where cosh is infinite: in float32 4.5 from the minimiser, in float64 36."""
    return jnp.sum(jnp.log(jnp.cosh(20 * (v - 3))))


def in_ball(v, radius=1e4):
    return v * jnp.minimum(1, radius / jnp.linalg.norm(v))


@BOTH
def test_projected_descent_takes_no_step_to_where_nothing_is_a_number(dtype):
    found = jax.jit(partial(projected_descent, log_cosh, in_ball))(np.full(5, 5.0, dtype))
    assert found.converged
    assert found.steps < 100
    np.testing.assert_allclose(found.at, 3, rtol=1e-4)


@BOTH
def test_newton_takes_no_step_to_where_nothing_is_a_number(dtype):
    """v − log v: from 3 Newton's step leads to −3."""
    found = jax.jit(partial(newton, lambda v: jnp.sum(v - jnp.log(v))))(np.full(5, 3.0, dtype))
    assert found.converged
    np.testing.assert_allclose(found.at, 1, rtol=1e-4)


def ridge(scale=1.0):
    """A, b, ∇² and the minimiser of :func:`squares`."""
    rng = np.random.default_rng(0)
    A, b = (scale * rng.standard_normal(shape) for shape in ((60, 12), 60))
    H = A.T @ A + np.eye(12)
    return A, b, H, np.linalg.solve(H, A.T @ b)


def squares(v, A, b, constant=0.0):
    return 0.5 * jnp.sum((A @ v - b) ** 2) + 0.5 * v @ v + constant


@BOTH
def test_newton_stops_where_the_precision_does(dtype):
    solve = jax.jit(lambda start, *more: newton(lambda v: squares(v, *more), start))
    for scale in (0.01, 1.0, 1000.0):
        A, b, _, exact = ridge(scale)
        for constant in (0.0, 1e6):
            found = solve(*(np.asarray(each, dtype) for each in (np.ones(12), A, b, constant)))
            assert found.converged
            assert found.steps <= 6
            np.testing.assert_allclose(found.at, exact, rtol=0, atol=2e-3 if dtype == np.float32 else 1e-8)


@BOTH
def test_projected_descent_stops_where_the_precision_does(dtype):
    solve = jax.jit(
        lambda start, *more: projected_descent(lambda v: squares(v, *more), lambda v: jnp.maximum(v, 0), start)
    )
    close = 1e-3 if dtype == np.float32 else 1e-9
    for scale in (1.0, 1000.0):
        A, b, H, _ = ridge(scale)
        found = solve(*(np.asarray(each, dtype) for each in (np.ones(12), A, b)))
        assert found.converged
        assert found.steps < 1000
        v = np.asarray(found.at, float)
        slope = (H @ v - A.T @ b) / np.linalg.norm(H, 2)
        assert 0 < np.sum(v == 0) < 12
        np.testing.assert_allclose(slope[v > 0], 0, atol=close)
        assert (slope[v == 0] > -close).all()


@BOTH
def test_conjugate_gradients_says_whether_it_converged(dtype):
    solve = jax.jit(lambda H, b: conjugate_gradients(lambda v: H @ v, b))
    H, b = ridge()[2], np.ones(12, dtype)
    found = solve(H.astype(dtype), b)
    assert found.converged
    assert found.steps <= 24
    np.testing.assert_allclose(found.at, np.linalg.solve(H, b), rtol=1e-4 if dtype == np.float32 else 1e-9)
    lopsided = H + np.triu(np.full((12, 12), 200.0), 1)  # not symmetric: the method does not find the solution
    for bad in (lopsided, H * np.nan):
        assert not solve(bad.astype(dtype), b).converged


def test_a_solve_that_does_not_end_well_says_so():
    A, b, *_ = ridge()

    def value(v):
        return squares(v, A, b) + jnp.sum(v**4)

    def spoilt(v):
        return value(v) * jnp.nan

    free, start = (lambda v: v), jnp.ones(12)
    cut = jax.jit(lambda v: (newton(value, v, steps=1), projected_descent(value, free, v, steps=3)))(start)
    spoilt_ = jax.jit(lambda v: (newton(spoilt, v), projected_descent(spoilt, free, v)))(start)
    assert not any(each.converged for each in (*cut, *spoilt_))
    assert all(each.steps <= 1 for each in spoilt_)


# --- measures ---------------------------------------------------------------------------------------------------------


def in_precision(clients, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, clients)


def concave(x, y, batch):
    return -0.5 * y @ y + x @ y[:3] - jnp.mean(batch["a"])


def linear(x, y, batch):
    return jnp.sum(y) + jnp.sum(x)


def test_a_measure_whose_inner_solve_fails_is_not_a_number():
    quadratic = q.make_bilevel()
    clients, x, y = quadratic.clients(), jnp.ones(3), jnp.ones(4)
    found = rk.measures.hypergradient(rk.Bilevel(q.upper, linear), clients, x, y)
    assert not found.converged
    assert np.isnan(found.gradient).all()
    assert np.isnan(rk.measures.mefbo_residual(rk.Bilevel(q.upper, concave), clients, x, y, 1.0, 10.0))
    good = rk.measures.hypergradient(rk.Bilevel(q.upper, q.lower), clients, x, y)
    assert good.converged
    np.testing.assert_allclose(good.gradient, quadratic.gradient(np.ones(3)), rtol=1e-8)


def test_measures_of_weights_that_fail_are_not_numbers():
    toy = q.make_weighting(1)
    x, w = np.array([0.3, 0.2, 0.4, 0.1]), np.zeros(3)
    bad = rk.ClientWeighting(lambda w, batch: jnp.sum(w) + jnp.mean(batch["b"]))
    found = rk.measures.weighting_gradient(bad, toy.clients(), x, w)
    assert not found.converged
    assert np.isnan([*found.gradient, found.step, found.stationarity]).all()
    problem = rk.ClientWeighting(q.weighting_loss)
    assert np.isnan(rk.measures.weighting_moreau(problem, toy.clients(), x, w, rho=20.0, steps=2)).all()
    assert np.isfinite(rk.measures.weighting_moreau(problem, toy.clients(), x, w, rho=20.0)).all()


def test_a_moreau_gradient_that_is_cut_short_is_not_a_number():
    quadratic = q.make_bilevel()
    problem = rk.Minimax(lambda x, y, batch: x @ y[:3] - 0.5 * y @ y + 0 * jnp.sum(batch["a"]))
    measure = partial(rk.measures.moreau_gradient, problem, quadratic.clients(), jnp.ones(3), jnp.ones(4))
    assert np.isnan(measure(smoothness=2.0, steps=2)).all()
    assert np.isfinite(measure(smoothness=2.0)).all()


def test_measures_in_float32_agree_with_float64():
    toy = q.make_weighting(1)
    problem, x, w = rk.ClientWeighting(q.weighting_loss), np.array([0.3, 0.2, 0.4, 0.1]), np.zeros(3)
    results = []
    for dtype in (np.float32, np.float64):
        start = in_precision(toy.clients(), dtype), x.astype(dtype), w.astype(dtype)
        found = rk.measures.weighting_gradient(problem, *start)
        assert found.gradient.dtype == dtype
        assert found.converged
        results.append((found.gradient, rk.measures.weighting_moreau(problem, *start, rho=20.0)))
    for ours, exact in zip(*results, strict=True):
        np.testing.assert_allclose(ours, exact, atol=2e-3 * np.abs(exact).max())


def test_a_second_call_of_a_measure_compiles_nothing():
    quadratic, traced = q.make_bilevel(), []

    def lower(x, y, batch):
        traced.append(1)
        return q.lower(x, y, batch)

    measure = partial(rk.measures.mefbo_residual, rk.Bilevel(q.upper, lower), quadratic.clients())
    first = measure(jnp.ones(3), jnp.ones(4), 2.0, 0.8)
    count, clock = len(traced), time.perf_counter()
    second = measure(jnp.zeros(3), jnp.ones(4), 3.0, 0.9)
    assert len(traced) == count > 0
    assert time.perf_counter() - clock < 0.5
    assert first != second
