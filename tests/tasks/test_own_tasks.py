"""Tasks on arrays of one's own: who holds what, what trains and what does not."""

from collections import Counter
from functools import cache

import equinox as eqx
import jax
import numpy as np
import pytest

import rookery as rk
from rookery.datasets import from_arrays
from rookery.tasks import RECIPES
from tests.helpers.own_data import GROUPS, KINDS, patients

ROWS = patients()
SITE = np.array([row["site"] for row in ROWS])
CHECKED = np.array([row["ok"] == "yes" for row in ROWS])
KIND = np.array([row["kind"] for row in ROWS])
GROUP = np.array([row["group"] for row in ROWS])
FEATURES = np.array([[float(row["age"]), float(row["dose"]), number] for number, row in enumerate(ROWS)])
"""The last feature tells which row it is."""

SMALL = {
    "hyper-representation": {"hidden": 3},
    "data-cleaning": {},
    "loss-tuning": {"model": "linear"},
    "few-shot": {"queries": 1, "tasks": 2, "test_tasks": 3, "model": "mlp:4"},
    "fair-classification": {"model": "linear"},
    "auroc": {"positive": "bad", "model": "linear"},
    "client-weighting": {"model": "linear"},
}
VALIDATES = ("hyper-representation", "data-cleaning", "loss-tuning")
"""Tasks where each client validates on its own checked labels."""


@cache
def plain(name):
    """The task as it is; drawing a network takes longer than all else here."""
    return make(name)


def make(name, **how):
    labels = GROUP if name == "few-shot" else KIND
    given = {"clients": SITE, "checked": None if name in ("few-shot", "auroc", "fair-classification") else CHECKED}
    return RECIPES[name](FEATURES, labels, **{**given, **SMALL[name], **how})


def rows_of(data, part, client=None):
    """The user's row numbers of what a client of a task holds, from its last feature."""
    train = data.train_inputs[:, 2].astype(np.float64)
    slope, start = np.polyfit(train, data.train_rows, 1)
    whole = part.data if client is None else part.take(client, np.arange(int(part.size[client])))
    found = start + slope * np.asarray(whole["input"])[:, 2]
    rows = np.round(found).astype(int)
    assert np.abs(found - rows).max() < 0.01
    return rows, np.asarray(whole["label"])


def data_of(name):
    labels = GROUP if name == "few-shot" else KIND
    checked = None if name in ("few-shot", "auroc", "fair-classification") else CHECKED
    return from_arrays(FEATURES, labels, clients=SITE, checked=checked)


@pytest.mark.parametrize("name", SMALL)
def test_clients_are_those_of_the_client_column_and_hold_their_own_rows(name):
    task, data = plain(name), data_of(name)
    assert task.clients.n == 3
    for client, site in enumerate(("north", "south", "west")):
        for part in (task.clients.lower, task.clients.upper):
            rows, labels = rows_of(data, part, client)
            assert set(SITE[rows]) == {site}
            assert set(rows) <= set(data.train_rows.tolist())
            if name == "auroc":
                np.testing.assert_array_equal(labels, KIND[rows] == "bad")
            elif name != "few-shot":  # whose labels are those of a task
                np.testing.assert_array_equal(np.array(KINDS)[labels], KIND[rows])


@pytest.mark.parametrize("name", VALIDATES)
def test_checked_rows_validate_and_nothing_is_lost(name):
    task, data = plain(name), data_of(name)
    parts = task.clients.lower, task.clients.upper
    lower, upper = (np.concatenate([rows_of(data, part, client)[0] for client in range(3)]) for part in parts)
    assert not CHECKED[lower].any()
    assert CHECKED[upper].all()
    assert sorted([*lower, *upper]) == sorted(data.train_rows)
    assert CHECKED[data.test_rows].all()  # what is judged by is right as well


def test_the_server_holds_the_checked_rows_and_clients_the_others():
    task, data = plain("client-weighting"), data_of("client-weighting")
    server, labels = rows_of(data, task.clients.server)
    assert sorted(server) == sorted(row for row in data.train_rows if CHECKED[row])
    np.testing.assert_array_equal(np.array(KINDS)[labels], KIND[server])
    held = np.concatenate([rows_of(data, task.clients.lower, client)[0] for client in range(3)])
    assert sorted([*held, *server]) == sorted(data.train_rows)


def test_few_shot_trains_on_no_class_that_it_is_judged_by():
    task, data = plain("few-shot"), data_of("few-shot")
    judged = [rows_of(data, _flat(part)) for part in (task.evaluate.test, task.evaluate.validation)]
    test, validation = ({GROUP[row] for row in rows} for rows, _ in judged)
    own = {GROUP[row] for client in range(3) for row in rows_of(data, task.clients.lower, client)[0]}
    assert (len(own), len(test), len(validation)) == (2, 2, 2)
    assert own | test | validation == set(GROUPS)


def _flat(tasks):
    inputs = tasks.support.reshape(-1, tasks.support.shape[-1])
    return rk.Split({"input": inputs, "label": np.zeros(len(inputs))}, [np.arange(len(inputs))])


@pytest.mark.parametrize("name", SMALL)
def test_what_trains_does_not_depend_on_the_test_part(name):
    """Neither data nor scales nor start, in a run and in a search for rates."""
    labels = GROUP if name == "few-shot" else KIND
    others = np.random.default_rng(0).normal(1e4, 1e3, (60, 3)), np.roll(labels, 1)[:60]
    first, second = (make(name, test=test) for test in ((FEATURES[:60], labels[:60]), others))
    for one, two in ((first, second), (first.apart(), second.apart())):
        same = eqx.tree_equal(*((task.problem, task.clients, task.x0, task.y0) for task in (one, two)))
        assert bool(same)
    assert not eqx.tree_equal(first.evaluate, second.evaluate)
    if name != "few-shot":  # which holds out classes, not rows
        assert bool(eqx.tree_equal(first.apart().evaluate, second.apart().evaluate))


@pytest.mark.parametrize("name", [name for name in SMALL if name != "few-shot"])
def test_held_out_rows_are_training_rows_that_do_not_train(name):
    """Rates are judged by rows that are neither in the test part nor trained on."""
    data, apart = data_of(name), data_of(name).held_out()
    assert set(apart.test_rows) < set(data.train_rows.tolist())
    assert not set(apart.test_rows) & set(apart.train_rows.tolist())
    task = plain(name).apart()
    held = [rows_of(apart, part, client)[0] for part in (task.clients.lower, task.clients.upper) for client in range(3)]
    assert not set(np.concatenate(held)) & {*apart.test_rows, *data.test_rows}


def test_planted_noise_changes_labels_of_training_rows_alone():
    task, data = make("data-cleaning", noise=0.4, always_wrong=True), data_of("data-cleaning")
    rows, labels = map(
        np.concatenate, zip(*(rows_of(data, task.clients.lower, client) for client in range(3)), strict=True)
    )
    wrong = np.array(KINDS)[labels] != KIND[rows]
    assert wrong.sum() == round(0.4 * len(rows))
    rows, labels = map(
        np.concatenate, zip(*(rows_of(data, task.clients.upper, client) for client in range(3)), strict=True)
    )
    np.testing.assert_array_equal(np.array(KINDS)[labels], KIND[rows])
    table = task.learned(task.x0, task.y0).tables["weights.csv"]
    sample = table["sample"].astype(int)
    np.testing.assert_array_equal(table["given_label"] != KIND[sample], table["planted_wrong"])
    assert table["planted_wrong"].sum() == wrong.sum()


def test_a_bad_client_has_random_labels_and_is_told():
    task, data = make("client-weighting", noisy=1), data_of("client-weighting")
    for client in range(3):
        rows, labels = rows_of(data, task.clients.lower, client)
        assert (np.array(KINDS)[labels] != KIND[rows]).any() == (client == 2)
    table = task.learned(task.x0, task.y0).tables["clients.csv"]
    sizes = Counter(SITE[[row for row in data.train_rows if not CHECKED[row]]])
    assert [tuple(row[:2]) for row in table.rows] == [(site, sizes[site]) for site in ("north", "south", "west")]
    assert table["planted_noise"].tolist() == [False, False, True]


def test_classes_are_counted_as_the_user_calls_them():
    for name in ("loss-tuning", "fair-classification"):
        task, data = plain(name), data_of(name)
        table = task.learned(task.x0, task.y0).tables["class_weights.csv"]
        counts = Counter(KIND[data.train_rows])
        assert list(zip(table["class"], table["training_examples"], strict=True)) == [
            (kind, counts[kind]) for kind in KINDS
        ]


def test_without_clients_rows_are_dealt_out_and_the_number_may_be_given():
    task = rk.tasks.data_cleaning(FEATURES, KIND, clients=4)
    assert task.clients.n == 4
    assert int(task.clients.lower.size.sum() + task.clients.upper.size.sum()) == 144 // 4 * 4
    assert rk.tasks.data_cleaning(FEATURES, KIND).clients.n == rk.tasks.data_cleaning.own.clients


def test_a_task_solves_as_rk_solve_does_and_looks_at_it():
    task = plain("data-cleaning")
    rates = rk.MeFBO(gamma_x=10.0)
    solution = task.solve(rates, rounds=2, batch_size=8)
    same = rk.solve(
        task.problem, rates, task.clients, task.x0, task.y0, rounds=2, evaluate=task.evaluate, metric="accuracy",
        higher_is_better=True, batch_size=8,
    )  # fmt: skip
    np.testing.assert_array_equal(solution.x, same.x)
    weights = task.look(solution).tables["weights.csv"]
    order = np.argsort(np.asarray(solution.x), kind="stable")
    np.testing.assert_allclose(weights["weight"], np.asarray(jax.nn.sigmoid(solution.x))[order])
    assert (np.diff(weights["weight"]) >= 0).all()


BAD = {
    "a client without checked labels": (
        "data-cleaning", {"checked": CHECKED & (SITE != "west")}, "client 'west' has no checked label"),
    "a client that has checked all": (
        "data-cleaning", {"checked": CHECKED | (SITE == "west")}, "client 'west' has no unchecked label"),
    "all of a client's rows at the server": (
        "client-weighting", {"checked": CHECKED | (SITE == "west")}, "client 'west' has no example that the server does"),
    "one class at a client": (
        "auroc", {"clients": np.where(KIND == "bad", "a", "b")}, "client 'a' has positive labels only: auroc needs"),
    "a class that is not there": ("auroc", {"positive": "worst"}, "positive: there is no 'worst'; did you mean 'worse'?"),
    "nothing negative": ("auroc", {"positive": "bad, mild, worse"}, "positive must leave a class that is negative"),
    "few examples": ("few-shot", {"queries": 40}, "client 'north' has 0 classes with 41 examples each"),
    "an option": ("data-cleaning", {"nois": 0.1}, "data-cleaning: there is no 'nois'; did you mean 'noise'?"),
    "a fraction beside checks": ("loss-tuning", {"validation": 0.2}, "validation must not be given where labels were"),
    "a model for images": ("fair-classification", {"model": "cnn"}, "model cnn is for images"),
    "judge": ("fair-classification", {"judge": "luck"}, "judge must be 'accuracy' or 'worst_accuracy', got 'luck'"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case):
    name, how, message = BAD[case]
    with pytest.raises(ValueError, match="^" + message.replace("(", r"\(").replace("?", r"\?")) as told:
        make(name, **how)
    assert "\n" not in str(told.value)


def test_few_shot_needs_classes_enough_and_synthetic_tasks_take_no_data():
    with pytest.raises(ValueError, match="few-shot needs at least 6 classes, and data has 3"):
        rk.tasks.few_shot(FEATURES, KIND)
    with pytest.raises(ValueError, match="quadratic-bilevel takes no data of your own"):
        RECIPES["quadratic-bilevel"](FEATURES, KIND)
