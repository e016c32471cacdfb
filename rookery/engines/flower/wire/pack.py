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

from rookery.typing import Tree

MAGIC = b"RKY1"
DTYPES = ("float32", "float64", "int32", "int64", "uint32", "uint64", "bool")
"""What may travel; always little-endian."""

HEADER = 2**23
"""The most bytes of a header: read as JSON it takes some thirty times as many, so that this bounds what a lie may cost."""
ARRAYS = 2**18
"""The most arrays in a message."""
DIMENSIONS = 32
"""The most dimensions of an array: those that NumPy has had for long."""
DEPTH = 32
"""How deep lists and tables may be nested."""
DIGITS = 20
"""The most letters of a whole number: 64 bits."""

_HEAD = struct.Struct("<4sI")
_VAST = 2**40


class Malformed(ValueError):
    """A buffer that is not a message, or a message that is not what it should be."""


def pack(tree: Tree, meta: Mapping[str, Any] | None = None) -> bytes:
    """One buffer from a pytree of dictionaries, lists and tuples of arrays, and ``meta``, which JSON can hold."""
    arrays: list[np.ndarray] = []
    skeleton = _skeleton(tree, arrays, "message")
    told = [[array.dtype.name, list(array.shape)] for array in arrays]
    header = json.dumps({"meta": dict(meta or {}), "tree": skeleton, "arrays": told}).encode()
    if len(header) > HEADER or len(arrays) > ARRAYS:
        raise ValueError(
            f"a message has at most {ARRAYS} arrays and {HEADER} bytes before them, got {len(arrays)} and {len(header)}"
        )
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
        names = brief(sorted(used))
        raise Malformed(f"every array must be in the tree once, there are {len(arrays)} and it names {names}")
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
    if length > HEADER:
        raise Malformed(f"a header has at most {HEADER} bytes, this one {length}")
    if end > len(buffer):
        raise Malformed(f"the header has {length} bytes, the buffer only {len(buffer) - _HEAD.size} after its start")
    header = _json(bytes(buffer[_HEAD.size : end]))
    if not isinstance(header, dict) or set(header) != {"meta", "tree", "arrays"}:
        raise Malformed(f"the header must have meta, tree and arrays, got {brief(header)}")
    if not isinstance(header["meta"], dict) or not isinstance(header["arrays"], list):
        raise Malformed("the header's meta must be a table and its arrays a list")
    if len(header["arrays"]) > ARRAYS:
        raise Malformed(f"a message has at most {ARRAYS} arrays, this one {len(header['arrays'])}")
    _check_depth(header["meta"])
    return header, end


def _json(text: bytes) -> Any:
    try:
        return json.loads(
            text.decode(),
            parse_int=_whole,
            parse_float=_float,
            parse_constant=_infinity,
            object_pairs_hook=_table,
        )
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed(f"the header is not JSON: {brief(error)}") from None


def _whole(digits: str) -> int:
    """Checked before it is read: that takes the square of the number of digits."""
    if len(digits) > DIGITS:
        raise Malformed(f"a whole number has at most {DIGITS} letters, got {len(digits)}")
    return int(digits)


def _float(digits: str) -> float:
    if len(digits) > 2 * DIGITS:
        raise Malformed(f"a number has at most {2 * DIGITS} letters, got {len(digits)}")
    return float(digits)


def _infinity(name: str) -> float:
    """A rate may be infinite (a ball without a bound), but never NaN."""
    if name == "NaN":
        raise Malformed("a header holds no NaN")
    return float(name)


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise Malformed(f"a table of the header has a name twice: {brief([name for name, _ in pairs])}")
    return table


def _check_depth(value: Any, depth: int = 0) -> None:
    if depth > DEPTH:
        raise Malformed(f"lists and tables may be nested {DEPTH} deep at most")
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check_depth(each, depth + 1)


def brief(value: Any) -> str:
    """What came from outside, as one short line."""
    try:
        return plain(str(value), 80)
    except RecursionError:
        return f"a {type(value).__name__} that is nested too deep"


def plain(text: str, most: int = 300) -> str:
    """A text from outside as one line of printable letters, cut off after ``most``."""
    cut = text[:most] + ("..." if len(text) > most else "")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


def _array_of(told: Any, number: int) -> tuple[np.dtype, tuple[int, ...]]:
    if not isinstance(told, list) or len(told) != 2 or not isinstance(told[0], str) or told[0] not in DTYPES:
        kinds = ", ".join(DTYPES)
        raise Malformed(f"array {number} must be [dtype, shape] with a dtype of {kinds}, got {brief(told)}")
    dtype, shape = np.dtype(told[0]).newbyteorder("<"), told[1]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise Malformed(f"the shape of array {number} must be whole numbers, got {brief(shape)}")
    if len(shape) > DIMENSIONS or math.prod(max(size, 1) for size in shape) * dtype.itemsize > _VAST:
        raise Malformed(f"array {number} has more dimensions than {DIMENSIONS} or is too large: {brief(shape)}")
    return dtype, tuple(shape)


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


def _tree(skeleton: Any, arrays: list[np.ndarray], used: list[int], depth: int = 0) -> Tree:
    if depth > DEPTH:
        raise Malformed(f"lists and tables may be nested {DEPTH} deep at most")
    if skeleton is None:
        return None
    if type(skeleton) is int and 0 <= skeleton < len(arrays):
        used.append(skeleton)
        return arrays[skeleton]
    if isinstance(skeleton, dict) and len(skeleton) == 1:
        kind, parts = next(iter(skeleton.items()))
        if kind == "dict" and isinstance(parts, dict):
            return {name: _tree(each, arrays, used, depth + 1) for name, each in parts.items()}
        if kind in ("list", "tuple") and isinstance(parts, list):
            made = [_tree(each, arrays, used, depth + 1) for each in parts]
            return made if kind == "list" else tuple(made)
    raise Malformed(f"the tree names something unknown: {brief(skeleton)}")
