"""The conclusion, simple rivals and what was learned: what they say, and what damaged files do."""

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from rookery.experiment.folder import StoredRun
from rookery.report import Rival, conclusion, final_table, find_rivals, plot_curves, plot_picture, rivals_table
from rookery.report.exhibits import read_exhibits, read_learned
from rookery.report.page import page_data
from rookery.solving.history import History
from rookery.tasks import RECIPES
from tests.report.lessons import exhibits, lesson, lessons, rivals
from tests.report.test_report import sample_run, with_bad_seed


def ended(name: str, *finals: float, task: str = "own", **changes) -> StoredRun:
    """A run whose seeds end with these accuracies."""
    run = sample_run(name, seeds=len(finals), rounds=20, task=task, **changes)
    run.history.last["accuracy"] = np.array(finals)
    return run


GOOD, CLOSE, WORSE = ended("FedBiO", 0.95, 0.96), ended("MeFBO", 0.945, 0.957), ended("ASFBO", 0.90, 0.91)
PLAIN = Rival("plain averaging", "", False, {"accuracy": [0.80, 0.82]})
STRONG = Rival("balancing", "", False, {"accuracy": [0.955, 0.95]})
ORACLE = Rival("oracle", "", True, {"accuracy": [0.99, 0.99]})


# ---- The conclusion


def test_a_clear_winner_with_rivals_and_a_ceiling():
    told = conclusion([WORSE, GOOD], [PLAIN, ORACLE])
    assert told == (
        "Own on digits, judged by accuracy. FedBiO wins with an accuracy of 95.5 ± 0.7 %, 5.0 points ahead of ASFBO. "
        "The best simple rival, plain averaging, reaches 81.0 ± 1.4 %: nesting gains 14.5 points. "
        "The ceiling (oracle, 99.0 %) is 3.5 points away. FedBiO took 20 rounds and 8.8 MB of messages a seed, and 0.68 s "
        "for all seeds."
    )


def test_no_clear_winner_within_the_spread():
    told = conclusion([GOOD, CLOSE, WORSE])
    assert "No clear winner by accuracy: FedBiO (95.5 ± 0.7 %) and MeFBO (95.1 ± 0.8 %) differ by less" in told
    assert "ASFBO" not in told
    assert "wins" not in told


@pytest.mark.parametrize(
    ("finals", "words"),
    [([0.955, 0.95], "did as well (95.2 ± 0.4 %)"), ([0.98, 0.985], "did better, by 2.7 points (98.2 ± 0.4 %)")],
)
def test_nesting_does_not_pay(finals, words):
    told = conclusion([GOOD], [PLAIN, replace(STRONG, metrics={"accuracy": finals})])
    assert f"But balancing, a simple rival, {words}: nesting does not pay here." in told
    assert "gains" not in told


def test_one_seed_is_little():
    told = conclusion([ended("FedBiO", 0.95), ended("MeFBO", 0.94)])
    assert "1.0 point ahead of MeFBO, with one seed each, so that a small difference may be luck." in told
    assert "nothing that one seed could show" in conclusion([ended("FedBiO", 0.95), ended("MeFBO", 0.9499)])


def test_where_less_is_better():
    runs = [sample_run(name, metric="loss", higher_is_better=False) for name in ("ASFBO", "FedBiOAcc")]
    best = runs[1].history["loss"][-1].mean()
    told = conclusion(
        runs, [Rival("simple", metrics={"loss": [2 * best] * 2}), Rival("other", metrics={"speed": [9.0]})]
    )
    assert f"FedBiOAcc wins with a loss of {best:.4g}" in told
    assert f"nesting gains {best:.3g} (50 %)" in told
    assert "other" not in told


def test_what_went_wrong_is_told():
    lost = sample_run("FedBiO", seeds=3)
    lost.history.last["accuracy"] = np.full(3, np.nan)
    early = sample_run("ASFBO", rounds=100)
    early.config["run"]["rounds"] = 300
    runs = [
        lost,
        with_bad_seed(sample_run("MeFBO"), "frozen"),
        early,
        replace(early, history=History(), path=Path("e")),
    ]
    told = conclusion(runs, names=["A", "B", "C", "D"])
    assert "A diverged in all seeds." in told
    assert "B diverged in 1 of 3 seeds, which do not count." in told
    assert "C is unfinished: 100 of 300 rounds." in told
    assert "D has not been evaluated yet." in told
    assert "No run has a result yet." in conclusion([lost])
    with pytest.raises(ValueError, match="at least one run"):
        conclusion([])


def test_the_question_is_the_tasks(monkeypatch):
    recipe = replace(
        RECIPES["data-cleaning"], question="Which labels are wrong?", meanings={"accuracy": "How many are right."}
    )
    monkeypatch.setitem(RECIPES, "data-cleaning", recipe)
    run = sample_run("FedBiO", task="data-cleaning")
    run.config["task"]["noise"] = 0.123
    section = page_data([run])["sections"][0]
    assert section["conclusion"].startswith("Which labels are wrong? FedBiO reaches an accuracy of ")
    assert section["meaning"]["metrics"] == [["accuracy", "How many are right."]]
    assert ["noise", "0.123"] in [option[:2] for option in section["meaning"]["options"]]
    own = replace(run, config={**run.config, "source": {"title": "mine.py"}})  # a module that is called like a task
    assert conclusion([own]).startswith("Mine.py on digits, judged by accuracy.")


def test_where_rates_come_from():
    stored = RECIPES["hyper-representation"].defaults["digits"].rates["FedBiO"]
    runs = [
        sample_run("FedBiO", algorithm=dict(stored)),
        sample_run("SimFBO", algorithm={"gamma_x": 0.123}),
        sample_run("MeFBO", rates_from="default"),
    ]
    rates = page_data(runs)["sections"][0]["meaning"]["rates"]
    told = ["stored with the task, from a search", "given", "defaults, never tuned"]
    assert rates == [list(pair) for pair in zip(told, ("FedBiO", "SimFBO", "MeFBO"), strict=True)]


# ---- Rivals


def test_rivals_in_tables(tmp_path):
    runs = lessons(tmp_path)
    found = find_rivals(runs)
    assert [each.name for each in found.rivals] == ["plain federated averaging", "validation data alone", "oracle"]
    console = Console(width=80, record=True, file=io.StringIO())
    histories = {run.name: run.history for run in runs}
    console.print(final_table(histories, "accuracy", "Title"))
    console.print(rivals_table(histories, "accuracy", found.rivals))
    text = console.export_text()
    assert "simple rivals" in text
    assert "81.30 ± 0.85" in text
    assert "…" not in text  # fits into 80 columns
    assert found.seconds == 4.2
    section = page_data(runs)["sections"][0]
    assert [each["metrics"]["accuracy"]["mean"] for each in section["rivals"]] == [0.813, 0.88133333, 0.98]
    plot_curves(histories, "accuracy", "", tmp_path / "curves.png", rivals=found.rivals)


def test_a_better_rival_is_bold_and_a_ceiling_is_not():
    table = rivals_table({"a": GOOD.history}, "accuracy", [replace(STRONG, metrics={"accuracy": [0.97]}), ORACLE])
    assert [getattr(cell, "style", "") for cell in table.columns[1].cells] == ["bold", ""]


def test_damaged_rivals_are_told(tmp_path):
    runs = lessons(tmp_path)
    for content in ("[", "[]", "{}", '{"rivals": 3}', "[" * 100_000, "\x00"):
        (tmp_path / "rivals.json").write_text(content)
        found = find_rivals(runs)
        assert found.rivals == ()
        (problem,) = found.problems
        assert problem.startswith(f"rivals.json in {tmp_path.name} is damaged: ")
        assert page_data(runs)["sections"][0]["learned"]["problems"] == [problem]
    bad = rivals()
    bad["rivals"] += [None, {"name": 3}, {"name": "x", "metrics": {"accuracy": ["a"]}}, {"name": "y", "metrics": 1}]
    bad["rivals"][0]["metrics"]["accuracy"] = [float("nan"), 0.8, None]
    bad["rivals"][1]["name"] = "a\x1b[31m\ud800\nb"
    (tmp_path / "rivals.json").write_text(json.dumps(bad))
    found = find_rivals(runs)
    assert len(found.problems) == 4
    assert found.rivals[0].over("accuracy").count == [1]
    assert found.rivals[1].name == "a\ufffd[31m\ufffd b"


# ---- What was learned


def test_figures_have_a_series_for_each_run_and_rival(tmp_path):
    runs = lessons(tmp_path)
    other = exhibits(2)
    other[2]["labels"][3] = "three"
    lesson(tmp_path, "FedNest", other)
    learned = page_data(runs)["sections"][0]["learned"]
    assert learned["problems"] == []
    by_class, shifts, roc = learned["figures"]
    assert [each["name"] for each in by_class["series"]] == [
        "ASFBO",
        "FedBiOAcc",
        "FedNest",
        "plain federated averaging",
    ]
    assert by_class["labels"] == [*map(str, range(10)), "three"]
    assert [each["values"][3] is None for each in by_class["series"]] == [False, False, True, False]
    assert len(shifts["series"]) == len(roc["series"]) == 3
    assert [runs[each["run"]].name for each in learned["runs"]] == ["FedBiOAcc", "FedNest", "ASFBO"]  # the best first
    history = next(each for each in learned["runs"][0]["exhibits"] if each["kind"] == "history")
    np.testing.assert_allclose(history["series"][3]["y"], runs[1].history["weight_3"].mean(1), rtol=1e-5)


def ruined():
    """Each kind with something wrong, and the word by which the page tells it."""
    samples, _, bars, _, lines, history, table, groups = exhibits()
    picture = samples["items"][0]
    yield {}, "kind"
    yield None, "object"
    yield {**bars, "kind": "pie"}, "'pie'"
    yield {**bars, "kind": ["bars"]}, "none of"
    yield {**bars, "values": [1]}, "10 labels and 1 values"
    yield {**bars, "values": ["x"] * 10}, "no number"
    yield {**bars, "values": [10**400] * 10}, "no number"
    yield {**bars, "labels": ["x"] * 5000, "values": [0] * 5000}, "more than"
    yield {**bars, "title": 3}, "title"
    yield {**lines, "y": [1]}, "60 entries and y 1"
    yield {**history, "columns": {"nothing": "x"}}, "'nothing'"
    yield {**history, "columns": []}, "columns"
    yield {**table, "rows": [[1]]}, "3 cells"
    yield {**samples, "items": [{"cells": []}]}, "0 cells for 4"
    for image in (
        {"shape": [9, 8, 1]},
        {"shape": [10**6, 10**6, 3]},
        {"shape": [8, 8]},
        {"pixels": "é"},
        {"pixels": 3},
    ):
        yield {**samples, "items": [{**picture, "image": {**picture["image"], **image}}]}, "image"
    yield {**groups, "groups": [{"support": [{"label": "x"}], "query": []}]}, "image"


@pytest.mark.parametrize(("exhibit", "word"), list(ruined()))
def test_a_damaged_exhibit_is_told_and_the_others_shown(exhibit, word):
    good = exhibits()[2]
    found, (problem,) = read_exhibits([good, exhibit], "learned.json of A", GOOD.history)
    assert [each["title"] for each in found] == ["Accuracy by class"]
    assert problem.startswith("Exhibit 2 in learned.json of A is damaged: ")
    assert word in problem


def test_numbers_that_are_not_finite_reach_the_page_as_none(tmp_path):
    bars = {**exhibits()[2], "values": [float("nan"), float("inf"), *[0.5] * 8]}
    run = lesson(tmp_path, "FedBiO", [bars, {**exhibits()[6], "rows": [["a", float("nan"), None]]}])
    assert read_learned(run)[0][1]["rows"] == [["a", "nan", "–"]]
    json.dumps(page_data([run]), allow_nan=False)


# ---- One picture


def test_one_picture(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, *a, **k: drawn.append(figure))
    arguments = {"title": "Why", "bars": {"plain": 61.2, "cleaning": 93.1}, "highlight": "cleaning"}
    samples = [(np.zeros((8, 8)), "given 3,\nlooks like 8")] * 5 + [(np.zeros((8, 8, 3)), "colour")]
    plot_picture(tmp_path / "a.png", **arguments, samples=samples)
    bars, *images = [axis for part in drawn[0].subfigs for axis in part.axes]
    assert [bar.get_width() for bar in bars.patches] == [61.2, 93.1]
    assert bars.patches[0].get_facecolor() != bars.patches[1].get_facecolor()
    assert [axis.get_title() for axis in images if axis.images] == [caption for _, caption in samples]
    plot_picture(tmp_path / "b.png", **arguments, curves={"a": ([0, 1], [0, 1])}, axes=("across", "up"))
    assert len(drawn[1].subfigs[1].axes[0].lines) == 1
    plot_picture(tmp_path / "c.png", **arguments, beside={"a": 0.1, "b": -0.2})
    assert len(drawn[2].subfigs[1].axes[0].patches) == 2
    wrong = [
        ({}, "exactly one"),
        ({"beside": {"a": 1}, "bars": {}}, "bars"),
        ({"beside": {"a": 1}, "highlight": "x"}, "'x'"),
    ]
    for change, message in wrong:
        with pytest.raises(ValueError, match=message):
            plot_picture(tmp_path / "d.png", **{**arguments, **change})
