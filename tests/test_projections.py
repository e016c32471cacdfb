"""Constrained variables: what is projected where, and that nothing is evaluated outside its set."""

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from tests import quadratics as q
from tests.test_transcriptions import simplex

# --- one local step of FedSGDA-M is the centralised method ------------------------------------------------------------

APART = q.make_minimax(seed=1, p=q.WEIGHTS)  # clients whose own projected steps end on different faces
ON_SIMPLEX = rk.Minimax(q.objective, y_set=rk.Simplex())
X0, Y0 = np.linspace(-0.5, 0.5, q.DX), np.full(q.DY, 1 / q.DY)


def centralised(quadratic, eta_x, eta_y, rounds, x=X0, y=Y0, project=simplex):
    """Simultaneous projected descent and ascent on the mean objective."""
    for _ in range(rounds):
        f_x, f_y = quadratic.f_x(x, y), quadratic.f_y(x, y)
        x, y = x - eta_x * f_x, project(y + eta_y * f_y)
    return x, y


def on_simplex(algorithm, rounds):
    return q.run(ON_SIMPLEX, algorithm, APART, rounds, X0, Y0, local_steps=1)


@pytest.mark.parametrize("eta_y", [0.2, 0.5])
def test_fedsgda_m_with_one_local_step_is_the_centralised_method_on_a_simplex(eta_y):
    """With whole sets the averaged estimates are the gradients of the mean, whatever α and β."""
    algorithm = rk.FedSGDAM(eta_x=0.1, eta_y=eta_y, alpha=0.4, beta=0.7)
    for rounds in (1, 7):
        x, y = centralised(APART, 0.1, eta_y, rounds)
        solution = on_simplex(algorithm, rounds)
        np.testing.assert_allclose(solution.x, x, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(solution.y, y, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("eta_y", [0.2, 0.5])
@pytest.mark.parametrize("kind", [rk.FedSGDAM, rk.MomentumLocalSGDA])
def test_estimates_averaged_every_step_solve_the_problem_on_a_simplex(kind, eta_y):
    best = np.concatenate(centralised(APART, 0.1, 0.1, 4000))
    assert (best[q.DX :] == 0).any()  # the constraint binds
    solution = on_simplex(kind(eta_x=0.1, eta_y=eta_y), 1500)
    assert np.linalg.norm(np.concatenate([solution.x, solution.y]) - best) < 1e-9
    alone = [np.concatenate(centralised(APART.alone(i), 0.1, 0.1, 4000)) for i in range(APART.n)]
    assert min(np.linalg.norm(each - best) for each in alone) > 0.1  # the clients are unlike
