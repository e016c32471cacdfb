"""A small preset in the place of the package's."""

import pytest

from rookery.reproduction import experiment, page

PRESET = """
title = "A small one"
paper = "Nobody"
asks = "FedBiO is ahead."
why = "It is small."
legend = "iid: all alike."
metric = "distance"
higher_is_better = false
percent = false
at = [5, 10]
also = ["hypergradient"]
claims = [{ better = "FedBiO", worse = "FedBiO, wild" }]
published = [{ setting = "iid", method = "FedBiO", values = [50.0, 60.0], deviations = [1.0, 2.0] }]

[run]
task = "quadratic-bilevel"
clients = 2
rounds = 10
every = 5
seeds = 3

[task]
dimension = 2
spread = 0.1

[tuning]
share = 0.5

[quick]
at = [5]
run = { rounds = 5 }

[settings]
iid = {}

[methods]
FedBiO = {}
"FedBiO, falling" = { algorithm = "FedBiO", falling = ["eta_x"] }
"FedBiO, wild" = { algorithm = "FedBiO", published = true, rates = { eta_x = 0.1, eta_y = 1e30, eta_z = 0.1 } }
"""


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A folder to work in, with a preset T1."""
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "T1.toml").write_text(PRESET)
    monkeypatch.setattr(experiment, "PRESETS", folder)
    monkeypatch.setattr(page, "MINUTES", folder / "minutes.json")
    monkeypatch.chdir(tmp_path)
    return tmp_path
