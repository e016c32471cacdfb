"""--aggregate, --privacy and --secure, as a user spells them: what is read, and one line for what is wrong."""

import pytest
from typer.testing import CliRunner

from rookery.cli.main import app

QUADRATIC = ["quadratic-bilevel", "--rounds", "4"]
RUN = ["run", *QUADRATIC, "--no-tune", "--out", "never"]
COMPARE = ["compare", *QUADRATIC, "--algorithms", "FedBiO,MeFBO", "--no-tune"]
SWEEP = ["sweep", *QUADRATIC, "--grid", "eta_x=0.1,0.2"]
PRIVATE = ["--privacy", "clip=1, noise=1, delta=0.01"]
DEPLOY = ["deploy", "run", "--superlink", "127.0.0.1:9", "--problem", "quadratic-bilevel", "--out", "never"]

READ = {
    "run": (["run", *QUADRATIC, "--no-tune", "--aggregate", "Median"], "Median()"),
    "with a name": ([*RUN, "--aggregate", "MultiKrum(f=1, m=3)"], "MultiKrum(f=1, m=3)"),
    "privacy": ([*RUN, *PRIVATE], "ClientPrivacy(clip=1, noise=1, delta=0.01"),
    "compare": ([*COMPARE, "--aggregate", "TrimmedMean(0.2)"], "TrimmedMean(share=0.2)"),
    "tune": (["tune", *QUADRATIC, "--aggregate", "NormClip('median')"], "NormClip(bound='median')"),
    "sweep": ([*SWEEP, "--aggregate", "Krum(2)"], "Krum(f=2)"),
}
WRONG = {
    "share": ([*RUN, "--aggregate", "TrimmedMean(0.6)"], "aggregate: TrimmedMean: share must be in (0, 0.499]"),
    "no number": ([*RUN, "--aggregate", "Krum"], "argument: 'f' in 'Krum'"),
    "another number": ([*COMPARE, "--aggregate", "Krum(f=2, m=1)"], "unexpected keyword argument 'm' in 'Krum(f=2, m=1)'"),
    "no rule": (["tune", *QUADRATIC, "--aggregate", "Foo(1)"], "aggregate must be written such as TrimmedMean(0.2)"),
    "no end": ([*SWEEP, "--aggregate", "Krum(f=2"], "aggregate must be written such as TrimmedMean(0.2)"),
    "too few clients": ([*RUN, "--aggregate", "Krum(5)"], "needs at least 13 participants (2f + 3), there may be only 10"),
    "clip": ([*RUN, "--privacy", "clip=0, noise=1"], "privacy: clip must be positive or rk.AdaptiveClip(), got 0"),
    "adaptive clip": (
        [*RUN, "--privacy", "clip=AdaptiveClip(start=-1), noise=1"],
        "privacy: AdaptiveClip: start must be positive, got -1",
    ),
    "no clip": ([*RUN, "--privacy", "noise=1"], "argument: 'clip' in 'ClientPrivacy(noise=1)'"),
    "words": ([*RUN, "--privacy", "a lot"], "privacy must be written such as clip=0.5, noise=1.0, delta=1e-5"),
    "both": ([*RUN, "--aggregate", "Median", *PRIVATE], "privacy goes with the weighted mean alone"),
    "no nodes": ([*RUN, "--secure", "0.6"], "--secure is for --engine flower"),
    "half": ([*RUN, "--engine", "flower", "--nodes", "5", "--secure", "0.5"], "threshold must be"),
    "two nodes": ([*RUN, "--engine", "flower", "--nodes", "2", "--secure", "0.6"], "must have at least 3 nodes"),
    "deployed": ([*DEPLOY, "--secure", "1.5"], "threshold must be"),
}  # fmt: skip


NODES = ["--engine", "flower", "--nodes", "3", "--secure", "0.6"]


def told(*arguments):
    """What the one line says that the command ends with."""
    result = CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2, (result.output, result.exception)
    (line,) = result.stderr.strip().splitlines()
    return line


@pytest.fixture(autouse=True)
def somewhere_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", READ)
def test_what_is_spelled_well_is_read(case, monkeypatch):
    def reached(settings, *_, **__):
        chosen = settings[0] if isinstance(settings, list) else settings
        raise ValueError(str(chosen.trust))

    for name in ("run.start_run", "compare.start_run", "tune.find_rates", "sweep.sweep"):
        monkeypatch.setattr(f"rookery.cli.{name}", reached)
    arguments, expected = READ[case]
    assert expected in told(*arguments)


def test_no_search_is_made_for_what_nodes_refuse(somewhere_else, monkeypatch):
    def searched(*_, **__):
        raise AssertionError("it searched")

    monkeypatch.setattr("rookery.experiment.tuned.search_rates", searched)
    run = ["run", *QUADRATIC, "--algorithm", "ShroFBO", "--out", "never", *NODES]
    assert "aggregate and secure exclude each other" in told(*run, "--aggregate", "Median")
    assert not (somewhere_else / "never").exists()


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_in_one_line_and_leaves_nothing(case, somewhere_else):
    arguments, expected = WRONG[case]
    assert expected in told(*arguments)
    assert not (somewhere_else / "never").exists()
