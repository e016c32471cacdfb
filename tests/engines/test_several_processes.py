"""Real processes on loopback make what one makes, resume what others began, and end together when one is killed.

``tests/test_processes.py`` has what they tell each other, ``tests/cli/test_launch.py`` the command that starts them.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import rookery as rk
from tests.engines.test_sharded import assert_same
from tests.helpers import parity

pytestmark = [pytest.mark.slow, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
PATIENCE = 300
"""Seconds after which a test does not wait any longer."""


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment(**more):
    return {**os.environ, "JAX_ENABLE_X64": "1", "PYTHONPATH": str(ROOT), "XLA_FLAGS": "", **more}


def test_every_algorithm_in_two_processes_is_what_one_makes(tmp_path):
    names, port = list(rk.registry), free_port()
    line = [sys.executable, "-m", "tests.helpers.parity"]
    started = [
        subprocess.Popen([*line, tmp_path / str(i), *names, "--", f"127.0.0.1:{port}", "2", str(i)], cwd=ROOT,
                         stdout=subprocess.DEVNULL)
        for i in range(2)
    ]  # fmt: skip
    try:
        expected = {}
        for name in names:
            task, how = parity.make_case(name)
            expected |= {
                f"{name}/processes/{k}": v for k, v in parity.outcome(rk.solve(*task, **how, **parity.HOW)).items()
            }
        assert [process.wait(PATIENCE) for process in started] == [0, 0]
    finally:
        for process in started:
            process.kill()
    for i in range(2):
        assert_same(dict(np.load(tmp_path / f"{i}.npz")), expected)


# --- runs in folders --------------------------------------------------------------------------------------------------

PROBLEM = '''
"""Nine clients, each with a lower level of its own."""
import os
import pathlib
import numpy as np
import rookery as rk

num_clients = 9
algorithm = rk.FedBiOAccLocal(eta_x=0.02)
participants, batch_size, rounds = 4, 3, 4000
x0, y0 = np.ones(3), np.zeros(3)
metric, higher_is_better = "size", False

def upper(x, y, batch):
    return ((y - batch["a"]) ** 2).mean() + 0.1 * (x @ x)

def lower(x, y, batch):
    return ((y - x * batch["a"]) ** 2).mean() + 0.5 * (y @ y)

def evaluate(x, y):
    return {"size": (y**2).mean() + (x**2).mean()}

problem = rk.Bilevel(upper, lower, lower_level="local")

def load_client(partition, num_partitions):
    with open(pathlib.Path(__file__).parent / f"loaded-{os.getpid()}", "a") as file:
        print(partition, file=file)
    rng = np.random.default_rng(partition)
    return rk.Clients([{"a": rng.standard_normal((5 + partition, 3))}])
'''


@pytest.fixture
def here(tmp_path):
    (tmp_path / "nested.py").write_text(PROBLEM)
    return tmp_path


def rookery(here, *words, status=0, **more):
    """Runs the command to its end; returns what it printed to stderr."""
    line = [sys.executable, "-m", "rookery", *map(str, words)]
    done = subprocess.run(line, cwd=here, env=environment(**more), capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == status, done.stderr
    return done.stderr


def loaded(here):
    """Which clients each process loaded, and forgets it."""
    found = []
    for path in here.glob("loaded-*"):
        found.append(sorted(int(line) for line in path.read_text().split()))
        path.unlink()
    return sorted(found)


def results(folder):
    """The arrays of a run that is done, those of several processes put together."""
    whole = load_file(folder / "result.safetensors")
    parts = sorted(folder.glob("result.clients-*"))
    for name in load_file(parts[0]) if parts else ():
        whole[name] = np.concatenate([load_file(part)[name] for part in parts], 1)  # behind the axis of seeds
    return whole


def assert_same_run(here, name, other):
    a, b = results(here / name), results(here / other)
    assert set(a) == set(b)
    for key, value in b.items():
        np.testing.assert_allclose(a[key], value, rtol=1e-12, atol=1e-14, err_msg=key)
    tables = [(here / each / "history.csv").read_text().splitlines() for each in (name, other)]
    head = tables[0][0].split(",")
    for one, two in zip(*tables, strict=True):
        for column, x, y in zip(head, one.split(","), two.split(","), strict=True):
            assert column in ("seconds", "size[0]") or x == y, column


def stopped(here, folder, *words, after=50, who=1, number=signal.SIGKILL, status=None):
    """A run of which one process is ended once it has made a checkpoint; what launch said, and how long it took to end."""
    line = [sys.executable, "-m", "rookery", *map(str, words), "--out", folder, "--checkpoint-seconds", "0"]
    with open(here / "said", "w") as said:
        process = subprocess.Popen(line, cwd=here, env=environment(), stderr=said, stdout=said)
    try:
        until = time.monotonic() + PATIENCE
        while not any(int(each.stem[6:]) >= after for each in (here / folder / "checkpoints").glob("round-*.json")):
            assert process.poll() is None, (here / "said").read_text()
            assert time.monotonic() < until
            time.sleep(0.02)
        if who is None:
            process.send_signal(number)
        else:
            os.kill(process_of(here, folder, who), number)
        clock = time.monotonic()
        process.wait(60)
        seconds = time.monotonic() - clock
    finally:
        process.kill()
    assert process.returncode != 0
    return (here / "said").read_text(), seconds


def process_of(here, folder, number):
    """The process that is this one of a run, by its command line."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().decode().split("\0")
        except OSError:
            continue
        mine = str(folder) in words and "--process" in words and "rookery" in words
        mine = mine and words[words.index("--process") + 1] == str(number) and "guard.py" not in " ".join(words)
        if mine and (entry / "cwd").resolve() == here.resolve():
            return int(entry.name)
    raise AssertionError(f"no process {number} of {folder}")


LAUNCH = "launch", "--processes", 2, "--"
RUN = "run", "nested.py", "--every", 40
"""With a hundred evaluations and checkpoints, so that there is time to end a process in the middle."""


def test_a_run_goes_on_in_any_number_of_processes(here):
    """From one process to two, from two that were killed to four devices, and from those to one."""
    rookery(here, *RUN, "--out", "whole")
    assert loaded(here) == [list(range(9))]
    said, seconds = stopped(here, "cut", *LAUNCH, *RUN)
    assert loaded(here) == [[0, 1, 2, 3, 4], [5, 6, 7, 8]], "each process loads its own clients alone"
    assert seconds < 30
    assert re.search(r"Error: process 1 \(.*, process id \d+\) ended; .*resume cut", said), said
    assert len(list((here / "cut" / "checkpoints").glob("*.clients-*-of-2.safetensors"))) >= 2
    rookery(here, "resume", "cut", "--devices", 4)
    assert_same_run(here, "cut", "whole")
    assert json.loads(max((here / "cut" / "checkpoints").glob("*.json")).read_text())["round"] == 4000

    stopped(here, "alone", *RUN, who=None, number=signal.SIGTERM)
    loaded(here)
    rookery(here, *LAUNCH, "resume", "alone")
    assert loaded(here) == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]
    assert_same_run(here, "alone", "whole")
    assert sorted(each.name for each in (here / "alone").glob("result*")) == [
        "result.clients-0-of-2.safetensors", "result.clients-1-of-2.safetensors", "result.safetensors",
    ]  # fmt: skip


def test_all_stop_together_when_asked_and_when_the_first_is_killed(here):
    said, _ = stopped(here, "asked", *LAUNCH, *RUN, who=None, number=signal.SIGTERM)
    assert "Terminated. Continue with:" in said
    assert said.count("Terminated.") == 1
    said, seconds = stopped(here, "first", *LAUNCH, *RUN, who=0)
    assert seconds < 30
    assert re.search(r"process 0 \(.*\) ended; .*resume first", said), said
    rookery(here, *RUN, "--out", "whole")
    for name in ("asked", "first"):
        rookery(here, *LAUNCH, "resume", name)
        whole, found = results(here / "whole"), results(here / name)
        for key, value in whole.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-12, atol=1e-14)


def both(here, lines):
    """Two processes, each with a command line of its own; (status, stderr) of each."""
    port = free_port()
    started = [
        subprocess.Popen([sys.executable, "-m", "rookery", *line, "--coordinator", f"127.0.0.1:{port}", "--processes", "2",
                          "--process", str(i)], cwd=here, env=environment(), stderr=subprocess.PIPE, text=True,
                         stdout=subprocess.DEVNULL)
        for i, line in enumerate(lines)
    ]  # fmt: skip
    try:
        told = [process.communicate(timeout=PATIENCE)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, each.strip()) for process, each in zip(started, told, strict=True)]


def test_processes_with_other_problems_or_bad_data_are_refused_in_one_line_each(here):
    (here / "other.py").write_text(PROBLEM.replace("0.1 * (x @ x)", "0.2 * (x @ x)"))
    line = ["run", "nested.py", "--out", "a"]
    found = both(here, [line, ["run", "other.py", "--out", "a"]])
    for status, told in found:
        assert status == 2, told
        assert len(told.splitlines()) == 1, told
        assert "problem: all processes must be given the same, process 1 has another than process 0" in told
    assert not (here / "a").exists()
    for option in (["--seed", "5"], ["--rounds", "7"], ["--set", "eta_x=0.5"]):
        found = both(here, [line, [*line, *option]])
        assert [status for status, _ in found] == [2, 2]
        same = "all processes must be given the same options"
        assert all(same in told and len(told.splitlines()) == 1 for _, told in found), found

    draws = "rng.standard_normal((5 + partition, 3))"
    (here / "nested.py").write_text(PROBLEM.replace(draws, f"{draws} * (np.nan if partition == 7 else 1)"))
    found = both(here, [line, line])
    for status, told in found:
        assert status == 2, told
        assert len(told.splitlines()) == 1, told
        assert "must be finite" in told


SCRIPT = """
import sys
import numpy as np
import rookery as rk
from tests.helpers import parity

group = rk.join(sys.argv[2], 2, int(sys.argv[3]))
chosen = rk.own_clients(parity.N)
task = rk.Minimax(parity.objective), parity.make_clients(chosen)
how = {"rounds": 20, "participation": 3, "local_steps": 2, "batch_size": 2, "progress": False}
how["engine"] = rk.Simulator(devices="all")
found = rk.solve(task[0], "FedSGDA+", task[1], np.ones(2), np.ones(2), key=1, **how)
again = rk.run(task[0], found.algorithm, task[1], np.ones(2), np.ones(2), key=1, folder=sys.argv[1], **how)
assert np.array_equal(found.x, again.x), (found.x, again.x)
more = rk.solve(task[0], found.algorithm, task[1], np.ones(2), np.ones(2), key=1, **how, start=found)
assert more.rounds == 40
try:
    rk.solve(task[0], rk.FedSGDAPlus(eta_x=1e200), task[1], np.ones(2), np.ones(2), **how)
except rk.Diverged as diverged:
    print("diverged:", diverged)
for wrong in ({"rounds": 5 + group.number}, {"local_steps": 1 + group.number}):
    try:
        rk.solve(task[0], found.algorithm, task[1], np.ones(2), np.ones(2), **{**how, **wrong})
    except ValueError as error:
        print(*wrong, "all processes must be given the same" in str(error))
print(repr(found.algorithm), np.asarray(more.x).tolist(), more.history.last["objective"])
rk.leave()
"""


def test_a_script_searches_solves_continues_diverges_and_runs_in_a_folder(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    port = free_port()
    started = [
        subprocess.Popen([sys.executable, "script.py", "folder", f"127.0.0.1:{port}", str(i)], cwd=tmp_path,
                         env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for i in range(2)
    ]  # fmt: skip
    try:
        told = [process.communicate(timeout=PATIENCE) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0, 0], told
    lines = [[line for line in out.splitlines() if not line.startswith("[Gloo]")] for out, _ in told]
    assert lines[0] == lines[1]
    assert lines[0][0].startswith("diverged: ")
    assert "not finite in round" in lines[0][0]
    assert lines[0][1:3] == ["rounds True", "local_steps True"]
    assert (tmp_path / "folder" / "result.safetensors").exists()
