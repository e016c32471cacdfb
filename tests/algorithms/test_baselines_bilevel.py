"""The baselines for bilevel problems: FedNest and its relatives, FedMBO, FBO-AggITD, CommFedBiO.

Numbers like T-27 are those of section 9 of the specification. Bytes and exchanges are compared with its table 7.1.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithm.views import Local
from rookery.algorithms.aggitd import FBOITD, FBOAggITD, FBOAggITDSVRG
from rookery.algorithms.commfedbio import CommFedBiO
from rookery.algorithms.fedmbo import FedMBO
from rookery.algorithms.fednest import FedNest, FedNestCode, FedNestRandom, FedNestSGD, LFedNest, LFedNestSVRG
from rookery.algorithms.fednest_minimax import FedNestMinimax, LFedNestMinimax
from rookery.problem.keys import as_key
from rookery.problem.layout import Layout
from rookery.problem.participation import Steps
from rookery.problem.problems import Flat
from tests.algorithms import test_transcriptions
from tests.algorithms.test_transcriptions import (
    POWER,
    RANDOM_STEPS,
    box,
    compare,
    constrained,
    power,
    simplex,
)
from tests.helpers import quadratics as q
from tests.helpers import transcriptions as paper
from tests.helpers.marks import slow
from tests.helpers.quadratics import taus

bilevel, minimax = test_transcriptions.bilevel, test_transcriptions.minimax  # the fixtures

BILEVEL = rk.Bilevel(q.upper, q.lower)
NOISY = rk.Bilevel(q.noisy_upper, q.noisy_lower)
MINIMAX = rk.Minimax(q.objective)
X0, Y0 = np.linspace(-0.5, 0.5, q.DX), np.linspace(0.3, -0.3, q.DY)
DX, DY, N = q.DX, q.DY, q.N

QB = q.make_bilevel(p=q.WEIGHTS)
SAME = q.make_bilevel(same=True, p=q.WEIGHTS)
QM = q.make_minimax(p=q.WEIGHTS)
EYE = np.eye(DY)


def close(ours, theirs, tol=1e-10):
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=tol, atol=tol)


def counted(solution, exchanges, down, up, **calls):
    """What one participant exchanged in one round, in reals of 8 bytes."""
    last = solution.history.last
    assert last["exchanges"] == exchanges * solution.rounds
    assert last["bytes_down"] == 8 * down * N * solution.rounds
    assert last["bytes_up"] == 8 * up * N * solution.rounds
    for unit, number in calls.items():
        assert last[unit] == number * N * solution.rounds, unit


def series(H, b, step, terms):
    """step Σ_{j<terms} (I − step·H)^j b."""
    return step * sum(np.linalg.matrix_power(EYE - step * H, j) @ b for j in range(terms))


def descend(quadratic, x, y, step, times):
    for _ in range(times):
        y = y - step * quadratic.g_y(x, y)
    return y


# --- FedNest ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fednest_is_its_transcription(bilevel):
    compare(bilevel, FedNest(eta_x=POWER, eta_y=0.2, inner=2, products=3, neumann_step=0.15, outer_steps=2), paper.fednest,
            {"alpha": power, "beta": 0.2, "T": 2, "N": 3, "eta_H": 0.15, "outer_steps": 2},
            local_steps=RANDOM_STEPS, rounds=6)  # fmt: skip


@pytest.mark.slow
def test_fednest_with_the_series_of_the_code_is_its_transcription(bilevel):
    compare(bilevel, FedNestCode(eta_x=POWER, eta_y=0.05, inner=2, products=3, divide_steps=False),
            paper.fednest, {"alpha": power, "beta": 0.05, "T": 2, "N": 3, "divide_steps": False, "code_series": True},
            local_steps=RANDOM_STEPS, rounds=6)  # fmt: skip


SETS = {"project_x": box, "project_y": simplex}


def in_sets(bilevel):
    numpy_problem, problem, clients = bilevel
    return numpy_problem, rk.Bilevel(problem.upper, problem.lower, rk.Box(-0.2, 0.4), rk.Simplex()), clients


def test_fednest_in_sets_is_its_transcription(bilevel):
    rates = {"inner": 2, "products": 3, "neumann_step": 0.15, "outer_steps": 3, "divide_steps": False}
    compare(in_sets(bilevel), FedNest(eta_x=0.3, eta_y=0.2, **rates), paper.fednest,
            {"alpha": 0.3, "beta": 0.2, "T": 2, "N": 3, "eta_H": 0.15, "outer_steps": 3, "divide_steps": False, **SETS},
            names={"x": "x", "y": "y"}, local_steps=RANDOM_STEPS, rounds=6)  # fmt: skip


def test_lfednest_in_sets_is_its_transcription(bilevel):
    rates = {"inner": 2, "products": 3, "neumann_step": 0.15, "outer_steps": 3}
    compare(in_sets(bilevel), LFedNest(eta_x=0.3, eta_y=0.2, **rates), paper.lfednest,
            {"alpha": 0.3, "beta": 0.2, "T": 2, "N": 3, "eta_H": 0.15, "outer_steps": 3, **SETS},
            local_steps=RANDOM_STEPS, rounds=6)  # fmt: skip


@pytest.mark.parametrize("divide", [True, False], ids=["divided", "in sets, not divided"])
@pytest.mark.parametrize("kind", [FedNestMinimax, slow(LFedNestMinimax)])
def test_fednest_and_lfednest_for_minimax_are_their_transcriptions(minimax, kind, divide):
    rates = {"outer_steps": 3, "divide_steps": divide}
    problem, sets = (minimax, {}) if divide else (constrained(minimax), SETS)
    compare(problem, kind(eta_x=0.2, eta_y=0.3, inner=2, **rates), paper.fednest_minimax,
            {"alpha": 0.2, "beta": 0.3, "T": 2, "anchors": kind is FedNestMinimax, **rates, **sets},
            names={"x": "x", "y": "y"}, local_steps=RANDOM_STEPS, rounds=6)  # fmt: skip


T, PRODUCTS = 2, 40
LONG = {"inner": T, "products": PRODUCTS}


def nested(kind, quadratic, rounds, steps, y0=Y0, **rates):
    return q.run(BILEVEL, kind(**rates), quadratic, rounds, y0=y0, local_steps=taus(*steps))


@pytest.mark.slow
def test_T27_T29_T41_fednest_is_gradient_descent_and_a_neumann_series():
    plain = {**LONG, "eta_x": 0.1, "eta_y": 0.15, "divide_steps": False}
    for tau in (1, 3):  # equal clients: τ local steps are τ steps of gradient descent
        ours = nested(FedNest, SAME, 2, [tau] * N, **plain, neumann_step=0.05)
        x, y = X0, Y0
        for _ in range(2):
            y = descend(SAME, x, y, 0.15, T * tau)
            z = series(SAME.H, SAME.f_y(x, y), 0.05, PRODUCTS + 1)
            x = x - 0.1 * (SAME.f_x(x, y) + SAME.E.T @ z)
        close(ours.y, y)
        close(ours.x, x)
        theirs = nested(LFedNest, SAME, 2, [tau] * N, **plain, neumann_step=0.05)
        close(ours.x, theirs.x)
        close(ours.y, theirs.y)
        counted(ours, 2 * T + PRODUCTS + 3, (T + 2) * DX + (2 * T + PRODUCTS + 2) * DY, 2 * DX + (2 * T + PRODUCTS + 1) * DY,
                grad_g=T * (1 + 2 * tau), grad_f=2 + 2, hvp=PRODUCTS, jvp=1)  # fmt: skip
        counted(theirs, T + 1, (T + 1) * (DX + DY), T * DY + DX, grad_g=T * tau, grad_f=1, hvp=PRODUCTS, jvp=1)
    y_star, z_star = QB.y_star(X0), QB.z_star(X0)  # unlike clients, at y*(x), which FedInn does not leave
    for eta in (0.01, 0.05, 0.3):
        server = nested(FedNest, QB, 1, [1, 3, 2, 4], y0=y_star, **plain, neumann_step=eta).state.server
        close(server["y"], y_star)
        rest = np.linalg.matrix_power(EYE - eta * QB.H, PRODUCTS + 1) @ z_star
        close(server["z"], z_star - rest)
        close(np.asarray(server["h"]) - QB.gradient(X0), -QB.E.T @ rest)
        assert (np.linalg.norm(rest) > 1e-6) == (eta < 0.1)


@pytest.mark.slow
def test_T27_T40_with_several_outer_steps_fednest_freezes_the_indirect_part_and_ends_at_the_solution():
    ours = nested(FedNest, SAME, 1, [1] * N, **LONG, outer_steps=3, eta_x=0.3, eta_y=0.15, neumann_step=0.02)
    theirs = nested(LFedNest, SAME, 1, [1] * N, **LONG, outer_steps=3, eta_x=0.1, eta_y=0.15, neumann_step=0.02)
    y = descend(SAME, X0, Y0, 0.15, T)

    def indirect(x):
        return SAME.E.T @ series(SAME.H, SAME.f_y(x, y), 0.02, PRODUCTS + 1)

    x_ours = x_theirs = X0
    for _ in range(3):
        x_ours = x_ours - 0.1 * (SAME.f_x(x_ours, y) + indirect(X0))
        x_theirs = x_theirs - 0.1 * (SAME.f_x(x_theirs, y) + indirect(x_theirs))
    close(ours.x, x_ours)
    close(theirs.x, x_theirs)
    assert np.abs(x_ours - x_theirs).max() > 1e-4
    # unlike clients, unlike numbers of local steps; with this η_H the error of the series is 1e-12
    end = nested(FedNest, QB, 300, [1, 3, 2, 4], **LONG, outer_steps=3, eta_x=0.3, eta_y=0.5, neumann_step=0.5)
    assert np.linalg.norm(QB.gradient(X0)) > 0.1
    assert np.linalg.norm(QB.gradient(np.asarray(end.x))) < 1e-8
    close(end.x, QB.x_star, 1e-8)
    close(end.y, QB.y_star(QB.x_star), 1e-8)


@pytest.mark.slow
def test_T28_the_control_variate_leaves_only_the_noise_of_the_anchor():
    quadratic = q.make_bilevel(sigma=0.5, p=q.WEIGHTS)
    solution = q.run(NOISY, FedNest(eta_y=0.3, products=0), quadratic, 1, local_steps=3, key=11)
    xi = np.stack([q.noise(11, "lower anchor", 1, client=i)[0, DX:] for i in range(N)])
    anchor = quadratic.g_y(X0, Y0) + 0.5 * quadratic.p @ xi
    y = 0
    for p, H in zip(quadratic.p, quadratic.own("H"), strict=True):
        y_i = Y0
        for _ in range(3):
            y_i = y_i - 0.1 * (H @ (y_i - Y0) + anchor)
        y = y + p * y_i
    close(solution.y, y)
    assert np.abs(quadratic.p @ xi).max() > 0.1


def test_T29_the_series_of_the_code():
    eta, products = 0.2, 4
    algorithm = FedNestCode(products=products, neumann_step=eta)
    solution = q.run(BILEVEL, algorithm, QB, 1, local_steps=2)
    b = QB.f_y(X0, np.asarray(solution.y))
    z = b
    for m in range(1, products + 1):
        powers = [np.linalg.matrix_power(EYE - eta * H, m) @ b for H in QB.own("H")]
        z = z + np.tensordot(QB.p, powers, 1) / m
    close(solution.state.server["z"], eta * z)
    counted(solution, products + 5, 3 * DX + (products + 4) * DY, 2 * DX + (products + 3) * DY)


@pytest.mark.slow
def test_fednest_sgd_makes_plain_local_steps():
    steps, eta = [1, 3, 2, 4], 0.15
    algorithm = FedNestSGD(inner=T, products=3, eta_x=0.1, eta_y=eta, neumann_step=0.3)
    solution = q.run(BILEVEL, algorithm, QB, 1, local_steps=taus(*steps))
    y = Y0
    for _ in range(T):
        y = sum(p * descend(QB.alone(i), X0, y, eta / steps[i], steps[i]) for i, p in enumerate(QB.p))
    close(solution.y, y)
    close(solution.x, X0 - 0.1 * (QB.f_x(X0, y) + QB.E.T @ series(QB.H, QB.f_y(X0, y), 0.3, 4)))
    counted(solution, T + 3 + 3, (T + 2) * DX + (T + 3 + 2) * DY, 2 * DX + (T + 3 + 1) * DY, hvp=3, jvp=1, grad_f=4)


def test_fednest_minimax_ends_at_the_saddle_point_whatever_the_local_steps():
    algorithm = FedNestMinimax(eta_x=0.2, eta_y=0.3, inner=T, outer_steps=2)
    solution = q.run(MINIMAX, algorithm, QM, 300, local_steps=taus(1, 3, 2, 4))
    assert np.linalg.norm(QM.gradient(np.asarray(solution.x))) < 1e-8
    close(solution.y, QM.y_star(QM.x_star), 1e-8)
    counted(solution, 2 * T + 2, (T + 2) * DX + (2 * T + 1) * DY, 2 * DX + 2 * T * DY, grad_f=1 + 2 * 2)


def test_lfednest_minimax_drifts_with_unlike_clients_only():
    ends = []
    for quadratic, steps, outer in ((QM, [1] * N, 1), (QM, [1, 3, 2, 4], 2), (q.make_minimax(same=True), [3] * N, 2)):
        algorithm = LFedNestMinimax(eta_x=0.1, eta_y=0.2, inner=T, outer_steps=outer)
        solution = q.run(MINIMAX, algorithm, quadratic, 300, local_steps=taus(*steps))
        counted(solution, T + 1, (T + 1) * (DX + DY), T * DY + DX, grad_f=outer)
        ends.append(np.linalg.norm(quadratic.gradient(np.asarray(solution.x))))
    assert ends[0] < 1e-8
    assert ends[1] > 1e-2
    assert ends[2] < 1e-8


# --- LFedNest --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_T43_lfednest_ends_at_a_zero_of_the_mean_of_local_hypergradients():
    rates = {"eta_x": 0.15, "eta_y": 0.4, "neumann_step": 0.5, **LONG}
    unequal = [1, 3, 2, 4]
    plain = nested(LFedNest, QB, 400, [1] * N, **rates)
    anchored = nested(LFedNestSVRG, QB, 400, unequal, **rates, outer_steps=2, divide_steps=True)
    for solution in (plain, anchored):  # anchors leave no drift, whatever the local steps
        x = np.asarray(solution.x)
        close(solution.y, QB.y_star(x), 1e-8)
        assert np.linalg.norm(QB.averaged_local(x)) < 1e-8
        assert np.linalg.norm(QB.gradient(x)) > 0.01
    counted(anchored, 2 * T + 2, (T + 2) * DX + (2 * T + 1) * DY, 2 * T * DY + 2 * DX, hvp=PRODUCTS, jvp=1)
    drifted = np.asarray(nested(LFedNest, QB, 400, unequal, **rates).x)
    assert np.linalg.norm(QB.averaged_local(drifted)) > 1e-3
    close(nested(LFedNest, SAME, 400, [3] * N, **rates).x, SAME.x_star, 1e-8)


# --- random truncation and random starts -----------------------------------------------------------------------------

LANES, ROUNDS, STEP, TERMS, SMALL = 32, 60, 0.4, 3, 1e-8


def sampled(algorithm, quadratic, **setting):
    """Many independent x directions at (X0, y*(X0)), and what each of their rounds has exchanged: (exchanges, bytes)."""
    solution = q.run(BILEVEL, algorithm, quadratic, ROUNDS, y0=quadratic.y_star(X0), evaluate=q.path, every=1,
                     keys=list(range(LANES)), **setting)  # fmt: skip
    moves = -np.diff(q.path_of(solution, "x", DX), axis=0) / SMALL
    exchanges, up = (np.diff(solution.history[name], axis=0).ravel() for name in ("exchanges", "bytes_up"))
    return moves.reshape(-1, DX), exchanges, up, np.diff(solution.history["bytes_down"], axis=0).ravel()


def one_term(quadratic, power):
    """∇_x F − ∇²_xy G · N η (I − ηH)^power ∇_y F."""
    y = quadratic.y_star(X0)
    z = TERMS * STEP * np.linalg.matrix_power(EYE - STEP * quadratic.H, power) @ quadratic.f_y(X0, y)
    return quadratic.f_x(X0, y) + quadratic.E.T @ z


def all_terms(quadratic, terms=TERMS):
    y = quadratic.y_star(X0)
    return quadratic.f_x(X0, y) + quadratic.E.T @ series(quadratic.H, quadratic.f_y(X0, y), STEP, terms)


def has_mean(samples, expected, not_this=None):
    error = samples.std(0) / len(samples) ** 0.5
    off = np.abs(samples.mean(0) - expected) / error
    assert (off < 4).all(), off
    if not_this is not None:  # the test has the power to tell
        assert (np.abs(samples.mean(0) - not_this) / error).max() > 6


def uniform(numbers):
    counts = np.bincount(numbers, minlength=TERMS)
    assert len(counts) == TERMS
    share, total = 1 / TERMS, counts.sum()
    assert (np.abs(counts - share * total) < 4 * (share * (1 - share) * total) ** 0.5).all(), counts


@pytest.mark.slow
def test_T29_the_random_term_has_the_mean_of_the_series():
    algorithm = FedNestRandom(eta_x=SMALL, eta_y=0.0, neumann_step=STEP, products=TERMS)
    h, exchanges, up, down = sampled(algorithm, QB)
    number = exchanges - 5  # T = 1
    uniform(number)
    for j in range(TERMS):
        close(h[number == j], np.broadcast_to(one_term(QB, j), (np.sum(number == j), DX)), 1e-5)
    has_mean(h, all_terms(QB), all_terms(QB, TERMS + 1))
    np.testing.assert_array_equal(down, 8 * N * (3 * DX + (number + 4) * DY))
    np.testing.assert_array_equal(up, 8 * N * (2 * DX + (number + 3) * DY))


@pytest.mark.slow
def test_T54_aggitd_has_the_mean_of_the_series():
    h, exchanges, up, down = sampled(FBOAggITD(gamma_x=SMALL, eta_y=0.2, neumann_step=STEP, inner=TERMS), QB)
    late = 2 * TERMS - (up // (8 * N) - DX) // DY  # J
    uniform(late)
    for j in range(TERMS):
        close(h[late == j], np.broadcast_to(one_term(QB, TERMS - 1 - j), (np.sum(late == j), DX)), 1e-5)
    has_mean(h, all_terms(QB), all_terms(QB, TERMS + 1))
    assert (exchanges == TERMS + 1).all()
    np.testing.assert_array_equal(up, 8 * N * (DX + (2 * TERMS - late) * DY))
    np.testing.assert_array_equal(down, 8 * N * (DX + (2 * TERMS - late + 1) * DY))


def staying(quadratic, power):
    """What ``one_term`` would be if a chain stayed with its first client."""
    y, total = quadratic.y_star(X0), 0
    for i, p in enumerate(quadratic.p):
        own, weight = quadratic.alone(i), N * p
        a = np.linalg.matrix_power(EYE - STEP * weight * own.H, power) @ (weight * own.f_y(X0, y))
        total = total + p * (own.f_x(X0, y) + own.E.T @ (TERMS * STEP * a))
    return total


@pytest.mark.slow
def test_T53_T54_fedmbo_has_the_mean_of_the_series_and_its_variance_falls_with_the_participants():
    inner = 2
    algorithm = FedMBO(gamma_x=SMALL, gamma_y=0.0, neumann_step=STEP, inner=inner, products=TERMS)
    # unlike clients of unequal weights: a chain that stays with one client would show
    unlike = q.make_bilevel(seed=1, sizes=3, scatter=0.3, p=[0.2, 0.35, 0.2, 0.25])
    h, exchanges, up, down = sampled(algorithm, unlike, batch_size=1)
    number = exchanges - inner - 2
    uniform(number)
    for j in range(TERMS):
        has_mean(h[number == j], one_term(unlike, j))
    np.testing.assert_raises(AssertionError, has_mean, h[number == 2], staying(unlike, 2))  # the test can tell
    has_mean(h, all_terms(unlike))
    np.testing.assert_array_equal(up, 8 * N * ((inner + number + 1) * DY + DX))
    np.testing.assert_array_equal(down, 8 * N * ((inner + number + 2) * (DX + DY) + (number + 1) * DY))
    # equal clients: given N', the variance is that of one chain over P
    alike = q.make_bilevel(seed=2, n=1, sizes=3, scatter=0.5)
    alike = q.QB(alike.data * N, np.full(N, 1 / N))
    spread = {}
    for taking in (1, N):
        h, exchanges, _, _ = sampled(algorithm, alike, batch_size=1, participation=rk.Uniform(taking))
        means = np.stack([one_term(alike, j) for j in range(TERMS)])
        spread[taking] = np.mean((h - means[exchanges - inner - 2]) ** 2)
    assert spread[1] / spread[N] == pytest.approx(N, rel=0.15)


# --- FBO-AggITD ------------------------------------------------------------------------------------------------------


def test_exact_itd_is_the_derivative_of_the_last_lower_iterate():
    inner, eta = 4, 0.3
    solution = q.run(BILEVEL, FBOITD(gamma_x=0.1, eta_y=eta, inner=inner), QB, 1)
    y, J = Y0, np.zeros((DY, DX))
    for _ in range(inner):
        y, J = y - eta * QB.g_y(X0, y), J - eta * (QB.H @ J - QB.E)
    close(solution.y, y)
    close(solution.x, X0 - 0.1 * (QB.f_x(X0, y) + J.T @ QB.f_y(X0, y)))
    counted(solution, 2 * inner + 1, DX + (2 * inner + 1) * DY, DX + 2 * inner * DY,
            grad_g=inner, grad_f=1, hvp=inner - 1, jvp=inner)  # fmt: skip


@pytest.mark.slow
def test_aggitd_with_local_steps_is_gradient_descent_for_equal_clients():
    solution = q.run(BILEVEL, FBOAggITDSVRG(eta_y=0.3, inner=TERMS), SAME, 1, local_steps=3)
    close(solution.y, descend(SAME, X0, Y0, 0.1, 3 * TERMS))
    assert solution.history.last["exchanges"] == 2 * TERMS + 1
    assert solution.history.last["grad_g"] == TERMS * (1 + 2 * 3) * N


# --- CommFedBiO ------------------------------------------------------------------------------------------------------


def test_T30_T40_commfedbio_without_compression_is_gradient_descent_and_ends_at_the_solution():
    algorithm = CommFedBiO(gamma_x=0.1, eta_y=0.4, eta_z=0.3, products=3, k=DY)
    once = q.run(BILEVEL, algorithm, QB, 1)
    y = descend(QB, X0, Y0, 0.4, 1)
    z = np.zeros(DY)
    for _ in range(3):
        z = z - 0.3 * (QB.H @ z - QB.f_y(X0, y))
    close(once.y, y)
    close(once.state.server["z"], z)
    close(once.x, X0 - 0.1 * (QB.f_x(X0, y) + QB.E.T @ z))
    end = q.run(BILEVEL, algorithm, QB, 400)
    assert np.linalg.norm(QB.gradient(np.asarray(end.x))) < 1e-8
    # up: an entry is a real of 8 bytes and an index of 4; down: the warm start is one vector more than in table 7.1
    counted(end, 3 + 2, DX + (3 + 3) * DY, DY + 3 * DY * 1.5 + DX, grad_g=1, grad_f=3 + 1, hvp=3, jvp=1)


def test_T30_error_feedback_loses_nothing():
    k, rounds = 2, 6
    algorithm = CommFedBiO(k=k, eta_z=0.3, products=rounds, warm_start=False)
    flat = Flat(BILEVEL, Layout.of(X0, "x0"), Layout.of(Y0, "y0"))
    first, later = algorithm.round()[1], algorithm.round()[2].stages[0]
    clients, i = QB.clients(), 1

    def message(exchange, down, carry, index):
        local = Local(flat, clients, as_key(0), (None, None), Steps.of(1), id=i, round=0, index=index, last=-1, x0=X0)
        return exchange.work(local, down, None, carry)

    message = jax.jit(message, static_argnums=0)
    own = QB.alone(i)
    carry, z, sent, raw = {"x": X0, "y": Y0, "e": np.zeros(DY)}, np.zeros(DY), np.zeros(DY), np.zeros(DY)
    for l in range(rounds):
        down = {"y": jnp.asarray(Y0)} if l == 0 else {"z": jnp.asarray(z)}
        up, _, carry = message(first if l == 0 else later, down, carry, max(l - 1, 0))
        m = np.zeros(DY)
        m[np.asarray(up["indices"])] = up["values"]
        residual = own.H @ z - own.f_y(X0, Y0)
        assert np.count_nonzero(m) == k
        sent, raw, z = sent + m, raw + residual, z - 0.3 * m
        close(sent + np.asarray(carry["e"]), raw)
        assert np.abs(m[m != 0]).min() >= np.abs(carry["e"]).max()


def test_commfedbio_sends_k_entries_and_may_start_from_zero():
    algorithm = CommFedBiO(products=3, k=1, warm_start=False)
    counted(q.run(BILEVEL, algorithm, QB, 2, local_steps=2), 5, DX + (2 + 3) * DY, DY + 3 * 1.5 + DX, grad_g=2)


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: FedNestRandom(products=0), "FedNestRandom: products must be an integer >= 1"),
        (lambda: FedNest(products=-1), "products must be an integer >= 0"),
        (lambda: FedNest(neumann_step=-1.0), "neumann_step must be a number >= 0"),
        (lambda: LFedNest(inner=0), "inner must be an integer >= 1"),
        (lambda: FBOITD(inner=0), "FBOITD: inner must be an integer >= 1"),
        (lambda: FBOAggITDSVRG(neumann_step=-1.0), "neumann_step must be a number >= 0"),
        (lambda: q.run(BILEVEL, CommFedBiO(k=DY + 1), QB, 1), "k must be at most 4"),
    ],
)
def test_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()
