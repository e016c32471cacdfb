"""Robust rules in whole runs: the same in every engine, the mean where all agree, what they refuse, and what they break."""

import warnings
from collections import defaultdict
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from itertools import combinations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.aggregation.robust import robust_sum
from rookery.algorithm.intake import Intake
from rookery.engines.flower.engine import Over
from rookery.engines.flower.wire.transport import Direct
from rookery.solving.prepare import prepare, single
from tests.engines.flower.test_flower import Case, assert_close
from tests.helpers import parity
from tests.helpers.marks import quick_ones, slow

N = parity.N
HOW = {"rounds": 3, "progress": False, "evaluate": parity.nothing}
RULES = {
    "TrimmedMean": rk.TrimmedMean(0.2), "Median": rk.Median(), "GeometricMedian": rk.GeometricMedian(8), "Krum": rk.Krum(1),
    "MultiKrum": rk.MultiKrum(1, 3), "NormClip": rk.NormClip("median"), "CenteredClip": rk.CenteredClip(0.1, 3),
}  # fmt: skip
ALGORITHMS = ("FedBiO", "MeFBO", "FedBiOAcc", "FedSGDA-M", "CODASCA", "PrimalDual", "FedNest")
PAIRS = list(zip(ALGORITHMS, RULES, strict=True))
"""Each algorithm and each rule once: a rule comes after all uploads have met, and is then the same everywhere."""
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def solved(name, **more):
    task, how = parity.make_case(name)
    return rk.solve(*task, **{**how, "participation": 5, **HOW, **more})


# --- one answer everywhere


@pytest.mark.slow
@pytest.mark.parametrize(("name", "rule"), PAIRS)
def test_groups_devices_and_lanes_are_as_robust_as_one_device(name, rule):
    more = {"aggregate": RULES[rule], "attack": rk.attacks.GaussianNoise(2, start=1)}
    plain = solved(name, **more)
    for engine in (rk.Simulator(clients_at_once=2), rk.Simulator(devices=2)):
        other = solved(name, **more, engine=engine)
        np.testing.assert_allclose(other.x, plain.x, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(other.y, plain.y, rtol=1e-9, atol=1e-11)
    task, how = parity.make_case(name)
    how = {**how, "participation": 5, **HOW, **more}
    key = how.pop("key")
    lanes = rk.solve_many(*task, keys=[key, 5], **how)
    np.testing.assert_allclose(lanes.x[0], plain.x, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(lanes.y[0], plain.y, rtol=1e-9, atol=1e-11)
    assert not np.allclose(lanes.y[1], plain.y), "another key has other liars and other lies"


@pytest.mark.parametrize("name", [name if name in ("FedBiO", "PrimalDual") else slow(name) for name in ALGORITHMS])
def test_nodes_are_as_robust_as_the_simulator(name):
    case = Case(rk.registry[name](), participation=3)
    how = {"rounds": 3, "every": 3, "aggregate": rk.Median()}
    expected = rk.solve(*case.task, **case.how, **how)
    found = rk.solve(*case.task, **case.how, **how, engine=Over(transport=Direct(case.nodes())))
    assert_close((found.x, found.y), (expected.x, expected.y))
    plain = rk.solve(*case.task, **case.how, rounds=3, every=3)
    assert not np.allclose(plain.y, found.y, atol=1e-6), "the rule does something"


MOMENTA = {"FedSGDA-M": {"u", "v"}, "Momentum Local SGDA": {"d_x", "d_y"}}
"""What is broadcast, renewed by clients and averaged, and not an iterate."""


@pytest.mark.parametrize("name", quick_ones(rk.registry, {"FedBiOAcc", "FedBiOAcc-Local"}))
def test_a_part_with_the_name_of_what_was_broadcast_is_what_became_of_it(name, monkeypatch):
    """With next to no steps it is the same: else clips and lies would go by the way from a point to a direction."""
    ways = defaultdict(float)

    def leaving(intake, up):
        for part, each in up.items():
            if intake.weighting(part) == "average" and part in intake._down:
                way = jnp.abs(each - intake.centre(part, each)).max()
                jax.debug.callback(lambda far, part=part: ways.update({part: max(ways[part], float(far))}), way)
        return up

    monkeypatch.setattr(Intake, "leaving", leaving)
    task, how = parity.make_case(name)
    rates = {field.name: 1e-9 for field in fields(task[1]) if field.name.startswith(("eta", "gamma"))}
    rk.solve(task[0], replace(task[1], **rates), *task[2:], **{**how, **HOW, "rounds": 1})
    jax.effects_barrier()
    far = {part for part, way in ways.items() if way > 1e-5}
    assert far == MOMENTA.get(name, set()), dict(ways)


# --- where all agree, a rule is the mean


def of_equals(algorithm, participation=None, **more):
    """Clients that all hold the same, with whole sets."""
    box, data = rk.Box(-1.0, 1.0), parity.examples(3, 4)
    kind = {
        "bilevel": rk.Bilevel(parity.upper, parity.lower, box, box),
        "minimax": rk.Minimax(parity.objective, box, box),
    }
    task = kind[algorithm.solves[0]], algorithm, rk.Clients([data] * N), np.array([0.6, -0.4]), np.array([0.8, 0.3])
    return rk.solve(*task, **HOW, participation=participation, **more)


mean_of_equals = cache(of_equals)


@pytest.mark.parametrize("rule", quick_ones(RULES, {"TrimmedMean", "GeometricMedian", "MultiKrum", "CenteredClip"}))
def test_among_equal_clients_every_rule_is_the_mean(rule):
    """In directions of which five of seven take part, their weights summing to n/|C|·Σ p_i; and in momenta."""
    chosen = rk.NormClip(100.0) if rule == "NormClip" else RULES[rule]
    for algorithm, participation in ((rk.registry["SimFBO"](), 5), (rk.registry["FedSGDA-M"](), None)):
        found, expected = (
            of_equals(algorithm, participation, aggregate=chosen),
            mean_of_equals(algorithm, participation),
        )
        np.testing.assert_allclose(found.x, expected.x, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(found.y, expected.y, rtol=1e-10, atol=1e-12)
        assert not np.allclose(found.y, [0.8, 0.3]), "something moves"


def test_what_clients_keep_makes_equal_clients_differ():
    """CODASCA's control variates: who has not taken part yet has none, so that a rule is not the mean even among equals."""
    codasca = rk.registry["CODASCA"]()
    np.testing.assert_allclose(of_equals(codasca, None, aggregate=rk.Median()).x, of_equals(codasca).x, rtol=1e-10)
    assert np.abs(of_equals(codasca, 5, aggregate=rk.Median()).x - of_equals(codasca, 5).x).max() > 0.01


def test_a_rule_saves_what_an_attack_spoils():
    honest, how = solved("FedBiO", participation=None), {"participation": None, "attack": rk.attacks.LargeValues([1])}
    spoiled, saved = solved("FedBiO", **how), solved("FedBiO", **how, aggregate=rk.TrimmedMean(0.2))
    distance = [float(jnp.linalg.norm(each.y - honest.y)) for each in (spoiled, saved)]
    assert distance[1] < 0.5 * distance[0], distance


# --- what rules say and refuse


def prepared(name, **more):
    task, how = parity.make_case(name)
    prepare(single(*task, **{**how, "participation": 5, **more}))


def test_a_rule_says_where_it_does_not_know_weights_and_what_it_does_not_protect():
    with pytest.warns(UserWarning, match="Krum takes one upload as it is and does not know the weights"):
        prepared("FedBiO", aggregate=rk.Krum(1))
    with pytest.warns(
        UserWarning, match="PrimalDual asks for slope of every participant, which Median does not protect"
    ):
        prepared("PrimalDual", aggregate=rk.Median())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared("FedBiO", aggregate=rk.Median())


def test_a_rule_says_when_it_protects_nobody():
    """Weights are 1/28, 2/28, … 7/28: of the five lightest and the heaviest 7/17 may be one client's."""
    with pytest.warns(UserWarning, match=r"one client may have 41% of the weight, and TrimmedMean bears 20%"):
        prepared("FedBiO", aggregate=rk.TrimmedMean(0.2))
    with pytest.warns(UserWarning, match="fewer than 3 participants Median protects nobody.*may be only 2"):
        prepared("FedBiO", aggregate=rk.Median(), participation=2)
    with pytest.warns(UserWarning, match=r"may be only 1 under rk.Bernoulli\(0.5\); rk.Uniform"):
        prepared("FedBiO", aggregate=rk.GeometricMedian(), participation=rk.Bernoulli(0.5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared("FedBiO", aggregate=rk.TrimmedMean(0.45))
        prepared("FedBiO", aggregate=rk.NormClip(1.0), participation=2)


def test_an_attack_says_when_it_is_none():
    with pytest.warns(UserWarning, match="it starts in round 3, and there are rounds 0..2 only"):
        prepared("FedBiO", attack=rk.attacks.SignFlip(2, start=3), rounds=3)
    with pytest.warns(UserWarning, match="so few of 5 participants lie that the paper's ALittle does not move"):
        prepared("FedBiO", attack=rk.attacks.ALittle(1))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared("FedBiO", attack=rk.attacks.ALittle(1, deviations=1.5), rounds=3)
        prepared("FedBiO", attack=rk.attacks.ALittle(3), rounds=3)


LOSS = rk.Minimax(parity.objective)
REFUSED = {
    "f is half": (lambda: refused(aggregate=rk.Krum(2)), "needs at least 7 participants.*only 5"),
    "n = 2f + 2": (lambda: refused(participation=4, aggregate=rk.Krum(1)), "at least 5 participants .2f . 3.*only 4"),
    "m is too large": (lambda: refused(aggregate=rk.MultiKrum(1, 5)), "m = 5 uploads, but of 5 participants 1 may lie"),
    "f of MultiKrum": (lambda: refused(aggregate=rk.MultiKrum(2, 1)), "needs at least 7"),
    "too few to trim": (lambda: refused(participation=2, aggregate=rk.TrimmedMean(0.2)), "at least 5 participants.*only 2"),
    "not even one is cut off": (lambda: refused(participation=4, aggregate=rk.TrimmedMean(0.2)), "not even one.*only 4"),
    "anybody may be missing": (
        lambda: refused(participation=rk.Bernoulli(0.9), aggregate=rk.Krum(1)),
        r"may be only 1 under rk.Bernoulli\(0.9\); rk.Uniform\(k\) fixes their number",
    ),
    "a record with few": (
        lambda: refused(participation=rk.Replay([[0, 1, 2, 3, 4], [0, 1]]), aggregate=rk.Krum(1)), "only 2"
    ),
    "all clients lie": (lambda: refused(attack=rk.attacks.SignFlip(N)), f"leave one of the {N} clients honest, got {N}"),
    "more lie than there are": (lambda: refused(attack=rk.attacks.SignFlip(N + 3)), f"got {N + 3}"),
    "a client that is not": (lambda: refused(attack=rk.attacks.SignFlip([N])), f"in 0..{N - 1}, got {N}"),
    "no labels": (
        lambda: refused(attack=rk.attacks.LabelFlip(1, flip=lambda b: {**b, "label": 9 - b["label"]})),
        "flip cannot take a batch of the upper data, {a: float64.*KeyError: 'label'",
    ),
    "another batch": (
        lambda: refused(attack=rk.attacks.LabelFlip(1, flip=lambda b: {"a": b["a"]})), "flip must return a batch like"
    ),
    "another shape": (
        lambda: refused(attack=rk.attacks.LabelFlip(1, flip=lambda b: {**b, "s": b["a"]})), "flip must return a batch like"
    ),
    "f and privacy": (
        lambda: refused(aggregate=rk.Median(), privacy=rk.ClientPrivacy(clip=1.0, noise=1.0, delta=1e-3)),
        "privacy goes with the weighted mean alone",
    ),
}  # fmt: skip


def refused(**more):
    clients, start = parity.make_clients(), (np.array([0.6, -0.4]), np.array([0.8, 0.3]))
    rk.solve(LOSS, rk.registry["Local SGDA"](), clients, *start, **{"participation": 5, **HOW, **more})


@pytest.fixture
def nothing_is_compiled(monkeypatch):
    def advance(*_):
        raise AssertionError("it got as far as the compiled loop")

    monkeypatch.setattr(import_module("rookery.engines.simulator"), "advance", advance)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_before_anything_starts(case, nothing_is_compiled):
    make, words = REFUSED[case]
    with pytest.raises(ValueError, match=words):
        make()


BY_NAME = {
    "attack": ({"attack": rk.attacks.SignFlip(N)}, f"leave one of the {N} clients honest"),
    "no attack": ({"attack": "sign flip"}, "attack must be one of"),
    "rule": ({"aggregate": rk.Krum(3)}, "needs at least 9 participants"),
    "attack on nodes": (
        {"attack": rk.attacks.SignFlip(1), "engine": rk.Flower(nodes=3)},
        "attacks are for rk.Simulator",
    ),
}


@pytest.mark.parametrize("case", BY_NAME)
def test_no_search_is_made_for_what_is_refused(case, tmp_path, monkeypatch):
    def searched(*_, **__):
        raise AssertionError("it searched")

    monkeypatch.setattr("rookery.api.search_rates", searched)
    more, words = BY_NAME[case]
    task, how = parity.make_case("FedBiO")
    task, how = (task[0], "FedBiO", *task[2:]), {**how, "rounds": 3, **more}
    with pytest.raises((TypeError, ValueError), match=words):
        rk.solve(*task, **how)
    with pytest.raises((TypeError, ValueError), match=words):
        rk.run(*task, **how, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_can_be_gets_as_far_as_the_loop(nothing_is_compiled):
    flip = rk.attacks.LabelFlip(1, flip=lambda b: {**b, "b": -b["b"]})
    for more in ({"aggregate": rk.Krum(1)}, {"aggregate": rk.MultiKrum(1, 4)}, {"attack": flip}):
        with pytest.raises(AssertionError, match="compiled loop"):
            refused(**more)


def test_f_must_be_given_and_kinds_are_checked():
    for make in (rk.Krum, rk.MultiKrum, rk.TrimmedMean, lambda: rk.MultiKrum(1), rk.NormClip):
        with pytest.raises(TypeError, match="missing"):
            make()
    with pytest.raises(TypeError, match="aggregate must be a rule such as"):
        refused(aggregate="median")
    with pytest.raises(TypeError, match=r"attack must be one of rk.attacks"):
        refused(attack="sign flip")


def test_on_nodes_the_quorum_counts():
    case = Case(rk.FedBiO(), participation=4)
    engine = Over(transport=Direct(case.nodes()), quorum=0.5)
    with pytest.raises(ValueError, match=r"TrimmedMean\(0.3\) needs at least 4.*only 2.*quorum of 0.5 lets 2 pass"):
        rk.solve(*case.task, **case.how, rounds=1, aggregate=rk.TrimmedMean(0.3), engine=engine)
    with pytest.warns(UserWarning, match=r"3 participants Median protects nobody, and the quorum of 0.5 lets 2 pass"):
        prepare(single(*case.task, **case.how, aggregate=rk.Median(), engine=engine))


# --- what rules break


SAMPLES = 4
"""Of each client; x has a weight for each sample of all clients."""


def weighted_fit(x, y, batch):
    return (x[batch["i"]] * (y[0] - batch["t"]) ** 2).mean() + 0.05 * y @ y


def clean_fit(x, y, batch):
    return ((y[0] - batch["t"]) ** 2).mean()


def cleaning():
    """Data cleaning in small: the last sample of each client is wrong."""
    data = [{"i": np.arange(SAMPLES * k, SAMPLES * (k + 1)), "t": np.array([1.0, 1.0, 1.0, -5.0])} for k in range(N)]
    checked = [{"i": np.zeros(2, int), "t": np.ones(2)} for _ in range(N)]
    clients = rk.Clients(data, checked)
    return rk.Bilevel(clean_fit, weighted_fit, rk.Box(0.0, 1.0)), clients, np.full(N * SAMPLES, 0.5), np.zeros(1)


@pytest.mark.parametrize("name", ["FedBiO", "MeFBO", slow("SimFBO"), slow("FedBiOAcc")])
def test_a_median_of_directions_that_are_each_clients_own_is_nothing(name):
    """Each client moves the weights of its own samples only: of seven numbers six are 0 (or x as it was)."""
    problem, clients, x0, y0 = cleaning()
    how = {**HOW, "rounds": 20}
    algorithm = rk.registry[name]()
    cleaned = rk.solve(problem, algorithm, clients, x0, y0, **how)
    moved = np.abs(np.asarray(cleaned.x) - x0).reshape(N, SAMPLES)
    assert moved[:, -1].min() > 1e-4, "the mean moves all wrong samples"
    for rule in (rk.Median(), rk.TrimmedMean(0.2)):
        found = rk.solve(problem, algorithm, clients, x0, y0, **how, aggregate=rule)
        np.testing.assert_allclose(found.x, x0, atol=1e-14, err_msg="x does not move at all")
        assert not np.allclose(found.y, y0), "y does"
    few = rk.solve(problem, algorithm, clients, x0, y0, **{**how, "rounds": 3}, aggregate=rk.Krum(2))
    touched = (np.abs(np.asarray(few.x) - x0).reshape(N, SAMPLES).max(1) > 1e-12).sum()
    assert 1 <= touched <= 3, "Krum moves one client's a round"


def test_distances_do_not_see_the_sign_of_directions_that_are_each_clients_own():
    """Of rows without a common place ‖u − v‖² = ‖u‖² + ‖v‖²: Krum's scores are those of honest rows, however many flip.
    Where rows have something in common, as those of a network have, it leaves the liars out."""
    rng = np.random.default_rng(0)
    lies = np.where(np.arange(N) < 2, -1.0, 1.0)
    apart = np.kron(np.eye(N), np.ones(SAMPLES)) * rng.uniform(0.5, 1.5, N * SAMPLES)
    together = 1 + 0.1 * rng.standard_normal((N, SAMPLES))

    def taken(rows):
        """Whose rows MultiKrum takes: each has a number of its own in the last place, too small to matter."""
        marked = np.concatenate([rows * lies[:, None], 1e-9 * np.eye(N)], 1)
        given = marked, np.full(N, 1 / N), np.ones(N, bool), np.zeros(marked.shape[1])
        return np.flatnonzero(np.asarray(robust_sum(rk.MultiKrum(2, 5), *map(jnp.asarray, given)))[-N:])

    flipped = taken(apart)
    lies = np.ones(N)
    np.testing.assert_array_equal(flipped, taken(apart))
    lies = np.where(np.arange(N) < 2, -1.0, 1.0)
    np.testing.assert_array_equal(taken(together), np.arange(2, N))


def test_survivors_times_the_mass_do_not_average_to_the_sum():
    """A direction's weights sum to (n/|C|)Σ p_i, which only on average is 1. Over all draws the weighted sums average to
    Σ p_i u_i; those of a median do not, even where nobody lies, and not because of the mass."""
    p, u = np.array([0.05, 0.05, 0.1, 0.2, 0.6]), np.array([[0.0], [1.0], [2.0], [3.0], [10.0]])
    draws = [np.array(each) for each in combinations(range(5), 3)]

    def mean_over_draws(sum_of):
        return np.mean([sum_of(u[ids], 5 / 3 * p[ids]) for ids in draws])

    def by(rule):
        return lambda rows, weights: float(
            robust_sum(rule, *map(jnp.asarray, (rows, weights, np.ones(3, bool), np.zeros(1))))[0]
        )

    truth = float(p @ u[:, 0])
    np.testing.assert_allclose(mean_over_draws(lambda rows, weights: float(weights @ rows[:, 0])), truth)
    assert abs(mean_over_draws(by(rk.NormClip(100.0))) / truth - 1) < 1e-9, "a clip that does nothing is the sum"
    biases = {str(rule): mean_over_draws(by(rule)) / truth - 1 for rule in (rk.Median(), rk.TrimmedMean(0.3))}
    assert all(abs(bias) > 0.02 for bias in biases.values()), biases


def skewed(x, y, batch):
    return 0.5 * x @ x - batch.mean() * x.sum() - 0.5 * y @ y


@pytest.mark.parametrize("name", ["Local SGDA", "FedSGDA-M", "CODASCA"])
def test_where_clients_differ_a_median_solves_another_problem(name):
    """min ½x² − E[b]x, one b a client: the mean gives their mean, the median their median, with momenta too."""
    b = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 4.0])
    clients = rk.Clients([np.full((1, 1), each) for each in b])
    task = rk.Minimax(skewed), rk.registry[name](), clients, np.zeros(1), np.zeros(1)
    how = {**HOW, "rounds": 400, "local_steps": 2}
    np.testing.assert_allclose(rk.solve(*task, **how).x, b.mean(), atol=0.02)
    np.testing.assert_allclose(rk.solve(*task, **how, aggregate=rk.Median()).x, np.median(b), atol=0.02)


def client_fit(w, batch):
    return 0.5 * ((w - batch) ** 2).sum(1).mean()


class MinusFive(rk.attacks.LargeValues):
    """Every number is −5."""

    def forged(self, rows, there, honest, key):
        return jnp.full_like(rows, -5.0)


def test_a_rule_does_not_protect_the_rows_that_a_server_asks_for():
    """PrimalDual moves each client's weight by the number that it sends itself: a liar asks for weight and gets all of it.
    A median by weight then listens to it alone, though it is one of seven."""
    clients = rk.Clients([np.full((4, 1), 1.0)] * N, server=np.full((4, 1), 1.0))
    algorithm = rk.registry["PrimalDual"](eta_x=0.1, eta_w=0.1, eta_lambda=0.1)
    task = rk.ClientWeighting(client_fit), algorithm, clients, None, np.zeros(1)
    how = {**HOW, "rounds": 5, "aggregate": rk.Median()}
    honest, lied = rk.solve(*task, **how), rk.solve(*task, **how, attack=MinusFive([N - 1]))
    np.testing.assert_allclose(honest.x, 1 / N)
    np.testing.assert_allclose(lied.x, np.eye(N)[-1], atol=1e-12)
    assert lied.y[0] > honest.y[0] + 1, (lied.y, honest.y)
