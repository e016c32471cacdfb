"""The weighted mean: what the server receives of an exchange."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rookery.typing import ClientWeights, Ids, Mask, Tree, Weighting


def participant_weights(weighting: Weighting, server: Tree, weights: ClientWeights, ids: Ids, mask: Mask) -> Any:
    """The weight of each slot in the mean; a dictionary where the parts of the upload differ, ``None`` for "stack"."""
    if isinstance(weighting, Mapping):
        return {part: participant_weights(each, server, weights, ids, mask) for part, each in weighting.items()}
    if isinstance(weighting, str) and weighting == "stack":
        return None
    if isinstance(weighting, str) and weighting not in ("average", "direction"):
        raise ValueError(f"weighting must be 'average', 'direction', 'stack' or a function, got {weighting!r}")
    own = weights[ids] if isinstance(weighting, str) else weighting(server, ids)
    own = jnp.where(mask, own, 0)
    if weighting == "average":
        return own / own.sum()
    return own * (weights.shape[0] / mask.sum())


def slot_weights(
    weighting: Weighting, server: Tree, weights: ClientWeights, ids: Ids, mask: Mask, up: dict[str, Any]
) -> dict[str, Any]:
    """For each part of the upload the weight of every slot, ``None`` where the uploads are to be stacked."""
    chosen = participant_weights(weighting, server, weights, ids, mask)
    return {part: chosen[part] if isinstance(chosen, dict) else chosen for part in up}


def combine(weights: dict[str, Any], up: dict[str, Any]) -> dict[str, Any]:
    """The weighted sum of stacked uploads: one product a part."""

    def sum_of(w: Array, leaf: Array) -> Array:
        return jnp.tensordot(w.astype(leaf.dtype), leaf, 1)

    return {
        part: stacked if weights[part] is None else jax.tree.map(partial(sum_of, weights[part]), stacked)
        for part, stacked in up.items()
    }


def mean_of(
    weighting: Weighting, server: Tree, weights: ClientWeights, ids: Ids, mask: Mask, up: dict[str, Any]
) -> dict[str, Any]:
    """What the server receives of stacked uploads."""
    return combine(slot_weights(weighting, server, weights, ids, mask, up), up)
