"""Section 9.4 of the specification: where the algorithms end, on problems with known solutions, with exact gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from tests.helpers import quadratics as q
from tests.helpers.marks import quick_ones, slow

pytestmark = pytest.mark.optimized

BILEVEL = rk.Bilevel(q.upper, q.lower)
LOCAL = rk.Bilevel(q.upper, q.lower, lower_level="local")
MINIMAX = rk.Minimax(q.objective)
WEIGHTING = rk.ClientWeighting(q.weighting_loss)

QB = q.make_bilevel(p=q.WEIGHTS)
SAME = q.make_bilevel(same=True, p=q.WEIGHTS)
QM = q.make_minimax(p=q.WEIGHTS)
SAME_QM = q.make_minimax(same=True, p=q.WEIGHTS)
NU = 1.5


def bias(quadratic, x):
    return np.linalg.norm(quadratic.gradient(np.asarray(x)))


def end(algorithm, quadratic, rounds, steps=1, problem=BILEVEL, **setting):
    return q.run(problem, algorithm, quadratic, rounds, local_steps=steps, **setting)


def halved(errors):
    """Halving the client step halves the error."""
    assert errors[-1] > 1e-4
    ratios = np.array(errors[:-1]) / errors[1:]
    assert ((ratios > 1.8) & (ratios < 2.2)).all(), ratios


# --- bilevel, one lower level ----------------------------------------------------------------------------------------

RATES = {"gamma_x": 0.1, "gamma_y": 0.2, "gamma_z": 0.2}
CLIPS = {"clip_x": (0.05, 0.1), "clip_y": (0.1, 0.2), "clip_z": (0.1, 0.2)}
CONSTANT = {"delta": 0.5e5, "offset": 1e15}  # δ_s = 1/2 for every s


def all_steps(eta):
    return {"eta_x": eta, "eta_y": eta, "eta_z": eta}


FAMILY = {
    "FedBiO": lambda eta: rk.FedBiO(**all_steps(eta)),
    "SimFBO": lambda eta: rk.SimFBO(**all_steps(eta), **RATES),
    "ShroFBO": lambda eta: rk.ShroFBO(**all_steps(eta), **RATES),
    "ASFBO": lambda eta: rk.ASFBO(**all_steps(eta), **CLIPS),
    "LA-ASFBO": lambda eta: rk.LAASFBO(**all_steps(eta), **CLIPS),
}


@pytest.mark.parametrize("name", quick_ones(FAMILY, {"FedBiO", "SimFBO", "ASFBO"}))
def test_T40_T42_exact_with_one_local_step_or_equal_clients_else_biased_in_the_client_step(name):
    make = FAMILY[name]
    assert bias(QB, np.zeros(q.DX)) > 0.1
    one = end(make(0.15), QB, 800)
    assert bias(QB, one.x) < 1e-8
    np.testing.assert_allclose(one.y, QB.y_star(QB.x_star), atol=1e-8)
    np.testing.assert_allclose(one.state.server["z"], QB.z_star(QB.x_star), atol=1e-8)
    assert bias(SAME, end(make(0.04), SAME, 1500, 3).x) < 1e-8
    halved([bias(QB, end(make(eta), QB, 3000, 3).x) for eta in (0.02, 0.01, 0.005)])


@pytest.mark.slow
def test_T40_T42_fedbioacc_is_exact_without_forgetting_else_biased_in_c():
    def ends(c, steps, quadratic=QB):
        algorithm = rk.FedBiOAcc(**all_steps(0.1), **CONSTANT, c_x=c, c_y=c, c_z=c)
        return bias(quadratic, end(algorithm, quadratic, 1500, steps).x)

    for c in (0.0, 1.0, 4.0):
        assert ends(c, 1) < 1e-8
        assert ends(c, 3, SAME) < 1e-8
    errors = [ends(c, 3) for c in (0.0, 0.2, 1.0, 4.0)]
    assert errors[0] < 1e-8
    assert errors[1] > 1e-4
    assert (np.diff(errors) > 0).all()


@pytest.mark.slow
def test_T44_unequal_local_work_moves_simfbo_but_not_the_normalised():
    tau = np.array([1, 4, 2, 3])
    steps = q.taus(*tau)
    reweighted = QB.reweighted(QB.p * tau)
    assert np.linalg.norm(reweighted.x_star - QB.x_star) > 0.01
    constant = {f"clip_{v}": (RATES[f"gamma_{v}"],) * 2 for v in "xyz"}
    kinds = {
        "SimFBO": (lambda eta: rk.SimFBO(**all_steps(eta), **RATES), reweighted),
        "ShroFBO": (lambda eta: rk.ShroFBO(**all_steps(eta), **RATES), QB),
        "ASFBO": (lambda eta: rk.ASFBO(**all_steps(eta), **constant), QB),
        "LA-ASFBO": (lambda eta: rk.LAASFBO(**all_steps(eta), **constant), QB),
    }
    for name, (make, limit) in kinds.items():
        errors = [np.linalg.norm(end(make(eta), QB, 400, steps).x - limit.x_star) for eta in (0.01, 0.005, 0.0)]
        assert errors[2] < 1e-8, name
        halved(errors[:2])


# --- MeFBO -----------------------------------------------------------------------------------------------------------


def mefbo(c, eta=0.1, **more):
    return rk.MeFBO(**{"eta_x": eta, "eta_y": eta, "eta_theta": eta, "gamma_x": 0.5, "gamma_y": 0.2, "gamma_theta": 0.3,
                       "c": c, "nu": NU, **more})  # fmt: skip


def residual(problem, quadratic, nu=NU):
    """√R of MeFBO, compiled."""
    clients = quadratic if isinstance(quadratic, rk.Clients) else quadratic.clients()
    measure = partial(rk.measures.mefbo_residual, problem, clients)
    return jax.jit(lambda x, y, c: jnp.sqrt(measure(x, y, c, nu)))


def check_mefbo_equations(quadratic, server, c):
    x, y, theta = (np.asarray(server[name]) for name in ("x", "y", "theta"))
    inverse = np.linalg.inv(quadratic.H)
    f_y, off = quadratic.f_y(x, y), y - quadratic.y_star(x)
    np.testing.assert_allclose(quadratic.f_x(x, y) + quadratic.E.T @ inverse @ f_y, 0, atol=1e-11)
    np.testing.assert_allclose(off, -(inverse + inverse @ inverse / NU) @ f_y / c, atol=1e-12)
    np.testing.assert_allclose(theta - quadratic.y_star(x), -inverse @ inverse @ f_y / (c * NU), atol=1e-12)
    assert np.linalg.norm(off) > 1e-3  # the equations are not those of the exact solution


def test_T45_mefbo_ends_where_its_fixed_point_equations_say():
    errors, measure = [], residual(BILEVEL, QB)
    for c in (5.0, 20.0, 80.0):
        solution = end(mefbo(c, gamma_x=c / 10), QB, 4000)
        check_mefbo_equations(QB, solution.state.server, c)
        assert measure(solution.x, solution.y, c) < 1e-12
        errors.append(bias(QB, solution.x))
    ratios = np.array(errors[:-1]) / errors[1:]
    assert ((ratios > 3.5) & (ratios < 4.5)).all(), ratios
    growing = [bias(QB, end(mefbo(rk.Power(5.0, 0.24), gamma_x=1.0), QB, rounds).x) for rounds in (100, 1000, 10_000)]
    assert growing[0] > 1.5 * growing[1] > 2.25 * growing[2]  # 10^0.24 = 1.74 each


@pytest.mark.slow
def test_T42_T45_mefbo_with_several_local_steps():
    measure = residual(BILEVEL, QB)
    ends = [end(mefbo(5.0, eta), QB, 3000, 3) for eta in (0.02, 0.01, 0.005)]
    halved([float(measure(each.x, each.y, 5.0)) for each in ends])
    assert min(bias(QB, each.x) for each in ends) > 0.02  # the part of 1/c stays
    check_mefbo_equations(SAME, end(mefbo(5.0), SAME, 3000, 3).state.server, 5.0)


def test_mefbo_in_a_box_ends_at_the_constrained_optimum():
    low, high = -0.07, 0.15
    box = rk.Bilevel(q.upper, q.lower, x_set=rk.Box(low, high))
    measure = residual(box, QB)

    def descend(gradient, x, y, rate_y):
        for _ in range(4000):
            d_x, d_y = gradient(x, y)
            x, y = np.clip(x - 0.1 * d_x, low, high), y - rate_y * d_y
        return x, y

    x_star, _ = descend(lambda x, y: (QB.gradient(x), 0), np.zeros(q.DX), 0, 0)
    assert 0 < np.sum((x_star == low) | (x_star == high)) < q.DX
    off = []
    for c in (5.0, 20.0):
        solution = end(mefbo(c, gamma_x=c / 10), QB, 4000, problem=box)
        x, y = np.asarray(solution.x), np.asarray(solution.y)
        expected = descend(lambda x, y: [c * d for d in QB.penalty_gradient(x, y, c, NU)], x + 0.01, y + 0.01, 0.5 / c)
        np.testing.assert_allclose(x, expected[0], atol=1e-9)
        np.testing.assert_allclose(y, expected[1], atol=1e-9)
        assert measure(x, y, c) < 1e-10
        assert measure(x_star, QB.y_star(x_star), c) > 1e-3
        assert ((x == low) | (x == high)).any()
        off.append(np.linalg.norm(x - x_star))
    assert off[1] < 0.4 * off[0]


def test_mefbo_with_a_constrained_lower_level_ends_where_its_residual_is_zero():
    low, high = -0.3, 0.2
    box = rk.Bilevel(q.upper, q.lower, y_set=rk.Box(low, high))
    solution = end(mefbo(5.0), QB, 4000, problem=box)
    x, y, theta = (np.asarray(solution.state.server[name]) for name in ("x", "y", "theta"))
    for v in (y, theta):
        assert 0 < np.sum((v == low) | (v == high)) < q.DY
    # θ is the constrained proximal point, (x, y) is stationary
    np.testing.assert_allclose(
        np.clip(theta - 0.1 * (QB.g_y(x, theta) + (theta - y) / NU), low, high), theta, atol=1e-12
    )
    d_x = QB.f_x(x, y) / 5 - QB.E.T @ (y - theta)
    d_y = QB.f_y(x, y) / 5 + QB.g_y(x, y) - (y - theta) / NU
    np.testing.assert_allclose(d_x, 0, atol=1e-12)
    np.testing.assert_allclose(np.clip(y - 0.1 * d_y, low, high), y, atol=1e-12)
    measure = residual(box, QB)
    assert measure(x, y, 5.0) < 1e-9
    assert measure(x + 0.01, y, 5.0) > 1e-3


def sine_upper(x, y, batch):
    b = jax.tree.map(lambda leaf: leaf.mean(0), batch)
    return (x[0] - b["a"]) ** 2 + b["own"] @ (y - b["a"] - b["c"]) ** 2


def sine_lower(x, y, batch):
    b = jax.tree.map(lambda leaf: leaf.mean(0), batch)
    return b["own"] @ jnp.sin(x[0] + y - b["c"])


@pytest.mark.parametrize("split", [False, True], ids=["shared by all clients", "one coordinate a client"])
def test_mefbo_solves_a_nonconvex_lower_level(split):
    """min (x − a)² + ‖y − a − c‖² subject to y_i ∈ argmin sin(x + y_i − c_i), with d coordinates.

    At a solution x + y_i − c_i = C, C the minimiser of sin closest to 2a; then u = x − a minimises u² + d(C − 2a − u)².
    """
    a, c = 2.0, np.array([2.0, 1.0, -1.0])
    d = len(c)
    C = 3 * np.pi / 2
    x_star = ((1 - d) * a + d * C) / (1 + d)
    y_star = C + c - x_star
    own = d * np.eye(d) if split else np.ones((d, d))
    clients = rk.Clients([{"a": np.array([a]), "c": c[None], "own": own[i][None]} for i in range(d)])
    problem, errors = rk.Bilevel(sine_upper, sine_lower), []
    for start in ((x_star + 1, y_star + 0.7), (a, c + a)):
        for penalty in (40.0, 160.0, 640.0):
            algorithm = rk.MeFBO(gamma_x=0.3, gamma_y=0.1, gamma_theta=0.1, c=penalty, nu=0.4)
            solution = q.run(problem, algorithm, clients, 40_000, np.array([start[0]]), start[1])
            x, y = np.asarray(solution.x), np.asarray(solution.y)
            np.testing.assert_allclose(x[0] - a, np.sum(y - a - c), rtol=1e-9)  # exact for every penalty
            errors.append(np.linalg.norm(np.append(x - x_star, y - y_star)))
    assert errors[2] < 3e-3
    np.testing.assert_allclose(errors[:3], errors[3:], rtol=1e-6)  # from both starts
    ratios = np.array([errors[0] / errors[1], errors[1] / errors[2]])
    assert ((ratios > 3.5) & (ratios < 4.5)).all(), ratios


# --- bilevel, a lower level of each client's own ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "products"),
    [(rk.FedBiOLocal, 2), (rk.FedBiOLocal, 80), (rk.FedBiOAccLocal, 2), slow(rk.FedBiOAccLocal, 80)],
)
def test_T46_local_lower_levels_end_at_the_zero_of_the_series_hypergradient(kind, products):
    rates = {"eta_x": 0.3, "eta_y": 0.6, **CONSTANT} if kind is rk.FedBiOAccLocal else {"eta_x": 0.15, "eta_y": 0.3}
    solution = end(kind(**rates, neumann_step=0.3, products=products), QB, 800, problem=LOCAL)
    x, y = np.asarray(solution.x), np.asarray(solution.y)
    np.testing.assert_allclose(y, QB.local_y_star(x), atol=1e-10)
    assert np.linalg.norm(y - y.mean(0)) > 0.1  # every client its own
    np.testing.assert_allclose(QB.local_gradient(x, 0.3, products), 0, atol=1e-9)
    error = np.linalg.norm(QB.local_gradient(x))
    assert error < 1e-8 if products == 80 else error > 1e-3
    if products == 80:
        np.testing.assert_allclose(x, QB.local_x_star, atol=1e-8)
        assert np.linalg.norm(x - QB.x_star) > 0.01


# --- minimax ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [rk.LocalSGDA, rk.FedSGDAPlus])
def test_T42_local_descent_ascent_is_biased_in_the_client_step(kind):
    halved([bias(QM, end(kind(eta_x=eta, eta_y=eta), QM, 2000, 3, MINIMAX).x) for eta in (0.04, 0.02, 0.01)])
    same = end(kind(eta_x=0.1, eta_y=0.1), SAME_QM, 1000, 3, MINIMAX)
    np.testing.assert_allclose(same.x, SAME_QM.x_star, atol=1e-9)
    np.testing.assert_allclose(same.y, SAME_QM.y_star(SAME_QM.x_star), atol=1e-9)


def test_T42_fedsgda_m_is_exact_without_forgetting_else_biased_in_alpha():
    def ends(weight, steps):
        solution = end(rk.FedSGDAM(eta_x=0.05, eta_y=0.05, alpha=weight, beta=weight), QM, 2000, steps, MINIMAX)
        return np.linalg.norm(np.append(solution.x - QM.x_star, solution.y - QM.y_star(QM.x_star)))

    errors = [ends(weight, 3) for weight in (0.0, 0.1, 0.5, 1.0)]
    assert errors[0] < 1e-8
    assert errors[1] > 1e-3
    assert (np.diff(errors) > 0).all()
    assert ends(0.5, 1) < 1e-8


def test_T37_bilevel_algorithm_on_a_minimax_problem_ends_at_the_saddle_point():
    solution = end(rk.SimFBO(**all_steps(0.1), **RATES), QM, 800, problem=MINIMAX.as_bilevel())
    np.testing.assert_allclose(solution.x, QM.x_star, atol=1e-9)
    np.testing.assert_allclose(solution.state.server["z"], 0, atol=1e-9)


def classes(x, y, batch):
    b = jax.tree.map(lambda leaf: leaf.mean(0), batch)
    return y @ (0.5 * b["k"] * ((x - b["v"]) ** 2).sum(1) + b["o"])


def fair(same):
    """min over x, max over y in the simplex, of Σ y_c L_c(x), L_c = ½k_c‖x − v_c‖² + o_c, made to have the equaliser

    x = 0, y = (.5, .3, .2, 0): Σ y_c k_c v_c = 0, three equal losses and one that is smaller. Clients see shifted v_c.
    """
    y, k = np.array([0.5, 0.3, 0.2, 0.0]), np.array([1.0, 2.0, 1.5, 1.0])
    v = np.array([[1.0, 0.2], [-0.5, 0.6], [0, 0], [0.3, -0.4]])
    v[2] = -(y[0] * k[0] * v[0] + y[1] * k[1] * v[1]) / (y[2] * k[2])
    shifts = 0.1 * np.random.default_rng(0).standard_normal((4, 4, 2)) * (not same)
    shifts -= np.tensordot(q.WEIGHTS, shifts, 1)
    spread = np.tensordot(q.WEIGHTS, (shifts**2).sum(-1), 1)
    o = np.array([1.0, 1.0, 1.0, 0.2]) - 0.5 * k * ((v**2).sum(1) + spread)
    data = [{"v": (v + shift)[None], "k": k[None], "o": o[None]} for shift in shifts]
    return rk.Clients(data, weights=q.WEIGHTS), y


@pytest.mark.parametrize("kind", [rk.FedSGDAPlus, slow(rk.FedSGDAM)])
def test_minimax_over_the_simplex_ends_at_the_equaliser(kind):
    problem = rk.Minimax(classes, y_set=rk.Simplex())
    more = {"gamma_x": 1.2, "gamma_y": 0.8} if kind is rk.FedSGDAPlus else {"alpha": 0.7, "beta": 0.6}
    for same, steps in ((False, 1), (True, 3)):
        clients, y = fair(same)
        solution = q.run(problem, kind(eta_x=0.1, eta_y=0.1, **more), clients, 2000, np.array([0.3, -0.2]), np.full(4, 0.25),
                         local_steps=steps)  # fmt: skip
        np.testing.assert_allclose(solution.x, 0, atol=1e-8)
        np.testing.assert_allclose(solution.y, y, atol=1e-8)
        assert abs(solution.y[3]) < 1e-15


# --- client weighting ------------------------------------------------------------------------------------------------


def test_T47_weights_times_gradient_is_zero():
    toy = q.make_weighting(2)
    measure = jax.jit(partial(rk.measures.weighting_gradient, WEIGHTING, toy.clients()))
    for x in np.random.default_rng(0).dirichlet(np.ones(4), 5):
        found = measure(x, np.zeros(3))
        assert np.linalg.norm(found.gradient) > 1e-2
        assert abs(x @ found.gradient) < 1e-10
        np.testing.assert_allclose(found.gradient, toy.gradient(x), atol=1e-9)


def feasible(x, y):
    return {"least": x.min(), "total": x.sum()}


@pytest.mark.parametrize("inner", [1, slow(5), slow(10)])
def test_T47_primal_dual_ends_at_the_stationary_weights_for_every_K_and_penalty(inner):
    toy, start = q.make_weighting(2), np.full(4, 0.25)
    rates = {"eta_x": 0.1, "eta_w": 0.02, "eta_lambda": 0.05}
    ends = []
    for penalty in (1.0, 2.0, 4.0):
        solution = q.run(WEIGHTING, rk.PrimalDual(**rates, penalty=penalty, inner=inner), toy, 8000, start, np.zeros(3))
        x = np.asarray(solution.x)
        gradient, on = toy.gradient(x), x > 0
        assert on.sum() == 3
        np.testing.assert_allclose(gradient[on], 0, atol=1e-8)
        assert (gradient[~on] > 0.01).all()
        np.testing.assert_allclose(solution.state.server["lambda"], toy.dual(x), atol=1e-8)
        np.testing.assert_allclose(solution.y, toy.w_star(x), atol=1e-8)
        ends.append(x)
    np.testing.assert_allclose(ends[1:], [ends[0]] * 2, atol=1e-8)


def test_T48_clients_of_no_use_lose_their_weight_and_weights_stay_in_the_simplex():
    toy, start = q.make_weighting(8, far=(1, 3), distance=4), np.full(4, 0.25)
    algorithm = rk.PrimalDual(eta_x=0.02, eta_w=0.02, eta_lambda=0.05)
    solution = q.run(WEIGHTING, algorithm, toy, 8000, start, np.zeros(3), evaluate=feasible, every=10)
    assert (solution.history["least"] >= 0).all()
    np.testing.assert_allclose(solution.history["total"], 1, atol=1e-14)
    x = np.asarray(solution.x)
    assert (x[[1, 3]] == 0).all()
    assert (x[[0, 2]] > 0).all()
    gradient = toy.gradient(x)
    np.testing.assert_allclose(gradient[[0, 2]] - gradient[0], 0, atol=1e-8)  # it has arrived
    assert (gradient[[1, 3]] > gradient[0] + 0.1).all()
