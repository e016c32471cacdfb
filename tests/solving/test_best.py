"""The best iterate that was evaluated, and what a history says about how a run went."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

import rookery as rk
from rookery.experiment.checkpoint import Checkpoint, newest, save_checkpoint
from rookery.experiment.folder import read_config
from rookery.experiment.running import prepare_run, resume_run, start_run
from rookery.experiment.settings import resolve
from rookery.solving.best import begun, improved
from rookery.solving.remarks import of_lane, past_its_peak, remarks_of

CLIENTS = rk.Clients([jnp.array([[1.0, 2.0], [3.0, 0.0]]), jnp.array([[2.0, 2.0], [0.0, 1.0]])])
PROBLEM = rk.Bilevel(
    lambda x, y, batch: jnp.mean(jnp.sum((y - batch) ** 2, -1)) + jnp.sum(x["a"] ** 2),
    lambda x, y, batch: jnp.mean(jnp.sum((y - batch) ** 2, -1)) + jnp.sum((y - x["a"]) ** 2),
)
ALGORITHM = rk.FedBiO(eta_x=0.1, eta_y=0.1, eta_z=0.1)
START = {"a": jnp.array([2.0, -1.0])}


def near(x, y):
    """The score is highest on the way, and has passed that when the run ends."""
    return {"other": jnp.sum(y), "score": -jnp.sum((x["a"] - 0.9) ** 2)}


def solve(rounds=12, **how):
    how = {"evaluate": near, "metric": "score", "every": 1, "batch_size": 1, **how}
    return rk.solve(PROBLEM, ALGORITHM, CLIENTS, START, jnp.zeros(2), rounds=rounds, **how)


def many(rounds=12, **how):
    how = {"evaluate": near, "metric": "score", "every": 1, "batch_size": 1, "keys": [0, 1, 2], **how}
    return rk.solve_many(PROBLEM, ALGORITHM, CLIENTS, START, jnp.zeros(2), rounds=rounds, **how)


@pytest.fixture(scope="module")
def whole():
    return solve()


@pytest.fixture(scope="module")
def batch():
    return many()


def assert_same(a, b):
    for one, other in zip(jax.tree.leaves((a.x, a.y)), jax.tree.leaves((b.x, b.y)), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(a.round, b.round)
    np.testing.assert_array_equal(a.value, b.value)


# --- the best -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:score was best at the start")
@pytest.mark.parametrize("higher", [True, False])
def test_the_best_is_the_evaluated_iterate_that_the_metric_likes_best(whole, higher):
    found = whole if higher else solve(higher_is_better=False)
    scores = found.history["score"]
    place = int(scores.argmax() if higher else scores.argmin())
    assert found.best.round == found.history["round"][place]
    assert found.best.value == scores[place]
    assert isinstance(found.best.round, int)
    assert near(found.best.x, found.best.y)["score"] == pytest.approx(found.best.value)
    if higher:
        assert 0 < place < 12
        exact = solve(rounds=found.best.round)
        np.testing.assert_array_equal(found.best.x["a"], exact.x["a"])
        np.testing.assert_array_equal(found.best.y, exact.y)


def test_no_metric_no_best_and_the_same_iterates(whole):
    plain = solve(metric=None)
    assert plain.best is None
    assert plain.remarks == ()
    np.testing.assert_array_equal(plain.x["a"], whole.x["a"])
    np.testing.assert_array_equal(plain.y, whole.y)


def test_the_default_evaluation_has_names_too():
    found = solve(4, evaluate=None, metric="upper_loss", higher_is_better=False)
    assert found.best.value == found.history["upper_loss"].min()


def test_each_lane_has_its_own_best(batch, whole):
    assert batch.best.round.shape == (3,)
    np.testing.assert_array_equal(batch.best.value, batch.history["score"].max(0))
    assert batch.best.x["a"].shape == (3, 2)
    first = batch.lane(0).best
    assert first.round == whole.best.round
    np.testing.assert_allclose(first.x["a"], whole.best.x["a"], rtol=1e-12)
    np.testing.assert_allclose(first.y, whole.best.y, rtol=1e-12)


@pytest.mark.parametrize("rounds", [3, 9])
def test_a_continued_run_goes_on_with_its_best(whole, batch, rounds):
    assert_same(solve(12 - rounds, start=solve(rounds)).best, whole.best)
    assert_same(many(12 - rounds, start=many(rounds)).best, batch.best)


def test_a_best_by_another_metric_begins_anew(whole):
    with pytest.warns(UserWarning, match="other was best at the start, 0, .*higher_is_better wrong$"):
        later = solve(2, start=whole, metric="other", higher_is_better=False)  # whose best cannot be that of the start
    assert later.best.metric == "other"
    assert later.best.round >= 12
    from_state = solve(2, start=whole.state)
    assert from_state.best.round >= 12
    assert solve(1, start=whole, metric=None).best is None


def test_what_is_not_there_is_named_before_a_round():
    for made in (
        lambda: solve(metric="acuracy"),
        lambda: many(metric="acuracy"),
        lambda: solve(2, start=solve(1).state, metric="acuracy"),
    ):
        with pytest.raises(
            ValueError, match=r"^metric must be one of what evaluate returns \(other, score\), got 'acuracy'$"
        ):
            made()
    with pytest.raises(TypeError, match="metric must be the name"):
        solve(metric=3)
    with pytest.raises(TypeError, match="higher_is_better must be True or False"):
        solve(higher_is_better="yes")


def test_nan_never_wins_and_the_first_of_equals_does():
    asked = []

    def output(value):
        def get():
            asked.append(value)
            return jnp.full(2, value), jnp.zeros(1)

        return get

    best = begun("m", True, np.nan, 0, output(0)())
    assert np.isnan(best.value)
    asked.clear()
    for round, value in enumerate([np.nan, 1.0, 1.0, np.inf, np.nan, 2.0, 2.0], 1):
        best = improved(best, value, round, output(round))
    assert asked == [2, 6]  # x and y are copied only then
    assert (best.round, best.value, best.x.tolist()) == (6, 2.0, [6, 6])


def test_lanes_improve_on_their_own():
    def output(value):
        return {"w": jnp.full((2, 3), value), "f": jnp.tanh}, jnp.full(2, value)

    best = begun("m", False, np.array([1.0, np.nan]), 0, output(0.0))
    best = improved(best, np.array([2.0, 5.0]), 1, lambda: output(1.0))
    assert (best.round.tolist(), best.value.tolist()) == ([0, 1], [1.0, 5.0])
    np.testing.assert_array_equal(best.x["w"], [[0] * 3, [1] * 3])
    assert best.lane(1).x["f"] is jnp.tanh
    assert best.lane(1).y == 1


def test_a_lane_that_is_stopped_keeps_the_round_its_iterates_are_of():
    def doomed(x, y, batch):
        return PROBLEM.lower(x, y, batch) + 1e300 * jnp.sum(y) ** 3

    problem = replace(PROBLEM, lower=doomed)
    with pytest.raises(rk.Diverged) as error:
        rk.solve(
            problem,
            ALGORITHM,
            CLIENTS,
            START,
            jnp.zeros(2),
            rounds=8,
            every=8,
            evaluate=lambda x, y: {"m": jnp.sum(y**2)},
            metric="m",
        )
    solution = error.value.solution
    assert solution.best.round == solution.diverged[0].round < 8


# --- folders -----------------------------------------------------------------------------------------------------------

SMALL = {"task": "quadratic-bilevel", "algorithm": "FedBiO", "rounds": 8, "every": 2, "seeds": 2}


class Stop(Exception):
    pass


def stop_at(round):
    def watch(state, history):
        if state.round >= round:
            raise Stop

    return watch


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run, and one that was stopped after round 4."""
    place = tmp_path_factory.mktemp("runs")
    start_run(resolve(SMALL), place / "whole", checkpoint_seconds=0)
    with pytest.raises(Stop):
        start_run(resolve(SMALL), place / "stopped", checkpoint_seconds=0, watch=stop_at(4))
    return place


def test_a_run_leaves_its_best(runs):
    solution = resume_run(runs / "whole")
    found = load_file(runs / "whole" / "result.safetensors")
    assert set(found) == {"x", "y", "best.x", "best.y"}
    np.testing.assert_array_equal(found["best.x"], solution.best.x)
    assert solution.best.metric == read_config(runs / "whole")["run"]["metric"]
    assert (
        f"best distance: {solution.best.value[1]:.6g} in round {solution.best.round[1]}"
        in (runs / "whole" / "log.txt").read_text()
    )


def test_the_best_survives_a_checkpoint_bit_by_bit(runs):
    prepared, _ = prepare_run(resolve(SMALL))
    seal = read_config(runs / "stopped")["checksum"]["sha256"]
    found = newest(runs / "stopped", prepared.run, seal)
    save_checkpoint(runs / "stopped", found, seal, prepared.run)
    assert_same(newest(runs / "stopped", prepared.run, seal).best, found.best)
    resume_run(runs / "stopped")
    results = [(runs / name / "result.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert results[0] == results[1]


def test_a_resumed_run_keeps_a_best_from_before_it_was_stopped(tmp_path, monkeypatch):
    """With the metric the wrong way round the start is best, which no later round can find again."""

    def upside_down(*given, **more):
        prepared, tasks = prepare_run(*given, **more)
        return replace(prepared, higher_is_better=not prepared.higher_is_better), tasks

    monkeypatch.setattr("rookery.experiment.running.prepare_run", upside_down)
    first = start_run(resolve(SMALL), tmp_path / "whole")
    with pytest.raises(Stop):
        start_run(resolve(SMALL), tmp_path / "stopped", checkpoint_seconds=0, watch=stop_at(4))
    again = resume_run(tmp_path / "stopped")
    assert first.best.round.tolist() == again.best.round.tolist() == [0, 0]
    assert_same(again.best, first.best)
    results = [(tmp_path / name / "result.safetensors").read_bytes() for name in ("whole", "stopped")]
    assert results[0] == results[1]


def test_a_checkpoint_from_before_there_was_a_best_is_gone_on_from(runs, tmp_path):
    with pytest.raises(Stop):
        start_run(resolve(SMALL), tmp_path / "old", checkpoint_seconds=0, watch=stop_at(4))
    prepared, _ = prepare_run(resolve(SMALL))
    seal = read_config(tmp_path / "old")["checksum"]["sha256"]
    found = newest(tmp_path / "old", prepared.run, seal)
    save_checkpoint(tmp_path / "old", Checkpoint(found.state, found.history, found.memory), seal, prepared.run)
    solution = resume_run(tmp_path / "old")
    assert (solution.best.round >= 4).all()
    assert "looked for from round 4 on" in (tmp_path / "old" / "log.txt").read_text()
    expected, told = (load_file(each / "result.safetensors") for each in (runs / "whole", tmp_path / "old"))
    np.testing.assert_array_equal(told["x"], expected["x"])


def test_a_run_in_a_folder_logs_its_remarks_and_warns(tmp_path, monkeypatch):
    monkeypatch.setattr("rookery.solving.loop.remarks_of", lambda *_: ("lane 1: it went so",))
    with pytest.warns(UserWarning, match="^lane 1: it went so$"):
        solution = start_run(resolve(SMALL), tmp_path / "run")
    assert solution.lane(1).remarks == ("it went so",)
    assert "lane 1: it went so" in (tmp_path / "run" / "log.txt").read_text()


# --- remarks -----------------------------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(0)


def table(values, name="accuracy"):
    return rk.History([{"round": 10 * k, "seconds": 0.0, name: value} for k, value in enumerate(values)])


def rise(n, top=0.94):
    return 0.1 + (top - 0.1) * (1 - np.exp(-np.arange(n) / 3))


PEAKED = np.concatenate([rise(20), np.linspace(0.938, 0.905, 20)]) + 0.002 * RANDOM.standard_normal(40)
QUIET = {
    "monotone": rise(40),
    "one value": np.array([0.9]),
    "no finite value": np.full(20, np.nan),
    "constant": np.full(40, 0.9),
    "a tiny fall": np.concatenate([rise(20), np.full(20, 0.936)]),
    "one that stands out": np.where(np.arange(40) == 15, 1.0, 0.9) + 0.001 * RANDOM.standard_normal(40),
    "too early to say": np.array([0.1, 0.5, 0.9, 0.8, 0.7, 0.6, 0.5]),
    "wanders after its peak": np.concatenate([rise(20), np.linspace(0.94, 0.8, 10), np.linspace(0.8, 0.9, 10)]),
    "has fallen as far before": np.concatenate(
        [rise(15, 0.93), np.linspace(0.93, 0.87, 8), np.linspace(0.87, 0.94, 8), np.linspace(0.94, 0.88, 12)]
    ),
    "falls and comes back": np.concatenate([rise(20), np.linspace(0.94, 0.7, 10), np.linspace(0.7, 0.93, 10)]),
}


def test_a_metric_past_its_peak():
    (told,) = remarks_of(table(PEAKED), "accuracy", True)
    peak = int(PEAKED.argmax())
    assert told == (
        f"accuracy peaked at {PEAKED[peak]:.4g} in round {10 * peak} and has fallen to {PEAKED[-1]:.4g} since: what is "
        "learned from the validation data no longer holds on held-out data; solution.best has the peak"
    )
    (loss,) = remarks_of(table(1 - PEAKED, "loss"), "loss", False)
    assert loss.startswith(f"loss was lowest, {1 - PEAKED[peak]:.4g}, in round {10 * peak} and has risen to ")
    (wrong,) = remarks_of(table(PEAKED), "accuracy", False)
    assert wrong.startswith(f"accuracy was best at the start, {PEAKED[0]:.4g}, and has risen to ")
    assert "higher_is_better wrong" in wrong
    (own,) = remarks_of(table(1 - PEAKED, "upper_loss"), "upper_loss", False)
    assert "held-out" not in own  # it is no held-out number


@pytest.mark.parametrize("case", QUIET)
def test_no_alarm(case):
    assert remarks_of(table(QUIET[case]), "accuracy", True) == ()
    assert remarks_of(table(-QUIET[case]), "accuracy", False) == ()


def test_rows_that_are_not_finite_are_passed_over():
    holes = PEAKED.copy()
    holes[[3, 25, 39]] = np.nan, np.inf, np.nan
    (told,) = remarks_of(table(holes), "accuracy", True)
    assert f"fallen to {holes[38]:.4g} since" in told


@pytest.mark.parametrize(("noise", "evaluations"), [(0.002, 20), (0.02, 20), (0.01, 100), (0.02, 300)])
def test_a_noisy_plateau_seldom_alarms(noise, evaluations):
    """Nor does one that a run has to reach first."""
    random, alarms = np.random.default_rng(1), 0
    for number in range(200):
        level = 0.9 if number % 2 else rise(evaluations)
        values = level + noise * random.standard_normal(evaluations)
        alarms += past_its_peak(np.arange(evaluations), values, "accuracy", True) is not None
    assert alarms <= 2


def test_remarks_of_lanes():
    values = np.stack([rise(40), PEAKED, PEAKED], 1)
    history = table(list(values))
    told = remarks_of(history, "accuracy", True, 3, [rk.Stopped(5, 2)])
    assert len(told) == 1  # a lane that diverged has another story
    assert told[0].startswith("lane 1: accuracy peaked")
    assert of_lane((*told, "all: of this"), 1) == (told[0].removeprefix("lane 1: "), "all: of this")
    assert of_lane((*told, "lane 12: x"), 2) == ()
    one = remarks_of(table(list(PEAKED[:, None])), "accuracy", True, 1)
    assert one[0].startswith("accuracy peaked")


def test_solve_warns_of_what_it_remarks():
    with pytest.warns(UserWarning, match=r"score peaked at .* solution\.best has the peak") as caught:
        solution = solve(60, every=2, batch_size=None)
    assert [str(each.message) for each in caught] == list(solution.remarks)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lanes = many(60, every=2, batch_size=None)
    assert len(lanes.remarks) == 3
    assert lanes.lane(2).remarks == solution.remarks
