"""Cells are computed once, stored, and computed again when their settings change."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rookery.datasets import DATASETS
from rookery.reproduction import compute
from rookery.reproduction.compute import compute_all, save, stored
from rookery.reproduction.experiment import Cell, experiment, experiments
from rookery.reproduction.verdicts import rows
from tests.reproduction.command import run

NAMES = list(experiments())


def missing(cells):
    """Which data sets the cells need that are not here."""
    needed = {cell.settings.dataset for cell in cells} & set(DATASETS) - {"digits"}
    folder = Path(os.environ.get("ROOKERY_DATA") or "nowhere")
    return sorted(name for name in needed if not (folder / name).is_dir())


class Killing(Cell):
    """The process that receives it dies, as one does that the system ends for want of memory."""

    def __reduce__(self):
        return os._exit, (1,)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_in_tiny(name, tmp_path):
    which = experiment(name)
    cells = which.cells("tiny")
    first = {cell.settings.algorithm: cell for cell in reversed(cells)}  # one cell for each
    if without := missing(first.values()):
        pytest.skip(f"ROOKERY_DATA has no {', '.join(without)}")
    for cell in first.values():
        result = compute.compute(cell, (which.axis, which.at("tiny")), which.metric, progress=False)
        save(cell, result, tmp_path)
        assert stored(cell, tmp_path) == json.loads(json.dumps(result))
    assert len(rows(which, tmp_path, "tiny")) == len(first)


@pytest.mark.slow
def test_the_command_computes_what_is_missing_and_compares(tiny, monkeypatch):
    assert "A small one" in run("--list").output
    output = run("T1", "--jobs", "1").output
    assert "50 ± 1" in output
    assert "diverged" in output
    assert "FedBiO better than FedBiO, wild? " in output
    assert "Curves: reproduction/T1.png" in output
    assert (tiny / "reproduction" / "T1.png").stat().st_size > 5000
    stored = sorted(p.name for p in (tiny / "reproduction" / "T1").glob("*.json"))
    assert stored == ["iid--FedAvg.json", "iid--FedBiO.json", "iid--FedBiO__wild.json"]

    def fail(*arguments, **more):
        raise AssertionError("computed again")

    really = compute.compute
    monkeypatch.setattr(compute, "compute", fail)
    run("T1")  # all is stored
    preset = tiny / "presets" / "T1.toml"
    preset.write_text(preset.read_text().replace("eta_x = 0.1\n", "eta_x = 0.2\n"))
    computed = []
    monkeypatch.setattr(compute, "compute", lambda cell, *more: (computed.append(cell.method), really(cell, *more))[1])
    run("T1")
    assert computed == ["FedBiO"]  # only what changed
    (tiny / "docs").mkdir()
    run("--write-docs")
    page = (tiny / "docs" / "reproduction.md").read_text()
    assert "3 of 3 cells" in page
    assert "| iid | FedBiO, wild (3 of 3 seeds diverged) | " in page
    assert "50 ± 1" in page
    assert (tiny / "docs" / "images" / "reproduction" / "T1.png").exists()
    assert "(reproduction_history.md#t1)" in page
    assert "## T1\n\nA small one.\n\nOn a Tuesday." in (tiny / "docs" / "reproduction_history.md").read_text()
    assert page.index("Nobody. **") < page.index("It is small.") < page.index("50 ± 1") < page.index("iid: all alike.")


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
    which = experiment("T1")
    cells = which.cells()
    bad = replace(cells[0], settings=replace(cells[0].settings, dataset="nothing"))
    done = []
    with pytest.raises(ValueError, match="nothing") as raised:
        compute_all([(which, bad), (which, cells[1])], 2, lambda cell, result: done.append(cell))
    assert done == [cells[1]]
    assert "1 of 2 cells failed" in raised.value.__notes__[0]
    killing = Killing("T1", "iid", "killing", "full", cells[0].settings)
    with pytest.raises(OSError, match="the system killed a worker process"):
        compute_all([(which, killing), (which, killing)], 2, lambda cell, result: done.append(cell))
