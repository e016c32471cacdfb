"""A cell finds its own rates: with one budget, once, and a search that was killed goes on."""

import json
from dataclasses import replace

import pytest

from rookery.experiment.tuned import aim
from rookery.reproduction import compute
from rookery.reproduction.compute import save, stored, stored_before
from rookery.reproduction.experiment import FALL, experiment
from rookery.stopping import Interrupted
from rookery.tuning import journal
from tests.reproduction.made_up import searched


def cell_of(which, **parts):
    """The first cell with parts of its preset replaced."""
    changed = replace(which, preset={**which.preset, **parts})
    return changed, changed.cells()[0]


@pytest.mark.slow
def test_a_search_is_stored_goes_on_after_a_kill_and_is_made_once(tiny, monkeypatch):
    which = experiment("T1")
    cell = which.cells()[0]
    add, calls = journal.Journal.add, []

    def killed(self, *outcome):
        add(self, *outcome)
        calls.append(outcome)
        if len(calls) == 3:
            raise Interrupted(2)

    with monkeypatch.context() as patched:
        patched.setattr(journal.Journal, "add", killed)
        with pytest.raises(Interrupted):
            compute.compute(which, cell, tiny, False)
    left = list(tiny.rglob("journal.json"))
    assert len(left) == 1
    done = sum(len(batches) for batches in json.loads(left[0].read_text())["batches"].values())
    assert done == 3
    again = []
    with monkeypatch.context() as patched:
        patched.setattr(journal.Journal, "add", lambda self, *outcome: (again.append(outcome), add(self, *outcome)))
        result = compute.compute(which, cell, tiny, False)
    assert not list(tiny.rglob("journal.json")), "nothing is left of a search that is done"
    save(cell, result, tiny)
    told = stored(cell, tiny)["search"]
    whole = compute.compute(which, cell, tiny / "elsewhere", False)["search"]
    assert {**whole, "seconds": 0} == {**told, "seconds": 0}, "as if nobody had killed it"
    assert again

    assert (told["budget"], told["growth"], told["seed"], told["rounds"]) == (6.0, 3.0, 1000, 5)
    control = told["frozen"] is not None
    assert control, "one run of the budget holds x at its start"
    assert 3 < told["runs"] + control <= 6 + 3 + 1
    assert told["trials"] >= 10
    assert told["digest"] == cell.search.digest
    for name in ("eta_x", "eta_y", "eta_z"):
        low, high = told["ranges"][name]
        assert low <= told["rates"][name] * 1.000001
        assert told["rates"][name] <= high * 1.000001
    assert {name: result["settings"]["algorithm"][name] for name in told["rates"]} == told["rates"]

    def searches(*_):
        raise AssertionError("searched again")

    monkeypatch.setattr(compute, "search", searches)
    more, with_more = cell_of(which, run={**which.preset["run"], "seeds": 4})
    assert stored(with_more, tiny) is None
    assert stored_before(with_more, tiny) is not None
    result = compute.compute(more, with_more, tiny, False)
    assert len(result["values"]["10"]) == 4
    assert result["search"] == told
    other, longer = cell_of(which, run={**which.preset["run"], "rounds": 20})
    with pytest.raises(AssertionError, match="searched again"):
        compute.compute(other, longer, tiny, False)


def test_rates_that_fall_do_so_over_the_rounds_of_the_run(tiny, monkeypatch):
    which = experiment("T1")
    cell = which.cells(only=["iid/FedBiO, falling"])[0]
    assert cell.search.settings.rounds == 5
    (shape,) = cell.search.shapes.values()
    assert (shape.start, shape.end, shape.rounds) == (1.0, FALL, 5.0), "of the search: over its own rounds"
    monkeypatch.setattr(compute, "search", lambda plan, folder: searched(plan))
    result = compute.compute(which, cell, tiny, False)
    assert result["settings"]["algorithm"]["eta_x"] == {
        "schedule": "Cosine",
        "start": 0.1,
        "end": 0.005,
        "rounds": 10.0,
    }
    assert result["settings"]["algorithm"]["eta_y"] == 0.1
    assert result["search"]["rates"]["eta_x"]["rounds"] == 5.0


@pytest.mark.slow
def test_a_falling_rate_is_found_by_its_start(tiny):
    which = experiment("T1")
    cell = which.cells(only=["iid/FedBiO, falling"])[0]
    found = compute.compute(which, cell, tiny, False)["search"]
    rate = found["rates"]["eta_x"]
    assert rate["schedule"] == "Cosine"
    assert rate["end"] == pytest.approx(FALL * rate["start"])
    low, high = found["ranges"]["eta_x"]
    assert low < high, "that is what was tried"
    assert low <= rate["start"] * 1.000001


def test_what_a_search_sees(tiny):
    """One problem with a seed of its own, judged by the metric of the experiment, whatever the task would take."""
    cell = experiment("T1").cells()[0]
    seen = aim(cell.search.settings, ("hypergradient", False))
    assert (seen.metric, seen.higher, seen.key, seen.rounds) == ("hypergradient", False, 1000, 5)
    digits = experiment_with_data(experiment("T1"))
    data, test = digits.search.settings.make_tasks()[0], replace(digits.search.settings, held_out=False).make_tasks()[0]
    assert data.clients.lower.total < test.clients.lower.total, "the held-out part is of the training data"


def experiment_with_data(which):
    """A cell of the same preset on handwritten digits."""
    run = {**which.preset["run"], "task": "hyper-representation", "dataset": "digits", "batch_size": 8}
    parts = {"run": run, "task": {"hidden": 4}, "metric": "accuracy", "higher_is_better": True}
    return cell_of(which, **parts)[1]
