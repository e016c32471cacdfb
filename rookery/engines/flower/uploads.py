"""Which uploads can be counted: of the right dtypes and shapes, finite, and all of one structure."""

from collections.abc import Mapping, Sequence

import jax

from rookery.algorithm.cost import described
from rookery.algorithm.walk import not_finite
from rookery.engines.flower.wire.answers import Answer
from rookery.engines.flower.wire.pack import plain
from rookery.typing import Tree

Judged = tuple[dict[int, Tree], dict[int, str]]
"""The good uploads by client, and for each of the others why it is none."""


def part_names(wanted: Mapping[str, str]) -> tuple[str, ...]:
    """The parts of an upload whose arrays have these names, such as ``['y']['w']``."""
    return tuple(sorted({name[2 : name.index("']")] for name in wanted}))


def judge(answer: Answer, clients: Sequence[int], wanted: Mapping[str, str]) -> Judged:
    """The uploads of a node's answer; ``wanted`` has the dtype and shape of each array."""
    good, bad = {}, {}
    for client in clients:
        if client not in answer.rows:
            bad[client] = answer.failed.get(client, f"no upload of client {client}")
            continue
        upload = answer.rows[client]
        if not isinstance(upload, dict) or described(upload) != wanted:
            found = plain(str(described(upload)))
            bad[client] = f"client {client} must upload {dict(wanted)}, it uploads {found}"
        elif (which := not_finite(upload)) is not None:
            bad[client] = f"{which} in the upload of client {client} is not finite"
        else:
            good[client] = upload
    return good, bad


def alike(uploads: dict[int, Tree]) -> Judged:
    """Those of one structure, that of most: the same arrays could be in lists or in tuples, or beside a None."""
    shapes = {client: str(jax.tree.structure(upload)) for client, upload in uploads.items()}
    if len(set(shapes.values())) <= 1:
        return uploads, {}
    usual = max(sorted(set(shapes.values())), key=lambda shape: (list(shapes.values()).count(shape), -len(shape)))
    good = {client: upload for client, upload in uploads.items() if shapes[client] == usual}
    others = [client for client in uploads if client not in good]
    return good, {client: f"the upload of client {client} has another structure than most" for client in others}
