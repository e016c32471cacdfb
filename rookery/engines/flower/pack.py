"""A message as one buffer: arrays one after the other behind a small header.

Flower spends several requests on every array it knows of, so a whole pytree travels as one. What is counted as traffic
are the bytes of the arrays (the payload), as in the simulator; the header is not counted.
"""

import json
import math
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

Tree = Any

MAGIC = b"RKY1"
DTYPES = ("float32", "float64", "int32", "int64", "uint32", "bool")
"""What may travel; always little-endian."""

_HEAD = struct.Struct("<4sI")


class Malformed(ValueError):
    """A buffer that is not a message."""


def pack(tree: Tree, meta: Mapping[str, Any] | None = None) -> bytes:
    """One buffer from a pytree of dictionaries, lists and tuples of arrays, and ``meta``, which JSON can hold."""
    arrays: list[np.ndarray] = []
    skeleton = _skeleton(tree, arrays, "message")
    told = [[array.dtype.name, list(array.shape)] for array in arrays]
    header = json.dumps({"meta": dict(meta or {}), "tree": skeleton, "arrays": told}).encode()
    return b"".join([_HEAD.pack(MAGIC, len(header)), header, *(array.tobytes() for array in arrays)])


def unpack(buffer: bytes) -> tuple[Tree, dict[str, Any]]:
    """(tree, meta) from a buffer; :class:`Malformed` says what is wrong with it."""
    header, start = _header(buffer)
    arrays = []
    for number, told in enumerate(header["arrays"]):
        dtype, shape = _array_of(told, number)
        size = math.prod(shape) * dtype.itemsize
        if start + size > len(buffer):
            raise Malformed(f"array {number} needs {size} bytes, the buffer has {len(buffer) - start} left")
        raw = buffer[start : start + size]
        if dtype == np.bool_ and raw.strip(b"\x00\x01"):
            raise Malformed(f"array {number} of booleans holds another number than 0 and 1")
        arrays.append(np.frombuffer(raw, dtype).reshape(shape))
        start += size
    if start != len(buffer):
        raise Malformed(f"the buffer has {len(buffer) - start} bytes too many")
    used: list[int] = []
    tree = _tree(header["tree"], arrays, used)
    if sorted(used) != list(range(len(arrays))):
        raise Malformed(f"every array must be in the tree once, there are {len(arrays)} and it names {sorted(used)}")
    return tree, header["meta"]


def payload_bytes(buffer: bytes) -> int:
    """The bytes of the arrays of a message: all but its header."""
    return len(buffer) - _header(buffer)[1]


def _header(buffer: bytes) -> tuple[dict[str, Any], int]:
    """The header, and where the arrays start."""
    if len(buffer) < _HEAD.size or buffer[: len(MAGIC)] != MAGIC:
        raise Malformed(f"a message starts with {MAGIC!r}, got {bytes(buffer[:8])!r}")
    length = _HEAD.unpack_from(buffer)[1]
    end = _HEAD.size + length
    if end > len(buffer):
        raise Malformed(f"the header has {length} bytes, the buffer only {len(buffer) - _HEAD.size} after its start")
    try:
        header = json.loads(buffer[_HEAD.size : end])
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the header is not JSON: {error}") from None
    if not isinstance(header, dict) or set(header) != {"meta", "tree", "arrays"}:
        raise Malformed(f"the header must have meta, tree and arrays, got {str(header)[:80]}")
    if not isinstance(header["meta"], dict) or not isinstance(header["arrays"], list):
        raise Malformed("the header's meta must be a table and its arrays a list")
    return header, end


def _array_of(told: Any, number: int) -> tuple[np.dtype, tuple[int, ...]]:
    if not isinstance(told, list) or len(told) != 2 or told[0] not in DTYPES or not isinstance(told[1], list):
        raise Malformed(f"array {number} must be [dtype, shape] with a dtype of {', '.join(DTYPES)}, got {told!r}")
    if not all(type(size) is int and size >= 0 for size in told[1]):
        raise Malformed(f"the shape of array {number} must be whole numbers, got {told[1]!r}")
    return np.dtype(told[0]).newbyteorder("<"), tuple(told[1])


def _skeleton(tree: Tree, arrays: list[np.ndarray], where: str) -> Any:
    """The structure, with numbers for the arrays, which are appended."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        for name in tree:
            if not isinstance(name, str):
                raise TypeError(f"{where}: names of arrays must be strings, got {name!r}")
        return {"dict": {name: _skeleton(tree[name], arrays, f"{where}.{name}") for name in sorted(tree)}}
    if type(tree) in (list, tuple):
        parts = [_skeleton(each, arrays, f"{where}[{i}]") for i, each in enumerate(tree)]
        return {type(tree).__name__: parts}
    try:
        array = np.asarray(tree)
    except (TypeError, ValueError):
        array = np.asarray(None)
    if array.dtype.name not in DTYPES:
        kind = getattr(tree, "dtype", type(tree).__name__)
        raise TypeError(f"{where} must be an array of one of {', '.join(DTYPES)}, got {kind}")
    arrays.append(array.astype(array.dtype.newbyteorder("<"), copy=False))
    return len(arrays) - 1


def _tree(skeleton: Any, arrays: list[np.ndarray], used: list[int]) -> Tree:
    if skeleton is None:
        return None
    if type(skeleton) is int and 0 <= skeleton < len(arrays):
        used.append(skeleton)
        return arrays[skeleton]
    if isinstance(skeleton, dict) and len(skeleton) == 1:
        kind, parts = next(iter(skeleton.items()))
        if kind == "dict" and isinstance(parts, dict):
            return {name: _tree(each, arrays, used) for name, each in parts.items()}
        if kind in ("list", "tuple") and isinstance(parts, list):
            made = [_tree(each, arrays, used) for each in parts]
            return made if kind == "list" else tuple(made)
    raise Malformed(f"the tree names something unknown: {str(skeleton)[:80]}")
