"""The baselines of client weighting: against NumPy transcriptions, and what the mathematics implies about them."""

from functools import partial
from itertools import combinations

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.afl import AFL
from rookery.algorithms.exact_gd import ExactGD
from rookery.algorithms.fednest_cw import FedNestCW
from rookery.algorithms.fixed_weights import AverageWeights, FixedWeights, ValidationOnly
from rookery.algorithms.rfho import RfhoCW, RfhoForwardCW
from rookery.algorithms.sustain import SustainCW, SustainPlainCW, SustainRandomCW
from rookery.problem.sets import WholeSpace
from tests.helpers import quadratics as q
from tests.helpers import small_problems as small
from tests.helpers.draws import Draws
from tests.helpers.marks import quick_ones
from tests.helpers.transcriptions import at, simplex

N, D = 4, 3
EQUAL = np.full(N, 1 / N)
SIMPLEX = rk.ClientWeighting(q.weighting_loss)
FREE = rk.ClientWeighting(q.weighting_loss, weights_set=WholeSpace())  # the x step is then −η_x g_x itself
TOY = q.make_weighting(2)


def feasible(x, y):
    return {"least": x.min(), "total": x.sum()}


def check_feasible(solution):
    assert (solution.history["least"] >= 0).all()
    np.testing.assert_allclose(solution.history["total"], 1, atol=1e-12)


# --- transcriptions --------------------------------------------------------------------------------------------------


class Paper:
    """Section 6 of the specification in plain NumPy. ``active`` draws a new set for every exchange of a round."""

    def __init__(self, problem, draws, x, w):
        self.problem, self.draws, self.x, self.w = problem, draws, x, w
        self.n = draws.n

    def start(self, t):
        self.t, self.fresh = t, 0

    def active(self):
        self.fresh += 1
        A = self.draws.participants(self.t, fresh=self.fresh - 1)
        return A, self.n / len(A)

    def loss(self, i, k, w):
        return self.problem.loss(w, self.draws.rows("lower", i, self.t, k, "x"))

    def grad(self, i, k, w):
        return self.problem.grad(w, self.draws.rows("lower", i, self.t, k, "x"))

    def hess(self, i, k, w, name="z"):
        return self.problem.hess(w, self.draws.rows("lower", i, self.t, k, name))

    def grad0(self, w, k=0):
        return self.problem.grad0(w, self.draws.rows("server", 0, self.t, k, "x"))

    def descend(self, eta_w, K):
        for k in range(K):
            A, scale = self.active()
            self.w = self.w - eta_w * scale * sum(self.x[i] * self.grad(i, k, self.w) for i in A)

    def slopes(self, A, scale, lam, w, k):
        g = np.zeros(self.n)
        for i in A:
            g[i] = scale * lam @ self.grad(i, k, w)
        return g

    def series(self, eta_H, K, points):
        """λ at each of the points (x, w), on the same sets and batches."""
        qs = [self.grad0(w) for _, w in points]
        lams = [-eta_H * v for v in qs]
        for k in range(K):
            A, scale = self.active()
            for j, (x, w) in enumerate(points):
                qs[j] = qs[j] - eta_H * scale * sum(x[i] * self.hess(i, k, w) @ qs[j] for i in A)
                lams[j] = lams[j] - eta_H * qs[j]
        return lams

    def term(self, eta_H, K, points):
        """−K η_H ∏_{j≤p}(I − η_H H_j)∇f_0 at each of the points, p uniform on 0..K−1."""
        qs = [self.grad0(w) for _, w in points]
        for k in range(self.draws.below(self.t, "neumann", K)):
            A, scale = self.active()
            qs = [
                v - eta_H * scale * sum(x[i] * self.hess(i, k, w) @ v for i in A)
                for v, (x, w) in zip(qs, points, strict=True)
            ]
        return [-K * eta_H * v for v in qs]


def fixed(p, eta_w, inner):
    p.descend(eta_w, inner)


def validation(p, eta_w, inner):
    for k in range(inner):
        p.w = p.w - eta_w * p.grad0(p.w, k)


def afl(p, eta_x, eta_w, inner, average=False):
    p.descend(eta_w, inner - 1)
    (A, scale), loss = p.active(), np.zeros(p.n)
    for i in A:
        loss[i] = scale * p.loss(i, inner - 1, p.w)
    p.w = p.w - eta_w * scale * sum(p.x[i] * p.grad(i, inner - 1, p.w) for i in A)
    p.x = simplex(p.x + eta_x * loss)
    if average:
        p.models = [*getattr(p, "models", []), p.w]
        p.shown = np.mean(p.models, axis=0)


def exact(p, eta_x, eta_w, inner):
    p.descend(eta_w, inner)
    A, scale = p.active()
    H = scale * sum(p.x[i] * p.hess(i, inner, p.w) for i in A)
    lam = -np.linalg.solve(H, p.grad0(p.w))
    p.x = simplex(p.x - eta_x * p.slopes(A, scale, lam, p.w, inner))


def fednest(p, eta_x, eta_w, neumann_step, inner):
    p.descend(eta_w, inner)
    (lam,) = p.series(neumann_step, inner, [(p.x, p.w)])
    A, scale = p.active()
    p.x = simplex(p.x - eta_x * p.slopes(A, scale, lam, p.w, inner))


def sustain(p, eta_x, eta_w, neumann_step, inner, beta, plain=False, random=False):
    new = (p.x, p.w)
    old = getattr(p, "old", new)
    lams = (p.term if random else p.series)(neumann_step, inner, [new, old])
    A, scale = p.active()
    S_w = [scale * sum(x[i] * p.grad(i, 0, w) for i in A) for x, w in (new, old)]
    S_x = [p.slopes(A, scale, lam, w, 0) for lam, (_, w) in zip(lams, (new, old), strict=True)]
    if p.t == 0:
        p.d_w, p.d_x = S_w[0], S_x[0]
    else:
        p.d_w = S_w[0] + (1 - beta) * (p.d_w - S_w[1])
        p.d_x = S_x[0] if plain else S_x[0] + (1 - beta) * (p.d_x - S_x[1])
    p.old = new
    p.w, p.x = p.w - eta_w * p.d_w, simplex(p.x - eta_x * p.d_x)


def rfho(p, eta_x, eta_w, inner, forward=False):
    if forward:
        Z = getattr(p, "Z", np.zeros((p.w.size, p.n)))
        for k in range(inner):
            (A, scale), G = p.active(), np.zeros((p.w.size, p.n))
            for i in A:
                G[:, i] = scale * p.grad(i, k, p.w)
            H = scale * sum(p.x[i] * p.hess(i, k, p.w, "x") for i in A)
            p.w, Z = p.w - eta_w * G @ p.x, Z - eta_w * (H @ Z + G)
        p.Z, g_x = Z, Z.T @ p.grad0(p.w)
    else:
        path = []
        for k in range(inner):
            path.append(p.w)
            A, scale = p.active()
            p.w = p.w - eta_w * scale * sum(p.x[i] * p.grad(i, k, p.w) for i in A)
        a, g_x = p.grad0(p.w), np.zeros(p.n)
        for k in reversed(range(inner)):
            A, scale = p.active()
            g_x = g_x - eta_w * p.slopes(A, scale, a, path[k], k)
            a = a - eta_w * scale * sum(p.x[i] * p.hess(i, k, path[k], "x") @ a for i in A)
    p.x = simplex(p.x - eta_x * g_x)


RATES = {"eta_x": 0.05, "eta_w": 0.1}
SERIES = {**RATES, "neumann_step": 0.2, "inner": 2}
BOXES = {
    "opt": (FixedWeights, fixed, {"eta_w": 0.1, "inner": 3}),
    "val": (ValidationOnly, validation, {"eta_w": 0.1, "inner": 3}),
    "AFL": (AFL, afl, {**RATES, "inner": 2}),
    "AFL, mean model": (AFL, afl, {**RATES, "inner": 2, "average": True}),
    "ExactGD": (ExactGD, exact, {**RATES, "inner": 2}),
    "FedNest-CW": (FedNestCW, fednest, SERIES),
    "SUSTAIN-CW": (SustainCW, sustain, {**SERIES, "beta": 0.4}),
    "SUSTAIN-CW_plain": (SustainPlainCW, partial(sustain, plain=True), {**SERIES, "beta": 0.4}),
    "SUSTAIN-CW_random": (SustainRandomCW, partial(sustain, random=True), {**SERIES, "inner": 3, "beta": 0.4}),
    "RFHO-CW": (RfhoCW, rfho, {**RATES, "inner": 3}),
    "RFHO-CW_forward": (RfhoForwardCW, partial(rfho, forward=True), {**RATES, "inner": 2}),
}


@pytest.fixture(scope="module")
def smooth():
    problem, splits = small.make_weighting(6, seed=5)
    clients = rk.Clients(rk.Split(*splits["lower"]), server=splits["server"][0])
    return problem, rk.ClientWeighting(small.weighting_loss), clients


@pytest.mark.slow
@pytest.mark.parametrize("name", BOXES)
def test_same_iterates_as_the_specification_with_partial_activity_and_batches(smooth, name):
    numpy_problem, problem, clients = smooth
    kind, box, hyper = BOXES[name]
    scheduled = {**hyper, "eta_w": lambda t: hyper["eta_w"] * (t + 1) ** -0.5}
    setting = {"participation": rk.Bernoulli(0.5), "batch_size": 2, "key": 7}
    x0, w0, rounds = np.array([0.1, 0.25, 0.15, 0.2, 0.05, 0.25]), np.linspace(0.3, -0.3, 4), 10
    paper, states = Paper(numpy_problem, Draws(clients, **setting), x0, w0), []
    for t in range(rounds):
        paper.start(t)
        box(paper, **{name: at(value, t) for name, value in scheduled.items()})
        states.append((paper.x, getattr(paper, "shown", paper.w)))
    algorithm, solution = kind(**{**hyper, "eta_w": rk.Power(hyper["eta_w"], -0.5)}), None
    for done in (1, rounds):
        more = done - (solution.rounds if solution else 0)
        solution = rk.solve(problem, algorithm, clients, jnp.asarray(x0), jnp.asarray(w0), rounds=more, every=1,
                            evaluate=feasible, start=solution, **setting)  # fmt: skip
        for ours, theirs in zip((solution.x, solution.y), states[done - 1], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    check_feasible(solution)
    moved = kind not in (FixedWeights, ValidationOnly)
    assert (np.linalg.norm(solution.x - x0) > 1e-3) == moved


# --- one round, read off ---------------------------------------------------------------------------------------------

SUBSETS = [A for size in range(1, N + 1) for A in combinations(range(N), size)]
TRACE = rk.Replay([range(N)] * 2 + SUBSETS)  # two rounds with everybody, then one with each subset


def one_round(algorithm, toy, x0, w0, subset=None, problem=FREE):
    """(g_x, solution) of one round with everybody, or with these clients active in all of its exchanges."""
    x0, w0 = np.asarray(x0), np.asarray(w0)
    setting = {"rounds": 1, "evaluate": q.nothing, "every": 1, "participation": TRACE}
    if subset is not None:
        server = {name: jnp.asarray(each) for name, each in algorithm.init(jnp.asarray(x0), jnp.asarray(w0)).items()}
        start = rk.engines.simulator.State(
            2 + SUBSETS.index(subset), server, None, jnp.full(N, -1, jnp.int32), jnp.int32(-1)
        )
        setting["start"] = start
    solution = rk.solve(problem, algorithm, toy.clients(), jnp.asarray(x0), jnp.asarray(w0), **setting)
    eta = getattr(algorithm, "eta_x", 1.0)
    return (x0 - np.asarray(solution.x)) / (eta or 1.0), solution


LEARNERS = {
    "ExactGD": lambda K, **more: ExactGD(**{"eta_x": 0.1, "eta_w": 0.1, **more}, inner=K),
    "FedNest-CW": lambda K, **more: FedNestCW(**{"eta_x": 0.1, "eta_w": 0.1, "neumann_step": 0.12, **more}, inner=K),
    "SUSTAIN-CW": lambda K, **more: SustainCW(**{"eta_x": 0.1, "eta_w": 0.1, "neumann_step": 0.12, **more}, inner=K),
    "RFHO-CW": lambda K, **more: RfhoCW(**{"eta_x": 0.1, "eta_w": 0.12, **more}, inner=K),
}


def series_gradient(toy, x, step, terms):
    """−step Σ_{m<terms} ∇f_0ᵀ(I − step·H_x)^m ∇f_i at w*(x)."""
    w = toy.w_star(x)
    shrink = np.eye(D) - step * toy.hessian(x, w)
    dual = -step * sum(np.linalg.matrix_power(shrink, m) for m in range(terms)) @ toy.grad(toy.server, w)
    return toy.grads(w) @ dual


@pytest.mark.slow
@pytest.mark.parametrize("name", ["FedNest-CW", "SUSTAIN-CW", "RFHO-CW"])
def test_T47_the_bias_at_w_star_is_that_of_the_series_and_falls_with_K(name):
    x = np.array([0.1, 0.4, 0.3, 0.2])
    w, errors = TOY.w_star(x), []
    for K in (1, 3):
        g_x, _ = one_round(LEARNERS[name](K), TOY, x, w)
        np.testing.assert_allclose(g_x, series_gradient(TOY, x, 0.12, K + (name != "RFHO-CW")), atol=1e-11)
        errors.append(np.linalg.norm(g_x - TOY.gradient(x)))
    assert errors[0] > 1.2 * errors[1] > 1e-3


def test_exact_gd_has_no_bias_at_w_star():
    x = np.array([0.1, 0.4, 0.3, 0.2])
    g_x, _ = one_round(LEARNERS["ExactGD"](1), TOY, x, TOY.w_star(x))
    np.testing.assert_allclose(g_x, TOY.gradient(x), atol=1e-11)


def end_of_steps(toy, x, w, eta, steps):
    for _ in range(steps):
        w = w - eta * x @ toy.grads(w)
    return w


def differences(fn, x, h=1e-6):
    return np.stack([(fn(x + h * e) - fn(x - h * e)) / (2 * h) for e in np.eye(len(x))])


def test_rfho_differentiates_the_steps_on_the_model():
    x, w0 = np.array([0.1, 0.4, 0.3, 0.2]), np.array([0.5, -0.4, 0.8])
    expected = differences(lambda x: TOY.loss(TOY.server, end_of_steps(TOY, x, w0, 0.12, 3)), x)
    forward = RfhoForwardCW(eta_x=0.1, eta_w=0.12, inner=3)
    for algorithm in (LEARNERS["RFHO-CW"](3), forward):
        g_x, solution = one_round(algorithm, TOY, x, w0)
        np.testing.assert_allclose(g_x, expected, atol=1e-8)
        np.testing.assert_allclose(solution.y, end_of_steps(TOY, x, w0, 0.12, 3), atol=1e-12)
    still = replace_rate(forward, eta_x=0.0)  # Z is kept: after two rounds it is the derivative of all their steps
    _, first = one_round(still, TOY, x, w0)
    second = rk.solve(FREE, still, TOY.clients(), jnp.asarray(x), jnp.asarray(w0), rounds=1, every=1, evaluate=q.nothing,
                      participation=TRACE, start=first)  # fmt: skip
    for steps, each in ((3, first), (6, second)):
        derivative = differences(lambda x, steps=steps: end_of_steps(TOY, x, w0, 0.12, steps), x)
        np.testing.assert_allclose(each.state.server["Z"], derivative, atol=1e-8)


def replace_rate(algorithm, **rates):
    return type(algorithm)(**{**vars(algorithm), **rates})


# --- unbiased --------------------------------------------------------------------------------------------------------


def equal_hessians():
    """Clients that differ in their gradients only; with equal weights λ then does not depend on who is active."""
    first = {**TOY.data[0], "a": np.zeros((1, D))}
    return q.TW([{**first, "B": each["B"]} for each in TOY.data], TOY.server)


def over_subsets(value, probability=0.3):
    """The mean of ``value(A)`` over active sets, drawn until somebody is active."""
    chance = np.array([probability ** len(A) * (1 - probability) ** (N - len(A)) for A in SUBSETS])
    return np.tensordot(chance / chance.sum(), np.stack([value(A) for A in SUBSETS]), 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LEARNERS, "AFL"])
def test_T05_every_entry_of_g_x_is_unbiased(name):
    """All steps on w before the slopes are (as good as) none, so that each g_x is linear in the active set."""
    toy, w = equal_hessians(), np.array([0.5, -0.4, 0.8])
    if name == "AFL":
        algorithm, expected = AFL(eta_x=0.1, eta_w=0.1), [-toy.loss(each, w) for each in toy.data]
    else:
        tiny = {"eta_w": 1e-9, "eta_x": 1e9} if name == "RFHO-CW" else {"eta_w": 0.0}
        H = toy.hessian(EQUAL, w)
        inverse = {"ExactGD": np.linalg.inv(H), "RFHO-CW": 1e-9 * np.eye(D)}.get(name, 0.24 * np.eye(D) - 0.12**2 * H)
        algorithm = LEARNERS[name](1, **tiny, **({"beta": 1.0} if name == "SUSTAIN-CW" else {}))
        expected = -toy.grads(w) @ inverse @ toy.grad(toy.server, w)
    assert np.linalg.norm(expected) > 1e-9
    found = {A: one_round(algorithm, toy, EQUAL, w, A)[0] for A in SUBSETS}
    np.testing.assert_allclose(over_subsets(found.__getitem__), expected, rtol=1e-6)
    for A, g_x in found.items():
        assert (g_x[[i for i in range(N) if i not in A]] == 0).all()


@pytest.mark.slow
def test_T05_the_step_on_the_model_is_unbiased():
    x, w = np.array([0.1, 0.4, 0.3, 0.2]), np.array([0.5, -0.4, 0.8])
    mean = over_subsets(lambda A: np.asarray(one_round(FixedWeights(eta_w=0.1), TOY, x, w, A)[1].y))
    np.testing.assert_allclose(mean, w - 0.1 * x @ TOY.grads(w), rtol=1e-10)


# --- whole runs ------------------------------------------------------------------------------------------------------

RUNS = {
    "ExactGD": ExactGD(eta_x=0.3, eta_w=0.1, inner=2),
    "RFHO-CW_forward": RfhoForwardCW(eta_x=0.3, eta_w=0.1, inner=2),
    "FedNest-CW": LEARNERS["FedNest-CW"](3, eta_x=0.3),
    "SUSTAIN-CW": LEARNERS["SUSTAIN-CW"](3),
    "RFHO-CW": LEARNERS["RFHO-CW"](3, eta_x=0.3),
}
TERMS = {"FedNest-CW": 4, "SUSTAIN-CW": 4, "RFHO-CW": 3}
# (exchanges; numbers down, numbers up, a client; grad_g, hvp, a client; server_grad_f) of a round, with K and d
COSTS = {
    "ExactGD": lambda K, d: (K + 1, (K + 1) * d, (K + 1) * d + d**2, K + 1, d, 1),
    "RFHO-CW_forward": lambda K, d: (K, K * (N + 1) * d, K * (N + 1) * d, K, K * N, 1),
    "FedNest-CW": lambda K, d: (2 * K + 1, (3 * K + 2) * d, 2 * K * d + 1, K + 1, K, 1),
    "SUSTAIN-CW": lambda K, d: (K + 1, (4 * K + 4) * d, (2 * K + 2) * d + 2, 2, 2 * K, 2),
    "RFHO-CW": lambda K, d: (2 * K, 3 * K * d, 2 * K * d + K, 2 * K, K, 1),
    "SUSTAIN-CW_plain": lambda K, d: (K + 1, (2 * K + 3) * d, (K + 2) * d + 1, 2, K, 1),
    "AFL": lambda K, d: (K, K * d, K * d + 1, K, 0, 0),
    "opt": lambda K, d: (K, K * d, K * d, K, 0, 0),
    "val": lambda K, d: (0, 0, 0, 0, 0, K),
}


def check_costs(name, solution, K, d, n, rounds, size=8):
    last, (exchanges, down, up, gradients, products, own) = solution.history.last, COSTS[name](K, d)
    assert last["exchanges"] == rounds * exchanges
    assert last["bytes_down"] == rounds * n * size * down
    assert last["bytes_up"] == rounds * n * size * up
    assert [last[unit] for unit in ("grad_f", "grad_g", "hvp", "jvp")] == [
        0,
        rounds * n * gradients,
        rounds * n * products,
        0,
    ]
    assert last["server_grad_f"] == rounds * own


@pytest.mark.parametrize("name", quick_ones(RUNS, {"SUSTAIN-CW", "RFHO-CW"}))
def test_T47_T48_T09_T08_whole_runs(name):
    algorithm = RUNS[name]
    ended = q.run(SIMPLEX, algorithm, TOY, 8000, EQUAL, np.zeros(D))
    x = np.asarray(ended.x)
    np.testing.assert_allclose(ended.y, TOY.w_star(x), atol=1e-8)
    gradient, on = TOY.gradient(x), x > 0
    followed = series_gradient(TOY, x, 0.12, TERMS[name]) if name in TERMS else gradient
    np.testing.assert_allclose(followed[on], 0, atol=1e-7)
    assert (followed[~on] > 1e-4).all()
    assert (np.linalg.norm(gradient[on]) > 1e-3) == (name in TERMS)  # the series ends elsewhere
    check_costs(name, ended, algorithm.inner, D, N, 8000)

    toy = q.make_weighting(8, far=(1, 3), distance=4)  # the others reach the solution alone
    ended = q.run(SIMPLEX, replace_rate(algorithm, eta_x=0.02), toy, 300, EQUAL, np.zeros(D), feasible, 1)
    check_feasible(ended)
    x = np.asarray(ended.x)
    assert (x[[1, 3]] == 0).all()
    assert (x[[0, 2]] > 0).all()
    assert (toy.gradient(x)[[1, 3]] > 1).all()

    same = q.TW([TOY.data[0]] * N, TOY.server)  # equal clients: the model does not depend on the weights
    starts = [EQUAL, np.array([0.7, 0.1, 0.2, 0.0])]
    models = [q.run(SIMPLEX, algorithm, same, 20, x0, np.ones(D), feasible, 1).y for x0 in starts]
    np.testing.assert_allclose(models[0], models[1], rtol=1e-10)


def test_afl_ends_where_the_worst_clients_have_all_the_weight():
    toy = q.make_weighting(2, far=(1,))
    first = q.run(SIMPLEX, AFL(eta_x=0.001, eta_w=0.01), toy, 1, EQUAL, np.zeros(D))
    losses = np.array([toy.loss(each, np.zeros(D)) for each in toy.data])
    np.testing.assert_allclose(first.x, simplex(EQUAL + 0.001 * losses), rtol=1e-12)
    assert first.x[1] > 0.25 > max(np.delete(first.x, 1))
    check_costs("AFL", first, 1, D, N, 1)
    ended = q.run(SIMPLEX, AFL(eta_x=0.01, eta_w=0.05), TOY, 5000, EQUAL, np.zeros(D))
    x, w = np.asarray(ended.x), np.asarray(ended.y)
    losses, on = np.array([TOY.loss(each, w) for each in TOY.data]), x > 0
    np.testing.assert_allclose(losses[on], losses.max(), rtol=1e-6)
    assert (losses[~on] < losses.max()).all()
    np.testing.assert_allclose(x @ TOY.grads(w), 0, atol=1e-6)


def test_val_avg_and_opt():
    x0 = np.array([0.5, 0.3, 0.2, 0.0])
    ends = {kind: q.run(SIMPLEX, kind(eta_w=0.1, inner=2), TOY, 500, x0, np.zeros(D))
            for kind in (FixedWeights, AverageWeights, ValidationOnly)}  # fmt: skip
    for kind, x in ((FixedWeights, x0), (AverageWeights, EQUAL)):
        np.testing.assert_allclose(ends[kind].x, x, rtol=1e-15)
        np.testing.assert_allclose(ends[kind].y, TOY.w_star(x), atol=1e-10)
        check_costs("opt", ends[kind], 2, D, N, 500)
    np.testing.assert_allclose(TOY.grad(TOY.server, np.asarray(ends[ValidationOnly].y)), 0, atol=1e-10)
    np.testing.assert_allclose(ends[ValidationOnly].x, x0, rtol=1e-15)
    check_costs("val", ends[ValidationOnly], 2, D, N, 500)


def test_T08_plain_momentum_takes_half_the_products():
    algorithm = SustainPlainCW(eta_x=0.05, eta_w=0.1, neumann_step=0.12, inner=2)
    check_costs("SUSTAIN-CW_plain", q.run(SIMPLEX, algorithm, TOY, 2, EQUAL, np.zeros(D)), 2, D, N, 2)


@pytest.mark.parametrize(
    ("kind", "bad", "said"),
    [
        (FedNestCW, {"inner": 0}, "inner"),
        (FedNestCW, {"neumann_step": 0.0}, "neumann_step"),
        (AFL, {"eta_x": -1.0}, "eta_x"),
        (SustainCW, {"beta": 1.5}, "beta"),
        (SustainPlainCW, {"neumann_step": -1.0}, "neumann_step"),
        (SustainRandomCW, {"eta_w": -1.0}, "eta_w"),
        (RfhoForwardCW, {"inner": 0}, "inner"),
    ],
)
def test_bad_hyperparameters_raise(kind, bad, said):
    with pytest.raises(ValueError, match=said):
        kind(**bad)


def test_a_momentum_that_never_forgets_is_for_whole_sets_only():
    with pytest.raises(ValueError, match="beta"):
        q.run(SIMPLEX, SustainCW(beta=0.0), TOY, 1, EQUAL, np.zeros(D), batch_size=1)
