"""Commands that search for rates, as a user meets them."""

import json
import tomllib

import pytest
from typer.testing import CliRunner

from rookery.cli.main import app
from rookery.experiment.folder import read_run
from rookery.stopping import Interrupted
from rookery.tuning.journal import Journal
from tests.helpers.own_problem import MAKE, PLAIN

NAMED = MAKE.replace("rk.FedBiO(eta_x=0.1, eta_y=0.1, eta_z=0.1)", '"FedBiO"').replace('"rounds": 6', '"rounds": 15')
JUDGED = NAMED.replace('"evaluate": evaluate', '"evaluate": evaluate, "metric": "held"')
QUICK = ["--budget", 3]


def rookery(*arguments, code=0):
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "named.py").write_text(NAMED)
    (tmp_path / "judged.py").write_text(JUDGED)
    (tmp_path / "plain.py").write_text(PLAIN)
    return tmp_path


def table(path, name):
    return tomllib.loads(path.read_text())[name]


def found(folder):
    return json.loads((folder / "tuning.json").read_text())


def names_in(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def stopping(monkeypatch, after):
    """A search is stopped after so many batches. The list of those that were computed."""
    add, computed = Journal.add, []

    def killed(self, *outcome):
        add(self, *outcome)
        computed.append(outcome)
        if len(computed) == after:
            raise Interrupted(2)

    monkeypatch.setattr(Journal, "add", killed)
    return computed


def test_tune_leaves_settings_to_run(here):
    line = ["tune", "named.py", "--algorithms", "FedBiO,SimFBO", *QUICK, "--out", "t"]
    told = json.loads(rookery(*line, "--json").stdout)
    assert told["files"] == {"FedBiO": "t/FedBiO.toml", "SimFBO": "t/SimFBO.toml"}
    assert names_in(here / "t") == ["FedBiO.toml", "SimFBO.toml", "tuning.json"]
    assert {name: value for name, value in told.items() if name != "files"} == found(here / "t")
    assert (told["metric"], told["rounds"], told["budget"]["runs"]) == ("phi", 15, 3.0)
    for name, each in told["algorithms"].items():
        assert table(here / "t" / f"{name}.toml", "algorithm") == each["rates"]
        assert each["score"] < each["start"]
    rookery("run", "t/FedBiO.toml", "--out", "run")
    assert table(here / "run" / "config.toml", "algorithm") == told["algorithms"]["FedBiO"]["rates"]
    assert "tuning.json" not in names_in(here / "run")  # they were there: nothing was searched for


@pytest.mark.slow
def test_tune_of_a_task_searches_whatever_is_stored_and_tells(here):
    line = ["tune", "quadratic-bilevel", "--algorithms", "FedBiO", "--rounds", 15, "--local-steps", 1, *QUICK]
    result = rookery(*line)
    assert "Rates by" in result.output
    assert "Best: runs/quadratic-bilevel-tuning-1/FedBiO.toml (rookery run " in result.output
    rates = table(here / "runs" / "quadratic-bilevel-tuning-1" / "FedBiO.toml", "algorithm")
    assert rates["eta_x"] != 0.01  # what is stored


def test_run_writes_the_rates_that_it_found_and_repeats_them(here):
    result = rookery("run", "named.py", *QUICK, "--seeds", 2, "--out", "one")
    assert "Rates by Φ" in result.stderr
    assert "untuned" not in result.output
    assert "tuning" not in names_in(here / "one")  # the journal of a search that is done
    rates = table(here / "one" / "config.toml", "algorithm")
    assert rates == found(here / "one")["algorithms"]["FedBiO"]["rates"]
    assert "holds a run already" in rookery("run", "named.py", "--out", "one", code=2).stderr
    assert "Rates by" not in rookery("run", "one/config.toml", "--out", "two").stderr
    assert "tuning.json" not in names_in(here / "two")
    first, second = ((here / name / "result.safetensors").read_bytes() for name in ("one", "two"))
    assert first == second
    rookery("report", "one")
    assert "configurations tried" in (here / "report.html").read_text()


@pytest.mark.slow
def test_candidates_are_judged_on_held_out_data_and_runs_are_not(here):
    rookery("run", "judged.py", *QUICK, "--out", "run")
    assert found(here / "run")["metric"] == "held"
    assert {trial["score"] for trial in found(here / "run")["algorithms"]["FedBiO"]["trials"]} <= {1.0, None}
    assert read_run(here / "run").history["held"][-1] == 0.0


def test_without_a_search_the_table_says_untuned(here):
    output = rookery("run", "named.py", "--no-tune", "--out", "one").output
    assert "FedBiO (untuned)" in output
    assert table(here / "one" / "config.toml", "run")["rates_from"] == "default"
    assert "tuning.json" not in names_in(here / "one")
    output = rookery("run", "named.py", "--set", "eta_x=0.2", "--out", "two").output
    assert "FedBiO" in output
    assert "untuned" not in output
    assert "tuning.json" not in names_in(here / "two")


def test_compare_searches_for_all_but_those_that_are_given(here):
    line = ["compare", "named.py", "--algorithms", "FedBiO,SimFBO", *QUICK]
    result = rookery(*line, "--set", "FedBiO.eta_x=0.2", "--out", "one")
    assert "untuned" not in result.output
    assert list(found(here / "one")["algorithms"]) == ["SimFBO"]
    assert table(here / "one" / "FedBiO" / "config.toml", "algorithm")["eta_x"] == 0.2
    rates = found(here / "one")["algorithms"]["SimFBO"]["rates"]
    assert table(here / "one" / "SimFBO" / "config.toml", "algorithm") == rates


@pytest.mark.slow
def test_compare_without_a_search_says_untuned(here):
    line = ["compare", "named.py", "--algorithms", "FedBiO,SimFBO", "--no-tune", "--set", "SimFBO.eta_x=0.2"]
    output = rookery(*line, "--out", "two").output
    assert "FedBiO (untuned)" in output
    assert "SimFBO (untuned)" not in output
    assert "tuning.json" not in names_in(here / "two")


@pytest.mark.slow
def test_compare_searches_even_where_rates_are_stored(here):
    line = ["compare", "quadratic-bilevel", "--algorithms", "FedBiO", "--rounds", 15, "--local-steps", 1]
    rookery(*line, *QUICK, "--out", "one")
    assert table(here / "one" / "FedBiO" / "config.toml", "algorithm")["eta_x"] != 0.01
    output = rookery(*line, "--no-tune", "--out", "two").output
    assert table(here / "two" / "FedBiO" / "config.toml", "algorithm")["eta_x"] == 0.01
    assert "untuned" not in output


def test_a_search_that_was_interrupted_goes_on_with_the_same_command(here, monkeypatch):
    line = ["tune", "named.py", "--batch-size", 4]
    rookery(*line, "--out", "whole")
    monkeypatch.setattr("sys.argv", ["rookery", "the", "line"])
    with monkeypatch.context() as patched:
        stopping(patched, 3)
        stopped = rookery(*line, "--out", "t", code=130)
    assert stopped.stderr.strip() == "Interrupted. Continue with: rookery the line"
    assert names_in(here / "t") == ["tuning"]
    computed = stopping(monkeypatch, 0)
    rookery(*line, "--out", "t")
    assert names_in(here / "t") == names_in(here / "whole")
    one, other = (found(here / name)["algorithms"]["FedBiO"] for name in ("whole", "t"))
    assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert len(computed) > 0
    assert computed[0][1] != [1, list(range(8))], "the first batch was stored"


@pytest.mark.slow
def test_a_run_that_was_interrupted_in_its_search_goes_on_with_the_same_command(here, monkeypatch):
    with monkeypatch.context() as patched:
        stopping(patched, 2)
        rookery("run", "named.py", *QUICK, "--out", "run", code=130)
    assert names_in(here / "run") == ["tuning"]
    rookery("run", "named.py", *QUICK, "--out", "run")
    assert read_run(here / "run").finished
    again = rookery("run", "named.py", *QUICK, "--out", "other")
    assert again.exit_code == 0
    assert (here / "run" / "result.safetensors").read_bytes() == (here / "other" / "result.safetensors").read_bytes()


@pytest.mark.slow
def test_a_comparison_that_was_interrupted_does_not_search_again(here, monkeypatch):
    line = ["compare", "named.py", "--algorithms", "FedBiO,SimFBO", *QUICK, "--out", "c"]

    def stop(*_, **__):
        raise Interrupted(2)

    with monkeypatch.context() as patched:
        patched.setattr("rookery.cli.compare.start_run", stop)
        rookery(*line, code=130)
    before = found(here / "c")["algorithms"]
    computed = stopping(monkeypatch, 0)
    rookery(*line)
    assert computed == []
    assert names_in(here / "c") == ["FedBiO", "SimFBO", "report.html", "report.pdf", "report.png", "tuning.json"]
    for name, each in before.items():
        assert table(here / "c" / name / "config.toml", "algorithm") == each["rates"]


BAD = {
    "budget": ("tune named.py --budget 1", "budget must be at least 3 (runs' worth: less is too little to try"),
    "nan": ("tune named.py --budget nan", "budget must be at least 3"),
    "budget of a run": ("run named.py --budget 1 --out run", "budget must be at least 3"),
    "unit": ("tune named.py --unit hours", "--unit must be rounds, calls or bytes, got 'hours'"),
    "unit of a run": ("run named.py --unit hours --out run", "--unit must be rounds, calls or bytes, got 'hours'"),
    "unit of a comparison": ("compare named.py --algorithms FedBiO --unit hours --out c", "--unit must be rounds"),
    "metric": ("tune metric.py", "metric.py: metric must be one that evaluate returns (loss, a, held), got 'accuracy'"),
    "nothing held out": ("tune plain.py --algorithms FedBiO --budget 2", "budget must be at least 3"),
    "no algorithm": ("tune plain.py", "algorithm must be given for plain.py"),
    "no name": ("tune named.py --algorithms ,", "--algorithms must be names separated by commas, got ','"),
    "twice": ("tune named.py --algorithms FedBiO,fedbio", "algorithms must be different ones, got FedBiO, FedBiO"),
    "another problem's": ("tune named.py --algorithms AFL", "AFL solves"),
    "no such": ("tune named.py --algorithms FedBio2", "algorithm: there is no 'FedBio2'; did you mean 'FedBiO'?"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(here, case):
    line, message = BAD[case]
    (here / "metric.py").write_text(NAMED.replace('"evaluate": evaluate', '"evaluate": evaluate, "metric": "accuracy"'))
    before = sorted(here.rglob("*"))
    result = rookery(*line.split(), code=2)
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr
    assert sorted(path for path in here.rglob("*") if "__pycache__" not in path.parts) == before


@pytest.mark.slow
def test_a_module_that_holds_nothing_out_is_told_of(here):
    told = rookery("tune", "plain.py", "--algorithms", "FedBiO", *QUICK, "--json").stderr
    assert told.startswith("Rates are scored by what runs are judged by: plain.py has no make(..., held_out)")
