"""ResNet-18, with the numbers that it has learned from ImageNet."""

import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial, reduce
from itertools import pairwise
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rookery.models.layers import Dense, convolved
from rookery.models.tensors import read_tensors

FILE = "resnet18.safetensors"
"""Where the numbers are looked for, in the folder that ROOKERY_DATA names."""
WIDTHS = (64, 128, 256, 512)
"""Channels of the four stages, each of two blocks."""
_EPSILON = 1e-5
_MAKE = (
    'python -c "import torchvision, safetensors.torch as s; '
    f"s.save_file(torchvision.models.resnet18(weights='IMAGENET1K_V1').state_dict(), '{FILE}')\""
)


class Frozen(eqx.Module):
    """A convolution without bias, then a scale and a shift of each channel.

    That is a batch normalisation with frozen statistics: a batch's own would tie its examples together.
    """

    weight: Array
    """As :class:`rookery.models.layers.Conv` has it."""
    scale: Array
    shift: Array
    size: int = eqx.field(static=True)
    stride: int = eqx.field(static=True)

    def __init__(self, inputs: int, outputs: int, key: Array, *, size: int = 3, stride: int = 1):
        """Normal with variance 2/(size² outputs), as torchvision starts it."""
        flat = jax.random.normal(key, (size * size * inputs * outputs,)) * (2 / (size * size * outputs)) ** 0.5
        self.weight, self.scale, self.shift = flat.reshape(-1, outputs), jnp.ones(outputs), jnp.zeros(outputs)
        self.size, self.stride = size, stride

    def __call__(self, batch: Array) -> Array:
        """(examples, height, width, inputs) to (examples, height/stride, width/stride, outputs), rounded up."""
        return convolved(batch, self.weight, self.size, self.size // 2, self.stride) * self.scale + self.shift


class Block(eqx.Module):
    """relu(second(relu(first(batch))) + batch), or + shortcut(batch) where the shape changes."""

    first: Frozen
    second: Frozen
    shortcut: Frozen | None

    def __init__(self, inputs: int, outputs: int, key: Array, *, stride: int):
        keys = jax.random.split(key, 3)
        self.first = Frozen(inputs, outputs, keys[0], stride=stride)
        self.second = Frozen(outputs, outputs, keys[1])
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else Frozen(inputs, outputs, keys[2], size=1, stride=stride)

    def __call__(self, batch: Array) -> Array:
        """The same examples, seen more widely."""
        kept = batch if self.shortcut is None else self.shortcut(batch)
        return jax.nn.relu(self.second(jax.nn.relu(self.first(batch))) + kept)


class ResNet18(eqx.Module):
    """ResNet-18 for images in three colours, normalised as ImageNet's; all of its numbers are learned.

    Kaiming He, Xiangyu Zhang, Shaoqing Ren, Jian Sun. Deep Residual Learning for Image Recognition. CVPR 2016. A 7×7
    convolution and a 3×3 maximum halve the image each, four stages of two blocks follow, the last three of which halve it
    again, and a dense layer on the mean over all positions.
    """

    stem: Frozen
    blocks: tuple[Block, ...]
    head: Dense

    def __init__(self, outputs: int, key: Array):
        keys, widths = iter(jax.random.split(key, 10)), WIDTHS
        self.stem = Frozen(3, widths[0], next(keys), size=7, stride=2)
        sizes = pairwise([widths[0], *(width for width in widths for _ in range(2))])
        strides = (1, 1, 2, 1, 2, 1, 2, 1)
        pairs = zip(sizes, strides, strict=True)
        self.blocks = tuple(Block(i, o, next(keys), stride=stride) for (i, o), stride in pairs)
        self.head = Dense(widths[-1], outputs, next(keys))

    def __call__(self, batch: Array) -> Array:
        """(examples, height, width, 3) to (examples, outputs)."""
        batch = _halved(jax.nn.relu(self.stem(batch)))
        for block in self.blocks:
            batch = block(batch)
        return self.head(jnp.mean(batch, (1, 2)))


def make_resnet18(shape: tuple[int, ...], outputs: int, key: Array, file: str = "", trained: bool = True) -> ResNet18:
    """ResNet-18 with the numbers of ``file``, by default of $ROOKERY_DATA/resnet18.safetensors, and a new head.

    If it is not to be ``trained``, all of it is random.
    """
    if len(shape) != 3 or shape[2] != 3:
        raise ValueError(f"model resnet18 is for images in three colours, and an example here has the shape {shape}")
    if not trained:
        return ResNet18(outputs, key)
    path = _find(file)
    network = eqx.filter_eval_shape(lambda: ResNet18(outputs, key))
    head = Dense(WIDTHS[-1], outputs, key)
    whole: ResNet18 = eqx.tree_at(lambda each: each.head, with_weights(network, read_tensors(path)[0], str(path)), head)
    return whole


def with_weights(network: ResNet18, arrays: Mapping[str, np.ndarray], origin: str) -> ResNet18:
    """The network, its head excepted, with arrays by torchvision's names; ``origin`` is what messages call them."""
    array = partial(_checked, arrays, origin)
    layers = [_frozen(layer, array, conv, norm) for conv, norm, layer in _layers(network)]
    filled: ResNet18 = eqx.tree_at(lambda each: [layer for *_, layer in _layers(each)], network, layers)
    return filled


def _checked(arrays: Mapping[str, np.ndarray], origin: str, name: str, *shape: int) -> np.ndarray:
    """The floats of this name and shape."""
    if name not in arrays:
        raise ValueError(f"{origin}: there is no {name} in it, which resnet18 needs")
    found = arrays[name]
    if found.shape != shape or not np.issubdtype(found.dtype, np.floating):
        raise ValueError(f"{origin}: {name} is {found.dtype} {list(found.shape)}, must be floats {list(shape)}")
    return found.astype(float)


def _frozen(layer: Frozen, array: Callable[..., np.ndarray], conv: str, norm: str) -> Frozen:
    """(w ∗ x − mean)/√(variance + ε)·γ + β as a scale and a shift."""
    rows, outputs = layer.weight.shape
    kernel = array(f"{conv}.weight", outputs, rows // layer.size**2, layer.size, layer.size)
    gamma, beta, mean, variance = (
        array(f"{norm}.{name}", outputs) for name in ("weight", "bias", "running_mean", "running_var")
    )
    scale = gamma / np.sqrt(variance + _EPSILON)
    parts = kernel.transpose(2, 3, 1, 0).reshape(rows, outputs), scale, beta - mean * scale
    new = tuple(jnp.asarray(part, dtype=float) for part in parts)
    filled: Frozen = eqx.tree_at(lambda each: (each.weight, each.scale, each.shift), layer, new)
    return filled


def _layers(network: ResNet18) -> Iterator[tuple[str, str, Frozen]]:
    """torchvision's names of each convolution and its normalisation."""
    yield "conv1", "bn1", network.stem
    for number, block in enumerate(network.blocks):
        name = f"layer{number // 2 + 1}.{number % 2}"
        yield f"{name}.conv1", f"{name}.bn1", block.first
        yield f"{name}.conv2", f"{name}.bn2", block.second
        if block.shortcut is not None:
            yield f"{name}.downsample.0", f"{name}.downsample.1", block.shortcut


def _halved(batch: Array) -> Array:
    """The largest of 3×3 pixels around every second one. Nothing is negative after a ReLU, so zeros may surround them."""
    batch = jnp.pad(batch, ((0, 0), (1, 1), (1, 1), (0, 0)))
    height, width = batch.shape[1] - 2, batch.shape[2] - 2
    rows = reduce(jnp.maximum, (batch[:, i : i + height : 2] for i in range(3)))
    return reduce(jnp.maximum, (rows[:, :, j : j + width : 2] for j in range(3)))


def weights_file(file: str = "") -> Path | None:
    """Where the numbers are: ``file``, by default $ROOKERY_DATA/resnet18.safetensors; None if they are not there."""
    folder = os.environ.get("ROOKERY_DATA")
    path = Path(file or Path(folder or "") / FILE).expanduser()
    return path if path.is_file() and (file or folder) else None


def _find(file: str) -> Path:
    path = weights_file(file)
    if path is not None:
        return path
    folder = os.environ.get("ROOKERY_DATA")
    where = file or (Path(folder) / FILE if folder else f"$ROOKERY_DATA/{FILE}, and ROOKERY_DATA is not set")
    raise ValueError(f"model resnet18: there is no {where}; with torchvision it is made by: {_MAKE}")
