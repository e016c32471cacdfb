"""Section 9.3 of the specification: what must be equal between algorithms, on quadratics in float64.

Minibatches of 2 out of 3 examples wherever an equality holds for every draw. Where it holds for exact directions only, the
three examples of a client are the same one, which runs the same compiled program without noise.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.common import storm
from tests import quadratics as q
from tests.draws import Draws

BILEVEL = rk.Bilevel(q.upper, q.lower)
LOCAL = rk.Bilevel(q.upper, q.lower, lower_level="local")
NOISY = rk.Bilevel(q.noisy_upper, q.noisy_lower)
MINIMAX = rk.Minimax(q.objective)
X0, Y0 = np.linspace(-0.5, 0.5, q.DX), np.linspace(0.3, -0.3, q.DY)
ROUNDS = 6
BATCH = {"batch_size": 2, "key": 5}
ONE = np.array([1.0, 0, 0, 0])  # all weight on one client: n = 1 in the program of n = 4

QB = q.make_bilevel(sizes=3, scatter=0.5, p=q.WEIGHTS)
EXACT = q.make_bilevel(sizes=3, p=q.WEIGHTS)
QM = q.make_minimax(sizes=3, scatter=0.5, p=q.WEIGHTS)

ETA = {"eta_x": 0.1, "eta_y": 0.15, "eta_z": 0.08}
GAMMA = {"gamma_x": 0.12, "gamma_y": 0.1, "gamma_z": 0.07}
FIXED = {f"clip_{v}": (GAMMA[f"gamma_{v}"], GAMMA[f"gamma_{v}"]) for v in "xyz"}  # ASFBO's rates held constant


class Taus(rk.Steps):
    """τ_i as given, one a client."""

    table: jnp.ndarray

    def draw(self, key, client, round):
        return self.table[client]


def taus(*table):
    return Taus(1, 4, jnp.asarray(table, jnp.int32))


def final(problem, algorithm, quadratic, rounds=ROUNDS, **setting):
    return q.run(problem, algorithm, quadratic, rounds, **setting).state.server


def same(ours, theirs, rtol=1e-10, names=None):
    for name in names or sorted(set(ours) & set(theirs)):
        np.testing.assert_allclose(ours[name], theirs[name], rtol=rtol, atol=rtol, err_msg=name)


def differ(ours, theirs, names="xy", at_least=1e-4):
    for name in names:
        assert np.abs(np.asarray(ours[name]) - np.asarray(theirs[name])).max() > at_least, name


# --- one local step --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [rk.MeFBO, rk.SimFBO, rk.ShroFBO, rk.ASFBO, rk.LAASFBO])
def test_T11_with_one_local_step_client_steps_have_no_effect(kind):
    names = ("eta_x", "eta_y", "eta_theta" if kind is rk.MeFBO else "eta_z")
    small, large = (final(BILEVEL, kind(**dict.fromkeys(names, eta)), QB, **BATCH) for eta in (0.0, 3.0))
    same(small, large, rtol=0)
    differ(small, {"x": X0, "y": Y0})  # it did move


def test_T24_T26_with_one_local_step_asfbo_is_shrofbo_at_the_adaptive_rate():
    gamma, clips, epsilon, decay = 0.05, {"x": (0.01, 0.02), "y": (0.03, 0.3), "z": (0.06, 0.2)}, 0.01, 0.7
    rates = {f"gamma_{v}": gamma for v in "xyz"} | {f"clip_{v}": clip for v, clip in clips.items()}
    ones = {f"gamma_{v}": 1.0 for v in "xyz"}
    start = {"x": X0, "y": Y0, "z": np.zeros(q.DY)}
    step = final(BILEVEL, rk.ShroFBO(**ones), QB, 1, **BATCH)
    h = {v: start[v] - np.asarray(step[v]) for v in "xyz"}
    for kind in (rk.ASFBO, rk.LAASFBO):
        for beta in (0.2, 1.0):
            made = final(BILEVEL, kind(**rates, beta=beta, decay=decay, epsilon=epsilon), QB, 1, **BATCH)
            for v in "xyz":
                s = (1 - decay) * np.linalg.norm(h[v])
                rate = np.clip(gamma / (s + epsilon), *clips[v])
                np.testing.assert_allclose(made["s_" + v], s, rtol=1e-10)
                np.testing.assert_allclose(made[v], start[v] - rate * h[v], rtol=1e-10, atol=1e-12)
        # ϱ = 1 never sees the directions
        blind = final(BILEVEL, kind(**rates, decay=1.0, epsilon=epsilon), QB, **BATCH)
        constant = {f"gamma_{v}": np.clip(gamma / epsilon, *clips[v]) for v in "xyz"}
        same(blind, final(BILEVEL, rk.ShroFBO(**constant), QB, **BATCH))
        assert all(blind["s_" + v] == 0 for v in "xyz")
    longer = {"decay": decay, "epsilon": epsilon, **rates}
    same(*(final(BILEVEL, kind(**longer, beta=b), QB, **BATCH) for kind, b in ((rk.ASFBO, 0.3), (rk.LAASFBO, 0.8))))


def test_T26_adaptive_rate_follows_its_formula_and_stays_in_the_clip_interval():
    low, high, gamma, epsilon, decay = 0.05, 0.4, 0.06, 0.001, 0.6
    algorithm = rk.ASFBO(gamma_y=gamma, clip_y=(low, high), epsilon=epsilon, decay=decay)
    solution = q.run(BILEVEL, algorithm, EXACT, 25, evaluate=q.path, every=1, **BATCH)
    x, y = q.path_of(solution, "x", q.DX), q.path_of(solution, "y", q.DY)
    s, rates = 0.0, []
    for t in range(25):
        h = EXACT.g_y(x[t], y[t])
        s = decay * s + (1 - decay) * np.linalg.norm(h)
        rates.append(-(y[t + 1] - y[t]) @ h / (h @ h))
        np.testing.assert_allclose(rates[-1], np.clip(gamma / (s + epsilon), low, high), rtol=1e-7)
    assert min(rates) == pytest.approx(low)
    assert max(rates) == pytest.approx(high)
    assert len({round(float(rate), 6) for rate in rates}) > 4  # and in between


# --- several local steps, one lower level ----------------------------------------------------------------------------


def test_T12_storm_and_ema_with_weight_one_are_the_plain_direction():
    new, old, d = ({"x": np.random.default_rng(seed).standard_normal(3)} for seed in range(3))
    np.testing.assert_array_equal(storm(new, old, d, {"x": 1.0})["x"], new["x"])
    assert np.abs(storm(new, old, d, {"x": 0.9})["x"] - new["x"]).max() > 0.01
    plain = final(BILEVEL, rk.ShroFBO(**ETA, **GAMMA), QB, local_steps=3, **BATCH)
    for kind in (rk.ASFBO, rk.LAASFBO):
        same(final(BILEVEL, kind(**ETA, **FIXED, beta=1.0), QB, local_steps=3, **BATCH), plain)


def test_T15_fedbio_equals_simfbo_with_server_steps_equal_to_client_steps():
    gamma = {name.replace("eta", "gamma"): rate for name, rate in ETA.items()}
    for quadratic in (QB, QB.reweighted(np.ones(4))):
        setting = {"local_steps": 3, **BATCH}
        fedbio = final(BILEVEL, rk.FedBiO(**ETA), quadratic, **setting)
        same(fedbio, final(BILEVEL, rk.SimFBO(**ETA, **gamma), quadratic, **setting))
        differ(fedbio, final(BILEVEL, rk.SimFBO(**ETA, **GAMMA), quadratic, **setting))


def test_T25_asfbo_with_beta_one_and_constant_rates_is_shrofbo_and_simfbo():
    def run(kind, quadratic, **more):
        return final(BILEVEL, kind(**ETA, **(FIXED if issubclass(kind, rk.ASFBO) else GAMMA), **more), quadratic,
                     local_steps=3, **BATCH)  # fmt: skip

    shro = run(rk.ShroFBO, QB)
    same(shro, run(rk.SimFBO, QB))
    same(shro, run(rk.ASFBO, QB, beta=1.0))
    same(run(rk.LAASFBO, QB, beta=1.0), run(rk.ASFBO, QB, beta=1.0))
    differ(shro, run(rk.LAASFBO, QB, beta=0.5))
    exact = run(rk.ShroFBO, EXACT)  # without noise the STORM estimate is exact for every β, the moving average is not
    for beta in (0.1, 0.5, 0.9):
        same(exact, run(rk.LAASFBO, EXACT, beta=beta))
        differ(exact, run(rk.ASFBO, EXACT, beta=beta))


def test_T19_with_x_frozen_y_is_fedavg_on_the_lower_objective():
    y, eta, server = Y0, 0.15, 0.4
    for _ in range(ROUNDS):
        ends = []
        for i in range(EXACT.n):
            own, y_i = EXACT.alone(i), y
            for _ in range(3):
                y_i = y_i - eta * own.g_y(X0, y_i)
            ends.append(y_i)
        y = y + server * (EXACT.p @ np.stack(ends) - y)
        if server == 0.4:
            first = y
    frozen = {**ETA, "eta_x": 0.0, "eta_y": eta}
    gamma = {"gamma_x": 0.0, "gamma_y": server * eta, "gamma_z": 0.1}
    made = final(BILEVEL, rk.SimFBO(**frozen, **gamma), EXACT, local_steps=3, **BATCH)
    same(made, {"x": X0, "y": y})
    # server step 1 is plain FedAvg, which FedBiO makes; x0 is exactly kept
    one = {"gamma_x": 0.0, "gamma_y": eta, "gamma_z": 0.1}
    fedbio = final(BILEVEL, rk.FedBiO(**frozen), EXACT, local_steps=3, **BATCH)
    same(fedbio, final(BILEVEL, rk.SimFBO(**frozen, **one), EXACT, local_steps=3, **BATCH), names=["x", "y"])
    differ(fedbio, {"y": first}, names="y")
    np.testing.assert_array_equal(fedbio["x"], X0)
