"""Rates that find themselves: on problems with known solutions, by key, after a kill, with bad input."""

import jax.numpy as jnp
import numpy as np
import pytest

import rookery as rk
from rookery.stopping import Interrupted
from rookery.tuning import journal
from rookery.tuning.levels import levels
from rookery.tuning.measure import measure
from tests.helpers.marks import slow

ROUNDS = 60


def quadratic(unit=1.0):
    """y*(x) = x by clients' points; Φ(x) = unit·(mean ‖x − b‖²), least at the mean of b; the lower level has curvature 8."""

    def lower(x, y, a):
        return 4 * jnp.sum((y - x) ** 2) + 0 * jnp.sum(a)

    def upper(x, y, b):
        return unit * jnp.mean(jnp.sum((y - b) ** 2, -1))

    points = [np.array([[1.0, 2.0]]), np.array([[3.0, 4.0]])]
    return rk.Bilevel(upper, lower), rk.Clients(points, points), jnp.zeros(2), jnp.zeros(2)


def test_what_is_measured():
    problem, clients, x0, y0 = quadratic()
    scales, phi, calls, anchor = measure(problem, clients, x0, y0, 100, 2.0)
    assert 1 / scales.y == pytest.approx(8.0, rel=1e-3)
    assert phi == pytest.approx(15.0)  # (1 + 4 + 9 + 16)/2
    assert 0.1 < scales.x < 2.0  # the best step is 1/2
    assert scales.steps == 200
    assert calls > 0
    np.testing.assert_allclose(anchor, x0, atol=1e-6)


@pytest.mark.parametrize("unit", [1e-4, slow(1e4)])
def test_by_name_it_is_solved_whatever_the_units(unit):
    """The right step of x differs by eight orders of magnitude."""
    problem, clients, x0, y0 = quadratic(unit)
    solution = rk.solve(problem, "FedBiO", clients, x0, y0, rounds=ROUNDS)
    np.testing.assert_allclose(solution.x, [2.0, 3.0], atol=0.05)


@pytest.mark.parametrize(("rounds", "key"), [(15, 0), slow(30, 1)])
def test_rates_that_are_found_do_not_lead_away(rounds, key):
    """After few rounds long steps look best, and all that go on with them may end far off: then others go on."""
    problem, clients, x0, y0 = quadratic()
    found = rk.tune(problem, "FedBiO", clients, x0, y0, rounds=rounds, key=key)
    assert found.found["FedBiO"].score < 10 < found.found["FedBiO"].start
    assert found.found["FedBiO"].spent["rounds"] <= 12 * rounds  # more than it may: nothing good was found before


def test_a_tuning_tells_all():
    problem, clients, x0, y0 = quadratic()
    found = rk.tune(problem, ["FedBiO", rk.SimFBO(eta_x=1e-6, gamma_x=1e-6)], clients, x0, y0, rounds=ROUNDS)
    assert list(found.algorithms) == ["FedBiO", "SimFBO"]
    assert found.winner == "FedBiO"
    assert isinstance(found.best, rk.FedBiO)
    assert found.algorithms["SimFBO"] == rk.SimFBO(eta_x=1e-6, gamma_x=1e-6)  # as it was given
    assert found.found["FedBiO"].score == pytest.approx(2.0, abs=0.01)
    last = found.solutions["FedBiO"]
    assert last.rounds == ROUNDS
    rows = [row for row in found.table if row["algorithm"] == "FedBiO"]
    assert {"rates", "score", "rounds", "stage", "key", "calls", "bytes", "diverged"} <= set(rows[0])
    assert {row["stage"] for row in rows} == {0, 1, 2, 3}
    assert all(row["score"] is None for row in rows if row["diverged"])
    assert sum(row["rounds"] for row in rows) <= 9.5 * ROUNDS
    assert found.tables()["algorithms"]["FedBiO"]["rates"]["eta_x"] == found.algorithms["FedBiO"].eta_x


@pytest.mark.slow  # the killed search that ends the same is quick
def test_the_same_key_finds_the_same_rates_and_another_key_others():
    problem, clients, x0, y0 = quadratic()
    first, again, other = (rk.tune(problem, "FedBiO", clients, x0, y0, rounds=20, key=key) for key in (1, 1, 2))
    assert first.best == again.best
    assert [row["score"] for row in first.table] == [row["score"] for row in again.table]
    assert other.best != first.best


def test_killed_and_resumed_it_ends_the_same(tmp_path, monkeypatch):
    problem, clients, x0, y0 = quadratic()
    given = problem, "FedBiO", clients, x0, y0
    whole = rk.tune(*given, rounds=20, batch_size=1)
    add, calls = journal.Journal.add, []

    def killed(self, *outcome):
        add(self, *outcome)
        calls.append(outcome)
        if len(calls) == 4:
            raise Interrupted(2)

    with monkeypatch.context() as patched:
        patched.setattr(journal.Journal, "add", killed)
        with pytest.raises(Interrupted):
            rk.tune(*given, rounds=20, batch_size=1, folder=tmp_path)
    computed = []
    monkeypatch.setattr(journal.Journal, "add", lambda self, *outcome: (computed.append(outcome), add(self, *outcome)))
    resumed = rk.tune(*given, rounds=20, batch_size=1, folder=tmp_path)
    assert resumed.table == whole.table
    assert resumed.best == whole.best
    assert len(computed) > 0
    with pytest.raises(ValueError, match="of a search with another rounds"):
        rk.tune(*given, rounds=30, batch_size=1, folder=tmp_path)
    (tmp_path / "journal.json").write_text("{")
    with pytest.raises(ValueError, match=r"journal\.json is damaged"):
        rk.tune(*given, rounds=20, batch_size=1, folder=tmp_path)


def test_a_metric_decides_and_frozen_x_stands_beside_it():
    problem, clients, x0, y0 = quadratic()
    found = rk.tune(
        problem, "FedBiO", clients, x0, y0, rounds=ROUNDS, metric="near",
        evaluate=lambda x, y: {"near": -jnp.linalg.norm(y - jnp.array([2.0, 3.0]))},
    ).found["FedBiO"]  # fmt: skip
    assert found.score == pytest.approx(0, abs=0.05)
    assert found.frozen == pytest.approx(-(13**0.5), abs=1e-6)
    assert not found.remarks


def test_it_says_when_learning_x_hardly_helps():
    def lower(x, y, a):
        return jnp.mean(jnp.sum((y - a) ** 2, -1)) + 1e-9 * jnp.sum(x * y)

    def upper(x, y, a):
        return jnp.mean(jnp.sum((y - a) ** 2, -1))

    clients = rk.Clients([np.ones((3, 2))] * 2, [np.zeros((3, 2))] * 2)
    with pytest.warns(UserWarning, match="learning x hardly helps: Φ is"):
        rk.tune(rk.Bilevel(upper, lower, rk.Box(-1.0, 1.0)), "FedBiO", clients, jnp.zeros(2), jnp.zeros(2), rounds=20)


@pytest.mark.slow
def test_budgets_are_equal_in_the_unit_that_was_asked_for():
    problem, clients, x0, y0 = quadratic()
    found = rk.tune(problem, ["FedBiO", "FedNest"], clients, x0, y0, rounds=20, unit="calls").found
    used = {name: sum(row["calls"] for row in each.trials) for name, each in found.items()}
    assert 0.7 < used["FedBiO"] / used["FedNest"] < 1.4
    rounds = {name: sum(row["rounds"] for row in each.trials) for name, each in found.items()}
    assert rounds["FedBiO"] > 1.2 * rounds["FedNest"]  # a round of FedNest asks for more


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"budget": 1}, "budget must be at least 3"),
        ({"budget": float("nan")}, "budget must be at least 3"),
        ({"unit": "hours"}, "unit must be 'rounds', 'calls' or 'bytes'"),
        ({"algorithms": []}, "algorithms must name at least one"),
        ({"algorithms": ["FedBiO", rk.FedBiO()]}, "algorithms must be different ones, got FedBiO, FedBiO"),
        ({"algorithms": "FedSGDA+"}, "FedSGDA\\+ solves minimax problems"),
        ({"algorithms": "FedBio2"}, "FedBio2"),
        ({"rounds": 0}, "rounds must be"),
        (
            {"metric": "accuracy"},
            "metric must be one of what evaluate returns \\(lower_loss, upper_loss\\), got 'accuracy'",
        ),
        ({"clients": rk.Clients.elsewhere(2)}, "searched where the data are"),
    ],
)
def test_bad_input_is_named(changed, message):
    problem, clients, x0, y0 = quadratic()
    given = {"algorithms": "FedBiO", "clients": clients, "rounds": 20, **changed}
    with pytest.raises(ValueError, match=message):
        rk.tune(problem, x0=x0, y0=y0, **given)


def test_the_lower_levels_of_clients_lie_side_by_side():
    def lower(x, y, a):
        return jnp.mean(jnp.sum((y - a - x) ** 2, -1))

    def upper(x, y, a):
        return jnp.mean(jnp.sum((y - 2 * a) ** 2, -1))

    points = [np.array([[1.0]]), np.array([[3.0]])]
    problem = rk.Bilevel(upper, lower, lower_level="local")
    clients = rk.Clients(points, points)
    both = levels(problem, clients, jnp.zeros(1), jnp.zeros(1))
    solved = both.solve(jnp.ones(1), both.start(jnp.zeros(1)), 3, 5)
    np.testing.assert_allclose(solved, [2.0, 4.0], rtol=1e-5)
    solution = rk.solve(problem, "FedBiO-Local", clients, jnp.zeros(1), jnp.zeros(1), rounds=40)
    np.testing.assert_allclose(solution.x, [2.0], atol=0.05)
