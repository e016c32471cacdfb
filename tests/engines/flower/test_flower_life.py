"""The life of a federation: what goes on for many rounds does not grow, and a node that ended is not waited for."""

import time
from types import SimpleNamespace

import jax
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.engines.flower import federation as server
from rookery.engines.flower.compiled import drawn
from rookery.engines.flower.engine import Over, _Ended
from rookery.engines.flower.launch.processes import Started
from rookery.engines.flower.wire.pack import unpack
from rookery.engines.flower.wire.transport import Direct
from rookery.problem.keys import PARTICIPANTS, fold
from tests.engines.flower.test_flower import Case, assert_close, parts

PARTICIPATIONS = [rk.Uniform(2), rk.Bernoulli(0.6), rk.Full()]


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda each: type(each).__name__)
def test_after_the_first_rounds_nothing_is_compiled(participation):
    """A program that is compiled for each round is kept: the server grew by 1.8 Mbyte a round."""
    case = Case(rk.MeFBO(), participation=participation)
    compiled = []

    def note(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(seconds)

    run = case.prepare()
    state = run.initial_state()
    with Over(transport=Direct(case.nodes()), pause=0.0).open(run) as federation:
        state, _ = federation.advance(state, 3)
        jax.monitoring.register_event_duration_secs_listener(note)
        try:
            jax.jit(lambda: jnp.zeros(3))()
            seen = len(compiled)
            state, _ = federation.advance(state, 5)
        finally:
            jax.monitoring.unregister_event_duration_listener(note)
    assert seen, "the listener hears of compilations"
    assert len(compiled) == seen


@pytest.mark.parametrize("participation", PARTICIPATIONS, ids=lambda each: type(each).__name__)
def test_the_draws_are_those_of_the_simulator(participation):
    setting = Case(rk.MeFBO(), participation=participation).prepare().setting
    simulated = jax.jit(lambda round, number: setting.participants(round, number))
    for round, number in [(0, 0), (1, 0), (1, 2), (700, 1), (2**30, 3)]:
        numbers = jnp.int32(round), jnp.int32(number)
        first = drawn(participation, setting.key, 4, *numbers, None)
        again = drawn(participation, setting.key, 4, *numbers, jnp.int32(3))
        key = fold(fold(setting.key, PARTICIPANTS, round, number), "attempt", 3)
        for found, expected in ((first, simulated(*numbers)), (again, participation.draw(key, 4, round, number))):
            jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_reasons_that_are_always_others_are_not_all_kept(monkeypatch):
    monkeypatch.setattr(server, "LEFT_OUT", 3)
    case = Case(rk.MeFBO(), participation=None)

    class Troubled(Direct):
        sent = 0

        def send(self, requests, deadline, enough=None):
            answers = super().send(requests, deadline, enough)
            if unpack(requests[0])[1]["kind"] == "exchange":
                answers[0], self.sent = f"trouble {self.sent}", self.sent + 1
            return answers

    _, federation = case.federate(Troubled(case.nodes()), 6)
    assert federation.left_out == {f"node of 0: trouble {number}": 1 for number in (3, 4, 5)}
    assert federation.record["left_out"] == {"node of 0: trouble 5": 1}


def test_pauses_double_up_to_the_time_after_which_all_nodes_are_greeted_again():
    """Else the twelfth attempt of a round would come after half an hour."""
    assert [Over(pause=1.0).pause_after(attempt) for attempt in (0, 1, 4, 5, 20)] == [1, 2, 16, 30, 30]
    assert [Over(pause=50.0).pause_after(attempt) for attempt in (0, 3)] == [50, 50]
    assert Over(pause=0.0).pause_after(9) == 0


# --- nodes that end -----------------------------------------------------------------------------------------------------


class Script:
    """A ``Grid`` whose nodes answer at the poll that is written down for them, or never."""

    def __init__(self, answers):
        self.answers, self.polls = answers, 0

    def get_node_ids(self):
        return list(self.answers)

    def push_messages(self, messages):
        self.sent = {f"message-{m.metadata.dst_node_id}": m.metadata.dst_node_id for m in messages}
        return list(self.sent)

    def pull_messages(self, ids):
        from rookery.engines.flower.wire.grid import wrapped

        self.polls += 1
        due = [id for id in ids if self.answers[self.sent[id]] <= self.polls]
        return [
            SimpleNamespace(
                metadata=SimpleNamespace(reply_to_message_id=id), has_error=lambda: False, content=wrapped(id.encode())
            )
            for id in due
        ]


NEVER = 10**9


def test_a_node_that_ended_is_not_waited_for_and_not_listed():
    """What it sent before its end counts; the others are waited for as ever."""
    grid_module = pytest.importorskip("rookery.engines.flower.wire.grid")
    pytest.importorskip("tests.helpers.flower").local_run()
    grid = Script({1: 1, 2: NEVER, 3: 4, 4: 3})
    transport = grid_module.OverGrid(grid, poll=0.001, ended=lambda: {2, 4} if grid.polls >= 2 else set())
    assert transport.nodes() == [1, 2, 3, 4]
    start = time.monotonic()
    answers = transport.send(dict.fromkeys([1, 2, 3, 4], b"?"), deadline=60.0)
    assert time.monotonic() - start < 10
    assert answers == {1: b"message-1", 2: "its process has ended", 3: b"message-3", 4: b"message-4"}
    assert transport.nodes() == [1, 3]


def test_the_starter_of_nodes_tells_which_ended(tmp_path, caplog):
    group = Started(tmp_path)
    ended = _Ended(group)
    assert ended() == set(), "no nodes of ours"
    group.processes["nodes"] = SimpleNamespace(poll=lambda: None)
    log = tmp_path / "nodes.log"
    log.write_text("node-0 (Flower's node 17) ended with status -9 and is started again\nnode-1 (Flow")
    assert ended() == {17}
    with log.open("a") as file:
        file.write("er's node not yet) ended with status 1 and is started again\n")
    assert ended() == {17}
    with log.open("a") as file:
        file.write("node-1 (Flower's node 12345678901234567890) ended with status -11 and is started again\n")
    assert ended() == {17, 12345678901234567890}
    assert [record.getMessage()[:6] for record in caplog.records] == ["node-0", "node-1", "node-1"]


def test_a_replacement_is_greeted_before_the_next_exchange():
    """A node ends in round 1; round 2 has its clients again, on the node that was started in its place."""
    case = Case(rk.FedSGDAM(), participation=None)
    nodes = case.nodes()

    class Dying(Direct):
        now = (0, 1, 2, 3)

        def nodes(self):
            return list(self.now)

        def send(self, requests, deadline, enough=None):
            answers = super().send({n: each for n, each in requests.items() if n in self.now}, deadline, enough)
            return {**answers, **{n: "its process has ended" for n in requests if n not in self.now}}

    transport = Dying([*nodes, nodes[3]])
    run = case.prepare()
    state = run.initial_state()
    with Over(transport=transport, pause=0.0).open(run) as federation:
        state, _ = federation.advance(state, 1)
        greet = federation.roster.greet

        def die_after_the_greeting():
            greet()
            transport.now = (0, 1, 2)

        federation.roster.greet = die_after_the_greeting
        state, _ = federation.advance(state, 1)
        federation.roster.greet, transport.now = greet, (0, 1, 2, 4)
        state, _ = federation.advance(state, 1)
        state = federation.gather(state, final=True)
    assert federation.trace == [[[0, 1, 2, 3]], [[0, 1, 2]], [[0, 1, 2, 3]]]
    assert dict(federation.left_out) == {"node of 3: its process has ended": 1}
    case.how["participation"] = rk.Replay(federation.trace)
    assert_close(parts(state), parts(case.solve(3).state))
