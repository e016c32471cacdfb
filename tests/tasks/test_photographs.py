"""Few-shot learning on MiniImageNet; fair classification and AUROC with a ResNet-18 on Tiny-ImageNet: made-up ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from rookery.datasets import Dataset, MiniImageNet
from rookery.datasets.imagenet import DEVIATION, MEAN
from rookery.experiment import source
from rookery.experiment.settings import resolve
from rookery.models import resnet
from rookery.tasks.fairness import FAIR_CLASSIFICATION
from rookery.tasks.few_examples import FEW_SHOT, few_shot
from rookery.tasks.ranking import AUROC
from tests.models.test_resnet import WIDTHS, state

SMALL = {"filters": 2, "layers": 1, "tasks": 4, "test_tasks": 30, "clients": 4, "per_client": 16}
PARTS = 64, 16, 20


@pytest.fixture(scope="module")
def data():
    """Of 100 classes 40 images that tell class and number; a corner is marked, to see the orientation."""
    images = np.zeros((100, 40, 6, 6, 3), np.uint8)
    images[:, :, 0, 0] = 255
    images[:, :, 1:-1, 1:-1, 0] = np.arange(100)[:, None, None, None]
    images[:, :, 1:-1, 1:-1, 1] = np.arange(40)[:, None, None]
    part = np.repeat(np.arange(3, dtype=np.int32), PARTS)
    return MiniImageNet(images, part, tuple(f"n{c:02}" for c in range(100)))


def classes_of(images):
    images = np.asarray(images)
    return images.reshape(-1, *images.shape[-3:])[:, 2, 2, 0]


def turns_of(images):
    images = np.asarray(images).reshape(-1, 6, 6, 3)[..., 0]
    return set(np.stack([images[:, 0, 0], images[:, -1, 0], images[:, -1, -1], images[:, 0, -1]]).argmax(0))


def test_each_part_of_mini_imagenet_has_its_own_classes(data):
    task = few_shot(data, alphabets=PARTS, shot=5, **SMALL)
    lower = task.clients.lower
    assert (task.clients.n, lower.max_size, task.clients.upper.max_size) == (4, 4 * 5 * 5, 4 * 5 * 15)
    held = [set(each) for each in np.split(classes_of(lower.data["input"]), 4)]
    assert len(set.union(*held)) == sum(map(len, held))
    assert max(map(len, held)) <= 16
    parts = lower.data["input"], task.evaluate.validation.query, task.evaluate.test.query
    assert [set(data.part[classes_of(images)]) for images in parts] == [{0}, {1}, {2}]
    assert [len(set(classes_of(images))) for images in parts[1:]] == [16, 20]
    assert turns_of(lower.data["input"]) == {0}
    other = few_shot(data, alphabets=PARTS, shot=5, seed=1, **SMALL).clients.lower.data["input"]
    assert [set(each) for each in np.split(classes_of(other), 4)] != held


def test_a_photograph_is_normalised_as_imagenets_are(data):
    task = few_shot(data, alphabets=PARTS, **SMALL)
    pixels = data.images[:2, 0]
    expected = task.x0((jnp.asarray(pixels, float) - jnp.asarray(MEAN)) / jnp.asarray(DEVIATION))
    np.testing.assert_allclose(task.problem.upper.features(task.x0, pixels), expected, rtol=1e-6)


def test_20_ways_need_four_orientations(data):
    """A client has 16 classes, and so has validation."""
    with pytest.raises(ValueError, match="way must be at most 16, the classes that somebody holds, got 20"):
        few_shot(data, alphabets=PARTS, way=20, **SMALL)
    task = few_shot(data, alphabets=PARTS, way=20, orientations=4, **SMALL)
    assert turns_of(task.clients.lower.data["input"]) == {0, 1, 2, 3}
    assert task.y0.bias.shape == (4, 20)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"alphabets": (65, 15, 20)}, r"alphabets must be at most \(64, 16, 20\), the official parts"),
        ({"alphabets": PARTS, "orientations": 5}, "orientations must be at most 4, got 5"),
        ({"alphabets": PARTS, "orientations": 0}, "orientations must be an integer of at least 1, got 0"),
    ],
)
def test_wrong_parts(data, options, line):
    with pytest.raises(ValueError, match=line):
        few_shot(data, **SMALL, **options)


def test_nothing_is_held_out_of_mini_imagenet(data, monkeypatch):
    """It has validation classes: a search for rates sees what runs see."""
    monkeypatch.setitem(source._BY_CLASS, "mini-imagenet", lambda: data)
    small = {name: SMALL[name] for name in ("filters", "layers", "tasks", "test_tasks")}
    runs = [resolve({"task": "few-shot", "dataset": "mini-imagenet", "held_out": out}, small) for out in (False, True)]
    assert runs[0].options["alphabets"] == PARTS
    assert runs[0].clients == 4
    tasks = [run.make_tasks()[0] for run in runs]
    one, other = (task.evaluate.validation.query for task in tasks)
    np.testing.assert_array_equal(one, other)


def test_the_option_of_orientations_changes_no_settings_of_other_data():
    """Stored results know runs by their settings."""
    assert "orientations" not in resolve({"task": "few-shot", "dataset": "omniglot"}).tables()["task"]
    assert set(FEW_SHOT.defaults) == {"digits", "omniglot", "mini-imagenet"}


@pytest.mark.parametrize("recipe", [FAIR_CLASSIFICATION, AUROC], ids=lambda recipe: recipe.name)
def test_resnet18_on_tiny_imagenet(recipe, tmp_path, monkeypatch):
    def net(x):
        return x if recipe is FAIR_CLASSIFICATION else x["net"]

    monkeypatch.setattr(resnet, "WIDTHS", WIDTHS)
    monkeypatch.setenv("ROOKERY_DATA", str(tmp_path))
    save_file(state(np.random.default_rng(0)), tmp_path / "resnet18.safetensors")
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 32, 32, 3), np.uint8), (np.arange(60) % 4).astype(np.int32)
    small = Dataset("tiny-imagenet", images, labels, images[:8], labels[:8], MEAN, DEVIATION)
    task = recipe.make(small, clients=3, **recipe.defaults["tiny-imagenet"].options)
    network = net(task.x0)
    assert isinstance(network, resnet.ResNet18)
    assert network.head.bias.shape == (4 if recipe is FAIR_CLASSIFICATION else 1,)
    batch = task.clients.lower.take(1, jnp.arange(4))
    slope = net(jax.jit(jax.grad(task.problem.objective))(task.x0, task.y0, batch))
    assert all(bool(jnp.isfinite(leaf).all()) and bool((leaf != 0).any()) for leaf in jax.tree.leaves(slope))
