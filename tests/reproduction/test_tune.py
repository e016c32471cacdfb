"""Rates are searched on held-out data and written into presets of one's own."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rookery.experiment.sweep import Trial
from rookery.reproduction.compute import stored
from rookery.reproduction.experiment import experiment
from rookery.reproduction.tune import to_tune, tune
from tests.reproduction.command import run


@pytest.mark.slow
def test_tuning_writes_the_best_rates_into_a_preset_of_ones_own(tiny):
    file = tiny / "presets" / "T1.toml"
    file.write_text(file.read_text() + "\n[methods.FedBiO.best.iid]\neta_z = 0.02\n")  # around this it is searched
    shipped = file.read_text()
    run("T1", "--quick", "--tune", "--presets", "mine", "--only", "iid/FedBiO", "--lanes", "4")
    assert file.read_text() == shipped
    method = experiment("T1", Path("mine")).preset["methods"]["FedBiO"]
    assert method["best"]["iid"]["eta_y"] == 0.3  # 1e30 diverges
    assert method["best"]["iid"]["eta_z"] == 0.02
    assert method["best"]["iid"]["eta_x"] in (0.1, 0.3)
    cell = next(c for c in experiment("T1", Path("mine")).cells("quick") if c.method == "FedBiO")
    assert cell.settings.rates["eta_y"] == 0.3
    assert cell.settings.held_out is False
    assert stored(cell, tiny / "reproduction") is not None  # computed with what was found


def test_what_is_tuned(tiny):
    which = experiment("T1")
    assert to_tune(which) == [("iid", "FedBiO")]
    assert to_tune(which, only=["FedAvg"]) == []
    more = {**which.preset, "settings": {"iid": {}, "shards": {"task": {"split": "shards"}}}}
    assert to_tune(replace(which, preset=more)) == [("iid", "FedBiO"), ("shards", "FedBiO")]
    alone = replace(which, preset={**more, "tuning": {"setting": "iid"}})
    assert to_tune(alone, only=["shards/"]) == [("iid", "FedBiO")]


def test_a_method_whose_rates_all_diverge_keeps_those_it_has_and_the_preset_says_so(tiny, monkeypatch):
    def diverges(settings, rates, *more, **options):
        return [Trial(each, np.array([np.nan])) for each in rates]

    monkeypatch.setattr("rookery.reproduction.tune.sweep", diverges)
    assert tune("T1", "FedBiO", "iid", tiny / "mine") is None
    method = experiment("T1", tiny / "mine").preset["methods"]["FedBiO"]
    assert "best" not in method
    assert method["held_out"] == {"iid": "every configuration diverged"}


def test_a_method_may_be_compared_for_longer_in_a_setting(tiny, monkeypatch):
    made = []
    monkeypatch.setattr(
        "rookery.reproduction.tune.sweep", lambda settings, rates, *more, **options: made.append(settings.rounds) or []
    )
    file = tiny / "presets" / "T1.toml"
    text = file.read_text() + "\n[tuning]\nrounds_share = 0.5\n"
    for more in (
        "",
        "[methods.FedBiO.tuning.shards]\nrounds_share = 1.0\n",
        "[methods.FedBiO.tuning.iid]\nrounds_share = 1.0\n",
    ):
        file.write_text(text + more)
        tune("T1", "FedBiO", "iid", tiny / "presets")
    assert made == [2, 2, 4]
