"""Section 9.3 of the specification: what must be equal between algorithms, on quadratics in float64.

Minibatches of 2 out of 3 examples wherever an equality holds for every draw. Where it holds for exact directions only, the
three examples of a client are the same one, which runs the same compiled program without noise.
"""

from functools import partial

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.steps import storm
from tests.helpers import quadratics as q
from tests.helpers.draws import Draws
from tests.helpers.marks import slow

pytestmark = pytest.mark.optimized

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


def final(problem, algorithm, quadratic, rounds=ROUNDS, **setting):
    return q.run(problem, algorithm, quadratic, rounds, **setting).state.server


def same(ours, theirs, rtol=1e-10, names=None):
    names = names or sorted(set(ours) & set(theirs))
    assert names
    for name in names:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=rtol, atol=rtol, err_msg=name)


def differ(ours, theirs, names="xy", at_least=1e-4):
    for name in names:
        assert np.abs(np.asarray(ours[name]) - np.asarray(theirs[name])).max() > at_least, name


# --- one local step --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [rk.MeFBO, rk.SimFBO, rk.ShroFBO, rk.ASFBO, slow(rk.LAASFBO)])
def test_T11_with_one_local_step_client_steps_have_no_effect(kind):
    names = ("eta_x", "eta_y", "eta_theta" if kind is rk.MeFBO else "eta_z")
    small, large = (final(BILEVEL, kind(**dict.fromkeys(names, eta)), QB, **BATCH) for eta in (0.0, 3.0))
    same(small, large, rtol=0)
    differ(small, {"x": X0, "y": Y0})  # it did move


@pytest.mark.slow
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
    low, high, gamma, epsilon, decay = 0.15, 0.4, 0.06, 0.001, 0.6
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


def test_T15_fedbio_equals_simfbo_with_server_steps_equal_to_client_steps():
    gamma = {name.replace("eta", "gamma"): rate for name, rate in ETA.items()}
    for quadratic in (QB, QB.reweighted(np.ones(4))):
        setting = {"local_steps": 3, **BATCH}
        fedbio = final(BILEVEL, rk.FedBiO(**ETA), quadratic, **setting)
        same(fedbio, final(BILEVEL, rk.SimFBO(**ETA, **gamma), quadratic, **setting))
        differ(fedbio, final(BILEVEL, rk.SimFBO(**ETA, **GAMMA), quadratic, **setting))


@pytest.mark.slow
def test_T12_T25_asfbo_with_beta_one_and_constant_rates_is_shrofbo_and_simfbo():
    new, old, d = ({"x": np.random.default_rng(seed).standard_normal(3)} for seed in range(3))
    np.testing.assert_array_equal(storm(new, old, d, {"x": 1.0})["x"], new["x"])
    assert np.abs(storm(new, old, d, {"x": 0.9})["x"] - new["x"]).max() > 0.01

    def run(kind, quadratic, **more):
        return final(BILEVEL, kind(**ETA, **(FIXED if kind in (rk.ASFBO, rk.LAASFBO) else GAMMA), **more), quadratic,
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


def fedavg(quadratic, x, y, eta, server, steps=3, rounds=ROUNDS):
    """Local gradient descent on g_i(x, ·), and a server step along the mean displacement."""
    for _ in range(rounds):
        ends = np.tile(y, (quadratic.n, 1))
        for i in range(quadratic.n):
            for _ in range(steps):
                ends[i] = ends[i] - eta * quadratic.alone(i).g_y(x, ends[i])
        y = y + server * (quadratic.p @ ends - y)
    return y


def test_T19_with_x_frozen_y_is_fedavg_on_the_lower_objective():
    eta, server = 0.15, 0.4
    frozen = {"eta_x": 0.0, "eta_y": eta, "eta_z": 0.1}
    gamma = {"gamma_x": 0.0, "gamma_y": server * eta, "gamma_z": 0.1}
    same(
        final(BILEVEL, rk.FedBiO(**frozen), EXACT, local_steps=3, **BATCH),
        {"x": X0, "y": fedavg(EXACT, X0, Y0, eta, 1.0)},
    )
    same(final(BILEVEL, rk.SimFBO(**frozen, **gamma), EXACT, local_steps=3, **BATCH),
         {"x": X0, "y": fedavg(EXACT, X0, Y0, eta, server)})  # fmt: skip


CONSTANT = {"delta": 0.5e5, "offset": 1e15}  # δ_s = 1/2 for every s
HALF = {name: rate / 2 for name, rate in ETA.items()}
FORGET = {"c_x": 4.0, "c_y": 4.0, "c_z": 4.0}  # c δ² = 1
ALL_ON_ONE = QB.reweighted(ONE)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 3])
def test_T13_fedbioacc_that_forgets_is_fedbio_for_one_local_step_or_one_client(steps):
    setting = {"local_steps": steps, **BATCH}
    for quadratic in (QB, ALL_ON_ONE):
        acc = final(BILEVEL, rk.FedBiOAcc(**ETA, **CONSTANT, **FORGET, first_batch=1), quadratic, **setting)
        plain = final(BILEVEL, rk.FedBiO(**HALF), quadratic, **setting)
        if steps == 1 or quadratic is ALL_ON_ONE:
            same(acc, plain, names="xyz")
        else:  # the first local step takes the averaged direction
            differ(acc, plain, names="xyz")


def test_T14_fedbio_with_one_client_is_soba():
    alone = q.make_bilevel(n=1)
    x, y, v = X0, Y0, np.zeros(q.DY)
    for _ in range(3 * ROUNDS):
        d_y, d_v = alone.g_y(x, y), alone.H @ v + alone.f_y(x, y)
        d_x = alone.f_x(x, y) - alone.E.T @ v
        x, y, v = x - ETA["eta_x"] * d_x, y - ETA["eta_y"] * d_y, v - ETA["eta_z"] * d_v
    same(final(BILEVEL, rk.FedBiO(**ETA), alone, local_steps=3), {"x": x, "y": y, "z": -v})


@pytest.mark.parametrize("rho", [slow("all"), "active"])
def test_T21_T22_unequal_local_work(rho):
    setting = {"participation": 2, **BATCH}
    weights = np.ones(4) if rho == "active" else q.WEIGHTS
    quadratic = QB.reweighted(weights)
    equal = {**setting, "local_steps": q.taus(3, 3, 3, 3)}
    shro = final(BILEVEL, rk.ShroFBO(**ETA, **GAMMA, rho=rho), quadratic, **equal)
    same(shro, final(BILEVEL, rk.SimFBO(**ETA, **GAMMA), quadratic, **equal))
    # constant directions: D_x = a_i, D_y = −e_i, D_z = −b_i wherever the client is
    still = {"P", "R", "S", "H", "E"}
    affine = q.QB([{k: v * (k not in still) for k, v in each.items()} for each in EXACT.data], quadratic.p)
    steps = q.taus(1, 4, 2, 3)
    tau = np.asarray(steps.table)
    active = Draws(affine.clients(), participation=2, key=BATCH["key"]).participants(0)
    assert len({*tau[active]}) == 2
    w = 2 * affine.p[active]  # (n/P) p_i
    scale = affine.p @ tau if rho == "all" else w @ tau[active]
    start = {"x": X0, "y": Y0, "z": np.zeros(q.DY)}
    d = {"x": affine.own("a")[active], "y": -affine.own("e")[active], "z": -affine.own("b")[active]}
    unequal = {**setting, "local_steps": steps}
    same(final(BILEVEL, rk.ShroFBO(**ETA, **GAMMA, rho=rho), affine, 1, **unequal),
         {v: start[v] - GAMMA["gamma_" + v] * scale * (w @ d[v]) for v in "xyz"})  # fmt: skip
    same(final(BILEVEL, rk.SimFBO(**ETA, **GAMMA), affine, 1, **unequal),
         {v: start[v] - GAMMA["gamma_" + v] * (w * tau[active]) @ d[v] for v in "xyz"})  # fmt: skip


@pytest.mark.slow
def test_T23_asfbo_coefficients():
    """Where the directions are noise alone, what the server gets is Σ a^k ξ_k: DY equations for the τ = DY numbers a^k."""
    tau = q.DY
    data = {name: np.zeros_like(value) for name, value in q.make_bilevel(n=1).data[0].items()}
    silent = q.QB([{**data, "sigma": np.ones(1)}], np.ones(1))
    xi = q.noise(3, "lower y", tau)[:, q.DX :]

    def coefficients(beta):
        rates = {"beta": beta, "clip_x": (1.0, 1.0), "clip_y": (1.0, 1.0), "clip_z": (1.0, 1.0)}
        moved = Y0 - np.asarray(final(NOISY, rk.ASFBO(**rates), silent, 1, local_steps=tau, key=3)["y"])
        return np.linalg.solve(xi.T, moved)  # ρ γ Σ_k m^k / τ = Σ_k m^k

    np.testing.assert_allclose(coefficients(1.0), np.ones(tau), rtol=1e-10)
    np.testing.assert_allclose(coefficients(1e-12), [tau, 0, 0, 0], atol=1e-9)
    for beta in (0.1, 0.5, 0.9):
        a = coefficients(beta)
        left = (1 - beta) ** (tau - np.arange(tau))
        np.testing.assert_allclose(a, np.append((1 - left[0]) / beta, 1 - left[1:]), rtol=1e-9)
        np.testing.assert_allclose(a.sum(), tau, rtol=1e-10)


def test_T20_mefbo_with_one_client_and_step_is_a_simultaneous_projected_step():
    alone = q.make_bilevel(n=1)
    problem = rk.Bilevel(q.upper, q.lower, x_set=rk.Box(-0.4, 0.1), y_set=rk.Box(-0.5, 0.25))
    gamma_x, gamma_y, gamma_t, c, nu = 0.9, 0.2, 0.25, 3.0, 1.2
    algorithm = rk.MeFBO(gamma_x=gamma_x, gamma_y=gamma_y, gamma_theta=gamma_t, c=c, nu=nu)

    def step(x, y, theta, jacobi):
        new = theta - gamma_t * (alone.g_y(x, theta) + (theta - y) / nu)
        new = np.clip(new, -0.5, 0.25)
        theta, kept = (theta if jacobi else new), new
        new_x = np.clip(x - gamma_x * (alone.f_x(x, y) / c - alone.E.T @ (y - theta)), -0.4, 0.1)
        x = x if jacobi else new_x
        new_y = np.clip(y - gamma_y * (alone.f_y(x, y) / c + alone.g_y(x, y) - (y - theta) / nu), -0.5, 0.25)
        return new_x, new_y, kept

    start = np.clip(X0, -0.4, 0.1), np.clip(Y0, -0.5, 0.25), np.clip(Y0, -0.5, 0.25)
    v = start
    for _ in range(ROUNDS):
        v = step(*v, jacobi=True)
    made = final(problem, algorithm, alone)
    same(made, dict(zip(("x", "y", "theta"), v, strict=True)))
    end = final(problem, algorithm, alone, 3000)
    end = [np.asarray(end[name]) for name in ("x", "y", "theta")]
    assert any(
        0 < np.sum((b == -0.4) | (b == 0.1) | (b == -0.5) | (b == 0.25)) < b.size for b in end
    )  # some bound, not all
    for jacobi in (True, False):  # MEHA's order (new θ in x, new x in y) makes another sequence with the same limit
        for a, b in zip(step(*end, jacobi=jacobi), end, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-10)
    assert max(np.abs(a - b).max() for a, b in zip(step(*start, True), step(*start, False), strict=True)) > 1e-3


# --- a lower level of each client's own ------------------------------------------------------------------------------

NEUMANN = {"eta_x": 0.1, "eta_y": 0.15, "neumann_step": 0.3}


def kept(algorithm, quadratic, **setting):
    solution = q.run(LOCAL, algorithm, quadratic, ROUNDS, **setting)
    return {"x": solution.x, "y": solution.y}


HALF_NEUMANN = {**NEUMANN, "eta_x": 0.05, "eta_y": 0.075}
SOME = {**NEUMANN, **CONSTANT, "first_batch": 1, "products": 3}


@pytest.mark.slow
def test_T16_T17_local_variants_with_one_local_step():
    plain = kept(rk.FedBiOLocal(**HALF_NEUMANN, products=3), QB, **BATCH)
    same(plain, kept(rk.FedBiOAccLocal(**SOME, c_x=4.0, c_y=4.0), QB, **BATCH))
    same(plain, kept(rk.DistBiO(**HALF_NEUMANN, products=3), QB, **BATCH))
    acc = kept(rk.FedBiOAccLocal(**SOME, c_x=1.0, c_y=2.0), QB, **BATCH)
    same(acc, kept(rk.DistBiOAcc(**SOME, c_x=1.0, c_y=2.0), QB, **BATCH))
    differ(acc, plain)


@pytest.mark.slow
def test_T17_local_variants_with_several_local_steps_agree_for_one_client_only():
    for quadratic in (EXACT, EXACT.reweighted(ONE)):
        plain = kept(rk.FedBiOLocal(**HALF_NEUMANN, products=3), quadratic, local_steps=3)
        acc = kept(rk.FedBiOAccLocal(**SOME, c_x=4.0, c_y=4.0), quadratic, local_steps=3)
        if quadratic is EXACT:
            differ(acc, plain)
        else:
            same({"x": acc["x"], "y": acc["y"][0]}, {"x": plain["x"], "y": plain["y"][0]})


def test_T18_fedbio_local_with_a_long_series_follows_the_exact_hypergradient():
    alone = q.make_bilevel(n=1)
    made = q.run(LOCAL, rk.FedBiOLocal(**NEUMANN, products=150), alone, 1)
    z = np.linalg.solve(alone.H, alone.f_y(X0, Y0))
    np.testing.assert_allclose((X0 - made.x) / 0.1, alone.f_x(X0, Y0) + alone.E.T @ z, rtol=1e-10)
    np.testing.assert_allclose((Y0 - made.y[0]) / 0.15, alone.g_y(X0, Y0), rtol=1e-10)


# --- minimax ---------------------------------------------------------------------------------------------------------

GDA = {"eta_x": 0.1, "eta_y": 0.15}


def test_T31_fedsgda_plus_with_server_steps_one_is_local_sgda_plus():
    setting = {"local_steps": 3, **BATCH}
    same(final(MINIMAX, rk.FedSGDAPlus(**GDA, snapshot=2), QM, 5, **setting),
         final(MINIMAX, rk.LocalSGDAPlus(**GDA, snapshot=2), QM, 5, **setting))  # fmt: skip
    every_round = final(MINIMAX, rk.FedSGDAPlus(**GDA, snapshot=1), QM, **BATCH)
    same(every_round, final(MINIMAX, rk.LocalSGDA(**GDA), QM, **BATCH))
    differ(every_round, final(MINIMAX, rk.FedSGDAPlus(**GDA, gamma_x=1.3, gamma_y=0.8, snapshot=1), QM, **BATCH))


def test_T32_fedsgda_m_that_forgets_is_local_sgda_for_any_number_of_steps():
    for quadratic in (QM, QM.reweighted(np.ones(4))):
        plain = final(MINIMAX, rk.LocalSGDA(**GDA), quadratic, local_steps=3, **BATCH)
        same(
            final(MINIMAX, rk.FedSGDAM(**GDA, alpha=1.0, beta=1.0, first_batch=1), quadratic, local_steps=3, **BATCH),
            plain,
        )
        differ(
            final(MINIMAX, rk.FedSGDAM(**GDA, alpha=0.9, beta=0.9, first_batch=1), quadratic, local_steps=3, **BATCH),
            plain,
        )


KINDS = {
    "Local SGDA": rk.LocalSGDA(**GDA),
    "Local SGDA+": rk.LocalSGDAPlus(**GDA, snapshot=2),
    "FedSGDA+": rk.FedSGDAPlus(**GDA, snapshot=2),
    "FedSGDA-M": rk.FedSGDAM(**GDA, alpha=1.0, beta=1.0, first_batch=1),
}


@pytest.mark.parametrize("name", KINDS)
def test_T35_one_batch_for_both_gradients_and_both_at_the_old_point(name):
    # with directions that are the drawn example's own a_j and b_j, both moves tell j
    zero = {k: np.zeros_like(v) for k, v in QM.data[0].items()}
    labels = np.arange(3.0)[:, None]
    example = {**zero, "a": labels * np.ones(q.DX), "b": labels * np.ones(q.DY)}
    alone = q.QM([example] * 4, np.full(4, 0.25)).reweighted(ONE)
    seen = set()
    for key in range(6):
        made = final(MINIMAX, KINDS[name], alone, 1, local_steps=3, batch_size=2, key=key)
        x, y = (X0 - made["x"]) / GDA["eta_x"], (made["y"] - Y0) / GDA["eta_y"]
        np.testing.assert_allclose(x, np.full(q.DX, y[0]), rtol=1e-10)
        seen.add(round(float(x[0]), 6))
    assert len(seen) > 2  # the draws did differ
    # exact gradients: Jacobi, y's at the snapshot where there is one
    exact = q.make_minimax(sizes=3).reweighted(ONE)
    own, x, y, snapshot = exact.alone(0), X0, Y0, X0
    for t in range(3):
        for _ in range(3):
            old = snapshot if "+" in name else x
            x, y = x - GDA["eta_x"] * own.f_x(x, y), y + GDA["eta_y"] * own.f_y(old, y)
        snapshot = x if (t + 1) % 2 == 0 else snapshot
    same(final(MINIMAX, KINDS[name], exact, 3, local_steps=3, **BATCH), {"x": x, "y": y})


def test_T37_minimax_as_bilevel_has_z_zero_and_the_same_hypergradient():
    bilevel = MINIMAX.as_bilevel()
    found = jax.jit(partial(rk.measures.hypergradient, bilevel, QM.clients()))(X0, Y0)
    np.testing.assert_allclose(found.gradient, QM.gradient(X0), rtol=1e-9)
    np.testing.assert_allclose(found.y, QM.y_star(X0), rtol=1e-9)
    np.testing.assert_allclose(found.z, np.zeros(q.DY), atol=1e-10)


# --- client weighting ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inner", [1, 3])
def test_T38_primal_dual_with_everybody_active_is_descent_ascent_on_its_lagrangian(inner):
    toy, d = q.make_weighting(), 3
    penalty, eta_x, eta_w, eta_l = 1.4, 0.05, 0.04, 0.06
    x, w, dual = np.array([0.3, 0.2, 0.4, 0.1]), np.linspace(0.4, -0.2, d), np.zeros(d)

    def lagrangian(w, dual):
        clients = sum(
            x_i * (dual @ toy.grad(each, w) + penalty * toy.loss(each, w))
            for x_i, each in zip(x, toy.data, strict=True)
        )
        return toy.loss(toy.server, w) + clients

    def derivative(f, v):  # by complex steps: exact to rounding
        return np.array([f(v + 1e-40j * row).imag / 1e-40 for row in np.eye(d)])

    start = x, w
    for _ in range(4):
        for k in range(inner):
            g_w, g_l = derivative(lambda v: lagrangian(v, dual), w), derivative(lambda v: lagrangian(w, v), dual)
            if k == inner - 1:
                slopes = toy.grads(w) @ dual
            w, dual = w - eta_w * g_w, dual + eta_l * g_l
        x = simplex(x - eta_x * slopes)
    algorithm = rk.PrimalDual(eta_x=eta_x, eta_w=eta_w, eta_lambda=eta_l, penalty=penalty, inner=inner)
    made = q.run(rk.ClientWeighting(q.weighting_loss), algorithm, toy, 4, *start, participation=rk.Bernoulli(1.0))
    same(made.state.server, {"x": x, "w": w, "lambda": dual})
    assert np.linalg.norm(x - start[0]) > 1e-3


def simplex(v):
    """The shift by bisection."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)
