"""Runs on disk: settings, folders, checkpoints, resuming after real kills."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import rookery as rk
from rookery.engines.flower.engine import Over
from rookery.engines.flower.node import Node
from rookery.engines.flower.site import from_memory
from rookery.engines.flower.wire.transport import Direct
from rookery.experiment.checkpoint import manifests
from rookery.experiment.folder import locked, read_config, read_run, write_config
from rookery.experiment.running import Plan, go_in_folder, prepare_run, resume_run, start_run
from rookery.experiment.settings import (
    Settings,
    read_settings,
    resolve,
    settings_from,
    settings_of,
    settings_of_all,
    write_toml,
)
from rookery.solving.history import History
from rookery.solving.loop import make_rounds
from rookery.stopping import Interrupted, heard
from rookery.tasks import RECIPES
from tests.helpers.marks import slow

pytestmark = pytest.mark.first

SMALL = {"task": "hyper-representation", "algorithm": "FedBiO", "rounds": 12, "every": 3, "seeds": 2, "clients": 10,
         "participants": 4, "batch_size": 8}  # fmt: skip
TASK = {"hidden": 4}


def settings() -> Settings:
    return resolve(SMALL, TASK)


class Stop(Exception):
    pass


def stop_after(round):
    def watch(state, history):
        if state.round >= round:
            raise Stop

    return watch


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    start_run(settings(), folder, checkpoint_seconds=0)
    return folder


# --- settings --------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_task_on_its_data_set():
    made = resolve({"task": "hyper-representation"})
    defaults = RECIPES["hyper-representation"].defaults["digits"]
    assert (made.dataset, made.clients, made.rounds) == ("digits", defaults.clients, defaults.rounds)
    assert made.algorithm == defaults.algorithm
    other = resolve({"task": "hyper-representation", "dataset": "mnist"})
    assert (other.clients, other.participants, other.batch_size) == (100, 10, 64)


def test_settings_survive_toml(tmp_path):
    made = resolve(
        {**SMALL, "participants": "0.5", "local_steps": "2-5", "batch_size": "8,all"},
        TASK,
        {"eta_x": {"schedule": "Cosine", "start": 0.3, "end": 0.0, "rounds": 12}, "radius": 3},
    )
    assert (made.participants, made.local_steps, made.batch_size) == (0.5, (2, 5), (8, None))
    assert made.participation == rk.Bernoulli(0.5)
    write_toml(tmp_path / "a.toml", made.tables())
    again = read_settings(tmp_path / "a.toml")
    assert again.tables() == made.tables()
    assert again.make_algorithm() == made.make_algorithm()
    assert made.make_algorithm().eta_x == rk.Cosine(0.3, 0.0, 12.0)


def test_every_algorithm_survives_toml(tmp_path):
    for name, kind in rk.registry.items():
        made = replace(settings(), algorithm=name, rates={})
        write_toml(tmp_path / "a.toml", {"algorithm": made.tables()["algorithm"]})
        rates = tomllib.loads((tmp_path / "a.toml").read_text())["algorithm"]
        assert replace(made, rates=rates).make_algorithm() == kind(), name


BAD = {
    "task": ({"task": "hyper"}, {}, {}, "task: there is no 'hyper'; did you mean 'hyper-representation'"),
    "dataset": ({"dataset": "imagenet"}, {}, {}, "dataset must be one of digits, mnist.*got 'imagenet'"),
    "algorithm": ({"algorithm": "MeFB"}, {}, {}, "did you mean 'MeFBO'"),
    "rounds": ({"rounds": 0}, {}, {}, "rounds must be a whole number of at least 1, got 0"),
    "seed": ({"seed": -1}, {}, {}, "seed must be a whole number of at least 0, got -1"),
    "participants": ({"participants": "1.5"}, {}, {}, r"participants must be .*\(0, 1\] or 'all', got '1.5'"),
    "no participants": ({"participants": 0}, {}, {}, "participants must be"),
    "steps": ({"local_steps": "5-2"}, {}, {}, "local_steps must be a range from low to high, got '5-2'"),
    "no batch": ({"batch_size": []}, {}, {}, "batch_size must be a number, 'all' or LOWER,UPPER, got \\[\\]"),
    "large seed": (
        {"seed": 10**30, "seeds": 1},
        {},
        {},
        f"seed must be a whole number of at most {2**32 - 1}, got {10**30}",
    ),
    "large last seed": (
        {"seed": 2**32 - 1, "seeds": 2},
        {},
        {},
        f"seed must be a whole number of at most {2**32 - 2},",
    ),
    "large number": ({"rounds": 10**30}, {}, {}, f"rounds must be a whole number of at most {2**31 - 1}, got {10**30}"),
    "batch": ({"batch_size": "a"}, {}, {}, "batch_size must be a whole number of at least 1, got 'a'"),
    "run option": ({"round": 3}, {}, {}, r"\[run\]: there is no 'round'; did you mean 'rounds'"),
    "task option": (
        {},
        {"hiden": 3},
        {},
        r"\[task\] of hyper-representation: there is no 'hiden'; did you mean 'hidden'",
    ),
    "task kind": ({}, {"hidden": "many"}, {}, "task.hidden must be a whole number, got 'many'"),
    "rate": ({}, {}, {"eta": 1}, r"\[algorithm\] FedBiO: there is no 'eta'; did you mean 'eta_x'"),
    "rate kind": ({}, {}, {"eta_x": "big"}, "FedBiO.eta_x must be a number or a schedule, got 'big'"),
    "schedule": (
        {},
        {},
        {"eta_x": {"schedule": "Step"}},
        "FedBiO.eta_x.schedule must be one of Power, Cosine, got 'Step'",
    ),
    "schedule field": (
        {},
        {},
        {"eta_x": {"schedule": "Power", "scael": 1}},
        "there is no 'scael'; did you mean 'scale'",
    ),
    "schedule incomplete": ({}, {}, {"eta_x": {"schedule": "Power", "scale": 1}}, "FedBiO.eta_x: .*exponent"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_settings_are_named(case):
    run, task, rates, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        resolve({**SMALL, **run}, {**TASK, **task}, rates)


def test_assignments_find_their_table():
    made = settings_from("hyper-representation", {"algorithm": "FedBiO"}, ["rc=0.5", "eta_x=1", "task.hidden=3"])
    assert (made.options["rc"], made.options["hidden"], made.rates["eta_x"]) == (0.5, 3, 1)
    assert settings_from("hyper-representation", {}, ["mefbo.gamma_x=2"]).rates["gamma_x"] == 2
    with pytest.raises(ValueError, match=r"--set must be NAME=VALUE, got 'rc'"):
        settings_from("hyper-representation", {}, ["rc"])
    with pytest.raises(ValueError, match=r"there is no 'rcc'; did you mean 'rc'"):
        settings_from("hyper-representation", {}, ["rcc=1"])


def test_assignments_of_several_algorithms_reach_those_that_have_them():
    pairs = ["gamma_x=0.5", "FedBiO.eta_x=0.25", "hidden=3"]
    one, other = settings_of_all("hyper-representation", {"rounds": 3}, ["MeFBO", "FedBiO"], pairs)
    assert (one.rates["gamma_x"], other.rates["eta_x"]) == (0.5, 0.25)
    assert "eta_x" not in one.rates
    assert "gamma_x" not in other.rates
    assert one.options["hidden"] == other.options["hidden"] == 3
    for pair, message in {
        "eta_u=1": "--set: there is no 'eta_u'",
        "FedBiO.gamma_x=1": "--set FedBiO: there is no 'gamma_x'",
        "FedAvg.eta=1": "--set FedAvg.eta: FedAvg is not run here, but MeFBO, FedBiO",
        "FedBi.eta_x=1": "--set FedBi.eta_x: 'FedBi' must be task, algorithm or the name of an algorithm",
    }.items():
        with pytest.raises(ValueError, match=message):
            settings_of_all("hyper-representation", {}, ["MeFBO", "FedBiO"], [pair])


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_run_leaves_all_there_is_to_know(whole):
    made = settings()
    run = read_run(whole)
    assert run.finished
    assert run.config["run"]["metric"] == "accuracy"
    assert run.config["environment"]["jax"] == jax.__version__
    assert settings_of(run.config, whole).tables() == made.tables()
    assert list(run.history["round"]) == [0, 3, 6, 9, 12]
    assert run.history["accuracy"].shape == (5, 2)
    tasks = made.make_tasks()
    for lane, task in enumerate(tasks):
        alone = rk.solve(
            task.problem, made.make_algorithm(), task.clients, task.x0, task.y0, rounds=12, every=3, key=lane,
            participation=4, local_steps=made.steps, batch_size=8, evaluate=task.evaluate,
        )  # fmt: skip
        np.testing.assert_allclose(alone.history["accuracy"], run.history["accuracy"][:, lane], atol=1e-6)
        np.testing.assert_array_equal(alone.history["grad_g"], run.history["grad_g"][:, lane])
        found = load_file(whole / "result.safetensors")
        np.testing.assert_allclose(found["x.weight"][lane], alone.x.weight, rtol=1e-4, atol=1e-6)
    names = sorted(p.name for p in (whole / "checkpoints").iterdir())
    assert names[2:] == ["round-00000012.json", "round-00000012.safetensors"]
    assert len(names) == 4  # the last two
    assert not list(whole.rglob("*.part"))
    assert "round 12: accuracy" in (whole / "log.txt").read_text()


def test_history_survives_csv(whole, tmp_path):
    history = read_run(whole).history
    history.to_csv(tmp_path / "again.csv")
    again = History.from_csv(tmp_path / "again.csv")
    assert again.columns == history.columns
    for name in history.columns:
        np.testing.assert_array_equal(again[name], history[name])


def test_an_existing_run_is_not_overwritten(whole):
    with pytest.raises(ValueError, match="holds a run already: choose another folder, or rookery resume"):
        start_run(settings(), whole)


@pytest.mark.parametrize("at", [slow(3), 9])
def test_an_interrupted_run_ends_with_the_same_iterates(whole, tmp_path, at):
    with pytest.raises(Stop):
        start_run(settings(), tmp_path / "run", checkpoint_seconds=0, watch=stop_after(at))
    assert not read_run(tmp_path / "run").finished
    resume_run(tmp_path / "run")
    assert_ends_as(whole, tmp_path / "run")


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped after round 9, with a checkpoint of that round and one before."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(Stop):
        start_run(settings(), folder, checkpoint_seconds=0, watch=stop_after(9))
    return folder


@pytest.fixture
def unfinished(stopped, tmp_path):
    return shutil.copytree(stopped, tmp_path / "run")


def assert_ends_as(whole, folder):
    """The same result, and the same history but for the time that it took."""
    assert (folder / "result.safetensors").read_bytes() == (whole / "result.safetensors").read_bytes()
    mine, other = read_run(folder).history, read_run(whole).history
    assert mine.columns == other.columns
    for name in mine.columns:
        if name != "seconds":
            np.testing.assert_array_equal(mine[name], other[name])


def changed(text, name, value):
    told = json.loads(text)
    told[name] = value
    return json.dumps(told)


MANIFESTS = {
    "a list": lambda text: "[]",
    "null": lambda text: "null",
    "not UTF-8": lambda text: "\udcff",
    "deeply nested": lambda text: "[" * 100_000,
    "another round": lambda text: changed(text, "round", 3),
    "round null": lambda text: changed(text, "round", None),
    "another memory": lambda text: changed(text, "memory", {}),
    "another history": lambda text: changed(text, "history", "round\r\n0\r\n"),
    "another config": lambda text: changed(text, "config", "0" * 64),
    "no checksum": lambda text: changed(text, "sha256", None),
}


@pytest.mark.parametrize("damage", MANIFESTS)
def test_a_damaged_manifest_is_left_out(stopped, tmp_path, damage):
    folder = shutil.copytree(stopped, tmp_path / "run")
    newest = folder / "checkpoints" / "round-00000009.json"
    newest.write_text(MANIFESTS[damage](newest.read_text()), errors="surrogateescape")
    (path, why), (_, before) = manifests(folder)
    assert path == newest
    assert isinstance(why, str)
    assert 6 <= before["round"] < 9
    assert list(read_run(folder).history["round"]) == [
        0,
        3,
        6,
        9,
    ]  # history.csv is whole


def test_a_round_number_that_was_changed_is_not_gone_on_from(whole, unfinished, capsys):
    manifest = unfinished / "checkpoints" / "round-00000009.json"
    manifest.write_text(changed(manifest.read_text(), "round", 6))
    resume_run(unfinished)
    assert "round-00000009 is damaged and left out: ValueError: the manifest" in capsys.readouterr().err
    assert_ends_as(whole, unfinished)


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_run_goes_on_from_its_checkpoint_alone_and_writes_a_damaged_history_anew(whole, unfinished, damage):
    table = unfinished / "history.csv"
    if damage == "gone":
        table.unlink()
        assert list(read_run(unfinished).history["round"]) == [0, 3, 6, 9]
    else:
        lines = table.read_text().splitlines(keepends=True)
        table.write_text("".join([lines[0], lines[1].replace("0,", "0,9", 1), *lines[2:]]))
        with pytest.raises(ValueError, match=r"history\.csv (was changed since|is damaged).*"):
            read_run(unfinished)
    resume_run(unfinished)
    assert_ends_as(whole, unfinished)


HISTORIES = {
    "not a number": ("round,a\n0,x\n", "row 1, a: 'x' is not a number"),
    "too long": ("round,a\n0,1,2\n", "row 1 has 3 cells for 2 columns"),
    "too short": ("round,a\n0\n", "row 1 has 1 cells for 2 columns"),
    "a column twice": ("round,round\n0,1\n", "a column is there twice"),
    "a lane missing": ("round,a[0],a[2]\n0,1,2\n", "row 1: a lane of a is missing"),
    "quotes": ('round,a\n0,"1\n', "unexpected end of data"),
    "falling": ("round,a\n3,1\n0,1\n", "its rounds are not rising numbers up to 12"),
    "beyond the end": ("round,a\n0,1\n13,1\n", "its rounds are not rising numbers up to 12"),
    "no round": ("a\n0\n", "its rounds are not rising numbers up to 12"),
    "half a round": ("round,a\n0.5,1\n", "its rounds are not rising numbers up to 12"),
    "not UTF-8": ("round,a\n0,\udcff\n", "can't decode byte"),
}


@pytest.mark.parametrize("case", HISTORIES)
def test_a_history_that_makes_no_sense_is_refused(whole, tmp_path, case):
    text, message = HISTORIES[case]
    shutil.copy(whole / "config.toml", tmp_path)
    (tmp_path / "history.csv").write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=rf"history\.csv is damaged: .*{message}"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [("rounds = 12", "rounds = 13"), ('metric = "accuracy"', 'metric = "loss"'), ("[checksum]", "[checksun]")],
)
@pytest.mark.parametrize("checkpoints", [True, False])
def test_a_configuration_that_was_changed_is_refused(unfinished, old, new, checkpoints):
    if not checkpoints:
        shutil.rmtree(unfinished / "checkpoints")
    path = unfinished / "config.toml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    for read in (resume_run, read_run):
        with pytest.raises(ValueError, match=r"changed since the run began.*rookery run .* --out ANOTHER starts a run"):
            read(unfinished)
    read_settings(path)  # which is no wrong advice


def test_checkpoints_of_another_run_are_refused(unfinished):
    config = read_config(unfinished)
    del config["checksum"]
    config["run"]["rounds"] = 13
    write_config(unfinished, config)
    with pytest.raises(ValueError, match=r"round-00000009\.json is of a run with another config\.toml"):
        resume_run(unfinished)


def test_a_folder_is_written_by_one_process_at_a_time(unfinished):
    with locked(unfinished):
        for again in (resume_run, lambda folder: start_run(settings(), folder.with_name("run"))):
            with pytest.raises(ValueError, match=rf"is being written by process {os.getpid()}|holds a run already"):
                again(unfinished)
        with pytest.raises(ValueError, match=rf"run is being written by process {os.getpid()}"):
            resume_run(unfinished)
    with locked(unfinished):
        pass


def test_what_a_killed_process_left_half_written_is_removed(unfinished):
    for place in (unfinished, unfinished / "checkpoints"):
        (place / ".history.csv.0123.part").write_text("half")
    with locked(unfinished):
        assert not list(unfinished.rglob("*.part"))


@pytest.mark.parametrize("damage", ["truncated", "tampered", slow("no manifest text"), slow("arrays gone")])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(whole, unfinished, damage, capsys):
    folder = unfinished
    newest = folder / "checkpoints" / "round-00000009.safetensors"
    body = newest.read_bytes()
    if damage == "truncated":
        newest.write_bytes(body[: len(body) // 2])
    elif damage == "tampered":
        newest.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
    elif damage == "no manifest text":
        newest.with_suffix(".json").write_text("")
    else:
        newest.unlink()
    resume_run(folder)
    assert "warning: checkpoint round-00000009 is damaged and left out" in capsys.readouterr().err
    assert_ends_as(whole, folder)


def test_without_any_whole_checkpoint_it_starts_again(whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        start_run(settings(), folder, checkpoint_seconds=1000, watch=stop_after(6))
    assert not (folder / "checkpoints").exists()
    resume_run(folder)
    assert (folder / "result.safetensors").read_bytes() == (whole / "result.safetensors").read_bytes()
    assert list(read_run(folder).history["round"]) == [0, 3, 6, 9, 12]


def test_a_finished_run_resumes_to_itself(whole):
    before = (whole / "result.safetensors").read_bytes()
    solution = resume_run(whole)
    assert solution.rounds == 12
    assert (whole / "result.safetensors").read_bytes() == before


def test_what_is_not_a_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run: there is no config\.toml"):
        resume_run(tmp_path)
    (tmp_path / "config.toml").write_text("= nonsense")
    with pytest.raises(ValueError, match=r"config\.toml is not TOML"):
        read_run(tmp_path)


@pytest.mark.slow
def test_a_diverged_seed_is_kept_and_told(tmp_path):
    made = resolve(SMALL, TASK, {"eta_x": 1e30, "eta_y": 1e30})
    solution = start_run(made, tmp_path / "run")
    assert len(solution.diverged) == 2
    assert "not finite in round" in (tmp_path / "run" / "log.txt").read_text()


# --- signals ---------------------------------------------------------------------------------------------------------


def during_round(monkeypatch, round, act):
    """``act`` while the rounds that end with this one, or a later one, are computed."""
    module = importlib.import_module("rookery.engines.simulator")
    advance = module.advance

    def acting(setting, state, rounds, *more):
        if state.round + rounds >= round:
            act()
        return advance(setting, state, rounds, *more)

    monkeypatch.setattr(module, "advance", acting)


@pytest.mark.parametrize(("number", "times"), [("SIGINT", 1), ("SIGINT", 2), ("SIGTERM", 1), ("SIGTERM", 2)])
def test_a_signal_leaves_a_checkpoint_of_the_last_finished_round(whole, tmp_path, monkeypatch, number, times):
    folder, number = tmp_path / "run", getattr(signal, number)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        during_round(patch, 5, lambda: [signal.raise_signal(number) for _ in range(times)])
        with pytest.raises(Interrupted) as stopped:
            start_run(settings(), folder, checkpoint_seconds=1000)
    assert stopped.value.status == 128 + number
    assert stopped.value.__notes__ == [f"Continue with: rookery resume {folder}"]
    (reached,) = (json.loads(path.read_text())["round"] for path in (folder / "checkpoints").glob("*.json"))
    assert 5 <= reached <= 6  # which is not an evaluation's, or is
    assert handlers == [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    resume_run(folder)
    assert_ends_as(whole, folder)


def test_a_signal_that_came_before_one_waits_is_heard_before_one_waits():
    """During the first evaluation of a run on nodes, say: then they need not be started."""

    def run():
        with heard(at_once=False):
            signal.raise_signal(signal.SIGINT)
            with heard(at_once=True):
                pytest.fail("nobody should be waited for")

    with pytest.raises(Interrupted):
        run()


def test_signals_that_are_ignored_stay_so():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with heard(at_once=True):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_one_signal_is_raised_and_no_second_while_it_is_cleaned_up():
    cleaned = []

    def work():
        with heard(at_once=True):
            try:
                with heard(at_once=False):
                    signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)
                cleaned.append(True)

    with pytest.raises(Interrupted):
        work()
    assert cleaned
    with heard(at_once=True):
        pass  # what was heard before is forgotten


def test_a_signal_is_not_lost_where_exceptions_are(capfd):
    class Garbage:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def work():
        with heard(at_once=True):
            Garbage()
            end = time.monotonic() + 10
            while time.monotonic() < end:
                time.sleep(0.001)

    with pytest.raises(Interrupted) as stopped:
        work()
    assert stopped.value.status == 143
    assert capfd.readouterr().err == ""


@dataclass(frozen=True)
class Lasting(Over):
    lasting = True


def test_a_run_on_nodes_stopped_before_its_first_evaluation_goes_on(tmp_path):
    made = resolve({"task": "quadratic-minimax", "clients": 4, "participants": 2, "algorithm": "LocalSGDA", "rounds": 6,
                    "every": 6}, {"dimension": 3})  # fmt: skip
    (task,) = made.make_tasks()
    source = from_memory(task.problem, task.clients, task.x0, task.y0)
    nodes = [Node(lambda: source, [client], tmp_path / str(client)) for client in range(4)]

    class Signalling(Direct):
        def send(self, requests, *more):
            if len(list((tmp_path / "run" / "checkpoints").glob("*.json"))) == 2:
                signal.raise_signal(signal.SIGTERM)
            return super().send(requests, *more)

    def go(transport, rounds=6):
        prepared, _ = prepare_run(made, [task], Lasting(transport=transport))
        return go_in_folder(tmp_path / "run", Plan.of(made), prepared, {"run": {"rounds": rounds}})

    with pytest.raises(Interrupted) as stopped:
        go(Signalling(nodes))
    assert stopped.value.__notes__ == ["Continue with: the same command"]
    assert not (tmp_path / "run" / "history.csv").exists()
    found = go(Direct(nodes))
    expected = make_rounds(prepare_run(made, [task])[0], 6, 6, False).lane(0)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-6)
    assert list(found.history["round"]) == [0, 6]
    np.testing.assert_array_equal(found.history["bytes_up"], expected.history["bytes_up"])
    lines = [json.loads(line) for line in (tmp_path / "run" / "participants.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(6))
    with pytest.raises(ValueError, match="holds a run with another run: choose another folder"):
        go(Direct(nodes), 7)


# --- real processes --------------------------------------------------------------------------------------------------


def hear_ctrl_c():
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is ignored where the tests run in the background of a script


@pytest.fixture(autouse=True, scope="module")
def compiled(tmp_path_factory):
    """Commands that are started one after the other compile once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))
        patch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        yield


def command(*arguments, **how):
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "100"}
    return subprocess.Popen(
        [sys.executable, "-m", "rookery", *map(str, arguments)], env=environment, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, preexec_fn=hear_ctrl_c, **how,
    )  # fmt: skip


LONG = ("run", "hyper-representation", "--algorithm", "FedBiOAcc", "--rounds", 400, "--every", 1, "--clients", 10,
        "--participants", 4, "--batch-size", 8, "--set", "hidden=4", "--seeds", 2, "--checkpoint-seconds", 0,
        "--no-rivals")  # fmt: skip


def wait_for_round(process, folder, round):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        names = sorted(p.stem for p in (folder / "checkpoints").glob("round-*.json"))
        if names and int(names[-1].removeprefix("round-")) >= round:
            return
        time.sleep(0.002)
    raise AssertionError(f"round {round} was not reached: {process.poll()}")


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_bits(tmp_path):
    process = command(*LONG, "--out", tmp_path / "whole")
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    expected = (tmp_path / "whole" / "result.safetensors").read_bytes()
    rng = np.random.default_rng()
    folder, process, reached = tmp_path / "killed", command(*LONG, "--out", tmp_path / "killed"), 0
    for _ in range(4):
        reached = int(rng.integers(reached + 5, reached + 80))
        wait_for_round(process, folder, reached)
        time.sleep(float(rng.uniform(0, 0.05)))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        process = command("resume", folder, "--checkpoint-seconds", 0)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert (folder / "result.safetensors").read_bytes() == expected
    assert list(read_run(folder).history["round"]) == list(range(401))


@pytest.mark.slow
@pytest.mark.parametrize(("signals", "status"), [("INT", 130), ("INT INT", 130), ("TERM", 143), ("TERM INT", 143)])
def test_a_stopped_command_says_in_one_line_how_to_go_on(tmp_path, signals, status):
    folder = tmp_path / "run"
    process = command(*LONG, "--out", folder)
    wait_for_round(process, folder, 5)
    for name in signals.split():
        process.send_signal(getattr(signal, f"SIG{name}"))
        time.sleep(0.01)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == status
    word = "Interrupted." if status == 130 else "Terminated."
    assert errors == f"{word} Continue with: rookery resume {folder}\n"
    process = command("resume", folder, "--json")
    told, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert json.loads(told)["final"]["round"] == 400


IMPORTING = """
import signal, sys
sys.orig_argv = ["python", *{line}]
class Meddler:
    def find_spec(self, name, *more):
        if name == "jax":
            signal.raise_signal(signal.{number})
sys.meta_path.insert(0, Meddler())
import rookery
"""


@pytest.mark.parametrize(
    ("line", "number", "status"),
    [(["-m", "rookery", "list"], "SIGINT", 130), (["/usr/bin/rookery", "list"], "SIGTERM", 143)],
)
def test_a_command_that_is_stopped_while_it_imports_shows_no_traceback(line, number, status):
    code = IMPORTING.format(line=line, number=number)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=hear_ctrl_c, check=False
    )
    assert (done.returncode, done.stderr) == (status, "Interrupted.\n" if status == 130 else "Terminated.\n")


def test_a_program_that_imports_the_library_keeps_its_handlers():
    code = IMPORTING.format(line=["mine.py"], number="SIGINT")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=hear_ctrl_c, check=False
    )
    assert "KeyboardInterrupt" in done.stderr
