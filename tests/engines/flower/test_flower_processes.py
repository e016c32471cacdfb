"""The Flower engine with a real SuperLink and real nodes. What takes long is slow, and ``federation``."""

import contextlib
import importlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from typer.testing import CliRunner

import rookery as rk
from rookery.engines.flower.engine import Flower
from rookery.engines.flower.launch.processes import (
    Started,
    free_port,
    quiet_environment,
    run_stock,
    start_superlink,
    started,
    wait_for_superlink,
)
from rookery.engines.flower.wire.reach import NotAdmitted, wait_until_reachable
from rookery.experiment.engines import engine_of, engine_table
from rookery.experiment.folder import read_config, read_run
from rookery.experiment.running import prepare_run, resume_run, start_run
from rookery.experiment.settings import resolve, settings_of, write_toml
from rookery.experiment.sites import open_site
from rookery.solving.loop import make_rounds

if importlib.util.find_spec("flwr") is None:
    pytest.skip("flwr is not installed", allow_module_level=True)

N = 4

PROBLEM = """
import jax
import numpy as np
import rookery as rk

num_clients = 4

def upper(x, y, batch):
    return (0.5 * ((y - batch["b"]) ** 2).sum(1) + 0.5 * batch["s"] * (x @ x)).mean() - 0.3 * x.sum()

def lower(x, y, batch):
    return (0.5 * batch["s"] * ((y - x - batch["a"]) ** 2).sum(1)).mean()

def objective(x, y, batch):
    own = 0.5 * batch["s"] * (x @ x) + (batch["a"] @ x) * y.sum() - 0.5 * ((y - batch["b"]) ** 2).sum(1)
    return own.mean() - 0.3 * x.sum()

def loss(w, batch):
    return (0.5 * batch["s"] * ((w - batch["a"]) ** 2).sum(1)).mean()

PROBLEMS = {
    "bilevel": rk.Bilevel(upper, lower), "bilevel-local": rk.Bilevel(upper, lower, lower_level="local"),
    "minimax": rk.Minimax(objective), "weighting": rk.ClientWeighting(loss),
}
problem = PROBLEMS["KIND"]
y0 = np.array([0.8, 0.3], np.float32)
x0 = np.full(4, 0.25, np.float32) if "KIND" == "weighting" else np.array([0.6, -0.4], np.float32)

def rows(seed, size):
    rng = np.random.default_rng(seed)
    made = {"a": 0.5 * rng.standard_normal((size, 2)), "b": rng.standard_normal((size, 2)), "s": rng.uniform(0.5, 1.5, size)}
    secret = np.tile(np.frombuffer(b"planted-in-the-data", np.uint8), (size, 1))
    return {"secret": secret, **{name: values.astype(np.float32) for name, values in made.items()}}

def load_client(partition, num_partitions):
    data = rows(partition, 4), rows(100 + partition, 3)
    if partition in SPOILED:
        data = jax.tree.map(lambda leaf: np.full_like(leaf, 3e38) if leaf.dtype == np.float32 else leaf, data)
    return rk.Clients([data[0]], [data[1]])

def load_server():
    return rows(1000, 3)
"""


class World:
    """A problem file, the same problem in this process, and what it is solved with."""

    def __init__(self, folder, algorithm, spoiled=()):
        self.algorithm = algorithm
        self.file = folder / "tiny_problem.py"
        text = PROBLEM.replace("KIND", algorithm.solves[0])
        self.file.write_text(text.replace("SPOILED", repr(tuple(spoiled))))
        names: dict[str, Any] = {}
        exec(text.replace("SPOILED", "()"), names)
        own = [names["load_client"](i, N) for i in range(N)]
        lower, upper = (
            [jax.tree.map(np.asarray, getattr(each, name).data) for each in own] for name in ("lower", "upper")
        )
        clients = rk.Clients(lower, upper, server=names["load_server"]())
        self.task = names["problem"], algorithm, clients, names["x0"], names["y0"]

    def solve(self, rounds, **more):
        how = {"key": 3, "participation": 2, "batch_size": 2, "every": rounds, "evaluate": nothing}
        return rk.solve(*self.task, rounds=rounds, **{**how, **more})

    def replayed(self, rounds, trace):
        return self.solve(rounds, participation=rk.Replay(trace))


def nothing(x, y):
    return {}


def assert_same(found, expected):
    one, other = ((s.x, s.y, s.state.server, s.state.keep, s.state.last) for s in (found, expected))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * max(np.abs(b).max(initial=0), 0.01))


def children():
    """Processes whose parent is this one."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text().rpartition(")")
            if rest.split()[0] != "Z" and int(rest.split()[1]) == os.getpid():
                found.append(name)
    return found


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    """Where nodes keep what they compiled: not in the user's own cache."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def nothing_is_left_behind():
    before = children()
    yield
    assert children() == before


# --- all of it on this machine ------------------------------------------------------------------------------------------


def test_nodes_in_this_process(tmp_path):
    world = World(tmp_path, rk.MeFBO())
    given = world.task[0]
    closure = rk.Bilevel(lambda x, y, batch: given.upper(x, y, batch), given.lower)  # no process could import it
    world.task = (closure, *world.task[1:])
    expected = world.solve(4)
    found = world.solve(4, engine=rk.Flower(nodes=2))
    assert_same(found, expected)
    counted = {name: value for name, value in expected.history.last.items() if name != "seconds"}
    assert counted == {name: found.history.last[name] for name in counted}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("node-")]


SIX = ["MeFBO", "FedBiOAcc", "FedNest", "FedBiO-Local", "FedSGDA-M", "PrimalDual"]


@pytest.mark.federation
@pytest.mark.slow
@pytest.mark.parametrize("name", SIX)
def test_processes_give_the_iterates_of_the_simulator(tmp_path, cache, name):
    world = World(tmp_path, rk.registry[name]())
    engine = rk.Flower(nodes=2, problem=str(world.file), folder=tmp_path / "nodes")
    assert_same(world.solve(10, engine=engine), world.solve(10))
    assert any((cache / "rookery" / "compiled").rglob("*-cache")), "the next node of this kind starts sooner"


@pytest.mark.federation
@pytest.mark.slow
def test_everything_is_stopped_after_an_error(tmp_path):
    world = World(tmp_path, rk.MeFBO())
    broken = tmp_path / "broken.py"
    broken.write_text("raise RuntimeError('this site is not ready')")
    with pytest.raises(
        rk.FederationError, match=r"node-0 cannot take part: .*broken.py, line 1: .*this site is not ready"
    ):
        world.solve(4, engine=rk.Flower(nodes=1, problem=str(broken)))

    def stop(x, y):
        np.asarray(x)  # NumPy: it is called with numbers, not traced
        stop.calls += 1
        if stop.calls == 2:
            raise KeyboardInterrupt
        return {}

    stop.calls = 0
    with pytest.raises(KeyboardInterrupt):
        world.solve(4, engine=rk.Flower(nodes=1, problem=str(world.file)), evaluate=stop, every=1)


@pytest.mark.federation
@pytest.mark.slow
def test_a_node_of_ours_that_dies_is_started_again_and_stalls_nobody(tmp_path, caplog):
    """It is killed while its clients' uploads are waited for, with a deadline that would show."""
    world = World(tmp_path, rk.registry["FedBiO-Local"]())
    folder = tmp_path / "nodes"
    killed, seconds = [], []

    def kill():
        killed.extend(map(int, re.findall(r"node-1 \(process (\d+)", (folder / "node-1.log").read_text())))
        os.kill(killed[0], signal.SIGSTOP)  # it does not answer any more
        threading.Timer(0.5, os.kill, (killed[0], signal.SIGKILL)).start()

    def before(round):
        seconds.append(time.monotonic())
        if round == 3:
            kill()
        if round == 6:  # by now the new one is to be there
            end = time.monotonic() + 30
            while len(re.findall("hosts clients", (folder / "node-1.log").read_text())) < 2 and time.monotonic() < end:
                time.sleep(0.05)

    seen: list[Any] = []
    engine = Watched(
        nodes=2, problem=str(world.file), folder=folder, seen=seen, before=before, deadline=300.0, quorum=1, pause=0.2
    )
    found = world.solve(9, engine=engine, participation=None)
    trace = seen[0].trace
    assert re.search(r"node-1 \(Flower's node \d+\) ended with status -9 and is started again", caplog.text)
    assert trace[3] == [[0, 2]]
    assert trace[6:] == [[[0, 1, 2, 3]]] * 3, "its replacement is greeted at once"
    assert "node-1: its process has ended" in seen[0].left_out
    assert seconds[4] - seconds[3] < 10, "a SuperLink would notice after 50 to 60"
    assert_same(found, world.replayed(9, trace))


BROKEN = """
import os, signal, sys
from pathlib import Path
from rookery.cli import starter

folder, most = Path(sys.argv[1]), int(sys.argv[2])

def broken(**told):
    with open(folder / "starts", "a") as file:
        file.write("x")
    if (folder / "starts").stat().st_size == most:
        os.kill(os.getppid(), signal.SIGTERM)
    raise RuntimeError(f"no disk for {told['partition']}")

starter.be_node = broken
starter.SPAN = float(sys.argv[3])
sys.exit(starter.main(folder, "127.0.0.1:1", "none.py", ["0,1"]))
"""


def broken_nodes(folder, most, span):
    command = [sys.executable, "-c", BROKEN, str(folder), str(most), str(span)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_node_that_ends_again_and_again_ends_the_nodes_with_its_reason(tmp_path):
    done = broken_nodes(tmp_path, most=1000, span=1000)
    assert done.returncode == 1
    *lines, last = done.stdout.splitlines()
    assert lines == ["node-0 (Flower's node not yet) ended with status 1 and is started again"] * 9
    assert last.startswith("node-0 (Flower's node not yet) ended with status 1 and is not started again: ")
    assert last.endswith("RuntimeError: no disk for 0,1")


def test_a_node_that_ends_now_and_then_is_always_started_again(tmp_path):
    """However often that is in a long run: only ends that follow each other within ``SPAN`` are too many."""
    done = broken_nodes(tmp_path, most=15, span=0)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) >= 14
    assert "is not started again" not in done.stdout


# --- faults -------------------------------------------------------------------------------------------------------------


class Site:
    """A SuperLink with its database, and nodes that can be killed and started again."""

    def __init__(self, group: Started, world: World):
        self.group, self.world = group, world
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"

    def start_superlink(self):
        start_superlink(self.group, self.port, ["--insecure", "--database", str(self.group.folder / "superlink.db")])

    def start_node(self, number, partition, more=()):
        command = [sys.executable, "-m", "rookery.cli.node", "--superlink", self.address]
        command += ["--problem", str(self.world.file), "--partition", partition, "--name", f"node-{number}"]
        command += ["--folder", str(self.group.folder / f"state-{number}"), *more]
        self.group.start(f"node-{number}", command)

    def signal(self, name, number):
        os.killpg(self.group.processes[name].pid, number)

    def kill(self, name):
        self.signal(name, signal.SIGKILL)
        self.group.processes[name].wait()


@contextlib.contextmanager
def site(folder, world, partitions=("0,2", "1,3")):
    with started(folder / "site") as group:
        here = Site(group, world)
        here.start_superlink()
        wait_for_superlink(group, f"http://{here.address}")
        for number, partition in enumerate(partitions):
            here.start_node(number, partition)
        yield here


@dataclass(frozen=True)
class Watched(Flower):
    """Notes what was counted, calls ``before`` each round, and drops a share of the answers."""

    before: Any = None
    drop: float = 0.0
    seen: Any = None

    @contextlib.contextmanager
    def open(self, run):
        with super().open(run) as federation:
            advance, send, rng = federation.advance, federation.roster.transport.send, np.random.default_rng(0)

            def watched(state, rounds):
                if self.before is not None:
                    self.before(state.round)
                return advance(state, rounds)

            def dropping(requests, deadline, enough=None):
                answers = send(requests, deadline, enough)
                return {node: answer for node, answer in answers.items() if rng.random() >= self.drop}

            federation.advance = watched
            if self.drop:
                federation.roster.transport = _With(federation.roster.transport, dropping)
            self.seen.append(federation)
            yield federation


class _With:
    def __init__(self, transport, send):
        self.nodes, self.send = transport.nodes, send


def watched(address, **how):
    seen: list[Any] = []
    return Watched(superlink=address, seen=seen, pause=0.2, **how), seen


@pytest.mark.federation
@pytest.mark.slow
def test_a_node_killed_in_the_middle_of_a_round_comes_back_with_what_its_clients_keep(tmp_path):
    world = World(tmp_path, rk.registry["FedBiO-Local"]())
    with site(tmp_path, world) as here:
        known = set()

        def before(round):
            nodes = seen[0].roster.transport.nodes
            if round == 6:  # by now the new node is to be there
                end = time.monotonic() + 60
                while not set(nodes()) - known and time.monotonic() < end:
                    time.sleep(0.1)
            if round != 3:
                return
            known.update(nodes())
            here.signal("node-1", signal.SIGSTOP)  # it will not answer in this round

            def kill():
                time.sleep(1.0)
                here.kill("node-1")
                here.start_node(1, "1,3")

            threading.Thread(target=kill).start()

        engine, seen = watched(here.address, before=before, deadline=6.0, quorum=1, attempts=30)
        found = world.solve(9, participation=None, engine=engine)
        trace = seen[0].trace
    assert trace[2] == [[0, 1, 2, 3]]
    assert trace[3] == [[0, 2]]
    assert trace[-1] == [[0, 1, 2, 3]], "it is back"
    assert any("node-1" in reason for reason in seen[0].left_out)
    assert_same(found, world.replayed(9, trace))


@pytest.mark.federation
@pytest.mark.slow
def test_a_tenth_of_the_answers_is_lost_for_thirty_rounds(tmp_path):
    world = World(tmp_path, rk.registry["FedBiO-Local"]())
    with site(tmp_path, world, ("0", "1", "2", "3")) as here:
        stored = set()

        def look(round):  # at all that has passed through the SuperLink and is in its database
            content = b"".join(path.read_bytes() for path in here.group.folder.glob("superlink.db*"))
            stored.update(part for part in (b"FedBiO-Local", b"planted-in-the-data") if part in content)

        engine, seen = watched(here.address, drop=0.1, quorum=0.5, before=look)
        found = world.solve(30, participation=3, engine=engine)
    assert stored == {b"FedBiO-Local"}, "what is sent can be seen there, and nothing of the data is sent"
    assert len(seen[0].trace) == 30
    assert sum(seen[0].left_out.values()) >= 3
    assert_same(found, world.replayed(30, seen[0].trace))


@pytest.mark.federation
@pytest.mark.slow
def test_a_node_that_always_sends_nan_is_left_out(tmp_path):
    """Its data are finite, but so large that nothing that is computed with them is."""
    world = World(tmp_path, rk.MeFBO(), spoiled=[1])
    with site(tmp_path, world, ("0,2", "1", "3")) as here:
        engine, seen = watched(here.address, quorum=0.5)
        found = world.solve(10, participation=3, engine=engine)
    assert all(1 not in draw for draws in seen[0].trace for draw in draws)
    assert any(text.startswith("node-1: ") and "not finite" in text for text in seen[0].left_out)
    assert_same(found, world.replayed(10, seen[0].trace))


@pytest.mark.federation
@pytest.mark.slow
def test_a_superlink_that_is_killed_and_restarted_on_its_database(tmp_path):
    world = World(tmp_path, rk.registry["FedBiO-Local"]())
    with site(tmp_path, world) as here:

        def before(round):
            if round == 3:
                here.kill("superlink")
                threading.Timer(2.0, here.start_superlink).start()

        engine, seen = watched(here.address, before=before, quorum=1, deadline=60.0, attempts=10)
        found = world.solve(8, participation=None, engine=engine)
    assert_same(found, world.replayed(8, seen[0].trace))


SERVER = """
import sys
from pathlib import Path
import rookery as rk
from rookery.experiment.running import start_run
from rookery.experiment.settings import resolve

if __name__ == "__main__":
    run = {"task": "quadratic-minimax", "clients": 4, "rounds": 40, "every": 7, "participants": 2}
    settings = resolve({**run, "algorithm": "CODASCA"}, {"dimension": 3})
    start_run(settings, Path(sys.argv[1]), engine=rk.Flower(nodes=2))
"""


@pytest.mark.federation
@pytest.mark.slow
def test_a_server_that_is_killed_and_resumed(tmp_path):
    script, folder = tmp_path / "server.py", tmp_path / "run"
    script.write_text(SERVER)
    precision = {**os.environ, "JAX_ENABLE_X64": "1"}  # that of this process, which goes on with it
    server = subprocess.Popen([sys.executable, str(script), str(folder)], env=precision)
    record = folder / "participants.jsonl"
    try:
        end = time.monotonic() + 120
        while not (record.exists() and len(record.read_text().splitlines()) >= 10):
            assert server.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
    finally:
        server.kill()
        server.wait()
    made = len(record.read_text().splitlines())
    assert made < 40
    assert not (folder / "result.safetensors").exists()
    found = resume_run(folder)
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(40))
    settings = settings_of(read_config(folder), folder)
    prepared, _ = prepare_run(settings)
    expected = make_rounds(prepared, settings.rounds, settings.every, False).lane(0)
    np.testing.assert_allclose(found.x, expected.x, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.y, expected.y, rtol=1e-5, atol=1e-7)
    for name in ("round", "exchanges", "bytes_up", "grad_g"):
        np.testing.assert_array_equal(found.history[name], expected.history[name])
    deadline = time.monotonic() + 15  # guards look for their parent ten times a second
    while any(str(folder) in line for _, line in processes()):
        assert time.monotonic() < deadline, "what the killed server had started is still there"
        time.sleep(0.2)


def processes():
    """(number, command line) of all."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found.append((int(path.parent.name), path.read_text().replace("\0", " ")))
    return found


def test_settings_are_kept_for_the_resumption(tmp_path):
    settings = resolve({"task": "quadratic-bilevel", "clients": 4, "seeds": 2})
    with pytest.raises(ValueError, match="seeds must be 1 on an engine that makes one run at a time, got 2"):
        start_run(settings, tmp_path / "run", engine=rk.Flower(nodes=2))
    engine = rk.Flower(nodes=3, quorum=2, deadline=5.0)
    table = engine_table(engine)
    assert table["name"] == "flower"
    assert table["options"]["nodes"] == 3
    assert engine_of(table) == engine
    assert engine_of(table).in_folder(tmp_path).folder == tmp_path / "nodes"


# --- an ordinary Flower App ---------------------------------------------------------------------------------------------


def rookery(*arguments, command="deploy"):
    """A command of ours, in this process."""
    module = importlib.import_module(f"rookery.cli.{command}")
    result = CliRunner().invoke(module.app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def flower(program):
    return str(Path(sys.executable).with_name(program))


@pytest.mark.federation
@pytest.mark.slow
def test_an_ordinary_flower_app(tmp_path):
    """The app that ``rookery deploy init`` writes, on Flower's own programs alone."""
    world = World(tmp_path, rk.registry["FedBiO-Local"]())
    app, out = tmp_path / "the-app", tmp_path / "out"
    rookery("init", str(app), "--problem", str(world.file))
    config = f'algorithm="FedBiO-Local" rounds=3 every=3 participants="2" batch-size="2" seed=3 out="{out}"'
    with started(tmp_path / "site") as group:
        done = run_stock(app, group, N, config)
        told = done.stdout + done.stderr
        assert (out / "result.safetensors").exists(), told[-3000:]
    found = load_file(out / "result.safetensors")
    expected = world.solve(3)
    np.testing.assert_allclose(found["x"], expected.x, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["y"], expected.y, rtol=1e-5, atol=1e-6)


def test_the_app_of_a_run_of_a_task(tmp_path):
    settings = resolve({"task": "quadratic-minimax", "clients": 3})
    write_toml(tmp_path / "config.toml", settings.tables())
    told = rookery("init", str(tmp_path / "App 1"), "--problem", str(tmp_path / "config.toml"))
    assert "is a Flower App" in told
    project = tomllib.loads((tmp_path / "App 1" / "pyproject.toml").read_text())
    assert project["project"]["name"] == "app-1"
    assert project["tool"]["flwr"]["app"]["config"]["algorithm"] == "MeFBO"
    sys.path.insert(0, str(tmp_path / "App 1"))
    try:
        for side in ("client", "server"):
            module = importlib.import_module(f"federation.{side}_app")
            assert type(module.app).__name__ == f"{side.title()}App"
        source = open_site(module.PROBLEM)
        assert source.n == 3
    finally:
        sys.path.remove(str(tmp_path / "App 1"))
    with pytest.raises(ValueError, match="must be a new or empty folder"):
        rookery("init", str(tmp_path / "App 1"), "--problem", str(tmp_path / "config.toml"))
    with pytest.raises(ValueError, match="--problem must be an existing Python file or TOML file"):
        rookery("init", str(tmp_path / "2"), "--problem", "no.module")


@pytest.mark.federation
@pytest.mark.slow
def test_the_server_as_a_command_holds_no_data(tmp_path):
    world = World(tmp_path, rk.PrimalDual())
    with site(tmp_path, world) as here:
        arguments = ["--superlink", here.address, "--problem", str(world.file), "--out", str(tmp_path / "out")]
        how = ["--algorithm", "PrimalDual", "--participants", "2", "--batch-size", "2", "--seed", "3", "--rounds", "4"]
        rookery("run", *arguments, *how, "--every", "2")
    found = load_file(tmp_path / "out" / "result.safetensors")
    np.testing.assert_allclose(found["x"], world.solve(4).x, rtol=1e-5, atol=1e-6)
    assert read_run(tmp_path / "out").finished


# --- security -----------------------------------------------------------------------------------------------------------


def test_certificates_are_those_of_the_host_and_keys_are_secret(tmp_path):
    rookery("certs", str(tmp_path / "certs"), "--host", "10.0.0.9", "--host", "link.example.org", "--nodes", "2")
    folder = tmp_path / "certs"
    assert {path.name for path in folder.iterdir()} == {
        "ca.pem", "ca.key", "server.pem", "server.key", "node-0.key", "node-0.pub", "node-1.key", "node-1.pub",
    }  # fmt: skip
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("*.key"))
    assert (folder / "node-0.pub").read_text().startswith("ecdsa-sha2-nistp384 ")
    from cryptography import x509

    ca, leaf = (x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("ca.pem", "server.pem"))
    leaf.verify_directly_issued_by(ca)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example.org", "localhost"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.9", "127.0.0.1"]
    with pytest.raises(ValueError, match="must be a new or empty folder"):
        rookery("certs", str(folder), "--host", "a")


@pytest.mark.federation
@pytest.mark.slow
def test_only_nodes_with_a_known_key_get_in_and_only_over_tls(tmp_path):
    from rookery.engines.flower.wire.adapter.node import serve

    world = World(tmp_path, rk.MeFBO())
    certs, other = tmp_path / "certs", tmp_path / "other"
    rookery("certs", str(certs), "--host", "127.0.0.1", "--nodes", "3")
    rookery("certs", str(other), "--host", "127.0.0.1", "--nodes", "1")
    root = (certs / "ca.pem").read_bytes()
    with started(tmp_path / "site") as group:
        here = Site(group, world)
        tls = ["--ssl-ca-certfile", str(certs / "ca.pem"), "--ssl-certfile", str(certs / "server.pem")]
        tls += ["--ssl-keyfile", str(certs / "server.key"), "--enable-supernode-auth"]
        start_superlink(group, here.port, tls)
        wait_until_reachable(here.address, root)
        home = group.folder / "flower"
        home.mkdir(exist_ok=True)
        link = f'[superlink.here]\naddress = "{here.address}"\nroot-certificates = "{certs / "ca.pem"}"\n'
        (home / "config.toml").write_text(link)
        for number in range(3):
            key = certs / f"node-{number}.pub"
            subprocess.run(
                [flower("flwr"), "supernode", "register", str(key), "here", "--name", f"site-{number}"],
                env=quiet_environment(home), check=True, capture_output=True, timeout=60,
            )  # fmt: skip
        trusted, unknown = certs / "node-0.key", other / "node-0.key"
        refused = [
            ({"certificates": root}, "Failed to initialize the connection"),
            ({"certificates": root, "key": unknown}, "Failed to initialize the connection"),
            ({"certificates": (other / "ca.pem").read_bytes(), "key": trusted}, "certificate of .* is not trusted"),
            ({"certificates": None, "key": trusted}, "does not speak plain text"),
        ]
        for how, reason in refused:
            with pytest.raises(NotAdmitted, match=reason):
                serve(here.address, lambda request: pytest.fail("it got in"), threading.Event(), patience=0.0, **how)
        (certs / "keys.toml").write_text('[nodes]\n"node-0.pub" = "0,2"\n"node-1.pub" = "1,3"\n')
        keyed = {"superlink": here.address, "certificates": certs / "ca.pem", "keys": certs / "keys.toml"}
        for number, partition in ((2, "0-3"), (0, "0,2")):  # the first has a key that is registered, but not listed
            more = ["--root-certificates", str(certs / "ca.pem"), "--key", str(certs / f"node-{number}.key")]
            here.start_node(number, partition, more)
        with pytest.raises(rk.FederationError, match="of 4 clients are on no node") as caught:
            world.solve(3, engine=rk.Flower(**keyed, patience=20.0))
        assert "node-2" not in str(caught.value)
        more = ["--root-certificates", str(certs / "ca.pem"), "--key", str(certs / "node-1.key")]
        here.start_node(1, "1,3", more)
        assert_same(world.solve(3, engine=rk.Flower(**keyed)), world.solve(3))
