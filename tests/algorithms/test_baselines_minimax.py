"""The minimax baselines: FSGDA, SAGDA, Momentum Local SGDA, CODA+, CODASCA; T-31 to T-36 and T-42 of the specification."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithms.codasca import CODASCA, CODAPlus
from rookery.algorithms.fedsgda import FedSGDAPlus
from rookery.algorithms.local_sgda import LocalSGDA, LocalSGDAPlus, MomentumLocalSGDA
from rookery.algorithms.sagda import FSGDA, SAGDA
from tests.algorithms.test_transcriptions import CLIENTS, GDA, RANDOM_STEPS, P, box, compare, simplex
from tests.helpers import quadratics as q
from tests.helpers import small_problems as small
from tests.helpers import transcriptions as paper
from tests.helpers.marks import slow

MINIMAX = rk.Minimax(q.objective)
QM = q.make_minimax(sizes=3, scatter=0.5, p=q.WEIGHTS)  # batches of 2 out of 3 examples
EXACT = q.make_minimax(sizes=3, p=q.WEIGHTS)  # the three are one and the same: exact gradients in the same program
SAME = q.make_minimax(sizes=3, same=True, p=q.WEIGHTS)
ONE = np.array([1.0, 0, 0, 0])  # n = 1 in the program of n = 4
X0, Y0 = np.linspace(-0.5, 0.5, q.DX), np.linspace(0.3, -0.3, q.DY)
SETTING = {"local_steps": 3, "batch_size": 2, "key": 5}


def run(algorithm, quadratic=QM, rounds=5, **more):
    return q.run(MINIMAX, algorithm, quadratic, rounds, **{**SETTING, **more})


def final(algorithm, quadratic=QM, rounds=5, **more):
    return run(algorithm, quadratic, rounds, **more).state.server


def same(ours, theirs):
    for name in "xy":
        np.testing.assert_allclose(ours[name], theirs[name], rtol=1e-10, atol=1e-12, err_msg=name)


def differ(ours, theirs):
    for name in "xy":
        assert np.abs(np.asarray(ours[name]) - np.asarray(theirs[name])).max() > 1e-4, name


# --- transcriptions --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def minimax():
    numpy_problem, splits = small.make_minimax(CLIENTS, seed=4)
    return numpy_problem, rk.Minimax(small.objective), rk.Clients(rk.Split(*splits["upper"]), weights=P)


def constrained(minimax):
    numpy_problem, _, clients = minimax
    return numpy_problem, rk.Minimax(small.objective, x_set=rk.Box(-0.2, 0.4), y_set=rk.Simplex()), clients


SETS = {"project_x": box, "project_y": simplex}
CODA = {"eta": 0.12, "weight_decay": 0.03, "gamma": 1.3}


@pytest.mark.parametrize("in_sets", [False, slow(True)], ids=["free, 3 of 6", "box and simplex, random participants"])
def test_codasca_is_its_transcription_and_c_the_mean_of_what_clients_keep(minimax, in_sets):
    problem = constrained(minimax) if in_sets else minimax
    taking, hyper = (rk.Bernoulli(0.5), SETS) if in_sets else (3, {})
    compare(problem, CODASCA(**CODA, prox=2.0), paper.codasca, {**CODA, **hyper, "Gamma_p": 2.0},
            names={name: name for name in ("x", "y", "c_x", "c_y")}, kept={"c_x": "c_x_i", "c_y": "c_y_i"},
            participation=taking, local_steps=RANDOM_STEPS)  # fmt: skip
    x0, y0 = problem[1].x_set.project(jnp.asarray(X0)), problem[1].y_set.project(jnp.asarray(Y0))
    state = rk.solve(problem[1], CODASCA(**CODA, prox=2.0), problem[2], x0, y0, rounds=3, key=1,
                     participation=taking, local_steps=RANDOM_STEPS, batch_size=2, evaluate=q.nothing).state  # fmt: skip
    for name in ("c_x", "c_y"):
        np.testing.assert_allclose(state.server[name], P @ state.keep[name], rtol=1e-10, atol=1e-13)
    assert not in_sets or set(np.asarray(state.last)) >= {-1, 2}  # some never took part


def sagda(problem, draws, x0, y0, *, rounds, eta_x, eta_y, gamma_x, gamma_y, project_x, project_y):
    x, y, history = x0, y0, []
    for t in range(rounds):
        C = draws.participants(t)
        anchor = {i: draws.rows("upper", i, t, 0, "anchor") for i in C}
        c_x_i, c_y_i = ({i: grad(x, y, anchor[i]) for i in C} for grad in (problem.f_x, problem.f_y))
        c_x, c_y = paper.average(draws, c_x_i), paper.average(draws, c_y_i)
        x_end, y_end = {}, {}
        for i in C:
            x_i, y_i = x, y
            for k in range(draws.steps(t, i)):
                xi = draws.rows("upper", i, t, k, "x")
                x_i = project_x(x_i)
                d_x = problem.f_x(x_i, y_i, xi) - c_x_i[i] + c_x
                d_y = problem.f_y(x_i, y_i, xi) - c_y_i[i] + c_y
                x_i, y_i = x_i - eta_x * d_x, project_y(y_i + eta_y * d_y)
            x_end[i], y_end[i] = x_i, y_i
        x = project_x(x + gamma_x * (paper.average(draws, x_end) - x))
        y = project_y(y + gamma_y * (paper.average(draws, y_end) - y))
        history.append({"x": x, "y": y})
    return history


def test_sagda_is_its_transcription(minimax):
    rates = {**GDA, "gamma_x": 1.4, "gamma_y": 1.2}
    compare(constrained(minimax), SAGDA(**rates), sagda, {**rates, **SETS}, local_steps=RANDOM_STEPS)


def momentum(problem, draws, x0, y0, *, rounds, eta_x, eta_y, beta_x, beta_y, project_x, project_y):
    x, y, d_x, d_y, history = x0, y0, None, None, []
    for t in range(rounds):
        end = {}
        for i in draws.participants(t):
            x_i, y_i, u, v = x, y, d_x, d_y
            if t == 0:
                xi = draws.rows("upper", i, 0, 0, "x")
                u, v = problem.f_x(x, y, xi), problem.f_y(x, y, xi)
            tau = draws.steps(t, i)
            for k in range(1, tau + 1):
                x_i, y_i = project_x(x_i - eta_x * u), project_y(y_i + eta_y * v)
                xi = draws.rows("upper", i, *((t, k) if k < tau else (t + 1, 0)), "x")
                u = (1 - beta_x) * u + beta_x * problem.f_x(x_i, y_i, xi)
                v = (1 - beta_y) * v + beta_y * problem.f_y(x_i, y_i, xi)
            end[i] = x_i, y_i, u, v
        x, y, d_x, d_y = (paper.average(draws, {i: each[part] for i, each in end.items()}) for part in range(4))
        x, y = project_x(x), project_y(y)
        history.append({"x": x, "y": y, "d_x": d_x, "d_y": d_y})
    return history


def test_momentum_local_sgda_is_its_transcription(minimax):
    rates = {**GDA, "beta_x": 0.4, "beta_y": 0.7}
    compare(constrained(minimax), MomentumLocalSGDA(**rates), momentum, {**rates, **SETS}, local_steps=RANDOM_STEPS)


# --- equalities ------------------------------------------------------------------------------------------------------


class WithoutVariates(SAGDA):
    def anchor(self, local, down):
        up, _, carry = super().anchor(local, down)
        return rk.Reply(jax.tree.map(jnp.zeros_like, up), carry={**carry, "own": jax.tree.map(jnp.zeros_like, down)})


@pytest.mark.slow
def test_T31_T33_members_that_are_local_sgda():
    plain = final(LocalSGDA(**GDA))
    same(final(FSGDA(**GDA)), plain)
    same(final(WithoutVariates(**GDA)), plain)  # T-33
    differ(final(SAGDA(**GDA)), plain)
    differ(final(FSGDA(**GDA, gamma_x=1.3, gamma_y=0.8)), plain)
    for quadratic in (QM.reweighted(ONE), SAME):  # c_i = c
        same(final(SAGDA(**GDA), quadratic), final(LocalSGDA(**GDA), quadratic))


def test_T31_snapshots_with_and_without_steps_of_the_server():
    server = {"gamma_x": 1.3, "gamma_y": 0.8}
    same(final(FedSGDAPlus(**GDA, snapshot=2)), final(LocalSGDAPlus(**GDA, snapshot=2)))
    same(final(FedSGDAPlus(**GDA, **server), local_steps=1), final(FSGDA(**GDA, **server), local_steps=1))


@pytest.mark.slow
def test_T32_T34_estimates_that_forget_are_local_sgda():
    alone = QM.reweighted(ONE)
    forgets = MomentumLocalSGDA(**GDA, beta_x=1.0, beta_y=1.0)
    same(final(rk.FedSGDAM(**GDA, alpha=1.0, beta=1.0, first_batch=1)), final(LocalSGDA(**GDA)))
    same(final(forgets, alone), final(LocalSGDA(**GDA), alone))
    same(final(forgets, SAME), final(LocalSGDA(**GDA), SAME))
    differ(final(forgets), final(LocalSGDA(**GDA)))  # first steps of a round are along averaged directions
    differ(final(MomentumLocalSGDA(**GDA, beta_x=0.9, beta_y=0.9), alone), final(LocalSGDA(**GDA), alone))


@pytest.mark.slow
def test_T33_codasca_without_effect_of_its_control_variates_is_coda_plus():
    rates = {"eta": 0.1, "prox": 2.0, "weight_decay": 0.05}
    same(final(CODASCA(**rates), rounds=1), final(CODAPlus(**rates), rounds=1))  # all are 0
    for quadratic in (QM.reweighted(ONE), SAME):  # c_i = c
        same(final(CODASCA(**rates), quadratic), final(CODAPlus(**rates), quadratic))
    differ(final(CODASCA(**rates)), final(CODAPlus(**rates)))
    differ(final(CODAPlus(**rates)), final(CODAPlus(eta=0.1)))
    equal = {"eta_x": 0.1, "eta_y": 0.1}
    same(final(CODAPlus(eta=0.1)), final(LocalSGDA(**equal)))  # without its extras


DX, DY, D = q.DX, q.DY, q.DX + q.DY
KINDS = {  # algorithm, exchanges, numbers down and up, gradients in a round, and in round 0 besides
    "FSGDA": (FSGDA(**GDA), 1, D, D, 3, 0),
    "SAGDA": (SAGDA(**GDA), 2, 2 * D, 2 * D, 4, 0),
    "Momentum Local SGDA": (MomentumLocalSGDA(**GDA, beta_x=1.0, beta_y=1.0), 1, 2 * D, 2 * D, 3, 1),
    "CODA+": (CODAPlus(eta=0.1), 1, DX + D, D, 3, 0),
    "CODASCA": (CODASCA(eta=0.1), 1, DX + 2 * D, 2 * D, 3, 0),
}


@pytest.mark.parametrize("name", KINDS)
def test_T08_T35_one_batch_for_both_gradients_both_at_the_old_point_and_counters(name):
    algorithm, exchanges, down, up, gradients, at_start = KINDS[name]
    eta_x, eta_y = (0.1, 0.1) if name.startswith("CODA") else GDA.values()
    # with directions that are the drawn example's own a_j and b_j, both moves tell j
    zero = {k: np.zeros_like(v) for k, v in QM.data[0].items()}
    labels = np.arange(3.0)[:, None]
    example = {**zero, "a": labels * np.ones(DX), "b": labels * np.ones(DY)}
    alone = q.QM([example] * 4, ONE)
    drawn = set()
    for key in range(4):
        made = final(algorithm, alone, 1, key=key)
        x, y = (X0 - made["x"]) / eta_x, (made["y"] - Y0) / eta_y
        np.testing.assert_allclose(x, np.full(DX, y[0]), rtol=1e-10)
        drawn.add(round(float(x[0]), 6))
    assert len(drawn) > 2
    exact = EXACT.reweighted(ONE)
    own, x, y = exact.alone(0), X0, Y0
    for _ in range(9):
        x, y = x - eta_x * own.f_x(x, y), y + eta_y * own.f_y(x, y)
    solution = run(algorithm, exact, 3)
    same(solution.state.server, {"x": x, "y": y})
    last = solution.history.last
    assert last["exchanges"] == 3 * exchanges
    assert (last["bytes_down"], last["bytes_up"]) == (3 * 4 * 8 * down, 3 * 4 * 8 * up)
    assert last["grad_f"] == 4 * (3 * gradients + at_start)
    assert last["grad_g"] == last["hvp"] == last["jvp"] == last["server_grad_f"] == 0


# --- fixed points ----------------------------------------------------------------------------------------------------


class Taus(rk.Steps):
    """τ_i as given, one a client."""

    table: jnp.ndarray

    def draw(self, key, client, round):
        return self.table[client]


def biases(algorithms, taus):
    """‖∇Φ‖ where each ends."""
    solution = q.run(MINIMAX, algorithms, q.make_minimax(p=q.WEIGHTS), 1000, local_steps=Taus(1, 5, jnp.asarray(taus)))
    assert not solution.diverged
    return np.array([np.linalg.norm(EXACT.gradient(x)) for x in np.asarray(solution.x)])


STEPS = [(1, 1, 1, 1), (5, 5, 5, 5), (1, 3, 2, 5)]


def test_T42_local_sgda_is_biased_in_the_client_step():
    kinds = [LocalSGDA(eta_x=eta, eta_y=eta) for eta in (0.04, 0.02, 0.01)]
    error = biases(kinds, STEPS[1])
    assert error[-1] > 1e-4
    np.testing.assert_allclose(error[:-1] / error[1:], 2, rtol=0.1)
    assert biases(kinds, STEPS[0])[0] < 1e-8


@pytest.mark.parametrize("kind", [SAGDA, CODASCA])
def test_T42_control_variates_leave_no_bias_for_any_number_of_steps(kind):
    def made(eta):
        return CODASCA(eta=eta, gamma=1.2) if kind is CODASCA else SAGDA(eta_x=eta, eta_y=eta, gamma_x=1.2, gamma_y=0.9)

    for taus in STEPS:
        assert biases([made(0.05), made(0.1)], taus).max() < 1e-9


# --- the area under the ROC curve ------------------------------------------------------------------------------------


def auroc(v, alpha, batch, pi=0.3, m=1.0):
    h, positive = batch["z"] @ v["w"], batch["label"]
    pull = jnp.where(positive, (1 - pi) * (h - v["a"]) ** 2, pi * (h - v["b"]) ** 2)
    push = jnp.where(positive, -(1 - pi) * h, pi * h)
    return pull.mean() + 2 * alpha * (pi * (1 - pi) * m + push.mean()) - pi * (1 - pi) * alpha**2


def examples(seed, positives, negatives):
    rng = np.random.default_rng(seed)
    label = np.arange(positives + negatives) < positives
    return {"z": rng.standard_normal((len(label), 3)) + 0.5 * label[:, None], "label": label}


def test_T36_two_forms_of_the_auroc_loss():
    data, pi, rng = examples(0, 6, 14), 0.3, np.random.default_rng(1)
    w, a, b, omega = rng.standard_normal(3), *rng.standard_normal(3)
    h, label = data["z"] @ w, data["label"]
    h_plus, h_minus = h[label], h[~label]

    def other(a, b, omega):
        pull = np.where(label, (1 - pi) * (h - a) ** 2, pi * (h - b) ** 2)
        return np.mean(pull + 2 * (1 + omega) * np.where(label, -(1 - pi) * h, pi * h)) - pi * (1 - pi) * omega**2

    loss = auroc({"w": w, "a": a, "b": b}, 1 + omega, data)
    np.testing.assert_allclose(loss, other(a, b, omega) + pi * (1 - pi), rtol=1e-12)
    a, b = h_plus.mean(), h_minus.mean()
    value = pi * (1 - pi) * (np.mean((1 - h_plus[:, None] + h_minus[None]) ** 2) - 1)
    np.testing.assert_allclose(other(a, b, b - a), value, rtol=1e-12)
    for move in np.eye(3) * 0.1:  # a and b are the best for the one, ω for the other player
        better = other(*(np.array([a, b, b - a]) + move)) - value
        assert better < 0 if move[2] else better > 0
    # the closed dual direction at these a, b
    slope = jax.grad(auroc, argnums=1)({"w": w, "a": a, "b": b}, 0.7, data) / (pi * (1 - pi))
    np.testing.assert_allclose(slope, 2 * (1 + b - a) - 2 * 0.7, rtol=1e-12)


CLOSED = {"eta": 0.2, "prox": 3.0, "weight_decay": 0.01, "clip": 0.1, "margin": 0.9}


def coda(data, p, v, alpha, rounds, gamma, variates, eta, prox, weight_decay, clip, margin, reference="mean", stage=2,
         steps=3, pi=0.3):  # fmt: skip
    """CODASCA with whole sets, everybody and the closed dual rule; v = (a, b, w)."""
    x_ref, total = v, 0 * v
    c_v, c_alpha, c_v_i, c_alpha_i = 0, 0, [0] * len(p), [0] * len(p)
    for t in range(rounds):
        ends, windows = [], []
        for i, each in enumerate(data):
            u, dual, window = v, alpha, []
            for _ in range(steps):
                h, label = each["z"] @ u[2:], each["label"]
                to_a, to_b = (1 - pi) * (h - u[0]) * label, pi * (h - u[1]) * ~label
                by_h = 2 * (to_a + to_b + dual * np.where(label, pi - 1, pi)) / len(h)
                g = np.concatenate([[-2 * to_a.mean(), -2 * to_b.mean()], by_h @ each["z"]])
                clipped = np.concatenate([g[:2], np.clip(g[2:], -clip, clip)])
                u = u - eta * (clipped - c_v_i[i] + c_v + (u - x_ref) / prox) - eta * weight_decay * u
                g_dual = 2 * (margin + u[1] - u[0]) - 2 * dual
                dual = np.clip(dual + eta * (g_dual - c_alpha_i[i] + c_alpha), 0, 999)
                window.append((g, 2 * (margin + u[1] - u[0]) - 2 * dual))
            ends.append((u, dual))
            windows.append([sum(part) / steps for part in zip(*window, strict=True)])
        v = v + gamma * (sum(p_i * u for p_i, (u, _) in zip(p, ends, strict=True)) - v)
        alpha = alpha + gamma * (sum(p_i * dual for p_i, (_, dual) in zip(p, ends, strict=True)) - alpha)
        if variates:
            c_v_i, c_alpha_i = zip(*windows, strict=True)
            c_v, c_alpha = (sum(p_i * c for p_i, c in zip(p, each, strict=True)) for each in (c_v_i, c_alpha_i))
        total = total + v
        if (t + 1) % stage == 0:
            x_ref, total, eta = total / stage if reference == "mean" else v, 0 * v, eta / 3
    return {"x": v, "y": np.array([alpha]), "x_ref": x_ref, **({"x_sum": total} if reference == "mean" else {})}


@pytest.mark.parametrize("reference", ["mean", "last"])
@pytest.mark.parametrize("kind", [CODAPlus, CODASCA])
def test_closed_dual_rule_clipping_and_stages(kind, reference):
    data, p = [examples(2, 4, 6), examples(3, 2, 8)], np.array([0.3, 0.7])
    clients = rk.Clients(data, weights=p)
    gamma = {"gamma": 1.2} if kind is CODASCA else {}
    for a, start, rounds in ((0.3, 0.5, 1), (0.3, 0.5, 5), (1.8, 0.2, 4)):  # from 1.8 the dual is stopped at 0
        x0 = {"w": jnp.array([0.4, -0.2, 0.1]), "a": jnp.array(a), "b": jnp.array(-0.1)}
        algorithm = kind(**CLOSED, **gamma, dual="closed", stage=2, reference=reference)
        solution = rk.solve(rk.Minimax(auroc), algorithm, clients, x0, jnp.array(start), rounds=rounds, local_steps=3,
                            evaluate=q.nothing, every=5)  # fmt: skip
        expected = coda(data, p, np.array([a, -0.1, 0.4, -0.2, 0.1]), start, rounds, **CLOSED,
                        gamma=gamma.get("gamma", 1.0), variates=kind is CODASCA, reference=reference)  # fmt: skip
        for name, value in expected.items():
            np.testing.assert_allclose(solution.state.server[name], value, rtol=1e-10, atol=1e-13, err_msg=name)


# --- guards ----------------------------------------------------------------------------------------------------------


def test_guards():
    a_and_b = {"w": jnp.zeros(3), "a": jnp.array(0.0), "b": jnp.array(0.0)}
    nested = {"w": {"a": jnp.array(0.0), "b": jnp.array(0.0)}}
    clients = rk.Clients([examples(2, 4, 6)])
    anything = rk.Minimax(lambda x, y, batch: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(x)) - jnp.sum(y**2))
    for x0, y0 in ((a_and_b, jnp.zeros(2)), (nested, jnp.array(0.0)), (jnp.zeros(3), jnp.array(0.0)),
                   ({**a_and_b, "a": jnp.zeros(2)}, jnp.array(0.0))):  # fmt: skip
        with pytest.raises(ValueError, match="CODASCA: dual must be 'gradient' unless x has scalar entries a and b"):
            rk.solve(anything, CODASCA(dual="closed"), clients, x0, y0, rounds=1)
    bad = {"eta": -0.1, "gamma": -1.0, "prox": 0.0, "weight_decay": -1e-3, "clip": 0.0, "dual": "exact", "stage": 0,
           "reference": "first"}  # fmt: skip
    for name, value in bad.items():
        with pytest.raises(ValueError, match=f"CODASCA: {name} must be"):
            CODASCA(**{name: value})
    for kind, name, value in ((FSGDA, "gamma_x", -1), (SAGDA, "eta_y", -1), (MomentumLocalSGDA, "beta_x", 0.0)):
        with pytest.raises(ValueError, match=f"{kind.__name__}: {name} must be"):
            kind(**{name: value})


def test_fields_of_the_older_classes_are_where_they_were():
    made = FedSGDAPlus(0.1, 0.2, 3, 1.1, 1.2, False)
    assert made == FedSGDAPlus(eta_x=0.1, eta_y=0.2, snapshot=3, gamma_x=1.1, gamma_y=1.2, project_server=False)
    assert rk.FedSGDAM(0.1, 0.2, 0.3, 0.4, 2) == rk.FedSGDAM(eta_x=0.1, eta_y=0.2, alpha=0.3, beta=0.4, first_batch=2)
