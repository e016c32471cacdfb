"""Fair classification, AUROC, client weighting and the synthetic tasks: losses, splits, metrics, and that they learn."""

import inspect
import os

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import rookery as rk
from rookery.algorithms.registry import by_name
from rookery.datasets import Dataset, digits, load
from rookery.problem.measures import Losses, hypergradient
from rookery.problem.participation import Bernoulli
from rookery.tasks.fairness import FAIR_CLASSIFICATION, fair_classification
from rookery.tasks.inputs import area_under_curve
from rookery.tasks.quadratic import QUADRATIC_BILEVEL, QUADRATIC_MINIMAX, quadratic_bilevel, quadratic_minimax
from rookery.tasks.ranking import AUROC, auroc
from rookery.tasks.toy_weighting import TOY_WEIGHTING, NoisyLoss, loss, toy_weighting
from rookery.tasks.trust import CLIENT_WEIGHTING, client_weighting

RECIPES = [FAIR_CLASSIFICATION, AUROC, CLIENT_WEIGHTING, TOY_WEIGHTING, QUADRATIC_BILEVEL, QUADRATIC_MINIMAX]

needs_data = pytest.mark.skipif(
    not os.path.isdir(os.environ.get("ROOKERY_DATA", "")), reason="set ROOKERY_DATA to a folder with MNIST's files"
)


@pytest.fixture(scope="module")
def data():
    return digits()


def numbered(train=600, test=40):
    """A data set whose images tell their number, with labels 0..9 in turn."""

    def part(count, first):
        numbers = np.arange(first, first + count)
        images = np.zeros((count, 8, 8), np.uint8)
        images[:, 0, 0], images[:, 0, 1] = numbers // 256, numbers % 256
        return images, (numbers % 10).astype(np.int32)

    return Dataset("numbered", *part(train, 0), *part(test, train), 0.0, 1.0)


def numbers_of(images):
    images = np.asarray(images).astype(int)
    return 256 * images[:, 0, 0] + images[:, 0, 1]


def held(split):
    """What each client holds: a list of dictionaries."""
    return [
        jax.tree.map(np.asarray, split.take(i, jnp.arange(int(split.size[i])))) for i in range(split.clients)
    ]  # fmt: skip


def solve_default(recipe, data, rounds, seeds=(0, 1), **changes):
    """The recipe's first defaults with fewer rounds, its seeds the lanes of one program: (history, tasks)."""
    defaults = next(iter(recipe.defaults.values()))
    options = {**defaults.options, **changes}
    tasks = [recipe.make(data, clients=defaults.clients, seed=seed, **options) for seed in seeds]
    solution = rk.solve_many(
        tasks[0].problem,
        by_name(defaults.algorithm)(**defaults.rates[defaults.algorithm]),
        [task.clients for task in tasks],
        rk.Lanes([task.x0 for task in tasks]),
        rk.Lanes([task.y0 for task in tasks]),
        rounds=rounds,
        every=rounds,
        keys=list(seeds),
        participation=defaults.participants,
        local_steps=defaults.local_steps,
        batch_size=defaults.batch_size,
        evaluate=rk.Lanes([task.evaluate for task in tasks]),
    )
    assert not solution.diverged
    return solution.history, tasks


# --- fair classification ----------------------------------------------------------------------------------------------


def log_softmax(logits):
    logits = logits - logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


@pytest.mark.slow
def test_fair_objective_is_the_mean_over_clients_of_weighted_class_losses():
    data = numbered(127)  # neither clients nor classes are of one size
    task = fair_classification(data, clients=3, seed=1)
    y = np.random.default_rng(0).dirichlet(np.ones(10))
    expected = 0.0
    for own in held(task.clients.upper):
        images = (own["input"][..., None].astype(float) - data.mean) / data.deviation
        scores = log_softmax(np.asarray(task.x0(jnp.asarray(images))))
        losses = -scores[np.arange(len(scores)), own["label"]]
        expected += sum(y[c] * losses[own["label"] == c].mean() for c in range(10)) / 3
    ours = Losses(task.problem, task.clients)(task.x0, jnp.asarray(y))["objective"]
    np.testing.assert_allclose(ours, expected, rtol=1e-6)  # the weights of examples are stored in single precision


def test_fair_clients_hold_equal_parts_of_every_class():
    task = fair_classification(numbered(), clients=6, seed=2)
    parts = held(task.clients.upper)
    assert [np.bincount(own["label"]).tolist() for own in parts] == [[10] * 10] * 6
    np.testing.assert_array_equal(np.concatenate([own["weight"] for own in parts]), 10)
    assert len(np.unique(np.concatenate([numbers_of(own["input"]) for own in parts]))) == 600


@pytest.mark.slow
def test_fair_score_by_hand():
    """The worst class is that with the smallest share of right answers."""
    task = fair_classification(numbered(), clients=6)
    score = task.evaluate(task.x0, task.y0)
    logits = np.asarray(task.x0(jnp.asarray(numbered().test_inputs[..., None].astype(float))))
    labels = numbered().test_labels
    right = logits.argmax(1) == labels
    np.testing.assert_allclose(score["accuracy"], right.mean())
    np.testing.assert_allclose(score["worst_accuracy"], min(right[labels == c].mean() for c in range(10)))
    np.testing.assert_allclose(score["loss"], -log_softmax(logits)[np.arange(40), labels].mean())


@pytest.mark.slow
def test_fair_classification_learns(data):
    history, _ = solve_default(FAIR_CLASSIFICATION, data, rounds=10)
    assert (history["accuracy"][0] < 0.3).all()
    assert (history["accuracy"][-1] > 0.8).all()
    assert (history["worst_accuracy"][-1] > 0.4).all()


# --- AUROC ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [2, 7, 10_000])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_area_under_curve(levels, dtype):
    """Few levels: many ties."""
    rng = np.random.default_rng(levels)
    labels = (rng.random(500) < 0.3).astype(int)
    scores = (rng.integers(0, levels, 500) / levels + 0.2 * labels * (levels > 2) - 0.5).astype(dtype)
    ours = area_under_curve(jnp.asarray(scores), jnp.asarray(labels))
    np.testing.assert_allclose(ours, roc_auc_score(labels, scores), rtol=1e-6 if dtype == np.float32 else 1e-12)


def test_area_under_curve_at_the_ends():
    labels = jnp.array([1, 0, 1, 0])
    assert area_under_curve(jnp.array([2.0, 1.0, 3.0, 0.0]), labels) == 1
    assert area_under_curve(jnp.array([-2.0, 1.0, -3.0, 0.0]), labels) == 0
    assert area_under_curve(jnp.zeros(4), labels) == 0.5


def test_auroc_loss_and_its_optimum():
    """The formula term by term, and at a = E[h|+], b = E[h|−], w = b − a the value π(1−π)(E[(1 − h₊ + h₋)²] − 1)."""
    task = auroc(numbered(), clients=4, seed=3)
    parts = held(task.clients.upper)
    images = np.concatenate([own["input"] for own in parts])[..., None].astype(float)
    label = np.concatenate([own["label"] for own in parts])
    h = 1 / (1 + np.exp(-np.asarray(task.x0["net"](jnp.asarray(images)))[:, 0]))
    pi = label.mean()
    objective = Losses(task.problem, task.clients)

    def ours(a, b, w):
        return float(objective({**task.x0, "a": jnp.asarray(a), "b": jnp.asarray(b)}, jnp.asarray(w))["objective"])

    def formula(a, b, w):
        plus, minus = label == 1, label == 0
        own = (1 - pi) * (h - a) ** 2 * plus + pi * (h - b) ** 2 * minus
        return np.mean(own + 2 * (1 + w) * (pi * h * minus - (1 - pi) * h * plus)) - pi * (1 - pi) * w**2

    np.testing.assert_allclose(ours(0.3, -0.2, 0.7), formula(0.3, -0.2, 0.7), rtol=1e-10)
    a, b = h[label == 1].mean(), h[label == 0].mean()
    best = pi * (1 - pi) * (np.mean((1 - h[label == 1][:, None] + h[label == 0]) ** 2) - 1)
    np.testing.assert_allclose(ours(a, b, b - a), best, rtol=1e-8)


def test_auroc_data():
    """Negatives are classes 0–4, of which a fifth is left; nothing is dropped from the test images."""
    task = auroc(numbered(), clients=6, seed=1)
    parts = held(task.clients.upper)
    numbers, label = (np.concatenate(list(each)) for each in zip(
        *((numbers_of(own["input"]), own["label"]) for own in parts), strict=True
    ))  # fmt: skip
    assert (label == (numbers % 10 >= 5)).all()
    assert len(np.unique(numbers)) == len(numbers) == 360
    assert label.sum() == 300
    assert [len(own["label"]) for own in parts] == [60] * 6
    assert task.problem.objective.prior == pytest.approx(300 / 360)
    assert task.evaluate.ranked.labels.shape == (40,)
    other = np.concatenate(
        [numbers_of(own["input"]) for own in held(auroc(numbered(), clients=6, seed=2).clients.upper)]
    )
    assert set(other) != set(numbers)


@pytest.mark.slow
def test_auroc_learns(data):
    history, tasks = solve_default(AUROC, data, rounds=10)
    assert (history["auroc"][0] < 0.85).all()
    assert (history["auroc"][-1] > 0.9).all()
    task = tasks[0]
    images = (data.test_inputs[..., None].astype(float) - data.mean) / data.deviation
    scores = 1 / (1 + np.exp(-np.asarray(task.x0["net"](jnp.asarray(images)))[:, 0]))
    np.testing.assert_allclose(history["auroc"][0][0], roc_auc_score(data.test_labels >= 5, scores), rtol=1e-10)


# --- client weighting -------------------------------------------------------------------------------------------------


def test_client_weighting_data():
    task = client_weighting(numbered(), clients=8, validation=6, share=50, seed=1)
    server = numbers_of(task.clients.server.data["input"])
    assert np.bincount(task.clients.server.data["label"]).tolist() == [6] * 10
    assert len(set(server)) == 60
    parts = held(task.clients.lower)
    assert [sorted(set(own["label"].tolist())) for own in parts[:3]] == [[0, 1, 2, 3, 4], [5, 6, 7], [8, 9]]
    assert [len(own["label"]) for own in parts] == [270, 162, 108, 50, 50, 50, 50, 50]
    for own in parts[:3]:
        assert (own["label"] == numbers_of(own["input"]) % 10).all()
    clean = np.concatenate([numbers_of(own["input"]) for own in parts[:3]])
    assert set(clean) | set(server) == set(range(600))
    assert len(clean) == 540
    for own in parts[3:]:
        numbers = numbers_of(own["input"])
        assert len(set(numbers)) == 50
        assert not set(numbers) & set(server)
        assert 0 <= (own["label"] == numbers % 10).mean() < 0.4  # a tenth by chance
    assert set(numbers_of(parts[3]["input"])) != set(numbers_of(parts[4]["input"]))
    np.testing.assert_array_equal(task.x0, np.full(8, 1 / 8))


def test_client_weighting_iid_data():
    task = client_weighting(numbered(), iid=True, validation=6, share=80, clients=10, seed=1, oracle=True)
    parts = held(task.clients.lower)
    assert [len(own["label"]) for own in parts] == [80] * 10
    for number, own in enumerate(parts):
        right = (own["label"] == numbers_of(own["input"]) % 10).mean()
        assert right == 1 if number < 5 else right < 0.4
    clean = np.concatenate([numbers_of(own["input"]) for own in parts[:5]])
    assert len(set(clean)) == 400
    np.testing.assert_allclose(task.x0, [0.2] * 5 + [0] * 5)


def test_oracle_weights():
    task = client_weighting(numbered(), clients=6, validation=6, share=50, oracle=True)
    np.testing.assert_allclose(task.x0, [0.5, 0.3, 0.2, 0, 0, 0])
    numbers = task.evaluate(task.x0, task.y0)
    assert numbers["noise"] == 0
    assert numbers["x2"] == pytest.approx(0.3)


@pytest.mark.slow
def test_client_weighting_seeds_in_one_program(data):
    history, tasks = solve_default(CLIENT_WEIGHTING, data, rounds=20)
    np.testing.assert_allclose(history["noise"][0], 0.7)
    np.testing.assert_allclose(sum(history[f"x{i}"][-1] for i in range(1, 11)), 1)
    assert (history["loss"][-1] < history["loss"][0] - 0.01).all()
    labels = [np.asarray(task.clients.lower.data["label"])[-840:] for task in tasks]
    assert (labels[0] != labels[1]).mean() > 0.8  # the noise of a seed is its own


@pytest.mark.slow
def test_client_weighting_learns_whom_to_trust(data):
    """All clients alike would give less than half of the accuracy after as many rounds."""
    history, _ = solve_default(CLIENT_WEIGHTING, data, rounds=300)
    assert (history["accuracy"][0] < 0.3).all()
    assert (history["accuracy"][-1] > 0.85).all()
    assert (history["noise"][-1] < 0.1).all()


# --- the toy ----------------------------------------------------------------------------------------------------------


def test_toy_functions_are_strongly_convex_and_as_large_as_they_should_be():
    tasks = [toy_weighting(seed=seed) for seed in range(6)]
    functions = [task.clients.lower.data for task in tasks] + [task.clients.server.data for task in tasks]
    every = {name: np.concatenate([each[name] for each in functions]) for name in "ABab"}
    assert every["A"].shape == (96, 30, 20)
    curvature = np.einsum("nri,nrj->nij", every["A"], every["A"]) - every["a"][:, :, None] * every["a"][:, None]
    assert np.linalg.eigvalsh(curvature).min() >= 0.1
    assert len(np.unique(every["b"])) == 96
    for name, variance, tolerance in (("A", 20**-0.5, 0.05), ("B", 30**-0.5, 0.1), ("b", 1, 0.5)):
        np.testing.assert_allclose(np.var(every[name]), variance, rtol=tolerance)
    assert 0.5 * 20**-0.5 < np.var(every["a"]) < 20**-0.5  # those that are convex enough have a small a


def test_toy_loss():
    task, w = toy_weighting(seed=1), np.random.default_rng(0).standard_normal(20)
    own = held(task.clients.lower)[2]
    A, B, a, b = (own[name][0] for name in "ABab")
    expected = 0.5 * np.sum((A @ w - B) ** 2) + np.cos(a @ w - b)
    np.testing.assert_allclose(loss(jnp.asarray(w), own), expected, rtol=1e-12)


def test_toy_noise():
    """None on the value; on the gradient and on the Hessian white, of mean 0 and deviation 0.5, and independent."""
    own, w = held(toy_weighting(seed=1).clients.lower)[0], jnp.ones(20)
    noisy = NoisyLoss(0.5)

    def errors(key):
        slope, matrix = jax.grad(noisy)(w, own, key), jax.hessian(noisy)(w, own, key)
        return noisy(w, own, key), slope - jax.grad(loss)(w, own), matrix - jax.hessian(loss)(w, own)

    value, slope, matrix = jax.jit(jax.vmap(errors))(jax.random.split(jax.random.key(0), 500))
    np.testing.assert_allclose(value, loss(w, own), rtol=1e-12)
    np.testing.assert_allclose(np.std(slope), 0.5, rtol=0.03)
    np.testing.assert_allclose(np.mean(slope, 0), 0, atol=5 * 0.5 / 500**0.5)
    np.testing.assert_allclose(matrix, np.swapaxes(matrix, 1, 2), atol=1e-12)
    np.testing.assert_allclose(np.std(matrix, 0), 0.5, rtol=0.2)
    np.testing.assert_allclose(np.mean(matrix, 0), 0, atol=5 * 0.5 / 500**0.5)
    together = np.corrcoef(np.concatenate([np.asarray(slope), np.asarray(matrix)[:, 0]], 1).T)
    assert np.abs(together - np.eye(40)).max() < 5 / 500**0.5


def test_toy_measures_are_without_noise():
    plain, noisy = toy_weighting(seed=1), toy_weighting(seed=1, noise=0.5)
    assert eqx.tree_equal((plain.evaluate, plain.x0, plain.y0), (noisy.evaluate, noisy.x0, noisy.y0))
    assert "key" not in inspect.signature(plain.problem.loss).parameters
    assert "key" in inspect.signature(noisy.problem.loss).parameters


@pytest.mark.slow
def test_toy_is_solved():
    history, _ = solve_default(TOY_WEIGHTING, None, rounds=300)
    assert (history["stationarity"][0] > 0.5).all()
    assert (history["stationarity"][-1] < 0.01).all()
    np.testing.assert_allclose(history["step"][-1], 0.001 * history["stationarity"][-1])
    assert (history["value"][-1] < history["value"][0]).all()
    assert history["value"][0][0] != history["value"][0][1]  # seeds are instances


@pytest.mark.slow
def test_toy_with_noise_and_half_of_the_clients():
    task = toy_weighting(seed=1, noise=0.5)
    solution = rk.solve(
        task.problem, rk.PrimalDual(eta_x=0.003, eta_w=0.03, eta_lambda=0.03), task.clients, task.x0, task.y0, rounds=500,
        participation=Bernoulli(0.5), evaluate=task.evaluate, every=500,
    )  # fmt: skip
    before, after = solution.history["stationarity"]
    assert 0.001 < after < 0.5 * before  # better, but not solved


# --- quadratics -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [quadratic_bilevel, quadratic_minimax])
def test_quadratic_solution(make):
    """∇Φ by Newton and conjugate gradients: curvature (x − x*) everywhere, with y*(x*) at the solution."""
    task = make(clients=4, dimension=5, seed=3)
    score = task.evaluate
    np.testing.assert_allclose(np.linalg.eigvalsh(score.curvature)[0], 0.5)
    at = jax.jit(lambda x: hypergradient(task.problem, task.clients, x, task.y0))
    exact = at(score.x)
    np.testing.assert_allclose(exact.gradient, 0, atol=1e-9)
    np.testing.assert_allclose(exact.y, score.y, atol=1e-9)
    x = jnp.asarray(np.random.default_rng(0).standard_normal(5))
    exact = at(x)
    np.testing.assert_allclose(exact.gradient, score.curvature @ (x - score.x), atol=1e-9)
    found = score(x, score.y)
    np.testing.assert_allclose(found["hypergradient"], np.linalg.norm(exact.gradient))
    np.testing.assert_allclose(found["distance"], np.linalg.norm(x - score.x))
    assert found["distance_y"] == 0


@pytest.mark.parametrize("make", [quadratic_bilevel, quadratic_minimax])
def test_quadratic_clients_are_as_unlike_as_is_asked_for(make):
    same, unlike = make(spread=0.0).clients.lower.data, make(spread=1.0).clients.lower.data
    for name in same:
        assert np.ptp(same[name], axis=0).max() < 1e-12
        assert np.std(unlike[name], axis=0).mean() > 0.05


@pytest.mark.parametrize("make", [quadratic_bilevel, quadratic_minimax])
def test_one_instance_for_all_seeds_and_numbers_of_clients_has_noise_of_its_own(make):
    one, other = (make(clients=n, seed=n, spread=0.0, examples=4, noise=2.0, instance=7) for n in (2, 5))
    np.testing.assert_allclose(one.evaluate.x, other.evaluate.x, rtol=1e-12)
    np.testing.assert_allclose(one.evaluate.curvature, other.evaluate.curvature, rtol=1e-12)
    a, b = (task.clients.lower.data["a"] for task in (one, other))
    assert not np.isin(a, b).any()
    np.testing.assert_allclose(a[:4].mean(0), b[:4].mean(0))
    np.testing.assert_array_equal(one.evaluate.x, make(clients=2, seed=7, spread=0.0).evaluate.x)
    assert not np.allclose(one.evaluate.x, make(clients=2, seed=8, spread=0.0).evaluate.x)


@pytest.mark.parametrize("make", [quadratic_bilevel, quadratic_minimax])
def test_noise_is_of_the_stated_size_and_changes_neither_means_nor_the_solution(make):
    plain, noisy = (make(clients=3, dimension=4, seed=5, **how) for how in ({}, {"examples": 200, "noise": 0.7}))
    np.testing.assert_allclose(noisy.evaluate.x, plain.evaluate.x, atol=1e-12)
    np.testing.assert_allclose(noisy.evaluate.y, plain.evaluate.y, atol=1e-12)
    np.testing.assert_allclose(noisy.evaluate.curvature, plain.evaluate.curvature, atol=1e-12)
    every = {name: np.asarray(part).reshape(3, 200, *part.shape[1:]) for name, part in noisy.clients.lower.data.items()}
    for name, part in every.items():
        own = np.asarray(plain.clients.lower.data[name])
        np.testing.assert_allclose(part.mean(1), own, atol=1e-12, err_msg="whole sets: as they were")
        if own.ndim == 3:
            np.testing.assert_array_equal(part, own[:, None].repeat(200, 1))
        else:
            spread = part - own[:, None]
            assert np.sqrt((spread**2).mean()) == pytest.approx(0.7, rel=0.05)
            assert np.abs(np.corrcoef(spread[0].T)[np.triu_indices(4, 1)]).max() < 0.3, "every entry has its own"
    loss = noisy.problem.upper if make is quadratic_bilevel else noisy.problem.objective
    x, y = np.random.default_rng(0).standard_normal((2, 4))
    slope = jax.jit(jax.grad(loss, (0, 1)))
    one = {name: jnp.asarray(part[1]) for name, part in every.items()}
    by_example = jax.vmap(lambda k: jnp.stack(slope(x, y, {name: part[k, None] for name, part in one.items()})))
    gradients = np.asarray(by_example(jnp.arange(200)))
    np.testing.assert_allclose(gradients.mean(0), np.stack(slope(x, y, one)), atol=1e-12)
    assert gradients.std(0) == pytest.approx(np.full((2, 4), 0.7), rel=0.25), "of a minibatch of one"


def test_an_instance_is_of_its_seed_and_noise_of_each_run():
    same = [quadratic_bilevel(seed=seed, instance=7, examples=3, noise=0.5) for seed in (0, 1)]
    np.testing.assert_array_equal(same[0].evaluate.x, same[1].evaluate.x)
    assert np.abs(same[0].clients.lower.data["a"] - same[1].clients.lower.data["a"]).max() > 0.1
    other = quadratic_bilevel(seed=0, instance=8, examples=3, noise=0.5)
    assert np.abs(other.evaluate.x - same[0].evaluate.x).max() > 0.1
    few, many = (quadratic_minimax(seed=0, clients=clients, spread=0.0, instance=7) for clients in (2, 20))
    np.testing.assert_allclose(few.evaluate.x, many.evaluate.x, atol=1e-12, err_msg="alike clients, any number of them")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [QUADRATIC_BILEVEL, QUADRATIC_MINIMAX], ids=lambda recipe: recipe.name)
def test_quadratic_is_solved(recipe):
    history, _ = solve_default(recipe, None, rounds=50)
    assert (history["distance"][0] > 1).all()
    assert (history["distance"][-1] < 1e-3).all()
    assert (history["distance_y"][-1] < 1e-2).all()


# --- recipes, errors, real data ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_rates_fit_algorithms_for_the_task(recipe):
    kind = {"fair-classification": "minimax", "auroc": "minimax", "quadratic-minimax": "minimax"}.get(recipe.name)
    kind = kind or ("bilevel" if recipe.name == "quadratic-bilevel" else "weighting")
    for defaults in recipe.defaults.values():
        assert defaults.algorithm in defaults.rates
        assert set(defaults.options) <= set(recipe.options)
        for name, rates in defaults.rates.items():
            assert kind in rk.registry[name](**rates).solves


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: auroc(numbered(), dropped=1.0), r"dropped must be in \[0, 1\), got 1.0"),
        (lambda: client_weighting(numbered(), clients=3), "clients must be at least 4, got 3"),
        (lambda: client_weighting(numbered(), clients=1, iid=True), "clients must be at least 2, got 1"),
        (lambda: client_weighting(numbered(), validation=60), r"validation must be in 1..59 for numbered, got 60"),
        (lambda: client_weighting(numbered(), share=500), r"share must be in 1..400, .* got 500"),
        (lambda: toy_weighting(noise=-0.1), "noise must not be negative, got -0.1"),
        (lambda: toy_weighting(clients=0), "clients must be at least 1, got 0"),
        (lambda: quadratic_bilevel(dimension=0), "dimension must be at least 1, got 0"),
        (lambda: quadratic_minimax(spread=-1.0), "spread must be at least 0, got -1.0"),
        (lambda: quadratic_bilevel(examples=0), "examples must be at least 1, and 2 where there is noise, got 0"),
        (lambda: quadratic_minimax(noise=0.1), "examples must be at least 1, .* got 1 and noise=0.1"),
    ],
)
def test_bad_options(make, match):
    with pytest.raises(ValueError, match=match):
        make()


@pytest.mark.slow
@needs_data
def test_mnist_client_weighting():
    data = load("mnist")
    task = client_weighting(data, seed=1)
    counts = np.bincount(data.train_labels) - 20
    assert task.clients.lower.size.tolist() == [counts[:5].sum(), counts[5:8].sum(), counts[8:].sum(), *[5000] * 7]
    assert task.clients.server.size.tolist() == [200]
    assert sum(leaf.size for leaf in jax.tree.leaves(task.y0)) == 61706
    iid = client_weighting(data, iid=True, seed=1).clients.lower
    assert iid.size.tolist() == [9000] * 10
    noise = np.asarray(iid.data["label"])[45_000:]
    np.testing.assert_allclose(np.bincount(noise) / noise.size, 0.1, atol=0.01)


@needs_data
def test_fashion_mnist_minimax():
    data = load("fashion-mnist")
    fair = fair_classification(data)
    assert fair.clients.upper.size.tolist() == [3000] * 20
    assert np.unique(fair.clients.upper.data["weight"]).tolist() == [10]
    task = auroc(data)
    assert task.clients.upper.size.tolist() == [2250] * 16
    assert task.problem.objective.prior == pytest.approx(5 / 6)
    assert np.asarray(task.evaluate.ranked.labels).mean() == 0.5
