"""Which network a user wants: by name, in a file of one's own, or as a thing of Python."""

import hashlib
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
from jax import Array

from rookery.models.layers import MLP, Dense
from rookery.models.networks import LeNet5, cnn
from rookery.models.pytorch import torch_seeded
from rookery.models.resnet import make_resnet18
from rookery.models.wrapped import Unfit, is_network, wrap
from rookery.modules import find_file, line_in, run_file, split_name
from rookery.names import unknown

BUILT_IN = ("linear", "mlp", "cnn", "lenet", "resnet18")
"""Networks that have a name."""
WIDTHS = (64,)
"""Of the hidden layers of ``mlp``, where none are given."""
DEFAULT = "make"
"""The function of a file, where none is named."""


class Headed(eqx.Module):
    """A representation with a head: head(relu(features(batch)))."""

    features: eqx.Module
    head: eqx.Module

    def __call__(self, batch: Array) -> Array:
        """(examples, ...) to (examples, outputs)."""
        features: Any = self.features
        head: Any = self.head
        found: Array = head(jax.nn.relu(features(batch)))
        return found


@dataclass(frozen=True)
class OwnFile:
    """A function in a Python file of a user's own: ``name`` as given, and the bytes that are run.

    ``file`` is where they were read, ``origin`` where the file was when it was first named.
    """

    name: str
    file: Path
    origin: Path
    content: bytes

    @property
    def sha256(self) -> str:
        """Of the content."""
        return hashlib.sha256(self.content).hexdigest()

    def thing(self) -> Any:
        """The function, or what else has its name there."""
        place, attribute = split_name(self.name)
        with _telling(self.name, "importing it", self.file):
            names = _run_once(place, self.file, self.origin, self.content)
        if (attribute or DEFAULT) not in names:
            raise ValueError(f"model {self.name}: {self.file.name} does not define {attribute or DEFAULT}")
        return names[attribute or DEFAULT]


_LAST_RUN: dict[tuple[str, Path], OwnFile] = {}
"""The files that models were made of: a file may be edited while a run goes on."""


def make_model(spec: Any, shape: Sequence[int], outputs: int, key: Array, trained: bool = True) -> eqx.Module:
    """A network from a float batch (examples, *shape) to (examples, outputs), as an Equinox module.

    Its leaves are float arrays, all of which are learned. It is tried on small batches without computing anything.

    Args:
        spec: ``"linear"``, ``"mlp:64,64"`` (widths of hidden layers), ``"cnn"``, ``"lenet"``, ``"resnet18"`` or
            ``"resnet18:FILE"`` (with pre-trained numbers); ``"my_models.py:make"`` or ``"package.module:make"``; or such a
            function, an Equinox, Flax or PyTorch module, an (init, apply) pair, a Haiku pair. A function is called with
            those of ``shape``, ``outputs`` and ``key`` that it names.
        shape: (features,) of a table; (height, width) or (height, width, channels) of images. Batches of images always
            have channels, and functions are told so: the shape of a grey image is (height, width, 1) to them.
        outputs: their number, of classes say.
        key: for random weights.
        trained: whether a pre-trained network reads its file; without, only its shapes are right.
    """
    shape = _example_shape(shape)
    if isinstance(outputs, bool) or not isinstance(outputs, int) or outputs < 1:
        raise ValueError(f"outputs must be a whole number of at least 1, got {outputs!r}")
    if not isinstance(spec, str):
        return make_of(spec, model_name(spec), shape, outputs, key)
    if _is_built_in(spec):
        return _make_built_in(spec, shape, outputs, key, trained)
    own = find_own(spec)
    model = make_of(own.thing(), spec, shape, outputs, key, own.file)
    _LAST_RUN[spec, own.origin] = own
    return model


def make_of(
    thing: Any, name: str, shape: tuple[int, ...], outputs: int, key: Array, file: Path | None = None
) -> eqx.Module:
    """The network of a function or a thing that is one; ``name`` and ``file`` are for what is said about it."""
    shape = _example_shape(shape)
    if callable(thing) and not is_network(thing):
        with _telling(name, "making it", file), torch_seeded(key):
            thing = _call(thing, {"shape": shape, "outputs": outputs, "key": key})
    with _telling(name, "trying it", file):
        model = wrap(thing, shape, outputs, key)
        hash(jax.tree.structure(model))  # else no program that has it could be compiled
    return model


def model_name(spec: Any) -> str:
    """What to call a model in tables."""
    if isinstance(spec, str):
        if _is_built_in(spec):
            kind = spec.partition(":")[0]
            return f"mlp:{','.join(map(str, _widths(spec)))}" if kind == "mlp" else kind
        place, attribute = split_name(spec)
        stem = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
        return f"{stem}:{attribute}" if attribute else stem
    if isinstance(spec, tuple | list):
        return "(init, apply)"
    if is_network(spec):
        return type(spec).__name__
    return str(getattr(spec, "__name__", type(spec).__name__))


def is_own_file(spec: Any) -> bool:
    """Whether a model is in a Python file, so that making it runs the file."""
    return isinstance(spec, str) and not _is_built_in(spec)


def find_own(spec: str) -> OwnFile:
    """The file that a model is in."""
    place, _ = split_name(spec)
    if place.endswith(".py"):
        file = Path(place).resolve()
        if not file.is_file():
            raise ValueError(f"model {spec}: there is no file {place}")
    else:
        named = all(part.isidentifier() for part in place.split("."))
        found = find_file(place) if named else None
        if found is None and named and ("." in place or place != spec):
            raise ValueError(f"model {spec}: there is no module {place}")
        if found is None:
            raise ValueError(f"model: {unknown(spec, BUILT_IN)}, or FILE.py:make")
        file = found
    return OwnFile(spec, file, file, file.read_bytes())


def file_that_ran(spec: str) -> OwnFile:
    """The file that a model of this process was made of, as it was then; else as it is now."""
    own = find_own(spec)
    return _LAST_RUN.get((spec, own.origin), own)


@lru_cache(maxsize=8)
def _run_once(place: str, file: Path, origin: Path, content: bytes) -> dict[str, Any]:
    """Classes and functions are the same ones in each call: what is compiled for one model serves the next."""
    return run_file(place, file, origin, content)


def _is_built_in(spec: str) -> bool:
    return spec.partition(":")[0] in BUILT_IN


def _make_built_in(spec: str, shape: tuple[int, ...], outputs: int, key: Array, trained: bool) -> eqx.Module:
    kind, colon, file = spec.partition(":")
    if kind == "resnet18":
        return make_resnet18(shape, outputs, key, file, trained)
    if colon and kind != "mlp":
        raise ValueError(f"model {spec}: {kind} takes nothing after its name")
    if kind in ("cnn", "lenet"):
        if len(shape) != 3:
            raise ValueError(f"model {kind} is for images, and an example here has the shape {shape}: try mlp:64,64")
        return (cnn if kind == "cnn" else LeNet5)(shape, outputs, key)
    inputs = math.prod(shape)
    return Dense(inputs, outputs, key) if kind == "linear" else MLP((inputs, *_widths(spec), outputs), key)


def _widths(spec: str) -> tuple[int, ...]:
    """Those of ``mlp:64,64``."""
    _, colon, text = spec.partition(":")
    words = [word.strip() for word in text.split(",")]
    if not colon:
        return WIDTHS
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise ValueError(f"model {spec}: the widths must be whole numbers of at least 1, such as mlp:64,64")
    return tuple(map(int, words))


def _example_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """As batches have it: images have channels."""
    found = tuple(shape)
    whole = all(isinstance(each, int) and not isinstance(each, bool) and each > 0 for each in found)
    if len(found) not in (1, 2, 3) or not whole:
        raise ValueError(
            f"shape must be (features,), (height, width) or (height, width, channels), got {tuple(shape)!r}"
        )
    return (*found, 1) if len(found) == 2 else found


def _call(function: Callable[..., Any], offered: dict[str, Any]) -> Any:
    """With what it names."""
    parameters = inspect.signature(function).parameters
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [name for name, each in parameters.items() if each.default is each.empty and each.kind not in variable]
    strange = [name for name in needed if name not in offered]
    if strange:
        raise Unfit(f"may ask for {', '.join(offered)}, and asks for {', '.join(strange)}")
    return function(**{name: value for name, value in offered.items() if name in parameters})


@contextmanager
def _telling(name: str, doing: str, file: Path | None = None) -> Iterator[None]:
    """What goes wrong in a user's own code is told in one line: the model, the error and where it was."""
    try:
        yield
    except Unfit as error:
        raise ValueError(f"model {name}: {error}") from None
    except (Exception, SystemExit) as error:
        where = "" if file is None else line_in(error, file)
        text = " ".join(str(error).split())
        raise ValueError(f"model {name}{where}: {doing} failed: {type(error).__name__}: {text}") from error
