"""Laws of projections, for sets and points that Hypothesis makes up."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.problem.sets import Ball, Box, NonNegative, Product, Simplex, WholeSpace
from tests.helpers.fuzzing import examples

SIZE = 4
numbers = st.floats(-1e3, 1e3)
positive = st.floats(1e-3, 1e3)
vectors = st.lists(numbers, min_size=SIZE, max_size=SIZE).map(np.array)
bounds = st.tuples(vectors, vectors).map(lambda pair: Box(np.minimum(*pair), np.maximum(*pair)))
KINDS = {
    "WholeSpace": st.just(WholeSpace()),
    "Ball": positive.map(Ball),
    "Box": bounds,
    "Simplex": positive.map(Simplex),
    "NonNegative": st.just(NonNegative()),
}
pairs = st.tuples(st.one_of(*KINDS.values()), st.one_of(*KINDS.values()))
KINDS["Product"] = pairs.map(lambda pair: Product({"a": pair[0], "b": (pair[1],)}))


def outside(chosen, v):
    """By how much a point is not in its set, from the set's definition."""
    if isinstance(chosen, Product):
        return max(outside(chosen.tree["a"], v["a"]), outside(chosen.tree["b"][0], v["b"][0]))
    v = np.asarray(v)
    return {
        WholeSpace: lambda: 0.0,
        Ball: lambda: np.linalg.norm(v) - chosen.radius,
        Box: lambda: max((chosen.low - v).max(), (v - chosen.high).max()),
        Simplex: lambda: max(-v.min(), abs(v.sum() - chosen.scale)),
        NonNegative: lambda: -v.min(),
    }[type(chosen)]()


def test_every_set_is_tried():
    from rookery.problem import sets

    assert {each.__name__ for each in sets.Set.__subclasses__() if each.__module__ == sets.__name__} == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_T07_a_projection_ends_in_its_set_stays_there_and_brings_no_two_points_apart(kind):
    def flat(tree):
        return np.concatenate([np.asarray(leaf) for leaf in jax.tree.leaves(tree)])

    @examples(40, 2_000)
    @given(st.data())
    def law(data):
        chosen = data.draw(KINDS[kind])
        point = st.fixed_dictionaries({"a": vectors, "b": st.tuples(vectors)}) if kind == "Product" else vectors
        u, v = data.draw(point), data.draw(point)
        p, q = chosen.project(u), chosen.project(v)
        tolerance = 1e-12 * (1e3 + np.abs(flat(u)).max() + np.abs(flat(v)).max())
        assert outside(chosen, p) <= tolerance
        np.testing.assert_allclose(flat(chosen.project(p)), flat(p), rtol=0, atol=tolerance)
        assert np.linalg.norm(flat(p) - flat(q)) <= np.linalg.norm(flat(u) - flat(v)) + tolerance
        nearer = np.linalg.norm(flat(u) - flat(p))
        assert nearer <= np.linalg.norm(flat(u) - flat(q)) + tolerance, "no other point of the set is nearer"

    law()


@examples(60, 2_000)
@given(vectors, positive, numbers)
def test_T07_the_simplex_ignores_a_constant_added_to_all_entries(u, scale, constant):
    one, other = Simplex(scale).project(u), Simplex(scale).project(u + constant)
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-11 * (1e3 + abs(constant)))
