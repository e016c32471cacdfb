"""The Flower engine inside one process: messages, nodes, the server's walk, and parity with the simulator."""

import ast
import contextlib
import dataclasses
import importlib
import importlib.metadata
import inspect
import re
import struct
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.algorithm.walk import Moment
from rookery.algorithms.rates import tell_algorithm
from rookery.cli.node import command as node_command
from rookery.engines.diagnose import Careful
from rookery.engines.flower.engine import Over
from rookery.engines.flower.launch.processes import require_flower
from rookery.engines.flower.node import Node
from rookery.engines.flower.rules import FederationError, Rules
from rookery.engines.flower.site import from_memory
from rookery.engines.flower.store import StateLost, Store
from rookery.engines.flower.wire.listing import partitions
from rookery.engines.flower.wire.pack import Malformed, pack, payload_bytes, unpack
from rookery.engines.flower.wire.transport import Direct
from rookery.experiment.deployed import Order, prepare_deployed
from rookery.experiment.sites import open_site
from rookery.solving.loop import make_rounds
from rookery.solving.prepare import prepare, single
from tests.helpers.marks import quick_ones, slow
from tests.helpers.parity import client_loss, lower, objective, upper

N = 4


# --- tiny problems in float32 -----------------------------------------------------------------------------------------


BOX = rk.Box(-1.0, 1.0)
PROBLEMS = {
    "bilevel": rk.Bilevel(upper, lower, BOX, BOX),
    "bilevel-local": rk.Bilevel(upper, lower, BOX, BOX, lower_level="local"),
    "minimax": rk.Minimax(objective, BOX, BOX),
    "weighting": rk.ClientWeighting(client_loss, model_set=BOX),
}


def examples(rng, size):
    row = {
        "a": 0.5 * rng.standard_normal((size, 2)),
        "b": rng.standard_normal((size, 2)),
        "s": rng.uniform(0.5, 1.5, size),
    }
    return {name: values.astype(np.float32) for name, values in row.items()}


def make_clients(lower_sizes=(4,) * N, upper_sizes=(3,) * N, weights=(0.1, 0.2, 0.3, 0.4)):
    rng = np.random.default_rng(0)
    lower, upper = ([examples(rng, size) for size in sizes] for sizes in (lower_sizes, upper_sizes))
    return rk.Clients(lower, upper, weights=weights, server=examples(rng, 3))


def nothing(x, y):
    return {}


class Case:
    """An algorithm on a tiny problem, with what it accepts of partial participation and unequal local steps."""

    def __init__(self, algorithm, clients=None, batch_size=2, participation=2, kind=None):
        kind = kind or algorithm.solves[0]
        x0 = np.full(N, 1 / N, np.float32) if kind == "weighting" else np.array([0.6, -0.4], np.float32)
        if clients is None:
            clients = make_clients(weights=None) if kind == "weighting" else make_clients()
        self.task = PROBLEMS[kind], algorithm, clients, x0, np.array([0.8, 0.3], np.float32)
        self.how = {"key": 3, "participation": participation, "batch_size": batch_size, "evaluate": nothing}
        for steps in (rk.Steps(1, 3), 2, 1):
            try:
                prepare(single(*self.task, local_steps=steps, **self.how))
            except ValueError:
                continue
            self.how["local_steps"] = steps
            break

    def solve(self, rounds=10, **more):
        return rk.solve(*self.task, rounds=rounds, every=5, **{**self.how, **more})

    def prepared(self, **more):
        return prepare(single(*self.task, **{**self.how, **more}))

    def prepare(self, **more):
        """The run alone, as an engine takes it."""
        return self.prepared(**more).run

    def nodes(self, groups=None, folder=None):
        problem, _, clients, x0, y0 = self.task
        source = from_memory(problem, clients, x0, y0)
        groups = [[client] for client in range(N)] if groups is None else groups
        places = [None if folder is None else folder / str(i) for i in range(len(groups))]
        return [Node(lambda: source, own, place) for own, place in zip(groups, places, strict=True)]

    def federate(self, transport, rounds=10, start=None, **rules):
        """(state, federation) after some rounds."""
        run = self.prepare()
        state = run.initial_state() if start is None else start
        with Over(transport=transport, pause=0.0, **rules).open(run) as federation:
            while state.round < rounds:
                state, _ = federation.advance(state, 1)
            return federation.gather(state, final=True), federation


def parts(state):
    return state.server, state.keep, state.last


def assert_close(one, other, tolerance=1e-5):
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True))
    for a, b in pairs:
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance * max(np.abs(b).max(initial=0), 0.01))


# --- messages ---------------------------------------------------------------------------------------------------------


def test_a_message_comes_back_as_it_was():
    rng = np.random.default_rng(0)
    tree = {
        "x": rng.standard_normal(5).astype(np.float32),
        "deep": {"y": rng.standard_normal((2, 3)), "none": None, "list": [np.arange(3, dtype=np.int32), np.uint32(7)]},
        "pair": (np.array([True, False]), np.zeros((0, 4), np.float32)),
        "big": np.arange(4, dtype=">f4"),
        "jax": jnp.arange(3, dtype=jnp.float32),
    }
    back, meta = unpack(pack(tree, {"round": 3, "names": ["ä", None], "rate": 0.1, "stage": float("inf")}))
    assert meta == {"round": 3, "names": ["ä", None], "rate": 0.1, "stage": float("inf")}
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True):
        np.testing.assert_array_equal(a, np.asarray(b))
        assert a.dtype.name == np.asarray(b).dtype.name
    assert payload_bytes(pack(tree)) == sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"x": np.zeros(2, np.float16)}, r"message\.x must be an array of one of float32.*got float16"),
        ({"x": {"k": jax.random.key(0)}}, r"message\.x\.k must be .*got key"),
        ({"x": ["text"]}, r"message\.x\[0\] must be .*got str"),
        ({3: np.zeros(2)}, r"names of arrays must be strings, got 3"),
    ],
)
def test_what_cannot_travel_is_named(tree, message):
    with pytest.raises(TypeError, match=message):
        pack(tree)


def header_of(text):
    return b"RKY1" + struct.pack("<I", len(text)) + text


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda buffer: b"", "starts with"),
        (lambda buffer: b"XXXX" + buffer[4:], "starts with"),
        (lambda buffer: buffer[:20], "the header has"),
        (lambda buffer: buffer[:-1], "needs 8 bytes, the buffer has 7 left"),
        (lambda buffer: buffer + b"\0", "1 bytes too many"),
        (lambda buffer: header_of(b"{]"), "not JSON"),
        (lambda buffer: header_of(b"[" * 100_000), "not JSON"),
        (lambda buffer: header_of(b"[]"), "must have meta, tree and arrays"),
        (lambda buffer: buffer.replace(b"float32", b"float16"), "with a dtype of"),
        (lambda buffer: buffer.replace(b"[2]", b"[-]").replace(b"[-]", b"-22"), "must be"),
        (lambda buffer: header_of(b'{"meta":{},"tree":{"dict":{"x":1}},"arrays":[]}'), "something unknown"),
        (lambda buffer: header_of(b'{"meta":{},"tree":null,"arrays":[["float32",[0]]]}'), "in the tree once"),
        (lambda buffer: header_of(b'{"meta":{},"tree":0,"arrays":[["bool",[1]]]}') + b"\x02", "another number"),
    ],
)
def test_a_malformed_message_is_refused(spoil, message):
    with pytest.raises(Malformed, match=message):
        unpack(spoil(pack({"x": np.ones(2, np.float32)})))


def test_no_spoiled_byte_does_more_than_be_refused():
    buffer = pack({"x": np.ones(3, np.float32), "y": (np.array([True]), None)}, {"kind": "exchange"})
    rng = np.random.default_rng(0)
    for _ in range(500):
        spoiled = bytearray(buffer)
        spoiled[rng.integers(len(buffer))] = rng.integers(256)
        with contextlib.suppress(Malformed):
            unpack(bytes(spoiled))


# --- what a node stores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("on_disk", [False, True])
def test_only_what_was_counted_stays(tmp_path, on_disk):
    folder = tmp_path / "run" if on_disk else None
    store = Store(folder)
    store.begin(b"")

    def again():
        return Store(folder) if on_disk else store

    assert store.settle(5, None, 0) is None
    store.write(5, (0, 0, 0), {"m": np.array([1.0])})
    assert again().settle(5, (0, 0, 0), 3)["m"] == 1
    store = again()
    store.write(5, (3, 0, 0), {"m": np.array([2.0])})
    assert again().settle(5, (0, 0, 0), 4)["m"] == 1, "round 3 was not counted"
    store = again()
    with pytest.raises(StateLost, match="client 5 after round 3"):
        store.read(5, (3, 0, 0))
    store.write(5, (4, 1, 0), {"m": np.array([3.0])})
    assert again().settle(5, (4, 1, 0), 4)["m"] == 3, "a second draw of the round"
    store = again()
    store.write(5, (4, 1, 1), {"m": np.array([4.0])})
    assert again().settle(5, (0, 0, 0), 4)["m"] == 1, "the server goes back to the start of the round"
    store = again()
    store.clear()
    with pytest.raises(StateLost):
        again().read(5, (0, 0, 0))


def test_a_damaged_file_is_lost_state(tmp_path):
    store = Store(tmp_path / "run")
    store.begin(b"")
    store.write(1, (0, 0, 0), {"m": np.ones(3)})
    (file,) = tmp_path.rglob("*.state")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(StateLost):
        Store(tmp_path / "run").settle(1, (0, 0, 0), 1)


def test_what_a_killed_node_left_half_written_is_no_obstacle_and_is_removed(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".rookery-run.0123.part").touch()  # it was killed when it marked its folder
    store = Store(folder)
    store.begin(b"")
    store.write(1, (0, 0, 0), {"m": np.ones(3)})
    (folder / "client-1" / ".0-0-1.state.0123.part").touch()
    assert Store(folder).settle(1, (0, 0, 0), 1)["m"].tolist() == [1, 1, 1]
    assert not list(tmp_path.rglob("*.part"))


def test_a_half_written_file_of_somebody_else_is_left_alone(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".thesis.0123.part").touch()
    with pytest.raises(ValueError, match="is there already, and is not the folder of a run"):
        Store(folder).begin(b"")
    assert [path.name for path in folder.iterdir()] == [".thesis.0123.part"]


# --- a node -----------------------------------------------------------------------------------------------------------


class Recorder(Direct):
    """Keeps what crosses."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.requests, self.answers = [], []

    def send(self, requests, deadline, enough=None):
        answers = super().send(requests, deadline, enough)
        self.requests += [(node, request) for node, request in requests.items() if node in answers]
        self.answers += answers.values()
        return answers

    @property
    def exchanges(self):
        pairs = zip(self.requests, self.answers, strict=True)
        return [(node, request, reply) for (node, request), reply in pairs if unpack(request)[1]["kind"] == "exchange"]


def test_a_repeated_request_is_answered_from_store_and_an_old_one_refused():
    case = Case(rk.FedNest(), participation=None)
    nodes = case.nodes()
    transport = Recorder(nodes)
    case.federate(transport, 1)
    mine = [(request, reply) for node, request, reply in transport.exchanges if node == 0]
    assert len(mine) == 2 + 5 + 3
    begin = next(request for node, request in transport.requests if node == 0)
    fresh = case.nodes()[0]
    fresh.answer(begin)
    answers = [fresh.answer(request) for request, _ in mine]
    assert answers == [reply for _, reply in mine]
    assert [fresh.answer(request) for request, _ in mine] == answers, "each is answered from store"
    tree, meta = unpack(mine[0][0])
    old = fresh.answer(pack({**tree, "down": {**tree["down"], "x": tree["down"]["x"] + 1}}, meta))
    assert unpack(old)[1]["kind"] == "stale"


def test_a_restarted_node_goes_on_within_a_round(tmp_path):
    """As a stock node of Flower's does for every message. One without a folder asks to be greeted."""
    case = Case(rk.FedNest(), participation=None)
    transport = Recorder(case.nodes())
    case.federate(transport, 1)
    mine = [(request, reply) for node, request, reply in transport.exchanges if node == 0]
    begin = next(request for node, request in transport.requests if node == 0)
    case.nodes(folder=tmp_path)[0].answer(begin)
    for request, reply in mine:
        assert case.nodes(folder=tmp_path)[0].answer(request) == reply
    fresh = case.nodes()[0]
    assert unpack(fresh.answer(mine[1][0]))[1]["kind"] == "unknown-run"
    fresh.answer(begin)
    rows, told = unpack(fresh.answer(mine[1][0]))
    assert rows == {}
    assert "was not here at the start of this draw" in told["failed"]["0"]
    end = pack(None, {"kind": "end", "run": unpack(begin)[1]["run"]})
    case.nodes(folder=tmp_path)[0].answer(end)
    assert not list(tmp_path.rglob("*.*"))


def test_errors_of_a_problem_are_told():
    case = Case(rk.MeFBO())

    def fails():
        raise RuntimeError("the disk is gone")

    transport = Recorder(case.nodes())
    case.federate(transport, 1)
    told = unpack(Node(fails, [0]).answer(transport.requests[0][1]))[1]
    assert told["error"] == "RuntimeError: the disk is gone"
    assert "RuntimeError: the disk is gone" in str(_failure(lambda: case.federate(Direct([Node(fails, [0])]), 1)))
    assert "cannot be read" not in unpack(case.nodes()[0].answer(b"rubbish"))[1]["error"]
    assert "one of begin" in unpack(case.nodes()[0].answer(pack({}, {"kind": "exec"})))[1]["error"]


def _failure(action):
    with pytest.raises(FederationError) as caught:
        action()
    return caught.value


@pytest.mark.parametrize("run", ["../up", "", "a/b", ".", "Documents", "0" * 31, "0" * 32 + "/..", "A" * 32, 7, None])
def test_a_run_cannot_name_a_folder_outside(tmp_path, run):
    case = Case(rk.FedBiOLocal())
    transport = Recorder(case.nodes())
    case.federate(transport, 1)
    tree, meta = unpack(transport.requests[0][1])
    told = unpack(case.nodes(folder=tmp_path)[0].answer(pack(tree, {**meta, "run": run})))[1]
    assert "run must be" in told["error"]
    assert not list(tmp_path.iterdir())


def test_partitions_must_be_different():
    with pytest.raises(ValueError, match=r"partitions must be different.*\[1, 1\]"):
        Node(lambda: None, [1, 1])


# --- parity with the simulator ----------------------------------------------------------------------------------------


def local_grid(nodes):
    """A ``Grid`` of Flower's in this process, with a ``ClientApp`` for each node; counts the bytes of arrays."""
    from flwr.app import Context, RecordDict
    from flwr.serverapp import Grid

    from rookery.engines.flower.wire.grid import client_app, unwrapped
    from tests.helpers.flower import local_run, over_the_wire

    class LocalGrid(Grid):
        def __init__(self):
            self._run = local_run()
            apps = [client_app(lambda buffer, _, node=node: node.answer(buffer)) for node in nodes]
            self._apps = dict(enumerate(apps, 100))
            self._contexts = {id: Context(1, id, {}, RecordDict(), {}) for id in self._apps}
            self._replies = {}
            self.down = self.up = 0

        def set_run(self, run):
            self._run = run

        @property
        def run(self):
            return self._run

        def create_message(self, *arguments, **more):
            raise NotImplementedError

        def get_node_ids(self):
            return list(self._apps)

        def push_messages(self, messages):
            for message in messages:
                arrived = over_the_wire(message)
                message.metadata.__dict__["_message_id"] = message.object_id
                id = message.metadata.dst_node_id
                reply = over_the_wire(self._apps[id](message=arrived, context=self._contexts[id]))
                if unpack(unwrapped(message))[1]["kind"] == "exchange":
                    self.down += payload_bytes(unwrapped(message))
                    self.up += payload_bytes(unwrapped(reply))
                self._replies[message.object_id] = reply
            return [message.object_id for message in messages]

        def pull_messages(self, message_ids):
            return [self._replies.pop(id) for id in list(message_ids) if id in self._replies]

        def send_and_receive(self, messages, *, timeout=None):
            return self.pull_messages(self.push_messages(messages))

    return LocalGrid()


@pytest.mark.optimized
@pytest.mark.parametrize("name", quick_ones(rk.registry, {"MeFBO", "FedBiO-Local", "FedSGDA-M", "PrimalDual"}))
def test_the_iterates_are_those_of_the_simulator(name):
    from rookery.engines.flower.wire.grid import OverGrid

    case = Case(rk.registry[name]())
    expected = case.solve()
    grid = local_grid(case.nodes())
    found = case.solve(engine=Over(transport=OverGrid(grid, poll=0.0)))
    assert found.x.dtype == jnp.float32
    assert_close((found.x, found.y, parts(found.state)), (expected.x, expected.y, parts(expected.state)))
    assert np.abs(np.asarray(expected.y) - case.task[4]).max() > 1e-4, "something happened"
    for one, other in zip(found.history, expected.history, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert (grid.down, grid.up) == (found.history.last["bytes_down"], found.history.last["bytes_up"])


@pytest.mark.slow
def test_clients_of_unequal_sizes_on_shared_nodes_and_whole_sets():
    """A node that holds clients of equal sizes only still visits whole sets as all others do."""
    case = Case(rk.FedBiO(), make_clients((2, 5, 2, 3), (4, 3, 4, 4)), batch_size=None)
    found = case.solve(engine=Over(transport=Direct(case.nodes([[0, 2], [3, 1]]))))
    expected = case.solve()
    assert_close(parts(found.state), parts(expected.state))
    assert found.history.last["bytes_up"] == expected.history.last["bytes_up"]


class Shifts(rk.Algorithm):
    """Not of the package: a count that every client keeps, and a loss with randomness of its own."""

    solves = ("bilevel",)
    rate: float = 0.1

    def keep(self, x, y):
        return {"times": jnp.zeros((), jnp.int32)}

    def round(self):
        return (rk.Exchange(lambda server: server, self.client, lambda ctx, server, mean: {**server, **mean}),)

    def client(self, local, down, keep):
        step = self.rate * local.f().grad_x(down["x"], down["y"]) * (keep["times"] + 1)
        return rk.Reply({"x": down["x"] - step}, keep={"times": keep["times"] + 1})


@pytest.mark.slow
def test_a_loss_with_randomness_and_an_algorithm_of_ones_own():
    def noisy(x, y, batch, key, client):
        return upper(x, y, batch) + 0.1 * (client + 1) * jax.random.normal(key, x.shape, x.dtype) @ x

    for sizes, batch_size in (((4, 4, 4, 4), 2), ((2, 2, 5, 3), None)):
        clients = make_clients(upper_sizes=sizes)
        source = from_memory(rk.Bilevel(noisy, lower), clients, *Case(rk.MeFBO()).task[3:], Shifts())
        task = rk.Bilevel(noisy, lower), Shifts(), clients, source.x0, source.y0
        how = {"rounds": 5, "participation": 2, "batch_size": batch_size, "evaluate": nothing}
        nodes = [Node(lambda: source, own) for own in ([0, 1], [2], [3])]
        found, expected = rk.solve(*task, **how, engine=Over(transport=Direct(nodes))), rk.solve(*task, **how)
        assert_close(parts(found.state), parts(expected.state))
        assert int(found.state.keep["times"].sum()) == 10


# --- going on ---------------------------------------------------------------------------------------------------------


def test_a_solution_can_be_gone_on_from_on_either_engine():
    case = Case(rk.FedBiOLocal())
    whole = case.solve(10)
    half = case.solve(5, engine=Over(transport=Direct(case.nodes())))
    for engine in (None, Over(transport=Direct(case.nodes([[0, 1, 2, 3]])))):
        rest = case.solve(5, start=half, engine=engine)
        assert_close(parts(rest.state), parts(whole.state))
        assert rest.history.last["exchanges"] == whole.history.last["exchanges"]


@pytest.mark.slow
def test_a_killed_server_goes_on_with_the_same_federation(tmp_path):
    """Nodes went on by a round that the server forgot, and all of them were restarted."""
    case = Case(rk.FedBiOAccLocal())
    run = case.prepared()
    states, memories = [], []

    def remember(state, history, memory, best):
        states.append(jax.tree.map(jnp.copy, state))
        memories.append(memory)

    class Lasting(Over):
        lasting = True

    engine = Lasting(transport=Direct(case.nodes(folder=tmp_path)))
    make_rounds(dataclasses.replace(run, engine=engine), 6, 4, False, None, None, None, remember)
    assert [int(state.round) for state in states] == [1, 2, 3, 4, 5, 6]
    start, memory = states[4], memories[4]
    engine = Lasting(transport=Direct(case.nodes([[0, 1], [2, 3]])))
    with pytest.raises(FederationError, match="is not here"):
        make_rounds(
            dataclasses.replace(run, engine=dataclasses.replace(engine, pause=0.0)), 5, 4, False, start, memory=memory
        )
    engine = Lasting(transport=Direct(case.nodes(folder=tmp_path)))
    end = make_rounds(dataclasses.replace(run, engine=engine), 5, 4, False, start, memory=memory)
    expected = case.solve(10)
    assert_close(parts(end.state), parts(expected.state))


# --- faults -----------------------------------------------------------------------------------------------------------


class Faulty(Direct):
    """Loses answers before or after the work, sends requests twice, delivers old ones once more, spoils answers."""

    def __init__(self, nodes, seed=0, spoil=(), **rates):
        super().__init__(nodes)
        self.rng = np.random.default_rng(seed)
        self.rates, self.spoil = rates, dict(spoil)
        self.old = []
        self.happened = dict.fromkeys(rates, 0)

    def _happens(self, what):
        yes = bool(self.rng.random() < self.rates.get(what, 0))
        self.happened[what] = self.happened.get(what, 0) + yes
        return yes

    def send(self, requests, deadline, enough=None):
        answers = {}
        for number, request in requests.items():
            node = self._nodes[number]
            if unpack(request)[1]["kind"] != "exchange":
                answers[number] = node.answer(request)
                continue
            if self._happens("lost before"):
                continue
            if self.old and self._happens("late"):
                late, message = self.old[self.rng.integers(len(self.old))]
                self._nodes[late].answer(message)
            answer = node.answer(request)
            if self._happens("twice"):
                assert node.answer(request) == answer
            self.old.append((number, request))
            if self._happens("corrupt"):
                answer = answer[: len(answer) // 2]
            if self._happens("error"):
                answer = "Flower reports error 5: node unavailable"
            if not self._happens("lost after"):
                answers[number] = self.spoil[number](answer) if number in self.spoil else answer
        return answers


FAULTS = {"lost before": 0.1, "lost after": 0.1, "twice": 0.2, "late": 0.2, "corrupt": 0.05, "error": 0.05}


@pytest.mark.parametrize("name", ["MeFBO", slow("FedBiO-Local"), slow("PrimalDual")])
def test_what_is_lost_is_left_out_and_the_rest_is_exact(name):
    """Draws of one exchange: the counted participants are all that the simulator needs to repeat the run."""
    case = Case(rk.registry[name](), participation=3)
    transport = Faulty(case.nodes(), **FAULTS)
    state, federation = case.federate(transport, 30, attempts=20)
    assert all(count > 0 for count in transport.happened.values()), transport.happened
    assert len(federation.trace) == 30
    assert min(len(draw) for draws in federation.trace for draw in draws) < 3
    reasons = "\n".join(federation.left_out)
    for reason in ("no answer by the deadline", "cannot be read", "Flower reports error 5"):
        assert re.search(f"node of [0-3]: .*{reason}", reasons), reasons
    case.how["participation"] = rk.Replay(federation.trace)
    assert_close(parts(state), parts(case.solve(30).state))


class Shrinking(Careful):
    """The simulator's careful walk of round 0, with the participants that each exchange really had."""

    def __init__(self, case, answered):
        run = case.prepare()
        state = run.initial_state()
        super().__init__(run.setting, 0, state, None)
        self.answered = iter(answered)
        ids, mask = run.setting.participants(0, 0)
        self.end = self.run(run.setting.algorithm.round(), Moment(state.server, state.keep, None, ids, mask, -1))

    def exchange(self, step, at, index, number):
        now = jnp.isin(at.ids, jnp.asarray(next(self.answered)))
        if step.draw == "fresh":
            assert bool(now.all())
            return super().exchange(step, at, index, number)
        return super().exchange(step, dataclasses.replace(at, mask=at.mask & now), index, number)


@pytest.mark.slow
def test_a_participant_that_is_lost_is_out_of_the_rest_of_its_draw():
    """FedNest: a client that misses one of the last exchanges is not asked again, and those that stay are averaged."""
    case = Case(rk.FedNest(), participation=None)
    transport = Faulty(case.nodes())
    recorded, asked = [], Direct.send

    def send(requests, deadline, enough=None):
        kinds = {number: unpack(request)[1] for number, request in requests.items()}
        recorded.append({n: meta for n, meta in kinds.items() if meta["kind"] == "exchange"})
        answers = asked(transport, requests, deadline, enough)
        gone = [n for n, meta in kinds.items() if meta["kind"] == "exchange" and meta["order"][3] == 4 and n == 2]
        return {n: answer for n, answer in answers.items() if n not in gone}

    transport.send = send
    state, federation = case.federate(transport, 1)
    counts = [len(each) for each in recorded if each]
    assert counts == [4, 4, 4, 4, 4, 3, 3, 3, 3, 3]
    assert federation.trace == [[[0, 1, 2, 3], [0, 1, 3]]]
    assert np.asarray(state.last).tolist() == [0, 0, 0, 0]
    assert_close(state.server, Shrinking(case, [[0, 1, 2, 3]] * 4 + [[0, 1, 3]] * 6).end.server)


def spoiled(change):
    def spoil(answer):
        tree, meta = unpack(answer)
        return pack(jax.tree.map(change, tree), meta)

    return spoil


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda leaf: np.full_like(leaf, np.nan), "in the upload of client 1 is not finite"),
        (lambda leaf: np.full_like(leaf, np.inf), "in the upload of client 1 is not finite"),
        (lambda leaf: leaf[:1], "client 1 must upload .*float32.2.*it uploads .*float32.1"),
        (lambda leaf: leaf.astype(np.float64), "client 1 must upload .*float32.*it uploads .*float64"),
    ],
)
def test_uploads_that_cannot_be_counted_are_named(change, reason, caplog):
    case = Case(rk.MeFBO(), participation=None)
    state, federation = case.federate(Faulty(case.nodes(), spoil={1: spoiled(change)}), 3)
    assert federation.trace == [[[0, 2, 3]]] * 3
    assert any(re.search("node of 1: .*" + reason, text) for text in federation.left_out), federation.left_out
    assert sum(federation.left_out.values()) == 3
    assert "left out node of 1" in caplog.text
    case.how["participation"] = rk.Replay(federation.trace)
    assert_close(parts(state), parts(case.solve(3).state))


@pytest.mark.slow
def test_below_the_quorum_the_round_is_repeated_with_others_and_then_given_up():
    case = Case(rk.MeFBO())
    spoil = {n: spoiled(lambda leaf: leaf * np.nan) for n in (0, 1)}
    state, federation = case.federate(Faulty(case.nodes(), spoil=spoil), 10, quorum=2, attempts=50)
    assert {tuple(draw) for draws in federation.trace for draw in draws} == {(2, 3)}
    assert {version[1] for version in federation.versions.values()} != {0}, "some attempt was not the first"
    case.how["participation"] = rk.Replay(federation.trace)
    assert_close(parts(state), parts(case.solve(10).state))
    spoil[2] = spoil[0]
    with pytest.raises(FederationError, match=r"round 0 failed 3 times.*of 2 participants.*2 are needed .*not finite"):
        case.federate(Faulty(case.nodes(), spoil=spoil), 1, quorum=1.0, attempts=3)


def test_over_selection_counts_the_first_who_answer():
    case = Case(rk.MeFBO())
    transport = Recorder(case.nodes())
    state, federation = case.federate(transport, 10, over_selection=1.5)
    assert all(len(draw) == 2 for draws in federation.trace for draw in draws), "Direct answers one after the other"
    assert not federation.left_out
    case.how["participation"] = rk.Replay(federation.trace)
    assert_close(parts(state), parts(case.solve(10).state))
    with pytest.raises(ValueError, match=r"over_selection must be 1 unless participation is rk\.Uniform"):
        Case(rk.MeFBO(), participation=None).federate(transport, 1, over_selection=1.5)


def test_missing_clients_are_named_at_the_start():
    case = Case(rk.MeFBO())
    with pytest.raises(
        FederationError, match=r"2 of 4 clients are on no node \(1, 3\); nodes that are there: node of 0, 2"
    ):
        case.federate(Direct(case.nodes([[0, 2]])), 1, patience=0.0)


def test_nodes_that_come_and_go():
    """Client 3 leaves with its node and comes back on a new one that has nothing: MeFBO's clients keep nothing."""
    case = Case(rk.MeFBO(), participation=None)

    class Changing(Direct):
        now = (0, 1, 2, 3)

        def nodes(self):
            return list(self.now)

    transport = Changing([*case.nodes(), case.nodes()[3]])
    run = case.prepare()
    state = run.initial_state()
    with Over(transport=transport, pause=0.0).open(run) as federation:
        for transport.now in ((0, 1, 2, 3), (0, 1, 2), (0, 1, 2, 4)):
            state, _ = federation.advance(state, 1)
    assert federation.trace == [[[0, 1, 2, 3]], [[0, 1, 2]], [[0, 1, 2, 3]]]
    assert "no node: client 3 is on no node that is there" in federation.left_out
    case.how["participation"] = rk.Replay(federation.trace)
    assert_close(parts(state), parts(case.solve(3).state))


def test_a_dead_node_that_is_still_listed_is_not_waited_for():
    case = Case(rk.MeFBO(), participation=None)
    asked = []

    class WithDead(Direct):
        def nodes(self):
            return [99, *super().nodes()]

        def send(self, requests, deadline, enough=None):
            asked.extend(node for node in requests if node == 99)
            answers = super().send({node: each for node, each in requests.items() if node != 99}, deadline, enough)
            assert 99 not in requests or enough(answers), "a real transport would wait for the deadline"
            return answers

    _, federation = case.federate(WithDead(case.nodes()), 5)
    assert federation.trace == [[[0, 1, 2, 3]]] * 5
    assert asked == [99]


def test_a_node_forgets_old_runs_but_finds_them_on_disk(tmp_path):
    case = Case(rk.FedBiOLocal())
    node = case.nodes([[0, 1, 2, 3]], tmp_path)[0]
    transport = Recorder([node])
    case.federate(transport, 2)
    begin, exchange = (next(request for _, request in transport.requests if unpack(request)[1]["kind"] == kind)
                       for kind in ("begin", "exchange"))  # fmt: skip
    for number in range(6):
        told = unpack(node.answer(pack(unpack(begin)[0], {**unpack(begin)[1], "run": f"{number:032x}"})))[1]
        assert told["clients"] == [0, 1, 2, 3]
    tree, meta = unpack(exchange)
    assert len(node._runs) == 4
    assert "failed" in unpack(node.answer(pack(tree, {**meta, "run": f"{0:032x}"})))[1]


def test_a_server_that_diverges_stops():
    case = Case(rk.FedBiO(eta_x=1e38, eta_y=1e38))
    case.task = (rk.Bilevel(upper, lower), *case.task[1:])
    with pytest.raises((rk.Diverged, FederationError), match="not finite"):
        case.solve(10, engine=Over(transport=Direct(case.nodes()), pause=0.0))


# --- data stays home --------------------------------------------------------------------------------------------------


def test_no_example_is_in_any_message():
    marker = np.float32(7654321.0)
    clients = make_clients()
    for split in (clients.lower, clients.upper):
        object.__setattr__(split, "data", {**split.data, "name": jnp.full(split.data["s"].shape, marker)})
    case = Case(rk.FedBiOLocal(), clients)
    transport = Recorder(case.nodes())
    case.solve(5, engine=Over(transport=transport))
    everything = [request for _, request in transport.requests] + transport.answers
    assert len(everything) > 20
    assert not any(marker.tobytes() in message for message in everything)
    assert not any(row.tobytes() in message for row in np.asarray(clients.lower.data["a"]) for message in everything)
    assert any(np.asarray(case.task[3]).tobytes() in message for message in everything), "the scan finds what is sent"


# --- where nodes have the problem from ----------------------------------------------------------------------------------

MODULE = """
import numpy as np
import rookery as rk
from rookery.solving.loop import make_rounds

def upper(x, y, batch):
    return (0.5 * ((y - batch["b"]) ** 2).sum(1)).mean() + 0.5 * x @ x

def lower(x, y, batch):
    return (0.5 * ((y - x - batch["b"]) ** 2).sum(1)).mean()

problem = rk.Bilevel(upper, lower)
x0, y0 = np.zeros(2, np.float32), np.zeros(2, np.float32)
num_clients = 3

def load_client(partition, num_partitions):
    rng = np.random.default_rng(partition)
    rows = {"b": rng.standard_normal((4, 2)).astype(np.float32)}
    return rk.Clients([rows])
"""


EXAMPLE = Path(inspect.getfile(rk)).parent.parent / "examples" / "ridge_problem.py"


def test_a_problem_module_and_a_server_without_data():
    """The example: nodes load it, the server holds no client's data, and all is as in the simulator."""
    source = open_site(str(EXAMPLE))
    own = [source.load([client]) for client in range(source.n)]
    lower, upper = ([jax.tree.map(np.asarray, getattr(each, name).data) for each in own] for name in ("lower", "upper"))
    how = {"participation": 2, "batch_size": 8, "local_steps": rk.Steps(1, 3)}
    task = source.problem, rk.MeFBO(), rk.Clients(lower, upper), source.x0, source.y0
    expected = rk.solve(*task, rounds=4, every=2, evaluate=source.evaluate, **how)
    nodes = [Node(lambda: open_site(str(EXAMPLE)), clients) for clients in ([0], [1, 2, 3])]
    run = prepare_deployed(source, Order(rk.MeFBO(), **how), Over(transport=Direct(nodes)))
    assert sum(leaf.size for leaf in jax.tree.leaves(run.run.setting.clients.lower.data)) == 1
    found = make_rounds(run, 4, 2, False)
    assert_close(parts(found.state), parts(expected.state))
    for one, other in zip(found.history, expected.history, strict=True):
        assert {**one, "seconds": 0} == pytest.approx({**other, "seconds": 0}, rel=1e-5)


def test_client_weighting_with_data_at_the_server_only():
    case = Case(rk.PrimalDual())
    problem, algorithm, clients, x0, y0 = case.task
    server = jax.tree.map(np.asarray, clients.server.data)
    source = dataclasses.replace(from_memory(problem, clients, x0, y0), load_server=lambda: server)
    how = {"participation": 2, "batch_size": 2, "key": 3}
    engine = Over(transport=Direct(case.nodes()))
    found = make_rounds(prepare_deployed(source, Order(algorithm, **how), engine), 4, 4, False)
    expected = rk.solve(*case.task, rounds=4, evaluate=nothing, **how)
    assert_close(parts(found.state), parts(expected.state))
    counted = {name: value for name, value in expected.history.last.items() if name != "seconds"}
    assert counted == {name: found.history.last[name] for name in counted}
    with pytest.raises(ValueError, match="must define load_server"):
        prepare_deployed(dataclasses.replace(source, load_server=None), Order(algorithm), engine)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("problem = ", "other = "), "must define problem"),
        (("num_clients = 3", "num_clients = 0"), "num_clients must be a whole number"),
        (("return rk.Clients([rows])", "return rows"), r"load_client must return rk\.Clients\(\[examples\]\)"),
        (("return rk.Clients([rows])", "return rk.Clients([rows, rows])"), "of one client, got 2 of them"),
    ],
)
def test_a_bad_problem_module_is_told(tmp_path, change, message):
    path = tmp_path / "bad_problem.py"
    path.write_text(MODULE.replace(*change))
    with pytest.raises((ValueError, TypeError), match=message):
        open_site(str(path)).load([0])


def test_unknown_sources_are_told(tmp_path):
    for name, message in (("no.such.module", "no module no.such.module"), (str(tmp_path / "x.py"), "no file")):
        with pytest.raises(ValueError, match=message):
            open_site(name)
    with pytest.raises(ValueError, match=r"partition must be in 0\.\.3, got 7"):
        from_memory(PROBLEMS["minimax"], make_clients(), 0, 0).load([7])


def test_a_node_with_another_problem_is_refused(tmp_path):
    path = tmp_path / "other_problem.py"
    path.write_text(MODULE)
    case = Case(rk.MeFBO())
    with pytest.raises(FederationError, match="node of 0 cannot take part: the run has 4 clients, the problem here 3"):
        case.federate(Direct([Node(lambda: open_site(str(path)), [0])]), 1)
    path.write_text(MODULE.replace("num_clients = 3", "num_clients = 4").replace("np.zeros(2", "np.zeros(3"))
    with pytest.raises(FederationError, match=r"x0 of the run is float32\[2\], of the problem here float32\[3\]"):
        case.federate(Direct([Node(lambda: open_site(str(path)), [0])]), 1)


@pytest.mark.parametrize("name", list(rk.registry))
def test_every_algorithm_can_be_told_by_name_and_rates(name):
    from rookery.algorithm.setting import with_dtype

    kind = rk.registry[name]
    scheduled = {"eta_x": rk.Cosine(0.1, 0.01, 50.0)} if "eta_x" in inspect.signature(kind).parameters else {}
    for algorithm in (kind(), kind(**scheduled)):
        ready = with_dtype(algorithm, jnp.float32)
        told = unpack(pack(None, tell_algorithm(ready)))[1]
        source = dataclasses.replace(from_memory(PROBLEMS["minimax"], make_clients(), 0, 0), algorithm=None)
        again = with_dtype(source.make_algorithm(told), jnp.float32)
        assert jax.tree.structure(again) == jax.tree.structure(ready)
        assert jax.tree.leaves(again) == jax.tree.leaves(ready)


def test_settings_as_a_source(tmp_path):
    from rookery.experiment.settings import resolve, write_toml

    settings = resolve({"task": "quadratic-bilevel", "clients": 3}, {"dimension": 2})
    write_toml(tmp_path / "config.toml", settings.tables())
    source = open_site(str(tmp_path / "config.toml"))
    task = settings.make_tasks()[0]
    assert source.n == 3
    for client in range(3):
        mine = source.load([client]).lower
        np.testing.assert_array_equal(
            mine.take(0, jnp.arange(1))["P"], task.clients.lower.take(client, jnp.arange(1))["P"]
        )
        assert mine.total == int(task.clients.lower.size[client])


# --- Flower itself ----------------------------------------------------------------------------------------------------


def test_without_flower_the_error_is_one_line(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ImportError, match=r'^rk\.Flower needs Flower, .*: pip install "rookery\[flower\]"$'):
        rk.Flower()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "1.43.0")
    with pytest.raises(ImportError, match=r"^rk\.Flower needs flwr 1\.41 or 1\.42, this is 1\.43\.0: pip install"):
        require_flower()


def test_nothing_else_needs_flower():
    code = "import sys; sys.modules['flwr'] = None; import rookery.cli.main, rookery as rk; print(rk.Flower.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "Flower\n", done.stderr


def test_the_node_command_refuses_what_it_cannot_do():
    assert partitions("0,3-5", "--partition") == [0, 3, 4, 5]
    with pytest.raises(ValueError, match="--partition must be numbers and ranges like 0,3 or 0-4, got '1-x'"):
        partitions("1-x", "--partition")
    with pytest.raises(ValueError, match=r"--root-certificates must be given for 10\.1\.1\.1:8000"):
        node_command("10.1.1.1:8000", str(EXAMPLE), "0")
    for option in ("least", "threshold"):
        with pytest.raises(ValueError, match=f"--{option} must be given with --peers"):
            node_command("127.0.0.1:8000", str(EXAMPLE), "0", **{option: 1})


ADAPTER = ("node", "objects", "server")


def test_only_the_adapter_uses_what_is_not_public():
    public = {"flwr.app", "flwr.clientapp", "flwr.serverapp"}
    adapter = Path(inspect.getfile(Node)).parent / "wire" / "adapter"
    used = {
        path: set(re.findall(r"^\s*(?:from|import) (flwr[\w.]*)", path.read_text(), re.MULTILINE))
        for path in Path(inspect.getfile(rk)).parent.rglob("*.py")
    }
    assert {path.stem for path, names in used.items() if names - public} == set(ADAPTER)
    assert {path.parent for path, names in used.items() if names - public} == {adapter}


def test_what_the_adapter_counts_on():
    """The contract with flwr 1.41 and 1.42: names, parameters and defaults of what is not public."""
    fleet = importlib.import_module("flwr.supernode.fleet_http_connection")
    utils = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
    grid = importlib.import_module("flwr.superlink.grid")
    texts = [
        inspect.getsource(importlib.import_module(name))
        for name in [*(f"rookery.engines.flower.wire.adapter.{part}" for part in ADAPTER), "tests.helpers.flower"]
    ]
    for node in [node for text in texts for node in ast.walk(ast.parse(text))]:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("flwr"):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                assert hasattr(module, name.name) or find_spec(f"{node.module}.{name.name}"), (node.module, name.name)
    parameters = list(inspect.signature(fleet.http_request_response).parameters)
    assert parameters[:4] == ["server_address", "insecure", "root_certificates", "authentication_keys"]
    assert "flwr_exit(" in inspect.getsource(fleet.http_request_response)
    assert "os.kill(os.getpid(), signal.SIGINT)" in inspect.getsource(fleet.http_request_response)
    assert set(re.findall(r"\bos\.(\w+)", inspect.getsource(fleet))) == {"kill", "getpid"}
    fleet.os.kill(fleet.os.getpid(), fleet.signal.SIGINT)  # a refused heartbeat must not end the node
    assert utils.pull_objects.__kwdefaults__["initial_backoff"] == 0.02
    assert list(inspect.signature(utils.push_objects).parameters)[:2] == ["objects", "push_object_fn"]
    assert "object_ids_to_push" in inspect.signature(utils.push_objects).parameters
    assert {"token"} <= set(inspect.signature(grid.HttpGrid.__init__).parameters)
    assert isinstance(grid.HttpGrid._runtime_client, property)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("quorum", 0.0, r"quorum must be a fraction in \(0, 1\] or a number of at least 1, got 0.0"),
        ("quorum", 1.5, "quorum must be"),
        ("quorum", 0, "quorum must be"),
        ("attempts", 0, "attempts must be an integer of at least 1, got 0"),
        ("deadline", 0, "deadline must be positive"),
        ("deadline", -1.0, "deadline must be a number of at least 0, got -1.0"),
        ("over_selection", 0.5, "over_selection must be a number of at least 1, got 0.5"),
        ("pause", float("nan"), "pause must be"),
    ],
)
def test_bad_rules(field, value, message):
    with pytest.raises(ValueError, match=message):
        Rules(**{field: value})


def test_the_quorum_of_a_deployed_run_is_a_number_or_a_share(monkeypatch, tmp_path):
    seen = []

    def note(source, config, engine, *more):
        seen.append((engine.quorum, engine.attempts, engine.over_selection))
        return SimpleNamespace(rounds=1)

    monkeypatch.setattr("rookery.cli.deploy.run_deployed", note)
    run = importlib.import_module("rookery.cli.deploy").run_command
    for quorum in ("1", "1.0", "0.5"):
        run("127.0.0.1:1", str(EXAMPLE), tmp_path, quorum=quorum, attempts=2, over_selection=1.3)
    assert [(type(each[0]), *each) for each in seen] == [(int, 1, 2, 1.3), (float, 1.0, 2, 1.3), (float, 0.5, 2, 1.3)]
    with pytest.raises(ValueError, match=r"--quorum must be a share .* or a number such as 2, got 'most'"):
        run("127.0.0.1:1", str(EXAMPLE), tmp_path, quorum="most")


def test_bad_engines():
    with pytest.raises(ValueError, match="nodes must be an integer of at least 1, got 0"):
        rk.Flower(nodes=0)
    with pytest.raises(ValueError, match="superlink must be HOST:PORT, got 'here'"):
        rk.Flower(superlink="here")
    with pytest.raises(ValueError, match=r"certificates must be given for 10\.0\.0\.7:8000.*without TLS"):
        rk.Flower(superlink="10.0.0.7:8000")
    case = Case(rk.MeFBO())
    with pytest.raises(ValueError, match="engine: Flower makes one run at a time"):
        rk.solve_many(*case.task, keys=[1, 2], rounds=1, engine=rk.Flower())
    with pytest.raises(ValueError, match="collect must be True where every client has a lower level of its own"):
        Case(rk.FedBiOLocal()).solve(1, engine=Over(transport=Direct([]), collect=False))


def test_what_clients_keep_stays_with_them_if_it_is_not_collected():
    case = Case(rk.CODASCA())
    transport = Recorder(case.nodes())
    found = case.solve(5, engine=Over(transport=transport, collect=False))
    kinds = {unpack(request)[1]["kind"] for _, request in transport.requests}
    assert kinds == {"begin", "exchange", "end"}
    assert not any(np.asarray(leaf).any() for leaf in jax.tree.leaves(found.state.keep))
    expected = case.solve(5)
    assert_close(found.x, expected.x)
    assert any(np.asarray(leaf).any() for leaf in jax.tree.leaves(expected.state.keep))


def test_what_clients_keep_is_taken_only_in_its_shape(caplog):
    case = Case(rk.CODASCA())

    class Spoiling(Direct):
        """Client 0 tells what it keeps in another shape."""

        def send(self, requests, deadline, enough=None):
            answers = dict(super().send(requests, deadline, enough))
            for node, request in requests.items():
                if unpack(request)[1]["kind"] == "keep":
                    rows, told = unpack(answers[node])
                    spoiled = {
                        name: jax.tree.map(lambda leaf: leaf[:1], row) for name, row in rows.items() if name == "0"
                    }
                    answers[node] = pack({**rows, **spoiled}, told)
            return answers

    found = case.solve(5, engine=Over(transport=Spoiling(case.nodes()), attempts=2, pause=0.0))
    assert "client 0 keeps" in caplog.text
    for ours, theirs in zip(*(jax.tree.leaves(s.state.keep) for s in (found, case.solve(5))), strict=True):
        assert not np.asarray(ours)[0].any()
        assert_close(np.asarray(ours)[1:], np.asarray(theirs)[1:])
