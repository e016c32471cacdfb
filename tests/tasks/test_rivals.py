"""Simple rivals: against plain NumPy, and what they must not see."""

from dataclasses import replace

import numpy as np
import pytest

import rookery as rk
from rookery.tasks import rivals
from rookery.tasks.rivals import DROPPED, FURTHER, STEPS, Effort, Rival, hold, suspicion
from tests.helpers.own_data import patients

ROWS = patients(108)
FEATURES = np.array([[float(row["age"]), float(row["dose"])] for row in ROWS])
KIND = np.array([row["kind"] for row in ROWS])
SITE = np.array([row["site"] for row in ROWS])
CHECKED = np.array([row["ok"] == "yes" for row in ROWS])
ROUNDS = 4


@pytest.fixture(scope="module")
def task():
    """Cleaning of a linear model, 40 % of the labels wrong."""
    return rk.tasks.data_cleaning(FEATURES, KIND, clients=SITE, checked=CHECKED, noise=0.4, always_wrong=True)


@pytest.fixture(scope="module")
def results(task):
    return task.rivals(rounds=ROUNDS, batch_size=None)


def logits(network, inputs):
    weight, bias = network
    found = inputs.astype(float) @ weight + bias
    return found - found.max(1, keepdims=True)  # long steps are tried too


def losses(network, inputs, labels):
    out = logits(network, inputs)
    return np.log(np.exp(out).sum(1)) - out[np.arange(len(labels)), labels]


def descent(contest, held, weights, step, rounds=ROUNDS):
    """Federated averaging with one local step on whole sets, which is gradient descent: softmax regression in NumPy."""
    weights = weights / weights[np.concatenate(held)].mean()
    network = np.asarray(contest.network.weight), np.asarray(contest.network.bias)
    for _ in range(rounds):
        slopes = [np.zeros_like(each) for each in network]
        for rows in held:
            inputs, labels = contest.inputs[rows].astype(float), contest.labels[rows]
            out = np.exp(logits(network, inputs))
            away = out / out.sum(1, keepdims=True) - np.eye(out.shape[1])[labels]
            away *= weights[rows, None] / len(rows)
            slopes[0] += inputs.T @ away / len(held)
            slopes[1] += away.sum(0) / len(held)
        network = tuple(each - step * slope for each, slope in zip(network, slopes, strict=True))
    return network


def judged(contest, network):
    test = contest.evaluate.score
    inputs, labels = np.asarray(test.inputs), np.asarray(test.labels)
    return {
        "accuracy": np.mean(logits(network, inputs).argmax(1) == labels),
        "loss": losses(network, inputs, labels).mean(),
    }


def weights_of(contest, rival):
    return np.ones(len(contest.labels)) if rival.weights is None else rival.weights


def best_step(apart, rival):
    """The step with the least held-out loss; where it lies at an edge, two more are tried there, some times."""
    tried = {}
    wanted = list(STEPS)
    for _ in range(FURTHER + 1):
        for step in wanted:
            trained = descent(apart, rival.held, weights_of(apart, rival), step)
            tried[step] = judged(apart, trained)["loss"]
        best = min(tried, key=tried.get)
        wanted = [best * 3, best * 10] if best == max(tried) else [best / 3, best / 10] if best == min(tried) else []
    return best


@pytest.mark.slow
def test_each_rival_is_plain_descent_with_the_best_step_tried(task, results):
    apart = task.apart().contest
    assert [each.name for each in results] == [
        "plain federated averaging", "validation data alone", "without the wrong labels", "drop by a pooled model's loss"
    ]  # fmt: skip
    for rival, held_out, result in zip(task.contest.rivals, apart.rivals, results, strict=False):
        step = best_step(apart, held_out)
        expected = judged(task.contest, descent(task.contest, rival.held, weights_of(task.contest, rival), step))
        for name, value in expected.items():
            np.testing.assert_allclose(
                result.metrics[name], [value], rtol=1e-9 if name == "loss" else 1e-7, err_msg=rival.name
            )
    assert [each.ceiling for each in results] == [False, False, True, False]


@pytest.mark.slow
def test_the_ranking_rival_leaves_out_the_share_that_held_out_data_like_best(task, results):
    whole, apart = task.contest, task.apart().contest
    step = best_step(apart, apart.rivals[0])
    effort = Effort(ROUNDS, (0,), batch_size=None)

    def without(contest, share):
        loss = suspicion(contest, effort, step)
        worst = contest.ranked[np.argsort(-loss[contest.ranked])][: round(share * len(contest.ranked))]
        weights = np.ones(len(contest.labels))
        weights[worst] = 0
        return judged(contest, descent(contest, contest.rivals[0].held, weights, step))

    share = min(DROPPED, key=lambda each: without(apart, each)["loss"])
    np.testing.assert_allclose(results[3].metrics["loss"], [without(whole, share)["loss"]], rtol=1e-9)
    assert f"without the {share:.0%} of the samples" in results[3].what
    loss, wrong = suspicion(whole, effort, step)[whole.ranked], whole.truth
    pairs = loss[wrong][:, None] - loss[~wrong]
    area = np.mean((pairs > 0) + 0.5 * (pairs == 0))
    np.testing.assert_allclose(results[3].metrics["suspicion_auroc"], [area])


def test_rivals_train_on_what_they_say(task):
    plain, alone, known = task.contest.rivals
    lower, upper = task.clients.lower, task.clients.upper
    rows = [np.asarray(part.rows(client, np.arange(int(part.size[client])))) for part in (lower, upper)
            for client in range(3)]  # fmt: skip
    for client in range(3):
        assert sorted(plain.held[client]) == sorted([*rows[client], *rows[3 + client]])
    assert [sorted(each) for each in alone.held] == [sorted(np.concatenate(rows[3:]))]
    assert known.held is plain.held
    assert set(np.flatnonzero(known.weights == 0)) == set(np.concatenate(rows[:3])[task.contest.truth])


def only(contest, rival, effort):
    """What one rival reaches with one step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rivals, "STEPS", (0.3,))
        patch.setattr(rivals, "FURTHER", 0)
        alone = replace(contest, rivals=[rival], ranked=None, truth=None, exhibits=None)
        return hold([alone], alone, effort, "loss", False)[0].metrics


@pytest.mark.slow
def test_no_weight_is_no_influence_and_alone_is_alone(task):
    contest, effort = task.contest, Effort(ROUNDS)
    plain, alone, known = contest.rivals
    left_out = np.flatnonzero(known.weights == 0)
    other = contest.labels.copy()
    other[left_out] = (other[left_out] + 1) % 3
    changed = replace(contest, labels=other)
    assert only(contest, known, effort) == only(changed, known, effort)
    assert only(contest, plain, effort) != only(changed, plain, effort)
    strange = contest.inputs.copy()
    strange[np.setdiff1d(np.arange(len(other)), alone.held[0])] = 1e6
    poisoned = replace(contest, inputs=strange, labels=other)
    assert only(contest, alone, effort) == only(poisoned, alone, effort)


@pytest.mark.slow
def test_a_rival_is_rk_solve_with_fedavg_and_seeds_are_lanes(task):
    contest, rival = task.contest, task.contest.rivals[0]
    effort = Effort(ROUNDS, (3, 4), rk.Uniform(2), 2, (5, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rivals, "STEPS", (0.3,))
        patch.setattr(rivals, "FURTHER", 0)
        both = replace(contest, rivals=[rival], ranked=None, exhibits=None)
        found = hold([both, both], both, effort, "loss", False)[0].metrics
    loss = rivals._Weighted(contest.scaling)
    data = {"input": contest.inputs, "label": contest.labels.astype(np.int32), "j": np.arange(len(contest.labels))}
    for place, seed in enumerate(effort.seeds):
        single = rk.solve(
            rk.Bilevel(loss, loss), rk.FedAvg(eta_y=0.3), rk.Clients(rk.Split(data, rival.held)),
            np.ones(len(contest.labels)), contest.network, rounds=ROUNDS, key=seed, participation=rk.Uniform(2),
            local_steps=2, batch_size=5, evaluate=lambda x, y: contest.evaluate(y),
        )  # fmt: skip
        for name in ("accuracy", "loss"):
            np.testing.assert_allclose(found[name][place], single.history.last[name], rtol=1e-12)
    assert found["loss"][0] != found["loss"][1]


@pytest.mark.slow
def test_suspicion_is_out_of_fold():
    """Of two classes a model that never saw an example has e^-loss of both labels sum to 1, whichever was given."""
    labels = np.where(KIND == "bad", 1, 0)
    contest = rk.tasks.data_cleaning(FEATURES, labels, clients=SITE, checked=CHECKED).contest
    effort, before = Effort(ROUNDS), suspicion(contest, Effort(ROUNDS), 1.0)
    trained = np.concatenate(contest.rivals[0].held)
    assert (before[trained] > 0).all()
    for row in trained[:3]:
        other = contest.labels.copy()
        other[row] = 1 - other[row]
        after = suspicion(replace(contest, labels=other), effort, 1.0)
        np.testing.assert_allclose(np.exp(-before[row]) + np.exp(-after[row]), 1, rtol=1e-12)
        assert (np.delete(after, row) != np.delete(before, row)).any()  # the others have seen it


def test_class_balancing_gives_each_class_the_same_weight():
    task = rk.tasks.fair_classification(FEATURES[20:], np.sort(KIND)[20:], clients=SITE[20:], model="linear")
    plain, balanced = task.contest.rivals
    sums = np.bincount(task.contest.labels, balanced.weights)
    np.testing.assert_allclose(sums, sums[0])
    assert len(set(np.bincount(task.contest.labels))) > 1
    assert plain.weights is None
    assert plain.held is balanced.held


def test_a_rival_that_diverges_is_no_best_and_has_no_number(task):
    contest = replace(task.contest, ranked=None, exhibits=None, rivals=[Rival("a", "b", task.contest.rivals[0].held)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rivals, "STEPS", (0.1, 1e200))
        patch.setattr(rivals, "FURTHER", 0)
        (found,) = hold([contest], contest, Effort(ROUNDS), "loss", False)
    expected = judged(contest, descent(contest, contest.rivals[0].held, np.ones(len(contest.labels)), 0.1))
    np.testing.assert_allclose(found.metrics["loss"], [expected["loss"]], rtol=1e-9)
    assert replace(found, metrics={"loss": [float("inf")]}).tables()["metrics"] == {"loss": [None]}


def test_every_task_of_one_s_own_has_plain_averaging_first():
    groups = np.array([row["group"] for row in ROWS])
    made = {
        "few_shot": rk.tasks.few_shot(FEATURES, groups, clients=2, queries=1, tasks=2, test_tasks=2, model="linear"),
        "auroc": rk.tasks.auroc(FEATURES, KIND, clients=SITE, positive="bad", model="linear"),
        "client_weighting": rk.tasks.client_weighting(
            FEATURES, KIND, clients=SITE, checked=CHECKED, model="linear", noisy=1
        ),
    }
    contest = made["few_shot"].contest.training()
    assert [each.name for each in contest.rivals] == ["plain federated averaging"]
    names = [each.name for each in made["client_weighting"].contest.rivals]
    assert names == ["equal weights", "the server's data alone", "without the bad clients"]
    bad = made["client_weighting"].contest.rivals[2]
    np.testing.assert_array_equal(np.flatnonzero(bad.weights == 0), bad.held[2])
    assert [each.name for each in made["auroc"].contest.rivals] == ["plain cross-entropy", "class balancing"]
