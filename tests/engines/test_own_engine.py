"""An engine that is not in the package resumes and is accepted by run folders; test_parity.py has it run every algorithm."""

import json
import tomllib
from pathlib import Path

import jax
import numpy as np
import pytest

import rookery as rk
from rookery.experiment.folder import read_run
from rookery.experiment.running import _cut_record, resume_run, start_run
from rookery.experiment.settings import resolve
from tests.helpers.queue_engine import Queued


class Stop(Exception):
    pass


def small(**more):
    run = {"task": "quadratic-bilevel", "clients": 3, "rounds": 6, "every": 3, "seeds": 2, "algorithm": "FedBiO"}
    return resolve({**run, **more}, {"dimension": 3})


def test_it_is_short():
    assert len((Path(__file__).parents[1] / "helpers" / "queue_engine.py").read_text().splitlines()) < 60


def test_a_run_in_a_folder_is_that_of_the_simulator_and_is_resumed_bit_by_bit(tmp_path):
    start_run(small(), tmp_path / "plain")
    engine = Queued()
    start_run(small(), tmp_path / "queued", engine=engine)
    assert engine.orders == [2, 1, 2, 1]  # its own stride, cut at evaluations
    assert tomllib.loads((tmp_path / "queued" / "config.toml").read_text())["engine"] == {
        "name": "tests.helpers.queue_engine.Queued", "options": {},
    }  # fmt: skip

    def stop(state, history):
        if state.round == 3:
            raise Stop

    with pytest.raises(Stop):
        start_run(small(), tmp_path / "stopped", engine=Queued(), watch=stop)
    with pytest.raises(
        ValueError, match=r"made with the engine tests\.helpers\.queue_engine\.Queued, which is not Rookery's"
    ):
        resume_run(tmp_path / "stopped")
    with pytest.raises(ValueError, match=r"engine must be that of the run \(tests\.helpers.*Queued\), got simulator"):
        resume_run(tmp_path / "stopped", engine=rk.Simulator())
    resume_run(tmp_path / "stopped", engine=Queued())
    results = [(tmp_path / name / "result.safetensors").read_bytes() for name in ("plain", "queued", "stopped")]
    assert results[0] == results[1] == results[2]
    assert read_run(tmp_path / "stopped").finished
    newest = max((tmp_path / "stopped" / "checkpoints").glob("*.json"))
    assert json.loads(newest.read_text())["memory"]["session"] == {"made": 6}


def test_a_lane_that_diverges_is_diagnosed_by_the_engine():
    def upper(x, y, batch):
        return (x @ x + y @ y) * batch.mean()

    clients = rk.Clients([np.ones((2, 1)), np.ones((2, 1))])
    problem = rk.Bilevel(upper, lambda x, y, batch: ((y - x) ** 2).sum() * batch.mean())
    algorithms = [rk.FedBiO(eta_x=0.1), rk.FedBiO(eta_x=1e200)]
    many = rk.solve_many(problem, algorithms, clients, np.ones(2), np.ones(2), rounds=4, engine=Queued(), keys=[0, 0])
    assert [each.lane for each in many.diverged] == [1]
    assert "try smaller rates" in many.why(1).advice


def test_a_record_of_participants_is_cut_by_its_rounds(tmp_path):
    """An engine that makes several rounds at a time tells of the last of them."""
    record = tmp_path / "participants.jsonl"
    record.write_text("".join(json.dumps({"round": round}) + "\n" for round in (1, 3, 5)))
    _cut_record(record, 4)
    assert [json.loads(line)["round"] for line in record.read_text().splitlines()] == [1, 3]


def test_an_engine_must_be_one():
    with pytest.raises(TypeError, match=r"engine must be an rk\.Engine"):
        rk.solve(rk.Minimax(lambda x, y, b: x @ y), "FSGDA", rk.Clients([np.ones(1)]), np.ones(1), np.ones(1),
                 rounds=1, engine=jax)  # fmt: skip
