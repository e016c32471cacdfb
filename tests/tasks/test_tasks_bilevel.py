"""The bilevel tasks: who holds what, losses against plain formulas, and that their defaults learn."""

import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

import rookery as rk
from rookery.algorithms.registry import problem_class
from rookery.datasets import Dataset, Omniglot, digits, load, load_omniglot
from rookery.models.layers import MLP, ConvFeatures
from rookery.tasks.cleaning import DATA_CLEANING, DATA_CLEANING_ONE_CLASS, data_cleaning
from rookery.tasks.few_examples import FEW_SHOT, few_shot
from rookery.tasks.heads import Heads, adapted, nearest_mean_error
from rookery.tasks.imbalance import LOSS_TUNING, class_weights, loss_tuning
from rookery.tasks.representation import HYPER_REPRESENTATION, hyper_representation

RECIPES = (HYPER_REPRESENTATION, LOSS_TUNING, DATA_CLEANING, DATA_CLEANING_ONE_CLASS, FEW_SHOT)
MNIST_COUNTS = (5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949)
SMALL_FEW_SHOT = {"alphabets": (6, 2, 2), "filters": 4, "layers": 2, "tasks": 3, "test_tasks": 4}


def fake_mnist(pixels=1):
    """MNIST's labels, in random order, with images of one pixel each."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10, dtype=np.int32), MNIST_COUNTS))
    images = np.arange(60_000, dtype=np.uint64).astype(np.uint8)[:, None, None].repeat(pixels, 2)
    return Dataset("mnist", images, labels, images[:100], labels[:100], 33.0, 78.0)


def rows_of(split):
    index = np.arange(split.total) if split.index is None else np.asarray(split.index)
    return np.split(index, np.cumsum(split.size)[:-1])


def sizes(task):
    return set(np.asarray(task.clients.lower.size)), set(np.asarray(task.clients.upper.size))


def near(tree, seed=0):
    """The tree with noise on it, for points that are not special."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: leaf + 0.1 * rng.standard_normal(leaf.shape), tree)


def softmax_losses(logits, labels):
    return -log_softmax(logits, 1)[np.arange(len(labels)), labels]


def mlp(y, inputs):
    for layer in y.layers[:-1]:
        inputs = np.maximum(inputs @ np.asarray(layer.weight) + np.asarray(layer.bias), 0)
    return inputs @ np.asarray(y.layers[-1].weight) + np.asarray(y.layers[-1].bias)


def squares(tree):
    return sum(float(np.sum(np.square(leaf))) for leaf in jax.tree.leaves(tree))


def flat_pixels(batch, data):
    images = np.asarray(batch["input"], np.float64)
    return (images.reshape(len(images), -1) - data.mean) / data.deviation


@pytest.mark.parametrize(
    ("split", "validation", "expected"),
    [
        ("iid", None, ({300}, {300})),
        ("shards", None, ({480}, {120})),
        ("iid", 0.25, ({450}, {150})),
        ("shards", 0.25, ({450}, {150})),
    ],
)
def test_hyper_representation_splits_of_the_papers(split, validation, expected):
    task = hyper_representation(fake_mnist(), hidden=2, split=split, validation=validation)
    assert sizes(task) == expected
    lower, upper = rows_of(task.clients.lower), rows_of(task.clients.upper)
    assert len(np.unique(np.concatenate(lower + upper))) == 60_000
    labels = np.asarray(task.clients.lower.data["label"])
    classes = [len(np.unique(labels[rows])) for rows in lower]
    assert max(classes) <= 4 if split == "shards" else min(classes) == 10


def test_hyper_representation_losses():
    data = digits()
    task = hyper_representation(data, clients=20, hidden=5, rc=0.3)
    x, y = near(task.x0), near(task.y0)
    batch = task.clients.lower.take(3, jnp.arange(7))
    hidden = np.maximum(flat_pixels(batch, data) @ np.asarray(x.weight) + np.asarray(x.bias), 0)
    losses = softmax_losses(hidden @ np.asarray(y.weight) + np.asarray(y.bias), np.asarray(batch["label"]))
    np.testing.assert_allclose(task.problem.upper(x, y, batch), losses.mean(), rtol=1e-6)
    np.testing.assert_allclose(task.problem.lower(x, y, batch), losses.mean() + 0.3 * squares(y), rtol=1e-6)


@pytest.mark.parametrize(("split", "expected"), [("iid", ({74}, {74})), ("shards", ({118}, {30}))])
def test_imbalanced_mnist(split, expected):
    task = loss_tuning(fake_mnist(), hidden=2, split=split)
    counts = np.bincount(np.asarray(task.clients.lower.data["label"]))
    assert counts.tolist() == [5923, 3597, 2157, 1293, 775, 465, 279, 167, 101, 61]
    assert sizes(task) == expected


def test_digits_keep_a_few_images_of_every_class():
    task = loss_tuning(digits(), clients=10, **LOSS_TUNING.defaults["digits"].options)
    counts = np.bincount(np.asarray(task.clients.lower.data["label"]))
    assert counts.min() >= 5
    assert counts[0] / counts[-1] > 10


def test_class_weights():
    weights = np.asarray(class_weights(10, 100.0))
    np.testing.assert_allclose(np.linalg.norm(weights), 1)
    np.testing.assert_allclose(weights / weights[0], 100 ** (np.arange(10) / 9), rtol=1e-6)


def test_loss_tuning_losses():
    data = digits()
    task = loss_tuning(data, clients=10, hidden=5, rc=0.3, factor=20.0)
    x, y = near(task.x0), near(task.y0)
    batch = task.clients.lower.take(3, jnp.arange(9))
    labels, logits = np.asarray(batch["label"]), mlp(y, flat_pixels(batch, data))
    scaled = np.asarray(x.delta) * logits + np.asarray(x.iota)
    terms = [-x.omega[label] * (row[label] - logsumexp(row)) for label, row in zip(labels, scaled, strict=True)]
    np.testing.assert_allclose(task.problem.lower(x, y, batch), np.mean(terms) + 0.3 * squares(y), rtol=1e-6)
    weighted = np.asarray(class_weights(10, 20.0))[labels] * softmax_losses(logits, labels)
    np.testing.assert_allclose(task.problem.upper(x, y, batch), weighted.mean(), rtol=1e-6)
    plain = softmax_losses(logits, labels).mean() + 0.3 * squares(y)
    np.testing.assert_allclose(task.problem.lower(task.x0, y, batch), plain, rtol=1e-6)


def test_balanced_accuracy_is_the_mean_of_the_classes():
    task = loss_tuning(digits(), clients=10, hidden=5, factor=20.0)
    y = near(task.y0, 1)
    predicted = mlp(y, flat_pixels({"input": digits().test_inputs}, digits())).argmax(1)
    right, labels = predicted == digits().test_labels, digits().test_labels
    metrics = task.evaluate(task.x0, y)
    np.testing.assert_allclose(metrics["balanced_accuracy"], np.mean([right[labels == c].mean() for c in range(10)]))
    np.testing.assert_allclose(metrics["accuracy"], right.mean())


@pytest.mark.parametrize(("split", "noise"), [("iid", 0.7), ("shards", 0.9)])
def test_data_cleaning_on_mnist(split, noise):
    data = fake_mnist()
    task, other = (data_cleaning(data, hidden=(2,), split=split, noise=noise, seed=seed) for seed in (0, 1))
    assert sizes(task) == (({300}, {300}) if split == "iid" else ({480}, {120}))
    lower, upper = task.clients.lower, task.clients.upper
    training = np.concatenate(rows_of(lower))
    assert np.array_equal(np.asarray(lower.data["j"])[training], np.arange(len(training)))
    assert task.x0.shape == (len(training),)
    wrong = np.asarray(lower.data["label"])[training] != data.train_labels[training]
    assert np.array_equal(wrong, np.asarray(task.evaluate.wrong))
    assert abs(wrong.mean() - 0.9 * noise) < 0.01  # a tenth of the new labels are right by chance
    assert np.array_equal(np.asarray(upper.data["label"]), data.train_labels)
    assert not np.array_equal(wrong, np.asarray(other.evaluate.wrong))
    assert np.array_equal(np.asarray(lower.data["input"]), np.asarray(other.clients.lower.data["input"]))


def test_one_class_validation():
    data = fake_mnist()
    task = data_cleaning(data, clients=10, hidden=(2,), form="linear", split="one-class", noise=0.4)
    assert sizes(task) == ({4500}, {50})
    lower, upper = rows_of(task.clients.lower), rows_of(task.clients.upper)
    for client, rows in enumerate(upper):
        assert set(data.train_labels[rows]) == {client}
    assert len(np.unique(np.concatenate(lower + upper))) == 45_500
    assert np.array_equal(np.asarray(task.x0), np.ones(45_000))
    small = data_cleaning(digits(), clients=20, form="linear", split="one-class", validation=4)
    labels = np.asarray(small.clients.upper.data["label"])
    assert [set(labels[rows]) for rows in rows_of(small.clients.upper)] == [{client % 10} for client in range(20)]


@pytest.mark.parametrize("form", ["sigmoid", "linear"])
def test_data_cleaning_losses(form):
    data = digits()
    task = data_cleaning(data, clients=20, hidden=(6, 5), rc=0.3, form=form)
    x, y = near(task.x0), near(task.y0)
    batch = task.clients.lower.take(3, jnp.arange(9))
    losses = softmax_losses(mlp(y, flat_pixels(batch, data)), np.asarray(batch["label"]))
    entries = np.asarray(x)[np.asarray(batch["j"])]
    weights = 1 / (1 + np.exp(-entries)) if form == "sigmoid" else entries
    np.testing.assert_allclose(task.problem.lower(x, y, batch), np.mean(weights * losses) + 0.3 * squares(y), rtol=1e-6)
    np.testing.assert_allclose(task.problem.upper(x, y, batch), losses.mean(), rtol=1e-6)
    metrics, wrong = task.evaluate(x, y), np.asarray(task.evaluate.wrong)
    all_weights = 1 / (1 + np.exp(-np.asarray(x))) if form == "sigmoid" else np.asarray(x)
    np.testing.assert_allclose(metrics["noisy_weight"], all_weights[wrong].mean())
    np.testing.assert_allclose(metrics["clean_weight"], all_weights[~wrong].mean())
    held = np.concatenate(rows_of(task.clients.upper))
    predicted = mlp(y, flat_pixels({"input": data.train_inputs[held]}, data)).argmax(1)
    np.testing.assert_allclose(metrics["validation_error"], np.mean(predicted != data.train_labels[held]))


@pytest.mark.parametrize("form", ["sigmoid", "linear"])
def test_the_oracle_knows_which_labels_are_wrong(form):
    task = data_cleaning(digits(), clients=20, hidden=(5,), form=form, oracle=True)
    metrics = task.evaluate(task.x0, task.y0)
    assert metrics["noisy_weight"] < 1e-8
    assert metrics["clean_weight"] > 1 - 1e-8


def test_labels_may_be_always_wrong():
    either, always = (data_cleaning(digits(), clients=20, noise=0.8, always_wrong=wrong) for wrong in (False, True))
    shares = [float(np.mean(np.asarray(task.evaluate.wrong))) for task in (either, always)]
    assert abs(shares[0] - 0.72) < 0.02
    assert abs(shares[1] - 0.8) < 0.002


def test_a_client_touches_only_its_own_weights():
    task = data_cleaning(digits(), clients=20, hidden=(5,))
    size = task.clients.lower.max_size
    batch = task.clients.lower.take(3, jnp.arange(size))
    slope = np.asarray(jax.grad(task.problem.lower)(task.x0, task.y0, batch))
    assert np.array_equal(np.flatnonzero(slope), np.arange(3 * size, 4 * size))


def marked_characters(alphabets=50, characters=3, drawings=20):
    """An Omniglot whose images say who they are: [0, 0] is marked, [1, 1] = character, [2, 2] = drawing."""
    images = np.zeros((alphabets * characters, drawings, 28, 28), np.uint8)
    images[:, :, 0, 0] = 255
    images[:, :, 1:-1, 1:-1] = np.arange(alphabets * characters)[:, None, None, None]
    images[:, :, 2:-2, 2:-2] = np.arange(drawings)[:, None, None]
    alphabet = np.repeat(np.arange(alphabets, dtype=np.int32), characters)
    return Omniglot(images, alphabet, tuple(f"alphabet {a}" for a in range(alphabets)))


def identities(images):
    """(character, drawing, orientation) of marked images."""
    images = np.asarray(images).reshape(-1, 28, 28)
    corners = np.stack([images[:, 0, 0], images[:, -1, 0], images[:, -1, -1], images[:, 0, -1]])
    return images[:, 1, 1], images[:, 14, 14], corners.argmax(0)


@pytest.mark.parametrize("shot", [1, 5])
def test_tasks_of_the_clients(shot):
    data = marked_characters()
    task = few_shot(data, shot=shot, tasks=4, filters=2, test_tasks=3)
    lower, upper = task.clients.lower, task.clients.upper
    assert task.clients.n == 11
    assert sizes(task) == ({4 * 5 * shot}, {4 * 5 * 15})
    characters, _, turns = identities(lower.data["input"])
    held = [set(data.alphabet[characters[rows]]) for rows in rows_of(lower)]
    assert len(set.union(*held)) == sum(map(len, held))
    assert max(map(len, held)) <= 3
    assert set(turns) == {0, 1, 2, 3}
    key = ["task", "label"]
    owner = np.repeat(np.arange(11), lower.max_size), np.repeat(np.arange(11), upper.max_size)
    support, query = (
        list(
            zip(client, *(np.asarray(split.data[name]) for name in key), *identities(split.data["input"]), strict=True)
        )
        for client, split in zip(owner, (lower, upper), strict=True)
    )
    classes = {}
    for client, number, label, character, _, turned in support + query:
        classes.setdefault((client, number, label), set()).add((int(character), int(turned)))
    assert all(len(found) == 1 for found in classes.values())
    for client in range(11):
        for number in range(4):
            assert len(set.union(*(classes[client, number, label] for label in range(5)))) == 5
    assert len(set(support + query)) == 11 * 4 * 5 * (shot + 15)  # no image twice in a task


def test_alphabets_are_held_out():
    data = marked_characters()
    task = few_shot(data, tasks=4, filters=2, test_tasks=30, alphabets=(6, 3, 2), clients=2)
    parts = [task.clients.lower.data["input"], task.evaluate.validation.query, task.evaluate.test.query]
    alphabets = [set(data.alphabet[identities(images)[0]]) for images in parts]
    assert [len(each) for each in alphabets] == [6, 3, 2]
    assert len(set.union(*alphabets)) == 11


def test_clients_of_one_alphabet_share_out_its_drawings():
    data = marked_characters(alphabets=10, characters=1, drawings=60)
    task = few_shot(data, clients=6, alphabets=(6, 2, 2), per_client=3, filters=2, tasks=20, test_tasks=2)
    seen = {}
    for client, rows in enumerate(rows_of(task.clients.upper)):
        characters, drawings, _ = identities(np.asarray(task.clients.upper.data["input"])[rows])
        for each in zip(characters, drawings, strict=True):
            seen.setdefault(each, set()).add(client)
    assert all(len(clients) == 1 for clients in seen.values())
    with pytest.raises(ValueError, match="clients=8 with per_client=3: 4 of them share the 60 drawings"):
        few_shot(data, clients=8, alphabets=(6, 2, 2), per_client=3, filters=2)


def convolved(image, conv):
    """One image through a 3×3 convolution with a border of zeros, by the definition."""
    height, width, channels = image.shape
    kernel = np.asarray(conv.weight).reshape(3, 3, channels, -1)
    padded = np.pad(image, ((1, 1), (1, 1), (0, 0)))
    out = np.empty((height, width, kernel.shape[-1]))
    for i in range(height):
        for j in range(width):
            out[i, j] = np.tensordot(padded[i : i + 3, j : j + 3], kernel, 3) + np.asarray(conv.bias)
    return out[:: conv.stride, :: conv.stride]


@pytest.mark.parametrize("strided", [False, True])
def test_convolutional_features(strided):
    x = near(ConvFeatures(1, 3, 3, jax.random.key(0), strided=strided))
    images = np.random.default_rng(0).standard_normal((2, 5, 5, 1))
    expected = []
    for image in images:
        for conv, scale, shift in zip(x.convolutions, x.scales, x.shifts, strict=True):
            image = convolved(image, conv)
            image = (image - image.mean()) / np.sqrt(image.var() + 1e-5)
            image = np.maximum(image * np.asarray(scale) + np.asarray(shift), 0)
            half = image.shape[0] // 2
            if half and not strided:
                image = image[: 2 * half, : 2 * half].reshape(half, 2, half, 2, 3).max((1, 3))
        expected.append(image.ravel())
    np.testing.assert_allclose(x(jnp.asarray(images)), expected, rtol=1e-6)


@pytest.mark.parametrize("model", [None, "mlp:6"])
def test_features_are_centred_and_have_the_norm_1(model):
    """However far training has moved the network."""
    task = few_shot(digits(), clients=4, model=model, **SMALL_FEW_SHOT)
    batch = task.clients.lower.take(0, jnp.arange(6))
    features = np.asarray(task.problem.upper.features(near(task.x0), batch["input"]))
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1, rtol=1e-3)
    np.testing.assert_allclose(features.mean(1), 0, atol=1e-6)


def test_nearest_means_by_hand():
    """The means are (1, 0) and (4, 4); of the queries the second is nearer to the wrong one, the third a tie's first."""
    support = jnp.array([[0.0, 0.0], [4.0, 4.0], [2.0, 0.0]])
    query = jnp.array([[1.0, 1.0], [1.0, 2.0], [2.5, 2.0], [9.0, 9.0]])
    error = nearest_mean_error(support, jnp.array([0, 1, 0]), query, jnp.array([0, 1, 0, 1]), 2)
    assert float(error) == 1 / 4


def test_few_shot_losses():
    task = few_shot(digits(), clients=4, rc=0.3, **SMALL_FEW_SHOT)
    x, y = near(task.x0), near(task.y0)
    batch = task.clients.lower.take(2, jnp.arange(0, 15, 2))
    features = np.asarray(task.problem.upper.features(x, batch["input"]))
    losses = []
    for feature, number, label in zip(features, np.asarray(batch["task"]), np.asarray(batch["label"]), strict=True):
        logits = feature @ np.asarray(y.weight[number]) + np.asarray(y.bias[number])
        losses.append(logsumexp(logits) - logits[label])
    np.testing.assert_allclose(task.problem.upper(x, y, batch), np.mean(losses), rtol=1e-6)
    np.testing.assert_allclose(task.problem.lower(x, y, batch), 3 * np.mean(losses) + 0.3 * squares(y), rtol=1e-6)


@pytest.mark.slow
def test_adapted_heads_solve_the_lower_level():
    """Many steps of a new task's head reach the minimiser of what a client with this task alone minimises."""
    rng = np.random.default_rng(0)
    features, labels = jnp.asarray(rng.standard_normal((10, 4)) / 2), jnp.asarray(np.arange(10) % 5)
    weight, bias = adapted(features, labels, 5, 0.05, 2000)

    def lower(head):
        logits = features @ head.weight[0] + head.bias[0]
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(10), labels]) + 0.05 * sum(
            jnp.sum(leaf**2) for leaf in jax.tree.leaves(head)
        )

    slope = jax.grad(lower)(Heads(weight[None], bias[None]))
    assert all(float(jnp.abs(leaf).max()) < 1e-8 for leaf in jax.tree.leaves(slope))
    assert float(jnp.abs(weight).max()) > 0.1


def own_accuracy(task, x, y):
    """By the clients' upper data, as the loss sees them."""
    upper, right = task.clients.upper, []
    for client in range(task.clients.n):
        batch = upper.take(client, jnp.arange(upper.max_size))
        heads = jax.tree.map(lambda leaf: leaf[client], y)
        logits = heads(task.problem.upper.features(x, batch["input"]), batch["task"])
        right.append(np.asarray(logits.argmax(1) == batch["label"]))
    return np.mean(right)


@pytest.mark.slow
def test_few_shot_metrics():
    task = few_shot(digits(), clients=4, **SMALL_FEW_SHOT)
    x, y = near(task.x0), near(jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), task.y0))
    metrics = task.evaluate(x, y)
    np.testing.assert_allclose(metrics["own_accuracy"], own_accuracy(task, x, y), rtol=1e-6)
    tested = []
    for support, labels, query, answers in zip(*task.evaluate.test, strict=True):
        weight, bias = adapted(task.problem.upper.features(x, support), labels, 5, 0.01, 100)
        tested.append(np.asarray((task.problem.upper.features(x, query) @ weight + bias).argmax(1) == answers).mean())
    np.testing.assert_allclose(metrics["accuracy"], np.mean(tested), rtol=1e-6)
    wrong = []
    for support, labels, query, answers in zip(*task.evaluate.validation, strict=True):
        features, asked = (np.asarray(task.problem.upper.features(x, images)) for images in (support, query))
        means = np.stack([features[np.asarray(labels) == label].mean(0) for label in range(5)])
        said = [np.argmin([np.linalg.norm(each - mean) for mean in means]) for each in asked]
        wrong.append(np.mean(said != np.asarray(answers)))
    np.testing.assert_allclose(metrics["nearest_mean_error"], np.mean(wrong), rtol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hyper_representation(digits(), clients=20, split="dirichlet"), "split must be 'iid' or 'shards', got"),
        (lambda: hyper_representation(digits(), clients=20, validation=1.5), "validation must be a fraction"),
        (lambda: loss_tuning(digits(), clients=10, factor=0.5), "factor=0.5: must be at least 1"),
        (lambda: data_cleaning(digits(), clients=20, form="soft"), "form must be 'sigmoid' or 'linear', got 'soft'"),
        (lambda: data_cleaning(digits(), clients=20, noise=1.0), "noise must be a fraction, at least 0 and below 1"),
        (lambda: data_cleaning(digits(), clients=20, bounded=True), "bounded must be False for form='sigmoid'"),
        (lambda: data_cleaning(digits(), clients=20, split="one-class", validation=0.5), "validation must be a number"),
        (lambda: data_cleaning(digits(), clients=10, split="one-class", validation=500), "validation must be below"),
        (
            lambda: hyper_representation(digits(), clients=20, hidden=0),
            "hidden must be an integer of at least 1, got 0",
        ),
        (lambda: data_cleaning(digits(), clients=20, hidden=(5, 0)), "hidden must be an integer of at least 1, got 0"),
        (lambda: loss_tuning(digits(), clients=10, rc=-1.0), "rc must be a number of at least 0, got -1.0"),
        (lambda: few_shot(digits(), shot=0), "shot must be an integer of at least 1, got 0"),
        (lambda: few_shot(digits()), "alphabets must be three positive numbers, together at most 10"),
        (lambda: few_shot(digits(), alphabets=(6, 2, 2), per_client=7), "per_client must be in 1..6"),
        (lambda: few_shot(digits(), clients=4, alphabets=(6, 2, 2), way=9), "way must be at most 8"),
        (lambda: MLP((3,), jax.random.key(0)), "widths must name an input and an output"),
    ],
)
def test_bad_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_recipes_name_real_options_and_rates(recipe):
    for defaults in recipe.defaults.values():
        assert set(defaults.options) <= set(recipe.options)
        for name, rates in {defaults.algorithm: {}, **defaults.rates}.items():
            rk.registry[name](**rates)
    task = recipe.make(digits(), clients=8, **recipe.defaults["digits"].options)
    for name in recipe.defaults["digits"].rates:
        assert problem_class(task.problem) in rk.registry[name].solves


BARS = {
    "hyper-representation": (40, {"accuracy": 0.85}),
    "loss-tuning": (40, {"balanced_accuracy": 0.8}),
    "data-cleaning": (60, {"accuracy": 0.8}),
    "data-cleaning-one-class": (120, {"accuracy": 0.6}),
    "few-shot": (20, {"own_accuracy": 0.6}),  # of a smaller network and fewer tasks
}


def solved(recipe, dataset, data, rounds, seeds, **options):
    """The recipe's defaults with all seeds in one program."""
    defaults = recipe.defaults[dataset]
    tasks = [
        recipe.make(data, clients=defaults.clients, seed=seed, **{**defaults.options, **options}) for seed in seeds
    ]
    many = rk.solve_many(
        tasks[0].problem,
        rk.registry[defaults.algorithm](**defaults.rates.get(defaults.algorithm, {})),
        [task.clients for task in tasks],
        rk.Lanes([task.x0 for task in tasks]),
        rk.Lanes([task.y0 for task in tasks]),
        rounds=rounds,
        keys=seeds,
        participation=defaults.participants,
        local_steps=defaults.local_steps,
        batch_size=defaults.batch_size,
        evaluate=rk.Lanes([task.evaluate for task in tasks]),
        every=rounds,
    )
    assert not many.diverged
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves((many.x, many.y)))
    assert tasks[0].metric in many.history.last
    return many


def named(recipes):
    """As parameters; what is slow to compile is marked."""
    slow = {DATA_CLEANING_ONE_CLASS.name: pytest.mark.slow}
    return [pytest.param(each, id=each.name, marks=slow.get(each.name, ())) for each in recipes]


@pytest.mark.slow
@pytest.mark.parametrize("recipe", named(RECIPES))
def test_the_defaults_learn_on_digits(recipe):
    """Two seeds in one program; an untrained model is below the bar."""
    rounds, bars = BARS[recipe.name]
    smaller = {"filters": 8, "layers": 1, "tasks": 2, "test_tasks": 2} if recipe is FEW_SHOT else {}
    history = solved(recipe, "digits", digits(), rounds, [0, 1], **smaller).history
    for metric, bar in bars.items():
        assert (history[metric][0] < bar).all()
        assert (history[metric][-1] > bar).all(), history[metric]
    if "noisy_weight" in history.last:
        assert (history["clean_weight"][-1] - history["noisy_weight"][-1] > 0.2).all()
    assert history["loss"][-1][0] != history["loss"][-1][1]


def real(name):
    folder = os.environ.get("ROOKERY_DATA")
    if not folder or not (Path(folder) / name).is_dir():
        pytest.skip(f"no real data: the folder {name} in $ROOKERY_DATA is missing")
    return load_omniglot() if name == "omniglot" else load(name)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", named(RECIPES[:-1]))
def test_mnist(recipe):
    data = real("mnist")
    history = solved(recipe, "mnist", data, 2, [0]).history
    assert history["loss"][-1][0] != history["loss"][0][0]


@pytest.mark.slow
def test_cleaning_finds_wrong_labels_on_mnist():
    """With steps of x of the published size, which are stable only if weights stay in [0, 1] during local steps."""
    recipe, data = DATA_CLEANING_ONE_CLASS, real("mnist")
    defaults = recipe.defaults["mnist"]
    task = recipe.make(data, clients=10, **{**defaults.options, "noise": 0.95})
    how = {"rounds": 50, "local_steps": 5, "batch_size": defaults.batch_size, "evaluate": task.evaluate, "every": 50}
    plain, cleaned = (
        rk.solve(task.problem, rk.registry[name](**defaults.rates[name]), task.clients, task.x0, task.y0, **how)
        for name in ("FedAvg", "FedBiO")
    )
    last = cleaned.history.last
    assert last["noisy_weight"] < 0.3 < 0.6 < last["clean_weight"]
    assert last["validation_error"] < 0.8 * plain.history.last["validation_error"]


def test_real_class_counts():
    task = loss_tuning(real("mnist"), hidden=2)
    counts = np.bincount(np.asarray(task.clients.lower.data["label"]))
    assert counts.tolist() == [5923, 3597, 2157, 1293, 775, 465, 279, 167, 101, 61]


@pytest.mark.slow
def test_omniglot():
    options = {"filters": 2, "layers": 2, "tasks": 2, "test_tasks": 2}
    history = solved(FEW_SHOT, "omniglot", real("omniglot"), 1, [0], **options).history
    assert history["loss"][-1][0] != history["loss"][0][0]


def test_omniglot_has_the_papers_alphabets():
    data = real("omniglot")
    task = few_shot(data, way=20, shot=5, tasks=1, filters=2, test_tasks=1)
    assert (task.clients.n, sizes(task)) == (11, ({20 * 5}, {20 * 15}))
    assert task.y0.weight.shape[0] == 1
    assert task.evaluate.test.query.shape == (1, 20 * 15, 28, 28)
