"""The command, as a user meets it."""

import csv
import importlib.metadata
import json
import re
import signal
import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

import rookery as rk
from rookery.cli.main import app
from rookery.datasets import DATASETS
from rookery.engines.flower.launch import processes
from rookery.experiment import running
from rookery.experiment.folder import read_run
from rookery.experiment.sweep import Trial, at_edges, best, grid, random_rates
from rookery.stopping import Interrupted
from rookery.tasks import RECIPES

pytestmark = pytest.mark.first

SMALL = ["--rounds", "4", "--clients", "10", "--participants", "4", "--batch-size", "8", "--set",
         "hidden=4"]  # fmt: skip
HYPER = ["hyper-representation", *SMALL]
LEAN = ["--no-rivals"]  # where a test is not about them


def rookery(*arguments, code=0):
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_list():
    assert all(name in rookery("list").output for name in rk.registry)
    assert all(name in rookery("list", "tasks").output for name in RECIPES)
    assert all(name in rookery("list", "datasets").output for name in DATASETS)
    rows = {row["algorithm"]: row for row in json.loads(rookery("list", "algorithms", "--json").output)}
    assert rows["FedAvg"]["constraints"] == "y"
    assert "choose algorithms, tasks, datasets or options, got 'models'" in rookery("list", "models", code=2).stderr


@pytest.mark.slow
def test_lists_fit_into_80_columns_and_cut_no_name():
    for what, names in (("algorithms", rk.registry), ("tasks", RECIPES), ("datasets", DATASETS)):
        result = CliRunner().invoke(app, ["list", what], env={"COLUMNS": "80"})
        lines = result.output.splitlines()
        assert max(map(len, lines)) <= 80
        assert "…" not in result.output
        for name in names:
            assert any(line == name or line.startswith(name + " ") for line in lines), name
        if what == "algorithms":
            assert "bilevel-local" in result.output
            assert "PrimalDual   P" in result.output  # nor the name of a paper
    classes = {line.strip() for line in rookery("list").output.splitlines() if line.startswith("  ")}
    assert {"ExactGD", "AverageWeights", "FedSGDAPlus"} <= classes


def test_version_and_help():
    assert importlib.metadata.version("rookery") in rookery("--version").output
    assert "Print the version and exit." in rookery("--help").output
    for name in ("run", "resume", "compare", "tune", "sweep", "report", "list", "demo"):
        assert "Example" in rookery(name, "--help").output, name


BAD = {
    "a word": (["run", "hyper-representation", "--rounds", "many"], "'--rounds': 'many' is not a valid int"),
    "no such option": (["run", "hyper-representation", "--round", "1"], "No such option"),
    "nothing": (["run"], "Missing argument"),
    "no command": (["fly"], "No such command 'fly'"),
    "task": (["run", "hyper"], "task: there is no 'hyper'; did you mean 'hyper-representation'?"),
    "algorithm": (["run", *HYPER, "--algorithm", "MeFB"], "algorithm: there is no 'MeFB'; did you mean 'MeFBO'?"),
    "another problem's": (["run", *HYPER, "--algorithm", "FedSGDA+"], "FedSGDA+"),
    "dataset": (["run", *HYPER, "--dataset", "cifar"], "dataset must be one of digits"),
    "rounds": (["run", "hyper-representation", "--rounds", "0"], "rounds must be a whole number of at least 1, got 0"),
    "participants": (["run", *HYPER, "--participants", "11"], "cannot draw 11 participants from 10 clients"),
    "probability": (["run", *HYPER, "--participants", "-0.5"], "participants must be a number of clients"),
    "option": (["run", *HYPER, "--set", "hiden=3"], "--set: there is no 'hiden'; did you mean 'hidden'?"),
    "value": (["run", *HYPER, "--set", "hidden=x"], "task.hidden must be a whole number, got 'x'"),
    "rate": (["run", *HYPER, "--set", "gamma_x=big"], "MeFBO.gamma_x must be a number or a schedule, got 'big'"),
    "file": (["run", "nowhere.toml"], "nowhere.toml"),
    "resume": (["resume", "."], "holds no run: there is no config.toml in it"),
    "report": (["report", "nowhere"], "nowhere is not a folder of a run"),
    "compare": (["compare", *HYPER, "--algorithms", "MeFBO,mefbo"], "--algorithms must be different names"),
    "budget": (["tune", *HYPER, "--budget", "1"], "budget must be at least 3"),
    "unit": (["tune", *HYPER, "--unit", "hours"], "--unit must be rounds, calls or bytes, got 'hours'"),
    "sweep": (["sweep", *HYPER], "sweep needs either --grid"),
    "grid": (["sweep", *HYPER, "--grid", "gamma_x=a,b"], "--grid must be NAME=V1,V2"),
    "grid name": (["sweep", *HYPER, "--grid", "gama_x=1"], "there is no 'gama_x'; did you mean 'gamma_x'?"),
    "range": (
        ["sweep", *HYPER, "--random", "gamma_x=2..1", "--trials", "2"],
        "--random must be NAME=LOW..HIGH with 0 <",
    ),
    "trials": (["sweep", *HYPER, "--random", "gamma_x=1..2"], "--random needs --trials"),
}


def test_flower_that_is_not_installed_is_one_line(monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(processes.importlib.metadata, "version", missing)
    monkeypatch.setattr(running, "environment", dict)  # which tells versions too
    result = rookery("run", *HYPER, "--engine", "flower", "--out", "flower", code=2)
    assert result.stderr.splitlines() == [
        'Error: rk.Flower needs Flower, which is not installed: pip install "rookery[flower]"'
    ]


def test_a_warning_is_one_line():
    result = rookery("run", *HYPER, "--batch-size", "8,5000", "--rounds", 1, *LEAN, "--out", "warned")
    told = [line for line in result.stderr.splitlines() if "batch_size" in line]
    assert len(told) == 1
    assert re.match(r"Warning: batch_size 5000 is more than the \d+ upper examples of client \d+: ", told[0])
    assert "validation.py" not in result.stderr


@pytest.mark.parametrize("case", BAD)
def test_bad_values_are_one_line_and_status_2(case):
    arguments, message = BAD[case]
    result = rookery(*arguments, code=2)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "Traceback" not in result.stderr


def test_debug_shows_where():
    result = CliRunner().invoke(app, ["--debug", "run", "hyper"])
    assert isinstance(result.exception, ValueError)


STOPS = {
    "run": (["run", *HYPER, "--out", "one"], "start_run", "Continue with: rookery resume one"),
    "compare": (
        ["compare", *HYPER, "--algorithms", "FedBiO", "--no-tune"], "start_run",
        "Continue with: rookery the line --out runs/hyper-representation-comparison-1",
    ),
    "compare there": (
        ["compare", *HYPER, "--algorithms", "FedBiO", "--no-tune", "--out", "here"], "start_run",
        "Continue with: rookery the line",
    ),
    "tune": (
        ["tune", *HYPER], "find_rates", "Continue with: rookery the line --out runs/hyper-representation-tuning-1"
    ),
    "tune there": (["tune", *HYPER, "--out", "here"], "find_rates", "Continue with: rookery the line"),
    "sweep": (
        ["sweep", *HYPER, "--grid", "gamma_x=1"], "sweep",
        "Nothing of a sweep is kept. Start it again with: rookery the line",
    ),
    "reproduce": (["reproduce", "E1"], "_compute", "What is done is stored. Continue with: rookery the line"),
    "demo": (["demo"], "run_demo", "Start it again with: rookery the line"),
    "report": (["report", "."], "find_runs", ""),
}  # fmt: skip


@pytest.mark.parametrize(("number", "word", "code"), [("SIGINT", "Interrupted.", 130), ("SIGTERM", "Terminated.", 143)])
@pytest.mark.parametrize("case", STOPS)
def test_a_command_that_is_stopped_says_in_one_line_what_goes_on(monkeypatch, case, number, word, code):
    arguments, name, line = STOPS[case]

    def stop(*_, **__):
        stopped = Interrupted(getattr(signal, number))
        if case != "report":
            stopped.add_note("Continue with: rookery resume one")
        raise stopped

    monkeypatch.setattr(f"rookery.cli.{arguments[0]}.{name}", stop)
    monkeypatch.setattr("sys.argv", ["rookery", "the", "line"])
    assert rookery(*arguments, code=code).stderr.strip() == f"{word} {line}".strip()


def test_run_report_and_run_again(tmp_path):
    tracked = ["--track", "tensorboard"]
    told = json.loads(rookery("run", *HYPER, "--seeds", 2, *tracked, *LEAN, "--out", "one", "--json").stdout)
    assert told["metric"] == "accuracy"
    assert told["final"]["round"] == 4
    assert len(told["final"]["accuracy"]) == 2
    assert list((tmp_path / "one" / "tensorboard").glob("seed-1/events*"))
    assert "holds a run already" in rookery("run", *HYPER, "--out", "one", code=2).stderr
    assert "finished" in rookery("resume", "one").stderr
    rookery("run", "one/config.toml", *LEAN, "--out", "two")
    for name in ("accuracy", "loss", "bytes_up"):
        np.testing.assert_array_equal(
            read_run(tmp_path / "one").history[name], read_run(tmp_path / "two").history[name]
        )
    output = rookery("report", "one", "two", "--out", "page/report.html", "--title", "Two runs").output
    assert "Report: page/report.html" in output
    assert "Two runs" in (tmp_path / "page" / "report.html").read_text()
    assert (tmp_path / "page" / "report.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "page" / "report.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.slow
def test_runs_get_folders_of_their_own(tmp_path):
    task = ["hyper-representation", "--algorithm", "FedAvg", "--no-tune", *SMALL]
    for number in (1, 2):
        assert f"runs/hyper-representation-FedAvg-{number}" in rookery("run", *task, *LEAN).output


@pytest.mark.slow
def test_compare(tmp_path):
    arguments = ["compare", *HYPER, "--algorithms", "FedBiO, FedAvg", "--seeds", 2, "--no-tune", "--out", "both", *LEAN]
    output = rookery(*arguments).output
    assert "FedBiO" in output
    assert "FedAvg" in output
    assert (tmp_path / "both" / "report.html").exists()
    again = json.loads(rookery(*arguments, "--json").stdout)  # goes on, which is nothing to do
    assert set(again) == {"FedBiO", "FedAvg"}


@pytest.mark.slow
def test_sweep(tmp_path):
    task = ["hyper-representation", *SMALL, "--algorithm", "FedBiO", "--seeds", 2, "--lanes", 4]
    grids = ["--grid", "eta_x=0.1,0.2", "--grid", "eta_y=0.1,1e30"]
    told = json.loads(rookery("sweep", *task, *grids, "--out", "s", "--json").stdout)
    means = [trial["mean"] for trial in told["trials"]]
    assert np.isnan(means).tolist() == [False, True, False, True]  # a rate of 1e30 diverges
    with open(tmp_path / "s" / "sweep.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["eta_x"] for row in rows] == ["0.1", "0.1", "0.2", "0.2"]
    found = tomllib.loads((tmp_path / "s" / "best.toml").read_text())
    assert found["algorithm"]["eta_x"] == told["best"]["eta_x"]
    assert found["algorithm"]["eta_y"] == 0.1
    assert found["run"]["held_out"] is False  # what is run with it is judged on test data
    rookery("run", "s/best.toml", *LEAN, "--out", "best")
    assert "every configuration diverged" in rookery("sweep", *task, "--grid", "eta_y=1e30,1e31", code=2).stderr


@pytest.mark.slow
def test_sweeps_draw_log_uniformly_and_choose_by_the_mean():
    drawn = np.array([each["a"] for each in random_rates({"a": (1e-3, 1e3)}, 2000, 0)])
    assert abs(np.median(np.log10(drawn))) < 0.2
    assert drawn.min() >= 1e-3
    assert drawn.max() <= 1e3
    assert grid({"a": [1, 2], "b": [3]}) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    assert grid({"a+c": [1, 2], "b": [3]}) == [{"a": 1, "c": 1, "b": 3}, {"a": 2, "c": 2, "b": 3}]
    trials = [Trial({}, np.array(scores)) for scores in ([1.0, 3.0], [np.nan, 9.0], [2.5, 2.5])]
    assert best(trials, True) is trials[2]
    assert best(trials, False) is trials[0]


def test_a_best_rate_at_an_edge():
    values = {"a": [1.0, 2.0, 3.0], "b+c": [0.1, 0.2], "d": [5.0]}
    winner = Trial({"a": 2.0, "b": 0.2, "c": 0.2, "d": 5.0}, np.ones(1))
    assert at_edges(winner, values, {}) == {"b+c": "largest"}
    assert at_edges(Trial({**winner.rates, "a": 1.0, "b": 0.1}, np.ones(1)), values, {}) == {
        "a": "smallest", "b+c": "smallest"}  # fmt: skip
    ranges = {"a": (0.001, 1.0), "b": (0.001, 1.0), "c": (0.001, 1.0)}
    drawn = Trial({"a": 0.0019, "b": 0.0021, "c": 0.9}, np.ones(1))
    assert at_edges(drawn, {}, ranges) == {"a": "smallest", "c": "largest"}


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_sweep_says_when_the_best_is_at_an_edge_and_shows_no_deviation_of_one_seed(monkeypatch, seeds):
    scores = {0.1: 0.3, 0.2: 0.5}
    trials = [Trial({"eta_x": eta}, score + 0.1 * np.arange(seeds)) for eta, score in scores.items()]
    monkeypatch.setattr("rookery.cli.sweep.sweep", lambda *arguments, **options: trials)
    task = [*HYPER, "--algorithm", "FedBiO", "--grid", "eta_x=0.1,0.2", "--seeds", seeds]
    told = rookery("sweep", *task, "--out", "s").output
    assert "The best eta_x is among the largest tried: try larger ones too." in told
    assert [line.split()[-2] for line in told.splitlines() if "0.2 " in line] == ["–" if seeds == 1 else "0.07071"]
    assert json.loads(rookery("sweep", *task, "--out", "s", "--json").stdout)["at_edge"] == {"eta_x": "largest"}


@pytest.mark.slow
def test_a_run_that_diverges_says_so():
    rates = ["--set", "eta_y=1e30", "--set", "eta_x=1e30"]
    result = rookery("run", *HYPER, "--algorithm", "FedBiO", *rates, *LEAN, code=1)
    assert "Diverged: lane 0:" in result.stderr
    assert "try smaller rates" in result.stderr


@pytest.mark.slow
def test_demo(tmp_path):
    output = rookery("demo", "--rounds", 3, "--seeds", 2, "--out", "demo").output
    assert (tmp_path / "demo" / "digits.png").exists()
    assert (tmp_path / "demo" / "report.html").exists()
    assert all(name in output for name in ("MeFBO", "FedBiO", "FedBiOAcc", "SimFBO", "ASFBO", "LA-ASFBO"))
    rookery("demo", "--rounds", 2, "--seeds", 1, "--out", "demo")  # again, in the same place
    assert read_run(tmp_path / "demo" / "MeFBO").history["round"][-1] == 2
