"""The leaderboard has all algorithms, gives each the same, and says what the stored results say."""

import csv
import io
import json
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import rookery as rk
from rookery.catalogue import catalogue
from rookery.report.tables import spent
from rookery.reproduction import compute, leaderboard
from rookery.reproduction.compute import save
from rookery.reproduction.experiment import Experiment, experiment
from rookery.reproduction.leaderboard import NAME, Standing, as_csv, best, equal, markdown, standings, write_docs
from rookery.reproduction.reals import BOXES, COMPLEXITY, FREE, Reals, bilevel, counted
from tests.reproduction.made_up import result

ROOT = Path(__file__).parents[2]
STORED = ROOT / "reproduction"
BOARD = experiment(NAME)
EXCHANGES = BOARD.at()[-1]
SIZE = {"iid": 0, "shards": 3}


def learned(cell):
    """How accurate a method might become."""
    return 0.97 - 0.01 * (zlib.crc32(cell.method.encode()) % 23 + SIZE[cell.setting])


def made_up(cell, last=None):
    """A result with curve and costs, of seeds that differ by a thousandth."""
    end, rounds = learned(cell) if last is None else last, cell.settings.rounds
    points = np.unique(np.linspace(0, rounds, min(rounds, 30) + 1).round())
    sent = counted(cell.settings.algorithm)
    made = sent.exchanges * rounds
    size = 157_000, 2_010

    def reals(each):
        return each.x * size[0] + each.y * size[1] + each.ones

    per_seed = {
        "exchanges": made, "bytes_down": 40 * rounds * reals(sent.down), "bytes_up": 40 * rounds * reals(sent.up),
        "grad_f": 20 * rounds, "grad_g": 10 * made, "hvp": 50 * rounds, "jvp": 10 * rounds, "server_grad_f": 0,
    }  # fmt: skip
    mean = 0.1 + (end - 0.1) * (1 - np.exp(-5 * points / rounds)) / (1 - np.exp(-5))
    spread = 0.001 * (np.arange(cell.settings.seeds) - (cell.settings.seeds - 1) / 2)
    reached = {str(point): mean[points * sent.exchanges <= point][-1] for point in BOARD.at(cell.size)}
    found = result(BOARD, cell, {point: (value + spread).tolist() for point, value in reached.items()})
    found["curve"] = {
        "round": points.tolist(), "exchanges": (points * sent.exchanges).tolist(), "mean": mean.tolist(),
        "deviation": [0.001] * len(points),
    }  # fmt: skip
    found["last"] |= {name: [float(value)] * cell.settings.seeds for name, value in per_seed.items()}
    return {**found, "rounds_seconds": 5.0 * rounds}


def fill(folder, but=(), size="full"):
    for cell in BOARD.cells(size):
        if cell.method not in but:
            save(cell, made_up(cell), folder)


def in_small(method, seeds, rounds, at):
    """The preset in tiny, with so many seeds, rounds of a method with one exchange a round, and columns; and its cell."""
    run = {**BOARD.preset["tiny"]["run"], "seeds": seeds, "rounds": rounds}
    which = Experiment(NAME, {**BOARD.preset, "tiny": {**BOARD.preset["tiny"], "at": at, "run": run}})
    return which, replace(which.cells("tiny", [f"iid/{method}"])[0], search=None)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    fill(folder)
    return folder


def test_all_algorithms_of_the_global_problem_are_there():
    """A new one cannot be forgotten."""
    names = [entry.name for entry in catalogue() if entry.solves == "bilevel"]
    assert set(names) == set(bilevel())
    for size in ("full", "quick", "tiny"):
        for setting in BOARD.preset["settings"]:
            there = [cell.settings.algorithm for cell in BOARD.cells(size) if cell.setting == setting]
            assert sorted(there) == sorted(names)
    assert set(BOARD.preset["methods"]) == set(names), "each under its own name, with its own options"


@pytest.mark.parametrize("size", ["full", "quick"])
def test_all_have_the_same_budget_and_the_same_exchanges(size):
    cells, limit = BOARD.cells(size), BOARD.at(size)[-1]
    assert len({(cell.search.budget, cell.search.growth, cell.settings.seeds) for cell in cells}) == 1
    assert not any(cell.settings.rates for cell in cells)
    for cell in cells:
        a_round = counted(cell.settings.algorithm).exchanges
        made = a_round * cell.settings.rounds
        assert limit <= made < limit + a_round, f"{cell.method} makes {made}"
        assert cell.settings.every * a_round <= 20, "the last evaluation is near the last exchange"
        assert cell.settings.rounds / cell.settings.every <= 60, "all evaluations are stored"


@pytest.mark.parametrize("name", bilevel())
def test_the_presets_change_rounds_alone(name):
    assert set(BOARD.preset["methods"][name]) <= {"run"}
    assert set(BOARD.preset["methods"][name].get("run", {})) <= {"rounds", "every"}


def test_ranking(full):
    ranked = standings(BOARD, full, "full")
    assert list(ranked) == list(BOARD.preset["settings"])
    for setting, each in ranked.items():
        assert len(each) == len(bilevel())
        scores = [learned(s.cell) for s in each]
        assert scores == sorted(scores, reverse=True)
        assert {s.cell.setting for s in each} == {setting}
    first = ranked["iid"][0].cell.method
    assert best(ranked)[0] == first
    text = markdown(full)
    assert f"**iid: {first} is the most accurate** after {EXCHANGES} exchanges" in text
    assert f"after at\n  most {EXCHANGES} exchanges" in text
    assert "A run of the search makes as many rounds as a run." in text
    assert "Nothing is computed" not in text
    assert "cells have a result" not in text, "all have"


def test_what_it_cost(full):
    """Up to the last evaluation within the exchanges; a run that makes more is not charged for them."""
    by_name = {s.cell.method: s for s in standings(BOARD, full, "full")["iid"]}
    simfbo = by_name["SimFBO"]
    assert simfbo.cost("exchanges")[simfbo.end] == EXCHANGES
    reals = 2 * (157_000 + 2 * 2_010)
    assert simfbo.cost("megabytes")[simfbo.end] == pytest.approx(40e-6 * EXCHANGES * reals)
    assert simfbo.cost("products")[simfbo.end] == 60 * EXCHANGES
    assert simfbo.cost("seconds")[simfbo.end] == pytest.approx(5.0 * EXCHANGES / 5)
    sgd = by_name["FedNest_SGD"]
    assert sgd.cell.settings.rounds * 9 > EXCHANGES
    assert sgd.cost("exchanges")[sgd.end] == EXCHANGES - EXCHANGES % 9


def test_what_a_real_run_cost(tmp_path):
    """Two of three rounds of SimFBO, counted by hand: x are 64·8 + 8 weights, y are 8·10 + 10, in float64."""
    which, cell = in_small("SimFBO", 2, 3, [2])
    standing = Standing(which, cell, compute.compute(which, cell, tmp_path, False))
    x, y, rounds, participants = 520, 90, 2, 10
    costs = {
        "exchanges": rounds,
        "megabytes": 2 * rounds * participants * 8 * (x + 2 * y) / 1e6,
        "gradients": 3 * rounds * participants,
        "products": 2 * rounds * participants,
        "oracle_calls": 5 * rounds * participants,
    }
    assert {name: standing.cost(name)[standing.end] for name in costs} == pytest.approx(costs)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["FedMBO", "FedNest_random"])
def test_where_exchanges_are_drawn_accuracy_and_costs_are_of_the_same_evaluation(method, tmp_path, monkeypatch):
    """Of a real run, in whichever column."""
    histories, make = [], compute.make_rounds
    monkeypatch.setattr(compute, "make_rounds", lambda *given: histories.append(make(*given)) or histories[-1])
    columns = list(range(20, 100))
    which, cell = in_small(method, 4, 100, columns)
    found = compute.compute(which, cell, tmp_path, False)
    history = histories[0].history
    made, by_mean = history["exchanges"], 0
    for column in columns:
        standing = Standing(Experiment(NAME, {**which.preset, "tiny": {"at": [column]}}), cell, found)
        place = np.flatnonzero(made.max(1) <= column)[-1]
        by_mean += place < np.flatnonzero(made.mean(1) <= column)[-1]
        assert standing.values == pytest.approx(history["accuracy"][place], rel=1e-5)
        assert standing.curve[standing.end] == pytest.approx(history["accuracy"][place].mean(), rel=1e-5)
        assert standing.cost("exchanges")[standing.end] == pytest.approx(made[place].mean(), rel=1e-5)
        for cost in ("megabytes", "oracle_calls"):
            assert standing.cost(cost)[standing.end] == pytest.approx(spent(history, cost)[place], rel=0.1)
    assert by_mean > 0, "the mean over seeds would be another evaluation"


def test_the_end_where_one_seed_made_more_exchanges():
    """At the evaluation of the stored values, also if the mean over seeds is below the column after it."""
    cell = next(cell for cell in BOARD.cells() if cell.method == "FedMBO")
    found = made_up(cell)
    rounds = [0, 50, 56, 58, 60]
    mean = [0.1, 0.9, 0.91, 0.92, 0.93]
    found["curve"] = {"round": rounds, "exchanges": [0, 250, 280, 290, 299], "mean": mean, "deviation": None}
    found["last"]["exchanges"] = [299.0, 280.0, 299.0, 299.0, 318.0]
    for place, value in enumerate(mean[1:], 1):
        found["values"]["300"] = [value + 0.001 * (seed - 2) for seed in range(5)]
        standing = Standing(BOARD, cell, found)
        assert standing.end == place
        assert standing.at("exchanges", 1000.0) == value, "nothing after its end counts"
    found["values"]["300"] = [0.5] * 5  # its evaluation is not among those of the curve that are stored
    assert Standing(BOARD, cell, found).end == 2, "60 rounds take 318 exchanges: 300 are made after 56.6"
    found["curve"]["mean"] = [0.1, 0.9, None, None, None]
    found["values"]["300"] = [0.9, 0.9, 0.9, 0.9, None]
    assert Standing(BOARD, cell, found).end == 2, "one diverged, so that means are alike"


@pytest.mark.parametrize(("gain", "clear"), [(0.9, "not clearly"), (1.2, "clearly")])
def test_clearly_before_is_two_sided(gain, clear, tmp_path):
    """By five seeds: with t = 2.4 it is p = 0.035 one-sided, and 0.07 two-sided."""
    fill(tmp_path)
    noise = np.array([-1, -0.5, 0, 0.5, 1])
    for cell in BOARD.cells():
        if cell.setting == "iid" and cell.method in ("SimFBO", "MeFBO"):
            found = made_up(cell, 0.98)
            more = 0.001 * (noise + gain) if cell.method == "SimFBO" else np.zeros(5)
            found["values"]["300"] = (0.98 + more).tolist()
            save(cell, found, tmp_path)
    from scipy import stats

    p = stats.ttest_1samp(noise + gain, 0).pvalue
    assert p / 2 < 0.05, "one-sided, both were clear"
    assert (p < 0.05) == (clear == "clearly")
    assert f", {clear} before MeFBO (98.00 ± 0.00 %, p = {p:.2g})" in markdown(tmp_path)


def test_the_quick_size_says_its_own_exchanges(tmp_path):
    fill(tmp_path, size="quick")
    text = markdown(tmp_path)
    assert "after at\n  most 60 exchanges" in text
    assert "is the most accurate** after 60 exchanges" in text
    assert "300 exchanges" not in text


def test_equal_megabytes_are_those_of_the_method_that_sends_least_and_learns_x(full):
    ranked = standings(BOARD, full, "full")["iid"]
    given = equal(ranked, "megabytes")
    spent = {s.cell.method: s.cost("megabytes")[s.end] for s in ranked}
    assert given == min(value for name, value in spent.items() if name != "FedAvg")
    assert spent["FedAvg"] < given
    for s in ranked:
        at = s.at("megabytes", given)
        assert at == s.curve[-1] if s.cell.method == "FedAvg" else at <= s.curve[-1]


def test_the_csv(full):
    lines = list(csv.DictReader(io.StringIO(as_csv(full))))
    assert len(lines) == len(BOARD.cells())
    for setting in BOARD.preset["settings"]:
        these = [line for line in lines if line["setting"] == setting]
        assert [int(line["rank"]) for line in these] == list(range(1, 1 + len(bilevel())))
        means = [float(line["accuracy_mean"]) for line in these]
        assert means == sorted(means, reverse=True)
    for line in lines:
        assert {line["current"], line["diverged"], line["seeds"]} == {"1", "0", "5"}
        assert float(line["oracle_calls"]) == pytest.approx(
            sum(float(line[unit]) for unit in ("grad_f", "grad_g", "hvp", "jvp", "server_grad_f")), rel=1e-4
        )


def test_the_page_the_csv_and_the_figure_are_written(full, tmp_path):
    page, table = write_docs(full, tmp_path)
    assert (page.read_text(), table.read_text()) == (markdown(full), as_csv(full))
    assert (tmp_path / "images" / "leaderboard.png").stat().st_size > 20_000
    for setting in BOARD.preset["settings"]:
        assert f"## {setting}\n" in page.read_text()


def test_while_nothing_is_computed_the_page_says_so(tmp_path):
    page, table = write_docs(tmp_path / "nothing", tmp_path)
    text = page.read_text()
    assert "**Nothing is computed yet**: none of 44 cells has a result" in text
    assert "images/" not in text
    assert not (tmp_path / "images").exists()
    assert "| MeFBO | P | x + 2y down, x + 2y up, 1× | x + 2y down, x + 2y up, 1× | yes | no | no |" in text
    assert len(table.read_text().splitlines()) == 1


def test_the_page_and_the_csv_are_those_of_the_stored_results():
    assert (ROOT / "docs" / "leaderboard.md").read_text() == markdown(STORED), "run: rookery reproduce --write-docs"
    assert (ROOT / "docs" / "leaderboard.csv").read_text() == as_csv(STORED), "run: rookery reproduce --write-docs"


def test_what_is_missing_out_of_date_or_diverged(tmp_path):
    fill(tmp_path, but=("MeFBO",))
    cells = {cell.method: cell for cell in BOARD.cells() if cell.setting == "iid"}
    save(cells["SimFBO"], {**made_up(cells["SimFBO"], 0.99), "digest": "of another day"}, tmp_path)
    gone = made_up(cells["FedBiO"], 0.98)
    gone["values"] = {point: [None] * 5 for point in gone["values"]}
    gone |= {"diverged": ["lane"] * 5, "last": {**gone["last"], "exchanges": [0.0] * 5}}
    gone["curve"] = {"round": [0, 300], "exchanges": [0.0, 0.0], "mean": [0.1, None], "deviation": None}
    save(cells["FedBiO"], gone, tmp_path)
    old = made_up(cells["FedNest"])
    del old["rounds_seconds"]
    save(cells["FedNest"], old, tmp_path)
    text = markdown(tmp_path)
    assert "**iid: SimFBO is the most accurate of the 21 computed** after" in text
    assert "Only 41 of 44 cells have a result of today's settings." in text
    assert "| 1 | SimFBO † | " in text
    assert "| 21 | FedBiO (5 of 5 diverged) | diverged | " in text
    lines = {(line["setting"], line["method"]): line for line in csv.DictReader(io.StringIO(as_csv(tmp_path)))}
    assert lines["iid", "FedBiO"]["accuracy_mean"] == ""
    assert lines["iid", "FedNest"]["seconds"] == ""
    assert ("iid", "MeFBO") not in lines
    leaderboard.draw(tmp_path, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_what_a_round_sends():
    """As tests/algorithm/test_counters.py has it, which compares with runs."""
    told = {name: str(counted(name)) for name in bilevel()}
    assert told["FedNest"] == "3x + 9y down, 2x + 8y up, 10×"
    assert told["FedNest_random"] == "3x + 6y down, 2x + 5y up, 7×", "the mean"
    assert told["AdaFBiO"] == "4x + 3y + 1 down, 2x + 2y up, 2×"
    assert str(Reals()) == "nothing"
    differ = {name for name, box in BOXES.items() if box(rk.registry[name]()) != counted(name)}
    assert differ == {"FedBiOAcc", "Local-BSGVR", "AdaFBiO", "CommFedBiO"}, "the page says why"
    assert set(BOXES) | set(COMPLEXITY) | set(FREE) <= set(bilevel())
    assert not [name for name in BOXES if rk.registry[name].status == "D"], "what is defined here proves nothing"


def test_only_boxes_that_were_read_are_counted_as_agreeing(tmp_path):
    text = markdown(tmp_path)
    read = [name for name in BOXES if rk.registry[name].status == "P"]
    assert read == ["MeFBO", "FedBiO", "FedBiOAcc", "ASFBO", "LA-ASFBO", "FedAvg"]
    assert (
        "Of the 6 algorithms whose box was read in the paper (status P),\n**5 send what it says**; FedBiOAcc does"
        in text
    )
    assert "| FBO-AggITD | D | – | x + 9y down, x + 8y up, 6× | – |" in text


def test_the_stored_results_made_the_exchanges():
    """Real runs count what was said beforehand."""
    paths = sorted((STORED / NAME).glob("*.json"))
    if not paths:
        pytest.skip("nothing is computed yet")
    for path in paths:
        told = json.loads(path.read_text())
        a_round = counted(told["settings"]["run"]["algorithm"]).exchanges
        made = np.mean(told["last"]["exchanges"])
        if not told["diverged"]:
            assert abs(made - EXCHANGES) <= 2 * a_round, path.name
