"""Laws of draws of participants: different ids in order, in range, in as many slots as promised."""

import jax
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rookery.problem.participation import Bernoulli, Full, Participation, Replay, Uniform
from tests.helpers.fuzzing import examples

KINDS = {
    "Full": lambda n: st.just(Full()),
    "Uniform": lambda n: st.sampled_from([1, (n + 1) // 2, n]).map(Uniform),
    "Bernoulli": lambda n: st.sampled_from([0.01, 0.3, 0.9, 1.0]).map(Bernoulli),
    "Replay": lambda n: st.lists(st.lists(st.integers(0, n - 1), min_size=1, unique=True), min_size=1, max_size=3).map(
        Replay
    ),
}


def drawn(participation, n, seed, round):
    ids, mask = participation.draw(jax.random.key(seed), n, round)
    ids, mask = np.asarray(ids), np.asarray(mask)
    assert ids.shape == mask.shape == (participation.slots(n),)
    assert ids.dtype == np.int32
    who = ids[mask]
    assert (np.diff(who) > 0).all(), "different, in increasing order"
    assert mask[: len(who)].all(), "the slots that are used come first"
    assert who.min() >= 0
    assert who.max() < n
    assert set(ids[~mask]) <= set(who), "a slot that is not used repeats a real id"
    return who


def test_every_kind_is_tried():
    known = {each.__name__ for each in Participation.__subclasses__() if each.__module__.startswith("rookery.")}
    assert known == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_draw_is_a_set_of_clients_and_comes_again_with_its_key(kind):
    @examples(15, 1_000)
    @given(st.sampled_from([1, 6]), st.integers(0, 2**31), st.integers(0, 5), st.data())
    def law(n, seed, round, data):
        participation = data.draw(KINDS[kind](n))
        participation.check(n)
        who = drawn(participation, n, seed, round)
        np.testing.assert_array_equal(who, drawn(participation, n, seed, round))
        if kind in ("Full", "Uniform"):
            assert len(who) == participation.slots(n)

    law()


@examples(15, 1_000)
@given(st.sampled_from([2, 6]), st.integers(0, 2**31), st.integers(1, 5), st.sampled_from([0.2, 0.7]))
def test_a_recorded_trace_comes_back_and_its_last_round_stays(n, seed, rounds, probability):
    source = Bernoulli(probability)
    trace = [drawn(source, n, seed + round, round).tolist() for round in range(rounds)]
    assume(all(trace))
    replay = Replay(trace)
    for round in range(rounds + 2):
        assert drawn(replay, n, 0, round).tolist() == trace[min(round, rounds - 1)]
