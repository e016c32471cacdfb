"""Messages that were made up or damaged: reading one raises ``Malformed`` and nothing else, at no cost to speak of."""

import json
import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rookery as rk
from rookery.engines.flower.wire.answers import Answer, Greeting, read_answer, read_greeting
from rookery.engines.flower.wire.pack import DTYPES, MAGIC, Malformed, payload_bytes, unpack
from rookery.engines.flower.wire.requests import read_request
from rookery.engines.flower.wire.summing import read_confirmed, read_keys, read_masked, read_shared, read_unmasked
from tests.engines.flower.test_flower import Case, Recorder
from tests.helpers.fuzzing import examples
from tests.helpers.mutations import STRANGE, mutated


@pytest.fixture(scope="module")
def real():
    """Messages of a real run, requests and answers."""
    case = Case(rk.FedBiOLocal())
    transport = Recorder(case.nodes([[0, 1], [2, 3]]))
    case.federate(transport, 2)
    return sorted({request for _, request in transport.requests} | set(transport.answers))


def survives(buffer):
    started = time.monotonic()
    tracemalloc.start()
    try:
        for text in read_all(buffer):
            assert text.isprintable()
            assert len(text) < 500
        assert tracemalloc.get_traced_memory()[1] < 100 * len(buffer) + 10**6
    finally:
        tracemalloc.stop()
    assert time.monotonic() - started < 5


def read_all(buffer):
    """What every reader says is wrong with it."""
    said = []
    for read in (unpack, payload_bytes, read_request):
        try:
            read(buffer)
        except Malformed as error:
            said.append(str(error))
    answer = read_answer(buffer)
    assert isinstance(answer, Answer)
    assert isinstance(read_greeting(buffer, 4, [True], False), Answer | Greeting)
    for step in (read_keys, read_shared, read_masked, read_confirmed, read_unmasked):
        found = step(buffer)
        said += [found.error] if isinstance(found, Answer) and found.error is not None else []
    return said if answer.error is None else [*said, answer.error]


@pytest.mark.fuzz
@examples(400, 60_000)
@given(seed=st.integers(0, 2**64 - 1))
def test_a_damaged_message_is_malformed_or_still_a_message(real, seed):
    survives(mutated(seed, real))


values = st.recursive(
    st.sampled_from(STRANGE) | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
shapes = st.lists(st.integers(-1, 3) | st.sampled_from([2**31, 2**62, 10**25]), max_size=3) | st.just([1] * 40) | values
arrays = st.lists(st.tuples(st.sampled_from([*DTYPES, "object", "float16"]), shapes) | values, max_size=3)
trees = st.recursive(
    st.none() | st.integers(-1, 3),
    lambda inner: (
        st.fixed_dictionaries({"dict": st.dictionaries(st.text(max_size=2), inner, max_size=3)})
        | st.fixed_dictionaries({"list": st.lists(inner, max_size=3)})
        | st.fixed_dictionaries({"tuple": st.lists(inner, max_size=3)})
    ),
    max_leaves=4,
)


@pytest.mark.fuzz
@examples(250, 40_000)
@given(
    header=st.fixed_dictionaries({"meta": values, "tree": trees | values, "arrays": arrays | values}) | values,
    after=st.integers(0, 40).map(bytes) | st.binary(max_size=40),
    more=st.integers(-3, 3),
)
def test_a_header_made_by_hand_is_malformed_or_a_message(header, after, more):
    text = json.dumps(header).encode(errors="replace")
    survives(MAGIC + struct.pack("<I", max(0, len(text) + more)) + text + after)


def test_the_mutations_reach_every_reader(real):
    """Enough of them are still messages, and requests: else nothing behind the first check would be tried."""
    read = {unpack: 0, read_request: 0}
    for seed in range(600):
        for reader in read:
            try:
                reader(mutated(seed, real))
                read[reader] += 1
            except Malformed:
                pass
    assert read[unpack] > 100
    assert read[read_request] > 10
