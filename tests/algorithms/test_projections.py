"""Constrained variables: what is projected where, and that nothing is evaluated outside its set."""

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.descent_ascent import gradients, move
from tests.algorithms.test_transcriptions import simplex
from tests.helpers import quadratics as q

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


# --- no client evaluates a loss outside the sets ----------------------------------------------------------------------

EXEMPT = {  # each with its reason; one that does stay inside must not be listed
    "MeFBO": "its paper projects at the server only",
}
MARGIN = 1e-9


def only_inside(*tests):
    """1 where all hold, else not a number: a factor that spoils value and derivatives of a loss."""
    return jnp.where(jnp.all(jnp.stack([jnp.all(each) for each in tests])), 1.0, jnp.nan)


def in_sets(x, y):
    return only_inside(jnp.abs(x) <= 1 + MARGIN, y >= -MARGIN, jnp.abs(y.sum() - 1) <= MARGIN)


def upper(x, y, batch):
    return in_sets(x, y) * (0.5 * batch.mean() * (x @ x) + 0.5 * ((y - batch[0]) ** 2).sum() - 3 * x.sum())


def lower(x, y, batch):
    return in_sets(x, y) * (0.5 * (1 + batch.mean() ** 2) * ((y - x - 1) ** 2).sum())


def objective(x, y, batch):
    return in_sets(x, y) * (
        0.5 * x @ x + batch.mean() * (x @ y) - 0.5 * ((y - batch[0]) ** 2).sum() - 3 * x.sum() + y[0]
    )


def client_loss(w, batch):
    return only_inside(jnp.abs(w) <= 1 + MARGIN) * 0.5 * ((w - 2 - batch.mean()) ** 2).sum()


SETS = {"x_set": rk.Box(-1, 1), "y_set": rk.Simplex()}
PROBLEMS = {
    "bilevel": rk.Bilevel(upper, lower, **SETS),
    "bilevel-local": rk.Bilevel(upper, lower, **SETS, lower_level="local"),
    "minimax": rk.Minimax(objective, **SETS),
    "weighting": rk.ClientWeighting(client_loss, model_set=rk.Box(-1, 1)),
}
QUICK = {"FedNest", "LFedNest-minimax", "FedSGDA+", "FedSGDA-M", "Momentum Local SGDA", "CODASCA", "FedAvg"}
NO_LOCAL_STEPS = {"DistBiO", "DistBiOAcc", "FedMBO", "FBO-AggITD", "FBO-ITD"}  # nor has client weighting any


def stays_inside(algorithm, steps):
    """Whether three rounds of three local steps, from near the boundary, meet nothing but numbers."""
    kind = algorithm.solves[0]
    clients = rk.Clients([np.array([each]) for each in (-1.0, 0.5, 2.0)], server=np.ones(1))
    x0, y0 = (
        (np.full(3, 1 / 3), np.full(3, 0.9)) if kind == "weighting" else (np.full(3, 0.9), np.array([0.1, 0.1, 0.8]))
    )
    solution = rk.solve(PROBLEMS[kind], algorithm, clients, jnp.asarray(x0), jnp.asarray(y0), rounds=3, every=3,
                        evaluate=q.nothing, local_steps=steps)  # fmt: skip
    return bool(np.isfinite(solution.x).all() and np.isfinite(solution.y).all())


def case(name):
    marks = [] if name in QUICK else [pytest.mark.slow]
    if name in EXEMPT:
        marks.append(pytest.mark.xfail(strict=True, raises=rk.Diverged, reason=EXEMPT[name]))
    return pytest.param(name, marks=marks)


def test_the_tables_name_algorithms():
    assert set(rk.registry) >= QUICK | NO_LOCAL_STEPS | set(EXEMPT)


@pytest.mark.parametrize("name", [case(name) for name in rk.registry])
def test_no_client_evaluates_a_loss_outside_the_sets(name):
    kind = rk.registry[name]
    one = name in NO_LOCAL_STEPS or kind.solves == ("weighting",)
    more = {"outer_steps": 3} if hasattr(kind(), "outer_steps") else {}
    assert stays_inside(kind(**more), 1 if one else 3)


def test_a_loss_evaluated_outside_is_noticed():
    class Leaves(rk.LocalSGDA):
        def client(self, local, down):
            return local.loop(lambda k, v: move(local, v, gradients(local.f(k), v), self.eta_x, self.eta_y), down)

    with pytest.raises(rk.Diverged):
        stays_inside(Leaves(), 3)


# --- one local step of FedBiO's family is the centralised method ------------------------------------------------------


def fit(x, y, batch):
    return jnp.mean(jnp.sum((y - x - batch) ** 2, -1)) + jnp.sum(y**4)


def target(x, y, batch):
    return jnp.mean(jnp.sum((y - 2 * batch) ** 2, -1)) + jnp.mean(jnp.sum((x - batch) ** 2, -1))


@pytest.mark.parametrize(
    "algorithm",
    [rk.FedAvg(eta_y=0.3), rk.FedBiO(eta_x=0.3, eta_y=0.3, eta_z=0.1), rk.FedBiOAcc(eta_x=0.3, eta_y=0.3, eta_z=0.1)],
    ids=lambda algorithm: type(algorithm).__name__,
)
def test_one_local_step_on_unlike_clients_is_one_step_on_all_data(algorithm):
    """Their own projected steps would end on different faces, and the mean of those is another point."""
    parts = [np.array([each]) for each in ([-3.0, 0.1], [0.5, 4.0], [2.0, -0.3])]
    problem = rk.Bilevel(target, fit, x_set=rk.Box(-0.5, 0.5), y_set=rk.Simplex())
    x0, y0 = jnp.array([0.4, -0.2]), jnp.array([0.7, 0.3])
    ends = [
        rk.solve(problem, algorithm, rk.Clients(data), x0, y0, rounds=5, every=5, evaluate=q.nothing)
        for data in (parts, [np.concatenate(parts)])
    ]
    np.testing.assert_allclose(ends[0].x, ends[1].x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(ends[0].y, ends[1].y, rtol=1e-10, atol=1e-12)
