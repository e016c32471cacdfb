"""The stored results are the evidence: they prove that all methods were tuned alike, and the page says what they say."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from rookery.reproduction.compute import Result, stored
from rookery.reproduction.experiment import SEED, Cell, Experiment, experiments
from rookery.reproduction.page import MINUTES, markdown, minutes_json
from rookery.reproduction.search import Searched

ROOT = Path(__file__).parents[2]
STORED = ROOT / "reproduction"
LEAST, MOST = 0.5, 1.0
"""A search spends at least this part of its budget, and overshoots it by at most so many runs: that which it has begun."""


@dataclass(frozen=True)
class Found:
    """A cell with its result, of the settings of today."""

    which: Experiment
    cell: Cell
    result: Result

    def __str__(self) -> str:
        return f"{self.cell.experiment} {self.cell.setting}/{self.cell.method}"

    @property
    def search(self) -> Searched:
        found = self.result["search"]
        assert found is not None
        return found

    @property
    def runs(self) -> float:
        """Runs' worth of rounds of its search, with the one that held x at its start, which ``runs`` does not count."""
        return self.search["runs"] + (self.search["frozen"] is not None)


ALL = [
    Found(which, cell, result)
    for which in experiments().values()
    for size in ("full", "quick")
    for cell in which.cells(size)
    if (result := stored(cell, STORED)) is not None
]
SEARCHED = [each for each in ALL if each.cell.search is not None]
NAMES = list(dict.fromkeys(each.which.name for each in SEARCHED))


def of(name):
    """The searched cells of an experiment."""
    return [each for each in SEARCHED if each.which.name == name]


def failing(cells, holds):
    """The names of those for which it does not hold."""
    return [str(each) for each in cells if not holds(each)]


def test_a_cell_was_searched_for_unless_all_its_rates_are_given():
    assert ALL
    assert not failing(ALL, lambda each: (each.result["search"] is None) == (each.cell.search is None))
    assert not failing(SEARCHED, lambda each: each.search["digest"] == each.cell.search.digest)


@pytest.mark.parametrize("name", NAMES)
def test_all_methods_of_an_experiment_had_the_same_budget(name):
    cells = of(name)
    assert len({(each.search["budget"], each.search["growth"]) for each in cells}) == 1
    assert len({each.search["metric"] for each in cells}) == 1
    assert {each.search["seed"] for each in cells} == {SEED}
    share = cells[0].which.preset.get("tuning", {}).get("share", 1.0)
    rounds = [(each.search["rounds"], each.result["settings"]["run"]["rounds"]) for each in cells]
    assert all(abs(searched - share * made) <= 0.5 or searched == 1 for searched, made in rounds)


@pytest.mark.parametrize("name", NAMES)
def test_nobody_spent_more_than_the_budget_or_was_cut_short(name):
    cells = of(name)
    assert not failing(cells, lambda each: each.runs <= each.search["budget"] + each.search["growth"] + MOST)
    assert not failing(cells, lambda each: each.runs >= LEAST * each.search["budget"] or each.search["diverged"])


@pytest.mark.parametrize("name", NAMES)
def test_the_best_lies_inside_of_what_was_tried_or_the_growth_was_spent(name):
    def spent(each):
        return each.runs >= each.search["growth"] + LEAST * each.search["budget"] or each.search["diverged"]

    assert not failing(of(name), lambda each: not each.search["ends"] or spent(each))


def test_what_ran_is_what_was_found():
    """The rates of a run are those of its search; what falls does so over the rounds of the run."""

    def rates(each):
        run = {"rounds": float(each.result["settings"]["run"]["rounds"])}
        falls = each.cell.search.falling
        return {name: {**rate, **run} if name in falls else rate for name, rate in each.search["rates"].items()}

    def ran(each):
        return {name: each.result["settings"]["algorithm"][name] for name in each.search["rates"]}

    assert not failing(SEARCHED, lambda each: ran(each) == rates(each))


def test_what_was_found_is_among_what_was_tried():
    def among(each):
        for name, (low, high) in each.search["ranges"].items():
            rate = each.search["rates"][name]
            value = rate.get("scale", rate.get("start")) if isinstance(rate, dict) else rate
            if not low * (1 - 1e-5) <= value <= high * (1 + 1e-5):
                return False
        return True

    assert not failing(SEARCHED, among)


def test_the_page_and_the_minutes_are_those_of_the_stored_results():
    told = (ROOT / "docs" / "reproduction.md").read_text()
    assert told == markdown(STORED), "run: rookery reproduce --write-docs"
    assert MINUTES.read_text() == minutes_json(STORED), "run: rookery reproduce --write-docs"


def test_no_result_is_stored_of_what_no_preset_has():
    known = {
        cell.path(STORED)
        for which in experiments().values()
        for size in ("full", "quick")
        for cell in which.cells(size)
    }
    there = {path for path in STORED.rglob("*.json") if path.parent.suffix != ".search"}  # which is under way
    assert not sorted(there - known)


def test_the_results_are_small():
    assert sum(path.stat().st_size for path in STORED.rglob("*.json")) < 4_000_000
    assert not failing(ALL, lambda each: len(each.result["curve"]["round"]) <= 60)
