"""How rates were found: what the page and the table make of a search."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from rookery.report import tuning_table, write_page
from rookery.report.page import page_data
from rookery.report.tuning import find_tunings, paid, told, tuning_data
from tests.report.test_report import HOSTILE, embedded_data, sample_run


def sample_search(names=("eta_x", "eta_y"), best=0.93, seed=0, higher=True):
    """64 configurations in three stages of 9, 75 and 300 rounds; large rates diverge."""
    random = np.random.default_rng(seed)
    tried = [{name: float(f"{10 ** random.uniform(-3, 1):.3g}") for name in names} for _ in range(64)]
    lost = sorted(range(64), key=lambda k: -tried[k][names[-1]])[:12]

    def score(k, rounds):
        far = sum((np.log10(tried[k][name]) - at) ** 2 for name, at in zip(names, (0.6, -1.0, -0.5, 0), strict=False))
        value = best - 0.05 * far * (9 / rounds) ** 0.2 - 0.15 * (1 - rounds / 300) + 0.004 * random.standard_normal()
        return float(max(0.1, value)) if higher else float(10 ** (4 * (best - value)))

    trials, going = [], list(range(64))
    for stage, (rounds, stay) in enumerate([(9, 16), (75, 3), (300, 1)]):
        scores = {k: None if k in lost else score(k, rounds) for k in going}
        how = {"rounds": rounds, "stage": stage, "keys": 1}
        trials += [{"rates": tried[k], "score": scores[k], "diverged": k in lost, **how} for k in going]
        fine = [k for k in going if k not in lost]
        going = sorted(fine, key=lambda k: -scores[k] if higher else scores[k])[:stay]
    return {
        "rates": tried[going[0]], "score": scores[going[0]], "frozen": 0.88 if higher else 1.9, "start": None,
        "spent": {"rounds": 3100, "calls": 120000, "bytes": 1000000}, "seconds": 12.3, "edges": {names[0]: "largest"},
        "remarks": [f"the best {names[0]} is among the largest tried: a larger one may be better"], "trials": trials,
    }  # fmt: skip


def sample_tuning(higher=True):
    return {
        "metric": "accuracy" if higher else "loss", "higher_is_better": higher, "rounds": 300,
        "budget": {"unit": "rounds", "runs": 11.0, "amount": 3300},
        "algorithms": {
            "FedBiO": sample_search(("eta_x", "eta_y", "eta_z"), higher=higher),
            "MeFBO": {**sample_search(("gamma_x", "nu"), 0.9, 1, higher), "edges": {}, "remarks": [], "frozen": None},
        },
    }  # fmt: skip


def tuned_runs(place, tuning, names=("FedBiO", "MeFBO")):
    place.mkdir(exist_ok=True)
    (place / "tuning.json").write_text(json.dumps(tuning))
    return [replace(sample_run(name), path=place / name) for name in names]


def test_the_budget_in_words():
    found = sample_tuning()["algorithms"]
    text = told(found["FedBiO"], 300)
    assert text.startswith("64 configurations tried, 12 diverged, 16 went on after 9 rounds, 3 made all 300; best 0.9")
    assert text.endswith(" against 0.88 with x frozen")
    assert "against" not in told(found["MeFBO"], 300)
    assert told({**found["FedBiO"], "start": 0.5}, 300).endswith("against 0.88 with x frozen and 0.5 at the start")
    assert "16 went on after 9 rounds, 3 after 75; best" in told(found["FedBiO"], 500)
    one = {"trials": [{"rates": {"a": 1.0}, "score": None, "rounds": 3, "stage": 0, "diverged": True}], "score": None}
    assert told(one, 300) == "1 configuration tried, 1 diverged; none has a score"
    assert (
        paid(found["FedBiO"], sample_tuning()["budget"]) == "3,100 rounds of 3,300, 120,000 oracle calls, 1 MB, 12.3 s"
    )
    assert paid({}, {}) == ""


@pytest.mark.parametrize("higher", [True, False])
def test_what_the_page_draws(higher):
    data = tuning_data(sample_tuning(higher))
    first, second = data["algorithms"]
    assert first["searched"] == ["eta_x", "eta_y", "eta_z"]
    assert [len(each["points"]) for each in (first, second)] == [64, 64]  # one for each, as it was last seen
    assert sum(point["chosen"] for point in first["points"]) == 1
    assert sum(point["diverged"] for point in first["points"]) == 12
    assert {point["stage"] for point in first["points"]} == {0, 1, 2}
    low, high = first["range"]
    best = next(point["score"] for point in first["points"] if point["chosen"])
    assert low < best < high
    assert first["rates"][0][2] == "largest"


def test_what_is_far_worse_does_not_squeeze_the_axis():
    tuning = sample_tuning(False)
    tuning["algorithms"]["FedBiO"]["trials"][0] |= {"score": 1e30, "diverged": False}
    (shown, _) = tuning_data(tuning)["algorithms"]
    assert shown["log"]  # losses over decades
    assert shown["range"][1] < 1e15
    for higher in (True, False):
        trials = [
            {"rates": {"a": 2.0**k}, "score": score, "rounds": 1, "stage": 0}
            for k, score in enumerate([1, 1.1, 1.2, -99])
        ]
        found = {
            "rates": {},
            "score": 1.2,
            "trials": [{**t, "score": t["score"] if higher else -t["score"]} for t in trials],
        }
        (shown,) = tuning_data({**tuning, "higher_is_better": higher, "algorithms": {"a": found}})["algorithms"]
        assert not shown["log"]
        assert -5 < min(shown["range"]) < max(shown["range"]) < 5


def test_rates_that_no_logarithmic_axis_can_show():
    tuning = sample_tuning()
    for trial in tuning["algorithms"]["FedBiO"]["trials"]:
        trial["rates"] = {**trial["rates"], "eta_y": 0.0, "eta_z": 0.1}
    assert tuning_data(tuning)["algorithms"][0]["searched"] == ["eta_x"]


def test_a_search_is_found_beside_a_run_or_above_it(tmp_path):
    runs = tuned_runs(tmp_path / "comparison", sample_tuning())
    (found,) = find_tunings(runs)
    assert [each["name"] for each in found["algorithms"]] == ["FedBiO", "MeFBO"]
    own = {**sample_tuning(), "metric": "own"}
    tuned_runs(runs[0].path, own)
    assert [(each["metric"], len(each["algorithms"])) for each in find_tunings(runs)] == [("own", 1), ("accuracy", 1)]
    assert find_tunings([replace(runs[0], path=tmp_path / "else" / "where")]) == []
    assert find_tunings([replace(sample_run("SimFBO"), path=runs[1].path)]) == []  # of another algorithm


DAMAGES = ["", "[]", "{}", '{"algorithms": []}', "[" * 100_000, '{"metric": 1, "algorithms": {"FedBiO": {}}}', "\udcff"]


@pytest.mark.parametrize("text", DAMAGES)
def test_a_damaged_file_is_named(tmp_path, text):
    runs = tuned_runs(tmp_path, {})
    (tmp_path / "tuning.json").write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=r"tuning\.json is damaged"):
        page_data(runs)


def test_the_page_has_it_and_nothing_in_it_is_html(tmp_path):
    tuning = sample_tuning()
    tuning["metric"] = HOSTILE
    tuning["algorithms"]["FedBiO"] |= {"remarks": [HOSTILE], "frozen": float("nan")}
    tuning["algorithms"]["FedBiO"]["rates"][HOSTILE] = HOSTILE
    write_page(tuned_runs(tmp_path, tuning), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert embedded_data(text)["sections"][0]["tunings"][0]["algorithms"][0]["remarks"] == [HOSTILE]
    assert text.count("<script") == 2
    assert "<img" not in text


def test_the_table():
    console = Console(width=80, record=True, file=io.StringIO())
    tuning = sample_tuning()
    console.print(tuning_table(tuning))
    text = console.export_text()
    rates = tuning["algorithms"]["FedBiO"]["rates"]
    assert f"eta_x {rates['eta_x']:.4g} ↑" in text
    assert f"{tuning['algorithms']['MeFBO']['score']:.4g}" in text
    assert "Rates by accuracy on held-out data, 300 rounds" in text
    (found,) = [cell.plain for cell in tuning_table(tuning).columns[2].cells if cell.style == "bold"]
    assert found == f"{tuning['algorithms']['FedBiO']['score']:.4g}"
