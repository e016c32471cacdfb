"""ResNet-18 against plain NumPy, and its numbers from a file with torchvision's names."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from rookery import devices
from rookery.models import resnet
from rookery.models.choice import is_own_file, make_model, model_name
from rookery.models.layers import convolved
from rookery.models.stored import load_model, save_model

KEY = jax.random.key(0)
WIDTHS = 3, 4, 5, 6
SHAPE = 32, 32, 3


@pytest.fixture
def small(monkeypatch):
    """A ResNet-18 of few channels."""
    monkeypatch.setattr(resnet, "WIDTHS", WIDTHS)


@pytest.fixture
def file(small, tmp_path):
    """Its random numbers in a file, in single precision as torchvision has them; (path, arrays)."""
    arrays = state(np.random.default_rng(0))
    save_file(arrays, tmp_path / "resnet18.safetensors")
    return tmp_path / "resnet18.safetensors", arrays


def state(rng):
    """What torchvision's state_dict would have, written out from its documentation."""
    arrays = {"fc.weight": rng.normal(size=(1000, WIDTHS[-1])), "fc.bias": rng.normal(size=1000)}

    def add(conv, norm, inputs, outputs, size):
        arrays[f"{conv}.weight"] = rng.normal(size=(outputs, inputs, size, size)) / (size * inputs**0.5)
        arrays[f"{norm}.weight"], arrays[f"{norm}.bias"] = 1 + rng.random(outputs), rng.normal(size=outputs)
        arrays[f"{norm}.running_mean"] = rng.normal(size=outputs)
        arrays[f"{norm}.running_var"] = 0.5 + rng.random(outputs)

    add("conv1", "bn1", 3, WIDTHS[0], 7)
    inputs = WIDTHS[0]
    for stage, width in enumerate(WIDTHS, 1):
        for block in (0, 1):
            name = f"layer{stage}.{block}"
            add(f"{name}.conv1", f"{name}.bn1", inputs, width, 3)
            add(f"{name}.conv2", f"{name}.bn2", width, width, 3)
            if stage > 1 and block == 0:
                add(f"{name}.downsample.0", f"{name}.downsample.1", inputs, width, 1)
            inputs = width
    single = {name: array.astype(np.float32) for name, array in arrays.items()}
    return {**single, "bn1.num_batches_tracked": np.array(7)}


def naive_conv(weight, images, stride):
    """out[n, o, i, j] = Σ w[o, c, r, s] · in[n, c, i·stride + r, j·stride + s], images within a border of zeros."""
    size = weight.shape[2]
    p = size // 2
    images = np.pad(images, ((0, 0), (0, 0), (p, p), (p, p)))
    height, width = ((side - size) // stride + 1 for side in images.shape[2:])
    out = np.empty((len(images), len(weight), height, width))
    for i in range(height):
        for j in range(width):
            patch = images[:, :, i * stride : i * stride + size, j * stride : j * stride + size]
            out[:, :, i, j] = np.tensordot(patch, weight, ([1, 2, 3], [1, 2, 3]))
    return out


def naive_resnet(arrays, images):
    """The features before the last layer, of images with channels first, by the published definition."""

    def layer(images, conv, norm, stride):
        out = naive_conv(arrays[f"{conv}.weight"].astype(float), images, stride)
        mean, var, gamma, beta = (
            arrays[f"{norm}.{name}"].astype(float)[:, None, None]
            for name in ("running_mean", "running_var", "weight", "bias")
        )
        return (out - mean) / np.sqrt(var + 1e-5) * gamma + beta

    h = np.maximum(layer(images, "conv1", "bn1", 2), 0)
    padded = np.pad(h, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    h = np.stack(
        [
            np.stack([padded[:, :, i : i + 3, j : j + 3].max((2, 3)) for j in range(0, h.shape[3], 2)], -1)
            for i in range(0, h.shape[2], 2)
        ],
        2,
    )
    for stage in (1, 2, 3, 4):
        for block in (0, 1):
            name, stride = f"layer{stage}.{block}", 2 if stage > 1 and block == 0 else 1
            out = np.maximum(layer(h, f"{name}.conv1", f"{name}.bn1", stride), 0)
            out = layer(out, f"{name}.conv2", f"{name}.bn2", 1)
            shortcut = layer(h, f"{name}.downsample.0", f"{name}.downsample.1", 2) if stride == 2 else h
            h = np.maximum(out + shortcut, 0)
    return h.mean((2, 3))


def said(call, *arguments):
    with pytest.raises(ValueError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize(("size", "side"), [(7, 9), (3, 8), (1, 5)])
def test_convolutions_with_a_stride(kind, size, side):
    rng = np.random.default_rng(0)
    images, weight = rng.normal(size=(2, side, side + 2, 3)), rng.normal(size=(4, 3, size, size))
    rows = weight.transpose(2, 3, 1, 0).reshape(-1, 4)
    with devices.pretend(kind):
        found = convolved(jnp.asarray(images), jnp.asarray(rows), size, size // 2, 2)
    expected = naive_conv(weight, images.transpose(0, 3, 1, 2), 2)
    np.testing.assert_allclose(found, expected.transpose(0, 2, 3, 1), rtol=1e-12, atol=1e-12)


def test_resnet_by_hand(file):
    path, arrays = file
    network = make_model(f"resnet18:{path}", SHAPE, 5, KEY)
    images = np.random.default_rng(1).normal(size=(2, *SHAPE))
    features = naive_resnet(arrays, images.transpose(0, 3, 1, 2))
    expected = features @ np.asarray(network.head.weight) + np.asarray(network.head.bias)
    assert expected.std() > 0.01
    np.testing.assert_allclose(eqx.filter_jit(network)(jnp.asarray(images)), expected, rtol=1e-9, atol=1e-9)


def test_its_real_size():
    """11 689 512 numbers, as everybody counts them with a head of 1000 outputs."""
    network = eqx.filter_eval_shape(lambda: make_model("resnet18", (64, 64, 3), 1000, KEY, trained=False))
    leaves = jax.tree.leaves(network)
    assert all(jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves)
    assert sum(leaf.size for leaf in leaves) == 11_689_512
    for side in (64, 224, 33):
        batch = jax.ShapeDtypeStruct((2, side, side, 3), float)
        assert jax.eval_shape(lambda each, images: each(images), network, batch).shape == (2, 1000)


def test_it_is_found_where_the_data_are(file, monkeypatch):
    path, _ = file
    monkeypatch.setenv("ROOKERY_DATA", str(path.parent))
    found, named = (make_model(spec, SHAPE, 2, KEY) for spec in ("resnet18", f"resnet18:{path}"))
    assert bool(eqx.tree_equal(found, named))
    other = make_model("resnet18", SHAPE, 2, jax.random.key(1))
    assert bool(eqx.tree_equal(found.blocks, other.blocks))
    assert not bool(eqx.tree_equal(found.head, other.head))
    assert model_name(f"resnet18:{path}") == "resnet18"
    assert not is_own_file(f"resnet18:{path}")


def test_without_its_file_it_says_how_to_make_it(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOKERY_DATA", str(tmp_path))
    for spec, place in (("resnet18", tmp_path / "resnet18.safetensors"), ("resnet18:gone.safetensors", "gone.safe")):
        line = said(make_model, spec, SHAPE, 2, KEY)
        assert f"model resnet18: there is no {place}" in line
        assert "torchvision.models.resnet18(weights='IMAGENET1K_V1').state_dict()" in line
    monkeypatch.delenv("ROOKERY_DATA")
    assert "ROOKERY_DATA is not set; with torchvision" in said(make_model, "resnet18", SHAPE, 2, KEY)


def test_other_files_and_images_are_refused(file):
    path, arrays = file
    for changed, line in (
        ({"layer2.0.downsample.0.weight": None}, "there is no layer2.0.downsample.0.weight in it"),
        ({"bn1.running_mean": np.zeros(4, np.float32)}, "bn1.running_mean is float32 [4], must be floats [3]"),
        ({"conv1.weight": np.zeros((3, 3, 7, 7), np.int32)}, "conv1.weight is int32 [3, 3, 7, 7], must be floats"),
    ):
        kept = {name: array for name, array in {**arrays, **changed}.items() if array is not None}
        save_file(kept, path)
        assert f"{path}: {line}" in said(make_model, f"resnet18:{path}", SHAPE, 2, KEY)
    path.write_bytes(path.read_bytes()[:-9])
    assert f"{path} is damaged" in said(make_model, f"resnet18:{path}", SHAPE, 2, KEY)
    assert "for images in three colours" in said(make_model, f"resnet18:{path}", (28, 28), 2, KEY)


def test_one_that_was_trained_is_loaded_without_the_file(file, tmp_path):
    path, _ = file
    network = make_model(f"resnet18:{path}", SHAPE, 2, KEY)
    about = {"model": f"resnet18:{path}", "shape": list(SHAPE), "outputs": 2}
    save_model(tmp_path / "model.safetensors", network, about)
    path.unlink()
    loaded, _ = load_model(tmp_path / "model.safetensors")
    assert bool(eqx.tree_equal(loaded, network))
