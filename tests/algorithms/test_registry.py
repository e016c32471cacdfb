"""Names and families: what the registry says of the algorithms, and what they say of themselves."""

from typing import ClassVar

import pytest

import rookery as rk
from rookery.algorithms.registry import ALGORITHMS, by_name, name_of

OWN = ("name", "__doc__")


def test_every_name_is_found_as_itself_and_by_its_class():
    assert len(rk.registry) == len(ALGORITHMS)
    for name, kind in rk.registry.items():
        assert name_of(kind) == name
        assert by_name(name) is by_name(name.upper()) is by_name(kind.__name__) is kind
        assert getattr(rk, kind.__name__) is kind


@pytest.mark.parametrize("kind", ALGORITHMS, ids=lambda kind: kind.__name__)
def test_a_final_algorithm_inherits_from_no_other_and_tells_its_own_source(kind):
    assert not set(kind.__mro__[1:]) & set(ALGORITHMS)
    assert all(vars(kind).get(each) for each in OWN)
    assert kind.paper
    assert kind.status


def test_an_algorithm_of_ones_own_has_the_name_of_its_class_unless_it_gives_one():
    class Mine(rk.LocalSGDA):
        pass

    class Named(rk.Algorithm):
        name: ClassVar[str] = "my own"

    assert name_of(Mine) == "Mine"
    assert name_of(Named) == "my own"
