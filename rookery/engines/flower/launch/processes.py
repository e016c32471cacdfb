"""Starts a SuperLink and nodes on this machine, and stops them again."""

import importlib.metadata
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

WANTED = ("1.41", "1.42")


def require_flower() -> None:
    """Raises with one clear line unless the right Flower is installed."""
    how = 'pip install "rookery[flower]"'
    try:
        found = importlib.metadata.version("flwr")
    except importlib.metadata.PackageNotFoundError:
        raise ImportError(f"rk.Flower needs Flower, which is not installed: {how}") from None
    if not found.startswith(tuple(f"{each}." for each in WANTED)):
        raise ImportError(f"rk.Flower needs flwr {' or '.join(WANTED)}, this is {found}: {how}")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")


def quiet_environment(home: Path) -> dict[str, str]:
    """The environment of whatever is started: no telemetry, no look for updates, files of Flower in ``home``."""
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_HOME": str(home)}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])  # its programs call others
    return {**os.environ, **quiet, "PATH": path}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Started:
    """Processes with their logs; each in a group of its own, under a guard that ends it when this process dies."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: Counter[str] = Counter()  # bytes of each log
        folder.mkdir(parents=True, exist_ok=True)

    def start(self, name: str, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Starts a command; what it prints goes to ``name.log``."""
        guard = [sys.executable, str(Path(__file__).with_name("guard.py")), str(os.getpid())]
        with open(self.folder / f"{name}.log", "ab") as out:
            self.news(name)  # what an earlier run left there is no news
            self.processes[name] = subprocess.Popen(
                [*guard, *command],
                stdout=out,
                stderr=out,
                stdin=subprocess.DEVNULL,
                env=quiet_environment(self.folder / "flower"),
                start_new_session=True,
            )
        return self.processes[name]

    def check(self) -> None:
        """Raises if one of them has ended, with the end of its log."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                lines = (self.folder / f"{name}.log").read_text(errors="replace").strip().splitlines()
                told = " | ".join(lines[-3:])
                raise ConnectionError(f"{name} ended with status {process.returncode}: {told}")

    def news(self, name: str) -> list[str]:
        """The lines of a log that were not asked for before."""
        with open(self.folder / f"{name}.log", "rb") as log:
            log.seek(self._seen[name])
            whole = log.read().rpartition(b"\n")[0]
        self._seen[name] += len(whole) + 1 if whole else 0
        return whole.decode(errors="replace").splitlines()

    def stop(self) -> None:
        """Ends all: asked first, then forced."""
        for process in reversed(self.processes.values()):
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
        end = time.monotonic() + 8
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # its group: what a guard left behind
            process.wait()


def node_number(text: str) -> int | None:
    """Flower's number of the node that a text was last about: as nodes and their starter name them in their logs."""
    found = re.findall(r"Flower's node (\d+)\)", text)
    return int(found[-1]) if found else None


@contextmanager
def started(folder: Path) -> Iterator[Started]:
    """A place to start processes in; all are stopped at the end, however it comes."""
    group = Started(folder)
    try:
        yield group
    finally:
        group.stop()


def start_superlink(group: Started, port: int, more: Sequence[str] = ("--insecure",), host: str = "127.0.0.1") -> None:
    """A SuperLink of our own: no code of a run is executed by it or installed for it."""
    fixed = ["--isolation", "process", "--disable-runtime-dependency-installation"]
    group.start("superlink", [_program("flower-superlink"), *more, "--host", host, "--port", str(port), *fixed])


def run_stock(app: Path, group: Started, clients: int, config: str) -> subprocess.CompletedProcess[str]:
    """``flwr run`` of an app, on Flower's own programs on this machine: a SuperLink, and a SuperNode for each client."""
    port, home = free_port(), group.folder / "flower"
    address, common = f"127.0.0.1:{port}", ["--insecure", "--host", "127.0.0.1"]
    link = [*common, "--port", str(port), "--disable-runtime-dependency-installation"]
    group.start("superlink", [_program("flower-superlink"), *link])
    wait_for_superlink(group, f"http://{address}")
    for client in range(clients):
        own = f'partition-id={client} folder="{group.folder / f"client-{client}"}"'
        node = [*common, "--superlink", address, "--port", str(free_port()), "--node-config", own]
        group.start(f"supernode-{client}", [_program("flower-supernode"), *node])
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(f'[superlink.here]\naddress = "{address}"\ninsecure = true\n')
    return subprocess.run(
        [_program("flwr"), "run", str(app), "here", "--run-config", config, "--stream"],
        env=quiet_environment(home), capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


def _program(name: str) -> str:
    beside = Path(sys.executable).with_name(name)
    program = str(beside) if beside.exists() else shutil.which(name)
    if program is None:
        raise ImportError(f'{name} is not on the path: pip install "rookery[flower]"')
    return program


def wait_for_superlink(group: Started, url: str, patience: float = 60.0) -> None:
    """Waits until it answers."""
    end = time.monotonic() + patience
    while True:
        group.check()
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=1) as response:
                if response.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        if time.monotonic() > end:
            raise ConnectionError(f"the SuperLink does not answer at {url} after {patience:g} s")
        time.sleep(0.05)
