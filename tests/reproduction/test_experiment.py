"""Presets never rot, and none has rates by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from rookery.algorithm.rate import declared
from rookery.catalogue import catalogue
from rookery.experiment.source import open_source
from rookery.reproduction.experiment import BUDGET, GROWTH, SEED, SIZES, experiment, experiments
from tests.reproduction.command import run

NAMES = list(experiments())
KNOWN = {
    "title", "paper", "asks", "why", "legend", "metric", "higher_is_better", "percent", "axis", "at", "also", "claims",
    "published", "curve_seeds", "form", "claimed", "run", "task", "tuning", "settings", "methods", "quick", "tiny",
}  # fmt: skip
"""What a preset may say."""
OF_A_METHOD = {"algorithm", "only", "run", "task", "rates", "falling", "published"}
GIVEN = {
    "E10-momentum": {"alpha": {0.1, 0.3, 0.5, 0.7, 0.9}, "beta": {0.1, 0.3, 0.5, 0.7, 0.9}},  # what is compared there
    "E12": {"eta_x": {0.0}},  # x frozen
    "E13": {"eta_x": {0.0}},
}
"""All rates that presets give to methods without published ones, with the values that they may have."""


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_presets_resolve(name, size):
    which = experiment(name)
    cells = which.cells(size)
    assert cells
    assert len({cell.path(Path()) for cell in cells}) == len(cells)
    exchanges = {entry.name: entry.exchanges for entry in catalogue()}
    for cell in cells:
        each = {"round": 1, "exchanges": exchanges[cell.settings.algorithm], "step": cell.settings.local_steps}
        ends = cell.settings.rounds * each[which.axis]
        first = min(cell.settings.every, cell.settings.rounds) * each[which.axis]
        assert size == "tiny" or all(first <= point for point in which.at(size)), (
            f"{cell.setting}/{cell.method}: the first column is the start"
        )
        assert ends >= max(which.at(size), default=0), f"{cell.setting}/{cell.method} ends before the last column"
    there = {(cell.setting, cell.method) for cell in cells}
    for entry in which.preset.get("published", []):
        assert (entry["setting"], entry["method"]) in there
        assert len(entry["values"]) == len(which.at())
        assert set(entry.get("also", {})) <= set(which.also)
    assert ("at" in which.preset) == (which.form != "speed-up"), "what is compared is a column; a speed-up has none"
    assert set(which.preset) & {"claims", "claimed"} == {"claimed" if which.form == "speed-up" else "claims"}
    assert set(which.preset.get("claimed", which.preset["methods"])) == set(which.preset["methods"])
    for claim in which.preset.get("claims", []):
        settings = claim.get("settings", list(which.preset["settings"]))
        both = [s for s in settings if {(s, claim["better"]), (s, claim["worse"])} <= there]
        assert both, claim
        assert both == settings or "settings" not in claim, claim


@pytest.mark.parametrize("name", NAMES)
def test_presets_say_what_is_read_and_nothing_else(name):
    preset = experiment(name).preset
    assert set(preset) <= KNOWN
    assert 0 < len(preset["asks"].split()) <= 80
    assert len(preset.get("why", "").split()) <= 80
    assert {key for how in preset["methods"].values() for key in how} <= OF_A_METHOD
    assert {key for how in preset["settings"].values() for key in how} <= {"run", "task", "rates"}
    for size in SIZES[1:]:
        assert set(preset.get(size, {})) <= {"at", "run", "task", "tuning"}
    assert set(preset.get("tuning", {})) <= {"share", "budget", "growth", "metric", "higher_is_better"}


@pytest.mark.parametrize("name", NAMES)
def test_no_preset_has_rates_by_hand(name):
    """What is given is an option, which is no rate; or all of it is published; or it stands in the list above."""
    which = experiment(name)
    allowed = GIVEN.get(name, {})
    for cell in which.cells():
        rates = declared(cell.settings.source.algorithm(cell.settings.algorithm))
        searched = {rate for rate, each in rates.items() if each.scale is not None}
        given = {rate: value for rate, value in cell.settings.rates.items() if rate in rates}
        how = which.preset["methods"][cell.method]
        if how.get("published"):
            assert given, f"{cell.method} says that its rates are published, and has none"
            assert cell.search is None
            continue
        for rate, value in given.items():
            assert value in allowed.get(rate, ()), f"{cell.setting}/{cell.method} has {rate} = {value} by hand"
        assert cell.search is not None or not searched - set(given)
        assert set(how.get("falling", ())) <= set(rates) - set(given)


@pytest.mark.parametrize("name", NAMES)
def test_one_rule_for_all_methods_of_an_experiment(name):
    which = experiment(name)
    told = which.preset.get("tuning", {})
    for cell in which.cells():
        if cell.search is None:
            continue
        how = cell.search.settings
        assert (cell.search.budget, cell.search.growth) == (told.get("budget", BUDGET), told.get("growth", GROWTH))
        assert (how.seed, how.seeds, how.held_out) == (SEED, 1, True), "never on test data, nor with a seed of the runs"
        assert how.seed >= cell.settings.seed + cell.settings.seeds
        assert abs(how.rounds - told.get("share", 1.0) * cell.settings.rounds) <= 0.5
        unlike = {name for name in ("task", "dataset", "clients", "participants", "local_steps", "batch_size", "options")
                  if getattr(how, name) != getattr(cell.settings, name)}  # fmt: skip
        assert not unlike, "the problem of the run"
        assert dict(how.rates) == dict(cell.settings.rates)


def test_what_the_rates_of_a_cell_depend_on(tiny):
    which = experiment("T1")
    cell = which.cells()[0]

    def changed(**parts):
        return replace(which, preset={**which.preset, **parts}).cells()[0]

    run_ = which.preset["run"]
    for same in (
        changed(run={**run_, "seeds": 30, "every": 2}),
        changed(at=[2], asks="Something else?", also=[], claims=[], legend=""),
    ):
        assert same.search.digest == cell.search.digest
    assert changed(run={**run_, "seeds": 30}).digest != cell.digest, "the run is made again, with the same rates"
    for other in (
        changed(run={**run_, "rounds": 20}),
        changed(run={**run_, "clients": 3}),
        changed(task={"dimension": 3}),
        changed(tuning={"share": 1.0}),
        changed(tuning={"share": 0.5, "budget": 5.0}),
        changed(tuning={"share": 0.5, "growth": 0.0}),
        changed(tuning={"share": 0.5, "metric": "hypergradient"}),
        changed(methods={"FedBiO": {"rates": {"tie_batches": True}}}),
        changed(methods={"FedBiO": {"falling": ["eta_x"]}}),
    ):
        assert other.search.digest != cell.search.digest
        assert other.digest != cell.digest
    default = open_source("quadratic-bilevel").algorithm("FedBiO")().eta_z
    given = changed(methods={"FedBiO": {"rates": {"eta_z": default}}})
    assert given.search.digest != cell.search.digest, "a rate that is given is not searched for, whatever its value"


def test_presets_of_ones_own(tiny, monkeypatch):
    """One of the same name takes the place of the package's; others are there too."""
    (tiny / "mine").mkdir()
    text = (tiny / "presets" / "T1.toml").read_text()
    (tiny / "presets" / "T2.toml").write_text(text.replace("A small one", "Another"))
    (tiny / "mine" / "T1.toml").write_text(text.replace("A small one", "My own"))
    (tiny / "mine" / "T3.toml").write_text(text.replace("A small one", "A third"))
    assert [e.title for e in experiments(tiny / "mine").values()] == ["My own", "Another", "A third"]
    assert "My own" in run("--list", "--presets", "mine").output
    (tiny / "mine" / "T4.toml").write_text("title = ")
    assert "mine/T4.toml is not TOML: " in run("T1", "--presets", "mine", code=2).stderr
    assert "--presets nowhere: there is no such folder" in run("T1", "--presets", "nowhere", code=2).stderr


def test_only_takes_a_cell_by_its_name_before_those_that_contain_it():
    which = experiment("E1")
    assert [cell.setting for cell in which.cells(only=["iid, half/MeFBO"])] == ["iid, half"]
    assert {cell.method for cell in which.cells(only=["FedNest"])} >= {
        "FedNest",
        "LFedNest",
        "FedNest, published rates",
    }
    assert which.cells(only=["nothing"]) == []


def test_bad_names(tiny):
    assert "there is no 'T2'; did you mean 'T1'?" in run("T2", code=2).stderr
    assert "reproduce needs the name of an experiment" in run(code=2).stderr
    assert (
        "--only nobody: T1 has no cell with this in its SETTING/METHOD" in run("T1", "--only", "nobody", code=2).stderr
    )
