"""Claims are judged seed by seed, and published numbers are reached or not."""

from dataclasses import replace

import numpy as np

from rookery.reproduction.compute import save
from rookery.reproduction.experiment import experiment
from rookery.reproduction.verdicts import judge, reached, rows, verdicts
from tests.reproduction.made_up import result


def percents(which):
    """The same with a metric of which more is better, shown in percent."""
    return replace(which, preset={**which.preset, "higher_is_better": True, "percent": True})


def keep(which, values, folder):
    """Stores made-up results by method, or by setting and method."""
    for cell in which.cells():
        found = values.get(cell.method, values.get((cell.setting, cell.method)))
        if found is not None:
            save(cell, result(which, cell, found), folder)


def test_verdicts(tiny):
    which = percents(experiment("T1"))
    claim = {"better": "a", "worse": "b"}
    a, b = np.array([0.9, 0.91, 0.92, 0.9]), np.array([0.8, 0.82, 0.81, 0.8])
    assert judge(which, "iid", claim, a, b).holds == "yes"
    assert judge(which, "iid", claim, b, a).holds == "reversed"
    assert judge(which, "iid", claim, a, a[::-1]).holds == "not decided"
    assert judge(which, "iid", claim, a[:1], b[:1]).holds == "not decided", "one seed decides nothing"
    assert judge(which, "iid", claim, a[:1], b[:1]).p_text == "one seed"
    assert judge(experiment("T1"), "iid", claim, b, a).holds == "yes", "less is better there"
    gone = np.full(6, np.nan)
    assert judge(which, "iid", claim, np.full(6, 0.5), gone).holds == "yes"
    assert judge(which, "iid", claim, gone, np.full(6, 0.5)).holds == "reversed"
    np.testing.assert_allclose(judge(which, "iid", claim, a, b).difference, 10.0, atol=0.5)


def test_where_nothing_is_known_nothing_is_reversed(tiny):
    which = percents(experiment("T1"))
    claim = {"better": "a", "worse": "b"}
    gone = np.full(6, np.nan)
    for a, b in (
        (gone[:1], np.full(1, 0.5)),  # one seed
        (gone, gone),
        (np.full(6, 0.5), np.full(6, 0.5)),
        (gone[:3], np.full(3, 0.5)),  # three of three: p = 0.125, either way round
        (np.full(3, 0.5), gone[:3]),
    ):
        assert judge(which, "iid", claim, a, b).holds == "not decided"
    assert judge(which, "iid", claim, gone, gone).difference == 0
    assert judge(which, "iid", claim, gone[:3], np.full(3, 0.5)).difference == -np.inf
    assert judge(experiment("T1"), "iid", claim, gone[:3], np.full(3, 0.5)).difference == np.inf, "less is better there"


def test_published_numbers_are_reached_within_a_standard_error(tiny):
    which = percents(experiment("T1"))  # FedBiO published 50 and 60
    for values, expected in (
        ({"5": [0.5, 0.51, 0.52], "10": [0.598, 0.6, 0.596]}, 1),
        ({"5": [0.48, 0.5, 0.51], "10": [0.59, 0.61, 0.6]}, 2),
        ({"5": [0.6, None, 0.6], "10": [0.7]}, 1),
    ):
        keep(which, {"FedBiO": values}, tiny)
        assert reached(which, tiny) == (expected, 2)
    less = replace(which, preset={**which.preset, "higher_is_better": False})
    assert reached(less, tiny) == (0, 2)
    assert reached(which, tiny, current=False) == (0, 0), "none is out of date"


def test_a_claim_may_compare_different_columns(tiny):
    which = percents(experiment("T1"))
    claims = [
        {"better": "FedBiO", "worse": "FedBiO, wild", "better_at": 10, "worse_at": 5},
        {"better": "FedBiO", "worse": "FedBiO, wild"},
        {"better": "FedBiO", "worse": "FedBiO, wild", "better_at": 3},  # there is no such column
    ]
    which = replace(which, preset={**which.preset, "claims": claims})
    values = {
        "FedBiO": {"5": [0.1, 0.2, 0.15], "10": [0.5, 0.6, 0.5]},
        "FedBiO, wild": {"5": [0.3, 0.4, 0.2], "10": [0.7, 0.8, 0.9]},
    }
    keep(which, values, tiny)
    first, second = verdicts(which, tiny)
    assert (first.better, first.worse, first.holds) == ("FedBiO after 10", "FedBiO, wild after 5", "yes")
    assert (second.better, second.holds) == ("FedBiO", "reversed")


def test_a_claim_may_be_of_the_range_over_settings(tiny):
    which = percents(experiment("T1"))
    preset = {**which.preset, "settings": {"iid": {}, "again": {}}, "claims": [
        {"better": "FedBiO", "worse": "FedBiO, wild", "steady": True},
        {"better": "FedBiO, wild", "worse": "FedBiO", "steady": True},
    ]}  # fmt: skip
    which = replace(which, preset=preset)
    assert verdicts(which, tiny) == []
    values = {
        ("iid", "FedBiO"): [0.5, 0.6, 0.5], ("again", "FedBiO"): [0.51, 0.58, 0.49],
        ("iid", "FedBiO, wild"): [0.9, 0.8, 0.9, 0.9], ("again", "FedBiO, wild"): [0.7, 0.61, 0.7, 0.1],
    }  # fmt: skip
    keep(which, {key: {"5": [0.0] * len(each), "10": each} for key, each in values.items()}, tiny)
    first, second = verdicts(which, tiny)
    assert (first.setting, first.holds, second.holds) == ("range over the settings", "yes", "reversed")
    assert first.current
    np.testing.assert_allclose(first.difference, 100 * (0.04 / 3 - 0.59 / 3), atol=1e-9)
    cell = which.cells(only=["again/FedBiO"])[0]
    save(cell, {**result(which, cell, [0.51, 0.58, 0.49]), "digest": "of another day"}, tiny)
    assert verdicts(which, tiny) == [], "one of four is out of date"


def test_what_is_out_of_date_is_marked_and_not_compared_with_what_is_not(tiny):
    which = experiment("T1")
    keep(which, {"FedBiO": [1.0, 1.1, 1.2], "FedBiO, wild": [2.0, 2.1, 2.3]}, tiny)
    assert [each.holds for each in verdicts(which, tiny)] == ["yes"]
    cell = which.cells(only=["iid/FedBiO"])[0]
    save(cell, {**result(which, cell, [1.0, 1.1, 1.2]), "digest": "of another day"}, tiny)
    assert verdicts(which, tiny) == []
    assert [row.name for row in rows(which, tiny)] == ["FedBiO †", "FedBiO, wild"]
    assert [row.tried for row in rows(which, tiny)] == ["17", "given"]
    save(cell, {**result(which, cell, [1.0, 1.1, 1.2]), "digest": "of another day", "search": None}, tiny)
    assert rows(which, tiny)[0].tried == "by hand"
    other = which.cells(only=["iid/FedBiO, wild"])[0]
    save(other, {**result(which, other, [2.0, 2.1, 2.3]), "digest": "of another day"}, tiny)
    assert [each.current for each in verdicts(which, tiny)] == [False]
    assert reached(percents(which), tiny) == (0, 0)
    assert reached(percents(which), tiny, current=False) == (2, 2)


def test_a_seed_that_diverged_is_the_worst_and_the_median_stands_in_its_row(tiny):
    which = experiment("T1")
    cell = which.cells(only=["iid/FedBiO"])[0]
    for values, shown in (
        ([1.0, None, 3.0], "median 3.0000"),
        ([1.0, None, None], "diverged"),
        ([1, 2, 3], "2.0000 ± 1.0000"),
    ):
        save(cell, result(which, cell, values, ["lane 1"] * values.count(None)), tiny)
        (row,) = rows(which, tiny)
        assert row.ours == [shown] * 2
        assert row.name == ("FedBiO" + f" ({values.count(None)} of 3 diverged)" * (None in values))
