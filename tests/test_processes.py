"""Several processes as one: real ones, on this machine."""

import math
import re
import socket
import struct
import time

import pytest

from rookery import processes
from rookery.processes import free_port, meeting, wire
from rookery.processes.group import Group
from tests.helpers.marks import quick_ones, slow
from tests.helpers.several import several

pytestmark = pytest.mark.processes


def who(number, child):
    return f"process {number} ({socket.gethostname()}, process id {child.process.pid})"


# --- what they tell each other ----------------------------------------------------------------------------------------

TALK = """
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))
group = join()
def fail(error, where):
    def work():
        if number == where:
            raise error
        return number
    return work
def in_block(error, where):
    with group.together():
        if number == where:
            raise error
        group.exchange("never answered")
def nested():
    with group.together():
        with group.together():
            if number == 2:
                raise KeyError("deep")
            group.exchange(1)
def stop_one():
    with group.together():
        if number == 1:
            raise Interrupted(signal.SIGTERM)
        group.first(lambda: 1)
def all_alike():
    with group.together():
        raise FileNotFoundError("nobody finds it")
def rewritten():
    with group.together():
        try:
            group.first(fail(OSError("disk"), 0))
        except OSError as error:
            raise OSError(f"{error}, says {number % 1}") from None
os.kill(os.getpid(), signal.SIGTERM)
tell({
    "it is": [group.number, group.count, processes.is_first(), processes.current() is group],
    "exchange": group.exchange([number, 0.1 * 3, math.nan, -math.inf, 5e-324, {"a": None, "é": True}]),
    "first": [group.first(lambda: {"n": number}), processes.on_first(lambda: [number])],
    "first fails": raised(lambda: group.first(fail(FileNotFoundError(2, "No such file", "x"), 0))),
    "first fails oddly": raised(lambda: group.first(fail(KeyError("odd"), 0))),
    "all well": group.all_well(lambda: number * 10),
    "one not": raised(lambda: group.all_well(fail(ValueError("a bad row"), 1))),
    "inside": raised(lambda: in_block(TypeError("not a number"), 2)),
    "nested": raised(nested),
    "stopped": raised(stop_one),
    "alike": raised(all_alike),
    "rewritten": raised(rewritten),
    "same": raised(lambda: group.same("data", "abc")),
    "not the same": raised(lambda: group.same("data", "abc" if number == 1 else "xyz")),
    "other calls": raised(lambda: group.same("data", "abc") if number else group.exchange(1)),
    "not JSON": raised(lambda: group.exchange({1, 2})),
    "still there": group.exchange(number),
    "twice": raised(join),
    "heard": heard,
})
if number == 0:
    time.sleep(1)
begin = time.monotonic()
processes.leave()
tell({"waited": time.monotonic() - begin > 0.8, "left": processes.current() is None, "again": processes.leave()})
"""


def test_what_processes_tell_each_other():
    proxy = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}  # where nobody is
    with several([TALK] * 3, environments=[proxy] * 3) as children:
        told = [child.told() for child in children]
        after = [child.told() for child in children]
        assert [child.ended() for child in children] == [(0, "")] * 3, "and JAX has nothing to say"
    for number, each in enumerate(told):
        me = [who(i, child) for i, child in enumerate(children)]
        assert each["it is"] == [number, 3, number == 0, True]
        for i, value in enumerate(each["exchange"]):
            assert value[:2] == [i, 0.1 * 3]
            assert math.isnan(value[2])
            assert value[3:] == [-math.inf, 5e-324, {"a": None, "é": True}]
        assert each["first"] == [{"n": 0}, [0]]
        kind = "FileNotFoundError" if number == 0 else "OSError"
        assert each["first fails"] == [kind, "[Errno 2] No such file: 'x'"]
        odd = ["KeyError", "'odd'"] if number == 0 else ["RuntimeError", "KeyError: 'odd'"]
        assert each["first fails oddly"] == odd
        assert each["all well"] == number * 10
        assert each["one not"] == ["ValueError", "a bad row" if number == 1 else f"{me[1]}: a bad row"]
        inside = ["TypeError", "not a number"] if number == 2 else ["ValueError", f"{me[2]}: not a number"]
        assert each["inside"] == inside
        assert each["nested"] == (
            ["KeyError", "'deep'"] if number == 2 else ["ValueError", f"{me[2]}: KeyError: 'deep'"]
        )
        assert each["stopped"] == ["Interrupted", "SIGTERM"]
        assert each["alike"] == ["FileNotFoundError", "nobody finds it"]
        assert each["rewritten"] == ["OSError", "disk, says 0"]
        assert each["same"] is None
        differs = "all processes must be given the same data, and they are not: xyz on processes 0, 2; abc on process 1"
        assert each["not the same"] == ["ValueError", differs]
        assert each["other calls"][0] == "ValueError"
        assert each["other calls"][1].startswith("the processes do not do the same: 'exchange' on process 0")
        assert each["not JSON"][0] == "TypeError"
        assert each["still there"] == [0, 1, 2]
        assert each["twice"] == ["ValueError", f"join: this is process {number} of 3 already; leave comes first"]
        assert each["heard"] == ["SIGTERM"], "JAX must not take it"
    assert after == [{"waited": number > 0, "left": True, "again": None} for number in range(3)]


@pytest.mark.slow
def test_a_group_of_one():
    group = processes.join("127.0.0.1:1", 1, 0)
    try:
        assert (group.number, group.count, processes.is_first()) == (0, 1, True)
        assert group.exchange(3) == [3]
        assert group.first(lambda: [1]) == [1]
        group.same("data", "abc")
        with pytest.raises(KeyError, match="x"), processes.together():
            raise KeyError("x")
        assert group.lost(0) is None
    finally:
        processes.leave()
    assert processes.current() is None
    assert processes.on_first(lambda: (1, 2)) == (1, 2)


# --- who fits -----------------------------------------------------------------------------------------------------------

MEET = "meeting.LINGER = 1.0; tell(raised(join))"
FORGED = f"""
true = meeting.version
meeting.version = lambda name: "9.9" if name == "jaxlib" else true(name)
{MEET}
"""
PRECISE = f"""
import jax
jax.config.update("jax_enable_x64", True)
{MEET}
"""
STARTED = f"""
import jax
jax.numpy.ones(1)
{MEET}
"""
UNFIT = {
    "count": ([MEET] * 2, None, [3, 2], "disagree about how many there are: 3 on {0}; 2 on {1}"),
    "twice": ([MEET] * 3, [0, 1, 1], None, "process 1 is there more than once: {host}, process id {pids[1]}"),
    "0 twice": ([MEET] * 3, [0, 0, 1], None, "process 0 is there more than once: {host}, process id {pids[0]}"),
    "range": ([MEET] * 3, [0, 1, 5], None, "{2}: there are 3 processes, 0 to 2"),
    "version": ([MEET, MEET, FORGED], None, None, "differ in jaxlib: {jaxlib} on {0}, {1}; 9.9 on {2}"),
    "precision": ([MEET, PRECISE], None, None, "differ in jax_enable_x64: False on {0}; True on {1}"),
    "too late": ([MEET, STARTED], None, None, "{1} has computed something already: join must come before"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", quick_ones(UNFIT, {"0 twice", "version"}))
def test_processes_that_do_not_fit_are_told_so_on_all_of_them(case):
    scripts, numbers, counts, line = UNFIT[case]
    with several(scripts, numbers, counts) as children:
        told = [child.told() for child in children]
        assert [child.ended() for child in children] == [(0, "")] * len(children)
    (kind,), (said,) = {each[0] for each in told}, {each[1] for each in told}
    assert kind == "ValueError"
    people = [who(number, child) for number, child in zip(numbers or range(3), children, strict=False)]
    pids = [child.process.pid for child in children]
    if "twice" in case:  # who comes first is first
        pair = slice(1, 3) if case == "twice" else slice(0, 2)
        pids[pair] = sorted(pids[pair], key=lambda each: said.index(str(each)))
    assert line.format(*people, host=socket.gethostname(), jaxlib=meeting.version("jaxlib"), pids=pids) in said


@pytest.mark.slow
def test_a_process_that_does_not_come_is_named():
    script = "tell(raised(lambda: join(timeout=3)))"
    with several([script] * 2, numbers=[0, 2], counts=[4, 4]) as children:
        begin = time.monotonic()
        assert [child.told() for child in children] == [
            ["ValueError", "of 4 processes 2 did not come within 3 s: number 1, 3"]
        ] * 2
        assert time.monotonic() - begin < 15
        assert [child.ended() for child in children] == [(0, "")] * 2


@pytest.mark.slow
def test_the_first_process_does_not_come():
    with several(["tell(raised(lambda: join(timeout=1)))"], numbers=[1], counts=[2]) as (child,):
        kind, line = child.told()
        assert kind == "ValueError"
        assert re.fullmatch(
            rf"process 0 did not answer {re.escape(who(1, child))} at 127.0.0.1:\d+ within 1 s \(.*refused\)", line
        )


@pytest.mark.slow
def test_something_else_listens():
    """And says something of its own; or process 0 finds its port taken."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        script = "tell(raised(lambda: join(timeout=5)))"
        with several([script] * 2, port=port) as children:
            for _ in children:
                connection = other.accept()[0]
                connection.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                connection.close()
            for child in children:
                assert child.told() == ["ValueError", f"what listens at 127.0.0.1:{port} is no process of Rookery"]


def garbage(port):
    hello = b'{"rookery": "hello", "peer": {"number": 1, "host": 3, "process_id": 1}, "count": 2}'
    nested = b"[" * 20_000
    for text in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        struct.pack(">I", len(hello)) + hello,
        struct.pack(">I", len(nested)) + nested,
        struct.pack(">I", 4) + b"\xff\xfe\x00{",
        struct.pack(">I", 100) + b"{",
        b"",
    ):
        connection = socket.create_connection(("127.0.0.1", port), 5)
        connection.sendall(text)
        yield connection


WAITS_FOR_A_FILE = """
group = join()
tell(group.exchange(number))
while not os.path.exists(os.environ["GO"]):
    time.sleep(0.05)
tell(group.exchange(number))
processes.leave()
"""


def until_it_listens(port):
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.05)


@pytest.mark.slow
def test_who_talks_garbage_or_comes_too_late_does_not_disturb(tmp_path):
    port, own = free_port(), {"counts": [2], "environments": [{"GO": str(tmp_path / "go")}]}
    with several([WAITS_FOR_A_FILE], numbers=[0], port=port, **own) as (first,):
        until_it_listens(port)
        noise = list(garbage(port))  # some of it stays connected and says no more
        with several([WAITS_FOR_A_FILE], numbers=[1], port=port, **own) as (second,):
            assert [first.told(), second.told()] == [[0, 1], [0, 1]]
            with several([MEET], numbers=[1], counts=[2], port=port) as (late,):
                kind, line = late.told()
            assert kind == "ValueError"
            assert line.startswith(f"{who(1, late)} came too late: the group of 2 processes of {who(0, first)}")
            noise += list(garbage(port))
            (tmp_path / "go").touch()
            assert [first.told(), second.told()] == [[0, 1], [0, 1]]
            assert [first.ended(), second.ended()] == [(0, "")] * 2
    for each in noise:
        each.close()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ({"coordinator": "a:1"}, "join: processes and process must be given as well"),
        ({"processes": 2, "process": 0}, "join: coordinator must be given as well"),
        ({"coordinator": "a", "processes": 2, "process": 0}, "coordinator must be HOST:PORT"),
        ({"coordinator": "a:70000", "processes": 2, "process": 0}, "coordinator must be HOST:PORT"),
        ({"coordinator": "::1:7000", "processes": 2, "process": 0}, "coordinator must be HOST:PORT"),
        ({"coordinator": "a:1", "processes": 0, "process": 0}, "join: processes must be a whole number of at least 1"),
        ({"coordinator": "a:1", "processes": 2, "process": -1}, "join: process must be a whole number of at least 0"),
    ],
)
def test_bad_arguments(arguments, line):
    with pytest.raises(ValueError, match=re.escape(line)):
        processes.join(**arguments)
    assert processes.current() is None


def test_addresses():
    assert str(wire.read_address("[::1]:7000")) == "[::1]:7000"
    assert wire.read_address("[::1]:7000").is_here
    assert wire.read_address("localhost:7000").is_here
    assert not wire.read_address("10.0.0.1:7000").is_here
    assert not wire.read_address("some-host:7000").is_here


def test_a_message_that_is_too_large_is_not_sent(monkeypatch):
    monkeypatch.setattr(wire, "LARGEST", 100)
    group = Group(0, [meeting.Peer(0, "here", 1)], {})
    with pytest.raises(ValueError, match="100 bytes at a time, not"):
        group.exchange("x" * 200)


def test_what_is_no_message_is_not_read():
    """Nor is memory taken for what somebody says will come."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for text in (struct.pack(">I", 2**31), struct.pack(">I", 3) + b"{1}", struct.pack(">I", 1) + b"\xff"):
            link = wire.connect(wire.Address(*listener.getsockname()), 5)
            with listener.accept()[0] as other:
                other.sendall(text)
                with pytest.raises(wire.NoMessage):
                    link.receive(seconds=5)
            link.close()


@pytest.mark.slow
def test_a_host_that_is_gone_without_a_word_is_noticed():
    """By the system, within 13 seconds: nothing but its settings can be seen here."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = wire.connect(wire.Address(*listener.getsockname()), 5)
        connection = link._socket
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        for name, value in {
            "TCP_KEEPIDLE": 5,
            "TCP_KEEPINTVL": 2,
            "TCP_KEEPCNT": 4,
            "TCP_USER_TIMEOUT": 13_000,
        }.items():
            if hasattr(socket, name):
                assert connection.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
        link.close()


@pytest.mark.slow
def test_a_cluster_tells_who_is_who():
    """As Open MPI would; without one there is nothing to go by."""
    script = """
        group = processes.join()
        tell([group.number, group.count, group.exchange(number), raised(processes.join)])
        processes.leave()
    """
    shared = {"OMPI_MCA_orte_hnp_uri": f"{free_port() * 2**12}.0;tcp://127.0.0.1:1", "OMPI_COMM_WORLD_SIZE": "2"}
    own = [{**shared, "OMPI_COMM_WORLD_RANK": str(i), "OMPI_COMM_WORLD_LOCAL_RANK": str(i)} for i in range(2)]
    with several([script] * 2, environments=own) as children:
        for number, child in enumerate(children):
            assert child.told() == [
                number, 2, [0, 1],
                ["ValueError", f"join: this is process {number} of 2 already; leave comes first"],
            ]  # fmt: skip
        assert [child.ended() for child in children] == [(0, "")] * 2
    with several(["tell(raised(processes.join))"]) as (alone,):
        line = "join: no cluster tells what to do; give coordinator, processes and process"
        assert alone.told() == ["ValueError", line]


# --- loss -------------------------------------------------------------------------------------------------------------

IN_EXCHANGE = """
group = join()
group.exchange(0)
tell("ready")
if number == int(os.environ["VICTIM"]):
    time.sleep(100)
tell(raised(lambda: group.exchange(1)))
time.sleep(1)  # JAX has the time to abort
tell([processes.broken(), type(group.lost(0)).__name__])
group.exchange(2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("victim", [slow(1), 0])
def test_a_process_is_killed_while_others_wait_for_it(victim):
    with several([IN_EXCHANGE] * 3, environments=[{"VICTIM": str(victim)}] * 3) as children:
        assert [child.told() for child in children] == ["ready"] * 3
        children[victim].process.kill()
        killed = time.monotonic()
        for number, child in enumerate(children):
            if number != victim:
                assert child.told() == ["Lost", f"{who(victim, children[victim])} ended"]
                assert child.told() == [True, "Lost"]
                status, errors = child.ended()
                assert status == 1
                assert errors.rstrip().endswith(f"Lost: {who(victim, children[victim])} ended")
                assert "stack trace" not in errors
        assert time.monotonic() - killed < 10


IN_COMPILED = """
import jax
group = join()
with group.watched("the same command continues"):
    with group.together():
        endless(group)
"""


@pytest.mark.slow
@pytest.mark.parametrize("victim", [1, 0])
def test_a_process_is_killed_while_others_compute_with_it(victim):
    """Compiled code may fail or hang; in either case one line says what happened, and JAX does not abort."""
    with several([IN_COMPILED] * 2) as children:
        assert [child.told() for child in children] == ["ready"] * 2
        time.sleep(0.5)
        children[victim].process.kill()
        status, errors = children[1 - victim].ended(30)
    line = f"{who(victim, children[victim])} ended"
    assert status == 1
    assert errors.rstrip().endswith(f"Lost: {line}") or errors == f"Error: {line}; the same command continues\n"
    assert "stack trace" not in errors


STUCK = """
of_group.GRACE = 1.0
group = join()
if number == 1:
    tell("ready")
    time.sleep(100)
with group.watched("do this"), group.watched("do that"):
    stuck()
"""


@pytest.mark.slow
def test_a_process_that_hangs_after_a_loss_is_ended():
    with several([STUCK] * 3) as children:
        assert [child.told() for child in children] == ["ready"] * 3
        children[1].process.kill()
        for number in (0, 2):
            assert children[number].ended(20) == (1, f"Error: {who(1, children[1])} ended; do that\n")


UNWINDING = """
of_group.UNWINDING = 1.0
group = join()
if number == 1:
    tell("ready")
    time.sleep(100)
with group.watched("do this"):
    tell("ready")
    try:
        group.exchange(1)
    finally:
        stuck()
"""


@pytest.mark.slow
def test_a_process_that_hangs_on_its_way_out_is_ended():
    with several([UNWINDING] * 2) as children:
        assert [child.told() for child in children] == ["ready"] * 2
        children[1].process.kill()
        assert children[0].ended(20) == (1, f"Error: {who(1, children[1])} ended; do this\n")


UNTOLD = """
group = join()
group.exchange(0)
if number == 1:
    raise KeyError("only mine")
tell(raised(lambda: group.exchange(1)))
"""


@pytest.mark.slow
def test_an_error_that_nobody_was_told_of_is_a_loss():
    with several([UNTOLD] * 3) as children:
        for number in (0, 2):
            assert children[number].told() == ["Lost", f"{who(1, children[1])} failed: KeyError: 'only mine'"]
        status, errors = children[1].ended()
        assert status == 1
        assert errors.rstrip().endswith("KeyError: 'only mine'")


FAILS_ALONE = """
of_group.OVERDUE = of_group.GRACE = 1.0
group = join()
with group.together():
    if number == 1:
        time.sleep(1)
        raise ValueError("a bad row")
    stuck()
"""


@pytest.mark.slow
def test_an_error_reaches_a_process_that_cannot_listen():
    with several([FAILS_ALONE] * 3) as children:
        for number in (0, 2):
            assert children[number].ended(30) == (1, f"Error: {who(1, children[1])} failed: a bad row\n")
        status, errors = children[1].ended()
        assert status == 1
        assert errors.rstrip().endswith("ValueError: a bad row")


LEAVES = """
group = join()
group.exchange(0)
if number == 1:
    processes.leave()
tell(raised(lambda: group.exchange(1)))
"""


@pytest.mark.slow
def test_a_process_that_leaves_too_early_is_missed():
    with several([LEAVES] * 2) as children:
        assert children[0].told() == ["Lost", f"{who(1, children[1])} has left the others"]
        assert children[0].ended()[0] == 1
        assert children[1].ended()[0] == 1
