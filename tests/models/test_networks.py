"""The convolutional networks: shapes, numbers of parameters, and the layers against plain NumPy."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.models.layers import Conv, Dense, max_pool
from rookery.models.networks import CifarCNN, ConvNet, FashionCNN, LeNet5, cnn, pooled, xavier
from tests.helpers.marks import slow

# Convolutions size² · inputs · outputs + outputs, dense layers inputs · outputs + outputs.
COUNTS = [
    (LeNet5, (28, 28), 10, (150 + 6) + (2400 + 16) + (400 * 120 + 120) + (120 * 84 + 84) + 850),
    (LeNet5, (32, 32, 3), 10, (450 + 6) + (2400 + 16) + (400 * 120 + 120) + (120 * 84 + 84) + 850),
    (LeNet5, (8, 8), 10, (54 + 6) + (864 + 16) + (64 * 120 + 120) + (120 * 84 + 84) + 850),
    (FashionCNN, (28, 28), 10, (45 + 5) + (450 + 10) + (250 * 100 + 100) + 1010),
    (FashionCNN, (8, 8), 1, (45 + 5) + (450 + 10) + (40 * 100 + 100) + 101),
    (CifarCNN, (32, 32, 3), 10, (432 + 16) + (4608 + 32) + (18432 + 64) + (1024 * 512 + 512) + (512 * 64 + 64) + 650),
]


@pytest.mark.parametrize(("network", "shape", "outputs", "count"), COUNTS)
def test_shapes_and_numbers_of_parameters(network, shape, outputs, count):
    net = network(shape, outputs, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(net)) == count
    images = jax.ShapeDtypeStruct((3, *shape, *([1] if len(shape) == 2 else [])), net.dtype)
    assert jax.eval_shape(net, images).shape == (3, outputs)


def test_a_network_for_each_kind_of_image():
    assert isinstance(cnn((28, 28), 10, jax.random.key(0)), FashionCNN)
    assert isinstance(cnn((32, 32, 3), 10, jax.random.key(0)), CifarCNN)


def naive_conv(weight, bias, images, size, padding):
    """The definition, pixel by pixel: out[n, i, j, o] = b[o] + Σ w[r, s, c, o] · in[n, i+r, j+s, c]."""
    images = np.pad(images, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    n, height, width, channels = images.shape
    weight = weight.reshape(size, size, channels, -1)
    out = np.zeros((n, height - size + 1, width - size + 1, weight.shape[-1])) + bias
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            for r in range(size):
                for s in range(size):
                    out[:, i, j] += images[:, i + r, j + s] @ weight[r, s]
    return out


def naive_pool(images):
    n, height, width, channels = images.shape
    out = np.zeros((n, height // 2, width // 2, channels))
    for i in range(out.shape[1]):
        for j in range(out.shape[2]):
            out[:, i, j] = images[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2))
    return out


def images_of(*shape):
    return np.random.default_rng(1).standard_normal(shape)


@pytest.mark.parametrize(("channels", "size", "padding"), [(1, 5, 2), (3, 3, 0), (2, 3, 1)])
def test_convolution(channels, size, padding):
    conv, images = Conv(channels, 4, jax.random.key(0), size=size, padding=padding), images_of(2, 8, 7, channels)
    by_hand = naive_conv(np.asarray(conv.weight), np.asarray(conv.bias), images, size, padding)
    np.testing.assert_allclose(conv(jnp.asarray(images)), by_hand, rtol=1e-12, atol=1e-12)


def test_gradient_of_a_convolution():
    """Of Σ target · conv: by weight[r, s, c, o] it is Σ in[n, i+r, j+s, c] target[n, i, j, o], by bias[o] Σ target."""
    conv, images = Conv(2, 3, jax.random.key(0), size=3, padding=1), images_of(2, 5, 4, 2)
    target = np.random.default_rng(2).standard_normal((2, 5, 4, 3))
    slope = jax.grad(lambda c: jnp.sum(c(jnp.asarray(images)) * target))(conv)
    wide = np.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)))
    by_hand = [
        np.einsum("nijc,nijo->co", wide[:, r : r + 5, s : s + 4], target) for r in range(3) for s in range(3)
    ]  # fmt: skip
    np.testing.assert_allclose(slope.weight, np.concatenate(by_hand), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slope.bias, target.sum((0, 1, 2)), rtol=1e-12, atol=1e-12)
    back = jax.grad(lambda a: jnp.sum(conv(a) * target))(jnp.asarray(images))
    step = 1e-6
    for place in [(0, 0, 0, 0), (1, 4, 3, 1), (0, 2, 1, 1)]:
        moved = images.copy()
        moved[place] += step
        slope = np.sum((conv(jnp.asarray(moved)) - conv(jnp.asarray(images))) * target) / step
        np.testing.assert_allclose(back[place], slope, rtol=1e-5)


@pytest.mark.parametrize(
    ("shape", "size", "padding"),
    [slow((8, 8, 1), 5, 2), slow((14, 14, 2), 5, 0), slow((7, 9, 3), 3, 0), ((6, 7, 2), 3, 1)],
)
def test_pooled_convolution_and_its_gradient(shape, size, padding):
    """Odd sizes too, where pooling drops the last row or column."""
    conv, images = Conv(shape[-1], 3, jax.random.key(0), size=size, padding=padding), images_of(2, *shape)
    by_hand = naive_pool(naive_conv(np.asarray(conv.weight), np.asarray(conv.bias), images, size, padding))

    def examples_last(c, a):
        return pooled(c, a.transpose(3, 1, 2, 0)).transpose(3, 1, 2, 0)

    np.testing.assert_allclose(examples_last(conv, jnp.asarray(images)), by_hand, rtol=1e-12, atol=1e-12)
    target = np.random.default_rng(2).standard_normal(by_hand.shape)

    def slope(layer):
        return jax.grad(lambda c, a: jnp.sum(layer(c, a) * target), argnums=(0, 1))(conv, jnp.asarray(images))

    ours, plain = slope(examples_last), slope(lambda c, a: max_pool(c(a)))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_pooled_convolution_needs_an_odd_kernel():
    with pytest.raises(ValueError, match="odd size, got 4"):
        pooled(Conv(1, 2, jax.random.key(0), size=4), jnp.zeros((1, 8, 8, 1)))


@pytest.mark.parametrize(("network", "activation"), [(LeNet5, lambda a: np.maximum(a, 0)), (FashionCNN, np.tanh)])
def test_network_by_hand(network, activation):
    net, images = network((8, 8), 3, jax.random.key(0)), images_of(2, 8, 8, 1)
    h = images
    for conv in net.convs:  # activation first, as the papers have it
        h = naive_pool(activation(naive_conv(np.asarray(conv.weight), np.asarray(conv.bias), h, 3, 1)))
    h = h.reshape(2, -1)
    for number, dense in enumerate(net.denses):
        h = h @ np.asarray(dense.weight) + np.asarray(dense.bias)
        h = activation(h) if number < len(net.denses) - 1 else h
    np.testing.assert_allclose(net(jnp.asarray(images)), h, rtol=1e-10, atol=1e-12)


def test_xavier_start():
    """Weights of variance 2/(fan-in + fan-out), kernels' pixels counted; biases 1/outputs; FashionCNN starts so."""
    net = xavier(CifarCNN((32, 32, 3), 10, jax.random.key(0)), jax.random.key(1))
    for layer, fans in [(net.convs[2], 9 * 32 + 9 * 64), (net.denses[0], 1024 + 512), (net.denses[1], 512 + 64)]:
        np.testing.assert_allclose(np.var(layer.weight), 2 / fans, rtol=0.05)
        np.testing.assert_allclose(np.mean(layer.weight), 0, atol=4 * (2 / fans / layer.weight.size) ** 0.5)
        np.testing.assert_array_equal(layer.bias, np.full(layer.bias.shape, 1 / layer.bias.size))
    fashion = FashionCNN((28, 28), 10, jax.random.key(0))
    np.testing.assert_allclose(np.var(fashion.denses[0].weight), 2 / 350, rtol=0.05)
    np.testing.assert_array_equal(fashion.convs[0].bias, np.full(5, 0.2))


def test_layers_of_a_network_start_differently():
    net = LeNet5((28, 28), 10, jax.random.key(0))
    again, other = LeNet5((28, 28), 10, jax.random.key(0)), LeNet5((28, 28), 10, jax.random.key(1))
    assert eqx.tree_equal(net, again)
    assert not np.array_equal(net.convs[0].weight, other.convs[0].weight)
    flat = [np.ravel(layer.weight)[:20] / np.abs(layer.weight).max() for layer in (*net.convs, *net.denses)]
    assert len({tuple(np.round(values, 6)) for values in flat}) == len(flat)


@pytest.mark.parametrize("shape", [(28,), (2, 28, 28, 1)])
def test_what_is_no_image(shape):
    with pytest.raises(ValueError, match=r"shape must be \(height, width\)"):
        LeNet5(shape, 10, jax.random.key(0))


def test_images_too_small():
    with pytest.raises(ValueError, match=r"shape=\(4, 4\): too small for 3 convolutions"):
        CifarCNN((4, 4), 10, jax.random.key(0))
    assert isinstance(CifarCNN((8, 8), 10, jax.random.key(0)), ConvNet)
    assert isinstance(LeNet5((8, 8), 10, jax.random.key(0)).denses[0], Dense)
