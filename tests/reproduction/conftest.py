"""A small preset in the place of the package's."""

import pytest

from rookery.reproduction import experiment


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    """A folder to work in, with a preset T1."""
    folder = tmp_path / "presets"
    folder.mkdir()
    text = """
title = "A small one"
paper = "Nobody"
notes = "It is small."
legend = "iid: all alike."
history = "On a Tuesday."
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
    monkeypatch.setattr(experiment, "PRESETS", folder)
    monkeypatch.chdir(tmp_path)
    return tmp_path
