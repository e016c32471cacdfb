"""Messages of secure sums that were made up or damaged: readers, nodes and servers live on, and nobody's upload is bare."""

import random
from collections import Counter
from contextlib import suppress

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rookery as rk
from rookery.aggregation.secure.protocol import Keys, Shared
from rookery.aggregation.secure.ring import decode
from rookery.engines.flower.engine import Over
from rookery.engines.flower.federation import FederationError
from rookery.engines.flower.wire.answers import Answer
from rookery.engines.flower.wire.pack import Malformed, pack, unpack
from rookery.engines.flower.wire.requests import Begin, Work, read_request
from rookery.engines.flower.wire.summing import (
    STEPS,
    Masked,
    read_confirmed,
    read_keys,
    read_masked,
    read_shared,
    read_unmasked,
)
from rookery.engines.flower.wire.transport import Direct
from tests.engines.flower.test_flower import Case, Recorder, assert_close, make_clients
from tests.engines.flower.test_fuzz_messages import survives
from tests.engines.flower.test_safety import goes_on
from tests.engines.flower.test_secure import SECURE, keyed
from tests.helpers.fuzzing import examples
from tests.helpers.mutations import ARRAYS, STRANGE, change, change_header, mutated, places

READERS = {
    read_keys: ("advertise", Keys),
    read_shared: ("share", Shared),
    read_masked: ("exchange", Masked),
    read_confirmed: ("confirm", bytes),
    read_unmasked: ("unmask", dict),
}
"""What each reader's step is called, and what it gives where the answer can be read."""
MASKED = (np.zeros(2, np.uint64), np.zeros(3, np.uint64), np.zeros((2, 1), np.uint64), np.uint64(1), *ARRAYS)
SEEDS = st.integers(0, 2**64 - 1)


class World:
    """A problem with nodes, that have keys which last or not, and rounds that are private or not."""

    def __init__(self, last, private):
        clients = make_clients(weights=None) if private else None
        self.case = Case(rk.FedBiO(), clients=clients, participation=None)
        self.privacy = rk.ClientPrivacy(clip=0.3, noise=1e-9, delta=1e-3) if private else None
        self.run = self.case.prepare(privacy=self.privacy)
        self.nodes = keyed(self.case) if last else self.case.nodes()
        self._expected = {}
        transport = Recorder(self.nodes)
        self.secured(transport)
        self.requests, self.answers = [request for _, request in transport.requests], transport.answers

    def secured(self, transport, attempts=1):
        """The state after one round, and the federation."""
        return goes_on(
            Over(transport=transport, pause=0.0, attempts=attempts, secure=SECURE, collect=False), self.run, 1
        )

    def expected(self, counted):
        """What a round with these clients comes to where sums are not secure."""
        if counted not in self._expected:
            engine = Over(transport=Few(self.case.nodes(), counted), pause=0.0, attempts=1)
            state, federation = goes_on(engine, self.run, 1)
            assert federation.trace == [[list(counted)]]
            self._expected[counted] = state.server
        return self._expected[counted]

    def is_right(self, transport, attempts=1):
        """A round has the sum of those that it counts; they are returned."""
        state, federation = self.secured(transport, attempts)
        counted = tuple(federation.trace[0][0])
        assert_close(state.server, self.expected(counted))
        return counted


class Few(Direct):
    """Only some nodes answer exchanges."""

    def __init__(self, nodes, there):
        super().__init__(nodes)
        self.there = there

    def send(self, requests, deadline, enough=None):
        kept = {n: each for n, each in requests.items() if n in self.there or kind_of(each) != "exchange"}
        return super().send(kept, deadline, enough)


@pytest.fixture(scope="module")
def worlds():
    return [World(last=False, private=False), World(last=True, private=True)]


@pytest.fixture(scope="module")
def real(worlds):
    """Messages of all steps."""
    return list(dict.fromkeys(each for world in worlds for each in (*world.requests, *world.answers)))


def kind_of(request):
    return unpack(request)[1]["kind"]


# --- changes that only messages of these steps can have


def twisted(rng, meta):
    """A copy with something near to what was there: another digit, another party, one less, an empty key."""
    copied = unpack(pack(None, meta))[1]
    where = rng.choice([place for place in places(copied) if place != ("kind",)])
    if not where:
        return {}
    inside = copied
    for name in where[:-1]:
        inside = inside[name]
    name, value = where[-1], inside[where[-1]]
    if isinstance(value, str) and value:
        inside[name] = rng.choice((digit_of(rng, value), "0" * len(value), value[2:], value[::-1]))
    elif isinstance(value, dict) and value:
        one, other = rng.choice(list(value)), rng.choice([*value, "0", "3", "4", "9999"])
        value[other] = value.pop(one)
    elif isinstance(value, list) and value:
        inside[name] = rng.choice((value[:-1], value[::-1], value[1:], [*value, value[0]], [*value, 3]))
    elif type(value) in (int, float):
        inside[name] = type(value)(rng.choice((value + 1, value - 1, 0, 2 * value)))
    if rng.random() < 0.1 and isinstance(inside, dict):
        del inside[name]
    return copied


def digit_of(rng, text):
    at = rng.randrange(len(text))
    return text[:at] + rng.choice("0123456789abcdef") + text[at + 1 :]


def spoiled(rng, buffer):
    """A message with something else in it."""
    tree, meta = unpack(buffer)
    act = rng.randrange(8)
    if meta.get("secure") is not None and rng.random() < 0.15:  # a server that would like to see an upload bare
        return pack(tree, {**meta, "secure": None})
    if act == 0:
        return mutated(rng.randrange(2**64), [buffer])
    if act < 6:
        for _ in range(rng.choice((1, 1, 2, 3))):
            meta = twisted(rng, meta)
    elif act == 6:
        meta = change(rng, meta, STRANGE)
    else:
        tree = change(rng, tree, MASKED)
    try:
        return pack(tree, meta)
    except (TypeError, ValueError):  # what no message can hold
        return change_header(rng, buffer)


# --- readers


def read_steps(buffer):
    """What every reader makes of an answer: what it is for, or an ``Answer`` that says what is wrong."""
    found = {reader: reader(buffer) for reader in READERS}
    for reader, each in found.items():
        assert isinstance(each, (READERS[reader][1], Answer))
        if isinstance(each, Answer):
            assert each.error is not None
            assert each.error.isprintable()
            assert len(each.error) < 500
    return found


@pytest.mark.fuzz
@examples(300, 60_000)
@given(seed=SEEDS)
def test_a_damaged_message_of_a_secure_sum_is_malformed_or_still_one(real, seed):
    rng = random.Random(seed)
    buffer = spoiled(rng, rng.choice(real))
    survives(buffer)
    read_steps(buffer)


def test_the_mutations_reach_every_reader_and_every_step(real, worlds):
    """Enough of them can still be read, of every kind: else nothing behind the first check would be tried."""
    rng = random.Random(0)
    read = Counter()
    for _ in range(3000):
        buffer = spoiled(rng, rng.choice(real))
        read.update(READERS[reader][0] for reader, each in read_steps(buffer).items() if not isinstance(each, Answer))
        with suppress(Malformed):
            read[type(read_request(buffer)).__name__] += 1
    asked = {"Begin", "Advertise", "Share", "Work", "Confirm", "Unmask"}
    assert set(read) >= asked | {step for step, _ in READERS.values()}, read
    assert min(read.values()) >= 5, read
    untouched = {kind_of(request) for request in worlds[1].requests}
    assert untouched >= {*STEPS, "exchange"}


# --- nodes


class Pressed(Direct):
    """Before and after each real request, a node is asked spoiled ones of the same run, in any order; all is watched."""

    def __init__(self, nodes, rng, victim=1):
        super().__init__(nodes)
        self.rng, self.victim = rng, victim
        self.seen = []
        self.begun = {}
        self.keys, self.told = None, {}
        self.tally = Counter()

    def send(self, requests, deadline, enough=None):
        answers = {}
        for number, request in requests.items():
            self.seen.append(request)
            pressed = number == self.victim and bool(self.begun) and self.rng.random() < 0.6
            if pressed and self.rng.random() < 0.5:
                self.press()
            answers[number] = self.watched(request) if number == self.victim else self._nodes[number].answer(request)
            if pressed:
                self.press()
        return answers

    def press(self):
        """A few requests, the newest ones more often than the others."""
        for _ in range(self.rng.choice((1, 2, 4))):
            request = self.rng.choice(self.seen[-8:] if self.rng.random() < 0.7 else self.seen)
            self.watched(spoiled(self.rng, request) if self.rng.random() < 0.9 else request)

    def watched(self, request):
        answer = self._nodes[self.victim].answer(request)
        tree, told = unpack(answer)
        assert told["name"] == self._nodes[self.victim].name
        assert isinstance(told.get("error", ""), str)
        if "error" not in told:
            self.check_given(read_request(request), tree, told)
        return answer

    def check_given(self, asked, tree, told):
        """Nothing bare, and of each party one share at most of each sum."""
        self.tally[type(asked).__name__] += 1
        if isinstance(asked, Begin):
            self.begun[asked.run] = asked.secure is not None
        elif isinstance(asked, Work) and self.begun[asked.run]:
            assert not is_bare(tree)
        if "keys" in told and told["keys"] != self.keys:  # another sum
            self.keys, self.told = told["keys"], {}
        for party, share in told.get("shares", {}).items():
            assert self.told.setdefault(party, share) == share, f"both shares of party {party}"


def is_bare(tree):
    """Masked numbers are unsigned and spread over 64 bits: that all are small has a chance below 2^-60."""
    leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(tree)]
    return any(leaf.dtype != np.uint64 for leaf in leaves) or np.abs(decode(np.concatenate(leaves))).max() < 1e3


@pytest.mark.fuzz
@examples(30, 3000)
@given(seed=SEEDS, last=st.booleans())
def test_no_request_makes_a_node_tell_more_than_it_should_or_ends_it(worlds, seed, last):
    """The round has the right sum or none, and the next one is as if nothing had been."""
    world = worlds[last]
    wire = Pressed(world.nodes, random.Random(seed))
    with suppress(FederationError):
        assert {0, 2, 3} <= set(world.is_right(wire, attempts=2))
    assert world.is_right(Direct(world.nodes)) == (0, 1, 2, 3)


def test_the_pressed_node_does_every_step(worlds):
    """Else the test above could not see what a node gives away."""
    tally = Counter()
    for seed in range(12):
        wire = Pressed(worlds[1].nodes, random.Random(seed))
        with suppress(FederationError):
            worlds[1].secured(wire, attempts=2)
        tally += wire.tally
    assert set(tally) >= {"Begin", "Advertise", "Share", "Work", "Confirm", "Unmask"}, tally


def test_what_is_bare_would_be_seen():
    assert is_bare({"x": np.zeros(4, np.float32)})
    assert is_bare({"x": np.arange(-4, 4).astype(np.int64).view(np.uint64) << 30})
    assert not is_bare({"x": np.random.default_rng(0).integers(0, 2**64, 4, np.uint64)})
    wire = Pressed([], random.Random(0))
    wire.check_given(None, None, {"keys": "a", "name": ""})
    wire.check_given(None, None, {"shares": {"1": "aa"}})
    with pytest.raises(AssertionError, match="both shares of party 1"):
        wire.check_given(None, None, {"shares": {"1": "bb"}})


# --- servers


class Lying(Direct):
    """Node 1 changes what it answers at some steps; another one at times too."""

    def __init__(self, nodes, rng):
        super().__init__(nodes)
        self.rng = rng
        self.touched = False
        """Whether masked numbers were changed: then there is noise in the sum, and nobody can tell."""
        self.lied = Counter()

    def send(self, requests, deadline, enough=None):
        answers = dict(super().send(requests, deadline, enough))
        for node in list(answers):
            kind = kind_of(requests[node])
            if kind not in ("begin", "end") and self.rng.random() < (0.4 if node == 1 else 0.03):
                changed = (
                    self.rng.choice(("it broke", b"")) if self.rng.random() < 0.1 else spoiled(self.rng, answers[node])
                )
                self.touched |= kind == "exchange" and other_numbers(answers[node], changed)
                self.lied[kind] += changed != answers[node]
                answers[node] = changed
        return answers


def other_numbers(answer, changed):
    one, other = read_masked(answer), read_masked(changed)
    return isinstance(one, Masked) and isinstance(other, Masked) and pack(one.tree) != pack(other.tree)


@pytest.mark.fuzz
@examples(30, 3000)
@given(seed=SEEDS, last=st.booleans())
def test_no_answer_ends_a_server_or_makes_a_wrong_sum(worlds, seed, last):
    finishes(worlds[last], Lying(worlds[last].nodes, random.Random(seed)))


def finishes(world, wire):
    """Whether the round is done; if it is, with the right sum."""
    try:
        state, federation = world.secured(wire, attempts=3)
    except FederationError:
        return False
    assert all(text.isprintable() and len(text) < 1500 for text in federation.left_out)
    if not wire.touched:
        assert_close(state.server, world.expected(tuple(federation.trace[0][0])))
    return True


def test_the_lies_are_of_every_step_and_most_rounds_are_done(worlds):
    lied, done, touched = Counter(), 0, 0
    for seed in range(20):
        wire = Lying(worlds[1].nodes, random.Random(seed))
        done += finishes(worlds[1], wire)
        touched += wire.touched
        lied += wire.lied
    assert set(lied) == {*STEPS, "exchange"}, lied
    assert done >= 10
    assert touched <= 10


def test_a_wrong_sum_would_be_seen(worlds):
    """One masked number that was changed, by a server that says nothing of it."""
    for world in worlds:
        wire = Changing(world.nodes)
        with pytest.raises(AssertionError):
            finishes(world, wire)


class Changing(Lying):
    """Node 1 adds a tenth to its masked numbers."""

    def __init__(self, nodes):
        super().__init__(nodes, random.Random(0))

    def send(self, requests, deadline, enough=None):
        answers = Direct.send(self, requests, deadline, enough)
        if 1 in answers and kind_of(requests[1]) == "exchange":
            tree, told = unpack(answers[1])
            answers[1] = pack(jax.tree.map(lambda leaf: leaf + np.uint64(2**32 // 10), tree), told)
        return answers
