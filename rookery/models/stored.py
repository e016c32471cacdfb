"""Networks as files: arrays by name in ``model.safetensors``, with what is needed to build the network again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from safetensors.numpy import save

from rookery.files import write
from rookery.models.choice import Headed, OwnFile, file_that_ran, is_own_file, make_model, make_of
from rookery.models.layers import Dense
from rookery.models.tensors import read_tensors
from rookery.models.wrapped import Wrapped

MARK = "rookery"
"""The name of what a file says about its network, as JSON."""
VERSION = "1"
SOURCE = "source"
"""The name, in it, of what is known about a Python file of one's own."""


def save_model(path: Path, model: eqx.Module, about: Mapping[str, Any]) -> None:
    """Writes a network and what is known about it: all or nothing, and nothing if it could not be read again.

    The file has the arrays by name and, as JSON in its metadata, ``about``. A network from a Python file of one's own is
    written with a copy of that file beside it, ``model.py`` beside ``model.safetensors``.

    Args:
        path: where.
        model: the network.
        about: anything that JSON can say. ``model`` is the choice of :func:`rookery.models.choice.make_model` as text, None
            for one that was made of Python's things; ``shape`` and ``outputs`` are what it was made with; ``hidden``, where
            the network is :class:`rookery.models.choice.Headed`, the outputs of its features.
    """
    path = Path(path)
    told = _plain(about)
    spec, _, _, _ = _read_about(told)
    arrays = {name: np.asarray(array) for name, array in _arrays(model).items()}
    own = file_that_ran(spec) if spec is not None and is_own_file(spec) else None
    if own is not None:
        told[SOURCE] = {"file": str(own.origin), "sha256": own.sha256}
    if spec is not None:
        _fill(_build(told, own), arrays, "about does not describe the model")
    body = save(arrays, {MARK: json.dumps({MARK: VERSION, **told}, sort_keys=True)})
    if own is not None:
        _write_copy(path.with_suffix(".py"), own)
    write(path, body)


def load_model(path: Path, model: eqx.Module | None = None) -> tuple[eqx.Module, dict[str, Any]]:
    """(the network, what was stored about it).

    If it is from a Python file of one's own, the copy beside it is run, unless that has another checksum: load only what
    comes from people whose programs you would run. A network that was made of Python's things must be given as ``model``,
    with any numbers; those of the file take their place.
    """
    path = Path(path)
    arrays, about = _read(path)
    if model is None:
        own = _stored_file(path, about)
        try:
            model = _build(about, own)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: its model cannot be made: {error}") from None
    return _fill(model, arrays, f"{path} has other arrays than the model"), about


def _plain(about: Mapping[str, Any]) -> dict[str, Any]:
    """As it will be read."""
    reserved = [name for name in (MARK, SOURCE) if name in about]
    if reserved:
        raise ValueError(f"about must not have {reserved[0]!r}, which is written for you")
    try:
        found: dict[str, Any] = json.loads(json.dumps(dict(about), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"about must be what JSON can say: {error}") from None
    return found


def _read_about(about: Mapping[str, Any]) -> tuple[str | None, tuple[int, ...], int, int | None]:
    """(model, shape, outputs, hidden)."""
    spec, shape, outputs, hidden = (about.get(name) for name in ("model", "shape", "outputs", "hidden"))
    if spec is not None and not isinstance(spec, str):
        raise ValueError(f"model must be text or None, got {spec!r}")
    if spec is not None and not (isinstance(shape, list) and shape and all(_is_count(each) for each in shape)):
        raise ValueError(f"shape must be a list of whole numbers, got {shape!r}")
    if spec is not None and not _is_count(outputs):
        raise ValueError(f"outputs must be a whole number of at least 1, got {outputs!r}")
    if hidden is not None and not _is_count(hidden):
        raise ValueError(f"hidden must be a whole number of at least 1, got {hidden!r}")
    return spec, tuple(shape or ()), int(outputs or 0), hidden


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _build(about: Mapping[str, Any], own: OwnFile | None) -> eqx.Module:
    """The network with any numbers; one that has a name with none, only their shapes: a file may ask for any size."""
    spec, shape, outputs, hidden = _read_about(about)
    if spec is None:
        raise ValueError("it was made of Python's things: load_model(path, model=...) needs it again")

    def make(key: Array) -> eqx.Module:
        width = hidden or outputs
        if own is None:
            network = make_model(spec, shape, width, key, trained=False)
        else:
            network = make_of(own.thing(), own.name, shape, width, key, own.file)
        return network if hidden is None else Headed(network, Dense(hidden, outputs, key))

    key = jax.random.key(0)
    if own is not None:
        return make(key)
    found: eqx.Module = eqx.filter_eval_shape(make, key)
    return found


def _is_wrapped(node: Any) -> bool:
    return isinstance(node, Wrapped)


def _opened(model: Any) -> Any:
    """With what is wrapped in it as it was: its arrays that never move are stored too, they may have been drawn."""
    return jax.tree.map(lambda node: node.tree if _is_wrapped(node) else node, model, is_leaf=_is_wrapped)


def _arrays(model: eqx.Module) -> dict[str, Any]:
    """By name; of a network without numbers, the shapes."""
    found: dict[str, Any] = {}
    for path, leaf in jax.tree.leaves_with_path(_opened(model)):
        if _is_array(leaf):
            name = _name(path)
            if name in found:
                raise ValueError(f"model: two of its arrays have the name {name}")
            found[name] = leaf
    if not found:
        raise ValueError("model has no arrays to store")
    return found


def _is_array(leaf: Any) -> bool:
    return eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "value"


def _fill(model: eqx.Module, arrays: Mapping[str, np.ndarray], otherwise: str) -> eqx.Module:
    """The network with these arrays in their places."""
    wanted = _arrays(model)
    for name in [*wanted, *arrays]:
        has, needs = (_kind(each[name]) if name in each else "nothing" for each in (arrays, wanted))
        if has != needs:
            raise ValueError(f"{otherwise}: {name} is {has}, the model has {needs}")

    def put(path: Any, leaf: Any) -> Any:
        return jnp.asarray(arrays[_name(path)]) if _is_array(leaf) else leaf

    filled = jax.tree_util.tree_map_with_path(put, _opened(model))
    nodes, structure = jax.tree.flatten(model, is_leaf=_is_wrapped)
    parts = _up_to(structure, filled)
    closed = [Wrapped(part, node.apply) if _is_wrapped(node) else part for node, part in zip(nodes, parts, strict=True)]
    whole: eqx.Module = jax.tree.unflatten(structure, closed)
    return whole


def _up_to(structure: Any, tree: Any) -> list[Any]:
    found: list[Any] = structure.flatten_up_to(tree)
    return found


def _kind(array: Any) -> str:
    """Precision is a run's choice, and does not count."""
    kinds = {jnp.inexact: "floats", jnp.integer: "integers", jnp.bool_: "truth values"}
    found = next((name for kind, name in kinds.items() if jnp.issubdtype(array.dtype, kind)), str(array.dtype))
    return f"{found} {list(array.shape)}"


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    arrays, metadata = read_tensors(path)
    try:
        about = json.loads(metadata.get(MARK, "null"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged, or no file of a model: {' '.join(str(error).split())}") from None
    if not isinstance(about, dict) or MARK not in about:
        raise ValueError(f"{path} was not written by save_model: its metadata have no {MARK!r}")
    version = about.pop(MARK)
    if version != VERSION:
        raise ValueError(f"{path} has the form {version!r}, this Rookery knows {VERSION!r}")
    return arrays, about


def _stored_file(path: Path, about: Mapping[str, Any]) -> OwnFile | None:
    """The copy of the Python file that the network is from, if it is that copy; nothing of another one is run."""
    spec = about.get("model")
    if not is_own_file(spec):
        return None
    source, copy = about.get(SOURCE), path.with_suffix(".py")
    if not isinstance(source, dict) or not all(isinstance(source.get(name), str) for name in ("file", "sha256")):
        raise ValueError(f"{path} does not say which file {spec} is from, and nothing else is run")
    if not copy.is_file():
        raise ValueError(f"there is no file {copy}, the copy of {source['file']} that the model needs")
    own = OwnFile(str(spec), copy, Path(source["file"]), copy.read_bytes())
    if own.sha256 != source["sha256"]:
        raise ValueError(f"{copy} is not the file that the model in {path} was made with: it is not run")
    return own


def _write_copy(copy: Path, own: OwnFile) -> None:
    if copy.is_file() and copy.read_bytes() == own.content:
        return
    if copy.exists():
        raise ValueError(
            f"{copy} is another file than that of model {own.name}: move it away, or save the model elsewhere"
        )
    write(copy, own.content)
