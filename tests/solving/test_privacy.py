"""Private rounds: what is clipped, how noise is scaled, what is spent, and when a run stops."""

import json
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.aggregation.accounting import Ledger, Sampling
from rookery.aggregation.privacy import WITHIN, ClientPrivacy, secret_normals
from rookery.algorithm.exchange import Exchange, count_stages, exchanges
from rookery.algorithm.intake import Intake
from rookery.algorithm.setting import initial_state
from rookery.engines.flower.engine import Over
from rookery.engines.flower.rules import FederationError
from rookery.engines.flower.wire.pack import pack, unpack
from rookery.engines.flower.wire.requests import Work, read_request
from rookery.engines.flower.wire.transport import Direct
from rookery.problem.keys import as_key
from rookery.solving.prepare import prepare, single
from rookery.solving.spending import account_of, draws_of, names_participants, sampling_of
from tests.engines.flower.test_flower import Case, assert_close
from tests.engines.flower.test_secure import Wire, still
from tests.helpers import parity
from tests.helpers.marks import slow

N = parity.N
HOW = {"rounds": 4, "progress": False, "evaluate": parity.nothing}
ALMOST_NO_NOISE = 1e-13


def private(**more):
    return ClientPrivacy(**{"clip": 0.3, "noise": ALMOST_NO_NOISE, "delta": 1e-3, **more})


def solved(name, privacy, **more):
    task, how = parity.make_case(name)
    return rk.solve(*task, **{**how, **HOW, "privacy": privacy, **more})


# --- what is computed


def clipped(v, most):
    return v * min(1.0, most / max(np.linalg.norm(v), 1e-300))


def test_a_round_of_averages_is_the_way_from_what_was_broadcast_clipped_and_weighted_by_fixed_weights():
    """FedAvg: y ← y + Σ_{i in C} (n/|C|) p_i clip(y_i − y)."""
    task, how = parity.make_case("FedBiO")
    n, weights = N, np.arange(1, N + 1) / (N * (N + 1) / 2)
    trace = [0, 2, 5]
    how = {**how, **HOW, "rounds": 1, "participation": rk.Replay([trace])}
    alone = [rk.solve(*task, **{**how, "participation": rk.Replay([[i]])}) for i in trace]
    found = rk.solve(*task, **how, privacy=private(clip=0.05, by="part"))
    for part, start, read in (("x", task[3], lambda s: s.x), ("y", task[4], lambda s: s.y)):
        start = np.asarray(start)
        ways = [clipped(np.asarray(read(each)) - start, 0.05) for each in alone]
        moved = sum(n / 3 * weights[i] * way for i, way in zip(trace, ways, strict=True))
        np.testing.assert_allclose(read(found), start + moved, atol=1e-11, err_msg=part)
        assert max(np.linalg.norm(np.asarray(read(each)) - start) for each in alone) > 0.05, "something was clipped"


def upload(a):
    up = {"a": jnp.array([a, 4.0]), "b": jnp.array([0.1])}
    return up, jax.tree.map(jnp.zeros_like, up)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e300])
@pytest.mark.parametrize("by", ["part", "whole"])
def test_an_upload_that_is_not_finite_counts_as_nothing(by, bad):
    """Else one client could be told by the sum, whatever the noise."""
    found = private(clip=1.0, by=by).clipped(*upload(bad), None)
    np.testing.assert_array_equal(found["a"], 0)
    np.testing.assert_allclose(found["b"], 0.1 if by == "part" else 0)


def test_a_client_whose_numbers_are_not_finite_does_not_end_a_private_run():
    """FedSGDA-M's clients keep what they have computed, too."""
    values = [np.full((2, 1), float(client or -1)) for client in range(N)]  # of −1 there is no root
    problem = rk.Minimax(lambda x, y, batch: jnp.sum(x * jnp.sqrt(batch).mean()) - jnp.sum(y**2) + jnp.sum(x**2))
    task = problem, rk.FedSGDAM(), rk.Clients(values), jnp.ones(1), jnp.ones(1)
    with pytest.raises(rk.Diverged):
        rk.solve(*task, **HOW)
    found = rk.solve(*task, **HOW, privacy=private(noise=0.1))
    assert int(found.state.round) == HOW["rounds"]
    assert np.isfinite(found.x).all()


@pytest.mark.parametrize(("by", "number"), [("part", 2), ("whole", 1)])
def test_a_clip_that_adapts_is_told_one_number_for_each_length(by, number):
    """Their noise is scaled for as many: more would be told with too little of it."""
    found = private(clip=rk.AdaptiveClip(), by=by).clipped(*upload(3.0), jnp.array([1.0, 1.0]))
    np.testing.assert_array_equal(found[WITHIN], [-0.5, 0.5][:number])


@pytest.mark.parametrize("by", ["part", "whole"])
def test_the_clip_bounds_an_upload(by):
    found = private(clip=1.0, by=by).clipped(*upload(3.0), None)
    lengths = [np.linalg.norm(found["a"]), np.linalg.norm(found["b"])]
    if by == "part":
        np.testing.assert_allclose(lengths, [1.0, 0.1], rtol=1e-6)
    else:
        np.testing.assert_allclose(np.hypot(*lengths), 1.0, rtol=1e-6)
        np.testing.assert_allclose(lengths[0] / lengths[1], 50, rtol=1e-5)


def some(quick, *slow):
    """All of them, of which those after the first are slow."""
    return [quick, *(pytest.param(each, marks=pytest.mark.slow) for each in slow)]


GROUPS = [
    ("Local SGDA", rk.AdaptiveClip(start=0.1)),
    *(slow(name, rk.AdaptiveClip(start=0.1)) for name in ("FedBiOAcc", "PrimalDual")),
    slow("FedBiO", 0.3),
]


@pytest.mark.parametrize(("name", "clip"), GROUPS)
def test_groups_devices_and_lanes_are_as_private_as_one_device(name, clip):
    privacy = private(clip=clip, noise=0.5)
    plain = solved(name, privacy)
    assert float(plain.history.last["epsilon"]) > 0
    groups = solved(name, privacy, engine=rk.Simulator(clients_at_once=2))
    devices = solved(name, privacy, engine=rk.Simulator(devices=2))
    task, how = parity.make_case(name)
    how = {**how, **HOW, "privacy": privacy}
    key = how.pop("key", 0)
    lanes = rk.solve_many(task[0], task[1], task[2], task[3], task[4], keys=[key, 5], **how)
    for other in (groups, devices):
        np.testing.assert_allclose(other.x, plain.x, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(other.y, plain.y, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(lanes.x[0], plain.x, rtol=1e-9, atol=1e-11)
    assert not np.allclose(lanes.x[1], plain.x), "another key is other noise"
    assert lanes.history.last["epsilon"] == plain.history.last["epsilon"]


@pytest.mark.parametrize("name", some("PrimalDual", "FedBiO", "MeFBO", "FedBiOAcc", "FedSGDA+"))
@pytest.mark.parametrize("clip", some(0.3, rk.AdaptiveClip(start=0.1)))
def test_nodes_clip_as_the_simulator_does(name, clip):
    """With next to no noise, which nodes' servers draw elsewhere."""
    case = Case(rk.registry[name]())
    how = {"rounds": 3, "every": 3, "privacy": private(clip=clip)}
    expected = rk.solve(*case.task, **case.how, **how)
    found = rk.solve(*case.task, **case.how, **how, engine=Over(transport=Direct(case.nodes()), collect=False))
    if not isinstance(clip, rk.AdaptiveClip):  # whose shares have noise of their own
        assert_close((found.x, found.y), (expected.x, expected.y))
    assert found.history.last["epsilon"] >= expected.history.last["epsilon"], "nodes know who takes part"


@pytest.mark.parametrize(("by", "parts"), [("part", 3), slow("whole", 1)])
def test_noise_has_the_deviation_of_the_largest_weight(by, parts):
    """Where clients upload nothing new, noise alone: z·clip·(n/E|C|)·max p_i, and √3 times that by its 3 parts."""
    task, how = parity.make_case("FedBiO")
    algorithm = rk.FedBiO(eta_x=1e-300, eta_y=1e-300, eta_z=1e-300)
    how = {**how, **HOW, "rounds": 1, "participation": rk.Uniform(3)}
    how.pop("key", None)
    privacy = private(clip=1e-3, noise=1.5, by=by)  # so short that the sets of x and y are far away
    many = rk.solve_many(task[0], algorithm, *task[2:], keys=list(range(200)), **how, privacy=privacy)
    wanted = 1.5 * 1e-3 * np.sqrt(parts) * N / 3 * N / (N * (N + 1) / 2)
    for found, start in ((many.x, task[3]), (many.y, task[4])):
        moved = np.asarray(found) - np.asarray(start)
        assert abs(moved.std() / wanted - 1) < 0.12, (moved.std(), wanted)
        assert abs(moved.mean()) < 0.2 * wanted


def intake_of(name, privacy, participation=4):
    """That of the first exchange of an algorithm, for participants 0 to 3 of which the last slot is not used."""
    task, how = parity.make_case(name)
    run = prepare(single(*task, **{**how, "participation": participation}, privacy=privacy)).run
    state, mask = run.initial_state(), jnp.arange(4) < 3
    stage = next(exchanges(run.setting.algorithm.round()))
    return Intake(run.setting, stage, 0, 0, 0, state.server, jnp.arange(4), mask, state.clips)


def test_noise_has_the_scale_that_is_booked_and_rows_of_unused_slots_have_none():
    """PrimalDual's slopes are rows: each has noise of its own, for a weight of 1. 4000 numbers are exact to 1.1 %."""
    intake = intake_of("PrimalDual", private(clip=rk.AdaptiveClip(start=0.1), noise=1.5))
    (rows,) = [part for part, told in intake.stage.weighting.items() if told == "stack"]
    summed = [part for part in intake.stage.weighting if part != rows]
    zero = {part: jnp.zeros(4000) for part in summed} | {rows: jnp.zeros((4, 4000)), WITHIN: jnp.zeros(3)}
    keys = intake._with_noise(zero, intake.normals(zero))[0]
    parts, largest = len(summed) + 1, intake.largest_weights(zero)
    for part in summed:
        wanted = 1.5 * 0.1 * np.sqrt(parts) * float(largest[part])
        assert abs(np.std(keys[part]) / wanted - 1) < 0.05, part
    wanted = 1.5 * 0.1 * np.sqrt(parts)
    assert all(abs(np.std(row) / wanted - 1) < 0.05 for row in np.asarray(keys[rows])[:3])
    assert not np.any(keys[rows][3])


@pytest.mark.parametrize("by", ["part", "whole"])
@pytest.mark.parametrize("noise", [0.5, 4.0])
def test_the_shares_of_an_adaptive_clip_cost_what_their_noise_says(by, noise):
    """One client changes each of them by half of its weight at most."""
    intake = intake_of("FedBiO", private(clip=rk.AdaptiveClip(), noise=noise, by=by))
    parts, expected = ("x", "y", "z"), 4.0
    deviation = float(intake.deviations({}, {*parts, WITHIN})[WITHIN])
    lengths = len(parts) if by == "part" else 1
    distance = 0.5 / expected * np.sqrt(lengths) / deviation  # in deviations
    cost = (1 / noise**2 + (2 * distance / 2) ** 2) * noise**2
    assert intake.setting.privacy.cost_of_exchange(expected, noise) == pytest.approx(cost)


def test_normal_numbers_reach_as_far_as_is_booked_and_have_a_variance_of_one():
    intake = intake_of("FedBiO", private())
    zero = {"x": jnp.zeros(200_000, jnp.float32)}
    drawn = np.asarray(intake.normals(zero)["x"])
    assert abs(drawn.std() - 1) < 0.01
    assert abs(drawn.mean()) < 0.01
    assert abs((drawn**4).mean() - 3) < 0.1
    shapes = jax.make_jaxpr(intake.normals)(zero)
    assert "f32[4,200000]" in str(shapes), "each is made of four, which alone end at 5.42"


def test_secret_numbers_are_standard_normal():
    drawn = secret_normals((40000,), np.float64)
    assert abs(drawn.mean()) < 0.03
    assert abs(drawn.std() - 1) < 0.03
    assert not np.array_equal(drawn[:10], secret_normals((10,), np.float64))


def test_an_adaptive_clip_finds_the_quantile():
    """Uploads of lengths 1 to 7: half of them are shorter than about 4."""
    clients = rk.Clients([jnp.full((1, 1), float(i + 1)) for i in range(N)])

    def loss(x, y, batch):
        return jnp.sum(y * batch.mean()) + 0.0 * jnp.sum(x)

    task = rk.Minimax(loss), rk.registry["Local SGDA"](eta_x=0.0, eta_y=1.0), clients, jnp.zeros(1), jnp.zeros(1)
    privacy = private(clip=rk.AdaptiveClip(start=0.01), noise=1e-6)
    given = single(*task, privacy=privacy)
    assert initial_state(prepare(given).run.setting, *task[3:]).clips.shape[0] == 1
    found = rk.solve(*task, rounds=150, progress=False, privacy=privacy, evaluate=parity.nothing)
    assert 2 < float(found.state.clips[0, 1]) < 6, found.state.clips[0, :2]


# --- what is spent


def test_epsilon_is_a_column_that_only_grows_and_the_run_stops_before_it_would_be_exceeded():
    free = solved("FedBiO", private(noise=1.0), rounds=30, every=5)
    spent = free.history["epsilon"]
    assert spent[0] == 0
    assert (np.diff(spent) > 0).all()
    allowed = float(spent[3])
    stopped = solved("FedBiO", private(noise=1.0, epsilon=allowed * 1.0001), rounds=30, every=5)
    assert stopped.history["epsilon"].max() <= allowed * 1.0001
    assert int(stopped.state.round) == 15
    assert "stopped after round 15 of 30" in stopped.remarks[-1]
    more = solved("FedBiO", private(noise=1.0, epsilon=allowed * 1.0001), rounds=5, start=stopped)
    assert int(more.state.round) == 15, "nothing is left"


def test_a_run_that_is_continued_has_spent_what_one_in_a_piece_has():
    privacy = private(noise=1.0)
    whole = solved("FedBiO", privacy, rounds=6)
    half = solved("FedBiO", privacy, rounds=3)
    both = solved("FedBiO", privacy, rounds=3, start=half)
    np.testing.assert_array_equal(both.x, whole.x)
    assert both.history.last["epsilon"] == whole.history.last["epsilon"]
    assert both.spent == whole.spent
    assert whole.spent.executions == (6,)


@pytest.mark.parametrize(("clip", "epsilon"), [(0.3, 30.0), (rk.AdaptiveClip(), 2000.0)])
def test_noise_is_found_for_all_rounds(clip, epsilon):
    found = solved("FedBiO", private(clip=clip, noise=None, epsilon=epsilon), rounds=5)
    assert int(found.state.round) == 5
    assert 0.8 * epsilon < found.history.last["epsilon"] <= epsilon


def test_where_few_take_part_a_clip_that_adapts_spends_too_much():
    with pytest.raises(
        ValueError, match=r"with 4 participants on average rk\.AdaptiveClip\(\) alone spends more than"
    ) as bad:
        solved("FedBiO", private(clip=rk.AdaptiveClip(), noise=None, epsilon=30.0), rounds=5)
    assert "epsilon = 30 in 5 rounds: give a fixed clip, more participants or fewer rounds" in str(bad.value)


def test_a_run_is_not_continued_with_rounds_that_nobody_counted():
    plain = solved("FedBiO", None, rounds=2)
    with pytest.raises(ValueError, match="start has made rounds without it"):
        solved("FedBiO", private(), rounds=2, start=plain)
    loud = solved("FedBiO", private(noise=0.5), rounds=2)
    for words, privacy, more in (
        ("noise = 0.5, this run has 2.0", private(noise=2.0), {}),
        ("delta = 0.001, this run has 0.01", private(noise=0.5, delta=0.01), {}),
        ("participants on average = 4.0, this run has 3.0", private(noise=0.5), {"participation": 3}),
        ("sampling = fixed, this run has all", private(noise=0.5), {"participation": rk.Replay([[0, 1, 2, 3]])}),
    ):
        with pytest.raises(ValueError, match=f"privacy: start was made with {words}"):
            solved("FedBiO", privacy, rounds=2, start=loud, **more)
    with pytest.raises(ValueError, match="got the state of round 2 alone"):
        solved("FedBiO", private(noise=0.5), rounds=2, start=loud.state)
    laundered = solved("FedBiO", None, rounds=1, start=loud)
    with pytest.raises(ValueError, match="start has made rounds without it"):
        solved("FedBiO", private(noise=0.5), rounds=2, start=laundered)


def test_folders_resume_with_what_was_spent(tmp_path):
    task, how = parity.make_case("FedBiOAcc")
    how = {**how, "progress": False, "evaluate": parity.nothing, "privacy": private(clip=rk.AdaptiveClip(), noise=2.0)}
    whole = rk.solve(*task, **how, rounds=6)
    again = rk.run(*task, **how, rounds=6, folder=tmp_path / "run", checkpoint_seconds=0.0)
    same = rk.run(*task, **how, rounds=6, folder=tmp_path / "run")
    np.testing.assert_array_equal(again.x, whole.x)
    np.testing.assert_array_equal(same.x, whole.x)
    assert again.history.last["epsilon"] == whole.history.last["epsilon"]
    assert again.spent == same.spent == whole.spent
    more = rk.solve(*task, **how, rounds=1, start=same)
    assert more.history.last["epsilon"] > whole.history.last["epsilon"]
    with pytest.raises(ValueError, match="another privacy"):
        rk.run(*task, **{**how, "privacy": private()}, rounds=6, folder=tmp_path / "run")


def test_the_draws_of_a_round():
    fedbio = draws_of(rk.FedBiO().round())
    assert list(fedbio.values()) == [1]
    acc = draws_of(rk.FedBiOAcc().round())
    assert len(acc) == 1
    assert sum(often for draw in acc for _, often in draw) == 2, "both with one draw"
    inner = draws_of(rk.PrimalDual(inner=4).round())
    assert sum(inner.values()) == 4, "a draw for each exchange"
    assert names_participants(rk.PrimalDual().round(), ())
    assert not names_participants(rk.FedBiO().round(), ())


def test_what_follows_a_draw_that_may_be_skipped_belongs_to_the_draw_before():
    """It is skipped, and the third exchange has the participants of the first."""

    def exchange(**more):
        return Exchange(lambda server: {}, lambda local, down: {}, lambda ctx, server, mean: server, **more)

    first, last = exchange(), exchange()
    skipped = exchange(draw="fresh", when=lambda server, ctx: ctx.round < 0)
    assert draws_of((first, skipped, last)) == {((0, 1), (1, 1), (2, 1)): 1}
    assert draws_of((first, exchange(draw="fresh"), last)) == {((0, 1),): 1, ((1, 1), (2, 1)): 1}


class Counts(rk.FedBiO):
    """Its state tells how many take part."""

    def round(self):
        (stage,) = super().round()

        def server(ctx, server, mean):
            return {**stage.server(ctx, server, mean), "x": mean["x"] * ctx.active / ctx.active}

        return (replace(stage, server=server),)


class Waits(rk.FedBiO):
    """It makes rounds in which enough take part."""

    def round(self):
        (stage,) = super().round()
        return (replace(stage, when=lambda server, ctx: ctx.mask.sum() > 1),)


class Often(rk.Uniform):
    """Another draw, of which nobody knows what it protects."""


@pytest.mark.parametrize(
    ("algorithm", "participation", "bound"),
    [
        (rk.FedBiO(), rk.Bernoulli(0.5), "RDP of the Gaussian under Poisson sampling"),
        (rk.FedBiO(), rk.Uniform(3), "RDP of the Gaussian under sampling without replacement"),
        (rk.FedBiO(), Often(3), "the exact privacy curve"),
        (Counts(), rk.Bernoulli(0.5), "the exact privacy curve"),
        (Waits(), rk.Bernoulli(0.5), "the exact privacy curve"),
        (rk.registry["CODASCA"](), rk.Bernoulli(0.5), "RDP of the Gaussian under Poisson sampling"),
        (rk.registry["FedMBO"](), rk.Bernoulli(0.5), "the exact privacy curve"),
    ],
)
def test_chance_protects_nobody_where_the_server_s_state_shows_who_takes_part(algorithm, participation, bound):
    task, how = parity.make_case("FedBiO" if algorithm.solves[0] == "bilevel" else "CODASCA")
    how = {**how, "participation": participation, "local_steps": 1}
    run = prepare(single(task[0], algorithm, *task[2:], **how, privacy=private(), evaluate=parity.nothing)).run
    assert account_of(run).bound.startswith(bound)


def test_control_variates_stay_the_mean_of_what_clients_keep():
    """With next to no noise; their weights are p_i·n/E|C|, whoever comes."""
    found = solved("CODASCA", private(clip=1e6), participation=rk.Bernoulli(0.5), rounds=5)
    p = np.arange(1, N + 1) / (N * (N + 1) / 2)
    for name in ("c_x", "c_y"):
        assert np.abs(found.state.server[name]).max() > 1e-3
        np.testing.assert_allclose(found.state.server[name], p @ np.asarray(found.state.keep[name]), atol=1e-6)


@pytest.mark.parametrize(
    ("participation", "shown", "keeps", "kind"),
    [
        (rk.Full(), False, False, "all"),
        (rk.Uniform(3), False, False, "fixed"),
        (rk.Uniform(3), True, False, "all"),
        (rk.Uniform(3), False, True, "all"),
        (rk.Uniform(N), False, False, "all"),
        (rk.Bernoulli(0.5), False, False, "poisson"),
        (rk.Bernoulli(0.5), True, False, "all"),
        (rk.Replay([[0, 1]]), False, False, "all"),
    ],
)
def test_chance_protects_only_where_nobody_sees_it(participation, shown, keeps, kind):
    assert sampling_of(participation, N, shown, keeps).kind == kind


# --- bad input


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"clip": 0}, "clip must be positive"),
        ({"clip": -1.0}, "clip must be positive"),
        ({"clip": True}, "clip must be positive"),
        ({"clip": jnp.array(0.0)}, "clip must be positive"),
        ({"clip": np.float32(-1)}, "clip must be positive"),
        ({"clip": jnp.ones(2)}, "clip must be positive"),
        ({"noise": jnp.array(-1.0)}, "noise must be positive"),
        ({"noise": np.array([1.0])}, "noise must be positive"),
        ({"noise": jnp.array(jnp.nan)}, "noise must be positive"),
        ({"noise": 0}, "noise must be positive"),
        ({"noise": None}, "give noise"),
        ({"delta": 0}, "delta must be in"),
        ({"delta": 0.5}, "less than one over the number of clients"),
        ({"epsilon": -1}, "epsilon must be positive"),
        ({"by": "half"}, "by must be"),
        ({"noise": 1e-3, "epsilon": 0.1}, "before the first round is over"),
    ],
)
def test_bad_values_are_refused_by_name(given, words):
    with pytest.raises(ValueError, match=words):
        solved("FedBiO", private(**given))


def test_numbers_of_numpy_and_jax_are_numbers():
    for clip in (np.float32(0.5), np.int64(1), jnp.array(0.5), np.array(0.5)):
        assert float(private(clip=clip, noise=clip, epsilon=np.float32(2)).clip) == float(clip)


def test_a_key_that_is_easily_guessed_is_told():
    task, how = parity.make_case("FedBiO")

    def told(**more):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            prepare(single(*task, **{**how, "evaluate": parity.nothing, "privacy": private(), **more}))
        return [str(each.message) for each in caught if "easily guessed" in str(each.message)]

    assert told(key=0) == told(key=jax.random.key(0))
    assert "key = 0 is easily guessed" in told(key=0)[0]
    assert "key=secrets.randbits(62)" in told(key=0)[0]
    assert not told(key=2**61 + 5)
    assert not told(key=0, privacy=None)
    case = Case(rk.FedBiO())
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*easily guessed")
        case.prepared(privacy=private(), engine=Over(transport=Direct([]), collect=False))


@pytest.mark.parametrize("x64", [False, True])
def test_all_bits_of_a_seed_count(x64):
    """A key that nobody guesses has more than 32."""
    with jax.enable_x64(x64):
        for seed, words in ((5, [0, 5]), (2**40 + 1, [256, 1]), (-1, [2**32 - 1, 2**32 - 1])):
            assert jax.random.key_data(as_key(seed)).tolist() == words


def test_lanes_with_equal_keys_have_equal_noise_and_are_refused():
    task, how = parity.make_case("FedBiO")
    how = {**how, **HOW, "privacy": private()}
    del how["key"]
    rates = [rk.FedBiO(eta_x=0.1), rk.FedBiO(eta_x=0.2)]
    for keys in (0, [2**40, 2**40]):
        with pytest.raises(ValueError, match="privacy: keys must differ between lanes, got equal ones") as bad:
            rk.solve_many(task[0], rates, *task[2:], keys=keys, **how)
        assert "\n" not in str(bad.value)


def test_what_does_not_go_together_is_refused():
    with pytest.raises(ValueError, match="privacy goes with the weighted mean"):
        solved("FedBiO", private(), aggregate=rk.Median())
    with pytest.raises(TypeError, match=r"privacy must be rk\.ClientPrivacy"):
        solved("FedBiO", 1.0)
    task, how = parity.make_case("FedBiO")
    with pytest.raises(ValueError, match="a search on the clients' data"):
        rk.solve(task[0], "FedBiO", *task[2:], **{**how, **HOW, "privacy": private()})
    with pytest.raises(ValueError, match="AdaptiveClip"):
        rk.AdaptiveClip(quantile=1.5)


WEIGHTINGS = {
    "normalised": lambda server, ids: jnp.ones(ids.shape) / ids.shape[0],
    "infinite": lambda server, ids: jnp.where(ids == 0, jnp.inf, 1.0),
    "its own": lambda server, ids: 1.0 + ids,
}


@pytest.mark.parametrize("kind", WEIGHTINGS)
def test_a_weighting_by_which_one_client_can_change_any_amount_is_refused(kind, monkeypatch):
    task, how = parity.make_case("FedAvg")
    (stage,) = task[1].round()
    monkeypatch.setattr(type(task[1]), "round", lambda self: (replace(stage, weighting=WEIGHTINGS[kind]),))
    given = single(*task, **how, privacy=private())
    if kind == "its own":
        prepare(given)
        return
    with pytest.raises(ValueError, match="does not depend on who else takes part"):
        prepare(given)


def test_that_losses_on_the_clients_data_are_not_counted_is_said():
    task, how = parity.make_case("FedBiO")
    how.pop("evaluate", None)
    with pytest.warns(UserWarning, match="epsilon does not count them"):
        prepare(single(*task, **how, privacy=private()))


def test_that_own_lower_levels_are_not_protected_is_said():
    task, how = parity.make_case("FedBiO-Local")
    with pytest.warns(UserWarning, match="y is each client's own"):
        prepare(single(*task, **how, privacy=private()))


@pytest.mark.parametrize(
    ("given", "words"),
    [({"privacy": private()}, "collect must be False"), ({"attack": rk.attacks.SignFlip(1)}, "attacks are for")],
)
def test_what_nodes_cannot_do_is_refused(given, words):
    case = Case(rk.FedSGDAM())
    engine = Over(transport=Direct(case.nodes()))
    with pytest.raises(ValueError, match=words):
        rk.solve(*case.task, **case.how, rounds=1, **given, engine=engine)


# --- on nodes


def test_a_server_that_sees_uploads_adds_noise_of_the_scale_that_is_booked():
    case = still()
    found = rk.solve(*case.task, **case.how, rounds=1, privacy=private(noise=2.0), engine=over(Direct(case.nodes())))
    for values in (found.x, found.y):  # 4000 numbers are exact to 1.1 %
        assert abs(np.std(values) / (2.0 * 0.3 * np.sqrt(2) / 4) - 1) < 0.05


class Lying(Direct):
    """Node 0 uploads far more than it may."""

    def send(self, requests, deadline, enough=None):
        answers = super().send(requests, deadline, enough)
        tree, meta = unpack(answers[0])
        if isinstance(read_request(requests[0]), Work):
            answers[0] = pack(jax.tree.map(lambda leaf: leaf + np.float32(1e4), tree), meta)
        return answers


def test_a_node_that_lies_weighs_no_more_than_its_clip(twice):
    how = {**twice.how, "rounds": 1, "privacy": private(clip=0.05)}
    honest = rk.solve(*twice.task, **how)
    found = rk.solve(*twice.task, **how, engine=over(Lying(twice.nodes())))
    moved = np.linalg.norm(found.y - honest.y)
    assert 0 < moved <= 2 * 0.05 * 0.1 * 1.001, "its weight is a tenth"


def test_a_node_that_lies_has_one_vote_on_the_clip():
    up, within = {"a": jnp.full(3, 1e4), WITHIN: jnp.array([1e4])}, jnp.full(2, 1.0)
    found = private(clip=rk.AdaptiveClip()).clipped_again(up, within)
    np.testing.assert_allclose(np.linalg.norm(found["a"]), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(found[WITHIN], [0.5])
    again = private(clip=rk.AdaptiveClip()).clipped_again({**found, WITHIN: jnp.array([-0.5])}, within)
    np.testing.assert_allclose(again["a"], found["a"], rtol=1e-6)
    np.testing.assert_array_equal(again[WITHIN], [-0.5])


def test_a_clip_that_adapts_goes_with_uploads_that_are_rows_throughout():
    """FedNest-CW's last weighting is "stack", of all parts at once; how many were shortened is summed all the same."""
    case = Case(rk.registry["FedNest-CW"]())
    how = {**case.how, "rounds": 1, "privacy": private(clip=rk.AdaptiveClip())}
    found = rk.solve(*case.task, **how, engine=over(Direct(case.nodes())))
    assert np.isfinite(found.x).all()


def lossy(case, lost):
    """The last exchange of some attempts, which ``lost`` tells from the round and the attempt, has no answers."""
    last = count_stages(case.task[1].round()) - 1

    def change(node, asked):
        is_last = isinstance(asked, Work) and asked.exchange == last
        return None if is_last and lost(*asked.order[1:3]) else asked

    return Wire(case.nodes(), change)


def over(transport, **rules):
    return Over(transport=transport, collect=False, pause=0.0, **rules)


def price(exchanges, noise=2.0):
    """Of so many exchanges with all four clients."""
    return Ledger(Sampling("all", 4, 4), noise, 1e-3).epsilon({1: exchanges})


@pytest.fixture(scope="module")
def twice():
    """FedBiOAcc makes two exchanges a round; what was broadcast in the second came from the noisy sum of the first."""
    return Case(rk.FedBiOAcc(), participation=None)


def test_exchanges_of_attempts_that_failed_are_paid_for(twice):
    wire = lossy(twice, lambda round, attempt: round == 1 and attempt < 2)
    how = {**twice.how, "rounds": 3, "privacy": private(noise=2.0)}
    plain = rk.solve(*twice.task, **how, engine=over(Direct(twice.nodes())))
    found = rk.solve(*twice.task, **how, engine=over(wire))
    made = sum(plain.spent.executions)
    assert plain.history.last["epsilon"] == price(made)
    assert found.history.last["epsilon"] == price(made + 2)


def test_no_attempt_is_made_that_could_spend_more_than_epsilon(twice, tmp_path):
    each = sum(draws_of(twice.task[1].round()).popitem()[0][i][1] for i in range(2))
    allowed = price(2 * each + 1)
    how = {**twice.how, "rounds": 3, "privacy": private(noise=2.0, epsilon=allowed * 1.001), "folder": tmp_path / "run"}
    wire = lossy(twice, lambda round, attempt: round == 1)
    with pytest.raises(
        FederationError, match=r"round 1 failed at attempt 2, .*another attempt could spend more than eps"
    ):
        rk.run(*twice.task, **how, engine=over(wire, attempts=9))
    found = rk.run(*twice.task, **how, engine=over(Direct(twice.nodes()), attempts=9))
    assert found.rounds == 1
    assert price(sum(found.spent.executions)) == price(each + 2) <= allowed
    assert "with epsilon = " in found.remarks[-1]


def test_a_round_that_fails_for_good_is_paid_for_when_the_run_is_resumed(twice, tmp_path):
    how = {**twice.how, "rounds": 2, "privacy": private(noise=2.0), "folder": tmp_path / "run"}
    with pytest.raises(FederationError, match="round 0 failed 3 times"):
        rk.run(*twice.task, **how, engine=over(lossy(twice, lambda round, attempt: True), attempts=3))
    found = rk.run(*twice.task, **how, engine=over(Direct(twice.nodes()), attempts=3))
    assert found.spent.executions[-1] == 2
    assert found.spent.executions[0] == 3 + 2
    assert found.history.last["epsilon"] == price(sum(found.spent.executions))
    lines = [json.loads(line)["round"] for line in (tmp_path / "run" / "participants.jsonl").read_text().splitlines()]
    assert lines == [0, 1], "attempts that failed are no rounds"
