"""Cells are computed once, stored, and computed again when their settings change."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from rookery.datasets.sources import DATASETS
from rookery.reproduction import compute
from rookery.reproduction.compute import compute_all, missing_data, save, stored
from rookery.reproduction.experiment import Cell, experiment, experiments
from rookery.reproduction.verdicts import rows
from tests.reproduction.command import run
from tests.reproduction.made_up import result, searched

EXPERIMENTS = experiments()
WITH_A_SEARCH = ("E3", "E10", "E11")
"""One that learns weights, one of minimax, one of client weighting: the first cell of each is also searched for."""


class Killing(Cell):
    """The process that receives it dies, as one does that the system ends for want of memory."""

    def __reduce__(self):
        return os._exit, (1,)


def first_cells():
    """Of every preset the first cell of each algorithm that no preset before it has on the same task; at least one."""
    seen, found = set(), {}
    for name, which in EXPERIMENTS.items():
        first = {cell.settings.algorithm: cell for cell in reversed(which.cells("tiny"))}
        new = [cell for cell in first.values() if (cell.settings.task, cell.settings.algorithm) not in seen]
        seen |= {(cell.settings.task, cell.settings.algorithm) for cell in new}
        found[name] = new or list(first.values())[-1:]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("name", "cells"), first_cells().items(), ids=list(EXPERIMENTS))
def test_every_experiment_in_tiny(name, cells, tmp_path):
    """With the algorithms' own rates: nothing is searched for."""
    which = EXPERIMENTS[name]
    if missing := missing_data(cells):
        pytest.skip(f"not here: {', '.join(missing)}")
    for cell in cells:
        plain = replace(cell, search=None)
        found = compute.compute(which, plain, tmp_path, False)
        save(plain, found, tmp_path)
        assert stored(plain, tmp_path) == json.loads(json.dumps(found))
    assert len(rows(which, tmp_path, "tiny")) == len(cells)


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_A_SEARCH)
def test_the_first_cell_in_tiny_with_its_search(name, tmp_path):
    which = EXPERIMENTS[name]
    cell = next(cell for cell in which.cells("tiny") if cell.search is not None)
    found = compute.compute(which, cell, tmp_path, False)
    save(cell, found, tmp_path)
    assert stored(cell, tmp_path)["search"]["digest"] == cell.search.digest
    assert found["search"]["runs"] <= cell.search.budget + cell.search.growth + 1
    (row,) = rows(which, tmp_path, "tiny")
    assert int(row.tried) == found["search"]["trials"] > 5


@pytest.mark.slow
def test_the_command_computes_what_is_missing_and_compares(tiny, monkeypatch):
    monkeypatch.setattr(compute, "search", lambda plan, folder: searched(plan))
    assert "A small one" in run("--list").output
    output = run("T1", "--jobs", "1").output
    assert "50 ± 1" in output
    assert "diverged" in output
    assert "FedBiO better than FedBiO, wild? " in output
    assert "Curves: reproduction/T1.png" in output
    assert (tiny / "reproduction" / "T1.png").stat().st_size > 5000
    stored = sorted(p.name for p in (tiny / "reproduction" / "T1").glob("*.json"))
    assert stored == ["iid--FedBiO.json", "iid--FedBiO__falling.json", "iid--FedBiO__wild.json"]
    last = json.loads((tiny / "reproduction" / "T1" / "iid--FedBiO__wild.json").read_text())["last"]
    assert last["distance"] == [None] * 3, "what a run that diverged showed last is no result"

    def fail(*arguments, **more):
        raise AssertionError("computed again")

    monkeypatch.setattr(compute, "compute", fail)
    run("T1")  # all is stored
    preset = tiny / "presets" / "T1.toml"
    preset.write_text(preset.read_text().replace("eta_y = 1e30", "eta_y = 1e29"))
    computed = []

    def now(which, cell, *_):
        computed.append(cell.method)
        return result(which, cell, [1.0, 1.0, 1.2])

    monkeypatch.setattr(compute, "compute", now)
    run("T1")
    assert computed == ["FedBiO, wild"]  # only what changed


def test_all_leaves_out_what_a_user_must_provide_and_says_so(tiny, monkeypatch):
    by_hand = replace(DATASETS["mnist"], name="by-hand", by_hand=True)
    text = (tiny / "presets" / "T1.toml").read_text()
    (tiny / "presets" / "T2.toml").write_text(text.replace("A small one", "Another"))
    monkeypatch.setitem(DATASETS, "by-hand", by_hand)
    monkeypatch.setattr("rookery.reproduction.compute.where", lambda dataset: None)
    monkeypatch.setattr("rookery.cli.reproduce.missing_data", lambda cells: missing_data(needing(cells)))
    monkeypatch.setattr(
        "rookery.cli.reproduce.compute_all", lambda due, *_: asked.extend(which.name for which, _ in due)
    )
    monkeypatch.setattr("rookery.cli.reproduce.draw", lambda *_: None)
    asked: list[str] = []

    def needing(cells):
        """Those of T2 need the data."""
        return [
            replace(cell, settings=replace(cell.settings, dataset="by-hand")) if cell.experiment == "T2" else cell
            for cell in cells
        ]

    output = run("all").output
    assert "T2 is left out: by-hand must be put into $ROOKERY_DATA by hand" in output
    assert set(asked) == {"T1"}
    asked.clear()
    run("T2")
    assert set(asked) == {"T2"}, "who asks for it by name is told by the data set what is missing"
    monkeypatch.setattr("rookery.reproduction.compute.where", lambda dataset: tiny)
    asked.clear()
    assert "left out" not in run("all").output
    assert set(asked) == {"T1", "T2"}


def test_what_must_be_provided_and_is_not_here(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOKERY_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photographs = EXPERIMENTS["E9-tiny"].cells()
    assert missing_data(EXPERIMENTS["E8"].cells()) == ["mini-imagenet"]
    assert missing_data(photographs) == ["resnet18.safetensors", "tiny-imagenet"]
    (tmp_path / "tiny-imagenet" / "tiny-imagenet-200").mkdir(parents=True)
    assert missing_data(photographs) == ["resnet18.safetensors"], "the data alone are not enough"
    (tmp_path / "resnet18.safetensors").touch()
    assert missing_data(photographs) == []
    assert missing_data(EXPERIMENTS["E9-tiny"].cells("tiny")) == missing_data(EXPERIMENTS["E9"].cells()) == []


@pytest.mark.slow
def test_cells_at_once_have_a_core_each_and_one_that_fails_does_not_stop_the_others(tiny, monkeypatch):
    monkeypatch.setenv("JAX_ENABLE_X64", "1")  # as the tests have it
    run("T1", "--jobs", "1")
    folder = tiny / "reproduction" / "T1"
    before = {path.name: json.loads(path.read_text()) for path in folder.glob("*.json")}
    output = run("all", "--again", "--jobs", "2").output
    assert "T1 iid/FedBiO: " in output
    for path in folder.glob("*.json"):
        after = json.loads(path.read_text())
        assert after["environment"]["cores"] == 1
        assert after["search"] == before[path.name]["search"], "rates stay"
        for point, values in after["values"].items():
            if None not in values:
                np.testing.assert_allclose(values, before[path.name]["values"][point], atol=1e-3)
    which = experiment("T1")
    cells = which.cells()
    bad = replace(cells[2], settings=replace(cells[2].settings, dataset="nothing"))
    done = []
    with pytest.raises(ValueError, match="nothing") as raised:
        compute_all([(which, bad), (which, cells[1])], 2, tiny / "reproduction", lambda cell, _: done.append(cell))
    assert done == [cells[1]]
    assert "1 of 2 cells failed" in raised.value.__notes__[0]
    killing = Killing("T1", "iid", "killing", "full", cells[0].settings, None)
    with pytest.raises(OSError, match="the system killed a worker process"):
        compute_all([(which, killing), (which, killing)], 2, tiny, lambda cell, _: done.append(cell))
