"""A problem of one's own in every command, as a user meets it."""

import json
import re
import tomllib

import numpy as np
import pytest
from typer.testing import CliRunner

import rookery as rk
from rookery.cli.main import app
from rookery.experiment.folder import read_run
from rookery.experiment.settings import resolve
from rookery.experiment.sites import open_site
from tests.helpers.own_problem import MAKE, PLAIN, RIDGE


def rookery(*arguments, code=0):
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ridge.py").write_text(MAKE)
    (tmp_path / "plain.py").write_text(PLAIN)
    return tmp_path


def test_run_resume_report_and_run_again(here):
    output = rookery("run", "ridge.py", "--seeds", 2, "--set", "size=6").output
    assert "ridge on own" in output
    assert "Run: runs/ridge-FedBiO-1" in output
    folder = here / "runs" / "ridge-FedBiO-1"
    assert "finished" in rookery("resume", folder).stderr
    rookery("run", folder / "config.toml", "--out", "two")
    np.testing.assert_array_equal(read_run(folder).history["loss"], read_run(here / "two").history["loss"])
    (here / "ridge.py").unlink()  # nothing of it is needed
    rookery("report", folder, "two")
    assert "Ridge on own" in (here / "report.html").read_text()
    told = tomllib.loads((here / "two" / "config.toml").read_text())
    assert (told["task"]["size"], told["source"]["title"], told["run"]["metric"]) == (6, "ridge", "loss")


def test_a_finished_run_of_a_changed_module_and_one_from_python_are_one_line(here):
    rookery("run", "ridge.py", "--rounds", 1, "--out", "one")
    (here / "ridge.py").write_text(MAKE + "\n# changed\n")
    (told,) = rookery("resume", "one", code=2).stderr.splitlines()
    assert told.endswith("start a new run, or put the file back as it was; one/problem.py is a copy of it")
    task = resolve({"task": "ridge.py"}).make_tasks()[0]
    rk.run(task.problem, "FedBiO", task.clients, task.x0, task.y0, rounds=1, folder="two")
    for line in (["resume", "two"], ["run", "two/config.toml"]):
        (told,) = rookery(*line, code=2).stderr.splitlines()
        assert told == "Error: two was made by rk.run, from Python: the same call of rk.run continues it"
    rookery("report", "one", "two")


def test_compare_sets_a_rate_of_one(here):
    rates = ["--set", "FedBiO.eta_x=0.2", "--set", "gamma_x=0.5"]
    told = json.loads(
        rookery(
            "compare", "ridge.py", "--algorithms", "FedBiO,MeFBO", "--rounds", 2, "--out", "c", "--json", *rates
        ).stdout
    )
    assert set(told) == {"FedBiO", "MeFBO"}
    tables = {name: tomllib.loads((here / "c" / name / "config.toml").read_text())["algorithm"] for name in told}
    assert (tables["FedBiO"]["eta_x"], tables["MeFBO"]["gamma_x"]) == (0.2, 0.5)
    assert tables["MeFBO"]["eta_x"] != 0.2
    (here / "ridge.py").write_text(MAKE + "\n# changed\n")
    again = rookery("compare", "ridge.py", "--algorithms", "FedBiO,MeFBO", "--rounds", 2, "--out", "c", *rates, code=2)
    assert "was changed since the run in c/FedBiO began" in again.stderr


def test_sweep_and_its_best(here):
    result = rookery(
        "sweep", "plain.py", "--algorithm", "FedBiO", "--rounds", 2, "--grid", "eta_x=0.1,0.2", "--out", "s"
    )
    assert "plain.py has no make(..., held_out) that holds data out" in result.stderr
    assert rookery("sweep", "ridge.py", "--rounds", 2, "--grid", "eta_x=0.1", "--out", "t").stderr == ""
    rookery("run", "s/best.toml", "--out", "best")
    assert read_run(here / "best").metric == "upper_loss"


def test_rounds_that_nobody_gave_are_told(here):
    assert "rounds: neither" not in rookery("run", "ridge.py").stderr
    (here / "plain.py").write_text(PLAIN.replace("rounds, local_steps", "_, local_steps"))
    told = rookery("run", "plain.py", "--algorithm", "FedBiO", "--no-tune").stderr
    assert told.strip() == "100 rounds: neither --rounds nor plain.py says how many."
    line = ["run", "plain.py", "--algorithm", "FedBiO", "--rounds", 3, "--no-tune"]
    assert "rounds: neither" not in rookery(*line).stderr


def test_list_options():
    lines = rookery("list", "options", "ridge.py").output.splitlines()
    assert lines == ["clients = 3", "size = 8", "scale = 1.0", "levels = [1, 2]", 'word = "a"', "nothing = (none)"]
    told = json.loads(rookery("list", "options", "hyper-representation", "--json").stdout)
    assert {"option": "hidden", "default": 32} in told or any(row["option"] == "hidden" for row in told)
    assert rookery("list", "options", "plain.py").output == "plain.py has no options.\n"


def test_init_writes_a_problem_that_runs(here):
    told = rookery("init", "study").output
    assert (here / "study" / "my_problem.py").exists()
    lines = [line.split()[1:] for line in told.splitlines() if line.startswith("  rookery")]
    assert [line[0] for line in lines] == ["run", "list", "tune", "compare", "sweep", "run"]
    assert "study/my_problem.py is there already" in rookery("init", "study", code=2).stderr
    last = json.loads(rookery(*lines[0], "--json").stdout)
    assert last["metric"] == "test_error"
    assert max(last["final"]["test_error"]) < 0.7  # 1 is what a constant predicts
    assert rookery(*lines[1]).output.splitlines() == ["clients = 5", "penalty = 0.0", "test = 0.2"]


@pytest.mark.slow
def test_what_init_says_runs():
    told = rookery("init", "study").output
    for line in told.splitlines():
        if line.startswith("  rookery"):
            rookery(*line.split()[1:])


@pytest.mark.federation
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ridge.py", "plain.py"])
def test_a_module_on_nodes_is_as_in_the_simulator(here, name):
    line = ["run", name, "--algorithm", "FedBiO", "--rounds", 4, "--batch-size", 4, "--seed", 3, "--no-tune"]
    rookery(*line, "--out", "here")
    rookery(*line, "--out", "nodes", "--engine", "flower", "--nodes", 2)
    one, other = (read_run(here / folder) for folder in ("here", "nodes"))
    np.testing.assert_allclose(one.history[one.metric].ravel(), other.history[one.metric].ravel(), rtol=1e-4)


OUR_LINE = "raise RuntimeError('no\\nway')"
MODULES = {
    "no problem": ("x0 = y0 = 1.0\n", "bad.py must define problem"),
    "no y0": (PLAIN.replace("x0, y0 =", "x0, y =") , "bad.py: it must define y0"),
    "no x0": (PLAIN.replace("x0, y0 =", "x, y0 =") , "bad.py: it must define x0"),
    "no clients": (PLAIN.replace("def load_client", "def load"), "bad.py: it must define clients, or num_clients and load"),
    "no number": (PLAIN.replace("num_clients", "number"), "bad.py: it must define num_clients"),
    "both": (MAKE + "\nproblem = 1\n", "bad.py defines both problem and make"),
    "raises": (f"import os\n{OUR_LINE}\n", "bad.py, line 2: importing it failed: RuntimeError: no way"),
    "exits": ("import sys\n\nsys.exit(3)\n", "bad.py, line 3: importing it failed: SystemExit: 3"),
    "syntax": ("x = 1\ndef make(:\n", "bad.py, line 2: importing it failed: SyntaxError"),
    "no module": ("import no_such_thing\n", "line 1: importing it failed: ModuleNotFoundError: No module named 'no_such"),
    "not text": (b"\xff\xfe\x00", "bad.py: importing it failed: SyntaxError"),
    "make fails": (f"def make(size=3):\n    {OUR_LINE}\n", "bad.py, line 2: make failed: RuntimeError: no way"),
    "make returns": ("def make():\n    return 3\n", "bad.py: make must return a dictionary, got a int"),
    "make misspells": (MAKE.replace('"evaluate": ', '"evalute": '), "there is no 'evalute'; did you mean 'evaluate'?"),
    "no default": ("def make(size):\n    pass\n", "bad.py: make must have a default for its option size"),
    "any option": ("def make(**options):\n    pass\n", "bad.py: make must name its options, got **options"),
    "odd default": ("def make(a=print):\n    pass\n", "the default of a must be a number, a word"),
    "metric": (
        MAKE.replace('"rounds": 6', '"metric": "accuracy"'),
        "bad.py: metric must be one that evaluate returns (loss, a, held), got 'accuracy'",
    ),
    "metric alone": (PLAIN + "\nmetric = 'accuracy'\n", "metric must be 'upper_loss' where there is no evaluate"),
    "evaluate fails": (MAKE.replace("jnp.max(y)", "y['w']"), "bad.py, line 29: making its task failed: TypeError"),
    "loss fails": (PLAIN.replace('batch["b"]', 'batch["c"]'), "'c'"),
    "evaluate returns": (PLAIN + "\nevaluate = lambda x, y: 3\n", "evaluate must return a dict of scalars, got 3"),
    "loader": (PLAIN.replace("return rk.Clients", "return list"), "making its task failed: TypeError"),
    "not a problem": (PLAIN + "\nproblem = upper\n", "bad.py: problem must be rk.Bilevel, rk.Minimax or rk.ClientW"),
    "rounds": (PLAIN.replace("= 7, 2, 4, 2", "= 'x', 2, 4, 2"), "rounds must be a whole number of at least 1, got 'x'"),
}  # fmt: skip


def only_one_line(result, message, before, here):
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert sorted(path for path in here.rglob("*") if "__pycache__" not in path.parts) == before


@pytest.mark.parametrize("case", MODULES)
def test_a_bad_module_is_one_line_and_leaves_nothing(here, case):
    text, message = MODULES[case]
    (here / "bad.py").write_bytes(text if isinstance(text, bytes) else text.encode())
    before = sorted(here.rglob("*"))
    only_one_line(rookery("run", "bad.py", "--algorithm", "FedBiO", "--out", "run", code=2), message, before, here)


LINES = {
    "no algorithm": ("run plain.py", "algorithm must be given for plain.py, with --algorithm or as algorithm in the"),
    "those that fit": ("run plain.py", "Algorithms for a bilevel problem: MeFBO, FedBiO,"),
    "another problem's": ("run plain.py --algorithm FedSGDA+", "FedSGDA+ solves minimax problems, this is a bilevel"),
    "one of two": ("compare ridge.py --algorithms FedBiO,AFL --out c", "AFL solves"),
    "option": ("run ridge.py --set sise=3", "--set: there is no 'sise'; did you mean 'size'?"),
    "seed is no option": ("run ridge.py --set seed=3", "--set: there is no 'seed'"),
    "kind": ("run ridge.py --set size=many", "task.size must be a whole number, got 'many'"),
    "clients": ("run ridge.py --clients 7", "clients must be 3, as ridge.py has them, got 7"),
    "dataset": ("run ridge.py --dataset mnist", "dataset must be one of own for ridge, got 'mnist'"),
    "no file": ("run nowhere.py", "there is no file nowhere.py"),
    "no module": ("run no.where", "there is no module no.where: give package.module or the path of a .py file"),
    "no name": ("run ridge.py:nothing_there", "the module does not define nothing_there"),
    "not a function": ("run ridge.py:np", "np must be a function or a dictionary"),
    "rate of none": ("compare ridge.py --algorithms FedBiO,MeFBO --set eta_q=1", "--set: there is no 'eta_q'"),
    "list": ("list options", "list options needs the name of a task or a module"),
    "list too much": ("list tasks ridge.py", "list tasks: got 'ridge.py' too"),
    "list of nothing": ("list options nothing", "task: there is no 'nothing'"),
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_a_bad_line_about_a_module_is_one_line_and_leaves_nothing(here, case):
    line, message = LINES[case]
    before = sorted(here.rglob("*"))
    only_one_line(rookery(*line.split(), code=2), message, before, here)


def test_the_flower_app_of_a_run_of_a_module_has_the_module(here):
    rookery("run", "ridge.py", "--rounds", 1, "--set", "size=5", "--out", "run")
    rookery("deploy", "init", "app", "--problem", "run/config.toml")
    (here / "ridge.py").unlink()
    assert open_site("app/federation/settings.toml").load([0]).lower.total == 5


def test_a_settings_file_may_name_a_module(here):
    (here / "mine.toml").write_text('[run]\ntask = "ridge.py"\nrounds = 2\n[task]\nsize = 5\n')
    rookery("run", "mine.toml", "--out", "run")
    told = tomllib.loads((here / "run" / "config.toml").read_text())
    assert (told["run"]["rounds"], told["task"]["size"]) == (2, 5)
    assert re.fullmatch("[0-9a-f]{64}", told["source"]["sha256"])
    assert RIDGE in (here / "run" / "problem.py").read_text()
