"""Networks, as Equinox modules that map a batch to a batch."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.devices import own_convolution


class Dense(eqx.Module):
    """batch @ weight + bias."""

    weight: Array
    bias: Array

    def __init__(self, inputs: int, outputs: int, key: Array):
        """Uniform in ±1/√inputs, as PyTorch starts a linear layer."""
        bound = 1 / inputs**0.5
        w_key, b_key = jax.random.split(key)
        flat = jax.random.uniform(w_key, (inputs * outputs,), minval=-bound, maxval=bound)
        self.weight = flat.reshape(inputs, outputs)  # the same numbers, for which XLA compiles five times as fast
        self.bias = jax.random.uniform(b_key, (outputs,), minval=-bound, maxval=bound)

    def __call__(self, batch: Array) -> Array:
        """(examples, inputs) to (examples, outputs); images are flattened."""
        return batch.reshape(batch.shape[0], -1) @ self.weight + self.bias


class MLP(eqx.Module):
    """Dense layers with ReLU between them; ``widths`` are those of input, hidden layers and output."""

    layers: tuple[Dense, ...]

    def __init__(self, widths: Sequence[int], key: Array):
        if len(widths) < 2:
            raise ValueError(f"widths must name an input and an output at least, got {widths!r}")
        keys = jax.random.split(key, len(widths) - 1)
        pairs = zip(widths[:-1], widths[1:], keys, strict=True)
        self.layers = tuple(Dense(inputs, outputs, own) for inputs, outputs, own in pairs)

    def __call__(self, batch: Array) -> Array:
        """(examples, inputs) to (examples, outputs); images are flattened."""
        *hidden, last = self.layers
        for layer in hidden:
            batch = jax.nn.relu(layer(batch))
        return last(batch)


def cross_entropies(logits: Array, labels: Array) -> Array:
    """−log softmax at the label, of each example.

    By a product with one-hot labels: its gradient is a dense expression, where that of an indexed one is a scatter.
    """
    hot = jax.nn.one_hot(labels, logits.shape[-1], dtype=logits.dtype)
    return jax.nn.logsumexp(logits, -1) - jnp.sum(hot * logits, -1)


def cross_entropy(logits: Array, labels: Array) -> Array:
    """The mean over the batch of −log softmax at the label."""
    return jnp.mean(cross_entropies(logits, labels))


def squared_norm(tree: eqx.Module) -> Array:
    """‖tree‖², over all of its arrays."""
    return sum((jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(tree)), jnp.zeros(()))


class Conv(eqx.Module):
    """A convolution with square kernels: (examples, height, width, channels) to the same.

    By the device's own convolution or, on a CPU, as one product of matrices: ``lax.conv_general_dilated`` under ``vmap``
    over clients, each with its own kernel, is a grouped convolution, and many times slower there than gathering the
    patches and one batched product.
    """

    weight: Array
    """(size · size · inputs, outputs), a patch's rows, columns and channels flattened in this order."""
    bias: Array
    size: int = eqx.field(static=True)
    padding: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, key: Array, *, size: int = 3, padding: int = 0, stride: int = 1):
        """Uniform in ±1/√(size² inputs), as PyTorch starts a convolution."""
        dense = Dense(size * size * inputs, outputs, key)
        self.weight, self.bias, self.size, self.padding = dense.weight, dense.bias, size, padding
        self.stride = stride

    def __call__(self, batch: Array) -> Array:
        """Height and width become (size + 2 padding − kernel)/stride, rounded down, + 1."""
        return convolved(batch, self.weight, self.size, self.padding, self.stride) + self.bias


def convolved(batch: Array, weight: Array, size: int, padding: int, stride: int = 1) -> Array:
    """A batch convolved with ``weight`` as :class:`Conv` has it, a patch every ``stride`` pixels."""
    compute = _by_device if own_convolution() else _by_product
    return compute(batch, weight, size, padding, stride)


def _by_device(batch: Array, weight: Array, size: int, padding: int, stride: int) -> Array:
    dtype = jnp.result_type(batch, weight)  # a product of matrices takes two, this one does not
    kernel = weight.astype(dtype).reshape(size, size, batch.shape[-1], -1)
    margins, axes = [(padding, padding)] * 2, ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(batch.astype(dtype), kernel, (stride, stride), margins, dimension_numbers=axes)


def _by_product(batch: Array, weight: Array, size: int, padding: int, stride: int) -> Array:
    batch = jnp.pad(batch, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = batch.shape[1] - size + 1, batch.shape[2] - size + 1
    patches = [batch[:, i : i + height : stride, j : j + width : stride] for i in range(size) for j in range(size)]
    return jnp.concatenate(patches, -1) @ weight


def max_pool(batch: Array) -> Array:
    """The largest of each 2×2 block; an odd last row or column is dropped.

    By slices and ``maximum``, whose gradient any device computes element by element in one pass; that of
    ``reduce_window`` scatters, and is slow under ``vmap`` on a CPU.
    """
    height, width = batch.shape[1] // 2 * 2, batch.shape[2] // 2 * 2
    rows = jnp.maximum(batch[:, 0:height:2], batch[:, 1:height:2])
    return jnp.maximum(rows[:, :, 0:width:2], rows[:, :, 1:width:2])


class ConvFeatures(eqx.Module):
    """The representation of few-shot learning: layers of ``filters`` 3×3 convolutions, normalised, with ReLU and pooling.

    (examples, height, width, channels) to (examples, features). A layer's output is normalised over all positions and
    filters of one example, then scaled and shifted for each filter: a batch's statistics would tie examples to one
    another, and the loss would be no mean over them. 2×2 pooling ends a layer as long as there are 2×2 positions; if
    ``strided``, convolutions take every second position instead, at a fraction of the cost, as MAML does on Omniglot.
    """

    convolutions: tuple[Conv, ...]
    scales: tuple[Array, ...]
    shifts: tuple[Array, ...]

    def __init__(self, channels: int, filters: int, layers: int, key: Array, *, strided: bool = False):
        inputs = (channels, *[filters] * (layers - 1))
        pairs = zip(inputs, keys := jax.random.split(key, layers), strict=True)
        self.convolutions = tuple(Conv(i, filters, own, padding=1, stride=1 + strided) for i, own in pairs)
        self.scales = tuple(jnp.ones(filters) for _ in keys)
        self.shifts = tuple(jnp.zeros(filters) for _ in keys)

    def __call__(self, batch: Array) -> Array:
        """The features of each example."""
        for convolution, scale, shift in zip(self.convolutions, self.scales, self.shifts, strict=True):
            batch = jax.nn.relu(scale * _normalised(convolution(batch)) + shift)
            if convolution.stride == 1 and min(batch.shape[1:3]) >= 2:
                batch = max_pool(batch)
        return batch.reshape(batch.shape[0], -1)


def _normalised(batch: Array) -> Array:
    """Each example with mean 0 and variance 1."""
    mean = jnp.mean(batch, (1, 2, 3), keepdims=True)
    variance = jnp.mean((batch - mean) ** 2, (1, 2, 3), keepdims=True)
    return (batch - mean) / jnp.sqrt(variance + 1e-5)
