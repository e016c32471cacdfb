"""Cases that take long, marked where they are listed."""

from collections.abc import Collection, Iterable

import pytest


def slow(*values, **more):
    """A case of ``pytest.mark.parametrize`` that only ``make test-all`` runs."""
    return pytest.param(*values, marks=pytest.mark.slow, **more)


def quick_ones(names: Iterable[str], quick: Collection[str]) -> list:
    """All these names as cases, and those that are not ``quick`` slow ones."""
    names = list(names)
    unknown = set(quick) - set(names)
    assert not unknown, f"no such case: {sorted(unknown)}"
    return [name if name in quick else slow(name) for name in names]


ONE_OF_EACH_KIND = {
    "MeFBO", "FedBiO", "FedBiOAcc", "ASFBO", "FedNest", "FedMBO", "CommFedBiO", "FedBiO-Local", "FedBiOAcc-Local",
    "FedSGDA+", "FedSGDA-M", "CODASCA", "PrimalDual", "SUSTAIN-CW",
}  # fmt: skip
"""At least one algorithm of each family, and of each thing that an algorithm may do."""
