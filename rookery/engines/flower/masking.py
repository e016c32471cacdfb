"""A node's part in the secure sum of one exchange."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rookery.aggregation.privacy import secret_normals
from rookery.aggregation.secure.identity import Identity
from rookery.aggregation.secure.options import SecureSum
from rookery.aggregation.secure.protocol import Keys, Party, Shared
from rookery.engines.flower.refusal import Refused
from rookery.engines.flower.wire.fields import Order
from rookery.engines.flower.wire.requests import Work
from rookery.engines.flower.wire.summing import Advertise, Share
from rookery.typing import Tree

ALONE = 2.0
"""How many equal weights the weights of a sum must be worth at least: with fewer it is little more than one upload."""

COUNTS = 2.0**-10
"""Which share of the largest mass in a sum another must have to count: less would hide nobody."""
ROUNDING = 2.0**-10
"""By how much, relatively, what a server tells may differ from what is exact: it reckons in the precision of the run."""


def context_of(run: str, told: str, order: Order) -> bytes:
    """The name of one exchange: no other has it, in this run or any other.

    ``told`` is the digest of what began the run: nodes that were told other settings share no secrets.
    """
    return f"{run} {told} {' '.join(map(str, order))}".encode()


class Sum:
    """The steps of one secure sum on a node: each once and in order, as its ``Party`` sees to."""

    def __init__(self, asked: Advertise, told: str, options: SecureSum, identity: Identity | None):
        self.order = asked.order
        self.party = Party(context_of(asked.run, told, asked.order), asked.party, identity)
        self._options = options
        self._needed = 0
        self._masses: dict[str, dict[int, float]] = {}

    def advertise(self) -> Keys:
        """Step 0."""
        return self.party.advertise()

    def share(self, asked: Share) -> Shared:
        """Step 1. The threshold is that of the run, whatever a server would like for this sum."""
        self._needed = self._options.needed(len(asked.keys))
        return self.party.share(asked.keys, self._needed)

    def mask(
        self,
        work: Work,
        uploads: Mapping[int, dict[str, Tree]],
        deviations: Mapping[str, float],
        heaviest: Mapping[str, float],
    ) -> Tree:
        """Step 2: the weighted sum of this node's uploads, with its share of the noise, masked.

        ``heaviest`` is what the weights of each part may be in all.
        """
        self._check_weights(work, uploads, heaviest)
        assert work.secure is not None
        weights = {client: place for place, client in enumerate(work.clients)}
        rows = list(uploads.items())
        total: dict[str, Any] = {}
        for part in rows[0][1]:
            own = work.secure.weights[part]
            total[part] = jax.tree.map(
                lambda *leaves, own=own: sum(
                    own[weights[client]] * np.asarray(leaf, np.float64)
                    for (client, _), leaf in zip(rows, leaves, strict=True)
                ),
                *(upload[part] for _, upload in rows),
            )
        for part, deviation in deviations.items():
            total[part] = jax.tree.map(lambda leaf, s=deviation: leaf + self._noise(leaf.shape, s), total[part])
        leaves, structure = jax.tree.flatten(total)
        flat = np.concatenate([np.ravel(leaf) for leaf in leaves])
        self._masses = work.secure.masses
        masked = self.party.mask(flat, work.secure.sealed, work.common, self._options.fraction_bits)
        pieces = np.split(masked, np.cumsum([leaf.size for leaf in leaves])[:-1])
        found: Tree = jax.tree.unflatten(
            structure, [piece.reshape(leaf.shape) for piece, leaf in zip(pieces, leaves, strict=True)]
        )
        return found

    def confirm(self, survivors: Sequence[int]) -> bytes:
        """Step 3."""
        self._check_counting(self._masses, survivors)
        return self.party.confirm(survivors)

    def unmask(self, survivors: Sequence[int], signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """Step 4."""
        self._check_counting(self._masses, survivors)
        return self.party.unmask(survivors, signatures)

    def _noise(self, shape: tuple[int, ...], deviation: float) -> np.ndarray:
        """This node's share: as many as must stay make all of it, and whoever else stays makes more."""
        return secret_normals(shape, np.float64) * (deviation / math.sqrt(self._needed))

    def _check_weights(self, work: Work, uploads: Mapping[int, dict[str, Tree]], heaviest: Mapping[str, float]) -> None:
        """The sum is one of many nodes' uploads, and this node's weights are among those that everybody was told."""
        told = work.secure
        assert told is not None
        parts = set().union(*uploads.values())
        if set(told.weights) != parts or set(told.masses) != parts:
            raise Refused("error", f"weights must be those of {sorted(parts)}, got those of {sorted(told.weights)}")
        here = {self.party.number, *told.sealed}
        for part, weights in told.weights.items():
            masses = told.masses[part]
            if len(weights) != len(work.clients) or set(masses) != here:
                raise Refused("error", f"the weights of {part} must be those of all participants")
            if masses[self.party.number] != mass_of(weights):
                raise Refused(
                    "error", f"the weights of {part} that this node was told are not those that all were told"
                )
            if part in told.most and max(map(abs, weights)) > told.most[part]:
                raise Refused("error", f"a weight of {part} is larger than the one that noise is made for")
            if (mass := math.fsum(map(abs, masses.values()))) > heaviest[part] * (1 + ROUNDING):
                raise Refused(
                    "error",
                    f"the weights of {part} must be at most {heaviest[part]:g} in all, got {mass:g}: by weights so large "
                    "that an upload does not fit a server could learn how large it is",
                )
        self._check_counting(told.masses, here)

    def _check_counting(self, masses: Mapping[str, Mapping[int, float]], there: Collection[int]) -> None:
        for part, each in masses.items():
            if (problem := too_little(part, [each.get(party, 0.0) for party in there], self._needed)) is not None:
                raise Refused("error", problem)


def too_little(part: str, masses: Collection[float], needed: int) -> str | None:
    """Why nodes of these masses hide nobody; None if enough of them count, and no one of them for nearly all."""
    counting = [mass for mass in masses if mass > 0 and mass >= COUNTS * max(masses)]
    if len(counting) < needed:
        return (
            f"{part} would be the sum of {len(counting)} nodes' uploads, the others weigh nothing or next to nothing: at "
            f"least {needed} must count"
        )
    shares = [mass / max(counting) for mass in counting]
    if (worth := sum(shares) ** 2 / sum(share**2 for share in shares)) < ALONE:
        return (
            f"the weights of {part} are so unequal that they are worth {worth:.3g} equal ones, {ALONE:g} are needed: the "
            "sum would be little more than one node's upload"
        )
    return None


def mass_of(weights: list[float]) -> float:
    """What a node's weights are in all."""
    return math.fsum(map(abs, weights))
