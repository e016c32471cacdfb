"""Several devices make what one makes: iterates to rounding, counts exactly. ``test_processes.py`` has several processes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

import rookery as rk
from rookery.engines.homes import Homes, make_homes, place_setting
from rookery.engines.sharded import SHARE, group_size
from rookery.experiment.running import resume_run, start_run
from rookery.experiment.settings import resolve
from rookery.fingerprint import examples_sum
from rookery.solving.prepare import prepare, single
from tests.helpers import parity
from tests.helpers.marks import quick_ones

pytestmark = pytest.mark.first

N = parity.N


def assert_same(found, expected):
    """Arrays to 1e-12 of their size, whole numbers exactly."""
    assert set(found) == set(expected)
    for name, value in expected.items():
        if value.dtype.kind in "iub":
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        else:
            scale = max(np.abs(value).max(initial=0), 1e-300)
            np.testing.assert_allclose(found[name] / scale, value / scale, rtol=0, atol=1e-12, err_msg=name)


def solved(task, how, **more):
    return parity.outcome(rk.solve(*task, **how, **{**parity.HOW, **more}))


@pytest.mark.parametrize("name", quick_ones(rk.registry, {"FedBiO-Local"}))
def test_ten_rounds_on_several_devices_are_those_of_one(name):
    task, how = parity.make_case(name)
    plain = solved(task, how)
    assert not np.allclose(plain["x"], task[3]) or not np.allclose(plain["y"], task[4]), "something happened"
    for devices in (1, 2, 4):
        assert_same(solved(task, how, engine=rk.Simulator(devices=devices)), plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("participation", "batch_size", "equal"),
    [
        (None, None, False),
        (None, 2, True),
        (rk.Bernoulli(0.5), None, True),
        (rk.Replay([[0, 6], [3], [1, 2, 5]]), 2, False),
    ],
)
def test_everybody_a_random_number_or_recorded_ones_with_minibatches_or_whole_sets(participation, batch_size, equal):
    task, how = parity.make_case("SimFBO")
    task = (*task[:2], parity.make_clients(equal=equal), *task[3:])
    how |= {"participation": participation, "batch_size": batch_size}
    plain = solved(task, how, evaluate=None)
    assert_same(solved(task, how, evaluate=None, engine=rk.Simulator(devices=4)), plain)
    assert_same(solved(task, how, evaluate=None, engine=rk.Simulator(devices=3, clients_at_once=1)), plain)


@pytest.mark.slow
def test_a_mesh_of_several_axes_is_taken_as_one():
    task, how = parity.make_case("PrimalDual")
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    assert_same(solved(task, how, engine=rk.Simulator(devices=mesh)), solved(task, how))


# --- lanes ------------------------------------------------------------------------------------------------------------


def split_of(seed):
    """Eight clients who share forty examples as this seed has it."""
    data = parity.examples(0, 40)
    order = np.random.default_rng(seed).permutation(40).reshape(8, 5)
    return rk.Clients(rk.Split(data, list(order)), rk.Split(data, list(order[:, 1:])))


def lanes(engine, **more):
    task, how = parity.make_case("FedSGDA-M")
    how.pop("key")
    algorithms = [rk.FedSGDAM(eta_x=eta) for eta in (0.1, 0.2)]
    how |= {"rounds": 6, "every": 3, "progress": False, "keys": [1, 2], **more}
    found = rk.solve_many(task[0], algorithms, [split_of(1), split_of(2)], *task[3:], engine=engine, **how)
    return {name: np.asarray(value) for name, value in found.history.last.items() if name != "seconds"} | {
        name: np.asarray(value) for name, value in (("x", found.x), ("y", found.y), ("last", found.state.last))
    }


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, None])
def test_lanes_with_splits_and_rates_of_their_own(batch_size):
    plain = lanes(None, batch_size=batch_size)
    assert not np.allclose(plain["x"][0], plain["x"][1])
    assert_same(lanes(rk.Simulator(devices=3), batch_size=batch_size), plain)


@pytest.mark.slow
def test_lanes_of_a_large_problem_run_one_after_the_other(monkeypatch):
    plain = lanes(None)
    monkeypatch.setattr("rookery.engines.simulator.LARGE", 0)
    assert_same(lanes(rk.Simulator(devices=2)), plain)


# --- where things are -------------------------------------------------------------------------------------------------


def test_no_device_holds_the_data_or_the_state_of_more_than_its_clients():
    task, how = parity.make_case("FedBiO-Local")
    run = prepare(single(*task, **how, engine=rk.Simulator(devices=4))).run
    state = run.initial_state()
    for table in (*jax.tree.leaves(state.keep), state.last):
        assert [shard.data.shape[0] for shard in table.addressable_shards] == [2] * 4
    clients = run.setting.clients
    for split, sizes in (
        (clients.lower, [3 + i % 3 for i in range(N)]),
        (clients.upper, [2 + i % 2 for i in range(N)]),
    ):
        most = max(sum(sizes[first : first + 2]) for first in range(0, N, 2))
        for leaf in jax.tree.leaves(split.data):
            assert [shard.data.shape[0] for shard in leaf.addressable_shards] == [most] * 4
    for leaf in jax.tree.leaves(state.server):
        assert leaf.is_fully_replicated


def test_examples_that_clients_share_are_once_on_each_device():
    shared = rk.Split.shared(parity.examples(0, 5), N)
    run = prepare(
        single(rk.Minimax(parity.objective), rk.FSGDA(), rk.Clients(shared), np.ones(2), np.ones(2),
               engine=rk.Simulator(devices=2))
    ).run  # fmt: skip
    leaf = jax.tree.leaves(run.setting.clients.lower.data)[0]
    assert [shard.data.shape[0] for shard in leaf.addressable_shards] == [5, 5]


@pytest.mark.slow
def test_a_solution_and_its_state_do_not_know_the_mesh():
    task, how = parity.make_case("FedBiOAcc-Local")
    half_of_it = {**parity.HOW, "rounds": 5, "every": 5}
    whole = solved(task, how)
    half = rk.solve(*task, **how, **half_of_it, engine=rk.Simulator(devices=4))
    assert half.y.shape == (N, 2)
    assert half.state.last.shape == (N,)
    for engine in (None, rk.Simulator(devices=3)):
        rest = rk.solve(*task, **how, **half_of_it, engine=engine, start=half)
        assert_same(parity.outcome(rest), whole)


def test_groups_bound_what_is_computed_in_vain():
    """Less than 1/8 of a fair share; nothing where everybody takes part."""
    mesh = Mesh(np.array(jax.devices()), ("clients",))
    for n, slots in ((1000, 10), (1000, 100), (10**6, 1000), (100, 64)):
        size = group_size(slots, Homes(mesh, n), None)
        assert size >= 1
        assert size - 1 < slots / 4 / SHARE
    assert group_size(100, Homes(mesh, 100), None) == 25
    assert group_size(100, Homes(mesh, 100), 10) == 10


def test_devices_compute_only_participants_that_live_there():
    """Counted by a callback: of three participants on one device and none on the others, nobody computes more."""
    seen = []

    def loss(x, y, batch):
        jax.debug.callback(lambda a: seen.append(float(a)), batch.mean())
        return (x @ y) * batch.mean()

    clients = rk.Clients([np.full((1, 1), float(i)) for i in range(8)])
    rk.solve(rk.Minimax(loss), rk.FSGDA(eta_x=1e-3, eta_y=1e-3), clients, np.ones(1), np.ones(1), rounds=1, progress=False,
             participation=rk.Replay([[0, 1, 1 + 1]]), evaluate=lambda x, y: {}, engine=rk.Simulator(devices=2))  # fmt: skip
    jax.effects_barrier()
    assert set(seen) == {0.0, 1.0, 2.0}


# --- divergence -------------------------------------------------------------------------------------------------------


def spoiled(x, y, batch):
    """Not finite at the client that holds a 5, once x is beyond 1.2."""
    bad = jnp.where((x[0] > 1.2) & (batch.max() == 5), jnp.nan, 1.0)
    return -0.1 * x.sum() * bad + 0 * y.sum() - ((y - batch.mean()) ** 2).sum()


@pytest.mark.slow
@pytest.mark.parametrize("fresh", [False, True])
def test_a_divergence_is_found_where_it_is(fresh):
    algorithm = rk.FedNestMinimax() if fresh else rk.LocalSGDA(eta_x=0.5, eta_y=0.1)
    clients = rk.Clients([np.full((2, 1), float(i)) for i in range(N)])
    how = {"rounds": 60, "every": 10, "participation": 4, "local_steps": 2, "progress": False}
    told = []
    for engine in (None, rk.Simulator(devices=2), rk.Simulator(devices=4)):
        with pytest.raises(rk.Diverged) as caught:
            rk.solve(rk.Minimax(spoiled), algorithm, clients, np.ones(1), np.ones(1), engine=engine, **how)
        told.append((str(caught.value), caught.value.solution.rounds))
    assert told[0] == told[1] == told[2]
    assert "client 5" in told[0][0]


@pytest.mark.slow
def test_a_lane_that_diverges_is_frozen_alone():
    clients = rk.Clients([np.full((2, 1), float(i)) for i in range(N)])
    algorithms = [rk.LocalSGDA(eta_x=0.5, eta_y=0.1), rk.LocalSGDA(eta_x=1e-6, eta_y=0.1)]
    found = [
        rk.solve_many(rk.Minimax(spoiled), algorithms, clients, np.ones(1), np.ones(1), rounds=20, keys=[0, 0],
                      engine=engine, participation=4, progress=False)
        for engine in (None, rk.Simulator(devices=2))
    ]  # fmt: skip
    assert found[0].diverged == found[1].diverged
    assert [each.lane for each in found[1].diverged] == [0]
    assert str(found[0].why(0)) == str(found[1].why(0))


# --- runs in folders --------------------------------------------------------------------------------------------------


class Stop(Exception):
    pass


def stop_at(round):
    def watch(state, history):
        if state.round == round:
            raise Stop

    return watch


def settings(**more):
    run = {
        "task": "quadratic-bilevel",
        "clients": 5,
        "rounds": 6,
        "every": 3,
        "seeds": 2,
        "algorithm": "CODASCA",
        **more,
    }
    return resolve({**run, "task": "quadratic-minimax"}, {})


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(None, 4), (4, None), (2, 3)])
def test_a_run_is_resumed_on_other_devices(tmp_path, first, then):
    def engine(devices):
        return None if devices is None else rk.Simulator(devices=devices)

    whole = start_run(settings(), tmp_path / "whole")
    with pytest.raises(Stop):
        start_run(settings(), tmp_path / "cut", engine=engine(first), watch=stop_at(3), checkpoint_seconds=0)
    rest = resume_run(tmp_path / "cut", engine=engine(then))
    for a, b in zip(jax.tree.leaves(rest.state), jax.tree.leaves(whole.state), strict=True):
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), rtol=1e-12, atol=1e-14)
    for name in ("bytes_up", "grad_f", "round"):
        np.testing.assert_array_equal(rest.history[name], whole.history[name])


# --- parts ------------------------------------------------------------------------------------------------------------


def test_a_part_has_its_own_clients_data_alone():
    whole = parity.make_clients()
    part = whole.cut(range(2, 5))
    assert (part.n, part.first, part.held) == (N, 2, range(2, 5))
    for row in range(3):
        a, b = (np.asarray(each.lower.take(i, jnp.arange(3))["a"]) for each, i in ((part, row), (whole, 2 + row)))
        np.testing.assert_array_equal(a, b)
    assert len(part.lower.data["s"]) == sum(3 + i % 3 for i in range(2, 5))
    with pytest.raises(ValueError, match=r"needs the data of all 7 clients, here are 3 of them"):
        rk.solve(rk.Minimax(parity.objective), rk.FSGDA(), part, np.ones(2), np.ones(2), rounds=1)
    with pytest.raises(ValueError, match=r"this process must hold the data of clients 0\.\.6, it has 2\.\.4"):
        rk.solve(rk.Minimax(parity.objective), rk.FSGDA(), part, np.ones(2), np.ones(2), rounds=1,
                 engine=rk.Simulator(devices=2))  # fmt: skip
    with pytest.raises(ValueError, match=r"first: the 1 clients from number 7 on must be some of n=7"):
        rk.Clients([np.ones(1)], first=7, n=7)


def test_the_sum_of_the_data_does_not_know_the_parts():
    whole = parity.make_clients()
    total = examples_sum(whole)
    assert sum(examples_sum(whole.cut(range(a, b))) for a, b in ((0, 2), (2, 6), (6, 7))) % 2**64 == total
    assert examples_sum(parity.make_clients(equal=True)) != total
    swapped = [parity.examples(i, 4) for i in (1, 0, 2)], [parity.examples(i, 4) for i in (0, 1, 2)]
    assert examples_sum(rk.Clients(swapped[0])) != examples_sum(rk.Clients(swapped[1]))
    changed = parity.examples(0, 4)
    before = examples_sum(rk.Clients([changed]))
    changed["b"][2, 1] += 1e-12
    assert examples_sum(rk.Clients([changed])) != before
    shared = rk.Clients(rk.Split.shared(parity.examples(0, 5), 6))
    assert sum(examples_sum(shared.cut(range(i, i + 2))) for i in (0, 2, 4)) % 2**64 == examples_sum(shared)


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "match"),
    [
        (0, r'devices must be "all", an integer of at least 1, a jax\.sharding\.Mesh or None, got 0'),
        (True, "devices must be"),
        ("two", "devices must be"),
        (5, r"devices: there are 4, got 5 \(rookery run --devices makes as many of a CPU\)"),
    ],
)
def test_devices_that_are_none_or_not_there(devices, match):
    task, how = parity.make_case("FSGDA")
    with pytest.raises(ValueError, match=match):
        rk.solve(*task, **how, rounds=1, engine=rk.Simulator(devices=devices))


def test_keys_as_examples_are_refused():
    split = rk.Split(jax.random.split(jax.random.key(0), 4), [[0, 1], [2, 3]])
    clients = rk.Clients(split)
    setting = prepare(
        single(rk.Minimax(lambda x, y, b: x @ y), rk.FSGDA(), clients, np.ones(2), np.ones(2))
    ).run.setting
    with pytest.raises(TypeError, match="examples that are random keys"):
        place_setting(setting, None, make_homes(2, 2))
