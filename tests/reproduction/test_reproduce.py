"""The papers' experiments: presets never rot, cells are stored, tables and verdicts are right."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rookery.cli.main import app
from rookery.datasets import DATASETS
from rookery.experiment.sweep import Trial
from rookery.reproduction import experiment as reproduce

pytestmark = pytest.mark.first

ROOT = Path(__file__).parents[2]
NAMES = list(reproduce.experiments())


def missing(cells):
    """Which data sets the cells need that are not here."""
    needed = {cell.settings.dataset for cell in cells} & set(DATASETS) - {"digits"}
    folder = Path(os.environ.get("ROOKERY_DATA") or "nowhere")
    return sorted(name for name in needed if not (folder / name).is_dir())


class Killing(reproduce.Cell):
    """The process that receives it dies, as one does that the system ends for want of memory."""

    def __reduce__(self):
        return os._exit, (1,)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", reproduce.SIZES)
def test_presets_resolve(name, size):
    which = reproduce.experiment(name)
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


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_in_tiny(name, tmp_path):
    which = reproduce.experiment(name)
    cells = which.cells("tiny")
    first = {cell.settings.algorithm: cell for cell in reversed(cells)}  # one cell for each
    if without := missing(first.values()):
        pytest.skip(f"ROOKERY_DATA has no {', '.join(without)}")
    for cell in first.values():
        result = reproduce.compute(cell, (which.axis, which.at("tiny")), which.metric, progress=False)
        reproduce.save(cell, result, tmp_path)
        assert reproduce.stored(cell, tmp_path) == json.loads(json.dumps(result))
    assert len(reproduce.rows(which, tmp_path, "tiny")) == len(first)


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A preset in the place of the package's."""
    folder = tmp_path / "presets"
    folder.mkdir()
    text = """
title = "A small one"
paper = "Nobody"
at = [2, 4]
[run]
task = "hyper-representation"
dataset = "digits"
clients = 10
participants = 4
batch_size = 8
rounds = 4
every = 2
seeds = 3
[task]
hidden = 4
[quick]
at = [2]
[quick.run]
rounds = 2
[settings.iid.task]
split = "iid"
[methods.FedBiO.rates]
eta_x = 0.1
[methods.FedBiO.grid]
eta_x = [0.1, 0.3]
eta_y = [0.3, 1e30]
[methods.FedAvg.run]
rounds = 4
[methods."FedBiO, wild"]
algorithm = "FedBiO"
[methods."FedBiO, wild".rates]
eta_y = 1e30
[[published]]
setting = "iid"
method = "FedAvg"
values = [50.0, 60.0]
deviations = [1.0, 2.0]
[[claims]]
better = "FedBiO"
worse = "FedBiO, wild"
"""
    (folder / "T1.toml").write_text(text)
    monkeypatch.setattr(reproduce, "PRESETS", folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["reproduce", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.mark.slow
def test_the_command_computes_what_is_missing_and_compares(tiny, monkeypatch):
    assert "A small one" in run("--list").output
    output = run("T1", "--jobs", "1").output
    assert "50 ± 1" in output
    assert "diverged" in output
    assert "FedBiO better than FedBiO, wild" in output
    assert "Curves: reproduction/T1.png" in output
    assert (tiny / "reproduction" / "T1.png").stat().st_size > 5000
    stored = sorted(p.name for p in (tiny / "reproduction" / "T1").glob("*.json"))
    assert stored == ["iid--FedAvg.json", "iid--FedBiO.json", "iid--FedBiO__wild.json"]

    def fail(*arguments, **more):
        raise AssertionError("computed again")

    compute = reproduce.compute
    monkeypatch.setattr(reproduce, "compute", fail)
    run("T1")  # all is stored
    preset = tiny / "presets" / "T1.toml"
    preset.write_text(preset.read_text().replace("eta_x = 0.1\n", "eta_x = 0.2\n"))
    computed = []
    monkeypatch.setattr(
        reproduce, "compute", lambda cell, *more: (computed.append(cell.method), compute(cell, *more))[1]
    )
    run("T1")
    assert computed == ["FedBiO"]  # only what changed
    (tiny / "docs").mkdir()
    run("--write-docs")
    page = (tiny / "docs" / "reproduction.md").read_text()
    assert "3 of 3 cells" in page
    assert "| iid | FedBiO, wild (3 of 3 seeds diverged) | " in page
    assert "50 ± 1" in page
    assert (tiny / "docs" / "images" / "reproduction" / "T1.png").exists()


@pytest.mark.slow
def test_cells_at_once_have_a_core_each_and_one_that_fails_does_not_stop_the_others(tiny, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")  # as the tests have it
    run("T1", "--jobs", "1")
    folder = tiny / "reproduction" / "T1"
    before = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    output = run("all", "--again", "--jobs", "2").output
    assert "T1 iid/FedAvg: " in output
    for path in folder.glob("*.json"):
        after = json.loads(path.read_text())
        assert after["environment"]["cores"] == 1
        for point, values in after["values"].items():
            if None not in values:
                np.testing.assert_allclose(values, before[path.name]["values"][point], atol=1e-3)
    which = reproduce.experiment("T1")
    cells = which.cells()
    bad = replace(cells[0], settings=replace(cells[0].settings, dataset="nothing"))
    done = []
    with pytest.raises(ValueError, match="nothing") as raised:
        reproduce.compute_all([(which, bad), (which, cells[1])], 2, lambda cell, result: done.append(cell))
    assert done == [cells[1]]
    assert "1 of 2 cells failed" in raised.value.__notes__[0]
    killing = Killing("T1", "iid", "killing", "full", cells[0].settings)
    with pytest.raises(OSError, match="the system ended a process"):
        reproduce.compute_all([(which, killing), (which, killing)], 2, lambda cell, result: done.append(cell))


@pytest.mark.slow
def test_tuning_writes_the_best_rates_into_a_preset_of_ones_own(tiny):
    file = tiny / "presets" / "T1.toml"
    file.write_text(file.read_text() + "\n[methods.FedBiO.best.iid]\neta_z = 0.02\n")  # around this it is searched
    shipped = file.read_text()
    run("T1", "--quick", "--tune", "--presets", "mine", "--only", "iid/FedBiO", "--lanes", "4")
    assert file.read_text() == shipped
    method = reproduce.experiment("T1", Path("mine")).preset["methods"]["FedBiO"]
    assert method["best"]["iid"]["eta_y"] == 0.3  # 1e30 diverges
    assert method["best"]["iid"]["eta_z"] == 0.02
    assert method["best"]["iid"]["eta_x"] in (0.1, 0.3)
    cell = next(c for c in reproduce.experiment("T1", Path("mine")).cells("quick") if c.method == "FedBiO")
    assert cell.settings.rates["eta_y"] == 0.3
    assert cell.settings.held_out is False
    assert reproduce.stored(cell, tiny / "reproduction") is not None  # computed with what was found


def test_presets_of_ones_own(tiny, monkeypatch):
    """One of the same name takes the place of the package's; others are there too."""
    (tiny / "mine").mkdir()
    text = (tiny / "presets" / "T1.toml").read_text()
    (tiny / "presets" / "T2.toml").write_text(text.replace("A small one", "Another"))
    (tiny / "mine" / "T1.toml").write_text(text.replace("A small one", "My own"))
    (tiny / "mine" / "T3.toml").write_text(text.replace("A small one", "A third"))
    assert [e.title for e in reproduce.experiments(tiny / "mine").values()] == ["My own", "Another", "A third"]
    assert "My own" in run("--list", "--presets", "mine").output
    assert "--tune needs --presets" in run("T1", "--tune", code=2).stderr
    (tiny / "mine" / "T4.toml").write_text("title = ")
    assert "mine/T4.toml is not TOML: " in run("T1", "--presets", "mine", code=2).stderr
    assert "--presets nowhere: there is no such folder" in run("T1", "--presets", "nowhere", code=2).stderr


def test_a_method_whose_rates_all_diverge_keeps_those_it_has_and_the_preset_says_so(tiny, monkeypatch):
    def diverges(settings, rates, *more, **options):
        return [Trial(each, np.array([np.nan])) for each in rates]

    monkeypatch.setattr(reproduce, "sweep", diverges)
    assert reproduce.tune("T1", "FedBiO", "iid", tiny / "mine") is None
    method = reproduce.experiment("T1", tiny / "mine").preset["methods"]["FedBiO"]
    assert "best" not in method
    assert method["held_out"] == {"iid": "every configuration diverged"}


def test_a_method_may_be_compared_for_longer_in_a_setting(tiny, monkeypatch):
    made = []
    monkeypatch.setattr(
        reproduce, "sweep", lambda settings, rates, *more, **options: made.append(settings.rounds) or []
    )
    file = tiny / "presets" / "T1.toml"
    text = file.read_text() + "\n[tuning]\nrounds_share = 0.5\n"
    for more in (
        "",
        "[methods.FedBiO.tuning.shards]\nrounds_share = 1.0\n",
        "[methods.FedBiO.tuning.iid]\nrounds_share = 1.0\n",
    ):
        file.write_text(text + more)
        reproduce.tune("T1", "FedBiO", "iid", tiny / "presets")
    assert made == [2, 2, 4]


def test_what_is_tuned(tiny):
    which = reproduce.experiment("T1")
    assert reproduce.to_tune(which) == [("iid", "FedBiO")]
    assert reproduce.to_tune(which, only=["FedAvg"]) == []
    more = {**which.preset, "settings": {"iid": {}, "shards": {"task": {"split": "shards"}}}}
    assert reproduce.to_tune(replace(which, preset=more)) == [("iid", "FedBiO"), ("shards", "FedBiO")]
    alone = replace(which, preset={**more, "tuning": {"setting": "iid"}})
    assert reproduce.to_tune(alone, only=["shards/"]) == [("iid", "FedBiO")]


def test_bad_names(tiny):
    assert "there is no 'T2'; did you mean 'T1'?" in run("T2", code=2).stderr
    assert "reproduce needs the name of an experiment" in run(code=2).stderr
    assert "--only nobody: no cell of T1 has this" in run("T1", "--only", "nobody", code=2).stderr


def test_verdicts(tiny):
    which = reproduce.experiment("T1")
    claim = {"better": "a", "worse": "b"}
    a, b = np.array([0.9, 0.91, 0.92, 0.9]), np.array([0.8, 0.82, 0.81, 0.8])
    assert reproduce._verdict(which, "iid", claim, a, b).holds == "yes"
    assert reproduce._verdict(which, "iid", claim, b, a).holds == "reversed"
    assert reproduce._verdict(which, "iid", claim, a, a[::-1]).holds == "not decided"
    assert reproduce._verdict(which, "iid", claim, a[:1], b[:1]).holds == "not decided", "one seed decides nothing"
    assert reproduce._verdict(which, "iid", claim, a[:1], b[:1]).told == "one seed"
    lower = replace(which, preset={**which.preset, "higher_is_better": False})
    assert reproduce._verdict(lower, "iid", claim, b, a).holds == "yes"
    gone = np.full(6, np.nan)
    assert reproduce._verdict(which, "iid", claim, np.full(6, 0.5), gone).holds == "yes"
    np.testing.assert_allclose(reproduce._verdict(which, "iid", claim, a, b).difference, 10.0, atol=0.5)


def test_published_numbers_are_reached_within_a_standard_error(tiny):
    which = reproduce.experiment("T1")  # FedAvg published 50 and 60
    cell = next(cell for cell in which.cells() if cell.method == "FedAvg")
    for values, expected in (
        ({"2": [0.5, 0.51, 0.52], "4": [0.598, 0.6, 0.596]}, 1),
        ({"2": [0.48, 0.5, 0.51], "4": [0.59, 0.61, 0.6]}, 2),
        ({"2": [0.6, None, 0.6], "4": [0.7]}, 1),
    ):
        reproduce.save(cell, {"digest": cell.digest, "values": values}, tiny)
        assert reproduce.reached(which, tiny) == (expected, 2)
    assert reproduce.reached(replace(which, preset={**which.preset, "higher_is_better": False}), tiny) == (0, 2)


def test_a_claim_may_compare_different_columns(tiny):
    which = reproduce.experiment("T1")
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
            reproduce.save(cell, {"digest": cell.digest, "values": values[cell.method]}, tiny)
    first, second = reproduce.verdicts(which, tiny)
    assert (first.better, first.worse, first.holds) == ("FedBiO after 4", "FedAvg after 2", "yes")
    assert (second.better, second.holds) == ("FedBiO", "reversed")


def test_a_claim_may_be_of_the_range_over_settings(tiny):
    which = reproduce.experiment("T1")
    preset = {**which.preset, "settings": {"iid": {}, "again": {}}, "claims": [
        {"better": "FedBiO", "worse": "FedAvg", "steady": True}, {"better": "FedAvg", "worse": "FedBiO", "steady": True},
    ]}  # fmt: skip
    which = replace(which, preset=preset)
    values = {
        ("iid", "FedBiO"): [0.5, 0.6, 0.5], ("again", "FedBiO"): [0.51, 0.58, 0.49],
        ("iid", "FedAvg"): [0.9, 0.8, 0.9, 0.9], ("again", "FedAvg"): [0.7, 0.61, 0.7, 0.1],
    }  # fmt: skip
    assert reproduce.verdicts(which, tiny) == []
    for cell in which.cells():
        if (found := values.get((cell.setting, cell.method))) is not None:
            reproduce.save(cell, {"digest": cell.digest, "values": {"4": found}}, tiny)
    first, second = reproduce.verdicts(which, tiny)
    assert (first.setting, first.holds, second.holds) == ("range over the settings", "yes", "reversed")
    np.testing.assert_allclose(first.difference, 100 * (0.04 / 3 - 0.59 / 3), atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_the_expected_minutes_are_those_that_were_recorded(name):
    which = reproduce.experiment(name)
    results = [reproduce.stored(cell, ROOT / "reproduction") for cell in which.cells()]
    if None in results:
        pytest.skip("not computed as a whole")
    recorded = reproduce.minutes_on_two_cores(results)
    assert abs(which.preset["minutes"] - recorded) <= max(2, 0.15 * recorded)


def test_the_page_is_current():
    assert (ROOT / "docs" / "reproduction.md").read_text() == reproduce.markdown(ROOT / "reproduction"), (
        "run: rookery reproduce --write-docs"
    )
    size = sum(path.stat().st_size for path in (ROOT / "reproduction").rglob("*.json"))
    assert size < 2_000_000


def test_only_takes_a_cell_by_its_name_before_those_that_contain_it():
    which = reproduce.experiment("E1")
    assert [cell.setting for cell in which.cells(only=["iid/MeFBO"])] == ["iid"]
    assert {cell.method for cell in which.cells(only=["FedNest"])} == {"FedNest", "LFedNest"}
    assert which.cells(only=["nothing"]) == []
