"""``rk.SecureSum``: what a user says about secure sums."""

import math
from dataclasses import dataclass

from rookery.aggregation.secure.ring import check_fraction_bits

LEAST = 3
"""Parties, and those that stay: of two, each would learn the other's upload from the sum."""


@dataclass(frozen=True)
class SecureSum:
    """The server receives sums of uploads alone: each node's is hidden behind masks that cancel in the sum.

    Args:
        threshold: the least share of the nodes of an exchange, in (0.5, 1], that must stay until its end. Fewer cannot
            recover the masks of those that dropped out. A server that looks, but does not lie, needs as many colluding
            nodes to uncover an upload. One that lies to nodes that know each other's keys (``rookery node --peers``)
            needs 2t − m of them, where t is the threshold of m nodes: so give more than 2/3 there, and more than a third
            of the nodes must collude.
        fraction_bits: numbers are summed as multiples of 2^-fraction_bits, in 64 bits.
    """

    threshold: float = 0.6
    fraction_bits: int = 32

    def __post_init__(self) -> None:
        number = isinstance(self.threshold, int | float) and not isinstance(self.threshold, bool)
        if not number or not 0.5 < self.threshold <= 1:
            raise ValueError(
                "threshold must be a share in (0.5, 1]: half of the nodes could be told of other survivors than the "
                f"other half, and more than all never stay; got {self.threshold!r}"
            )
        object.__setattr__(self, "threshold", float(self.threshold))  # as messages have it
        check_fraction_bits(self.fraction_bits)

    def needed(self, parties: int) -> int:
        """How many of so many parties must stay: more than half, whatever the rounding, and never two alone."""
        return max(math.ceil(self.threshold * parties - 1e-9), parties // 2 + 1, LEAST)
