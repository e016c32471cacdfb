"""Shamir's secret sharing: any ``threshold`` shares of a secret give it back, and fewer say nothing about it.

Over the field of integers modulo the least prime above 2^256, so that every secret of 32 bytes is an element.
"""

import secrets
from collections.abc import Mapping, Sequence

PRIME = 2**256 + 297
SECRET, SHARE = 32, 33
"""Bytes of a secret and of a share."""


def split(secret: bytes, threshold: int, points: Sequence[int]) -> dict[int, bytes]:
    """A share of the secret for each of the points, which are different positive numbers."""
    if len(secret) != SECRET:
        raise ValueError(f"secret must have {SECRET} bytes, got {len(secret)}")
    if not 1 <= threshold <= len(points):
        raise ValueError(f"threshold must be in 1..{len(points)}, the number of shares, got {threshold}")
    if len(set(points)) != len(points) or min(points) < 1 or max(points) >= PRIME:
        raise ValueError(f"points must be different positive numbers, got {list(points)}")
    polynomial = [secrets.randbelow(PRIME) for _ in range(threshold - 1)] + [int.from_bytes(secret, "little")]
    return {point: _value(polynomial, point).to_bytes(SHARE, "little") for point in points}


def _value(polynomial: Sequence[int], point: int) -> int:
    """Horner's rule; the constant comes last."""
    value = 0
    for coefficient in polynomial:
        value = (value * point + coefficient) % PRIME
    return value


def weights_at_zero(points: Sequence[int]) -> list[int]:
    """What each point's value counts in the value at zero (Lagrange)."""
    weights = []
    for point in points:
        above, below = 1, 1
        for other in points:
            if other != point:
                above, below = above * other % PRIME, below * (other - point) % PRIME
        weights.append(above * pow(below, -1, PRIME) % PRIME)
    return weights


def join(shares: Mapping[int, bytes], weights: Sequence[int] | None = None) -> bytes:
    """The secret of at least as many shares as its threshold, by their points.

    ``weights`` are those of the points, if they have been computed before.

    Raises:
        ValueError: these are no shares of a secret of 32 bytes.
    """
    used = weights_at_zero(list(shares)) if weights is None else weights
    values = [int.from_bytes(share, "little") for share in shares.values()]
    if any(len(share) != SHARE for share in shares.values()) or any(value >= PRIME for value in values):
        raise ValueError(f"shares must be numbers below {PRIME} in {SHARE} bytes, got another")
    secret = sum(weight * value for weight, value in zip(used, values, strict=True)) % PRIME
    if secret >= 2 ** (8 * SECRET):
        raise ValueError("shares must be of one secret, got some that do not fit together")
    return secret.to_bytes(SECRET, "little")
