"""What becomes of the uploads of an exchange on their way to what the server receives.

Usually nothing but the weighted sum. A robust rule takes its place, an attack (in simulations) forges some uploads, and
privacy clips each and adds noise. Every engine makes an exchange in the same three steps, so that it is written once:

    up = intake.leaving(up)                          in the hands of a participant
    combined = combine(intake.weights(shapes), up)   where uploads meet; a part without weights is one row a slot
    received, clips = intake.received(combined)      in the hands of the server
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rookery.aggregation.mean import combine, slot_weights
from rookery.aggregation.privacy import SPREAD, WITHIN
from rookery.aggregation.robust import robust_sum
from rookery.algorithm.exchange import Exchange
from rookery.algorithm.setting import Setting
from rookery.problem.keys import NOISE, fold
from rookery.problem.layout import same_structure
from rookery.typing import Tree, Weighting


@dataclass(frozen=True)
class Intake:
    """One exchange of a setting: stage ``number`` of a round, in pass ``index``, for participants ``ids`` in ``mask``."""

    setting: Setting
    stage: Exchange
    number: int
    round: Any
    index: Any
    server: Tree
    ids: Array
    mask: Array
    clips: Array | None = None
    """Of privacy with a clip that adapts itself, the clips of all stages."""
    told: Tree = None
    """What is broadcast, where it is known and the server's state is not: on a node."""

    @property
    def needs_rows(self) -> bool:
        """Whether all uploads are needed one by one, not their sum."""
        return self.setting.aggregate is not None or self.forges

    @property
    def forges(self) -> bool:
        """Whether some uploads are forged."""
        return self.setting.attack is not None

    @cached_property
    def _down(self) -> Tree:
        return self.stage.down(self.server) if self.told is None else self.told

    def weighting(self, part: str) -> Weighting:
        """How a part is weighted."""
        told = self.stage.weighting
        return told if isinstance(told, str) or callable(told) else told[part]

    def centre(self, part: str, like: Tree) -> Tree:
        """From where a part of an upload is measured: what was broadcast under its name, if it is averaged; else 0."""
        there = self._down.get(part) if self.weighting(part) == "average" else None
        same = there is not None and same_structure(there, like)
        if same and all(
            jnp.shape(a) == jnp.shape(b) for a, b in zip(*map(jax.tree.leaves, (there, like)), strict=True)
        ):
            return there
        return jax.tree.map(jnp.zeros_like, like)

    # --- in the hands of a participant

    def leaving(self, up: dict[str, Any]) -> dict[str, Any]:
        """A participant's upload as it leaves it."""
        privacy = self.setting.privacy
        if privacy is None:
            return up
        return privacy.clipped(up, {part: self.centre(part, each) for part, each in up.items()}, self._own_clips)

    def bounded(self, up: dict[str, Any]) -> dict[str, Any]:
        """The upload of a participant that may not have done so, as a server that sees it counts it."""
        assert self.setting.privacy is not None
        return self.setting.privacy.clipped_again(up, self._own_clips)

    @property
    def _own_clips(self) -> Array | None:
        return None if self.clips is None else self.clips[self.number]

    # --- where uploads meet

    def weights(self, up: dict[str, Any]) -> dict[str, Any]:
        """For each part the weight of every slot; None where the server needs row by row."""
        return dict.fromkeys(up) if self.needs_rows else self._weights(up)

    def _weights(self, up: dict[str, Any]) -> dict[str, Any]:
        if self.setting.privacy is not None:
            return {part: self._fixed(part) for part in up}
        return slot_weights(self.stage.weighting, self.server, self.setting.clients.weights, self.ids, self.mask, up)

    def _fixed(self, part: str) -> Array | None:
        """Weights that do not depend on who else takes part."""
        if part == WITHIN:
            return jnp.where(self.mask, 1 / self._expected, 0)
        told = self.weighting(part)
        if told == "stack":
            return None
        return jnp.where(self.mask, self._of_clients(told)[self.ids], 0)

    def _of_clients(self, weighting: Weighting) -> Array:
        """(n/E|C|)·p_i, or ·a_i, of all clients."""
        weights = self.setting.clients.weights
        n = weights.shape[0]
        own = weights / weights.sum() if isinstance(weighting, str) else weighting(self.server, jnp.arange(n))  # type: ignore[operator]
        found: Array = own * (n / self._expected)
        return found

    @property
    def _expected(self) -> float:
        return self.setting.participation.expected(self.setting.clients.n)

    # --- in the hands of the server

    def received(self, combined: dict[str, Any], normals: Tree = None) -> tuple[dict[str, Any], Array | None]:
        """What the server receives, and the clips from then on. ``normals`` are the noise, where it is not the run's own."""
        if self.needs_rows:
            combined = self._by_rule(self._with_lies(combined))
        if self.setting.privacy is None:
            return combined, self.clips
        return self._with_noise(combined, self.normals(combined) if normals is None else normals)

    def _with_lies(self, rows: dict[str, Any]) -> dict[str, Any]:
        setting, attack = self.setting, self.setting.attack
        if attack is None:
            return rows
        lies = attack.lies(setting.key, setting.clients.n, self.ids, self.round) & self.mask
        forged = {}
        for place, (part, stacked) in enumerate(sorted(rows.items())):
            key = fold(setting.key, "attack", self.round, self.number, self.index, place)
            flat = _flat(stacked)
            one = jax.tree.map(lambda leaf: leaf[0], stacked)
            # Private rows are ways already.
            centre = _flat_row(self.centre(part, one)) if setting.privacy is None else 0
            forged[part] = _unflat(attack.forged(flat - centre, self.mask, self.mask & ~lies, key) + centre, stacked)
        if setting.privacy is not None:
            forged = jax.vmap(self.bounded)(forged)

        def told(lie: Array, true: Array) -> Array:
            return jnp.where(lies.reshape(-1, *(1,) * (true.ndim - 1)), lie, true)

        uploads: dict[str, Any] = jax.tree.map(told, forged, rows)
        return uploads

    def _by_rule(self, rows: dict[str, Any]) -> dict[str, Any]:
        """The rule's sum of each part, or the plain one; stacked parts stay as they are."""
        weights, rule = self._weights(rows), self.setting.aggregate
        if rule is None:
            return combine(weights, rows)
        found = {}
        for part, stacked in rows.items():
            if weights[part] is None:
                found[part] = stacked
                continue
            one = jax.tree.map(lambda leaf: leaf[0], stacked)
            centre = _flat_row(self.centre(part, one))
            summed = robust_sum(rule, _flat(stacked), weights[part], self.mask, centre)
            found[part] = jax.tree.map(
                lambda leaf: leaf[0], _unflat(summed[None], jax.tree.map(lambda leaf: leaf[None], one))
            )
        return found

    def normals(self, combined: dict[str, Any]) -> dict[str, Any]:
        """Standard normal numbers for all that is received, from the run's key."""
        leaves, structure = jax.tree.flatten(combined)
        key = fold(self.setting.key, NOISE, self.round, self.number, self.index)
        # A float32 normal number is never above 5.42: what one client makes larger would tell of it for certain. Half
        # the sum of four reaches 10.8.
        drawn = [
            jax.random.normal(fold(key, place), (4, *leaf.shape), leaf.dtype).sum(0) / 2
            for place, leaf in enumerate(leaves)
        ]
        made: dict[str, Any] = jax.tree.unflatten(structure, drawn)
        return made

    def largest_weights(self, parts: Collection[str]) -> dict[str, Any]:
        """Of each part that is summed, the largest weight that a client can have."""
        summed = [part for part in parts if part != WITHIN and self.weighting(part) != "stack"]
        found: dict[str, Any] = {part: jnp.abs(self._of_clients(self.weighting(part))).max() for part in summed}
        return found | ({WITHIN: jnp.asarray(1 / self._expected)} if WITHIN in parts else {})

    def deviations(self, most: Mapping[str, Any], parts: Collection[str]) -> dict[str, Array]:
        """The standard deviation of the noise of each part, whose largest weights are ``most`` (1 where it has none)."""
        privacy = self.setting.privacy
        assert privacy is not None
        names = sorted(part for part in parts if part != WITHIN)
        found = {
            part: privacy.deviation(place, len(names), self._own_clips, most.get(part, 1.0))
            for place, part in enumerate(names)
        }
        if WITHIN in parts:
            found[WITHIN] = jnp.asarray((len(names) ** 0.5 if privacy.by == "part" else 1.0) / SPREAD)
        return found

    def _with_noise(self, combined: dict[str, Any], normals: dict[str, Any]) -> tuple[dict[str, Any], Array | None]:
        privacy = self.setting.privacy
        assert privacy is not None
        deviations = self.deviations(self.largest_weights(combined), combined)
        noisy = {
            part: jax.tree.map(
                lambda leaf, each, s=deviations[part]: leaf + (s * each).astype(leaf.dtype), got, normals[part]
            )
            for part, got in combined.items()
        }
        for part in noisy:
            if part != WITHIN and self.weighting(part) == "stack":  # an unused slot repeats somebody's upload
                noisy[part] = jax.tree.map(self._of_used_slots, noisy[part])
        return self.completed(noisy)

    def _of_used_slots(self, rows: Array) -> Array:
        return jnp.where(self.mask.reshape(-1, *(1,) * (rows.ndim - 1)), rows, 0)

    def completed(self, noisy: dict[str, Any]) -> tuple[dict[str, Any], Array | None]:
        """What the server receives of a sum that has its noise: ways become points again, and the clips move."""
        privacy, clips = self.setting.privacy, self.clips
        assert privacy is not None
        received = {
            part: jax.tree.map(jnp.add, got, self.centre(part, got)) for part, got in noisy.items() if part != WITHIN
        }
        if clips is not None:
            share = noisy[WITHIN] + 0.5
            clips = clips.at[self.number].set(
                privacy.moved(clips[self.number], _padded(share, clips.shape[1]), len(received))
            )
        return received, clips


def _flat(stacked: Tree) -> Array:
    """Rows of numbers."""
    leaves = jax.tree.leaves(stacked)
    return jnp.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], -1)


def _flat_row(tree: Tree) -> Array:
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _unflat(rows: Array, like: Tree) -> Tree:
    """Rows of numbers as a tree again, with as many rows as there are."""
    leaves, structure = jax.tree.flatten(like)
    made, first = [], 0
    for leaf in leaves:
        size = leaf[0].size
        made.append(rows[:, first : first + size].reshape(rows.shape[0], *leaf.shape[1:]).astype(leaf.dtype))
        first += size
    return jax.tree.unflatten(structure, made)


def _padded(vector: Array, length: int) -> Array:
    return jnp.pad(vector, (0, length - vector.shape[0]), constant_values=0.5)
