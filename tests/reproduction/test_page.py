"""The pages are current, their notes short, their minutes those that were recorded."""

import re
from pathlib import Path

import pytest

from rookery.reproduction.compute import stored
from rookery.reproduction.experiment import experiment, experiments
from rookery.reproduction.page import history_markdown, markdown, minutes_on_two_cores

ROOT = Path(__file__).parents[2]
NAMES = list(experiments())


@pytest.mark.parametrize("name", NAMES)
def test_the_expected_minutes_are_those_that_were_recorded(name):
    which = experiment(name)
    results = [stored(cell, ROOT / "reproduction") for cell in which.cells()]
    if None in results:
        pytest.skip("not computed as a whole")
    recorded = minutes_on_two_cores(results)
    assert abs(which.preset["minutes"] - recorded) <= max(2, 0.15 * recorded)


def test_the_page_is_current():
    assert (ROOT / "docs" / "reproduction.md").read_text() == markdown(ROOT / "reproduction"), (
        "run: rookery reproduce --write-docs"
    )
    assert (ROOT / "docs" / "reproduction_history.md").read_text() == history_markdown()
    size = sum(path.stat().st_size for path in (ROOT / "reproduction").rglob("*.json"))
    assert size < 2_000_000


def test_the_page_leads_to_the_history_of_every_experiment_that_has_one():
    page, history = markdown(ROOT / "reproduction"), history_markdown()
    for name in NAMES:
        assert (f"\n## {name}\n" in history) == bool(experiment(name).history)
    for link in re.findall(r"reproduction_history\.md#([\w-]+)", page):
        assert f"\n## {link}\n" in history.lower()
