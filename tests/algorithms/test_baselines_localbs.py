"""Local-BSGVR, Local-BSGM, AdaFBiO and FedAvg."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from tests.helpers import quadratics as q

ROUNDS = 8
GLOBAL, LOCAL = rk.Bilevel(q.upper, q.lower), rk.Bilevel(q.upper, q.lower, lower_level="local")
RATES = {
    "eta_x": 0.1,
    "eta_y": 0.15,
    "delta": 1.1,
    "offset": 3.0,
    "c_x": 0.6,
    "c_y": 0.7,
    "neumann_step": 0.2,
    "products": 4,
}


def server(problem, algorithm, quadratic, rounds=ROUNDS, **setting):
    return q.run(problem, algorithm, quadratic, rounds, **setting).state.server


def same(ours, theirs, names, rtol=1e-10):
    for name in names:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=rtol, atol=rtol, err_msg=name)


@pytest.fixture(scope="module")
def one_client():
    return q.make_bilevel(n=1, sizes=4, scatter=0.5)


@pytest.fixture(scope="module")
def clients():
    return q.make_bilevel(p=q.WEIGHTS)


@pytest.mark.slow
def test_T18_local_bsgvr_with_one_client_is_fedbioacc_local(one_client):
    setting = {"batch_size": 2, "local_steps": 3}
    ours = q.run(GLOBAL, rk.LocalBSGVR(**RATES), one_client, ROUNDS, **setting).state
    theirs = q.run(LOCAL, rk.FedBiOAccLocal(**RATES), one_client, ROUNDS, **setting).state
    same(
        ours.server, {"x": theirs.server["x"], "y": theirs.keep["y"][0], "d_x": theirs.server["d_x"]}, ("x", "y", "d_x")
    )


@pytest.mark.slow
def test_local_bsgm_is_local_bsgvr_only_where_it_forgets_everything(one_client):
    setting = {"batch_size": 2, "local_steps": 3}
    delta = (3.0 + 1) ** (1 / 3)  # δ_1 = 1, and δ_s falls: so c_v δ_s² = 1 in the first step alone
    rates = {**RATES, "delta": delta, "c_x": 1.0, "c_y": 1.0}
    one, other = (server(GLOBAL, kind(**rates), one_client, 1, batch_size=2) for kind in (rk.LocalBSGM, rk.LocalBSGVR))
    same(one, other, ("x", "y", "d_x", "d_y"))
    one, other = (server(GLOBAL, kind(**rates), one_client, **setting) for kind in (rk.LocalBSGM, rk.LocalBSGVR))
    assert np.abs(one["x"] - other["x"]).max() > 1e-4


@pytest.mark.slow
def test_adafbio_without_adaptation_is_local_bsgvr(clients):
    setting = {"local_steps": 2, "participation": 3}
    plain = server(GLOBAL, rk.LocalBSGVR(**RATES), clients, **setting)
    frozen = server(GLOBAL, rk.AdaFBiO(**RATES, decay=1.0, epsilon=1.0), clients, **setting)
    same(frozen, plain, ("x", "y", "d_x", "d_y"), rtol=1e-12)
    assert not frozen["a"].any()


def test_adafbio_preconditioners_are_moving_averages_of_the_averaged_directions(clients):
    algorithm = rk.AdaFBiO(**RATES, decay=0.9, epsilon=0.5)
    first, second = (server(GLOBAL, algorithm, clients, rounds) for rounds in (1, 2))
    np.testing.assert_allclose(first["a"], 0.1 * first["d_x"] ** 2, rtol=1e-12)
    np.testing.assert_allclose(second["a"], 0.9 * first["a"] + 0.1 * second["d_x"] ** 2, rtol=1e-12)
    np.testing.assert_allclose(second["b"], 0.9 * first["b"] + 0.1 * np.linalg.norm(second["d_y"]), rtol=1e-12)
    delta = RATES["delta"] / (RATES["offset"] + 2) ** (1 / 3)
    step = RATES["eta_x"] * delta * first["d_x"] / (np.sqrt(first["a"]) + 0.5)
    np.testing.assert_allclose(second["x"], first["x"] - step, rtol=1e-10)


@pytest.mark.parametrize("same_clients", [False, True], ids=["unlike clients", "equal clients"])
def test_T43_local_bsgvr_converges_to_the_zero_of_the_averaged_local_surrogates(clients, same_clients):
    quadratic = q.make_bilevel(same=True) if same_clients else clients
    rates = {"eta_x": 0.3, "eta_y": 0.3, "delta": 1.0, "offset": 0.0, "c_x": 0.5, "c_y": 0.5}
    algorithm = rk.LocalBSGVR(**rates, neumann_step=0.2, products=200)
    x = np.asarray(server(GLOBAL, algorithm, quadratic, 6000)["x"])
    np.testing.assert_allclose(x, quadratic.averaged_local_x_star, atol=1e-7)
    bias = np.linalg.norm(quadratic.gradient(x))
    assert bias < 1e-6 if same_clients else bias > 1e-2


def test_T19_fedavg_is_the_y_of_fedbio_with_x_frozen(clients):
    setting = {"local_steps": rk.Steps(1, 3), "participation": 2}
    averaged = server(GLOBAL, rk.FedAvg(eta_y=0.15), clients, **setting)
    frozen = server(GLOBAL, rk.FedBiO(eta_x=0.0, eta_y=0.15, eta_z=0.1), clients, **setting)
    same(averaged, frozen, ("x", "y"), rtol=1e-12)


@pytest.mark.slow
def test_T08_counters(clients):
    dx, dy, n = q.DX, q.DY, q.N
    expected = (
        (rk.LocalBSGVR(**RATES), 3 * dx + 3 * dy, 2 * dx + 2 * dy),  # the averaged point is sent again
        (rk.AdaFBiO(**RATES), 4 * dx + 3 * dy + 1, 2 * dx + 2 * dy),
        (rk.FedAvg(), dy, dy),
    )
    for algorithm, down, up in expected:
        last = q.run(GLOBAL, algorithm, clients, ROUNDS, local_steps=2).history.last
        assert last["bytes_down"] == 8 * n * ROUNDS * down, type(algorithm).__name__
        assert last["bytes_up"] == 8 * n * ROUNDS * up, type(algorithm).__name__
    last = q.run(GLOBAL, rk.LocalBSGVR(**RATES), clients, ROUNDS, local_steps=2).history.last
    evaluations = n * (2 * 2 * ROUNDS + 1)  # two a local step, and the first
    assert [last[unit] for unit in ("grad_f", "grad_g", "hvp", "jvp")] == [evaluations] * 2 + [
        4 * evaluations,
        evaluations,
    ]


def test_fedavg_moves_no_x_and_minimises_the_lower_level(clients):
    x0 = jnp.linspace(-0.5, 0.5, q.DX)
    solution = q.run(GLOBAL, rk.FedAvg(eta_y=0.3), clients, 400)
    np.testing.assert_array_equal(solution.x, x0)
    np.testing.assert_allclose(jax.device_get(solution.y), clients.y_star(np.asarray(x0)), atol=1e-8)
