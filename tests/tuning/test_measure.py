"""What is measured before a search, also where a lower level is not convex, is solved in part, or is a sample."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import rookery as rk
from rookery.problem.solvers import SHALLOW, steep_gradients
from rookery.tuning import measure as measuring
from rookery.tuning.judge import Effort
from rookery.tuning.measure import LENGTHS, Found, measure

RNG = np.random.default_rng(0)
ROTATION = np.linalg.qr(RNG.normal(size=(40, 40)))[0]


def bending(eigenvalues):
    """A product with a symmetric matrix of these eigenvalues, and the matrix."""
    matrix = jnp.asarray(ROTATION @ np.diag(eigenvalues) @ ROTATION.T)
    return (lambda v: matrix @ v), matrix


def test_a_convex_system_is_solved():
    product, matrix = bending(np.linspace(1.0, 8.0, 40))
    b = jnp.asarray(RNG.normal(size=40))
    found, convex = steep_gradients(product, b, 30, jnp.asarray(8.0))
    assert convex
    np.testing.assert_allclose(found, jnp.linalg.solve(matrix, b), rtol=1e-6, atol=1e-8)


def test_a_system_that_is_not_convex_has_a_solution_of_its_steep_directions():
    """Small eigenvalues of both signs, as of a network that is trained in part: z is finite, and not of their size."""
    product, _ = bending(np.concatenate([np.linspace(1.0, 8.0, 10), np.linspace(-1e-2, 1e-2, 30)]))
    b = jnp.asarray(RNG.normal(size=40))
    found, convex = steep_gradients(product, b, 30, jnp.asarray(8.0))
    assert not convex
    assert np.isfinite(found).all()
    assert float(jnp.vdot(found, b)) > 0
    assert 0.1 / 8 < float(jnp.linalg.norm(found) / jnp.linalg.norm(b)) < 1 / (SHALLOW * 8)


def test_where_nothing_bends_upwards_it_is_one_step_of_the_series():
    product, _ = bending(-np.linspace(1.0, 8.0, 40))
    b = jnp.asarray(RNG.normal(size=40))
    np.testing.assert_allclose(steep_gradients(product, b, 30, jnp.asarray(8.0))[0], b / 8)


def along(values, slope=0.03, phi=0.034):
    return Found(20.0, 1.5, 0.08, slope, np.inf, 1.0, phi, np.asarray(values), np.zeros(3))


def test_a_lower_level_that_goes_on_improving_is_no_gain_of_x():
    """At every short length Φ is smaller by the same, because its lower level is: x would be said to need steps of 1e-7."""
    lengths = np.array(LENGTHS)
    values = np.where(lengths < 0.1, 0.030, 0.031) + 1e-3 * lengths
    assert measuring._best_length(along(values)) == pytest.approx(1 / 0.03)


def test_a_gain_that_stands_out_is_one():
    lengths = np.array(LENGTHS)
    values = 0.034 - 0.03 * lengths * np.exp(-lengths)
    best = measuring._best_length(along(values))
    assert 0.3 / 0.03 <= best <= 3.2 / 0.03


def test_weights_of_examples_have_the_same_step_by_a_sample_as_by_all_data():
    """x has an entry for each example: on a sample a fifth of them has a slope, each five times as large."""
    clients, each = 10, 50
    targets = RNG.normal(size=(clients, each, 3))
    numbers = np.arange(clients * each).reshape(clients, each)

    def lower(x, y, batch):
        return jnp.mean(x[batch["number"]] * jnp.sum((y - batch["target"]) ** 2, -1)) + 0.1 * jnp.sum(y**2)

    def upper(x, y, batch):
        return jnp.mean(jnp.sum((y - batch["target"] - 1.0) ** 2, -1))

    data = [{"target": targets[k], "number": numbers[k]} for k in range(clients)]
    problem, whole = rk.Bilevel(upper, lower), rk.Clients(data, data)
    some = whole.some(np.arange(clients), each // 5)
    x0, y0 = np.ones(clients * each), np.zeros(3)
    by_all = measure(problem, whole, x0, y0, 100, 1.0)[0]
    by_some = measure(problem, some, x0, y0, 100, 1.0, share=0.2)[0]
    assert by_some.x / by_all.x == pytest.approx(1.0, rel=1.0)
    assert measure(problem, some, x0, y0, 100, 1.0)[0].x == pytest.approx(by_some.x / 5)


def test_the_start_is_judged_as_what_it_is_compared_with():
    """A lower level that takes many more steps than a judgement has: where x does not matter, no length gains."""
    rates = jnp.asarray(np.geomspace(1e-3, 1.0, 30))

    def lower(x, y, batch):
        return jnp.mean(jnp.sum(rates * (y - batch) ** 2, -1)) + 0.05 * jnp.sum(jnp.cos(3 * y))

    def upper(x, y, batch):
        return jnp.mean(jnp.sum((y - batch) ** 2, -1)) + 1e-3 * jnp.sum((x - 1.0) ** 2)

    points = [np.asarray(RNG.normal(size=(4, 30)) + 3.0) for _ in range(4)]
    clients = rk.Clients(points, points)
    found = measure(rk.Bilevel(upper, lower), clients, np.zeros(2), np.zeros(30), 100, 1.0, Effort(1, 3))[0]
    assert 10 < found.x < 1000  # the slope is 2.8e-3, and x should go to 1


def test_the_curvature_of_a_network_is_that_at_its_start():
    """A network that a sample's Newton steps fit closely bends there many times as much as where it is trained."""
    inputs = RNG.normal(size=(4, 8, 5))
    labels = 5 * RNG.normal(size=(4, 8))

    def lower(x, y, batch):
        hidden = jnp.tanh(batch["input"] @ y["first"])
        return jnp.mean((hidden @ y["second"] - batch["label"]) ** 2) + 1e-4 * x**2

    data = [{"input": inputs[k], "label": labels[k]} for k in range(4)]
    y0 = {"first": 0.1 * RNG.normal(size=(5, 20)), "second": 0.1 * RNG.normal(size=20)}
    clients = rk.Clients(data, data)
    problem = rk.Bilevel(lower, lower)
    scales = measure(problem, clients, 0.0, y0, 100, 1.0, Effort(1, 3))[0]
    flat, shape = ravel_pytree(y0)
    both = jnp.concatenate([each["input"] for each in data]), jnp.concatenate([each["label"] for each in data])
    bends = jax.hessian(lambda v: lower(0.0, shape(v), {"input": both[0], "label": both[1]}))(flat)
    assert scales.y == pytest.approx(1 / float(jnp.abs(jnp.linalg.eigvalsh(bends)).max()), rel=0.1)
