"""``rookery launch``: what it starts, how it stops, and what it shows; mostly with scripts in place of runs."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from typer.testing import CliRunner

from rookery.cli.launch import check_command, command_of, divide, launch
from rookery.cli.main import app

pytestmark = pytest.mark.processes


def rookery(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


# --- what is started ----------------------------------------------------------------------------------------------------


def test_the_command_of_each_process():
    rest = ["hyper-representation", "--rounds", "3"]
    own = ["--coordinator", "127.0.0.1:7000", "--processes", "4", "--process", "2"]
    start = [sys.executable, "-m", "rookery"]
    assert command_of(2, 4, "127.0.0.1:7000", ["run", *rest]) == [*start, "run", *own, *rest]
    with_devices = command_of(2, 4, "127.0.0.1:7000", ["resume", "a", "--"], "3", debug=True)
    assert with_devices == [*start, "--debug", "resume", *own, "--devices", "3", "a", "--"]


def test_cores_are_divided():
    assert divide([0, 1, 2, 3], 2) == [[0, 1], [2, 3]]
    assert divide([2, 3, 5, 7, 8], 3) == [[2, 3], [5, 7], [8]]
    assert divide([4, 6], 3) == [[], [], []], "they share"
    assert divide([], 2) == [[], []], "where the system does not tell"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--processes", "2", "--", "sweep", "x"], "rookery launch can start run and resume, not 'sweep'"),
        (["--processes", "2", "launch", "run"], "rookery launch can start run and resume, not 'launch'"),
        (["--processes", "2", "run", "x", "--process", "1"], "--process is not for a command that is launched"),
        (["--processes", "2", "run", "x", "--devices=2"], "--devices is not for a command that is launched: give it before"),
        (["--processes", "0", "run", "x"], "Invalid value for '--processes'"),
        (["run", "x"], "Missing option '--processes'"),
        (["--processes", "2"], "Missing argument 'COMMAND...'"),
        (["--processes", "2", "--rounds", "3", "run", "x"], "No such option '--rounds'"),
    ],
)  # fmt: skip
def test_what_cannot_be_launched_is_refused(arguments, line):
    result = rookery("launch", *arguments)
    assert result.exit_code == 2
    assert f"Error: {line}" in result.stderr


def test_help_has_examples():
    text = rookery("launch", "--help").output
    assert "rookery launch --processes 4 -- run" in text
    check_command(["run", "x", "--rounds", "3", "--processing", "1"])


# --- what happens to it -------------------------------------------------------------------------------------------------


BEGIN = """
def leave(name, text=""):
    with open(os.path.join(folder, str(name)), "a") as file:
        file.write(text)
def say(line):
    print(line, file=sys.stderr)
    leave(os.environ["ROOKERY_SAID"], line + "\\n")
leave(os.getpid())
"""


def scripts(folder, *texts):
    """Commands that run these; each leaves a file with its process id."""
    begin = f"import os, signal, sys, time; folder = {str(folder)!r}" + BEGIN
    return [[sys.executable, "-S", "-c", begin + textwrap.dedent(text)] for text in texts]


def nobody_left(folder):
    """Waits a little for those that end by themselves."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        left = [name for name in os.listdir(folder) if name.isdigit() and _alive(int(name))]
        if not left:
            return True
        time.sleep(0.05)
    return False


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def launched(folder, *texts, patience=0.3, force=0.3):
    commands = scripts(folder, *texts)
    return launch(commands, divide([], len(commands)), {"GIVEN": "value"}, patience, force)


def test_the_first_has_the_terminal_and_the_others_are_not_heard(tmp_path, capfd):
    status = launched(tmp_path, "print(os.environ['GIVEN'])", "print('hidden')", "sys.exit('hidden') if 0 else None")
    assert status == 0
    assert capfd.readouterr() == ("value\n", "")
    assert nobody_left(tmp_path)


@pytest.mark.slow
def test_what_the_others_say_is_shown_when_one_fails(tmp_path, capfd):
    """Unless the first has said it, in the same words or as part of a line."""
    first = "say('Error: process 1 (here, process id 5): no file'); sys.exit(2)"
    second = "sys.exit('Error: no file')"
    third = "print('Error: process 1 (here, process id 5): no file'); print('Warning: odd\\n\\x1b[1mold\\x1b[0m')"
    fourth = "print('Warning: odd')"
    assert launched(tmp_path, first, second, third, fourth, patience=5) in (1, 2)
    out, errors = capfd.readouterr()
    assert out == ""
    assert errors.splitlines() == [
        "Error: process 1 (here, process id 5): no file",
        "process 2: Warning: odd",
        "process 2: old",
    ]


@pytest.mark.slow
def test_a_process_that_is_killed_is_named(tmp_path, capfd):
    status = launched(tmp_path, "time.sleep(0.5); say('Error: out of luck'); sys.exit(1)",
                      "os.kill(os.getpid(), signal.SIGKILL)", patience=5)  # fmt: skip
    assert status == 137
    assert capfd.readouterr().err.splitlines() == ["Error: out of luck", "Error: process 1 was ended by SIGKILL"]
    told = "say('Error: process 1 (here, process id 5) ended; do this'); sys.exit(1)"
    assert launched(tmp_path, f"time.sleep(0.5); {told}", "os.kill(os.getpid(), signal.SIGSEGV)", patience=5) == 139
    assert capfd.readouterr().err.splitlines() == [
        "Error: process 1 (here, process id 5) ended; do this",
        "Process 1 was ended by SIGSEGV",
    ]


@pytest.mark.slow
def test_a_process_that_fails_without_a_word_is_named(tmp_path, capfd):
    assert launched(tmp_path, "time.sleep(0.3)", "sys.exit(3)", patience=5) == 3
    assert capfd.readouterr().err == "Error: process 1 ended with status 3\n"


@pytest.mark.slow
def test_the_others_are_stopped_when_one_fails(tmp_path, capfd):
    """Those that do not notice by themselves, at first politely."""
    polite = "signal.signal(signal.SIGTERM, lambda *_: (leave('asked', 'once'), sys.exit(143))); time.sleep(60)"
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    begin = time.monotonic()
    status = launched(tmp_path, polite, deaf, "time.sleep(1); sys.exit(4)")
    assert status == 4
    assert time.monotonic() - begin < 10
    assert capfd.readouterr().err == "Error: process 2 ended with status 4; the others were stopped\n"
    assert (tmp_path / "asked").read_text() == "once"
    assert nobody_left(tmp_path)


@pytest.mark.slow
def test_a_guard_that_is_killed_leaves_nobody_behind(tmp_path, capfd):
    assert launched(tmp_path, "time.sleep(0.5)", "os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)") == 137
    assert "Error: process 1 was ended by SIGKILL" in capfd.readouterr().err
    assert nobody_left(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_each_process_has_its_cores(tmp_path, capfd):
    core = min(os.sched_getaffinity(0))
    (command,) = scripts(tmp_path, "print(os.sched_getaffinity(0))")
    assert launch([command], [[core]], {}) == 0
    assert capfd.readouterr().out == f"{{{core}}}\n"


COUNTS = """
def hear(number, frame):
    leave("heard", f"{number} ")
    time.sleep(0.5)  # what was computed is saved
    sys.exit(128 + number)
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, hear)
leave("ready", "x")
while True:
    time.sleep(0.05)
"""


def launcher(folder, *texts, begin=""):
    """The command of another process that launches these."""
    commands = scripts(folder, *texts)
    call = f"launch({commands!r}, {divide([], len(commands))!r}, {{}})"
    return [sys.executable, "-c", f"{begin}import sys; from rookery.cli.launch import launch; sys.exit({call})"]


def until(path, text, seconds=30):
    end = time.monotonic() + seconds
    while not path.exists() or path.read_text() != text:
        assert time.monotonic() < end, f"{path.name}: {path.read_text() if path.exists() else 'nothing'}"
        time.sleep(0.05)


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_comes_once_to_each(tmp_path):
    ours, theirs = os.openpty()
    begin = "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    command = launcher(tmp_path, COUNTS, COUNTS, begin=begin)
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True) as process:
        os.close(theirs)
        until(tmp_path / "ready", "xx")
        os.write(ours, b"\x03")
        assert process.wait(20) == 130
    os.close(ours)
    assert (tmp_path / "heard").read_text() == "2 2 "
    assert nobody_left(tmp_path)


@pytest.mark.slow
def test_sigterm_comes_once_to_each_and_their_status_is_ours(tmp_path):
    with subprocess.Popen(launcher(tmp_path, COUNTS, COUNTS), stderr=subprocess.PIPE, text=True) as process:
        until(tmp_path / "ready", "xx")
        process.terminate()
        assert process.communicate(timeout=20)[1] == ""
        assert process.returncode == 143
    assert (tmp_path / "heard").read_text() == "15 15 "
    assert nobody_left(tmp_path)


@pytest.mark.slow
def test_a_launcher_that_is_killed_leaves_nobody_behind(tmp_path):
    with subprocess.Popen(launcher(tmp_path, COUNTS, COUNTS)) as process:
        until(tmp_path / "ready", "xx")
        process.kill()
    until(tmp_path / "heard", "15 15 ", 10)
    assert nobody_left(tmp_path)


@pytest.mark.slow
def test_the_third_signal_does_not_wait(tmp_path):
    deaf = "[signal.signal(each, signal.SIG_IGN) for each in (2, 15)]; leave('ready', 'x'); time.sleep(60)"
    with subprocess.Popen(launcher(tmp_path, deaf, deaf)) as process:
        until(tmp_path / "ready", "xx")
        for _ in range(3):
            process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert process.wait(20) == 137
    assert nobody_left(tmp_path)


# --- runs -----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_of_two_processes(tmp_path):
    """Its output is what a program can read, and an error of all is told once."""
    start = [sys.executable, "-m", "rookery", "launch", "--processes", "2", "--"]
    small = ["--rounds", "3", "--clients", "6", "--set", "dimension=4", "--no-tune", "--no-rivals", "--json"]
    done = subprocess.run(
        [*start, "run", "quadratic-bilevel", "--algorithm", "MeFBO", *small],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["final"]["round"] == 3
    bad = subprocess.run(
        [*start, "run", "no-task"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert bad.returncode == 2
    assert bad.stderr.startswith("Error: task: there is no 'no-task'")
    assert bad.stderr.count("no-task") == 1
    assert bad.stdout == ""
