"""The command, the task behind the demo, and its report."""

import numpy as np
import pytest
from typer.testing import CliRunner

import rookery as rk
from rookery.cli import app
from rookery.datasets import digits
from rookery.report import final_table, plot_curves
from rookery.tasks import hyper_representation


def test_list_shows_every_algorithm():
    result = CliRunner().invoke(app, ["list"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert all(name in result.output for name in rk.algorithms)


def test_version_and_help():
    assert rk.__version__ in CliRunner().invoke(app, ["--version"]).output
    assert "Example: rookery demo" in CliRunner().invoke(app, ["demo", "--help"]).output


@pytest.mark.parametrize(("option", "value"), [("--rounds", "0"), ("--seeds", "-1"), ("--rounds", "many")])
def test_bad_values_name_the_option(option, value):
    result = CliRunner().invoke(app, ["demo", option, value])
    assert result.exit_code == 2
    assert option in result.output


def test_digits():
    data = digits()
    assert data.train_images.dtype == np.uint8
    assert data.train_images.shape == (1438, 8, 8)
    assert data.test_images.shape == (359, 8, 8)
    assert data.classes == 10
    assert data.pixels == 64


@pytest.mark.parametrize("iid", [True, False])
def test_hyper_representation_splits(iid):
    data = digits()
    task = hyper_representation(data, clients=20, hidden=16, iid=iid)
    lower, upper = task.clients.lower, task.clients.upper
    assert lower.data["image"].dtype == np.uint8
    share = 0.5 if iid else 0.2
    np.testing.assert_allclose(upper.size / (upper.size + lower.size), share, atol=0.02)
    held = [np.asarray(split.rows(i, np.arange(split.size[i]))) for split in (lower, upper) for i in range(20)]
    assert len(np.unique(np.concatenate(held))) == sum(map(len, held))  # nobody shares an image
    classes = [len(np.unique(data.train_labels[rows])) for rows in held[:20]]
    assert max(classes) <= 5 if not iid else min(classes) >= 7


def test_hyper_representation_learns_and_is_reported(tmp_path):
    task = hyper_representation(digits(), clients=20, hidden=16)
    solution = rk.solve_many(
        task.problem, rk.FedBiO(eta_x=0.3, eta_z=0.03), task.clients, task.x0, task.y0, keys=[0, 1], rounds=60, every=20,
        participation=10, local_steps=3, batch_size=16, evaluate=task.evaluate,
    )  # fmt: skip
    accuracy = solution.history["accuracy"]
    assert accuracy.shape == (4, 2)
    assert (accuracy[0] < 0.4).all()
    assert (accuracy[-1] > 0.75).all()
    plot_curves({"FedBiO": solution.history}, "accuracy", "A title", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    table = final_table({"FedBiO": solution.history}, "accuracy", "A title")
    assert table.row_count == 1


@pytest.mark.slow
def test_demo(tmp_path):
    result = CliRunner().invoke(app, ["demo", "--rounds", "3", "--seeds", "2", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "digits.png").exists()
    assert all(name in result.output for name in ("MeFBO", "FedBiO", "FedBiOAcc", "SimFBO", "ASFBO", "LA-ASFBO"))
