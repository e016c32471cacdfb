"""Numbers as whole multiples of 2^-fraction_bits modulo 2^64: there a sum is exact, whatever its order.

A number is off by at most half a multiple, so a sum over m parties by at most m·2^-(fraction_bits + 1).
"""

from typing import Any

import numpy as np

BITS = 64


def check_fraction_bits(bits: Any) -> None:
    """Raises unless there are bits on both sides of the point."""
    if type(bits) is not int or not 1 <= bits <= 52:
        raise ValueError(f"fraction_bits must be an integer in 1..52, got {bits!r}")


def largest(parties: int, fraction_bits: int) -> float:
    """What no party's number may reach: the sum over all has to fit into 63 bits and a sign."""
    return 2.0 ** (BITS - 1 - fraction_bits) / parties


def encode(values: Any, parties: int, fraction_bits: int = 32) -> np.ndarray:
    """Numbers of one of so many parties as elements of the ring.

    Raises:
        ValueError: a number is not finite, or so large that the sum over all parties could overflow.
    """
    numbers = np.asarray(values, np.float64)
    most = largest(parties, fraction_bits)
    wrong = (
        f"values must be finite and below {most:g} in size, so that a sum over {parties} parties with "
        f"{fraction_bits} fraction bits cannot overflow, got another"  # which one is nobody's business
    )
    if not np.abs(numbers).max(initial=0.0) < most:  # a NaN is not smaller either
        raise ValueError(wrong)
    # A power of two: exact, so that only the rounding is an error.
    elements = np.rint(numbers * 2.0**fraction_bits).astype(np.int64)
    if np.abs(elements).max(initial=0) > (2 ** (BITS - 1) - 1) // parties:  # it was rounded up to the bound
        raise ValueError(wrong)
    return elements.view(np.uint64)


def decode(total: np.ndarray, fraction_bits: int = 32) -> np.ndarray:
    """The numbers that a sum of elements stands for."""
    return np.ascontiguousarray(total, np.uint64).view(np.int64) * 2.0**-fraction_bits
