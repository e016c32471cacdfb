"""The options that make a command one of several processes, or give it several devices."""

import os
import subprocess
import sys

import jax
import pytest
import typer

from rookery import processes
from rookery.cli.joining import joined
from rookery.processes import free_port

NOTHING = {"coordinator": None, "count": None, "number": None, "distributed": False, "devices": None}


def asked_for(**options):
    with joined(**{**NOTHING, **options}) as devices:
        return devices


def test_nothing_asked_for():
    assert asked_for() is None
    assert asked_for(coordinator="127.0.0.1:1", count=1, number=0) is None, "a group of one is none"
    assert processes.current() is None


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"coordinator": "a:1"}, "--coordinator needs --processes and --process as well"),
        ({"count": 2, "number": 0}, "--processes and --process need --coordinator as well"),
        ({"count": 2, "distributed": True}, "--distributed asks the cluster for everything: leave out --processes"),
        ({"devices": "many"}, "--devices must be a number of at least 1, or all, got 'many'"),
        ({"devices": "0"}, "--devices must be a number of at least 1, or all, got '0'"),
        ({"devices": "²"}, "--devices must be a number of at least 1, or all, got '²'"),
        ({"devices": "64"}, "--devices 64: JAX has {here} of them here"),
        ({"coordinator": "nowhere", "count": 2, "number": 0}, "coordinator must be HOST:PORT"),
    ],
)
def test_options_that_do_not_fit(options, line):
    here = len(jax.local_devices())  # JAX has started
    with pytest.raises(ValueError, match=line.format(here=here)):
        asked_for(**options)


def test_devices_of_one_process():
    assert asked_for(devices="all") == len(jax.local_devices())
    assert asked_for(devices="1") == 1


def test_an_exit_goes_through():
    with pytest.raises(typer.Exit) as over, joined(**NOTHING):
        raise typer.Exit(3)
    assert over.value.exit_code == 3


ONE = """
import os, sys, typer
from rookery.cli.joining import joined
from rookery import processes
number, how = int(sys.argv[1]), sys.argv[3]
print("before")
try:
    with joined(f"127.0.0.1:{sys.argv[2]}", 2, number, False, "2") as devices:
        import jax
        assert devices == "all", devices
        assert (jax.local_device_count(), jax.device_count()) == (2, 4)
        os.write(1, b"[Gloo] this is not Python's\\n")
        print(f"inside {processes.current().number}")
        if how == "fails" and number == 1:
            raise OSError("no such row")
        processes.current().exchange(1)
        if number == 0:
            raise typer.Exit(3)
except typer.Exit as over:
    print("exit", over.exit_code)
except Exception as error:
    print(type(error).__name__, error)
os.write(1, b"written\\n") if how == "well" else None
print("after", processes.current(), processes.broken())
"""


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.parametrize("how", ["well", "fails"])
def test_two_processes(how):
    """What others than Python print is not seen, ``XLA_FLAGS`` does not matter, and an error is everybody's."""
    port = free_port()
    flags = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=3"}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", ONE, str(number), str(port), how],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=flags,
        )
        for number in range(2)
    ]  # fmt: skip
    try:
        told = [each.communicate(timeout=60) for each in started]
    finally:
        for each in started:
            each.kill()
            each.wait()
    assert [each.returncode for each in started] == [0, 0], told
    host = os.uname().nodename
    for number, (out, errors) in enumerate(told):
        lines = ["before", f"inside {number}"]
        if how == "fails":
            whose = f"process 1 ({host}, process id {started[1].pid})"
            lines.append("OSError no such row" if number else f"ValueError {whose}: no such row")
        else:
            lines += ["written", *(["exit 3"] if number == 0 else [])]
        assert sorted(out.splitlines()) == sorted([*lines, "after None False"])
        assert errors == ""
