"""Every attack against its formula in plain NumPy: who lies, from when on, and what honest clients upload stays."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import rookery as rk
from rookery.aggregation.attacks import Attack
from rookery.aggregation.robust import Rule
from rookery.algorithm.exchange import Algorithm, Exchange

N = 7
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((N, 3))
HONEST = np.array([True, False, True, True, False, True, False])
THERE = np.array([True] * 6 + [False])  # the last slot is empty, and not honest
KEY = jax.random.key(5)


def forged(attack, rows=ROWS, there=THERE, honest=HONEST):
    return np.asarray(attack.forged(*map(jnp.asarray, (rows, there, honest)), KEY))


# --- the formulas


def test_sign_flip():
    np.testing.assert_allclose(forged(rk.attacks.SignFlip(2)), -ROWS)
    np.testing.assert_allclose(forged(rk.attacks.SignFlip(2, scale=3.0)), -3 * ROWS)


def test_large_values():
    np.testing.assert_allclose(forged(rk.attacks.LargeValues(2, size=50.0)), np.full((N, 3), 50.0))


def test_inner_product():
    mean = ROWS[HONEST].mean(0)
    np.testing.assert_allclose(forged(rk.attacks.InnerProduct(2, scale=0.5)), np.tile(-0.5 * mean, (N, 1)))


def test_a_little_is_enough():
    """Of six participants two lie: s = ⌊6/2 + 1⌋ − 2 = 2 of four honest ones, z the quantile of (4 − 2)/4."""
    mean, deviation = ROWS[HONEST].mean(0), ROWS[HONEST].std(0)
    np.testing.assert_allclose(forged(rk.attacks.ALittle(2, deviations=1.5)), np.tile(mean - 1.5 * deviation, (N, 1)))
    np.testing.assert_allclose(forged(rk.attacks.ALittle(2)), np.tile(mean, (N, 1)), atol=1e-9)
    rows, there = RNG.standard_normal((50, 3)), np.ones(50, bool)
    honest = np.arange(50) >= 24  # the setting of the paper's table: n = 50, m = 24
    good = rows[honest]
    z = norm.ppf((50 - 24 - (50 // 2 + 1 - 24)) / (50 - 24))
    assert z > 1.3
    found = forged(rk.attacks.ALittle(24), rows, there, honest)
    np.testing.assert_allclose(found, np.tile(good.mean(0) - z * good.std(0), (50, 1)), rtol=1e-6)


def test_gaussian_noise_has_the_size_of_the_honest_uploads():
    rows = np.concatenate([3 * RNG.standard_normal((4, 20000)), np.full((1, 20000), 1e6)])
    honest = np.array([True] * 4 + [False])
    found = forged(rk.attacks.GaussianNoise(1, scale=2.0), rows, np.ones(5, bool), honest)
    noise = (found - rows)[honest] / (2 * np.sqrt((rows[honest] ** 2).mean()))
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    assert abs(np.corrcoef(noise[0], noise[1])[0, 1]) < 0.05, "each liar has noise of its own"


def test_a_label_flip_leaves_uploads_as_they_are_and_changes_examples():
    attack = rk.attacks.LabelFlip(2, flip=lambda b: {**b, "label": 9 - b["label"]})
    np.testing.assert_array_equal(forged(attack), ROWS)
    batch = {"input": jnp.ones((2, 3)), "label": jnp.array([0, 7], jnp.int32)}
    wrong = attack.poisoned(batch)
    np.testing.assert_array_equal(wrong["label"], [9, 2])
    assert wrong["label"].dtype == jnp.int32
    np.testing.assert_array_equal(wrong["input"], batch["input"])


# --- who, and when


def test_who_lies():
    listed = np.asarray(rk.attacks.SignFlip([1, 4]).liars(KEY, N))
    np.testing.assert_array_equal(np.flatnonzero(listed), [1, 4])
    drawn = [np.asarray(Attack(3).liars(jax.random.key(seed), N)) for seed in range(30)]
    assert all(each.sum() == 3 for each in drawn)
    assert len({tuple(each) for each in drawn}) > 5, "another key, other liars"
    np.testing.assert_array_equal(drawn[0], Attack(3).liars(jax.random.key(0), N))


def test_who_lies_may_be_numpys():
    assert rk.attacks.SignFlip(np.array([1, 4])).clients == (1, 4)
    assert rk.attacks.SignFlip(np.int64(2), start=np.int32(3)) == rk.attacks.SignFlip(2, start=3)


def test_when_they_begin():
    attack = rk.attacks.SignFlip([1, 4], start=3)
    ids = jnp.array([4, 0, 1])
    for round, lies in ((0, [False] * 3), (2, [False] * 3), (3, [True, False, True]), (9, [True, False, True])):
        np.testing.assert_array_equal(attack.lies(KEY, N, ids, round), lies)


class Probe(Algorithm):
    """The server writes down what it receives: rows as they are, and the mean of points near those broadcast."""

    solves = ("minimax",)

    def init(self, x, y):
        return {"x": x, "y": y, "rows": jnp.zeros((N, 2))}

    def round(self):
        weighting = {"rows": "stack", "y": "average"}
        return (Exchange(lambda server: {"x": server["x"], "y": server["y"]}, self.client, self.server, weighting),)

    def client(self, local, down):
        own = (local.id + 1.0) * jnp.array([1.0, -2.0])
        return {"rows": own, "y": down["y"] + own}

    def server(self, ctx, server, mean):
        place = jnp.where(ctx.mask, ctx.ids, N)  # there may be empty slots
        return {**server, "y": mean["y"], "rows": server["rows"].at[place].set(mean["rows"], mode="drop")}


def loss(x, y, batch):
    return (x @ x - y @ y + batch.sum() * x.sum()) / 2


CLIENTS = rk.Clients([np.full((1, 1), float(i)) for i in range(N)])
OWN = np.outer(np.arange(N) + 1.0, [1.0, -2.0])
Y0 = np.array([100.0, 200.0])


@pytest.mark.parametrize("engine", [None, rk.Simulator(clients_at_once=2), rk.Simulator(devices=2)])
def test_in_a_run_liars_are_forged_from_their_round_on_and_the_others_are_not(engine):
    attack = rk.attacks.SignFlip([1, 4], start=1, scale=2.0)
    task = rk.Minimax(loss), Probe(), CLIENTS, np.ones(2), Y0
    how = {"progress": False, "evaluate": lambda x, y: {}, "engine": engine}
    before = rk.solve(*task, rounds=1, attack=attack, **how)
    np.testing.assert_allclose(before.state.server["rows"], OWN)
    np.testing.assert_allclose(before.y, Y0 + OWN.mean(0))
    after = rk.solve(*task, rounds=2, attack=attack, **how)
    lies = OWN * np.where(np.isin(np.arange(N), [1, 4]), -2.0, 1.0)[:, None]
    np.testing.assert_allclose(after.state.server["rows"], lies)
    np.testing.assert_allclose(after.y, before.y + lies.mean(0), err_msg="it is the way that is turned round")


def test_under_privacy_a_lie_is_clipped_as_all_else_is():
    """Rows are ways then, clipped to 3; what is honest has not one bit changed by what is forged."""
    privacy = rk.ClientPrivacy(clip=3.0, noise=1e-9, delta=0.01)
    task = rk.Minimax(loss), Probe(), CLIENTS, np.ones(2), Y0
    how = {"progress": False, "evaluate": lambda x, y: {}, "rounds": 1, "privacy": privacy}
    short = OWN * np.minimum(1, 3 / np.linalg.norm(OWN, axis=1))[:, None]
    for attack, lie in ((rk.attacks.SignFlip([1], scale=9.0), -3 * OWN[1]), (rk.attacks.LargeValues([1]), np.ones(2))):
        rows = np.where((np.arange(N) == 1)[:, None], 3 * lie / np.linalg.norm(lie), short)
        found = rk.solve(*task, attack=attack, **how)
        np.testing.assert_allclose(found.y, Y0 + rows.mean(0), atol=1e-6)
        np.testing.assert_allclose(found.state.server["rows"], rows, atol=1e-6)


class Away(Probe):
    """Participants come from far away to points near zero."""

    def client(self, local, down):
        return {"rows": down["y"], "y": (local.id + 1.0) * jnp.array([1 / 3, 1 / 7])}


class AllButOne(Rule):
    """The sum of the others."""

    def mean(self, rows, weights, mask, centre):
        return rows.at[1].set(0).sum(0)


def test_what_is_honest_keeps_every_bit():
    """A way from what was broadcast is rounded, and a point that is made of it again would be too."""
    task = rk.Minimax(loss), Away(), CLIENTS, np.ones(2), 1e6 * np.array([1 / 3, 1 / 7])
    how = {"progress": False, "evaluate": lambda x, y: {}, "rounds": 1, "aggregate": AllButOne()}
    honest, lied = rk.solve(*task, **how), rk.solve(*task, **how, attack=rk.attacks.SignFlip([1]))
    np.testing.assert_array_equal(lied.y, honest.y)


def test_a_label_flip_in_a_run_is_honest_work_on_other_data():
    """Local SGDA with whole sets: the same as a run whose liars hold the flipped examples."""
    how = {"rounds": 3, "progress": False, "evaluate": lambda x, y: {}, "local_steps": 2}
    task = rk.Minimax(loss), rk.registry["Local SGDA"](eta_x=0.1, eta_y=0.1)
    attack = rk.attacks.LabelFlip([2, 5], flip=lambda b: 10.0 - b)
    found = rk.solve(*task, CLIENTS, np.ones(2), np.ones(2), attack=attack, **how)
    held = rk.Clients([np.full((1, 1), 10.0 - i if i in (2, 5) else float(i)) for i in range(N)])
    expected = rk.solve(*task, held, np.ones(2), np.ones(2), **how)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-12)
    assert not np.allclose(found.x, rk.solve(*task, CLIENTS, np.ones(2), np.ones(2), **how).x)


# --- bad input


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: rk.attacks.SignFlip(0), "clients must be a number of at least 1.*got 0"),
        (lambda: rk.attacks.SignFlip([]), "clients must be"),
        (lambda: rk.attacks.SignFlip([1, 1]), "clients must be"),
        (lambda: rk.attacks.SignFlip([-1]), "clients must be"),
        (lambda: rk.attacks.SignFlip(True), "clients must be"),
        (lambda: rk.attacks.SignFlip([1.7]), r"clients must be.*got \[1.7\]"),
        (lambda: rk.attacks.SignFlip(["1"]), r"clients must be.*got \['1'\]"),
        (lambda: rk.attacks.SignFlip([True]), r"clients must be.*got \[True\]"),
        (lambda: rk.attacks.SignFlip(np.array([0.5])), "clients must be.*got array"),
        (lambda: rk.attacks.SignFlip({1, 2}), "clients must be.*got {1, 2}"),
        (lambda: rk.attacks.SignFlip(0.2), "clients must be.*got 0.2"),
        (lambda: rk.attacks.SignFlip(1, start=-1), "start must be a round.*got -1"),
        (lambda: rk.attacks.SignFlip(1, start=1.5), "start must be"),
        (lambda: rk.attacks.SignFlip(1, scale=0), "scale must be a positive number, got 0"),
        (lambda: rk.attacks.GaussianNoise(1, scale=-1.0), "scale must be"),
        (lambda: rk.attacks.LargeValues(1, size=float("inf")), "size must be"),
        (lambda: rk.attacks.ALittle(1, deviations=0.0), "deviations must be"),
        (lambda: rk.attacks.InnerProduct(1, scale="1"), "scale must be"),
        (lambda: rk.attacks.LabelFlip(1), "LabelFlip needs flip"),
        (lambda: Attack(7).check(7), "leave one of the 7 clients honest, got 7"),
        (lambda: Attack([3, 9]).check(7), "in 0..6, got 9"),
    ],
)
def test_bad_values_are_named(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_what_is_no_function_is_no_flip():
    with pytest.raises(TypeError, match="flip must be a function"):
        rk.attacks.LabelFlip(1, flip=3)
