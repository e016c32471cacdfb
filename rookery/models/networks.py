"""The convolutional networks of the papers, sized from the shape of an image."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from rookery.devices import own_convolution
from rookery.models.layers import Conv, Dense

Network = TypeVar("Network", bound=eqx.Module)


class ConvNet(eqx.Module):
    """Convolutions, each with a 2×2 maximum and an activation, then dense layers with activations between them.

    Maps (examples, height, width, channels) to (examples, outputs). Layers start as in PyTorch; see :func:`xavier`.
    The activation must not decrease: it then commutes with the maximum, and is taken after it, of a quarter of the values.
    """

    convs: tuple[Conv, ...]
    denses: tuple[Dense, ...]
    activation: Callable[[Array], Array] = eqx.field(static=True)

    def __init__(
        self,
        shape: tuple[int, ...],
        outputs: int,
        key: Array,
        *,
        channels: tuple[int, ...],
        hidden: tuple[int, ...],
        size: int,
        paddings: tuple[int, ...],
        activation: Callable[[Array], Array],
    ):
        """``channels`` and ``paddings`` of each convolution with ``size``² kernels, ``hidden`` units of dense layers."""
        height, width, depth = _image(shape)
        keys = iter(jax.random.split(key, len(channels) + len(hidden) + 1))
        convs = []
        for wide, padding in zip(channels, paddings, strict=True):
            convs.append(Conv(depth, wide, next(keys), size=size, padding=padding))
            height, width, depth = (height + 2 * padding - size + 1) // 2, (width + 2 * padding - size + 1) // 2, wide
            if height < 1 or width < 1:
                raise ValueError(f"shape={shape}: too small for {len(channels)} convolutions of {size}×{size}")
        widths = (height * width * depth, *hidden, outputs)
        self.convs = tuple(convs)
        self.denses = tuple(Dense(i, o, next(keys)) for i, o in pairwise(widths))
        self.activation = activation

    @property
    def dtype(self) -> Any:
        """Of its weights, which images should have."""
        return self.denses[0].weight.dtype

    def __call__(self, images: Array) -> Array:
        """(examples, height, width, channels) to (examples, outputs)."""
        h = self._by_device(images) if own_convolution() else self._by_product(images)
        h = h.reshape(images.shape[0], -1)
        for dense in self.denses[:-1]:
            h = self.activation(dense(h))
        return self.denses[-1](h)

    def _by_device(self, images: Array) -> Array:
        """Examples stay first: a library's convolution chooses its layout itself, and transposes would only cost."""
        for conv in self.convs:
            images = self.activation(_largest(conv(images)))
        return images

    def _by_product(self, images: Array) -> Array:
        h = images.transpose(3, 1, 2, 0)
        for conv in self.convs:
            h = self.activation(pooled(conv, h))
        return h.transpose(3, 1, 2, 0)


class LeNet5(ConvNet):
    """LeNet-5 with ReLU and maxima: 5×5 convolutions to 6 and 16 channels, dense layers of 120, 84 and the outputs.

    Images of 28×28 are padded to 32×32. For small images (below 28 pixels a side, scikit-learn's digits say) the
    kernels are 3×3 with padding 1. Its seven layers, pooling counted, are the "7-layer CNN" of MeFBO's paper.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int, key: Array):
        side = min(_image(shape)[:2])
        small = side < 28
        super().__init__(
            shape, outputs, key, channels=(6, 16), hidden=(120, 84), size=3 if small else 5,
            paddings=(1, 1) if small else (max(0, (32 - side) // 2), 0), activation=jax.nn.relu,
        )  # fmt: skip


class FashionCNN(ConvNet):
    """FedSGDA's network for Fashion-MNIST: 3×3 convolutions to 5 and 10 channels, dense 100 and the outputs, tanh.

    It starts as :func:`xavier` says.
    """

    def __init__(self, shape: tuple[int, ...], outputs: int, key: Array):
        small = min(_image(shape)[:2]) < 28  # unpadded, 8×8 pixels would shrink to one
        super().__init__(
            shape, outputs, key, channels=(5, 10), hidden=(100,), size=3, paddings=(int(small),) * 2, activation=jnp.tanh
        )  # fmt: skip
        started = xavier(self, key)
        self.convs, self.denses = started.convs, started.denses


class CifarCNN(ConvNet):
    """FedSGDA's network for CIFAR-10: padded 3×3 convolutions to 16, 32, 64 channels, dense 512, 64, the outputs; ReLU."""

    def __init__(self, shape: tuple[int, ...], outputs: int, key: Array):
        super().__init__(
            shape, outputs, key, channels=(16, 32, 64), hidden=(512, 64), size=3, paddings=(1, 1, 1),
            activation=jax.nn.relu,
        )  # fmt: skip


def pooled(conv: Conv, batch: Array) -> Array:
    """Convolution with an odd kernel, then 2×2 maxima: (channels, height, width, examples), likewise of the result.

    One product of matrices gives each 2×2 block of the convolution. A block sees (size + 1)² pixels. Four shifted copies
    of the kernel, padded by zeros to this size, make one matrix with 4·outputs rows, and the maximum is over four groups
    of rows. That is (1 + 1/size)² times the arithmetic, but a third of the patches and a wider product. Examples come
    last, so that all that is cut and put together are long runs of numbers: with few channels several times as fast on
    a CPU.
    """
    if conv.size % 2 == 0:
        raise ValueError(f"conv: the kernel must have an odd size, got {conv.size}")
    p, inputs, examples = conv.padding, batch.shape[0], batch.shape[-1]
    batch = jnp.pad(batch, ((0, 0), (p, p), (p, p), (0, 0)))
    height, width = batch.shape[1] // 2, batch.shape[2] // 2  # an odd last row would only reach what a maximum drops
    blocks = batch[:, : 2 * height, : 2 * width].reshape(inputs, height, 2, width, 2, examples)
    blocks = blocks.transpose(2, 4, 0, 1, 3, 5).reshape(4 * inputs, height, width, examples)
    reach = (conv.size + 1) // 2
    rows, columns = height - reach + 1, width - reach + 1
    tall = jnp.concatenate([blocks[:, i : i + rows] for i in range(reach)])
    patches = jnp.concatenate([tall[:, :, j : j + columns] for j in range(reach)])
    corners = jnp.split(_four_kernels(conv, inputs) @ patches.reshape(patches.shape[0], -1), 4)
    largest = _larger(_larger(corners[0], corners[1]), _larger(corners[2], corners[3]))
    return (largest + conv.bias[:, None]).reshape(-1, rows, columns, examples)


def _largest(batch: Array) -> Array:
    """As ``max_pool``, but at a tie, as of blank pixels, with the same gradient as :func:`pooled`."""
    height, width = batch.shape[1] // 2 * 2, batch.shape[2] // 2 * 2
    rows = [_larger(batch[:, i:height:2, 0:width:2], batch[:, i:height:2, 1:width:2]) for i in (0, 1)]
    return _larger(*rows)


def _four_kernels(conv: Conv, inputs: int) -> Array:
    """The kernel at the four corners of (size + 1)² pixels, 4·outputs × pixels, in the order of ``pooled``'s patches."""
    size, reach = conv.size, (conv.size + 1) // 2
    kernel = conv.weight.reshape(size, size, inputs, -1)
    corners = [jnp.pad(kernel, ((i, 1 - i), (j, 1 - j), (0, 0), (0, 0))) for i in (0, 1) for j in (0, 1)]
    pixels = jnp.concatenate(corners, -1).reshape(reach, 2, reach, 2, inputs, -1)
    return pixels.transpose(5, 2, 0, 1, 3, 4).reshape(-1, reach * reach * 4 * inputs)


def _larger(a: Array, b: Array) -> Array:
    """By a choice: at a tie ``maximum`` would halve the gradient, for which it divides everywhere."""
    return jnp.where(a > b, a, b)


def xavier(network: Network, key: Array) -> Network:
    """The network with weights drawn from N(0, 2/(fan-in + fan-out)) and every bias of a layer 1/(its outputs).

    A convolution's fans count the pixels of its kernel.
    """

    def is_layer(node: object) -> bool:
        return isinstance(node, Conv | Dense)

    layers, structure = jax.tree.flatten(network, is_leaf=is_layer)
    keys = jax.random.split(key, len(layers))
    found: Network = jax.tree.unflatten(structure, [_xavier(layer, k) for layer, k in zip(layers, keys, strict=True)])
    return found


def _xavier(layer: Conv | Dense, key: Array) -> Conv | Dense:
    fan_in, outputs = layer.weight.shape
    fan_out = outputs * (layer.size**2 if isinstance(layer, Conv) else 1)
    flat = jax.random.normal(key, (layer.weight.size,), layer.weight.dtype)  # as in Dense
    weight = flat.reshape(layer.weight.shape) * (2 / (fan_in + fan_out)) ** 0.5
    bias = jnp.full_like(layer.bias, 1 / outputs)
    found: Conv | Dense = eqx.tree_at(lambda each: (each.weight, each.bias), layer, (weight, bias))
    return found


def cnn(shape: tuple[int, ...], outputs: int, key: Array) -> ConvNet:
    """FedSGDA's network for such images: :class:`CifarCNN` for colours, else :class:`FashionCNN`."""
    return CifarCNN(shape, outputs, key) if _image(shape)[2] == 3 else FashionCNN(shape, outputs, key)


def _image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(height, width, channels) of images stored with or without an axis of channels."""
    if len(shape) not in (2, 3):
        raise ValueError(f"shape must be (height, width) or (height, width, channels), got {shape}")
    return (shape[0], shape[1], shape[2] if len(shape) == 3 else 1)
