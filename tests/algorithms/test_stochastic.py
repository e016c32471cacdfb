"""Section 9.5 of the specification and T-06: noise recursions, variances, measures against closed forms, two small tasks."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import rookery as rk
from rookery.algorithms.steps import Batches, directions
from rookery.problem.oracles import Objective, neumann, neumann_random, on_whole_set
from rookery.problem.solvers import projected_descent
from tests.helpers import quadratics as q
from tests.helpers import small_problems as small

NOISY = rk.Bilevel(q.noisy_upper, q.noisy_lower)
NOISY_LOWER = rk.Bilevel(q.upper, q.noisy_lower)
NOISY_MINIMAX = rk.Minimax(q.noisy_objective)
X0, Y0 = np.linspace(-0.5, 0.5, q.DX), np.linspace(0.3, -0.3, q.DY)
LANES = 64


def uncoupled(quadratic):
    """With E = 0 the x direction does not depend on z, so that (x, y) tell all."""
    return q.QB([{**each, "E": 0 * each["E"]} for each in quadratic.data], quadratic.p)


# --- additive noise --------------------------------------------------------------------------------------------------


def check_storm(error, xi, weight):
    """error_{s+1} = (1 − β) error_s + β ξ_{s+1}; rounds × lanes × coordinates. Then the stationary variance."""
    np.testing.assert_allclose(error[0], xi[0], atol=1e-10)
    np.testing.assert_allclose(error[1:], (1 - weight) * error[:-1] + weight * xi[1:], atol=1e-10)
    late = error[20::10]  # samples far enough apart to be independent
    expected, unshared = weight / (2 - weight), 2 * (1 - weight) / (weight * (2 - weight))
    assert np.var(late) == pytest.approx(expected, rel=0.2)
    assert unshared > expected  # what another batch at the old point would add


@pytest.mark.slow
def test_T50_fedbioacc_noise_recursion():
    quadratic, rounds, weight = uncoupled(q.make_bilevel(n=1, sigma=1.0)), 60, 0.3

    def errors(c):
        algorithm = rk.FedBiOAcc(
            eta_x=0.1, eta_y=0.2, eta_z=0.2, delta=0.5e5, offset=1e15, c_x=c, c_y=c, c_z=c, first_batch=1
        )
        solution = q.run(NOISY, algorithm, quadratic, rounds, keys=range(LANES), evaluate=q.path, every=1)
        x, y = q.path_of(solution, "x", q.DX), q.path_of(solution, "y", q.DY)
        server = solution.state.server  # holds the directions at the last point
        d_x = np.concatenate([-np.diff(x, axis=0) / 0.05, server["d_x"][None]])
        d_y = np.concatenate([-np.diff(y, axis=0) / 0.1, server["d_y"][None]])
        f_x = x @ quadratic.P.T + quadratic.a + y @ quadratic.S.T
        return np.concatenate([d_x - f_x, d_y - (y @ quadratic.H.T - quadratic.e)], axis=-1)

    xi = errors(4.0)  # c δ² = 1: nothing but the new batch
    np.testing.assert_allclose(xi[7, 5, : q.DX], q.noise(5, "upper x", 1, round=7)[0, : q.DX], atol=1e-10)
    np.testing.assert_allclose(xi[7, 5, q.DX :], q.noise(5, "lower y", 1, round=7)[0, q.DX :], atol=1e-10)
    check_storm(errors(4 * weight), xi, weight)


@pytest.mark.slow
def test_T50_fedsgda_m_noise_recursion():
    quadratic, rounds = q.make_minimax(n=1, sigma=1.0), 60

    def errors(alpha, beta):
        algorithm = rk.FedSGDAM(eta_x=0.1, eta_y=0.2, alpha=alpha, beta=beta, first_batch=1)
        solution = q.run(NOISY_MINIMAX, algorithm, quadratic, rounds, keys=range(LANES), evaluate=q.path, every=1)
        x, y = q.path_of(solution, "x", q.DX), q.path_of(solution, "y", q.DY)
        u, v = -np.diff(x, axis=0) / 0.1, np.diff(y, axis=0) / 0.2
        np.testing.assert_allclose(solution.state.server["u"], u[-1], atol=1e-10)
        np.testing.assert_allclose(solution.state.server["v"], v[-1], atol=1e-10)
        x, y = x[:-1], y[:-1]
        f_x = x @ quadratic.P.T + quadratic.a + y @ quadratic.S.T
        return u - f_x, v - (x @ quadratic.S - y @ quadratic.M.T + quadratic.b)

    xi, error = errors(1.0, 1.0), errors(0.3, 0.6)
    both = q.noise(9, "upper x", 1, round=4)[0]  # one batch for both gradients
    np.testing.assert_allclose(np.concatenate([each[4, 9] for each in xi]), both, atol=1e-10)
    for k, weight in enumerate((0.3, 0.6)):
        check_storm(error[k], xi[k], weight)


@pytest.mark.parametrize("kind", [rk.LAASFBO, rk.ASFBO])
def test_T50_T51_buffers_within_a_round(kind):
    """The error m − D(point): STORM's follows the noise alone, that of the moving average also lags behind the point."""
    quadratic, tau, beta, key = q.make_bilevel(n=1, sigma=0.7), 4, 0.4, 11
    eta = {"x": 0.1, "y": 0.2, "z": 0.15}
    xi = {
        "x": 0.7 * q.noise(key, "upper x", tau)[:, : q.DX],
        "y": 0.7 * q.noise(key, "lower y", tau)[:, q.DX :],
        "z": -0.7 * q.noise(key, "upper z", tau)[:, q.DX :],
    }
    start = {"x": X0, "y": Y0, "z": np.zeros(q.DY)}
    v, d, error = start, quadratic.directions(*start.values()), {n: xi[n][0] for n in "xyz"}
    total = {n: d[n] + error[n] for n in "xyz"}
    for k in range(1, tau):
        v = {n: v[n] - eta[n] * (d[n] + error[n]) for n in "xyz"}
        old, d = d, quadratic.directions(*v.values())
        lag = {n: (1 - beta) * (old[n] - d[n]) if kind is rk.ASFBO else 0.0 for n in "xyz"}
        error = {n: (1 - beta) * error[n] + beta * xi[n][k] + lag[n] for n in "xyz"}
        total = {n: total[n] + d[n] + error[n] for n in "xyz"}
    rates = {f"eta_{n}": eta[n] for n in "xyz"} | {f"clip_{n}": (0.1, 0.1) for n in "xyz"}
    made = q.run(NOISY, kind(**rates, beta=beta), quadratic, 1, local_steps=tau, key=key).state.server
    for n in "xyz":
        np.testing.assert_allclose(made[n], start[n] - 0.1 * total[n], rtol=1e-10, err_msg=n)


def test_T52_noise_of_the_lower_gradient_cancels_in_mefbos_x_direction():
    algorithm = rk.MeFBO(gamma_x=0.5, gamma_y=0.2, gamma_theta=0.3, c=3.0, nu=1.5)
    noisy, clean = (
        q.run(NOISY_LOWER, algorithm, q.make_bilevel(n=1, sigma=sigma), 1, key=2).state.server for sigma in (1.0, 0.0)
    )
    xi = q.noise(2, "lower x", 1)[0, q.DX :]
    np.testing.assert_allclose(noisy["x"], clean["x"], rtol=1e-12)
    np.testing.assert_allclose(noisy["y"] - clean["y"], -0.2 * xi, rtol=1e-10)
    np.testing.assert_allclose(noisy["theta"] - clean["theta"], -0.3 * xi, rtol=1e-10)


@pytest.mark.slow
def test_T53_variance_of_the_aggregate_falls_like_one_over_P():
    quadratic, lanes = uncoupled(q.make_bilevel(same=True, sigma=1.0)), 200
    participants = [[2], [1, 3], [0, 1, 2], [0, 1, 2, 3]]
    algorithm = rk.SimFBO(gamma_x=0.1, gamma_y=0.1, gamma_z=0.1)
    solution = q.run(NOISY, algorithm, quadratic, 4, keys=range(lanes), participation=rk.Replay(participants),
                     evaluate=q.path, every=1)  # fmt: skip
    x, y = q.path_of(solution, "x", q.DX), q.path_of(solution, "y", q.DY)
    for t, ids in enumerate(participants):
        d_x = x[t] @ quadratic.P.T + quadratic.a + y[t] @ quadratic.S.T
        noise = np.concatenate(
            [(x[t] - x[t + 1]) / 0.1 - d_x, (y[t] - y[t + 1]) / 0.1 - (y[t] @ quadratic.H.T - quadratic.e)], 1
        )
        one = np.mean([q.noise(0, "upper x", 1, i, t)[0, : q.DX] for i in ids], axis=0)
        np.testing.assert_allclose(noise[0, : q.DX], one, atol=1e-10)
        assert abs(noise.mean()) < 4 / np.sqrt(len(ids) * noise.size)
        assert np.var(noise) * len(ids) == pytest.approx(1, abs=4 * np.sqrt(2 / noise.size))


def test_T54_random_series_has_the_mean_of_the_full_one():
    rng = np.random.default_rng(0)
    H, b, step, terms, draws = (
        jnp.asarray(q._positive(rng, 4, 0.5, 2.0)),
        jnp.asarray(rng.standard_normal(4)),
        0.4,
        6,
        100_000,
    )

    def hess(q, v):
        return H @ v

    full = np.asarray(neumann(hess, b, step, terms - 1))
    power = np.linalg.matrix_power(np.eye(4) - step * np.asarray(H), terms)
    np.testing.assert_allclose(full, np.linalg.solve(H, b - power @ np.asarray(b)), rtol=1e-12)
    keys = jax.random.split(jax.random.key(1), draws)
    random = np.asarray(jax.jit(jax.vmap(lambda key: neumann_random(hess, b, step, terms, key)))(keys))
    assert len(np.unique(random[:, 0])) == terms
    np.testing.assert_array_less(np.abs(random.mean(0) - full), 4 * random.std(0) / np.sqrt(draws))


# --- T-06 and the measures -------------------------------------------------------------------------------------------


def slopes(f, v, h=1e-5):
    """Central differences of a scalar."""
    return np.array([(f(v + h * row) - f(v - h * row)) / (2 * h) for row in np.eye(len(v))])


@pytest.mark.parametrize("tied", [False, True])
def test_T06_directions_against_finite_differences(tied):
    problem, splits = small.make_bilevel(1, seed=0)
    rows = {name: np.arange(len(splits[name][1][0])) for name in splits}
    rng = np.random.default_rng(1)
    x, y, z = rng.standard_normal(small.DX), rng.standard_normal(small.DY), rng.standard_normal(small.DY)

    def make(loss, name):
        return Objective(lambda x, y: loss(x, y, splits[name][0]))

    f, g = make(small.upper, "upper"), make(small.lower, "lower")
    others = (g, f, g) if tied else (make(small.lower, "lower"), make(small.upper, "upper"), make(small.lower, "lower"))
    d = jax.jit(lambda v: directions(Batches(f, g, *others), v))({"x": x, "y": y, "z": z})
    value_f, value_g = (jax.jit(each.value) for each in (f, g))

    def along_z(x, y):  # ⟨∇_y g, z⟩, its gradient taken by hand
        return problem.g_y(x, y, rows["lower"]) @ z

    expected = {
        "x": slopes(lambda v: value_f(v, y), x) - slopes(lambda v: along_z(v, y), x),
        "y": slopes(lambda v: value_g(x, v), y),
        "z": slopes(lambda v: along_z(x, v), y) - slopes(lambda v: value_f(x, v), y),
    }
    for name, each in expected.items():
        np.testing.assert_allclose(d[name], each, rtol=1e-6, atol=1e-8, err_msg=name)


def test_closed_forms_of_the_test_problems():
    quadratic, same = q.make_bilevel(p=q.WEIGHTS), q.make_bilevel(same=True)
    np.testing.assert_allclose(quadratic.gradient(X0), quadratic.matrix @ (X0 - quadratic.x_star), rtol=1e-10)
    np.testing.assert_allclose(quadratic.local_gradient(quadratic.local_x_star), 0, atol=1e-12)
    np.testing.assert_allclose(quadratic.averaged_local(quadratic.averaged_local_x_star), 0, atol=1e-12)
    for each in (same.local_x_star, same.averaged_local_x_star):
        np.testing.assert_allclose(each, same.x_star, rtol=1e-9)
    for each in (quadratic.local_x_star, quadratic.averaged_local_x_star):
        assert np.linalg.norm(each - quadratic.x_star) > 1e-2
    minimax = q.make_minimax(p=q.WEIGHTS)
    saddle = minimax.x_star, minimax.y_star(minimax.x_star)
    np.testing.assert_allclose(slopes(lambda x: minimax.value(x, saddle[1]), saddle[0]), 0, atol=1e-9)
    np.testing.assert_allclose(slopes(lambda y: minimax.value(saddle[0], y), saddle[1]), 0, atol=1e-9)


def test_whole_sets_of_unequal_sizes_are_as_exact_as_the_variables():
    quadratic = q.make_bilevel(3, sizes=[1, 4, 2, 3], scatter=0.5)
    split = quadratic.clients().upper

    def value(client):
        return on_whole_set(lambda x, y, batch, key, client: q.upper(x, y, batch), split, client, None, client)(X0, Y0)

    expected = [quadratic.alone(i).value(X0, Y0) for i in range(q.N)]
    np.testing.assert_allclose(jax.jit(jax.vmap(value))(jnp.arange(q.N)), expected, rtol=1e-12)


@pytest.mark.parametrize("level", ["global", "local"])
def test_T06_hypergradient_against_closed_form_and_central_differences(level):
    quadratic = q.make_bilevel(3, sizes=2, scatter=0.5, p=q.WEIGHTS)
    problem = rk.Bilevel(q.upper, q.lower, lower_level=level)
    found = jax.jit(partial(rk.measures.hypergradient, problem, quadratic.clients()))(X0, Y0)
    gradient, phi = (
        (quadratic.gradient, quadratic.phi) if level == "global" else (quadratic.local_gradient, quadratic.local_phi)
    )
    np.testing.assert_allclose(found.gradient, gradient(X0), rtol=1e-9)
    np.testing.assert_allclose(found.gradient, slopes(phi, X0), rtol=1e-6)
    own = [quadratic.alone(i) for i in range(q.N)]
    y = quadratic.y_star(X0) if level == "global" else [each.y_star(X0) for each in own]
    z = quadratic.z_star(X0) if level == "global" else [each.z_star(X0) for each in own]
    np.testing.assert_allclose(found.y, y, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.z, z, rtol=1e-9, atol=1e-11)
    assert np.linalg.norm(quadratic.averaged_local(X0) - gradient(X0)) > 1e-2  # sums before the inverse


def test_T06_hypergradient_of_a_problem_that_is_not_quadratic_with_clients_of_unequal_sizes():
    problem, splits = small.make_bilevel(3, seed=1)
    p = np.array([0.5, 0.2, 0.3])
    clients = rk.Clients(rk.Split(*splits["lower"]), rk.Split(*splits["upper"]), weights=p)
    rows = splits["lower"][1]

    def y_star(x):
        y = np.zeros(small.DY)
        for _ in range(30):
            slope, curvature = (
                sum(w * d(x, y, r) for w, r in zip(p, rows, strict=True)) for d in (problem.g_y, problem.g_yy)
            )
            y = y - np.linalg.solve(curvature, slope)
        return y

    batches = [{name: value[r] for name, value in splits["upper"][0].items()} for r in splits["upper"][1]]
    upper = jax.jit(lambda x, y: sum(w * small.upper(x, y, batch) for w, batch in zip(p, batches, strict=True)))
    found = jax.jit(partial(rk.measures.hypergradient, rk.Bilevel(small.upper, small.lower), clients))(X0, Y0)
    np.testing.assert_allclose(found.y, y_star(X0), rtol=1e-9)
    np.testing.assert_allclose(found.gradient, slopes(lambda x: upper(x, y_star(x)), X0), rtol=1e-6)


@pytest.mark.parametrize("box", [None, (-0.05, 0.05)])
def test_mefbo_residual_against_closed_form(box):
    quadratic, c, nu = q.make_bilevel(sizes=2, scatter=0.5, p=q.WEIGHTS), 4.0, 0.8
    problem = rk.Bilevel(q.upper, q.lower, x_set=rk.Box(*box) if box else None)
    x = np.array([0.05, 0.0, 0.05])
    d_x, d_y = quadratic.penalty_gradient(x, Y0, c, nu)
    assert d_x[0] < -0.02  # −d_x points out of the box here,
    assert d_x[2] > 0.02  # and into it here
    if box:
        d_x = d_x * [0, 1, 1]
    found = jax.jit(partial(rk.measures.mefbo_residual, problem, quadratic.clients(), c=c, nu=nu))(x, Y0)
    assert found == pytest.approx(d_x @ d_x + d_y @ d_y, rel=1e-9)


def test_projected_descent_reaches_its_tolerance():
    A = np.random.default_rng(0).standard_normal((6, 4))
    H, b = A.T @ A + np.eye(4), np.array([2.0, -0.1, 0.5, -1.0])
    exact = np.zeros(4)
    for _ in range(2000):
        exact = np.clip(exact - 0.05 * (H @ exact - b), -0.3, 0.2)

    def value(v):
        return 0.5 * v @ H @ v - b @ v

    found = jax.jit(lambda v: projected_descent(value, lambda v: jnp.clip(v, -0.3, 0.2), v, 1e-10))(np.zeros(4))
    assert 0 < np.sum((exact == -0.3) | (exact == 0.2)) < 4
    assert found.converged
    np.testing.assert_allclose(found.at, exact, atol=1e-9)


def bilinear(x, y, batch):
    return batch["k"].mean() * x @ y


def test_moreau_gradient_of_an_absolute_value():
    """max over |y| <= 1 of x·y is ‖x‖₁, whose envelope has the gradient clip(2Lx, −1, 1)."""
    clients = rk.Clients([{"k": np.array([k])} for k in (3.0, -1.0, 1.5)], weights=[0.4, 0.5, 0.1])
    scale = 0.4 * 3 - 0.5 + 0.1 * 1.5
    problem = rk.Minimax(bilinear, y_set=rk.Box(-1.0, 1.0))
    x, L = np.array([-2.0, 0.1, 0.3, -0.05]), 1.5
    found = jax.jit(partial(rk.measures.moreau_gradient, problem, clients, smoothness=L))(x, np.zeros(4))
    expected = np.clip(2 * L * x, -scale, scale)
    assert 0 < np.sum(np.abs(expected) == scale) < 4
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_weighting_gradient_against_finite_differences():
    toy, problem = q.make_weighting(1), rk.ClientWeighting(q.weighting_loss)
    x, clients = np.array([0.3, 0.2, 0.4, 0.1]), toy.clients()
    found, moreau = jax.jit(
        lambda x, w: (
            rk.measures.weighting_gradient(problem, clients, x, w, step=0.01),
            rk.measures.weighting_moreau(problem, clients, x, w, rho=20.0),
        )
    )(x, np.zeros(3))
    np.testing.assert_allclose(found.gradient, slopes(toy.phi, x), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(found.gradient, toy.gradient(x), rtol=1e-9)
    np.testing.assert_allclose(found.w, toy.w_star(x), rtol=1e-9)
    np.testing.assert_allclose(found.dual, toy.dual(x), rtol=1e-9)
    moved = np.linalg.norm(0.01 * (found.gradient - np.mean(found.gradient)))  # inside the simplex
    np.testing.assert_allclose(found.step, moved, rtol=1e-9)
    np.testing.assert_allclose(found.stationarity, moved / 0.01, rtol=1e-9)
    u = x - np.asarray(moreau) / 20  # the proximal point: its gradient is constant on the simplex
    total = toy.gradient(u) + 20 * (u - x)
    assert (u > 0).all()
    np.testing.assert_allclose(total - total.mean(), 0, atol=1e-8)
    assert np.linalg.norm(u - x) > 1e-3


# --- two tasks in small ----------------------------------------------------------------------------------------------


def blobs(rng, labels, separation, dim=10):
    """Gaussian classes around orthogonal means."""
    labels = np.asarray(labels)
    return {"a": separation * np.eye(dim)[labels] + rng.standard_normal((len(labels), dim)), "label": labels}


def cross_entropy(w, batch):
    scores = batch["a"] @ w["W"] + w["b"]
    return jax.nn.logsumexp(scores, axis=1) - jnp.take_along_axis(scores, batch["label"][:, None], 1)[:, 0]


def squares(w):
    return (w["W"] ** 2).sum() + (w["b"] ** 2).sum()


def zero_model(classes, dim=10):
    return {"W": jnp.zeros((dim, classes)), "b": jnp.zeros(classes)}


def validation(x, w, batch):
    return cross_entropy(w, batch).mean()


def weighted_training(x, w, batch):
    return (x[batch["id"]] * cross_entropy(w, batch)).mean() + 1e-3 * squares(w)


def test_T56_data_cleaning_finds_the_corrupted_labels():
    rng, classes, size = np.random.default_rng(2), 5, 40
    train, upper, corrupted = [], [], []
    for i in range(classes):  # client i validates with class i alone
        data = blobs(rng, rng.integers(0, classes, size), 4.0)
        given = np.where(rng.random(size) < 0.95, rng.integers(0, classes, size), data["label"])
        corrupted.append(given != data["label"])
        train.append({**data, "label": given, "id": i * size + np.arange(size)})
        upper.append(blobs(rng, np.full(20, i), 4.0))
    test = blobs(rng, rng.integers(0, classes, 1000), 4.0)
    problem, clients = rk.Bilevel(validation, weighted_training, x_set=rk.Box(0.0, 1.0)), rk.Clients(train, upper)

    def run(eta_x):
        algorithm = rk.FedBiO(eta_x=eta_x, eta_y=0.5, eta_z=0.1, tie_batches=True)
        solution = q.run(problem, algorithm, clients, 400, np.ones(classes * size), zero_model(classes), local_steps=5)
        scores = test["a"] @ np.asarray(solution.y["W"]) + np.asarray(solution.y["b"])
        return np.asarray(solution.x), np.mean(scores.argmax(1) == test["label"])

    _, fedavg = run(0.0)  # with x frozen at 1 it is FedAvg on the noisy labels
    x, accuracy = run(1.0)
    assert fedavg < 0.4
    assert accuracy > 0.9
    assert roc_auc_score(np.concatenate(corrupted), -x) > 0.9


def regularised(w, batch):
    return cross_entropy(w, batch).mean() + 0.01 * squares(w)


@pytest.mark.slow
def test_T57_client_weights_leave_noise_out_and_follow_the_number_of_labels():
    rng, classes = np.random.default_rng(1), 10
    groups = (range(5), range(5, 8), range(8, 10))
    data = [blobs(rng, np.repeat(np.array(group), 40), 3.0) for group in groups]
    for _ in range(4):
        data.append({**blobs(rng, rng.integers(0, classes, 200), 3.0), "label": rng.integers(0, classes, 200)})
    clients = rk.Clients(data, server=blobs(rng, np.repeat(np.arange(classes), 60), 3.0))
    algorithm = rk.PrimalDual(eta_x=0.01, eta_w=0.1, eta_lambda=0.1)
    solution = rk.solve(rk.ClientWeighting(regularised), algorithm, clients, None, zero_model(classes), rounds=4000,
                        batch_size=32, participation=rk.Bernoulli(0.9), evaluate=q.nothing, every=4000)  # fmt: skip
    x = np.asarray(solution.x)
    assert (x[3:] < 0.02).all()
    assert x[0] > x[1] > x[2] > 0.05
