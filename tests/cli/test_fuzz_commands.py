"""Command lines that nobody meant: each ends at once, with status 0 or with status 2 and one line."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import typer
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from rookery.cli import main as cli
from rookery.cli import node, resume, run
from rookery.datasets.sources import published
from rookery.experiment.sweep import Trial
from tests.helpers.fuzzing import examples
from tests.helpers.own_problem import MAKE

LINES = (
    "run hyper-representation",
    "run hyper-representation --algorithm FedBiO --dataset mnist --rounds 5 --set eta_x=0.1 --set hidden=4 --out one",
    "run data-cleaning --clients 5 --participants 0.5 --local-steps 2-5 --batch-size 8,all --seeds 3 --json",
    "run fair-classification --seed 1 --every 2 --clients-at-once 4 --checkpoint-seconds 1 --engine flower --nodes 2",
    "run settings.toml --rounds 3 --set algorithm.eta_x=1 --set task.hidden=3",
    "run ridge.py --rounds 3 --set size=5 --set FedBiO.eta_x=1 --out own",
    "run ridge.py --devices 2 --rounds 3",
    "compare ridge.py:make --algorithms FedBiO,MeFBO --set FedBiO.eta_x=0.1 --set gamma_x=1 --out own",
    "sweep ridge.py --grid eta_x=0.1,0.2 --out own",
    "tune ridge.py --algorithms FedBiO,MeFBO --budget 5 --unit calls --rounds 3 --out own",
    "tune settings.toml --json",
    "list options ridge.py --json",
    "init new",
    "resume one --checkpoint-seconds 0 --json",
    "resume .",
    "compare hyper-representation --algorithms FedBiO,MeFBO --rounds 3 --seeds 2 --out both",
    "compare hyper-representation --algorithms FedBiO,FedNest --no-tune --budget 4 --unit bytes",
    "sweep hyper-representation --algorithm FedBiO --grid eta_x=0.1,0.2 --grid eta_y+eta_z=1 --lanes 4 --out s",
    "sweep fair-classification --random eta_x=0.001..1 --trials 3 --seeds 2",
    "report one two --out page.html --title Two",
    "reproduce E1 --only iid/MeFBO --quick --lanes 2 --jobs 1 --out results",
    "reproduce E1 --again",
    "list tasks --json",
    "list datasets",
    "demo --rounds 3 --seeds 2 --out demo",
    "data list --json",
    "data fetch mnist digits",
    "data verify digits --json",
    "deploy run --superlink 127.0.0.1:8000 --problem settings.toml --out d --rates eta_x=1 --quorum 0.5 --seed 1",
    "deploy certs keys --host localhost --nodes 1 --days 3",
    "node --superlink 127.0.0.1:8000 --problem settings.toml --partition 0-4 --folder n --patience 1",
    "--version",
)
SETTINGS = '[run]\ntask = "hyper-representation"\nalgorithm = "FedBiO"\n[task]\nhidden = 4\n'
OPTIONS = sorted({word for line in LINES for word in line.split() if word.startswith("--")})
PLAIN = "abcxyzABC019.,-+=_ []{}'\"%$~!?*:#é٣\n\x1b"  # no slash: whatever is written stays below this folder
VALUES = st.one_of(
    st.sampled_from(["", "-", "--", "0", "-1", "1e400", "nan", "inf", "9" * 400, "10000000000", "٣", "all", "None", "eta_x",
                     "eta_x=", "=1", "eta_x=nan", "eta_x=[1,[2]]", "eta_x={a=1}", "hidden=9999999999999999999",
                     "1-", "5-2", "0.5-1", "1,2,3", ",", "a..b", "eta_x=1..inf", "settings.toml", ".", "[bold]",
                     "c.scale=1", "ridge.py:np", "ridge.p", "json", ".py", ":", "a.b:c", "task.=1", "algorithm.x=1",
                     "hidden=true", "E99"]),
    st.text(PLAIN, max_size=12),
    st.sampled_from([word for line in LINES for word in line.split()]),
    st.integers(-(10**12), 10**12).map(str),
)  # fmt: skip


@st.composite
def lines(draw):
    """A line that works, with some words changed, lost, doubled or put in; or words alone."""
    words = draw(st.sampled_from(LINES)).split()
    if draw(st.integers(0, 9)) == 0:
        words = draw(st.lists(VALUES, max_size=5))
    for _ in range(draw(st.integers(0, 3))):
        kind, at = draw(st.sampled_from(["value", "lose", "double", "option", "put"])), draw(st.integers(0, len(words)))
        if kind == "option":
            words[at:at] = [draw(st.sampled_from(OPTIONS)), draw(VALUES)]
        elif kind == "put":
            words[at:at] = [draw(VALUES)]
        elif at < len(words):
            words[at : at + 1] = {"value": [draw(VALUES)], "lose": [], "double": [words[at]] * 2}[kind]
    return words


def found_nothing(all_settings, folder, *_, **__):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tuning.json").write_text('{"metric": "phi", "higher_is_better": false, "rounds": 1, "algorithms": {}}')
    return list(all_settings), None


def did_nothing(*_, **__):
    return SimpleNamespace(diverged=(), lanes=1, rounds=1)


@pytest.fixture
def somewhere(tmp_path, monkeypatch):
    """A folder to write in, and commands that stop where the work would begin."""
    place = tmp_path / "a" / "b"
    place.mkdir(parents=True)
    (place / "settings.toml").write_text(SETTINGS)
    (place / "ridge.py").write_text(MAKE)
    monkeypatch.chdir(place)
    for name in (
        "run.start_run",
        "resume.resume_run",
        "compare.start_run",
        "compare.resume_run",
        "demo.run_demo",
        "reproduce.compute_all",
        "reproduce.draw",
        "reproduce.write_docs",
        "deploy.run_deployed",
        "deploy.write_certificates",
        "deploy.write_node_key",
        "node.keep_compiled",
    ):
        monkeypatch.setattr(f"rookery.cli.{name}", did_nothing)
    for command in (run, resume):
        monkeypatch.setattr(command, "finish", lambda folder, work, as_json: work())
    for where in ("rates", "tune"):
        monkeypatch.setattr(f"rookery.cli.{where}.find_rates", found_nothing)
    monkeypatch.setattr(
        "rookery.cli.sweep.sweep", lambda settings, tried, *_, **__: [Trial(each, np.ones(1)) for each in tried]
    )
    monkeypatch.setattr("rookery.cli.data.fetch", lambda name: [Path(published(name).name)])
    monkeypatch.setattr("rookery.engines.flower.wire.adapter.node.serve", did_nothing)
    monkeypatch.setattr(node.signal, "signal", did_nothing)
    return place


@pytest.mark.fuzz
def test_a_line_that_nobody_meant_ends_with_status_0_or_with_2_and_one_line(somewhere):
    command = typer.main.get_command(cli.app)  # made once
    outside = sorted(somewhere.parent.parent.rglob("*"))
    counts = {0: 0, 1: 0, 2: 0}

    @examples(30, 10_000)
    @given(lines())
    def holds(words):
        done = CliRunner().invoke(command, words, prog_name="rookery")
        assert done.exception is None or isinstance(done.exception, SystemExit), (words, done.exception)
        allowed = (0, 1, 2) if "verify" in words else (0, 2)  # 1: a file is missing
        assert done.exit_code in allowed, (words, done.output)
        counts[done.exit_code] += 1
        if done.exit_code == 2 and "Usage:" not in done.stdout:  # which is shown where a command has no more to say
            told = [line for line in done.stderr.strip().splitlines() if not line.startswith("Warning: ")]
            assert len(told) == 1, (words, done.stderr)
        assert "Traceback" not in done.stderr

    holds()
    print(counts, file=sys.__stderr__)
    assert counts[0] > 0 < counts[2]
    assert [each for each in sorted(somewhere.parent.parent.rglob("*")) if somewhere not in each.parents] == [
        each for each in outside if somewhere not in each.parents
    ]
