"""Runs on disk: settings, folders, checkpoints, resuming after real kills."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import rookery as rk
from rookery import runs
from rookery.history import History
from rookery.settings import Settings, assignments, read_settings, recipe_of, resolve, settings_of, write_toml

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
    runs.start_run(settings(), folder, checkpoint_seconds=0)
    return folder


# --- settings --------------------------------------------------------------------------------------------------------


def test_defaults_are_those_of_the_task_on_its_data_set():
    made = resolve({"task": "hyper-representation"})
    defaults = recipe_of("hyper-representation").defaults["digits"]
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
    for name, kind in rk.algorithms.items():
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
    recipe = recipe_of("hyper-representation")
    assert assignments(["rc=0.5", "eta_x=1", "task.hidden=3"], recipe, "FedBiO") == (
        {"rc": 0.5, "hidden": 3},
        {"eta_x": 1},
    )
    with pytest.raises(ValueError, match=r"--set must be NAME=VALUE, got 'rc'"):
        assignments(["rc"], recipe, "FedBiO")
    with pytest.raises(ValueError, match=r"there is no 'rcc'; did you mean 'rc'"):
        assignments(["rcc=1"], recipe, "FedBiO")


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_run_leaves_all_there_is_to_know(whole):
    made = settings()
    run = runs.read_run(whole)
    assert run.finished
    assert run.config["run"]["metric"] == "accuracy"
    assert run.config["environment"]["jax"] == jax.__version__
    assert settings_of(run.config).tables() == made.tables()
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
    assert sorted(p.name for p in (whole / "checkpoints").iterdir()) == [
        f"round-{r:08d}.{kind}" for r in (9, 12) for kind in ("json", "safetensors")
    ]
    assert not list(whole.rglob("*.part"))
    assert "round 12: accuracy" in (whole / "log.txt").read_text()


def test_history_survives_csv(whole, tmp_path):
    history = runs.read_run(whole).history
    history.to_csv(tmp_path / "again.csv")
    again = History.from_csv(tmp_path / "again.csv")
    assert again.columns == history.columns
    for name in history.columns:
        np.testing.assert_array_equal(again[name], history[name])


def test_an_existing_run_is_not_overwritten(whole):
    with pytest.raises(ValueError, match="holds a run already: choose another folder, or rookery resume"):
        runs.start_run(settings(), whole)


@pytest.mark.parametrize("at", [3, 9])
def test_an_interrupted_run_ends_with_the_same_iterates(whole, tmp_path, at):
    with pytest.raises(Stop):
        runs.start_run(settings(), tmp_path / "run", checkpoint_seconds=0, watch=stop_after(at))
    assert not runs.read_run(tmp_path / "run").finished
    runs.resume_run(tmp_path / "run")
    assert (tmp_path / "run" / "result.safetensors").read_bytes() == (whole / "result.safetensors").read_bytes()
    mine, other = runs.read_run(tmp_path / "run").history, runs.read_run(whole).history
    for name in mine.columns:
        if name != "seconds":
            np.testing.assert_array_equal(mine[name], other[name])


@pytest.mark.parametrize("damage", ["truncated", "tampered", "no manifest text", "arrays gone"])
def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(whole, tmp_path, damage, capsys):
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        runs.start_run(settings(), folder, checkpoint_seconds=0, watch=stop_after(9))
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
    runs.resume_run(folder)
    assert "warning: checkpoint round-00000009 is damaged and left out" in capsys.readouterr().err
    assert (folder / "result.safetensors").read_bytes() == (whole / "result.safetensors").read_bytes()
    assert list(runs.read_run(folder).history["round"]) == [0, 3, 6, 9, 12]


def test_without_any_whole_checkpoint_it_starts_again(whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(Stop):
        runs.start_run(settings(), folder, checkpoint_seconds=1000, watch=stop_after(6))
    assert not (folder / "checkpoints").exists()
    runs.resume_run(folder)
    assert (folder / "result.safetensors").read_bytes() == (whole / "result.safetensors").read_bytes()
    assert list(runs.read_run(folder).history["round"]) == [0, 3, 6, 9, 12]


def test_a_finished_run_resumes_to_itself(whole):
    before = (whole / "result.safetensors").read_bytes()
    solution = runs.resume_run(whole)
    assert solution.rounds == 12
    assert (whole / "result.safetensors").read_bytes() == before


def test_what_is_not_a_run_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run: there is no config\.toml"):
        runs.resume_run(tmp_path)
    (tmp_path / "config.toml").write_text("= nonsense")
    with pytest.raises(ValueError, match=r"config\.toml is not TOML"):
        runs.read_run(tmp_path)


def test_a_diverged_seed_is_kept_and_told(tmp_path):
    made = resolve(SMALL, TASK, {"eta_x": 1e30, "eta_y": 1e30})
    solution = runs.start_run(made, tmp_path / "run")
    assert len(solution.diverged) == 2
    assert "not finite in round" in (tmp_path / "run" / "log.txt").read_text()


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
        "--participants", 4, "--batch-size", 8, "--set", "hidden=4", "--seeds", 2, "--checkpoint-seconds", 0)  # fmt: skip


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
    assert list(runs.read_run(folder).history["round"]) == list(range(401))


@pytest.mark.slow
def test_ctrl_c_leaves_a_run_that_can_be_gone_on_with(tmp_path):
    folder = tmp_path / "run"
    process = command(*LONG, "--out", folder)
    wait_for_round(process, folder, 5)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"Go on with: rookery resume {folder}" in errors
    assert "Traceback" not in errors
    process = command("resume", folder, "--json")
    told, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    assert json.loads(told)["final"]["round"] == 400
