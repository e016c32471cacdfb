"""Secure sums on nodes: the simulator's iterates, drop-outs at every step, what the server sees, servers that cheat."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import chisquare

import rookery as rk
from rookery.aggregation.privacy import WITHIN
from rookery.aggregation.secure.protocol import Keys
from rookery.algorithm.exchange import stacked_parts
from rookery.engines.base import kept_by
from rookery.engines.flower.engine import Over
from rookery.engines.flower.federation import FederationError, shows_state
from rookery.engines.flower.masking import too_little
from rookery.engines.flower.node import Node
from rookery.engines.flower.reach import chance_of_fewer
from rookery.engines.flower.roster import Roster
from rookery.engines.flower.site import from_memory
from rookery.engines.flower.wire.pack import unpack
from rookery.engines.flower.wire.requests import Begin, End, Keep, Work, read_request
from rookery.engines.flower.wire.summing import Confirm, Share, Unmask
from rookery.engines.flower.wire.transport import Direct
from rookery.experiment.engines import engine_of, engine_table
from tests.aggregation.test_secure_protocol import identities
from tests.engines.flower.test_flower import Case, N, assert_close, examples, make_clients
from tests.helpers.marks import ONE_OF_EACH_KIND, quick_ones, slow

SECURE = rk.SecureSum(threshold=0.6)


def allowed(name):
    algorithm = rk.registry[name]()
    return not stacked_parts(algorithm.round()) and not shows_state(algorithm, jnp.zeros(2), jnp.zeros(2))


ALLOWED = [name for name in rk.registry if allowed(name)]
QUICK = set(ALLOWED) & (ONE_OF_EACH_KIND - {"FedNest"})


class Wire(Direct):
    """Nodes in this process behind a wire that keeps all answers, and may change a request or lose it."""

    def __init__(self, nodes, change=lambda node, request: request):
        super().__init__(nodes)
        self.change = change
        self.asked, self.answers = [], []

    def send(self, requests, deadline, enough=None):
        read = {node: self.change(node, read_request(buffer)) for node, buffer in requests.items()}
        changed = {node: each.packed() for node, each in read.items() if each is not None}
        answers = super().send(changed, deadline, enough)
        self.asked += [read[node] for node in answers]
        self.answers += list(answers.values())
        return answers


def secured(case, transport=None, rounds=3, **more):
    rules = {"pause": 0.0, "attempts": 2, "secure": SECURE, "collect": False}
    how = {key: more.pop(key) for key in list(more) if key in ("attempts", "quorum", "secure", "collect")}
    engine = Over(transport=transport or Direct(case.nodes()), **{**rules, **how})
    return rk.solve(*case.task, **case.how, rounds=rounds, every=rounds, engine=engine, **more)


# --- what is computed


@pytest.mark.parametrize("name", quick_ones(ALLOWED, QUICK))
def test_a_few_rounds_are_those_of_the_simulator(name):
    case = Case(rk.registry[name](), participation=3)
    expected = rk.solve(*case.task, **case.how, rounds=3, every=3)
    found = secured(case)
    assert_close((found.x, found.y), (expected.x, expected.y))
    assert np.abs(np.asarray(expected.y) - case.task[4]).max() > 1e-4, "something happened"


def test_many_algorithms_can_be_run():
    assert len(ALLOWED) >= 25, ALLOWED


def test_a_node_of_several_clients_sums_them_first():
    case = Case(rk.FedBiO(), participation=None)
    expected = rk.solve(*case.task, **case.how, rounds=2, every=2)
    wire = Wire(case.nodes([[0, 3], [1], [2]]))
    found = secured(case, wire, rounds=2)
    assert_close((found.x, found.y), (expected.x, expected.y))
    uploads = [unpack(each) for asked, each in zip(wire.asked, wire.answers, strict=True) if isinstance(asked, Work)]
    assert {tuple(meta["clients"]) for _, meta in uploads} == {(0, 3), (1,), (2,)}
    assert all(leaf.dtype == np.uint64 for tree, _ in uploads for leaf in jax.tree.leaves(tree))


@pytest.mark.parametrize("lost", [Share, Work, Unmask])
@pytest.mark.parametrize("name", ["FedBiO", "FedSGDA+"])
def test_a_node_that_drops_out_is_recovered(name, lost):
    """Before it sends its upload it is as if it had not been drawn; after, its upload is in the sum."""
    case = Case(rk.registry[name](), participation=None)
    wire = Wire(case.nodes(), lambda node, asked: None if node == 2 and isinstance(asked, lost) else asked)
    there = [0, 1, 2, 3] if lost is Unmask else [0, 1, 3]
    expected = rk.solve(*case.task, **{**case.how, "participation": rk.Replay([[there] * 4] * 2)}, rounds=2, every=2)
    found = secured(case, wire, rounds=2, attempts=1)
    assert_close((found.x, found.y), (expected.x, expected.y))


@pytest.mark.parametrize("lost", [Share, Work, Unmask])
def test_below_the_threshold_there_is_no_sum_and_the_round_is_repeated(lost):
    case = Case(rk.FedBiO(), participation=None)
    seen = []

    def twice(node, asked):
        if isinstance(asked, lost) and node in (1, 2) and asked.order[2] == 0:
            seen.append(node)
            return None
        return asked

    expected = rk.solve(*case.task, **case.how, rounds=1)
    found = secured(case, Wire(case.nodes(), twice), rounds=1)
    assert seen == [1, 2]
    assert_close((found.x, found.y), (expected.x, expected.y))
    with pytest.raises(FederationError, match=r"2 nodes .* and 3 are needed for a secure sum"):
        secured(case, Wire(case.nodes(), twice), rounds=1, attempts=1)


def test_numbers_too_large_for_the_ring_are_told_and_never_wrap_around():
    case = Case(rk.FedBiO(eta_y=1e13), participation=None)
    case.task = (rk.Bilevel(case.task[0].upper, case.task[0].lower), *case.task[1:])
    with pytest.raises(FederationError, match="cannot overflow"):
        secured(case, rounds=1)


# --- what the server sees


def bytes_of(wire):
    """All bytes of uploads that came to the server."""
    answers = [each for asked, each in zip(wire.asked, wire.answers, strict=True) if isinstance(asked, Work)]
    return np.concatenate(
        [np.frombuffer(leaf.tobytes(), np.uint8) for a in answers for leaf in jax.tree.leaves(unpack(a)[0])]
    )


def test_what_the_server_receives_is_uniform_and_holds_no_upload():
    case = Case(rk.FedBiO(), participation=None)
    wires = Wire(case.nodes()), Wire(case.nodes())
    secured(case, wires[0], rounds=40)
    secured(case, wires[1], rounds=40, secure=None, collect=True)
    masked, bare = map(bytes_of, wires)
    assert len(masked) > 5000
    assert chisquare(np.bincount(masked, minlength=256)).pvalue > 1e-4
    assert chisquare(np.bincount(bare, minlength=256)).pvalue < 1e-12, "the test can tell"
    uploads = {bare[i : i + 4].tobytes() for i in range(0, len(bare), 4)} - {bytes(4)}
    everything = b"".join(wires[0].answers)
    found = sum(each in everything for each in uploads)
    assert found <= 2 + 4 * len(uploads) * len(everything) / 2**32, "no more than by chance"


def test_the_same_run_twice_has_other_masks():
    case = Case(rk.FedBiO(), participation=None)
    wires = Wire(case.nodes()), Wire(case.nodes())
    for wire in wires:
        secured(case, wire, rounds=1)
    one, other = map(bytes_of, wires)
    assert one.size == other.size
    assert (one == other).mean() < 0.1


# --- servers that cheat


def keyed(case, number=N, others=None):
    """Nodes that know each other's keys."""
    problem, _, clients, x0, y0 = case.task
    site = from_memory(problem, clients, x0, y0)
    known = identities(number) if others is None else others
    return [Node(lambda: site, [i], name=f"node-{i}", identity=known[i]) for i in range(number)]


def test_nodes_with_keys_that_last_sum_as_well_even_if_one_drops_out_before_it_has_confirmed():
    case = Case(rk.FedBiO(), participation=None)
    expected = rk.solve(*case.task, **case.how, rounds=1)
    for lost in (None, Confirm, Unmask):
        wire = Wire(keyed(case), lambda node, asked, lost=lost: None if node == 1 and lost is type(asked) else asked)
        found = secured(case, wire, rounds=1, attempts=1)
        assert_close((found.x, found.y), (expected.x, expected.y))
        assert any(isinstance(each, Confirm) for each in wire.asked)


def test_a_server_that_swaps_keys_is_found_out():
    from rookery.aggregation.secure.masks import Pair

    case = Case(rk.FedBiO(), participation=None)
    known = identities(N)

    def swap(node, asked):
        if isinstance(asked, Share) and node != 2:
            old = asked.keys[2]
            return replace(asked, keys={**asked.keys, 2: Keys(Pair().public, Pair().public, old.signature)})
        return asked

    wire = Wire(keyed(case, others=known), swap)
    with pytest.raises(FederationError, match="the keys of party 2 are not signed by a listed key"):
        secured(case, wire, rounds=1)
    assert not any(isinstance(each, Work) for each in wire.asked), "nobody has sent anything"


def test_a_node_that_is_not_listed_is_not_summed_with():
    case = Case(rk.FedBiO(), participation=None)
    known = [*identities(N)[:3], identities(N)[3]]
    with pytest.raises(FederationError, match="not signed by a listed key"):
        secured(case, Wire(keyed(case, others=known)), rounds=1)


def test_different_lists_of_survivors_are_found_out():
    """The old trick: to some a node is gone, to others it is there, and both its masks would be known."""
    case = Case(rk.FedBiO(), participation=None)

    def lie(node, asked):
        if isinstance(asked, Confirm | Unmask) and node in (0, 1):
            return replace(asked, survivors=[0, 1, 2])
        if isinstance(asked, Confirm | Unmask) and node == 3:
            return replace(asked, survivors=[1, 2, 3])
        return asked

    with pytest.raises(FederationError, match="have confirmed the survivors, 3 are needed"):
        secured(case, Wire(keyed(case), lie), rounds=1)


def test_what_differs_between_nodes_gives_noise_and_no_sum():
    """A server that sends one node another model to learn from the answer."""
    case = Case(rk.FedBiO(), participation=None)

    def other(node, asked):
        if isinstance(asked, Work) and node == 1:
            return replace(asked, down=jax.tree.map(lambda leaf: leaf + np.float32(0.1), asked.down))
        return asked

    expected = rk.solve(*case.task, **case.how, rounds=1)
    case.task = (rk.Bilevel(case.task[0].upper, case.task[0].lower), *case.task[1:])
    found = secured(case, Wire(case.nodes(), other), rounds=1)
    assert np.abs(np.asarray(found.y) - np.asarray(expected.y)).max() > 1e3


def test_a_server_that_lets_one_node_count_alone_is_refused():
    case = Case(rk.FedBiO(), participation=None)

    def point(node, asked):
        if not isinstance(asked, Work):
            return asked
        told = asked.secure
        alone = {part: {p: mass if p == 1 else 0.0 for p, mass in each.items()} for part, each in told.masses.items()}
        weights = told.weights if node == 1 else {part: [0.0] * len(own) for part, own in told.weights.items()}
        return replace(asked, secure=replace(told, masses=alone, weights=weights))

    with pytest.raises(FederationError, match="would be the sum of 1 nodes' uploads"):
        secured(case, Wire(case.nodes(), point), rounds=1)


def lied_about(asked, factor):
    """An exchange with ``factor(part, party)`` times the weights, the same for all."""
    if not isinstance(asked, Work):
        return asked
    told = asked.secure
    masses = {part: {p: mass * factor(part, p) for p, mass in each.items()} for part, each in told.masses.items()}
    own = set(told.masses[next(iter(masses))]) - set(told.sealed)
    weights = {part: [w * factor(part, *own) for w in each] for part, each in told.weights.items()}
    most = {part: each * factor(part, *own) for part, each in told.most.items()}
    return replace(asked, secure=replace(told, masses=masses, weights=weights, most=most))


def test_weights_of_next_to_nothing_do_not_count():
    case = Case(rk.FedBiO(), clients=make_clients(weights=None), participation=None)
    wire = Wire(keyed(case), lambda node, asked: lied_about(asked, lambda part, party: 1 if party < 2 else 1e-300))
    with pytest.raises(FederationError, match="would be the sum of 2 nodes' uploads, the others weigh nothing or next"):
        secured(case, wire, rounds=1)
    assert not any(isinstance(each, Unmask) for each in wire.asked)
    assert too_little("x", [1.0, 1.0, 2.0**-10], 3) is None
    assert "the sum of 2 nodes'" in too_little("x", [1.0, 1.0, 2.0**-11], 3)


@pytest.mark.parametrize(("name", "privacy", "most"), [("FedBiO", False, 1), ("MeFBO", False, N), ("MeFBO", True, 1)])
def test_weights_that_are_scaled_to_measure_an_upload_are_refused(name, privacy, most):
    """Of an upload that would overflow a node says so: by weights of its choice a server would learn how large it is."""
    case = Case(rk.registry[name](), clients=make_clients(weights=None), participation=None)
    more = {"privacy": rk.ClientPrivacy(clip=0.3, noise=1.0, delta=1e-3)} if privacy else {}
    for factor in (most, 1.01 * most):
        wire = Wire(case.nodes(), lambda node, asked, factor=factor: lied_about(asked, lambda part, party: factor))
        if factor == most:
            secured(case, wire, rounds=1, **more)
        else:
            with pytest.raises(FederationError, match=f"must be at most {most} in all, got"):
                secured(case, wire, rounds=1, **more)


def test_a_restarted_node_tells_no_texts_of_errors(tmp_path):
    """It does not know the run any more, but it has begun on its disk."""
    case = Case(rk.FedBiO(), participation=None)
    problem, _, clients, x0, y0 = case.task
    site = from_memory(problem, clients, x0, y0)
    nodes = [Node(lambda: site, [i], tmp_path / str(i)) for i in range(N)]
    sent = []

    def noted(node, asked):
        if isinstance(asked, End):
            return None
        sent.extend([asked] if node == 0 else [])
        return asked

    secured(case, Wire(nodes, noted), rounds=1)

    def broken():
        raise ValueError("row 17: 'Jane Doe'")

    begin = next(each for each in sent if isinstance(each, Begin))
    for asked in [*sent, replace(begin, secure=None)]:
        told = unpack(Node(broken, [0], tmp_path / "0").answer(asked.packed()))[1]
        assert told["error"].startswith("ValueError: what it says may tell of the data")
    new = replace(begin, run="0" * 32, secure=None)
    assert "Jane Doe" in unpack(Node(broken, [0], tmp_path / "0").answer(new.packed()))[1]["error"], "another run"


def test_a_node_that_is_lost_comes_after_others_with_its_clients(monkeypatch):
    doubted = []
    monkeypatch.setattr(Roster, "doubt", lambda self, node: doubted.append(node))

    class Ended(Direct):
        def send(self, requests, deadline, enough=None):
            answers = super().send(requests, deadline, enough)
            lost = {node for node in requests if node == 2 and isinstance(read_request(requests[node]), Share)}
            return {node: "its process has ended" if node in lost else answer for node, answer in answers.items()}

    case = Case(rk.FedBiO(), participation=None)
    secured(case, Ended(case.nodes()), rounds=1)
    assert doubted == [2]


def test_a_node_gives_nothing_bare_in_a_secure_run():
    case = Case(rk.FedSGDAM(), participation=None)
    wire = Wire(case.nodes(), lambda node, asked: replace(asked, secure=None) if isinstance(asked, Work) else asked)
    with pytest.raises(FederationError, match="has masks in a run with secure sums"):
        secured(case, wire, rounds=1)
    wire = Wire(nodes := case.nodes())
    secured(case, wire, rounds=1)
    run = wire.asked[0].run
    fresh = Wire(nodes)
    for begin in [each for each in wire.asked if each.run == run][:N]:
        fresh.send({0: begin.packed()}, 1.0)
    fresh.send({0: Keep(run, [0], [None]).packed()}, 1.0)
    assert "does not leave them" in unpack(fresh.answers[-1])[1]["error"]


def test_a_node_with_keys_takes_part_in_secure_runs_only():
    case = Case(rk.FedBiO(), participation=None)
    with pytest.raises(FederationError, match="runs with secure sums only"):
        secured(case, Wire(keyed(case)), secure=None, collect=True, rounds=1)


def test_a_repeated_request_has_the_same_answer_and_an_old_one_none():
    case = Case(rk.FedBiO(), participation=None)
    wire = Wire(nodes := case.nodes())
    asked = []
    wire.change = lambda node, each: asked.append((node, each)) or each
    secured(case, wire, rounds=1, collect=False)
    first = next(i for i, (_, each) in enumerate(asked) if isinstance(each, Share))
    again = Wire(nodes)
    again.send({0: asked[0][1].packed()}, 1.0)  # the run was ended: it begins anew
    again.send({0: asked[first - N][1].packed()}, 1.0)
    once, twice = (again.send({0: asked[first - N][1].packed()}, 1.0)[0] for _ in range(2))
    assert once == twice
    again.send({0: asked[first][1].packed()}, 1.0)
    assert "were exchanged for others on the way" in unpack(again.answers[-1])[1]["error"], "new keys, an old list"


# --- with privacy


def still():
    """Long vectors that no client moves: what comes out is noise."""
    algorithm = rk.registry["Local SGDA"](eta_x=0.0, eta_y=0.0)
    case = Case(algorithm, clients=make_clients(weights=None), participation=None)
    problem = rk.Minimax(lambda x, y, batch: jnp.mean(batch["s"]) * (jnp.sum(x**2) - jnp.sum(y**2)))
    case.task = (problem, algorithm, case.task[2], np.zeros(6000, np.float32), np.zeros(4000, np.float32))
    return case


@pytest.mark.parametrize("lost", [None, 2])
def test_nodes_add_noise_in_shares_and_together_enough(lost):
    """4 nodes of which 3 must stay: each adds a third of the variance, so that all four have 4/3 of it."""
    clip, noise, case = 0.05, 2.0, still()
    wire = Wire(case.nodes(), lambda node, asked: None if node == lost and isinstance(asked, Work) else asked)
    found = secured(case, wire, rounds=1, privacy=rk.ClientPrivacy(clip=clip, noise=noise, delta=1e-3))
    wanted = noise * clip * np.sqrt(2) / N * np.sqrt(4 / 3 if lost is None else 1.0)
    assert abs(np.std([*found.x, *found.y]) / wanted - 1) < 0.05, "10000 numbers are exact to 0.7 %"


@pytest.mark.parametrize("clip", [0.3, slow(rk.AdaptiveClip(start=0.1))])
def test_private_and_secure_is_private_as_the_simulator_is(clip):
    case = Case(rk.FedBiOAcc(), participation=None)
    privacy = rk.ClientPrivacy(clip=clip, noise=1e-9, delta=1e-3)
    expected = rk.solve(*case.task, **case.how, rounds=3, every=3, privacy=privacy)
    found = secured(case, privacy=privacy)
    if not isinstance(clip, rk.AdaptiveClip):  # whose shares have noise of their own
        assert_close((found.x, found.y), (expected.x, expected.y))
    assert found.history.last["epsilon"] >= expected.history.last["epsilon"]


def test_a_server_cannot_strip_the_noise_of_what_an_adaptive_clip_counts():
    """That noise is fixed, and the weights that it is made for are those with which the run began."""
    case = Case(rk.FedBiO(), clients=make_clients(weights=None), participation=None)
    wire = Wire(case.nodes(), lambda _, asked: lied_about(asked, lambda part, party: 1.01 if part == WITHIN else 1))
    privacy = rk.ClientPrivacy(clip=rk.AdaptiveClip(start=0.1), noise=5.0, delta=1e-3)
    with pytest.raises(FederationError, match=r"'within the clip' must be at most 0\.25 as the run began, got"):
        secured(case, wire, rounds=1, privacy=privacy)


# --- bad input


def test_what_cannot_work_is_refused_before_anything_starts():
    def never(node, asked):
        raise AssertionError("a message was sent")

    def refuse(words, algorithm, **more):
        case = Case(algorithm, participation=more.pop("participation", None))
        with pytest.raises(ValueError, match=words):
            secured(case, Wire(case.nodes(), never), **more)

    refuse("PrimalDual needs the slope of every client by itself", rk.PrimalDual())
    refuse("CommFedBiO needs the upload of every client", rk.registry["CommFedBiO"]())
    refuse("aggregate and secure exclude each other", rk.FedBiO(), aggregate=rk.Median())
    refuse("at least 3 participants: of two", rk.FedBiO(), participation=2)
    refuse("at least 3 participants: of two", rk.FedBiO(), participation=rk.Replay([[0, 1, 2], [0, 1]]))
    refuse("collect must be False with secure sums", rk.FedSGDAM(), collect=True)
    refuse("collect must be True where every client has", rk.registry["FedBiO-Local"]())
    assert kept_by(rk.FedSGDAM(), np.zeros(2, np.float32), np.zeros(2, np.float32))


def test_options_that_cannot_work():
    for threshold in (0.5, 0, 1.01, "all", True):
        with pytest.raises(ValueError, match="threshold must be a share"):
            rk.SecureSum(threshold)
    with pytest.raises(ValueError, match="at least 3 nodes: of two"):
        rk.Flower(nodes=2, secure=SECURE)
    with pytest.raises(TypeError, match=r"secure must be rk.SecureSum"):
        rk.Flower(nodes=3, secure=0.6)
    with pytest.raises(ValueError, match="over_selection must be 1"):
        rk.Flower(nodes=3, secure=SECURE, over_selection=1.5)
    case = Case(rk.FedBiO(), participation=None)
    with pytest.raises(ValueError, match="at least 3 nodes"):
        secured(case, Direct(case.nodes([[0, 1], [2, 3]])))


def test_a_threshold_of_one_is_a_number_like_others():
    case = Case(rk.FedBiO(), participation=None)
    secured(case, rounds=1, secure=rk.SecureSum(threshold=1))
    assert engine_of({"name": "flower", "options": {"nodes": 4, "secure": {"threshold": 1}}}).secure == rk.SecureSum(
        1.0
    )


def many(number):
    rng = np.random.default_rng(0)
    lower, upper = ([examples(rng, size) for _ in range(number)] for size in (4, 3))
    return rk.Clients(lower, upper, server=examples(rng, 3))


@pytest.mark.parametrize(
    ("participation", "groups", "message"),
    [
        (3, [[0, 3, 6], [1, 4, 7], [2, 5, 8]], "in every draw, got draws on 1"),
        (6, [[0, 3, 6], [1, 4, 7], [2, 5, 8]], "in every draw, got draws on 2"),
        (7, [[0, 3, 6], [1, 4, 7], [2, 5, 8]], None),
        (rk.Replay([[0, 1, 2], [0, 1, 3]]), [[0, 3], [1], [2, 4, 5, 6, 7, 8]], "in every draw, got draws on 2"),
        (rk.Replay([[0, 1, 2], [1, 2, 3]]), [[0, 3], [1], [2, 4, 5, 6, 7, 8]], None),
        (None, [[0, 3, 6], [1, 4, 7], [2, 5, 8]], None),
    ],
)
def test_draws_on_too_few_nodes_are_refused_before_the_first_round(participation, groups, message):
    case = Case(rk.FedBiO(), clients=many(9), participation=participation)
    wire = Wire(case.nodes(groups))
    if message is None:
        secured(case, wire, rounds=1)
    else:
        with pytest.raises(ValueError, match=message):
            secured(case, wire, rounds=1)
        assert {type(each) for each in wire.asked} <= {Begin, End}


def test_draws_of_chance_on_too_few_nodes_are_warned_about():
    """Of six nodes of one client each with probability a half, 21 of 63 draws of somebody are on one or two."""
    hosts = {client: client for client in range(6)}
    assert chance_of_fewer(0.5, hosts) == pytest.approx(21 / 63)
    case = Case(rk.FedBiO(), clients=many(6), participation=rk.Bernoulli(0.5))
    with pytest.warns(UserWarning, match=r"on fewer than 3 nodes with probability 0\.33"):
        secured(case, Wire(case.nodes([[i] for i in range(6)])), rounds=1, attempts=20)


def test_weights_that_hide_nobody_are_refused_before_the_first_round():
    for weights, words in (((0.85, 0.05, 0.05, 0.05), "worth 1.37 equal ones"), ((0.5, 0.5, 0, 0), "sum of 2 nodes'")):
        case = Case(rk.FedBiO(), clients=make_clients(weights=weights), participation=None)
        wire = Wire(case.nodes())
        with pytest.raises(ValueError, match=words):
            secured(case, wire, rounds=1)
        assert {type(each) for each in wire.asked} <= {Begin, End}


def test_a_folder_remembers_it():
    engine = rk.Flower(nodes=4, secure=rk.SecureSum(0.75, fraction_bits=30))
    assert engine_of(engine_table(engine)) == engine
