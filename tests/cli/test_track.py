"""--track: what trackers are told, with Trackio and TensorBoard themselves and stand-ins for the others."""

import json
import sys
import types
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from rookery.cli.main import app
from rookery.cli.track import TRACKERS, check_trackers, tracked
from rookery.experiment import running
from rookery.experiment.folder import read_run, write_config
from rookery.solving.history import History
from rookery.stopping import Interrupted
from tests.helpers.own_problem import MAKE

CONFIG = {
    "run": {"task": "a task", "algorithm": "FedBiO", "seed": 3, "rounds": 9},
    "algorithm": {"eta_x": 0.1, "deep": {"a": 1}},
}
ROWS = [{"round": k, "seconds": 0.5 * k, "loss": np.array([1.0 - k, np.nan])} for k in range(4)]


def state(*died):
    return types.SimpleNamespace(died=np.array(died))


@pytest.fixture(scope="module")
def trackio(tmp_path_factory):
    """Its folder is a temporary one, and it connects to nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACKIO_DIR", str(tmp_path_factory.mktemp("trackio")))  # read when it is imported
        patch.setattr("socket.socket.connect", lambda *_: pytest.fail("trackio connects to the network"))
        package = pytest.importorskip("trackio")
        yield package


@pytest.fixture
def folder(tmp_path):
    write_config(tmp_path / "run", CONFIG)
    return tmp_path / "run"


class Standin(types.ModuleType):
    """A tracker that writes down what it is told; ``wandb.init`` and MLflow's client in one."""

    def __init__(self, name):
        super().__init__(name)
        self.calls, self.fails = [], False
        self.entities = types.SimpleNamespace(
            Param=lambda *a: a, Metric=lambda name, value, _, step: (name, value, step)
        )

    def MlflowClient(self):
        return self

    def init(self, **how):
        self.calls.append(("init", how))
        return self

    def create_run(self, experiment, run_name):
        self.calls.append(("create_run", run_name))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id=f"id of {run_name}"))

    def get_experiment_by_name(self, name):
        return types.SimpleNamespace(experiment_id=name)

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self.fails:
            raise OSError("it is gone")
        return lambda *given, **named: self.calls.append((name, *given, *named.values()))

    def of(self, name):
        return [call[1:] for call in self.calls if call[0] == name]


@pytest.fixture
def standin(monkeypatch):
    def make(name):
        monkeypatch.setitem(sys.modules, name, made := Standin(name))
        return made

    return make


def test_trackio_has_a_run_for_each_seed_and_goes_on_in_it(trackio, folder):
    from trackio.sqlite_storage import SQLiteStorage

    def stopped():
        with tracked(["trackio"], folder) as watch:
            watch(state(-1, -1), History(ROWS[:2]))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    with tracked(["trackio"], folder) as watch:
        watch(state(-1, 2), History(ROWS))  # from a checkpoint: rows 0 and 1 are there already
    assert trackio.context_vars.current_run.get() is None, "else a seed ends the one before it"
    first, second = sorted(trackio.Api().runs("a-task"), key=lambda run: run.name)
    assert first.name.startswith("run-seed-3-")
    assert second.name.startswith("run-seed-4-")
    assert first.config["algorithm.deep.a"] == 1
    rows = SQLiteStorage.get_logs("a-task", first.name)
    assert [(row["step"], row["loss"], row["seconds"]) for row in rows] == [(k, 1.0 - k, 0.5 * k) for k in range(4)]
    assert {alert["title"] for alert in first.alerts()} == {"interrupted", "finished"}
    assert {alert["title"] for alert in second.alerts()} == {"interrupted", "failed"}


def test_wandb_and_mlflow_are_told_the_same(standin, folder):
    wandb, mlflow = standin("wandb"), standin("mlflow")
    for rows, died in ((ROWS[:2], (-1, -1)), (ROWS, (-1, 2))):
        with tracked(check_trackers(["wandb", "mlflow", "wandb"]), folder) as watch:
            watch(state(*died), History(rows))
    one, two, again, _ = (call[0] for call in wandb.of("init"))
    assert (one["name"], one["project"], one["config"]["algorithm.eta_x"]) == ("run-seed-3", "a-task", 0.1)
    assert one["id"] == again["id"] != two["id"]
    assert [step for _, step in wandb.of("log")][::2] == [0, 1, 2, 3]
    assert wandb.of("finish") == [(0,), (0,), (0,), (1,)], "the second seed diverged"
    assert mlflow.of("create_run") == [("run-seed-3",), ("run-seed-4",)]
    params, *batches = (call[1] for call in mlflow.of("log_batch") if call[0] == "id of run-seed-3")
    assert ("run.rounds", "9") in params
    assert [("loss", 1.0 - k, k) in batch for k, batch in enumerate(batches)] == [True] * 4
    assert mlflow.of("update_run") == [(f"id of run-seed-{seed}", "RUNNING") for seed in (3, 4)]
    assert [status for _, status in mlflow.of("set_terminated")] == ["FINISHED", "FINISHED", "FINISHED", "FAILED"]


def test_a_tracker_that_fails_is_warned_of_once_and_the_others_go_on(standin, folder):
    wandb, mlflow = standin("wandb"), standin("mlflow")
    with warnings.catch_warnings(record=True) as told, tracked(["wandb", "mlflow"], folder) as watch:
        warnings.simplefilter("always")
        watch(state(-1, -1), History(ROWS[:1]))
        wandb.fails = True
        for count in (2, 3, 4):
            watch(state(-1, -1), History(ROWS[:count]))
    assert [str(each.message) for each in told] == ["wandb failed, the run goes on without it: OSError: it is gone"]
    assert mlflow.of("log_batch")[-1][1][-1][-1] == 3


def test_without_a_tracker_there_is_nothing_to_watch(folder):
    with tracked([], folder) as watch:
        assert watch is None
    assert not (folder / "tracking.json").exists()


@pytest.mark.parametrize("name", TRACKERS)
def test_what_is_missing_or_unknown_is_said_before_anything_is_done(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ridge.py").write_text(MAKE)
    monkeypatch.setitem(sys.modules, TRACKERS[name][0], None)
    for told, line in (
        (name, f"Error: --track {name} needs a package: pip install 'rookery[{name}]'\n"),
        ("paper", "Error: --track must be one of tensorboard, trackio, wandb, mlflow, got 'paper'\n"),
    ):
        for command in (["run", "ridge.py"], ["compare", "ridge.py", "--algorithms", "FedBiO"]):
            result = CliRunner().invoke(app, [*command, "--out", "out", "--track", told])
            assert (result.exit_code, result.stderr) == (2, line)
    assert [path.name for path in tmp_path.iterdir()] == ["ridge.py"]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_in_the_same_trackers(trackio, tmp_path, monkeypatch):
    from tensorboardX.proto.event_pb2 import Event

    monkeypatch.chdir(tmp_path)
    (tmp_path / "ridge.py").write_text(MAKE)
    both = ["--track", "trackio", "--track", "tensorboard", "--json"]

    def stop_after_two(calls=[]):  # noqa: B006  (it counts)
        calls.append(1)
        if len(calls) == 2:
            raise Interrupted(2)

    with monkeypatch.context() as patch:
        patch.setattr(running, "stop_if_asked", stop_after_two)
        stopped = CliRunner().invoke(
            app, ["run", "ridge.py", "--seeds", "2", "--every", "2", "--out", "one", "--checkpoint-seconds", "0", *both]
        )
    assert stopped.exit_code == 130, stopped.output
    done = CliRunner().invoke(app, ["resume", "one", *both])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["final"]["round"] == 6, "nothing but JSON on stdout"
    losses = read_run(tmp_path / "one").history["loss"]
    for seed in (0, 1):
        found = {}
        for path in (tmp_path / "one" / "tensorboard" / f"seed-{seed}").glob("events*"):
            for event in events(path, Event):
                for value in event.summary.value:
                    if value.tag == "loss":
                        assert event.step not in found, "a row is told once"
                        found[event.step] = value.simple_value
        assert sorted(found) == [0, 2, 4, 6]
        np.testing.assert_allclose([found[round] for round in sorted(found)], losses[:, seed], rtol=1e-6)
    assert len(trackio.Api().runs("ridge")) == 2


def events(path, kind):
    """The records of an event file: a length, its checksum, the bytes, their checksum."""
    data, at = path.read_bytes(), 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 8], "little")
        event = kind()
        event.ParseFromString(data[at + 12 : at + 12 + length])
        yield event
        at += 16 + length
