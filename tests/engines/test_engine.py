"""The simulator: what a run may and may not depend on, who takes part, what is drawn, what is reported (9.2)."""

import csv
import itertools
import warnings
from collections import Counter
from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats
from scipy.special import comb

import rookery as rk
from rookery.aggregation.mean import mean_of, participant_weights
from rookery.algorithm.walk import not_finite
from rookery.algorithms.steps import only
from rookery.engines.compiled import compiled_rounds
from rookery.problem.keys import PARTICIPANTS, Stream, _threefry, as_key, fold
from rookery.problem.layout import Layout
from rookery.problem.measures import objectives
from rookery.problem.oracles import Objective, on_whole_set
from rookery.problem.problems import Flat
from rookery.solving.prepare import prepare, single
from tests.helpers import small_problems as small
from tests.helpers import transcriptions as paper
from tests.helpers.draws import Draws
from tests.helpers.marks import ONE_OF_EACH_KIND, quick_ones, slow

X0, Y0 = jnp.linspace(-0.5, 0.5, small.DX), jnp.linspace(0.3, -0.3, small.DY)
TRACED: Counter = Counter()
SIMULATOR = import_module("rookery.engines.simulator")
EQUAL_STEPS = {"FedBiOAcc", "FedBiOAcc-Local", "Local-BSGVR", "Local-BSGM", "AdaFBiO"}


def nothing(x, y):
    return {}


def upper(x, y, batch):
    TRACED["upper"] += 1
    return small.upper(x, y, batch)


def same(ours, theirs, rtol=0.0, what=""):
    """Of two solutions or states: all that the server and the clients hold."""
    ours, theirs = (getattr(each, "state", each) for each in (ours, theirs))
    for name, one, other in (("server", ours.server, theirs.server), ("keep", ours.keep, theirs.keep)):
        a, b = jax.tree.leaves(one), jax.tree.leaves(other)
        assert len(a) == len(b)
        for u, v in zip(a, b, strict=True):
            if rtol == 0:
                np.testing.assert_array_equal(u, v, f"{what} {name}")
            else:
                scale = np.abs(np.asarray(v)).max() + 1e-300
                np.testing.assert_allclose(
                    np.asarray(u) / scale, np.asarray(v) / scale, rtol, rtol, err_msg=f"{what} {name}"
                )


# --- one setting, and what must not matter to it ---------------------------------------------------------------------

N = 4
P = np.array([0.1, 0.4, 0.3, 0.2])
RATES = {"eta_x": 0.1, "eta_y": 0.12, "eta_z": 0.08}


@pytest.fixture(scope="module")
def world():
    """(problem, clients, data): minibatches of 2, two of four clients, two local steps. One program for `run`."""
    _, splits = small.make_bilevel(N, seed=3)
    clients = rk.Clients(rk.Split(*splits["lower"]), rk.Split(*splits["upper"]), weights=P)
    return rk.Bilevel(upper, small.lower), clients, splits


SETTING: dict[str, Any] = {"participation": 2, "local_steps": 2, "batch_size": 2, "evaluate": nothing, "rounds": 6}


def run(world, x0=X0, y0=Y0, rates=RATES, clients=None, **setting):
    clients = world[1] if clients is None else clients
    return rk.solve(world[0], rk.FedBiO(**rates), clients, x0, y0, **{**SETTING, "key": 5, **setting})


def run_many(world, rates=(RATES,), x0=X0, y0=Y0, clients=None, **setting):
    algorithms = [rk.FedBiO(**each) for each in rates]
    clients = world[1] if clients is None else clients
    return rk.solve_many(world[0], algorithms, clients, x0, y0, **{**SETTING, **setting})


@pytest.mark.optimized
def test_T01_same_key_same_trajectory(world):
    first = run(world)
    same(run(world), first)
    other = run(world, key=6)
    assert np.abs(other.x - first.x).max() > 1e-3
    with_key = run(world, key=jax.random.key(5))
    same(with_key, first)


@pytest.mark.optimized
def test_T01_a_round_twice_from_a_saved_state(world):
    saved = run(world, rounds=3).state
    same(run(world, rounds=1, start=saved), run(world, rounds=1, start=saved))
    assert saved.round == 3  # it is not used up


@pytest.mark.optimized
@pytest.mark.parametrize("every", [1, 2, 4, 100])
def test_the_evaluation_period_changes_no_iterate(world, every):
    def metrics(x, y):
        return {"norm": jnp.vdot(x, x)}

    solution = run(world, every=every, evaluate=metrics)
    same(solution, run(world, every=3))
    expected = sorted({0, *range(0, 6, every), 6})
    assert list(solution.history["round"]) == expected
    np.testing.assert_allclose(solution.history["norm"][-1], np.vdot(solution.x, solution.x))


@pytest.mark.optimized
@pytest.mark.parametrize("part", ["solution", "state"])
def test_a_continued_run_is_the_uninterrupted_one(world, part):
    whole = run(world, every=2)
    half = run(world, rounds=3, every=2)
    again = run(world, rounds=3, every=2, start=half if part == "solution" else half.state)
    same(again, whole)
    assert again.rounds == 6
    counted = ["exchanges", "bytes_down", "bytes_up", "grad_f", "grad_g", "hvp", "jvp"]
    if part == "solution":
        assert list(again.history["round"]) == [0, 2, 3, 4, 6]
        assert [again.history.last[name] for name in counted] == [whole.history.last[name] for name in counted]
    else:
        assert list(again.history["round"]) == [4, 6]
        assert 2 * again.history.last["bytes_up"] == whole.history.last["bytes_up"]


def test_T02_clients_at_a_time(world):
    """Three at a time of four leaves two slots of the last group unused."""
    everybody = {"participation": None}
    same(run(world, engine=rk.Simulator(3), **everybody), run(world, **everybody), 1e-12)


class Slots(rk.Algorithm):
    """Notes how many slots an exchange has."""

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)

    def init(self, x, y):
        return {"x": x, "y": y, "slots": jnp.zeros(())}

    def round(self):
        def client(local, down):
            return {"y": down["y"]}

        return (
            rk.Exchange(
                lambda s: {"y": s["y"]}, client, lambda ctx, s, m: {**s, "slots": 0 * s["slots"] + len(ctx.ids)}
            ),
        )


@pytest.mark.optimized
@pytest.mark.parametrize(("at_once", "slots"), [(1, 3), (2, 4), (100, 3)])
def test_clients_at_a_time_fill_up_the_last_group_only(world, at_once, slots):
    solution = rk.solve(world[0], Slots(), world[1], X0, Y0, rounds=1, participation=3, batch_size=2, evaluate=nothing,
                        engine=rk.Simulator(at_once))  # fmt: skip
    assert solution.state.server["slots"] == slots


def test_T02_the_order_of_uploads_does_not_matter():
    rng = np.random.default_rng(0)
    weighting = {"a": "average", "b": "direction", "c": lambda s, ids: s[ids]}
    ids, mask = jnp.array([0, 2, 3, 0]), jnp.array([True, True, True, False])
    up = {name: jnp.asarray(rng.standard_normal((4, 3))) for name in "abc"}
    weights, server = jnp.asarray(P), jnp.asarray([1.0, 2, 3, 4])
    expected = mean_of(weighting, server, weights, ids, mask, up)
    p, v = P[[0, 2, 3]], {name: np.asarray(each[:3]) for name, each in up.items()}
    np.testing.assert_allclose(expected["a"], p / p.sum() @ v["a"], rtol=1e-12)
    np.testing.assert_allclose(expected["b"], 4 / 3 * p @ v["b"], rtol=1e-12)
    np.testing.assert_allclose(expected["c"], 4 / 3 * np.array([1.0, 3, 4]) @ v["c"], rtol=1e-12)
    for order in ([1, 0, 2, 3], [3, 2, 1, 0]):
        order = jnp.asarray(order)
        permuted = mean_of(weighting, server, weights, ids[order], mask[order], {k: u[order] for k, u in up.items()})
        for name in "abc":
            np.testing.assert_allclose(permuted[name], expected[name], rtol=1e-12)


@pytest.mark.optimized
def test_replay_repeats_a_recorded_run(world):
    draws = Draws(world[1], key=5, participation=2)
    trace = [list(draws.participants(t)) for t in range(6)]
    assert len({tuple(ids) for ids in trace}) > 2
    replayed = run(world, participation=rk.Replay(trace))
    same(replayed, run(world), 1e-12)
    same(run(world, participation=rk.Replay([ids[::-1] for ids in trace])), replayed)  # listed in another order
    others = [[(i + 1) % N for i in ids] for ids in trace]
    assert np.abs(run(world, participation=rk.Replay(others)).x - replayed.x).max() > 1e-3


class TwoDraws(rk.Algorithm):
    """A step of y by the round's participants, another by fresh ones."""

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    eta_y: Any = 0.1

    def round(self):
        def client(local, down):
            return {"y": down["y"] - self.eta_y * local.g().grad_y(down["x"], down["y"])}

        def server(ctx, server, mean):
            return {**server, **mean}

        return (rk.Exchange(only("x", "y"), client, server), rk.Exchange(only("x", "y"), client, server, draw="fresh"))


@pytest.mark.optimized
def test_replay_repeats_unequal_draws_of_a_round(world):
    def go(participation):
        return rk.solve(world[0], TwoDraws(), world[1], X0, Y0, rounds=6, evaluate=nothing, key=5, every=6,
                        participation=participation)  # fmt: skip

    draws = Draws(world[1], key=5, participation=rk.Bernoulli(0.5))
    trace = [[list(draws.participants(t, number)) for number in (0, 1)] for t in range(6)]
    assert any(len(first) != len(second) for first, second in trace)
    same(go(rk.Replay(trace)), go(rk.Bernoulli(0.5)), 1e-12)
    assert np.abs(go(rk.Replay([each[::-1] for each in trace])).y - go(rk.Bernoulli(0.5)).y).max() > 1e-3


@pytest.mark.optimized
def test_replay_of_ragged_draws():
    replay = rk.Replay([[[0, 1], [2]], [3], [np.array([4, 2, 0]), [1]]])
    drawn = [[replay.draw(None, 5, t, number) for number in (0, 1, 2)] for t in range(4)]
    assert [[np.asarray(ids)[np.asarray(mask)].tolist() for ids, mask in each] for each in drawn] == [
        [[0, 1], [2], [2]], [[3], [3], [3]], [[0, 2, 4], [1], [1]], [[0, 2, 4], [1], [1]],
    ]  # fmt: skip


def test_schedules_take_whole_numbers():
    np.testing.assert_allclose([rk.Power(2, -1, 1)(t) for t in range(3)], [2, 1, 2 / 3])
    np.testing.assert_allclose([rk.Power(2, 0.5, 1)(t) for t in range(3)], [2, 2 * 2**0.5, 2 * 3**0.5])
    np.testing.assert_allclose([rk.Cosine(2, 0, 4)(t) for t in (0, 2, 4)], [2, 1, 0])


# --- lanes -----------------------------------------------------------------------------------------------------------

OTHER = {"eta_x": 0.03, "eta_y": 0.2, "eta_z": 0.02}


@pytest.mark.optimized
def test_a_lane_of_seeds_rates_and_starts_is_the_single_run(world):
    starts = [(X0, Y0), (X0 + 1, Y0), (-X0, 2 * Y0)]
    cases = [(RATES, 5, *starts[0]), (OTHER, 5, *starts[1]), (RATES, 9, *starts[2])]
    all_rates, keys, x0s, y0s = zip(*cases, strict=True)
    batch = {"rates": all_rates, "keys": list(keys), "x0": rk.Lanes(x0s), "y0": rk.Lanes(y0s)}
    many = run_many(world, **batch, every=2)
    for lane, (rates, key, x0, y0) in enumerate(cases):
        single = run(world, x0=x0, y0=y0, rates=rates, key=key)
        same(many.lane(lane), single, 1e-12, f"lane {lane}")
        np.testing.assert_allclose(many.x[lane], single.x, rtol=1e-11)
        assert many.history.lane(lane).last["bytes_up"] == single.history.last["bytes_up"]
    assert many.lanes == 3
    assert many.diverged == ()
    half = run_many(world, **batch, rounds=2)
    same(run_many(world, **batch, rounds=4, start=half), many)  # a batch can be continued as well


@pytest.mark.optimized
def test_a_lane_of_splits_is_the_single_run(world):
    _, _, splits = world
    order = [2, 0, 3, 1]  # the same data and sizes in another hand
    lower, upper_ = ([rows[i] for i in order] for _, rows in (splits["lower"], splits["upper"]))
    other = rk.Clients(rk.Split(splits["lower"][0], lower), rk.Split(splits["upper"][0], upper_), weights=P[::-1])
    many = run_many(world, [RATES] * 2, clients=[world[1], other], keys=5, rounds=3)
    same(many.lane(0), run(world, rounds=3), 1e-12, "lane 0")
    same(many.lane(1), run(world, clients=other, rounds=3), 1e-12, "lane 1")
    assert np.abs(many.x[0] - many.x[1]).max() > 1e-3


@pytest.mark.optimized
def test_a_grid_of_rates_compiles_once(world):
    """The loss is traced as often for new rates, rounds and periods as for those whose program is there."""

    def traced(call, **more):
        before = TRACED["upper"]
        call(world, **more)
        return TRACED["upper"] - before

    grid = [RATES, OTHER, RATES]
    run(world), run_many(world, grid, keys=[1, 2, 3])
    warm = traced(run), traced(run_many, rates=grid, keys=[1, 2, 3])
    assert traced(run, rates=OTHER, key=3, rounds=5, every=2) == warm[0]
    other = [{name: 0.5 * rate for name, rate in rates.items()} for rates in grid]
    assert traced(run_many, rates=other, keys=[4, 5, 6], rounds=5, every=2) == warm[1]
    assert traced(run, rates=OTHER, local_steps=1, rounds=1) > warm[0]  # the count does see a compilation


@pytest.mark.slow
def test_a_diverged_lane_is_frozen_and_the_others_go_on(world):
    wild = {**RATES, "eta_y": 1e120}
    many = run_many(world, [RATES, wild, OTHER], keys=[5, 5, 5], every=1, evaluate=lambda x, y: {"y": jnp.vdot(y, y)})
    (died,) = many.diverged
    assert died.lane == 1
    assert str(died) == f"lane 1: not finite in round {died.round}"
    why = many.why(1)
    assert (why.lane, why.round, why.exchange) == (1, died.round, 0)
    assert why.client in Draws(world[1], key=5, participation=2).participants(died.round)
    assert str(why).startswith("lane 1: ")
    assert "try smaller rates" in str(why)
    assert many.lane(1).why() == replace(why, lane=None)
    for lane in (0, None):
        with pytest.raises(ValueError, match=rf"lane must be one that diverged \(1\), got {lane}"):
            many.why(lane)
    for lane, rates in ((0, RATES), (2, OTHER)):
        same(many.lane(lane), run(world, rates=rates), 1e-12, f"lane {lane}")
    frozen = many.lane(1)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((frozen.x, frozen.y, frozen.state)))
    before = run(world, rates=wild, rounds=died.round) if died.round else None
    np.testing.assert_allclose(frozen.y, Y0 if before is None else before.y, rtol=1e-11)
    assert frozen.diverged[0].round == died.round
    assert len(set(many.history["y"][died.round :, 1])) == 1
    assert len(many.history) == 7


# --- divergence ------------------------------------------------------------------------------------------------------


class Blows(rk.Algorithm):
    """y of client 2 grows by 1e130 a local step; with ``at_server`` it is the server that divides by zero in round 2."""

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    at_server: bool = eqx.field(static=True, default=False)
    growth: Any = 1e130

    def round(self):
        first = rk.Exchange(lambda s: {"x": s["x"]}, lambda local, down: {"x": down["x"]}, lambda ctx, s, m: s)
        return (first, rk.Exchange(lambda s: s, self.client, self.server))

    def client(self, local, down):
        factor = 1.0 if self.at_server else jnp.where(local.id == 2, self.growth, 1.0)
        return {"y": local.loop(lambda k, y: factor * y, down["y"])}

    def server(self, ctx, server, mean):
        worse = jnp.where(ctx.round == 2, 1 / (0.0 * server["x"][0]), 1.0) if self.at_server else 1.0
        return {**server, "y": worse * mean["y"]}


def test_divergence_of_a_client_is_reported(world):
    """0.3·1e130² in round 0; in round 1 the factor is 1e390 after local step 1, first of all in exchange 1."""
    setting = {"rounds": 5, "every": 5, "local_steps": 2, "evaluate": nothing}
    with pytest.raises(rk.Diverged) as caught:
        rk.solve(world[0], Blows(), world[1], X0, Y0, **setting)
    where = caught.value.divergence
    assert (where.round, where.exchange, where.client, where.step, where.lane) == (1, 1, 2, 0, None)
    assert "y" in where.variable
    assert "client 2" in str(caught.value)
    assert "round 1, exchange 1" in str(caught.value)
    partial = caught.value.solution
    done = rk.solve(world[0], Blows(), world[1], X0, Y0, **{**setting, "rounds": 1})
    same(partial, done)
    np.testing.assert_allclose(partial.y, (0.3 * 1e260 + 0.7) * Y0, rtol=1e-12)
    assert partial.history["round"][0] == 0


@pytest.mark.slow
def test_a_diverged_lane_costs_nothing_until_somebody_asks(world, monkeypatch):
    repeated = []

    def diagnose(*asked):
        repeated.append(asked)
        return None, "some advice"

    monkeypatch.setattr(SIMULATOR, "diagnose", diagnose)
    setting = {"rounds": 5, "every": 1, "local_steps": 2, "evaluate": nothing}
    many = rk.solve_many(world[0], Blows(), world[1], X0, Y0, keys=[0, 1], **setting)
    assert [(each.lane, each.round) for each in many.diverged] == [(0, 1), (1, 1)]
    assert not repeated
    assert "some advice" in str(many.why(1))
    assert len(repeated) == 1


def test_a_diverged_lane_that_runs_by_itself_is_not_computed(world, monkeypatch):
    """A search has idle lanes, and a grid has lanes that diverged: only the others take time, and nothing else changes."""
    computed = []

    def counted(fixed, state):
        computed.append(int(fixed[2] - fixed[1]))
        return compiled_rounds(fixed, state)

    keys, lanes = [5, 6], [rk.FedBiO(**RATES), rk.FedBiO(**{**RATES, "eta_y": 1e200})]
    whole = rk.solve_many(world[0], lanes, world[1], X0, Y0, keys=keys, **SETTING, every=1)
    monkeypatch.setattr("rookery.engines.simulator.LARGE", 0)
    monkeypatch.setattr("rookery.engines.simulator.compiled_rounds", counted)
    many = rk.solve_many(world[0], lanes, world[1], X0, Y0, keys=keys, **SETTING, every=1)
    (stopped,) = many.diverged
    assert stopped.lane == 1
    assert len(computed) == SETTING["rounds"] + stopped.round + 1
    for name in ("bytes_up", "exchanges"):
        np.testing.assert_allclose(many.history[name], whole.history[name], rtol=1e-12)
    np.testing.assert_allclose(many.x, whole.x, rtol=1e-12)


@pytest.mark.parametrize("steps", [1, 2, 7, rk.Steps(3, 9)])
def test_the_local_step_that_broke_is_named(world, steps):
    """Client 2 starts with 1 and has 1e50^k after k steps: the seventh is beyond 1e308."""
    with pytest.raises(rk.Diverged) as caught:
        rk.solve(world[0], Blows(growth=1e50), world[1], X0, Y0 / Y0, rounds=9, local_steps=steps, evaluate=nothing)
    why, done = caught.value.divergence, caught.value.solution
    power = np.log10(np.abs(done.y).max()) // 1  # of ten, before the round
    assert (why.client, why.exchange) == (2, 1)
    assert why.step == (308 - power) // 50


class Singular(rk.Algorithm):
    """Divides by the difference of x and its start, which is 0 at any rate, at the client or at the server."""

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)
    eta_x: Any = 0.1
    at_server: bool = eqx.field(static=True, default=False)

    def round(self):
        return (rk.Exchange(lambda s: {"x": s["x"]}, self.client, self.server),)

    def client(self, local, down):
        return {"d": down["x"] if self.at_server else 1 / (down["x"] - local.x0)}

    def server(self, ctx, server, mean):
        return {**server, "x": server["x"] - self.eta_x * mean["d"] / (0.0 if self.at_server else 1.0)}


@pytest.mark.parametrize("at_server", [False, True])
def test_smaller_rates_are_not_advised_where_they_do_not_help(world, at_server):
    with pytest.raises(rk.Diverged, match=r"smaller rates do not help.*from numbers of at most \d") as caught:
        rk.solve(world[0], Singular(at_server=at_server), world[1], X0, Y0, rounds=2, evaluate=nothing)
    assert caught.value.divergence.variable == ("x" if at_server else "d")
    assert "try smaller" not in str(caught.value)


def test_names_of_what_is_not_finite_are_dotted():
    bad = jnp.array([1.0, np.inf])
    assert not_finite({"kept": {"y": bad}}) == "kept.y"
    assert not_finite({"a": jnp.ones(2), "layers": [jnp.zeros(1), bad]}) == "layers.1"
    assert not_finite(bad) == "value"
    assert not_finite({"n": jnp.arange(3), "y": jnp.ones(2)}) is None


def test_divergence_of_the_server_is_reported(world):
    with pytest.raises(rk.Diverged) as caught:
        rk.solve(world[0], Blows(at_server=True), world[1], X0, Y0, rounds=5, every=1, evaluate=nothing)
    where = caught.value.divergence
    assert (where.round, where.exchange, where.client, where.step) == (2, 1, None, None)
    assert "server" in str(caught.value)
    np.testing.assert_allclose(caught.value.solution.y, Y0)
    assert list(caught.value.solution.history["round"]) == [0, 1, 2, 3]


# --- metrics and the history -----------------------------------------------------------------------------------------


def test_metrics_may_be_constants(world):
    def evaluate(x, y):
        return {"python": 2.5, "jax": jnp.float32(3), "numpy": np.float64(4), "x": x[0]}

    history = run_many(world, [RATES, OTHER], keys=[1, 2], rounds=1, evaluate=evaluate).history
    for name, value in (("python", 2.5), ("jax", 3), ("numpy", 4)):
        np.testing.assert_array_equal(history[name], [[value, value]] * 2)
    assert run(world, rounds=1, evaluate=evaluate).history.last["python"] == 2.5


def test_metrics_in_numpy(world):
    def compiled(x, y):
        return {"big": jnp.where(x[0] > 0, 1.0, 2.0), "norm": jnp.sqrt(y @ y)}

    def by_hand(x, y):
        assert isinstance(np.asarray(x), np.ndarray)
        return {"big": 1.0 if x[0] > 0 else 2.0, "norm": np.linalg.norm(np.asarray(y))}

    one, other = (run(world, evaluate=each, every=1).history for each in (compiled, by_hand))
    for name in ("big", "norm"):
        np.testing.assert_allclose(one[name], other[name], rtol=1e-12)
        assert all(isinstance(row[name], float) for row in other)
    lanes = [RATES, OTHER, RATES]
    one, other = (run_many(world, lanes, keys=[5, 5, 9], evaluate=each).history for each in (compiled, by_hand))
    np.testing.assert_allclose(one["norm"], other["norm"], rtol=1e-12)
    assert one["norm"].shape == (len(one), 3)


def test_history(world, tmp_path):
    def metrics(x, y):
        return {"size": jnp.vdot(x, x)}

    history = run(world, evaluate=metrics, every=2).history
    counters = ["exchanges", "bytes_down", "bytes_up", "grad_f", "grad_g", "hvp", "jvp", "server_grad_f"]
    assert history.columns == ["round", *counters, "seconds", "size"]
    assert list(history["round"]) == [0, 2, 4, 6]
    assert list(history["exchanges"]) == [0, 2, 4, 6]
    assert list(history["bytes_up"]) == [0, *(np.array([2, 4, 6]) * 2 * 8 * (small.DX + 2 * small.DY))]
    assert (np.diff(history["seconds"]) >= 0).all()
    assert len(history) == 4
    assert history.last["size"] == history["size"][-1]
    with pytest.raises(KeyError, match=r"no column 'accuracy'; there are round"):
        history["accuracy"]
    history.to_csv(tmp_path / "one.csv")
    with open(tmp_path / "one.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == history.columns
    assert [float(row["size"]) for row in rows] == list(history["size"])
    many = run_many(world, [RATES, OTHER, RATES], keys=[5, 5, 9], evaluate=metrics, every=2).history
    assert many["bytes_up"].shape == (4, 3)
    np.testing.assert_allclose(many.lane(0)["size"], history["size"], rtol=1e-11)
    many.to_csv(tmp_path / "many.csv")
    with open(tmp_path / "many.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"round", "size[0]", "size[1]", "size[2]", "bytes_down[2]"} <= set(rows[0])
    assert float(rows[-1]["size[1]"]) == many["size"][-1, 1]


# --- T-03, T-09, T-10: every algorithm, whole sets, everybody --------------------------------------------------------

ORDER = np.array([2, 0, 1])
WEIGHTS = np.array([0.2, 0.5, 0.3])
OF_CLIENTS = ("x", "x_old", "d_x", "g_x", "Z")  # of client weighting: one entry or row a client
XS, YS = jnp.asarray([0.4, -0.3]), jnp.asarray([0.2, 0.5])


def simple_upper(x, y, batch):
    return (0.5 * batch["s"] * ((y - batch["b"]) ** 2).sum(1) + batch["a"] @ x).mean() + 0.5 * x @ x


def simple_lower(x, y, batch):
    return (0.5 * batch["s"] * ((y - x - batch["a"]) ** 2).sum(1)).mean()


def simple_objective(x, y, batch):
    return (0.5 * batch["s"] * (x @ x) + (batch["a"] @ x) * y.sum() - 0.5 * ((y - batch["b"]) ** 2).sum(1)).mean()


def simple_loss(w, batch):
    return (0.5 * batch["s"] * ((w - batch["a"]) ** 2).sum(1)).mean()


class Exact:
    """Runs of one algorithm on whole sets with everybody: clients of their own, all alike, permuted, one alone."""

    def __init__(self, name):
        self.name, self.kind = name, rk.registry[name]
        self.solves = self.kind.solves[0]
        level = "local" if self.solves == "bilevel-local" else "global"
        self.problem = {
            "minimax": rk.Minimax(simple_objective),
            "weighting": rk.ClientWeighting(simple_loss),
        }.get(self.solves, rk.Bilevel(simple_upper, simple_lower, lower_level=level))
        rng = np.random.default_rng(0)
        self.rows = rng.permutation(9).reshape(3, 3)
        owner = np.argsort(self.rows.ravel()) // 3
        self.data = {name: rng.standard_normal((9, 2)) + rng.standard_normal((3, 2))[owner] for name in "ab"}
        self.data["s"] = rng.uniform(0.5, 1.5, 9)
        no_steps = name.startswith("Dist") or self.solves == "weighting" or name in ("FBO-AggITD", "FBO-ITD", "FedMBO")
        self.steps = 1 if no_steps else 2

    def run(self, owners=(0, 1, 2), weights=WEIGHTS, x0=None, taking=None, shifted=None, **rates):
        data = dict(self.data)
        if shifted is not None:  # the data of this client
            data = {v: part + np.isin(np.arange(9), self.rows[shifted]).reshape(9, *[1] * (part.ndim - 1))
                    for v, part in data.items()}  # fmt: skip
        own = None if self.solves == "weighting" else weights
        clients = rk.Clients(rk.Split(data, self.rows[list(owners)]), weights=own, server=self.data)
        if x0 is None:
            x0 = jnp.asarray(weights) if self.solves == "weighting" else XS
        return rk.solve(self.problem, self.kind(**rates), clients, x0, YS, rounds=4, local_steps=self.steps,
                        participation=taking, evaluate=nothing, every=4)  # fmt: skip

    def others(self, y):
        """Without what client 1 has of its own."""
        return np.delete(y, 1, 0) if self.solves == "bilevel-local" else y

    def of_clients(self, name):
        return self.solves == "weighting" and name in OF_CLIENTS


def relabelling_clients_changes_nothing(exact):
    ours, theirs = exact.run(), exact.run(ORDER, WEIGHTS[ORDER])
    for name, value in ours.state.server.items():
        value = value[ORDER] if exact.of_clients(name) else value
        np.testing.assert_allclose(theirs.state.server[name], value, rtol=1e-11, atol=1e-13, err_msg=name)
    for one, other in zip(jax.tree.leaves(ours.state.keep), jax.tree.leaves(theirs.state.keep), strict=True):
        np.testing.assert_allclose(other, one[ORDER], rtol=1e-11, atol=1e-13)
    swapped = exact.run(ORDER, WEIGHTS)  # the data alone: that does matter
    moved = [np.abs(value - ours.state.server[name]).max() for name, value in swapped.state.server.items()]
    assert max(moved) > 1e-6 or exact.name in ("val", "avg")


def like_clients_are_one(exact):
    many, one = exact.run([1, 1, 1]), exact.run([1], np.ones(1))
    for name, value in one.state.server.items():
        if not exact.of_clients(name):
            np.testing.assert_allclose(many.state.server[name], value, rtol=1e-10, atol=1e-12, err_msg=name)
    for ours, theirs in zip(jax.tree.leaves(many.state.keep), jax.tree.leaves(one.state.keep), strict=True):
        np.testing.assert_allclose(ours, np.broadcast_to(theirs, ours.shape), rtol=1e-10, atol=1e-12)
    if exact.solves == "weighting":  # all clients are as good, and w does not depend on x
        x0 = jnp.asarray([0.7, 0.1, 0.2])
        other = exact.run([1, 1, 1], x0=x0)
        np.testing.assert_allclose(other.y, many.y, rtol=1e-10)
        if exact.name != "avg":
            np.testing.assert_allclose(other.x, x0, rtol=1e-10)


def rates(*names, clips=False):
    """For each variable the rates that move it."""
    return {v: {**{f"{n}_{v}": 0.0 for n in names}, **({f"clip_{v}": (0.0, 0.0)} if clips else {})} for v in "xyz"}


ETA, BOTH, CLIPPED = rates("eta"), rates("eta", "gamma"), rates("eta", "gamma", clips=True)
XY, XW, W = ({v: {f"eta_{v}": 0.0} for v in variables} for variables in ("xy", "xw", "w"))
FROZEN: dict[str, dict[str, dict[str, Any]]] = {  # of every algorithm: what stays, and the rates that are zero then
    "MeFBO": {v: {f"eta_{v}": 0.0, f"gamma_{v}": 0.0} for v in ("x", "y", "theta")},
    "SimFBO": BOTH,
    "ShroFBO": BOTH,
    "ASFBO": CLIPPED,
    "LA-ASFBO": CLIPPED,
    "FedBiO": ETA,
    "FedBiOAcc": ETA,
    "FedBiO-Local": XY,
    "FedBiOAcc-Local": XY,
    "Local SGDA": XY,
    "Local SGDA+": XY,
    "FedSGDA+": {"x": {"eta_x": 0.0}, "y": {"gamma_y": 0.0}},
    "FedSGDA-M": XY,
    "PrimalDual": {"x": {"eta_x": 0.0}, "w": {"eta_w": 0.0}, "lambda": {"eta_lambda": 0.0}},
    "FedNest": XY,
    "FedNest_random": XY,
    "FedNest_code": XY,
    "FedNest_SGD": XY,
    "LFedNest": XY,
    "LFedNest_SVRG": XY,
    "FedMBO": {"x": {"gamma_x": 0.0}, "y": {"gamma_y": 0.0}},
    "FBO-AggITD": {"x": {"gamma_x": 0.0}, "y": {"eta_y": 0.0}},
    "FBO-AggITD_SVRG": {"x": {"gamma_x": 0.0}, "y": {"eta_y": 0.0}},
    "FBO-ITD": {"x": {"gamma_x": 0.0}, "y": {"eta_y": 0.0}},
    "CommFedBiO": {"x": {"gamma_x": 0.0}, "y": {"eta_y": 0.0}},
    "Local-BSGVR": XY,
    "Local-BSGM": XY,
    "AdaFBiO": XY,
    "FedAvg": {"x y": {"eta_y": 0.0}, "x": {}},
    "DistBiO": XY,
    "DistBiOAcc": XY,
    "Momentum Local SGDA": XY,
    "FSGDA": XY,
    "SAGDA": XY,
    "CODA+": {"x y": {"eta": 0.0}},
    "CODASCA": {"x y": {"eta": 0.0}},
    "FedNest-minimax": XY,
    "LFedNest-minimax": XY,
    "PrimalDual_random": {"x": {"eta_x": 0.0}, "w": {"eta_w": 0.0}, "lambda": {"eta_lambda": 0.0}},
    "GD-CW": XW,
    "FedNest-CW": XW,
    "SUSTAIN-CW": XW,
    "SUSTAIN-CW_plain": XW,
    "SUSTAIN-CW_random": XW,
    "RFHO-CW": {"x": {"eta_x": 0.0}, "x w": {"eta_w": 0.0}},  # it differentiates the steps on w
    "RFHO-CW_forward": {"x": {"eta_x": 0.0}, "x w": {"eta_w": 0.0}},
    "AFL": XW,
    "val": {"x w": {"eta_w": 0.0}, "x": {}},
    "avg": W,
    "opt": {"x w": {"eta_w": 0.0}, "x": {}},
}
TIED = {  # what stays as well
    ("PrimalDual", "lambda"): {"x"},  # without a dual the weights do not move
    ("PrimalDual_random", "lambda"): {"x"},
    ("FedNest", "x"): {"z"},  # its series has the step of x
    ("FedNest_random", "x"): {"z"},
    ("FedNest_code", "x"): {"z"},
    ("FedNest_SGD", "x"): {"z"},
}


def a_frozen_variable_stays_and_the_others_move(exact):
    start = {
        "x": WEIGHTS if exact.solves == "weighting" else XS,
        "y": YS,
        "w": YS,
        "theta": YS,
        "z": 0.0,
        "lambda": 0.0,
    }
    for variables, zero in FROZEN[exact.name].items():
        state = exact.run(**zero).state
        held = {**(state.keep or {}), **state.server}
        frozen = {*variables.split(), *TIED.get((exact.name, variables), ())}
        assert frozen <= held.keys()
        for v in start.keys() & held.keys():
            moved = np.abs(held[v] - start[v]).max()
            assert moved <= 1e-15 if v in frozen else moved > 1e-4, (variables, v, moved)


def who_is_absent_has_no_say(exact):
    """Other data of a client that never takes part change nothing; those of one that does change something."""
    away = exact.run(taking=rk.Replay([[0, 2]]))
    for changed in (1, 2):
        other = exact.run(taking=rk.Replay([[0, 2]]), shifted=changed)
        pairs = [(other.x, away.x), (exact.others(other.y), exact.others(away.y))]
        moved = max(np.abs(a - b).max() for a, b in pairs)
        assert moved == 0 if changed == 1 or exact.name == "val" else moved > 1e-6, changed


def test_every_algorithm_has_a_line_in_the_table_of_rates():
    assert set(FROZEN) == set(rk.registry)
    assert {name for name, _ in TIED} <= set(FROZEN)


@pytest.mark.parametrize("name", quick_ones(rk.registry, {"MeFBO", "ASFBO", "PrimalDual"}))
def test_T03_T09_T10(name):
    """In one test, for they share two programs: three clients, and one."""
    exact = Exact(name)
    if name != "FedMBO":  # it deals by lot
        relabelling_clients_changes_nothing(exact)
        like_clients_are_one(exact)
    a_frozen_variable_stays_and_the_others_move(exact)
    who_is_absent_has_no_say(exact)


# --- T-04, T-05: who takes part --------------------------------------------------------------------------------------


def weighted(weighting, v, ids, p, server=None, slots=None):
    mask = jnp.arange(slots or len(ids)) < len(ids)
    ids = jnp.asarray([*ids, *([ids[0]] * (len(mask) - len(ids)))])
    return np.asarray(participant_weights(weighting, server, jnp.asarray(p), ids, mask)) @ v[np.asarray(ids)]


def test_T04_direction_weights_are_unbiased_over_all_subsets():
    rng = np.random.default_rng(0)
    p, v = rng.dirichlet(np.ones(5)), rng.standard_normal((5, 3))
    subsets = list(itertools.combinations(range(5), 2))
    mean = np.mean([weighted("direction", v, ids, p) for ids in subsets], axis=0)
    np.testing.assert_allclose(mean, p @ v, rtol=1e-12)
    np.testing.assert_allclose(weighted("direction", v, range(5), p), p @ v, rtol=1e-12)
    np.testing.assert_allclose(weighted("average", v, range(5), p), p @ v, rtol=1e-12)
    ids = [1, 4]
    np.testing.assert_allclose(weighted("average", v, ids, p), p[ids] @ v[ids] / p[ids].sum(), rtol=1e-12)
    np.testing.assert_allclose(weighted("average", v, ids, p, slots=4), weighted("average", v, ids, p), rtol=1e-15)


def test_T05_active_probability_is_unbiased_over_all_sets():
    rng = np.random.default_rng(1)
    q, v, a = 0.3, rng.standard_normal((4, 3)), jnp.asarray(rng.dirichlet(np.ones(4)))
    mean, total = 0, 0
    for size in range(1, 5):
        for ids in itertools.combinations(range(4), size):
            chance = q**size * (1 - q) ** (4 - size)
            mean = mean + chance * weighted(lambda server, ids: server[ids], v, ids, np.full(4, 0.25), a, slots=4)
            total += chance
    np.testing.assert_allclose(mean / total, np.asarray(a) @ v, rtol=1e-12)


def drawn(participation, n, count, seed=0):
    """(ids, mask) of ``count`` rounds, as the engine draws them."""
    key = as_key(seed)
    draw = jax.jit(jax.vmap(lambda t: participation.draw(fold(key, PARTICIPANTS, t, 0), n, t)))
    return (np.asarray(each) for each in draw(jnp.arange(count)))


def subsets_of(participation, n, count):
    ids, mask = drawn(participation, n, count)
    codes = np.where(mask, 1 << ids, 0).sum(1)
    assert (np.diff(np.where(mask, ids, n + np.arange(ids.shape[1])), axis=1) > 0).all()  # increasing: no client twice
    assert (ids < n).all()
    assert (ids >= 0).all()
    return np.bincount(codes, minlength=1 << n)


def test_uniform_participation_is_uniform_over_subsets():
    found = subsets_of(rk.Uniform(2), 5, 20_000)
    expected = [bin(code).count("1") == 2 for code in range(32)]
    assert (found[~np.array(expected)] == 0).all()
    assert stats.chisquare(found[expected]).pvalue > 0.01
    single = np.concatenate([subsets_of(rk.Uniform(1), 5, 5_000)[1 << np.arange(5)]])
    assert stats.chisquare(single).pvalue > 0.01
    assert (subsets_of(rk.Uniform(5), 5, 10)[31:] == 10).all()


def test_bernoulli_participation_has_the_conditional_probabilities():
    n, q, count = 4, 0.3, 20_000
    sizes = np.array([bin(code).count("1") for code in range(1 << n)])
    chance = q**sizes * (1 - q) ** (n - sizes)
    chance[0] = 0
    found = subsets_of(rk.Bernoulli(q), n, count)
    assert found[0] == 0  # never nobody
    assert stats.chisquare(found[1:], count * chance[1:] / chance.sum()).pvalue > 0.01
    assert (subsets_of(rk.Bernoulli(1.0), n, 5)[15:] == 5).all()


def test_bernoulli_participation_of_many_clients_needs_few_slots():
    n, q = 1000, 0.01
    assert rk.Bernoulli(q).slots(n) < 40
    ids, mask = drawn(rk.Bernoulli(q), n, 5_000)
    assert mask.any(1).all()
    active = mask.sum(1)
    exact_mean = n * q / (1 - (1 - q) ** n)
    assert abs(active.mean() - exact_mean) < 4 * np.sqrt(n * q / len(active))
    often = np.bincount(ids[mask], minlength=n)
    assert stats.chisquare(often.reshape(20, 50).sum(1)).pvalue > 0.01
    assert all(len(set(row[use])) == use.sum() for row, use in zip(ids[:200], mask[:200], strict=True))


def test_participants_of_other_rounds_and_keys_are_others():
    one, other = (tuple(drawn(rk.Uniform(3), 50, 20, seed)) for seed in (0, 1))
    assert len({tuple(row) for row in one[0]}) > 15
    assert (one[0] != other[0]).any()


def test_random_steps_are_uniform_for_each_client_and_round_and_reproducible():
    steps, key = rk.Steps(2, 5), as_key(3)
    draw = jax.jit(jax.vmap(jax.vmap(steps.draw, (None, 0, None)), (None, None, 0)))
    table = np.asarray(draw(key, jnp.arange(50), jnp.arange(100)))
    assert stats.chisquare(np.bincount(table.ravel(), minlength=6)[2:]).pvalue > 0.01
    assert table.min() == 2
    assert table.max() == 5
    assert (np.std(table, axis=0) > 0).all()  # a client's number changes from round to round
    assert (np.std(table, axis=1) > 0).all()  # and differs from client to client in a round
    pairs = np.zeros((4, 4))
    np.add.at(pairs, (table[:, :-1] - 2, table[:, 1:] - 2), 1)
    assert stats.chi2_contingency(pairs).pvalue > 0.01
    np.testing.assert_array_equal(draw(key, jnp.arange(50)[::-1], jnp.arange(100)), table[:, ::-1])
    p = np.random.default_rng(0).dirichlet(np.ones(50))
    np.testing.assert_allclose(steps.mean(key, 7, jnp.asarray(p)), p @ table[7], rtol=1e-12)
    assert rk.Steps(4, 4).draw(key, 0, 0) == 4
    assert (np.asarray(draw(as_key(4), jnp.arange(50), jnp.arange(100))) != table).mean() > 0.7


# --- draws -----------------------------------------------------------------------------------------------------------


def test_threefry_is_that_of_jax():
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, (20, 4), np.uint64).astype(np.uint32)
    for k0, k1, x0, x1 in words:
        ours = _threefry(*(jnp.asarray(word) for word in (k0, k1, x0, x1)))
        np.testing.assert_array_equal(ours, threefry_2x32(jnp.array([k0, k1]), jnp.array([x0, x1])))
    key = jax.random.key(7)
    folded = jax.random.fold_in(jax.random.fold_in(key, 3), 2**31 + 5)
    np.testing.assert_array_equal(jax.random.key_data(fold(key, 3, 2**31 + 5)), jax.random.key_data(folded))


def test_integer_draws_are_uniform_and_have_names_of_their_own():
    stream = Stream(as_key(0), 1, 2)
    ones = np.asarray(stream.integers(30_000, 7, 0, "x"))
    assert stats.chisquare(np.bincount(ones, minlength=7)).pvalue > 0.01
    assert ones.dtype == np.int32
    others = {
        "step": stream.integers(30_000, 7, 1, "x"),
        "name": stream.integers(30_000, 7, 0, "y"),
        "number": stream.integers(30_000, 7, 0, "x", 1),
        "client": Stream(as_key(0), 1, 3).integers(30_000, 7, 0, "x"),
    }
    for what, other in others.items():
        agree = (np.asarray(other) == ones).mean()
        assert abs(agree - 1 / 7) < 0.02, what  # as often as independent draws do
    np.testing.assert_array_equal(stream.integers(11, 7, 0, "x")[:5], ones[:5])
    below = jnp.asarray([1, 2, 1000])
    assert (np.asarray(stream.integers(3, below, 0, "x")) < np.asarray(below)).all()


def test_draws_do_not_depend_on_the_precision():
    @jax.jit
    def draws(key):
        ids, mask = rk.Bernoulli(0.4).draw(key, 9, 0)
        chosen, _ = rk.Uniform(3).draw(key, 9, 0)
        return [ids, mask, chosen, Stream(key, 1).integers(20, 11, 2, "x"), rk.Steps(1, 9).draw(key, 4, 2)]

    double = [np.asarray(each) for each in draws(as_key(3))]
    with jax.enable_x64(False):
        single = [np.asarray(each) for each in draws(as_key(3))]
    for a, b in zip(double, single, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.optimized
def test_float32_and_float64_runs_see_the_same_batches(world):
    clients = world[1]
    single = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == jnp.float64 else leaf, clients)
    ours = run(world, x0=X0.astype(jnp.float32), y0=Y0.astype(jnp.float32), clients=single)
    theirs = run(world)
    assert ours.x.dtype == jnp.float32
    np.testing.assert_allclose(ours.x, theirs.x, rtol=2e-5)
    assert np.abs(run(world, key=6).x - theirs.x).max() > 1e-3


@pytest.mark.optimized
@pytest.mark.parametrize("name", quick_ones(rk.registry, ONE_OF_EACH_KIND))
def test_a_float32_run_stays_float32_beside_float64_ones(name):
    """Traced, not run: the loop over rounds refuses a state that changes its dtype."""
    exact = Exact(name)
    data = {key: each.astype(np.float32) for key, each in exact.data.items()}
    clients = rk.Clients(rk.Split(data, exact.rows), server=data)
    x0, y0 = jnp.full(3 if exact.solves == "weighting" else 2, 1 / 3, jnp.float32), YS.astype(jnp.float32)
    steps = 1 if exact.steps == 1 or name == "FedMBO" else 2 if name in EQUAL_STEPS else rk.Steps(1, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = single(exact.problem, exact.kind(), clients, x0, y0, local_steps=steps, batch_size=2, participation=2)
        run = prepare(given).run
        state = replace(run.initial_state(), round=None)
        after, _ = eqx.filter_eval_shape(compiled_rounds, (run.setting, jnp.int32(0), jnp.int32(1), None, None), state)
    assert jax.tree.map(jnp.result_type, after.server) == jax.tree.map(jnp.result_type, state.server)


def test_equal_weights_by_default_have_the_precision_of_the_model():
    data = [np.ones((2, 2), np.float32)] * 3
    clients, w = rk.Clients(data, server=data[0]), jnp.ones(2, jnp.float32)
    problem = rk.ClientWeighting(lambda w, batch: ((batch @ w) ** 2).mean())
    run = prepare(single(problem, rk.PrimalDual(), clients, None, w)).run
    assert run.x.dtype == jnp.float32


class Probe(rk.Algorithm):
    """Asks every client for the slope of f, which is the loss's own random number, at two points, steps and draws."""

    solves: ClassVar[tuple[str, ...]] = ("bilevel",)

    def init(self, x, y):
        return {"x": x, "y": y, "seen": jnp.zeros((N, 2, 2, 2))}

    def round(self):
        return (rk.Exchange(lambda s: {"x": s["x"]}, self.client, self.server, weighting="stack"),)

    def client(self, local, down):
        def slopes(k, draw):
            f = local.f(k, draw)
            return jnp.stack([f.grad_x(down["x"] + shift, jnp.zeros(1))[0] for shift in (0.0, 5.0)])

        return {"seen": jnp.stack([jnp.stack([slopes(k, draw) for draw in "xz"]) for k in (0, 1)])}

    def server(self, ctx, server, stacked):
        return {**server, "seen": stacked["seen"]}


def test_a_loss_gets_a_key_for_each_client_step_and_draw():
    def random_slope(x, y, batch, key):
        return jax.random.uniform(key) * x.sum() + 0 * batch.mean()

    problem = rk.Bilevel(random_slope, lambda x, y, batch: y @ y)
    clients = rk.Clients([np.ones(2)] * N)
    seen = []
    solution = None
    for _ in range(2):
        solution = rk.solve(problem, Probe(), clients, jnp.zeros(2), jnp.zeros(1), rounds=1, batch_size=2, evaluate=nothing,
                            start=solution)  # fmt: skip
        seen.append(np.asarray(solution.state.server["seen"]))
    seen = np.stack(seen)  # round, client, step, draw, point
    assert seen.shape == (2, N, 2, 2, 2)
    np.testing.assert_array_equal(seen[..., 0], seen[..., 1])  # STORM's two points: the same key
    assert len(np.unique(seen)) == 2 * N * 2 * 2  # all others differ
    assert ((seen > 0) & (seen < 1)).all()


# --- data ------------------------------------------------------------------------------------------------------------

SIZES = [1, 3, 700]


@pytest.fixture(scope="module")
def uneven():
    problem, splits = small.make_bilevel(3, seed=2, sizes=SIZES)
    clients = rk.Clients(rk.Split(*splits["lower"]), rk.Split(*splits["upper"]), weights=WEIGHTS)
    return problem, splits, clients


def test_whole_sets_of_very_different_sizes_equal_a_loop_in_numpy(uneven):
    problem, splits, clients = uneven
    flat = Flat(rk.Bilevel(small.upper, small.lower), Layout.of(X0, "x0"), Layout.of(Y0, "y0"))
    x, y, z = np.asarray(X0), np.asarray(Y0), np.linspace(1, -1, small.DY)

    @jax.jit
    def oracles(i):
        f = Objective(on_whole_set(flat.upper, clients.upper, i, lambda: as_key(0), i))
        g = Objective(on_whole_set(flat.lower, clients.lower, i, lambda: as_key(0), i))
        return f.grad(X0, Y0), g.grad_x(X0, Y0), g.second(X0, Y0, jnp.asarray(z))

    sums = [0, 0]
    for i in range(3):
        f_rows, g_rows = splits["upper"][1][i], splits["lower"][1][i]
        assert (len(f_rows), len(g_rows)) == (SIZES[i], SIZES[2 - i])
        (f_x, f_y), g_x, (g_y, g_xy_z, g_yy_z) = oracles(jnp.int32(i))
        expected = [problem.f_x(x, y, f_rows), problem.f_y(x, y, f_rows), problem.g_x(x, y, g_rows)]
        expected += [problem.g_y(x, y, g_rows), problem.g_xy(x, y, g_rows) @ z, problem.g_yy(x, y, g_rows) @ z]
        for ours, theirs in zip((f_x, f_y, g_x, g_y, g_xy_z, g_yy_z), expected, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-13)
        sums[0] = sums[0] + WEIGHTS[i] * problem.f_x(x, y, f_rows)
        sums[1] = sums[1] + WEIGHTS[i] * problem.g_y(x, y, g_rows)
    F, G = objectives(flat, clients)
    np.testing.assert_allclose(F.grad_x(X0, Y0), sums[0], rtol=1e-10)
    np.testing.assert_allclose(G.grad_y(X0, Y0), sums[1], rtol=1e-10)


def test_a_run_on_whole_sets_of_very_different_sizes_equals_its_transcription(uneven):
    problem, _, clients = uneven
    rates = dict.fromkeys(("eta_x", "eta_y", "eta_theta", "gamma_x", "gamma_y", "gamma_theta"), 0.1)
    rates |= {"c": 2.0, "nu": 1.5}
    draws = Draws(clients, key=1, participation=2)
    states = paper.mefbo(problem, draws, np.asarray(X0), np.asarray(Y0), rounds=3, **rates)
    solution = rk.solve(rk.Bilevel(small.upper, small.lower), rk.MeFBO(**rates), clients, X0, Y0, rounds=3, key=1,
                        participation=2, evaluate=nothing)  # fmt: skip
    for name, value in states[-1].items():
        np.testing.assert_allclose(solution.state.server[name], value, rtol=1e-9, atol=1e-12)


def test_a_split_stores_no_padded_copies():
    rows = [1, 1, 1, 50_000]
    data = [{"image": np.zeros((size, 10), np.uint8), "label": np.zeros(size, np.int32)} for size in rows]
    clients = rk.Clients(data)
    examples = sum(rows) * (10 + 4)

    def bytes_of(tree):
        unique = {id(leaf): leaf for leaf in jax.tree.leaves(tree)}
        return sum(leaf.nbytes for leaf in unique.values())

    assert bytes_of(clients) <= examples + 1000  # both splits, the tables of 4 clients and their weights
    shuffled = rk.Split({"image": np.zeros((1000, 10), np.uint8)}, [np.arange(500)[::-1], np.arange(500, 1000)])
    assert bytes_of(shuffled) <= 1000 * 10 + 4 * 1000 + 100  # an index of 4 bytes an example
    shared = rk.Split.shared({"image": np.zeros((1000, 10), np.uint8)}, 100)
    assert bytes_of(shared) <= 1000 * 10 + 100 * 8 + 100


# --- variables are any pytrees ---------------------------------------------------------------------------------------


class Head(eqx.Module):
    weight: jax.Array
    table: jax.Array  # integers: does not move
    activation: Any
    width: int = eqx.field(static=True)


def head():
    return Head(jnp.arange(6.0).reshape(2, 3), jnp.arange(4), jnp.tanh, 3)


@pytest.mark.parametrize(
    ("tree", "size"),
    [
        (jnp.arange(3.0), 3),
        (2.5, 1),
        ({"b": jnp.ones((2, 2)), "a": (jnp.zeros(()), [np.full(3, 2.0)])}, 8),
        (head(), 6),
        (eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0)), 13),
        ({"half": jnp.ones(2, jnp.float32), "full": jnp.full(2, 0.1, jnp.float64), "n": 3, "f": jnp.sin}, 4),
    ],
    ids=["vector", "number", "dict", "module", "network", "mixed"],
)
def test_layout_round_trips(tree, size):
    layout = Layout.of(tree, "x0")
    vector = layout.ravel(tree)
    assert vector.shape == (size,) == (layout.size,)
    back = layout.unravel(vector)
    assert jax.tree.structure(back) == jax.tree.structure(tree)
    for one, other in zip(jax.tree.leaves(back), jax.tree.leaves(tree), strict=True):
        if eqx.is_array_like(other):
            np.testing.assert_array_equal(one, other)
            assert jnp.result_type(one) == jnp.result_type(other)
        else:
            assert one is other
    assert Layout.of(tree, "x0") == layout
    assert hash(Layout.of(tree, "x0")) == hash(layout)
    np.testing.assert_array_equal(layout.ravel(layout.unravel(2 * vector)), 2 * vector)


def test_variables_that_are_modules_and_dictionaries():
    """x = {scale, table of integers}, y an Equinox module: only their floats move."""
    rng = np.random.default_rng(0)
    data = [{"a": rng.standard_normal((4, 3)), "t": rng.standard_normal((4, 2))} for _ in range(3)]

    def lower(x, y, batch):
        out = y.activation(batch["a"] * x["scale"][x["pick"]] @ y.weight.T)
        return ((out - batch["t"]) ** 2).sum(1).mean() + 0.1 * (y.weight**2).sum()

    def upper_(x, y, batch):
        return lower(x, y, batch) + 0.01 * (x["scale"] ** 2).sum()

    x0, y0 = {"scale": jnp.ones(2), "pick": jnp.array([0, 1, 0])}, head()
    solution = rk.solve(rk.Bilevel(upper_, lower), rk.FedBiO(), rk.Clients(data), x0, y0, rounds=20, every=10)
    assert isinstance(solution.y, Head)
    assert solution.y.activation is jnp.tanh
    np.testing.assert_array_equal(solution.x["pick"], x0["pick"])
    assert (solution.x["scale"] != 1).all()
    assert solution.history["lower_loss"][-1] < 0.7 * solution.history["lower_loss"][0]


class Doubled(rk.FedBiO):
    """What it gives back depends on a rate."""

    factor: Any = 2.0

    def output(self, server, keep):
        return self.factor * server["x"], server["y"]


def test_the_output_of_an_algorithm_may_use_its_rates(world):
    lanes = [Doubled(**RATES), Doubled(**RATES, factor=3.0)]
    many = rk.solve_many(world[0], lanes, world[1], X0, Y0, keys=5, **{**SETTING, "rounds": 1})
    np.testing.assert_allclose(many.x / many.state.server["x"], [[2.0] * small.DX, [3.0] * small.DX], rtol=1e-12)


@pytest.mark.parametrize("large", [slow(False), True])
def test_any_number_of_lanes_is_dealt_out_to_threads(world, monkeypatch, large):
    """Three lanes do not share out evenly, and those of a large problem go one by one: each is the run by itself."""
    if large:
        monkeypatch.setattr("rookery.engines.simulator.LARGE", 0)
    for number in (2,) if large else (3, 4):
        many = run_many(world, [RATES] * number, keys=range(number))
        for lane in range(number):
            alone = run(world, key=lane)
            np.testing.assert_allclose(many.x[lane], alone.x, rtol=1e-12)
            np.testing.assert_allclose(many.y[lane], alone.y, rtol=1e-12)


@pytest.mark.parametrize("at_once", [slow(1), 2])
def test_idle_clients_change_nothing_in_groups(world, at_once):
    together = run(world, participation=rk.Bernoulli(0.4))
    groups = run(world, participation=rk.Bernoulli(0.4), engine=rk.Simulator(at_once))
    np.testing.assert_allclose(groups.x, together.x, rtol=1e-12)
    np.testing.assert_allclose(groups.y, together.y, rtol=1e-12)


# --- one problem as another ------------------------------------------------------------------------------------------


def test_client_weighting_as_bilevel():
    """f_i = ½|w − c_i|², f_0 = ½|w − c_0|²: w*(x) = Σ x_i c_i, so x solves if Σ x_i c_i = c_0."""
    c = np.array([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    best = np.array([0.6, 0.3, 0.1])
    problem = rk.ClientWeighting(lambda w, batch: 0.5 * ((w - batch) ** 2).sum(1).mean())
    clients = rk.Clients([row[None] for row in c], server=best[None] @ c)
    solution = rk.solve(problem.as_bilevel(), rk.FedBiO(eta_x=0.05, eta_y=0.3, eta_z=0.3), clients.share_server(),
                        jnp.full(3, 1 / 3), jnp.zeros(2), rounds=800, every=800)  # fmt: skip
    np.testing.assert_allclose(solution.x, best, atol=1e-6)
    np.testing.assert_allclose(solution.y, best @ c, atol=1e-6)


def test_minimax_as_bilevel():
    """f = ½|x|² + aᵀx + xᵀSy − ½|y|² + bᵀy: y* = Sᵀx + b, x* = −(I + SSᵀ)⁻¹(a + Sb), z* = 0."""
    rng = np.random.default_rng(2)
    a, b, S = rng.standard_normal((3, 2)), rng.standard_normal((3, 3)), 0.5 * rng.standard_normal((3, 2, 3))

    def objective(x, y, batch):
        both = jnp.einsum("i,nij,j->n", x, batch["S"], y)
        return 0.5 * x @ x - 0.5 * y @ y + (batch["a"] @ x + batch["b"] @ y + both).mean()

    clients = rk.Clients([{"a": a[[i]], "b": b[[i]], "S": S[[i]]} for i in range(3)])
    problem = rk.Minimax(objective).as_bilevel()
    solution = rk.solve(problem, rk.FedBiO(eta_x=0.2, eta_y=0.3, eta_z=0.3), clients, jnp.ones(2), jnp.ones(3), rounds=300,
                        every=300, evaluate=nothing)  # fmt: skip
    a, b, S = a.mean(0), b.mean(0), S.mean(0)
    best = -np.linalg.solve(np.eye(2) + S @ S.T, a + S @ b)
    np.testing.assert_allclose(solution.x, best, atol=1e-6)
    np.testing.assert_allclose(solution.y, S.T @ best + b, atol=1e-6)
    np.testing.assert_allclose(solution.state.server["z"], 0, atol=1e-6)


def test_binomial_table_is_exact():
    """The number of active clients: binomial without zero."""
    n, q = 70, 0.05
    _, mask = drawn(rk.Bernoulli(q), n, 20_000)
    k = np.arange(1, 9)
    chance = comb(n, k) * q**k * (1 - q) ** (n - k) / (1 - (1 - q) ** n)
    found = np.bincount(mask.sum(1), minlength=n + 1)
    expected = 20_000 * np.append(chance, 1 - chance.sum())
    assert stats.chisquare(np.append(found[1:9], found[9:].sum()), expected).pvalue > 0.01
