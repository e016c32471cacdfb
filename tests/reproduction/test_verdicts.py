"""Claims are judged seed by seed, and published numbers are reached or not."""

from dataclasses import replace

import numpy as np

from rookery.reproduction.compute import save
from rookery.reproduction.experiment import experiment
from rookery.reproduction.verdicts import judge, reached, verdicts


def test_verdicts(tiny):
    which = experiment("T1")
    claim = {"better": "a", "worse": "b"}
    a, b = np.array([0.9, 0.91, 0.92, 0.9]), np.array([0.8, 0.82, 0.81, 0.8])
    assert judge(which, "iid", claim, a, b).holds == "yes"
    assert judge(which, "iid", claim, b, a).holds == "reversed"
    assert judge(which, "iid", claim, a, a[::-1]).holds == "not decided"
    assert judge(which, "iid", claim, a[:1], b[:1]).holds == "not decided", "one seed decides nothing"
    assert judge(which, "iid", claim, a[:1], b[:1]).p_text == "one seed"
    lower = replace(which, preset={**which.preset, "higher_is_better": False})
    assert judge(lower, "iid", claim, b, a).holds == "yes"
    gone = np.full(6, np.nan)
    assert judge(which, "iid", claim, np.full(6, 0.5), gone).holds == "yes"
    np.testing.assert_allclose(judge(which, "iid", claim, a, b).difference, 10.0, atol=0.5)


def test_published_numbers_are_reached_within_a_standard_error(tiny):
    which = experiment("T1")  # FedAvg published 50 and 60
    cell = next(cell for cell in which.cells() if cell.method == "FedAvg")
    for values, expected in (
        ({"2": [0.5, 0.51, 0.52], "4": [0.598, 0.6, 0.596]}, 1),
        ({"2": [0.48, 0.5, 0.51], "4": [0.59, 0.61, 0.6]}, 2),
        ({"2": [0.6, None, 0.6], "4": [0.7]}, 1),
    ):
        save(cell, {"digest": cell.digest, "values": values}, tiny)
        assert reached(which, tiny) == (expected, 2)
    assert reached(replace(which, preset={**which.preset, "higher_is_better": False}), tiny) == (0, 2)


def test_a_claim_may_compare_different_columns(tiny):
    which = experiment("T1")
    claims = [
        {"better": "FedBiO", "worse": "FedAvg", "better_at": 4, "worse_at": 2},
        {"better": "FedBiO", "worse": "FedAvg"},
        {"better": "FedBiO", "worse": "FedAvg", "better_at": 3},  # there is no such column
    ]
    which = replace(which, preset={**which.preset, "claims": claims})
    values = {
        "FedBiO": {"2": [0.1, 0.2, 0.15], "4": [0.5, 0.6, 0.5]},
        "FedAvg": {"2": [0.3, 0.4, 0.2], "4": [0.7, 0.8, 0.9]},
    }
    for cell in which.cells():
        if cell.method in values:
            save(cell, {"digest": cell.digest, "values": values[cell.method]}, tiny)
    first, second = verdicts(which, tiny)
    assert (first.better, first.worse, first.holds) == ("FedBiO after 4", "FedAvg after 2", "yes")
    assert (second.better, second.holds) == ("FedBiO", "reversed")


def test_a_claim_may_be_of_the_range_over_settings(tiny):
    which = experiment("T1")
    preset = {**which.preset, "settings": {"iid": {}, "again": {}}, "claims": [
        {"better": "FedBiO", "worse": "FedAvg", "steady": True}, {"better": "FedAvg", "worse": "FedBiO", "steady": True},
    ]}  # fmt: skip
    which = replace(which, preset=preset)
    values = {
        ("iid", "FedBiO"): [0.5, 0.6, 0.5], ("again", "FedBiO"): [0.51, 0.58, 0.49],
        ("iid", "FedAvg"): [0.9, 0.8, 0.9, 0.9], ("again", "FedAvg"): [0.7, 0.61, 0.7, 0.1],
    }  # fmt: skip
    assert verdicts(which, tiny) == []
    for cell in which.cells():
        if (found := values.get((cell.setting, cell.method))) is not None:
            save(cell, {"digest": cell.digest, "values": {"4": found}}, tiny)
    first, second = verdicts(which, tiny)
    assert (first.setting, first.holds, second.holds) == ("range over the settings", "yes", "reversed")
    np.testing.assert_allclose(first.difference, 100 * (0.04 / 3 - 0.59 / 3), atol=1e-9)
