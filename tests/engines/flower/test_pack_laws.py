"""A message is what was packed, whatever it was; one that was damaged is malformed or another message, and nothing else."""

import contextlib

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from rookery.engines.flower.wire.pack import DTYPES, Malformed, pack, payload_bytes, unpack
from tests.helpers.fuzzing import examples

arrays = st.sampled_from(DTYPES).flatmap(
    lambda name: arrays_of.arrays(
        np.dtype(name), arrays_of.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
    )
)
trees = st.recursive(
    arrays | st.none(),
    lambda inner: (
        st.dictionaries(st.text(max_size=4), inner, max_size=3)
        | st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=6,
)
words = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text(max_size=5)
metas = st.dictionaries(st.text(max_size=4), words | st.lists(words, max_size=3), max_size=4)


@examples(150, 20_000)
@given(trees, metas)
def test_what_is_unpacked_is_what_was_packed(tree, meta):
    buffer = pack(tree, meta)
    again, told = unpack(buffer)
    assert told == meta
    assert jax.tree.structure(again) == jax.tree.structure(tree)
    leaves, expected = jax.tree.leaves(again), jax.tree.leaves(tree)
    for one, other in zip(leaves, expected, strict=True):
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.tobytes() == other.tobytes(), "bit by bit, NaNs as well"
    assert payload_bytes(buffer) == sum(leaf.nbytes for leaf in expected)


@examples(150, 20_000)
@given(
    trees, st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 8)
)
def test_a_damaged_one_is_malformed_or_another(tree, changes, cut):
    buffer = bytearray(pack(tree))
    for place, value in changes:
        buffer[place % len(buffer)] = value
    with contextlib.suppress(Malformed):
        unpack(bytes(buffer[: len(buffer) - cut]))
