"""Laws of partitions: nobody's example twice, all of them where that is promised, the same for the same seed."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from rookery.problem import partition
from tests.helpers.fuzzing import examples

seeds = st.integers(0, 2**32)
labels = st.lists(st.integers(0, 4), min_size=4, max_size=60).map(np.array)
clients = st.integers(1, 12)


def dealt(make, number):
    """The parts, after what holds for all partitions; and how many examples each client holds."""
    parts = make()
    for one, other in zip(parts, make(), strict=True):
        np.testing.assert_array_equal(one, other, "the seed decides")
    together = np.concatenate(parts)
    assert len(np.unique(together)) == len(together), "no example is held twice"
    assert together.min() >= 0
    assert together.max() < number
    assert all((np.diff(part) > 0).all() for part in parts), "in increasing order"
    return [len(part) for part in parts]


@examples(60, 3_000)
@given(st.integers(1, 60), clients, seeds)
def test_iid_deals_every_example_as_evenly_as_can_be(number, clients, seed):
    assume(clients <= number)
    sizes = dealt(lambda: partition.iid(number, clients, seed), number)
    assert sum(sizes) == number
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == clients


@examples(60, 3_000)
@given(labels, clients, seeds, st.integers(1, 3))
def test_shards_are_equal_and_have_few_labels(labels, clients, seed, per_client):
    assume(clients * per_client <= len(labels))
    sizes = dealt(lambda: partition.shards(labels, clients, seed, per_client), len(labels))
    assert set(sizes) == {per_client * (len(labels) // (clients * per_client))}
    assert len(sizes) == clients


@examples(60, 3_000)
@given(labels, clients, seeds, st.floats(0.1, 100))
def test_dirichlet_deals_every_example(labels, clients, seed, alpha):
    assume(clients <= len(labels))
    sizes = dealt(lambda: partition.dirichlet(labels, clients, seed, alpha, min_size=0), len(labels))
    assert sum(sizes) == len(labels)
    assert len(sizes) == clients


@examples(60, 3_000)
@given(labels, seeds, st.data())
def test_by_class_deals_every_example_of_the_classes_named(labels, seed, data):
    present = sorted(set(labels.tolist()))
    groups = data.draw(st.lists(st.lists(st.sampled_from(present), min_size=1, unique=True), min_size=1, max_size=4))
    holders = {c: sum(c in group for group in groups) for c in present}
    assume(all((labels == c).sum() >= holders[c] for c in present))
    sizes = dealt(lambda: partition.by_class(labels, groups, seed), len(labels))
    assert sum(sizes) == sum((labels == c).sum() for c in present if holders[c])
    for part, group in zip(partition.by_class(labels, groups, seed), groups, strict=True):
        assert set(labels[part].tolist()) == set(group)


@examples(60, 3_000)
@given(st.lists(st.integers(2, 20), min_size=1, max_size=5), seeds, st.floats(0.01, 0.99) | st.just(1))
def test_a_split_shares_out_each_clients_own(sizes, seed, fraction):
    ends = np.cumsum(sizes)
    parts = [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
    rest, held = partition.split(parts, fraction, seed)
    for whole, one, other in zip(parts, rest, held, strict=True):
        np.testing.assert_array_equal(np.sort(np.concatenate([one, other])), whole)
        assert len(one) >= 1
        assert len(other) >= 1
