"""What a node does not let a server do, what a server does not let a node do, and what neither dies of."""

import dataclasses
import json
import logging
import os
import stat
import struct
import time
import tracemalloc

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.algorithm.cost import Cost
from rookery.engines.flower.engine import Over, is_loopback
from rookery.engines.flower.rules import FederationError
from rookery.engines.flower.wire.pack import Malformed, pack, unpack
from rookery.engines.flower.wire.transport import Direct
from tests.engines.flower.test_flower import Case, N, Recorder, assert_close, parts

RUN = "0123456789abcdef" * 2


def tree_of(folder):
    """All that is in a folder: names, kinds, contents, targets of links."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        else:
            found[str(path)] = None if path.is_dir() else path.read_bytes()
    return found


@pytest.fixture(scope="module")
def said():
    """The requests of a run whose clients keep state, to node 0, and the case."""
    case = Case(rk.FedBiOLocal(), participation=None)
    transport = Recorder(case.nodes())
    case.federate(transport, 2)
    requests = [unpack(request) for node, request in transport.requests if node == 0]
    kinds = {kind: [each for each in requests if each[1]["kind"] == kind] for kind in ("begin", "exchange", "keep")}
    return case, kinds


def ask(node, request, **changes):
    tree, meta = request
    return unpack(node.answer(pack(tree, {**meta, **changes})))


def problem(answer):
    return answer[1].get("error", "")


# --- a node: only the state of its own run ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "version",
    [
        [0, 0, "/../../../victim/owned"], [0, "a", "b"], [0, 0, -1], [0, 0], [0, 0, 0, 0], [0, 0, 0.5], [0, 0, 2**31],
        [0, 0, True], "000", None, {"0": 0}, [0, 0, [0]],
    ],
)  # fmt: skip
def test_a_version_is_three_whole_numbers(said, tmp_path, version):
    case, kinds = said
    (tmp_path / "victim").mkdir()
    (tmp_path / "home").mkdir()
    node = case.nodes(folder=tmp_path / "home")[0]
    ask(node, kinds["begin"][0])
    before = tree_of(tmp_path)
    assert "version must be" in problem(ask(node, kinds["exchange"][0], version=version))
    assert tree_of(tmp_path) == before
    if version is not None:
        assert "counted must be" in problem(ask(node, kinds["exchange"][0], counted=[version]))
        assert "counted must be" in problem(ask(node, kinds["keep"][0], counted=[version]))
    assert tree_of(tmp_path) == before
    again = case.nodes(folder=tmp_path / "home")[0]
    assert "0" in ask(again, kinds["exchange"][0])[0], "the client works on after a restart"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clients": ["0"]}, "clients must be"),
        ({"clients": [1]}, "client 1 does not live here"),
        ({"clients": [0, 0], "last": [0, 0], "counted": [None, None]}, "clients must be different"),
        ({"clients": []}, "last must be a list of 0"),
        ({"clients": [], "last": [], "counted": []}, "brings None"),
        ({"last": [2**31]}, "last must be"),
        ({"last": []}, "last must be a list of 1"),
        ({"index": -1}, "index must be"),
        ({"exchange": 7}, "stage 7 of a round is no exchange"),
        ({"exchange": 10**12}, "exchange must be"),
        ({"first": 1}, "first must be true or false"),
        ({"order": [1, 2, 3]}, "order must be a list of 4"),
        ({"order": [0, 5, 0, 0]}, "of one round and attempt"),
        ({"equal": {"lower": True}}, "equal has no upper"),
        ({"equal": {"lower": True, "upper": True, "x": 1}}, "no place for"),
        ({"more": 1}, "no place for"),
        ({"run": "Documents"}, "run must be 32 hexadecimal digits"),
    ],
)
def test_a_request_that_is_not_as_it_should_be_is_refused(said, change, message):
    case, kinds = said
    node = case.nodes()[0]
    ask(node, kinds["begin"][0])
    assert message in problem(ask(node, kinds["exchange"][0], **change))
    assert "0" in ask(node, kinds["exchange"][0])[0], "and was as if it had not come"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": "4"}, "n must be"),
        ({"n": True}, "n must be"),
        ({"x64": 1}, "x64 must be true or false"),
        ({"steps": [1]}, "steps must be a list of 2"),
        ({"steps": [1, 10**9]}, "steps must be"),
        ({"batch_size": [0, 1]}, "batch_size must be"),
        ({"batch_size": [10**9, 1]}, "batch_size must be"),
        ({"algorithm": "MeFBO"}, "algorithm must be a table"),
        ({"algorithm": {"name": ["x"], "rates": {}}}, "name must be a text"),
        ({"algorithm": {"name": "os.system", "rates": {}}}, "algorithm: "),
        ({"costs": None}, "costs must be true or false"),
    ],
)
def test_a_beginning_that_is_not_as_it_should_be_is_refused(said, tmp_path, change, message):
    case, kinds = said
    node = case.nodes(folder=tmp_path)[0]
    assert message in problem(ask(node, kinds["begin"][0], **change))
    assert not list(tmp_path.iterdir())


def test_arrays_of_a_request_have_their_dtypes_and_shapes(said):
    case, kinds = said
    node = case.nodes()[0]
    tree, meta = kinds["begin"][0]
    for name, wrong in (("key", np.zeros(3, np.uint32)), ("key", np.zeros(2)), ("x", np.zeros((2, 2))), ("y", None)):
        assert f"{name} of a begin request" in problem(ask(node, ({**tree, name: wrong}, meta)))
    assert "keep must be a table" in problem(ask(node, ({**tree, "keep": [np.zeros(2)]}, meta)))
    assert "client 0 keeps" in problem(ask(node, ({**tree, "keep": {"0": np.zeros(7)}}, meta)))
    assert "client 3 does not live here" in problem(ask(node, ({**tree, "keep": {"3": np.zeros(7)}}, meta)))
    assert "named by the numbers" in problem(ask(node, ({**tree, "keep": {"../0": np.zeros(7)}}, meta)))
    ask(node, kinds["begin"][0])
    tree, meta = kinds["exchange"][0]
    assert "0" in ask(node, (tree, meta))[0]
    order = [*meta["order"][:3], 1]
    wide = jax.tree.map(lambda leaf: np.zeros((3, *leaf.shape), leaf.dtype), tree["down"])
    assert "before it was" in problem(ask(node, ({**tree, "down": wide}, meta), order=order)), (
        "nothing is compiled anew"
    )
    assert "must be tables" in problem(ask(node, ({**tree, "down": [np.zeros(2)]}, meta), order=order))


def test_a_run_begins_once_with_what_it_is(said):
    case, kinds = said
    node = case.nodes()[0]
    ask(node, kinds["begin"][0])
    assert "began here with other settings" in problem(ask(node, kinds["begin"][0], batch_size=[1, 1]))
    assert problem(ask(node, kinds["begin"][0])) == ""


def test_what_one_run_says_of_sizes_does_not_change_another():
    case = Case(rk.FedBiO(), participation=None, batch_size=None)
    node = case.nodes([[0, 1, 2, 3]])[0]
    transport = Recorder([node])
    case.federate(transport, 1)
    begin, exchange = (unpack(transport.requests[i][1]) for i in (0, 1))
    ask(node, begin, run=RUN)
    assert problem(ask(node, exchange, run=RUN, equal={"lower": False, "upper": False})) == ""
    assert node._runs[RUN].setting.clients.lower.sizes_equal is False
    assert node._data.lower.sizes_equal is True


def test_only_a_folder_that_the_node_made_is_removed(said, tmp_path):
    case, kinds = said
    home = tmp_path / "home"
    (home / "Documents").mkdir(parents=True)
    (home / RUN).mkdir()
    (home / RUN / "thesis.txt").write_text("years of work")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rookery-run").write_text("f" * 32)
    (home / ("f" * 32)).symlink_to(tmp_path / "elsewhere")
    before = tree_of(tmp_path)
    node = case.nodes(folder=tmp_path)[0]
    node._folder = home
    end = (None, {"kind": "end", "run": "Documents"})
    assert "run must be" in problem(ask(node, end))
    for run in (RUN, "f" * 32):
        assert problem(ask(node, end, run=run)) == ""
        assert "not the folder of a run" in problem(ask(node, kinds["begin"][0], run=run))
        assert "has not begun here" in problem(ask(node, kinds["exchange"][0], run=run))
    assert tree_of(tmp_path) == before
    ask(node, kinds["begin"][0])
    ask(node, kinds["exchange"][0])
    own = kinds["begin"][0][1]["run"]
    assert (home / own / "client-0").is_dir()
    assert problem(ask(node, end, run=own)) == ""
    assert tree_of(tmp_path) == before


def test_the_store_follows_no_link_out_of_its_folder(said, tmp_path):
    case, kinds = said
    victim = tmp_path / "victim"
    victim.mkdir()
    node = case.nodes(folder=tmp_path / "home")[0]
    ask(node, kinds["begin"][0])
    (folder,) = (tmp_path / "home" / "0").iterdir()
    (folder / "client-0").symlink_to(victim)
    assert "is not in the folder of its run" in problem(ask(node, kinds["exchange"][0]))
    assert not list(victim.iterdir())


def test_what_clients_keep_is_for_the_nodes_user_alone(said, tmp_path):
    case, kinds = said
    old = os.umask(0)
    try:
        node = case.nodes(folder=tmp_path / "home")[0]
        ask(node, kinds["begin"][0])
        ask(node, kinds["exchange"][0])
    finally:
        os.umask(old)
    found = list((tmp_path / "home" / "0").rglob("*"))
    assert any(path.suffix == ".state" for path in found)
    for path in found:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_a_stray_file_beside_the_state_does_no_harm(said, tmp_path):
    case, kinds = said
    node = case.nodes(folder=tmp_path)[0]
    ask(node, kinds["begin"][0])
    ask(node, kinds["exchange"][0])
    (folder,) = (tmp_path / "0").glob("*/client-0")
    (folder / "0-a-b.state").write_bytes(b"")
    assert "0" in ask(case.nodes(folder=tmp_path)[0], kinds["exchange"][1])[0]


# --- orders: nothing old is taken for new, and nobody is locked out --------------------------------------------------


def test_a_session_from_the_future_does_not_lock_out_the_server(said):
    case, kinds = said
    node = case.nodes()[0]
    ask(node, kinds["begin"][0])
    order = kinds["exchange"][0][1]["order"]
    for session in (10**18, 2**62, int((time.time() + 7200) * 1e6)):
        assert "ahead of this node's" in problem(ask(node, kinds["exchange"][0], order=[session, *order[1:]]))
    assert "0" in ask(node, kinds["exchange"][0])[0]


def test_a_restarted_node_takes_no_old_round_for_a_new_one(said, tmp_path):
    case, kinds = said
    node = case.nodes(folder=tmp_path)[0]
    ask(node, kinds["begin"][0])
    first, second = kinds["exchange"]
    assert "0" in ask(node, first)[0]
    assert "0" in ask(node, second)[0]
    before = tree_of(tmp_path)
    for _ in range(2):
        node = case.nodes(folder=tmp_path)[0]
        assert ask(node, first)[1]["kind"] == "stale"
        assert ask(node, second)[1]["kind"] == "stale"
        assert problem(ask(node, kinds["begin"][0])) == ""
        assert ask(node, first)[1]["kind"] == "stale"
    assert tree_of(tmp_path) == before, "what round 1 left is there"
    assert "0" in ask(node, kinds["keep"][0])[0]


def test_a_greeting_that_comes_late_does_not_undo_what_clients_were_given(said):
    case, kinds = said
    node = case.nodes()[0]
    tree, meta = kinds["begin"][0]
    ask(node, (tree, meta))
    rows = jax.tree.map(lambda leaf: leaf + 1, ask(node, kinds["keep"][0], counted=[None])[0])
    ask(node, ({**tree, "keep": rows}, meta))
    ask(node, (tree, meta))
    kept = ask(node, kinds["keep"][0], counted=[None])[0]
    assert_close(kept, rows)


def test_a_server_whose_clock_was_set_back_is_still_the_newest():
    case = Case(rk.MeFBO())
    run = case.prepare()
    transport = Direct(case.nodes())
    with Over(transport=transport).open(run) as federation:
        memory = {**federation.memory(), "started": federation.started + 10**9}
    with Over(transport=transport).open(dataclasses.replace(run, memory=memory)) as federation:
        assert federation.started == memory["started"] + 1


# --- addresses ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "ours"),
    [
        ("127.0.0.1:8000", True), ("127.8.9.10:8000", True), ("localhost:8000", True), ("LOCALHOST", True),
        ("[::1]:8000", True), ("::1", True), ("127.0.0.1", True), ("[::1]", True),
        ("127.0.0.1.evil.example:8000", False), ("127.evil.example:8000", False), ("localhost.evil.example:1", False),
        ("10.0.0.7:8000", False), ("[::2]:8000", False), ("127.0.0.1@evil.example:80", False), ("", False),
        ("127.0.0.1:80@evil.example:80", False), ("127.0.0.1:8000/x", False), ("[127.0.0.1.evil]:1", False),
        ("0.0.0.0:8000", False), ("evil.example#127.0.0.1:80", False), ("localhost:80:90", False),
    ],
)  # fmt: skip
def test_only_this_machine_is_loopback(address, ours):
    assert is_loopback(address) is ours


def test_plain_text_is_not_spoken_to_a_name_that_looks_like_loopback():
    with pytest.raises(ValueError, match=r"certificates must be given for 127\.0\.0\.1\.evil\.example:8000"):
        rk.Flower(superlink="127.0.0.1.evil.example:8000")


# --- messages -----------------------------------------------------------------------------------------------------------


def made(meta="{}", tree="null", arrays="[]", after=b""):
    """A message with a header made by hand."""
    text = f'{{"meta": {meta}, "tree": {tree}, "arrays": {arrays}}}'.encode()
    return b"RKY1" + struct.pack("<I", len(text)) + text + after


BY_HAND = {
    "a dimension beyond all": made(tree="0", arrays=f'[["float32", [0, {10**25}]]]'),
    "a vast empty array": made(tree="0", arrays=f'[["float32", [0, {2**62}, {2**62}]]]'),
    "65 dimensions": made(tree="0", arrays=f'[["float32", {[1] * 65}]]', after=bytes(4)),
    "33 dimensions": made(tree="0", arrays=f'[["float32", {[1] * 33}]]', after=bytes(4)),
    "5000 digits": made(tree="0", arrays=f'[["float32", [{"1" * 5000}]]]'),
    "4000 digits": made(meta=f'{{"a": {"1" * 4000}}}'),
    "negative digits": made(meta=f'{{"a": -{"1" * 4000}}}'),
    "a long float": made(meta=f'{{"a": 0.{"1" * 4000}}}'),
    "NaN": made(meta='{"a": NaN}'),
    "a name twice": made(meta='{"a": 1, "a": 2}'),
    "a part twice": made(tree='{"dict": {"a": 0, "a": 0}}', arrays='[["float32", [0]]]'),
    "meta too deep": made(meta=f'{{"a": {"[" * 100}{"]" * 100}}}'),
    "tree too deep": made(tree='{"list": [' * 100 + "null" + "]}" * 100),
    "a list as the dtype": made(tree="0", arrays='[[["float32"], [1]]]', after=bytes(4)),
    "a table as the dtype": made(tree="0", arrays='[[{}, [1]]]', after=bytes(4)),
    "true as a dimension": made(tree="0", arrays='[["float32", [true]]]', after=bytes(4)),
    "a negative dimension": made(tree="0", arrays='[["float32", [-1]]]', after=bytes(4)),
    "another encoding": b"RKY1" + struct.pack("<I", 4) + "[]".encode("utf-16-le"),
    "not of letters": b"RKY1" + struct.pack("<I", 4) + b"\xff\xfe\xfd\xfc",
    "a header without end": b"RKY1" + struct.pack("<I", 2**32 - 1) + b"{}",
    "too long a header": b"RKY1" + struct.pack("<I", 2**24) + b" " * 2**24,
    "nested too deep for JSON": b"RKY1" + struct.pack("<I", 200_000) + b"[" * 100_000 + b"]" * 100_000,
    "nested as deep as JSON goes": b"RKY1" + struct.pack("<I", 1800) + b"[" * 900 + b"]" * 900,
}  # fmt: skip


@pytest.mark.parametrize("name", list(BY_HAND))
def test_a_header_made_by_hand_is_malformed_and_nothing_worse(name):
    started = time.monotonic()
    with pytest.raises(Malformed) as caught:
        unpack(BY_HAND[name])
    assert time.monotonic() - started < 2
    assert len(str(caught.value)) < 500
    assert str(caught.value).isprintable()


def test_long_numbers_cost_no_time():
    """A megabyte of integers of 4 000 digits took seconds to read."""
    digits = ", ".join(["1" * 4000] * 250)
    started = time.monotonic()
    with pytest.raises(Malformed):
        unpack(made(tree="0", arrays=f'[["float32", [{digits}]]]'))
    assert time.monotonic() - started < 0.5


def test_a_lie_about_sizes_costs_no_memory():
    tracemalloc.start()
    try:
        for shape in ([2**39], [2**20, 2**19], [10**12]):
            with pytest.raises(Malformed):
                unpack(made(tree="0", arrays=json.dumps([["bool", shape]]), after=bytes(100)))
        assert tracemalloc.get_traced_memory()[1] < 10**6
    finally:
        tracemalloc.stop()


# --- a server: one node's answer -----------------------------------------------------------------------------------------


class False1(Direct):
    """Node 1's answers to one kind of request are others."""

    def __init__(self, nodes, kind, lie):
        super().__init__(nodes)
        self.kind, self.lie = kind, lie
        self.lied = 0

    def send(self, requests, deadline, enough=None):
        answers = dict(super().send(requests, deadline, enough))
        for node, request in requests.items():
            if node == 1 and node in answers and unpack(request)[1]["kind"] == self.kind:
                answers[node] = self.lie(answers[node])
                self.lied += 1
        return answers


class Foreign(Over):
    """Nodes of others: one that refuses is no reason to stop."""

    ours = False


def changed(**meta):
    def lie(answer):
        tree, told = unpack(answer)
        return pack(tree, {name: each for name, each in {**told, **meta}.items() if each is not ...})

    return lie


def rows(change):
    """Another tree of uploads."""

    def lie(answer):
        tree, told = unpack(answer)
        return pack(change(tree), told)

    return lie


def each_leaf(change):
    return rows(lambda tree: jax.tree.map(change, tree))


ANYTHING = {
    "nothing": lambda answer: b"",
    "rubbish": lambda answer: b"rubbish" * 100,
    "cut off": lambda answer: answer[:-1],
    "too long": lambda answer: answer + b"\0",
    "an error on the way": lambda answer: "Flower reports error 2: it\nis\r\x1b[31m broken" + "!" * 10**5,
    "an error": lambda answer: pack(None, {"name": "x", "error": "no\nway", "kind": "error"}),
    "an error that is no text": lambda answer: pack(None, {"name": "x", "error": ["no"], "kind": "error"}),
    "an error without a name": lambda answer: pack(None, {"error": "no"}),
    "an unknown run": lambda answer: pack(None, {"name": "x", "error": "what run?", "kind": "unknown-run"}),
    "a kind that is no text": lambda answer: pack(None, {"name": "x", "error": "no", "kind": {}}),
    "a long error": lambda answer: pack(None, {"name": "x", "error": "no" * 10**6, "kind": "error"}),
    "failed is a list": changed(failed=[1, 2]),
    "failed is a text": changed(failed="all"),
    "failed of others": changed(failed={"x": "y"}),
    "failed with tables": changed(failed={"1": {"why": 1}}),
}  # fmt: skip

GREETINGS = {
    **ANYTHING,
    "no name": changed(name=...),
    "a number as the name": changed(name=7),
    "a name of lines": changed(name="one\ntwo"),
    "a long name": changed(name="x" * 10**5),
    "no clients": changed(clients=...),
    "clients are a text": changed(clients="0123"),
    "clients are none": changed(clients=[]),
    "clients that do not exist": changed(clients=[1, 99]),
    "negative clients": changed(clients=[-1]),
    "clients are lists": changed(clients=[[1]]),
    "clients are floats": changed(clients=[1.0]),
    "a client twice": changed(clients=[1, 1]),
    "no sizes": changed(sizes=...),
    "sizes are a list": changed(sizes=[4]),
    "sizes of nothing": changed(sizes={}),
    "sizes of something else": changed(sizes={"lower": [4], "other": [4]}),
    "too few sizes": changed(sizes={"lower": [], "upper": []}),
    "sizes are texts": changed(sizes={"lower": ["4"], "upper": ["3"]}),
    "no costs": changed(costs=...),
    "costs are a text": changed(costs="free"),
    "costs are texts": changed(costs=["free"]),
    "other costs": changed(costs=[{"exchange": True, "price": 3}]),
    "too many costs": changed(costs=[{}] * 100),
    "costs of another round": changed(
        costs=[dataclasses.asdict(Cost(False)), dataclasses.asdict(Cost(True))]
    ),
}  # fmt: skip

UPLOADS = {
    **{f"by hand: {name}": (lambda answer, message=message: message) for name, message in BY_HAND.items()},
    **ANYTHING,
    "no rows": rows(lambda tree: None),
    "a list of rows": rows(lambda tree: list(tree.values())),
    "rows of others": rows(lambda tree: {"0": tree["1"], "2": tree["1"]}),
    "rows of nobody": rows(lambda tree: {"x": tree["1"]}),
    "a row that is an array": rows(lambda tree: {"1": np.zeros(2, np.float32)}),
    "a row that is nothing": rows(lambda tree: {"1": None}),
    "a row that is a list": rows(lambda tree: {"1": list(tree["1"].values())}),
    "a row that is empty": rows(lambda tree: {"1": {}}),
    "beside a None": rows(lambda tree: {"1": {**tree["1"], "more": None}}),
    "in a list of one": rows(lambda tree: {"1": {name: [each] for name, each in tree["1"].items()}}),
    "names that look like others": rows(lambda tree: {"1": {"x']['y": np.zeros(2, np.float32)}}),
    "names of lines": rows(lambda tree: {"1": {"x\ny\x1b[2J": np.zeros(2, np.float32)}}),
    "NaN": each_leaf(lambda leaf: leaf * np.nan),
    "infinity": each_leaf(lambda leaf: leaf * np.inf),
    "another dtype": each_leaf(lambda leaf: leaf.astype(np.float64)),
    "booleans": each_leaf(lambda leaf: leaf > 0),
    "other shapes": each_leaf(lambda leaf: leaf[..., None]),
    "empty arrays": each_leaf(lambda leaf: leaf[:0]),
    "vast arrays": each_leaf(lambda leaf: np.zeros(10**6, leaf.dtype)),
}  # fmt: skip


def without_data(case):
    """The case for a server that has no data: nodes tell what a round costs."""
    from rookery.engines.flower.site import from_memory
    from rookery.experiment.deployed import Order, prepare_deployed

    problem, algorithm, clients, x0, y0 = case.task
    how = {name: case.how[name] for name in ("key", "participation", "batch_size", "local_steps")}
    return prepare_deployed(from_memory(problem, clients, x0, y0), Order(algorithm, **how), Over(transport=1)).run


@pytest.fixture(scope="module")
def honest():
    """A case, and its state after two rounds of clients 0, 2 and 3, and of all."""
    case = Case(rk.MeFBO(), participation=None)
    three = dict(case.how, participation=rk.Replay([[0, 2, 3]]))
    return case, parts(rk.solve(*case.task, rounds=2, **three).state), parts(case.solve(2).state)


def goes_on(engine, run, rounds=2):
    state = run.initial_state()
    with engine.open(run) as federation:
        for _ in range(rounds):
            state, _ = federation.advance(state, 1)
        return federation.gather(state, final=True), federation


@pytest.mark.parametrize("name", list(UPLOADS))
def test_a_false_upload_is_left_out_and_the_others_are_counted(honest, name, caplog):
    case, three, _ = honest
    transport = False1(case.nodes(), "exchange", UPLOADS[name])
    state, federation = goes_on(Foreign(transport=transport, pause=0.0), case.prepare())
    assert transport.lied == 2
    assert federation.trace == [[[0, 2, 3]]] * 2
    assert_close(parts(state), three)
    for text in [record.getMessage() for record in caplog.records] + list(federation.left_out):
        assert text.isprintable()
        assert len(text) < 1500


@pytest.mark.parametrize("name", list(GREETINGS))
@pytest.mark.parametrize("knows", [True, False], ids=["server with data", "server without data"])
def test_a_node_with_a_false_greeting_is_left_out(honest, name, knows, caplog):
    """Node 1 lies, and client 1 is on node 4 as well."""
    case, _, everybody = honest
    transport = False1([*case.nodes(), case.nodes()[1]], "begin", GREETINGS[name])
    run = case.prepare() if knows else without_data(case)
    state, federation = goes_on(Foreign(transport=transport, pause=0.0), run)
    assert transport.lied
    assert federation.trace == [[[0, 1, 2, 3]]] * 2
    if name not in ("failed of others", "no costs") or not knows:
        assert federation.roster.hosts[1] == 4
    assert_close(parts(state), everybody)
    for record in caplog.records:
        assert record.getMessage().isprintable()
        assert len(record.getMessage()) < 1500


@pytest.mark.parametrize(
    "name", [name for name in UPLOADS if name not in ("NaN", "infinity") and "by hand" not in name]
)
def test_a_false_answer_about_what_clients_keep_is_not_taken(name):
    case = Case(rk.CODASCA(), participation=None)
    run = case.prepare()
    state = run.initial_state()
    transport = False1(case.nodes(), "keep", UPLOADS[name])
    with Foreign(transport=transport, pause=0.0, attempts=2).open(run) as federation:
        table = jax.tree.map(np.array, state.keep)
        before = jax.tree.map(np.copy, table)
        assert federation._collect(table, {0, 1, 2, 3}) == {0, 2, 3}
    assert transport.lied == 1
    assert_close(jax.tree.map(lambda leaf: leaf[1], table), jax.tree.map(lambda leaf: leaf[1], before))


def test_costs_are_what_most_nodes_say(honest):
    """A server without data has them from nodes; the first to come says that uploads are enormous."""
    case, _, everybody = honest

    def dear(answer):
        tree, told = unpack(answer)
        costs = [{**cost, "up": 2**39, "upload": {"['x']": "float32[9]"}} for cost in told["costs"]]
        return pack(tree, {**told, "costs": costs})

    class Late(False1):
        """Node 1 comes first."""

        now = (1,)

        def nodes(self):
            self.now, now = (0, 1, 2, 3), self.now
            return list(now)

    state, federation = goes_on(Foreign(transport=Late(case.nodes(), "begin", dear)), without_data(case))
    assert federation.trace == [[[0, 1, 2, 3]]] * 2
    assert_close(parts(state), everybody)


def test_a_node_that_refuses_stops_a_run_of_ones_own_nodes_only(honest):
    case, *_ = honest
    transport = False1(case.nodes(), "begin", ANYTHING["an error"])
    with pytest.raises(FederationError, match=r"x cannot take part: no\\nway"):
        goes_on(Over(transport=transport), case.prepare())
    with pytest.raises(FederationError, match=r"1 of 4 clients .* \(1\).*nodes that cannot take part: x: no\\nway"):
        goes_on(Foreign(transport=transport, patience=0.3), case.prepare())


def test_error_answers_do_not_count_as_enough():
    """Over-selection: with 3 asked for 2, an error and a good answer are not enough to stop waiting."""
    case = Case(rk.MeFBO())
    asked = []

    class Watched(False1):
        def send(self, requests, deadline, enough=None):
            answers = {}
            for node, request in requests.items():
                answers |= False1.send(self, {node: request}, deadline)
                if enough is not None and enough(answers):
                    break
            if unpack(request)[1]["kind"] == "exchange":
                asked.append((sorted(requests), sorted(answers)))
            return answers

    transport = Watched(case.nodes(), "exchange", ANYTHING["an error"])
    _, federation = goes_on(Foreign(transport=transport, pause=0.0, over_selection=1.5), case.prepare(), 10)
    assert any(1 in requests for requests, _ in asked)
    for requests, answers in asked:
        good = [node for node in answers if node != 1]
        assert len(good) == 2, (requests, answers)
    assert all(len(draw) == 2 for draws in federation.trace for draw in draws)


def test_a_nodes_text_is_one_line_of_the_log(honest, caplog):
    case, *_ = honest
    forged = "bad\n2026-01-01 00:00:00 round 9: all is well\x1b[2J"

    def lie(answer):
        return pack(None, {"name": "x\ny", "error": forged, "kind": "error"})

    with caplog.at_level(logging.INFO):
        goes_on(Foreign(transport=False1(case.nodes(), "exchange", lie), pause=0.0), case.prepare())
    told = [record.getMessage() for record in caplog.records if "all is well" in record.getMessage()]
    assert told
    assert all("\n" not in text and "\x1b" not in text for text in told)
    assert r"bad\n2026" in told[0]


# --- whose a client is ----------------------------------------------------------------------------------------------------


class Coming(Direct):
    """Nodes that come and go, and may not answer."""

    def __init__(self, nodes, now):
        super().__init__(nodes)
        self.now, self.silent = list(now), set()

    def nodes(self):
        return list(self.now)

    def send(self, requests, deadline, enough=None):
        return super().send(
            {node: each for node, each in requests.items() if node not in self.silent}, deadline, enough
        )


def test_a_second_claim_is_refused_while_the_first_node_is_there(caplog):
    case = Case(rk.MeFBO(), participation=None)
    transport = Coming([*case.nodes(), case.nodes([[0, 1, 2, 3]])[0]], [0, 1, 2, 3])
    run = case.prepare()
    state = run.initial_state()
    with Foreign(transport=transport, pause=0.0).open(run) as federation:
        transport.now = [0, 1, 2, 3, 4]
        state, _ = federation.advance(state, 1)
        assert federation.roster.hosts == {0: 0, 1: 1, 2: 2, 3: 3}
        assert "node of 0, 1, 2, 3 claims clients [0, 1, 2, 3], which live on another node" in caplog.text
        transport.now = [0, 2, 3, 4]
        state, _ = federation.advance(state, 1)
        assert federation.roster.hosts == {0: 0, 1: 4, 2: 2, 3: 3}
        transport.now = [0, 1, 2, 3, 4]
        state, _ = federation.advance(state, 1)
        assert federation.roster.hosts == {0: 0, 1: 4, 2: 2, 3: 3}, "now node 4 is the first"
    assert federation.trace == [[[0, 1, 2, 3]]] * 3
    assert_close(parts(state), parts(case.solve(3).state))


def test_a_node_that_does_not_answer_loses_its_clients_to_one_that_does():
    """A SuperLink lists a node that was killed for another minute; who restarts it need not wait for that."""
    case = Case(rk.MeFBO(), participation=None)
    transport = Coming([*case.nodes(), *case.nodes()[1:3]], [0, 1, 2, 3])
    run = case.prepare()
    state = run.initial_state()
    with Foreign(transport=transport, pause=0.0).open(run) as federation:
        transport.silent = {1}
        transport.now = [0, 1, 2, 3, 4]
        state, _ = federation.advance(state, 1)
        assert federation.roster.hosts == {0: 0, 1: 4, 2: 2, 3: 3}, "it was asked whether it is there"
        transport.now = [0, 1, 2, 3, 4, 5]
        state, _ = federation.advance(state, 1)
        assert federation.roster.hosts[2] == 2
        transport.silent = {1, 2}
        state, _ = federation.advance(state, 1)
        state, _ = federation.advance(state, 1)
        assert federation.roster.hosts[2] == 5
    assert federation.trace == [[[0, 1, 2, 3]], [[0, 1, 2, 3]], [[0, 1, 3]], [[0, 1, 2, 3]]]


def test_with_keys_a_client_belongs_to_the_key_that_is_listed(tmp_path, caplog):
    from flwr.proto.node_pb2 import NodeInfo

    from rookery.cli.certificates import write_node_key
    from rookery.engines.flower.wire.claims import KeyedGrid, read_owners
    from tests.engines.flower.test_flower import local_grid

    case = Case(rk.MeFBO(), participation=None)
    for number in range(4):
        write_node_key(tmp_path, f"node-{number}")
    (tmp_path / "keys.toml").write_text('[nodes]\n"node-0.pub" = "0"\n"node-1.pub" = "1"\n"node-2.pub" = "2-3"\n')
    owners = read_owners(tmp_path / "keys.toml", N)
    grid = local_grid(case.nodes([[0, 1, 2, 3], [0, 1, 2, 3], [0], [1], [2, 3]]))
    keys = dict(zip(grid.get_node_ids(), ("node-3", "node-1", "node-0", "node-1", "node-2"), strict=True))
    type(grid).get_nodes = lambda self: [
        NodeInfo(node_id=node, public_key=pem(tmp_path / f"{key}.pub")) for node, key in keys.items()
    ]
    run = case.prepare()
    state = run.initial_state()
    transport = KeyedGrid(grid, owners, poll=0.0)
    assert transport.nodes() == [101, 102, 103, 104], "a key that is not listed is nobody's"
    with Foreign(transport=transport, pause=0.0).open(run) as federation:
        for _ in range(2):
            state, _ = federation.advance(state, 1)
        assert federation.roster.hosts == {0: 102, 1: 103, 2: 104, 3: 104}
    assert "clients [0, 2, 3] are not listed for its key" in caplog.text
    assert_close(parts(state), parts(case.solve(2).state))


def pem(path):
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    return public_key_to_bytes(load_ssh_public_key(path.read_bytes()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[nodes", "is not TOML"),
        ("[other]\n", r"must have a table \[nodes\]"),
        ("[nodes]\n", r"must have a table \[nodes\]"),
        ('[nodes]\n"node-0.pub" = "x"\n', r"the clients of node-0\.pub must be numbers and ranges like 0,3"),
        (
            '[nodes]\n"node-0.pub" = "0-2"\n"node-1.pub" = "2-3"\n',
            "client 2 is listed for node-0.pub and for node-1.pub",
        ),
        ('[nodes]\n"node-0.pub" = "0-1"\n"same.pub" = "2-3"\n', "the key of same.pub is listed twice"),
        ('[nodes]\n"node-0.pub" = "0-1"\n', r"must list the clients 0 to 3, each once; it is wrong about \[2, 3\]"),
        ('[nodes]\n"node-0.pub" = "0-4"\n', r"wrong about \[4\]"),
        ('[nodes]\n"node-0.key" = "0-3"\n', "is not a public key in OpenSSH's format"),
        ('[nodes]\n"gone.pub" = "0-3"\n', "there is no file .*gone.pub"),
    ],
)
def test_a_bad_list_of_keys_is_told(tmp_path, text, message):
    from rookery.cli.certificates import write_node_key
    from rookery.engines.flower.wire.claims import read_owners

    for number in range(2):
        write_node_key(tmp_path, f"node-{number}")
    (tmp_path / "same.pub").write_bytes((tmp_path / "node-0.pub").read_bytes())
    (tmp_path / "keys.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_owners(tmp_path / "keys.toml", N)


def test_keys_need_tls():
    with pytest.raises(ValueError, match="keys must be given with superlink and certificates"):
        rk.Flower(superlink="127.0.0.1:8000", keys="keys.toml")


# --- messages of Flower's --------------------------------------------------------------------------------------------------


def strange_messages():
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

    return {
        "nothing in it": RecordDict(),
        "another record": RecordDict({"other": ConfigRecord({"message": b"x"})}),
        "another entry": RecordDict({"rookery": ConfigRecord({"other": b"x"})}),
        "a text": RecordDict({"rookery": ConfigRecord({"message": "x"})}),
        "numbers": RecordDict({"rookery": ConfigRecord({"message": [1, 2]})}),
        "metrics": RecordDict({"rookery": MetricRecord({"message": 1.0})}),
        "arrays": RecordDict({"rookery": ArrayRecord([np.zeros(2)])}),
        "rubbish": RecordDict({"rookery": ConfigRecord({"message": b"rubbish"})}),
    }


class Line:
    """A SuperLink that hands out some messages, then stops the node."""

    def __init__(self, messages, stop):
        self.messages, self.stop, self.replies = list(messages), stop, []
        self.contents = {}

    def receive(self):
        from flwr.app.message import remove_content_from_message
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        if not self.messages:
            self.stop.set()
            return None
        message, damage = self.messages.pop(0)
        message.metadata.__dict__["_message_id"] = message.object_id
        self.contents = damage({name: each.deflate() for name, each in get_all_nested_objects(message).items()})
        return remove_content_from_message(message), get_object_tree(message)

    def callbacks(self):
        def send(reply, tree, seconds):
            self.replies.append(reply)
            return set(), 1

        def nothing(*_):
            return None

        return (1, self.receive, send, nothing, nothing, lambda run, name: self.contents[name], nothing, nothing)


def spoil_records(contents):
    """The bodies of all but the message itself are rubbish of the same length."""
    spoiled = {}
    for name, content in contents.items():
        head, zero, body = content.partition(b"\0")
        spoiled[name] = content if content.startswith(b"Message") else head + zero + b"\xff" * len(body)
    return spoiled


def test_no_message_of_flowers_ends_a_node():
    import threading

    from flwr.app import Message

    from rookery.engines.flower.wire.adapter.node import Link
    from rookery.engines.flower.wire.grid import TYPE
    from tests.helpers.flower import local_run

    local_run()
    answered = []

    def answer(request):
        answered.append(request)
        return b"fine"

    def as_it_is(contents):
        return contents

    messages = [
        (Message(content, dst_node_id=1, message_type=kind), as_it_is)
        for content in strange_messages().values()
        for kind in (TYPE, "train.other")
    ]
    good = strange_messages()["rubbish"]
    messages.append((Message(good, dst_node_id=1, message_type=TYPE), spoil_records))
    messages.append((Message(good, dst_node_id=1, message_type=TYPE), lambda contents: dict.fromkeys(contents, b"")))
    messages.append((Message(good, dst_node_id=1, message_type=TYPE), as_it_is))
    stop = threading.Event()
    line = Line(messages, stop)
    Link(line.callbacks(), answer).work(stop, 0.0, 0.0)
    assert answered == [b"rubbish"] * 2
    assert len(line.replies) == len(messages)
    assert [reply.has_error() for reply in line.replies].count(False) == 2
    assert all(reply.error.reason.isprintable() for reply in line.replies if reply.has_error())


def test_a_reply_that_cannot_be_put_together_is_lost_and_no_more():
    from flwr.app import Message
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree, iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError
    from flwr.superlink.grid import http_grid

    import rookery.engines.flower.wire.adapter.server  # noqa: F401  (it changes http_grid)
    from tests.helpers.flower import local_run

    local_run()
    message = Message(strange_messages()["rubbish"], dst_node_id=1, message_type="train.rookery")
    contents = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
    names = [each.object_id for each in iterate_object_tree(get_object_tree(message))]
    assert http_grid.pull_objects(names, pull_object_fn=contents.__getitem__) == contents
    for damaged in (
        spoil_records(contents),
        dict.fromkeys(contents, b""),
        dict(contents, **{names[-1]: contents[names[0]]}),
    ):
        with pytest.raises(ObjectPullError):
            http_grid.pull_objects(names, pull_object_fn=damaged.__getitem__)
