"""Presets never rot."""

from pathlib import Path

import pytest

from rookery.reproduction.experiment import SIZES, experiment, experiments
from tests.reproduction.command import run

NAMES = list(experiments())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", SIZES)
def test_presets_resolve(name, size):
    which = experiment(name)
    cells = which.cells(size)
    assert cells
    assert len({cell.path(Path()) for cell in cells}) == len(cells)
    for entry in which.preset.get("published", []):
        assert entry["setting"] in which.preset["settings"]
        assert entry["method"] in which.preset["methods"]
        assert len(entry["values"]) == len(which.at())
    for claim in which.preset.get("claims", []):
        assert {claim["better"], claim["worse"]} <= set(which.preset["methods"])
        assert set(claim.get("settings", [])) <= set(which.preset["settings"])
    for method in which.preset["methods"].values():
        assert set(method.get("best", {})) <= set(which.preset["settings"])


def test_presets_of_ones_own(tiny, monkeypatch):
    """One of the same name takes the place of the package's; others are there too."""
    (tiny / "mine").mkdir()
    text = (tiny / "presets" / "T1.toml").read_text()
    (tiny / "presets" / "T2.toml").write_text(text.replace("A small one", "Another"))
    (tiny / "mine" / "T1.toml").write_text(text.replace("A small one", "My own"))
    (tiny / "mine" / "T3.toml").write_text(text.replace("A small one", "A third"))
    assert [e.title for e in experiments(tiny / "mine").values()] == ["My own", "Another", "A third"]
    assert "My own" in run("--list", "--presets", "mine").output
    assert "--tune needs --presets" in run("T1", "--tune", code=2).stderr
    (tiny / "mine" / "T4.toml").write_text("title = ")
    assert "mine/T4.toml is not TOML: " in run("T1", "--presets", "mine", code=2).stderr
    assert "--presets nowhere: there is no such folder" in run("T1", "--presets", "nowhere", code=2).stderr


def test_only_takes_a_cell_by_its_name_before_those_that_contain_it():
    which = experiment("E1")
    assert [cell.setting for cell in which.cells(only=["iid/MeFBO"])] == ["iid"]
    assert {cell.method for cell in which.cells(only=["FedNest"])} == {"FedNest", "LFedNest"}
    assert which.cells(only=["nothing"]) == []


def test_bad_names(tiny):
    assert "there is no 'T2'; did you mean 'T1'?" in run("T2", code=2).stderr
    assert "reproduce needs the name of an experiment" in run(code=2).stderr
    assert (
        "--only nobody: T1 has no cell with this in its SETTING/METHOD" in run("T1", "--only", "nobody", code=2).stderr
    )


@pytest.mark.parametrize("name", NAMES)
def test_notes_are_short_and_what_they_leave_out_is_in_the_history(name):
    which = experiment(name)
    assert 0 < len(which.notes.split()) <= 80
    assert "seen" not in which.notes.split(), "what had been seen on test data belongs to the history"
