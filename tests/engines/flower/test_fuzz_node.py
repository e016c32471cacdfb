"""Requests to a node and answers to a server that were made up or damaged: both live on, and nothing else is touched."""

import os
import random
import re
import resource
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rookery as rk
from rookery.engines.flower.wire.pack import pack, unpack
from rookery.engines.flower.wire.transport import Direct
from tests.engines.flower.test_flower import Case, Recorder
from tests.engines.flower.test_safety import Foreign, goes_on, tree_of
from tests.helpers.fuzzing import examples
from tests.helpers.mutations import ARRAYS, STRANGE, change, change_bytes, change_header, mutated

OURS = re.compile(r"[0-9a-f]{32}(/(rookery-run|begin\.message|order|client-[01](/(\d+-\d+-\d+\.state|held))?))?")
"""The only files that a node of clients 0 and 1 may have in its folder."""


class World:
    """A node in a folder among others, which it may not touch."""

    def __init__(self, folder):
        self.case = Case(rk.FedBiOLocal(), participation=None)
        transport = Recorder(self.case.nodes([[0, 1], [2, 3]]))
        self.case.federate(transport, 3)
        self.requests = [unpack(request) for node, request in transport.requests if node == 0]
        self.root, self.home = folder, folder / "site" / "home"
        for name in ("victim", "site/Documents", "site/home-two"):
            (folder / name).mkdir(parents=True)
            (folder / name / "mine.txt").write_text(name)
        self.home.mkdir()
        (self.home / "thesis").mkdir()
        (self.home / "thesis" / "text").write_text("years of work")
        (self.home / "Documents").symlink_to(folder / "victim")
        (self.home / ("f" * 32)).symlink_to(folder / "victim")
        self.before = self.others()
        self.asked = 0
        self.restart()

    def restart(self):
        self.node = self.case.nodes([[0, 1]], self.home)[0]
        self.node._folder = self.home

    def others(self):
        """All but what the node made."""
        return {
            name: each
            for name, each in tree_of(self.root).items()
            if not self.made(Path(name)) or Path(name).is_symlink()
        }

    def made(self, path):
        return path.is_relative_to(self.home) and OURS.fullmatch(str(path.relative_to(self.home)))

    def ask(self, request):
        started = time.monotonic()
        tree, told = unpack(self.node.answer(request))
        assert time.monotonic() - started < 60
        assert told["name"] == self.node.name
        assert isinstance(told.get("error", ""), str)
        return tree, told


@pytest.fixture(scope="module")
def world():
    with tempfile.TemporaryDirectory() as folder:
        yield World(Path(folder))


def spoil(rng, request):
    """A request with something else in it, as a message; sometimes as it was."""
    tree, meta = request
    if rng.random() < 0.8:
        meta = change(rng, meta, STRANGE)
    if rng.random() < 0.3:
        tree = change(rng, tree, ARRAYS)
    try:
        buffer = pack(tree, meta)
    except (TypeError, ValueError):  # what no message can hold
        buffer = change_header(rng, pack(*request))
    return change_bytes(rng, buffer) if rng.random() < 0.1 else buffer


@pytest.mark.fuzz
@examples(150, 10_000)
@given(seed=st.integers(0, 2**64 - 1))
def test_no_request_ends_a_node_or_touches_anything_but_its_runs(world, seed):
    rng = random.Random(seed)
    if rng.random() < 0.05:
        world.restart()
    for request in rng.choices(world.requests, k=2):
        world.ask(spoil(rng, request))
    assert world.others() == world.before


@pytest.mark.fuzz
def test_after_all_of_that_the_node_still_works(world):
    """A new run, from beginning to end, after every kind of request: and its memory did not run away."""
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answered = 0
    for tree, meta in world.requests:
        told = world.ask(pack(tree, {**meta, "run": "abcdef01" * 4}))
        answered += "error" not in told[1]
    assert answered == len(world.requests)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - grown < 200_000
    assert world.others() == world.before


class Lying(Direct):
    """Node 1 changes its answers."""

    def __init__(self, nodes, rng):
        super().__init__(nodes)
        self.rng = rng

    def owned(self, node):
        """As with keys: without, the liar might come first and claim the clients of others."""
        return self._nodes[node].clients

    def send(self, requests, deadline, enough=None):
        answers = dict(super().send(requests, deadline, enough))
        if 1 in answers and self.rng.random() < 0.8:
            tree, told = unpack(answers[1])
            act = self.rng.randrange(4)
            if act == 0:
                answers[1] = mutated(self.rng.randrange(2**64), [answers[1]])
            elif act == 1:
                answers[1] = self.rng.choice(("it broke", "a\nb" * 1000, b""))
            else:
                changed = change(self.rng, told, STRANGE) if act == 2 else told
                rows = change(self.rng, tree, ARRAYS) if act == 3 else tree
                try:
                    answers[1] = pack(rows, changed)
                except (TypeError, ValueError):
                    answers[1] = change_header(self.rng, answers[1])
        return answers


@pytest.mark.fuzz
@examples(12, 400)
@given(seed=st.integers(0, 2**64 - 1))
def test_no_answer_ends_a_server(federation_case, seed):
    """Every round is done with the uploads of three honest nodes; the liar's client is on another node too."""
    rng = random.Random(seed)
    case = federation_case
    nodes = [*case.nodes(), case.nodes()[1]]
    engine = Foreign(transport=Lying(nodes, rng), pause=0.0, quorum=0.7, attempts=2)
    _, federation = goes_on(engine, case.prepare(), rounds=3)
    assert len(federation.trace) == 3
    for (counted,) in federation.trace:
        assert {0, 2, 3} <= set(counted)
    assert all(text.isprintable() and len(text) < 1500 for text in federation.left_out)


@pytest.fixture(scope="module")
def federation_case():
    return Case(rk.MeFBO(), participation=None)


def test_a_file_outside_would_be_seen(world):
    """The look at what is around the node sees a file, a link, a change."""
    (world.root / "victim" / "owned.state").write_text("")
    assert world.others() != world.before
    os.unlink(world.root / "victim" / "owned.state")
    (world.home / "0").symlink_to(world.root)
    assert world.others() != world.before
    os.unlink(world.home / "0")
    assert world.others() == world.before
