"""Changes to messages: to their bytes, and to what stands in them."""

import copy
import json
import random
import struct

import numpy as np

from rookery.engines.flower.wire.pack import MAGIC

STRANGE = (
    None, True, False, -1, 0, 1, 2, 3, 7, 2**31 - 1, 2**31, 2**63, 10**18, 10**25, -(10**40), 0.5, -0.0, 1e308, float("inf"),
    float("nan"), "", "0", "1", "..", "/../../../victim/owned", "a/b", "\x00", "line\nline", "\ud800", "x" * 5000, "f" * 32,
    "F" * 32, "Documents", [], [[]], [0], [0, 0, 0], [0, 0, "/../../victim/owned"], [0, "a", "b"], [2**31, 0, 0], ["0"],
    [-1], {}, {"0": 0}, {"dict": {}}, {"lower": True, "upper": True}, {"lower": [1], "upper": [1]}, {"a": {"b": {"c": {}}}},
)  # fmt: skip
"""Values that are seldom where they belong."""

ARRAYS = (
    np.zeros(0, np.float32), np.zeros(2, np.float32), np.zeros(2), np.full(2, np.nan, np.float32), np.zeros((2, 2)),
    np.zeros(2, np.uint32), np.array(True), np.zeros((0, 10**6)), np.float64(3), np.arange(3, dtype=np.int64), None,
)  # fmt: skip


def places(value, where=()):
    """Where something stands in lists and tables, itself included."""
    found = [where]
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, each in entries:
        found += places(each, (*where, name))
    return found


def change(rng, value, strange):
    """A copy with something else in one place: another value, nothing, one more, or the value of another place."""
    where = rng.choice(places(value))
    if not where:
        return rng.choice(strange)
    value = copy.deepcopy(value)
    inside = value
    for name in where[:-1]:
        inside = inside[name]
    if isinstance(inside, tuple):  # what cannot be changed in place
        return value
    act = rng.randrange(8)
    if act == 0:
        del inside[where[-1]]
    elif act == 1 and isinstance(inside, dict):
        inside[rng.choice(("more", "0", "kind", "x\ny", "../0"))] = rng.choice(strange)
    elif act == 2 and isinstance(inside, list):
        inside.append(rng.choice(strange))
    else:
        inside[where[-1]] = rng.choice(strange)
    return value


def change_bytes(rng, buffer):
    """A copy with other bytes, fewer or more."""
    changed = bytearray(buffer)
    for _ in range(rng.choice((1, 1, 1, 2, 5, 20))):
        at = rng.randrange(len(changed) + 1)
        act = rng.randrange(5)
        if act == 0:
            del changed[at:]
        elif act == 1:
            del changed[at : at + rng.randrange(1, 20)]
        elif act == 2:
            changed[at:at] = rng.choice((b"9" * 30, b"[" * 50, b"\x00", b'"', b"}", b"NaN", b"-", rng.randbytes(4)))
        elif at < len(changed):
            changed[at] = rng.randrange(256)
        changed = changed or bytearray(b"R")
    return bytes(changed)


def change_header(rng, buffer):
    """A copy with something else in its header, which says its new length."""
    length = struct.unpack_from("<I", buffer, 4)[0]
    header = json.loads(buffer[8 : 8 + length])
    for _ in range(rng.choice((1, 1, 2, 4))):
        header = change(rng, header, STRANGE)
    text = json.dumps(header).encode(errors="replace")
    return MAGIC + struct.pack("<I", len(text)) + text + buffer[8 + length :]


def mutated(seed, messages):
    """One of the messages, changed in one way or another."""
    rng = random.Random(seed)
    buffer = rng.choice(messages)
    if rng.random() < 0.6:
        buffer = change_header(rng, buffer)
    return buffer if rng.random() < 0.5 else change_bytes(rng, buffer)
