"""Every algorithm against a plain NumPy transcription of its paper's box: 20 rounds, the same draws, 1e-9 in float64."""

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from tests.helpers import small_problems as small
from tests.helpers import transcriptions as paper
from tests.helpers.draws import Draws
from tests.helpers.marks import slow

pytestmark = [pytest.mark.first, pytest.mark.optimized, pytest.mark.transcription]

ROUNDS, CLIENTS = 20, 6
P = np.array([0.1, 0.25, 0.15, 0.2, 0.05, 0.25])
INF = float("inf")


def simplex(v):
    u = np.sort(v)[::-1]
    k = np.arange(1, v.size + 1)
    last = np.max(k[u - (np.cumsum(u) - 1) / k > 0])
    return np.maximum(v - (np.cumsum(u)[last - 1] - 1) / last, 0)


def box(v):
    return np.clip(v, -0.2, 0.4)


@pytest.fixture(scope="module")
def bilevel():
    numpy_problem, splits = small.make_bilevel(CLIENTS, seed=3)
    clients = rk.Clients(rk.Split(*splits["lower"]), rk.Split(*splits["upper"]), weights=P)
    return numpy_problem, rk.Bilevel(small.upper, small.lower), clients


@pytest.fixture(scope="module")
def minimax():
    numpy_problem, splits = small.make_minimax(CLIENTS, seed=4)
    return numpy_problem, rk.Minimax(small.objective), rk.Clients(rk.Split(*splits["upper"]), weights=P)


@pytest.fixture(scope="module")
def weighting():
    numpy_problem, splits = small.make_weighting(CLIENTS, seed=5)
    clients = rk.Clients(rk.Split(*splits["lower"]), server=splits["server"][0])
    return numpy_problem, rk.ClientWeighting(small.weighting_loss), clients


def compare(
    problem, algorithm, transcription, hyper, *, names=None, kept=None, x0=None, y0=None, participation=3, local_steps=3,
    batch_size=2, rounds=ROUNDS, key=7,
):  # fmt: skip
    numpy_problem, rookery_problem, clients = problem
    x0 = np.linspace(-0.5, 0.5, 3) if x0 is None else x0
    y0 = np.linspace(0.3, -0.3, 4) if y0 is None else y0
    x0, y0 = hyper.get("project_x", np.asarray)(x0), hyper.get("project_y", np.asarray)(y0)  # a start is inside its set
    setting = {"participation": participation, "local_steps": local_steps, "batch_size": batch_size, "key": key}
    states = transcription(numpy_problem, Draws(clients, **setting), x0, y0, rounds=rounds, **hyper)
    solution = None
    for done in (1, rounds):  # the first round and the last: a first round that is off shows a wrong start
        more = done - (solution.rounds if solution else 0)
        solution = rk.solve(rookery_problem, algorithm, clients, jnp.asarray(x0), jnp.asarray(y0), rounds=more,
                            every=rounds, evaluate=lambda x, y: {}, start=solution, **setting)  # fmt: skip
        expected = states[done - 1]
        server = solution.state.server
        for ours, theirs in (names or {name: name for name in expected}).items():
            np.testing.assert_allclose(server[ours], expected[theirs], rtol=1e-9, atol=1e-12, err_msg=f"{ours} {done}")
        for ours, theirs in (kept or {}).items():
            np.testing.assert_allclose(solution.state.keep[ours], expected[theirs], rtol=1e-9, atol=1e-12, err_msg=ours)


RANDOM_STEPS = rk.Steps(1, 4)
POWER = rk.Power(0.3, -0.5)


def power(t):
    return 0.3 * (t + 1) ** -0.5


@pytest.mark.parametrize("steps", [slow(1), RANDOM_STEPS], ids=["one step", "unequal steps"])
def test_mefbo(bilevel, steps):
    rates = {"eta_x": 0.05, "eta_y": 0.1, "eta_theta": 0.07, "gamma_y": 0.2, "gamma_theta": 0.25, "nu": 1.5}
    compare(bilevel, rk.MeFBO(**rates, gamma_x=POWER, c=rk.Power(2.0, 0.1)), paper.mefbo,
            {**rates, "gamma_x": power, "c": lambda t: 2.0 * (t + 1) ** 0.1}, local_steps=steps)  # fmt: skip


def test_mefbo_constrained(bilevel):
    numpy_problem, problem, clients = bilevel
    problem = rk.Bilevel(small.upper, small.lower, x_set=rk.Box(-0.2, 0.4), y_set=rk.Simplex())
    rates = {"eta_x": 0.05, "eta_y": 0.1, "eta_theta": 0.07, "gamma_x": 0.6, "gamma_y": 0.2, "gamma_theta": 0.25, "nu": 1.5,
             "c": 2.0}  # fmt: skip
    compare((numpy_problem, problem, clients), rk.MeFBO(**rates), paper.mefbo,
            {**rates, "project_x": box, "project_y": simplex})  # fmt: skip


BIO = {"eta_x": 0.1, "eta_y": 0.12, "eta_z": 0.08}


@pytest.mark.parametrize(
    ("radius", "tie"),
    [(INF, False), slow(INF, True), (0.05, False), (0.05, True)],
    ids=["no ball-five batches", "no ball-tied", "ball-five batches", "ball-tied"],
)
def test_fedbio(bilevel, tie, radius):
    compare(bilevel, rk.FedBiO(**BIO, radius=radius, tie_batches=tie), paper.fedbio,
            {**BIO, "r": radius, "tie_batches": tie}, local_steps=RANDOM_STEPS)  # fmt: skip


ACC = {**BIO, "delta": 1.2, "c_x": 0.5, "c_y": 0.6, "c_z": 0.7}


@pytest.mark.parametrize(
    ("radius", "steps", "first"),
    [slow(INF, 1, 2), (INF, 3, None), slow(0.05, 1, 2), slow(0.05, 3, None)],
    ids=["no ball-1-2", "no ball-3-None", "ball-1-2", "ball-3-None"],
)
def test_fedbioacc(bilevel, steps, first, radius):
    compare(bilevel, rk.FedBiOAcc(**ACC, offset=4.0, first_batch=first, radius=radius), paper.fedbioacc,
            {**ACC, "u": 4.0, "first_batch": first or steps, "r": radius}, local_steps=steps)  # fmt: skip


def local_lower(bilevel):
    numpy_problem, _, clients = bilevel
    return numpy_problem, rk.Bilevel(small.upper, small.lower, lower_level="local"), clients


@pytest.mark.parametrize("steps", [slow(1), RANDOM_STEPS], ids=["one step", "unequal steps"])
def test_fedbio_local(bilevel, steps):
    compare(local_lower(bilevel), rk.FedBiOLocal(eta_x=0.1, eta_y=0.12, neumann_step=0.2, products=4), paper.fedbio_local,
            {"eta_x": 0.1, "eta_y": 0.12, "tau": 0.2, "Q": 4}, names={"x": "x"}, kept={"y": "y"},
            local_steps=steps)  # fmt: skip


@pytest.mark.parametrize("steps", [slow(1), 3])
def test_fedbioacc_local(bilevel, steps):
    rates = {"eta_x": 0.1, "eta_y": 0.12, "delta": 1.2, "c_x": 0.5, "c_y": 0.6}
    compare(local_lower(bilevel), rk.FedBiOAccLocal(**rates, offset=4.0, neumann_step=0.2, products=4, first_batch=2),
            paper.fedbioacc_local, {**rates, "u": 4.0, "tau": 0.2, "Q": 4, "first_batch": 2},
            names={"x": "x", "d_x": "d_x"}, kept={"y": "y", "d_y": "d_y"}, local_steps=steps)  # fmt: skip


SIM = {**BIO, "gamma_x": 0.06, "gamma_y": 0.05, "gamma_z": 0.04}


@pytest.mark.parametrize("radius", [INF, 0.05], ids=["no ball", "ball"])
def test_simfbo(bilevel, radius):
    compare(bilevel, rk.SimFBO(**SIM, radius=radius), paper.simfbo, {**SIM, "r": radius}, local_steps=RANDOM_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("rho", ["all", "active", 2.0])
def test_shrofbo(bilevel, rho):
    compare(bilevel, rk.ShroFBO(**SIM, rho=rho), paper.shrofbo, {**SIM, "rho": rho}, local_steps=RANDOM_STEPS)


@pytest.mark.parametrize(("ours", "theirs"), [(rk.ASFBO, paper.asfbo), (rk.LAASFBO, paper.la_asfbo)])
@pytest.mark.parametrize("rho", [slow("all"), "active"])
def test_asfbo(bilevel, ours, theirs, rho):
    rates = {**SIM, **CLIPS, "beta": 0.4, "rho": rho}
    compare(bilevel, ours(**rates, decay=0.7, epsilon=0.01), theirs, {**rates, "varrho": 0.7, "eps": 0.01},
            local_steps=RANDOM_STEPS)  # fmt: skip


CLIPS = {"clip_x": (0.01, 0.1), "clip_y": (0.03, 0.3), "clip_z": (0.02, 0.2)}


@pytest.mark.parametrize(
    ("ours", "theirs", "hyper", "renamed"),
    [
        (rk.FedBiO, paper.fedbio, BIO, {}),
        (rk.FedBiOAcc, paper.fedbioacc, {**ACC, "first_batch": 2}, {"offset": ("u", 4.0)}),
        (rk.SimFBO, paper.simfbo, SIM, {}),
        (rk.ShroFBO, paper.shrofbo, SIM, {}),
        (rk.ASFBO, paper.asfbo, {**SIM, **CLIPS, "beta": 0.4}, {"decay": ("varrho", 0.7), "epsilon": ("eps", 0.01)}),
        (
            rk.LAASFBO,
            paper.la_asfbo,
            {**SIM, **CLIPS, "beta": 0.4},
            {"decay": ("varrho", 0.7), "epsilon": ("eps", 0.01)},
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_local_steps_stay_in_the_sets(bilevel, ours, theirs, hyper, renamed):
    """Large steps: a client whose x or y left its set would be far off."""
    numpy_problem, _, clients = bilevel
    problem = rk.Bilevel(small.upper, small.lower, x_set=rk.Box(-0.2, 0.4), y_set=rk.Simplex())
    large = {**hyper, "eta_x": 5.0, "eta_y": 2.0}
    mine = {name: value for name, (_, value) in renamed.items()}
    printed = dict(renamed.values())
    compare((numpy_problem, problem, clients), ours(**large, **mine), theirs,
            {**large, **printed, "project_x": box, "project_y": simplex})  # fmt: skip


@pytest.mark.parametrize("accelerated", [False, True])
def test_local_steps_stay_in_the_sets_with_own_lower_levels(bilevel, accelerated):
    numpy_problem, _, clients = bilevel
    sets = {"x_set": rk.Box(-0.2, 0.4), "y_set": rk.Simplex()}
    problem = numpy_problem, rk.Bilevel(small.upper, small.lower, lower_level="local", **sets), clients
    rates, own = {"eta_x": 5.0, "eta_y": 2.0}, {"names": {"x": "x"}, "kept": {"y": "y"}}
    printed = {"tau": 0.2, "Q": 4, "project_x": box, "project_y": simplex}
    if not accelerated:
        compare(problem, rk.FedBiOLocal(**rates, neumann_step=0.2, products=4), paper.fedbio_local,
                {**rates, **printed}, **own)  # fmt: skip
        return
    more = {"delta": 1.2, "c_x": 0.5, "c_y": 0.6, "first_batch": 2}
    compare(problem, rk.FedBiOAccLocal(**rates, **more, offset=4.0, neumann_step=0.2, products=4), paper.fedbioacc_local,
            {**rates, **more, **printed, "u": 4.0}, **own)  # fmt: skip


GDA = {"eta_x": 0.1, "eta_y": 0.15}


@pytest.mark.parametrize("snapshot", [slow(1), 3])
def test_local_sgda_plus(minimax, snapshot):
    compare(minimax, rk.LocalSGDAPlus(**GDA, snapshot=snapshot), paper.local_sgda_plus, {**GDA, "S": snapshot},
            names={"x": "x", "y": "y", "snapshot": "x_tilde"}, local_steps=RANDOM_STEPS)  # fmt: skip


def constrained(minimax):
    numpy_problem, _, clients = minimax
    return numpy_problem, rk.Minimax(small.objective, x_set=rk.Box(-0.2, 0.4), y_set=rk.Simplex()), clients


@pytest.mark.parametrize("in_sets", [slow(False), True], ids=["free", "box and simplex"])
def test_fedsgda_plus(minimax, in_sets):
    hyper = {**GDA, "gamma_x": 1.4, "gamma_y": 0.8}
    sets = {"project_x": box, "project_y": simplex} if in_sets else {}
    compare(constrained(minimax) if in_sets else minimax, rk.FedSGDAPlus(**hyper, snapshot=3), paper.fedsgda_plus,
            {**hyper, "S": 3, **sets}, names={"x": "x", "y": "y", "snapshot": "x_tilde"},
            local_steps=RANDOM_STEPS)  # fmt: skip


@pytest.mark.parametrize("in_sets", [False, True], ids=["free", "box and simplex"])
@pytest.mark.parametrize("steps", [slow(1), RANDOM_STEPS], ids=["one step", "unequal steps"])
def test_fedsgda_m(minimax, in_sets, steps):
    hyper = {**GDA, "alpha": 0.4, "beta": 0.7, "first_batch": 2}
    sets = {"project_x": box, "project_y": simplex} if in_sets else {}
    compare(constrained(minimax) if in_sets else minimax, rk.FedSGDAM(**hyper), paper.fedsgda_m, {**hyper, **sets},
            local_steps=steps)  # fmt: skip


@pytest.mark.parametrize("inner", [1, 3])
@pytest.mark.parametrize("radius", [slow(INF), 0.02], ids=["no ball", "ball"])
def test_primal_dual(weighting, inner, radius):
    rates = {"eta_x": 0.02, "eta_w": 0.1, "eta_lambda": 0.15}
    compare(weighting, rk.PrimalDual(**rates, penalty=1.3, inner=inner, radius=radius), paper.primal_dual,
            {**rates, "Gamma": 1.3, "K": inner, "D_lambda": radius}, x0=np.full(CLIENTS, 1 / CLIENTS),
            participation=rk.Bernoulli(0.5), local_steps=1)  # fmt: skip


def test_primal_dual_random(weighting):
    rates = {"eta_x": 0.02, "eta_w": 0.1, "eta_lambda": 0.15}
    compare(weighting, rk.PrimalDualRandom(**rates, penalty=1.3, inner=3), paper.primal_dual,
            {**rates, "Gamma": 1.3, "K": 3, "random": True}, x0=np.full(CLIENTS, 1 / CLIENTS),
            participation=rk.Bernoulli(0.5), local_steps=1)  # fmt: skip
