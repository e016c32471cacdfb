"""Private rounds: what is clipped, how noise is scaled, what is spent, and when a run stops."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.aggregation.privacy import WITHIN, ClientPrivacy, secret_normals
from rookery.algorithm.setting import initial_state
from rookery.engines.flower.engine import Over
from rookery.engines.flower.wire.transport import Direct
from rookery.solving.prepare import prepare, single
from rookery.solving.spending import draws_of, names_participants, sampling_of
from tests.engines.flower.test_flower import Case, assert_close
from tests.helpers import parity

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


@pytest.mark.parametrize("name", some("FedSGDA-M", "FedBiO", "MeFBO", "FedBiOAcc", "PrimalDual", "FedNest"))
@pytest.mark.parametrize("clip", some(rk.AdaptiveClip(start=0.1), 0.3))
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
@pytest.mark.parametrize("clip", [0.3, rk.AdaptiveClip(start=0.1)])
def test_nodes_clip_as_the_simulator_does(name, clip):
    """With next to no noise, which nodes' servers draw elsewhere."""
    case = Case(rk.registry[name]())
    how = {"rounds": 3, "every": 3, "privacy": private(clip=clip)}
    expected = rk.solve(*case.task, **case.how, **how)
    found = rk.solve(*case.task, **case.how, **how, engine=Over(transport=Direct(case.nodes()), collect=False))
    if not isinstance(clip, rk.AdaptiveClip):  # whose shares have noise of their own
        assert_close((found.x, found.y), (expected.x, expected.y))
    assert found.history.last["epsilon"] >= expected.history.last["epsilon"], "nodes know who takes part"


@pytest.mark.parametrize(("by", "parts"), [("part", 3), ("whole", 1)])
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
    with pytest.raises(ValueError, match=r"start has spent epsilon = .* go on with the noise"):
        solved("FedBiO", private(noise=2.0), rounds=2, start=loud)


def test_folders_resume_with_what_was_spent(tmp_path):
    task, how = parity.make_case("FedBiOAcc")
    how = {**how, "progress": False, "evaluate": parity.nothing, "privacy": private(clip=rk.AdaptiveClip(), noise=2.0)}
    whole = rk.solve(*task, **how, rounds=6)
    again = rk.run(*task, **how, rounds=6, folder=tmp_path / "run", checkpoint_seconds=0.0)
    same = rk.run(*task, **how, rounds=6, folder=tmp_path / "run")
    np.testing.assert_array_equal(again.x, whole.x)
    np.testing.assert_array_equal(same.x, whole.x)
    assert again.history.last["epsilon"] == whole.history.last["epsilon"]
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
    assert names_participants(rk.PrimalDual().round())
    assert not names_participants(rk.FedBiO().round())


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
