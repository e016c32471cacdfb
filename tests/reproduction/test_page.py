"""The page is made from stored results alone, and the command says beforehand how long it will take."""

import json

import pytest

from rookery.reproduction.compute import save
from rookery.reproduction.experiment import experiment
from rookery.reproduction.page import expected_minutes, markdown, minutes_json
from tests.reproduction.command import run
from tests.reproduction.made_up import result


@pytest.fixture
def results(tiny):
    """T1 with a result for two of its three cells."""
    which = experiment("T1")
    for cell, values in zip(which.cells()[1:], ([1.0, 1.1, 1.3], [None] * 3), strict=True):
        save(cell, result(which, cell, values, ["diverged"] * values.count(None)), tiny / "reproduction")
    return tiny / "reproduction"


def test_an_experiment_without_results_says_how_to_get_them(tiny):
    text = markdown(tiny / "reproduction")
    assert "| [T1](#t1-a-small-one) | FedBiO is ahead. | not computed |  | It is small. |" in text
    assert (
        "## T1: A small one\n\nNobody. *Claimed:* FedBiO is ahead. Not computed here: `rookery reproduce T1`." in text
    )


def test_an_experiment_says_what_must_be_provided(tmp_path):
    text = markdown(tmp_path)
    assert (
        "Not computed here, since mini-imagenet must be put into $ROOKERY_DATA by hand; then `rookery reproduce E8`."
        in text
    )
    needs = "resnet18.safetensors and tiny-imagenet must be"
    assert f"Not computed here, since {needs} put into $ROOKERY_DATA by hand; then `rookery reproduce E9-tiny`." in text
    assert f"not computed: {needs} provided |" in text


def test_the_page_tells_what_is_asked_what_was_found_and_why(results, tiny):
    text = markdown(results)
    assert "2 of 3 cells" in text
    assert "| iid | FedBiO, falling | 1.1333 ± 0.1528 | 1.1333 ± 0.1528 | 1.13 ± 0.15 | 17 |" in text
    assert "| iid | FedBiO, wild (3 of 3 diverged) | diverged | diverged | 0 ± 0 | given |" in text
    assert "published, 5" not in text, "what was published is of a cell without a result"
    order = [
        "Nobody.",
        "FedBiO is ahead.",
        "*Found:* no claims",
        "It is small.",
        "| iid | FedBiO, falling",
        "iid: all alike.",
    ]
    section = text[text.index("## T1") :]
    places = [section.index(each) for each in order]
    assert places == sorted(places)
    which = experiment("T1")
    cell = which.cells()[0]
    save(cell, result(which, cell, [1.0, 1.0, 1.2]), results)
    text = markdown(results)
    assert "*Found:* **1 not decided** (n = 3, p ≥ 0.12)." in text, "three seeds of three decide nothing by a sign test"
    assert "| 50 ± 1 | 60 ± 2 | 17 |" in text
    assert "Published numbers reached: 2 of 2." in text, "less is better"
    assert "†" not in text[text.index("## T1") :]
    assert "| iid | FedBiO better than FedBiO, wild | " in text
    for each in which.cells():
        save(each, {**result(which, each, [1.0, 1.0, 1.2]), "digest": "of another day"}, results)
    text = markdown(results)
    assert "*Found:* † **1 not decided** (n = 3, p ≥ 1)." in text
    assert "Published numbers reached: † 2 of 2." in text
    assert "| 1 | not decided † |" in text


def test_the_command_writes_the_page_the_figures_and_the_minutes(results, tiny):
    (tiny / "docs").mkdir()
    assert "minutes.json" in run("--write-docs").output
    assert (tiny / "docs" / "reproduction.md").read_text() == markdown(results)
    assert (tiny / "docs" / "images" / "reproduction" / "T1.png").stat().st_size > 5000
    told = json.loads((tiny / "presets" / "minutes.json").read_text())
    assert told == {"T1": {"iid/FedBiO, falling": 3.0, "iid/FedBiO, wild": 1.0}}
    assert (tiny / "presets" / "minutes.json").read_text() == minutes_json(results)


def test_what_was_never_timed_takes_as_long_as_the_others_of_its_experiment(results, tiny):
    which = experiment("T1")
    due = [(which, cell) for cell in which.cells()]
    assert expected_minutes(due, 2) == "?"
    (tiny / "presets" / "minutes.json").write_text(minutes_json(results))
    assert expected_minutes(due, 1) == "6"  # 2 + 3 + 1
    assert expected_minutes(due, 2) == "3"


def test_the_command_says_beforehand_how_long_it_will_take(results, tiny, monkeypatch):
    def computed(due, jobs, out, done):
        for which, cell in due:
            done(cell, result(which, cell, [1.0, 1.0, 1.2]))

    (tiny / "presets" / "minutes.json").write_text(minutes_json(results))
    monkeypatch.setattr("rookery.cli.reproduce.compute_all", computed)
    output = run("T1", "--jobs", "1").output
    assert "1 cell, 1 at a time, about 2 minutes." in output, "only what is not stored"
    assert output.index("about 2 minutes") < output.index("T1 iid/FedBiO: 3.0 minutes of a core")
    assert "3 cells, 2 at a time, about 3 minutes." in run("T1", "--again", "--jobs", "2").output
    assert "about" not in run("T1", "--again", "--quick", "--jobs", "2").output, "minutes are those of the full size"
    table = run("--list").output
    assert "A small one" in table
    assert table.split("Nobody")[1].split()[1:6:2] == ["3", "3", "3"], "cells, stored, minutes"
