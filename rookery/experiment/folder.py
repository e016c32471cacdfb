"""The folder of a run: what is in it, and how it is read.

A folder holds ``config.toml`` (complete: settings, resolved defaults, versions, seed, git revision, and a checksum of all
that), ``history.csv``, ``checkpoints/`` (the last two), ``result.safetensors`` (x and y, those of the end and the best ones)
when it is done, and ``log.txt``. All files are written under another name first and then renamed, so that whatever moment a
run is killed in, each of them is whole.
One process at a time writes in a folder. What a run goes on from is a checkpoint alone (``checkpoint.py``).
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from rookery.experiment.checkpoint import digest, manifests
from rookery.files import remove_parts, write
from rookery.solving.history import History

try:
    import fcntl
except ImportError:  # a system without such locks
    fcntl = None  # type: ignore[assignment]


@dataclass(frozen=True)
class StoredRun:
    """What a folder of a run holds. ``config`` has the tables [run], [task], [algorithm] and [environment]."""

    path: Path
    config: Mapping[str, Any]
    history: History

    @property
    def name(self) -> str:
        """What to call it in a table: the algorithm."""
        return str(self.config["run"]["algorithm"])

    @property
    def title(self) -> str:
        """What it is a run of: the task, or the module without its path."""
        return str(self.config.get("source", {}).get("title", self.config["run"].get("task", "")))

    @property
    def metric(self) -> str:
        """The one it is judged by; of a run on nodes, whose server knows no task, the first."""
        if "metric" in self.config["run"]:
            return str(self.config["run"]["metric"])
        found = metrics(self.history.last) if len(self.history) else []
        if not found:
            raise ValueError(f"{self.path} has no metric: its server evaluated nothing")
        return found[0]

    @property
    def higher_is_better(self) -> bool:
        """Whether more of the metric is better."""
        return bool(self.config["run"].get("higher_is_better", False))

    @property
    def finished(self) -> bool:
        """Whether all its rounds were made."""
        return (self.path / "result.safetensors").exists()


def read_run(folder: Path) -> StoredRun:
    """The run in a folder.

    Raises:
        ValueError: there is none, or it was changed since it was written.
    """
    config = read_config(folder)
    return StoredRun(folder, config, _history(folder, config))


def _history(folder: Path, config: Mapping[str, Any]) -> History:
    """The table, compared with the newest checkpoint as far as that goes, and beyond it with good sense."""
    path = folder / "history.csv"
    told = next((read for _, read in manifests(folder) if not isinstance(read, str)), None)
    known = History() if told is None else History.of_csv(told["history"])
    if not path.exists():
        return known
    found = History.from_csv(path)
    rounds = [row["round"] for row in found if type(row.get("round")) is int]
    last = config["run"].get("rounds", 0)
    if len(rounds) < len(found) or not all(a < b <= last for a, b in zip([-1, *rounds], rounds, strict=False)):
        raise ValueError(f"{path} is damaged: its rounds are not rising numbers up to {last}")
    if History(found.rows[: len(known)]).as_csv() != known.as_csv():
        raise ValueError(f"{path} was changed since it was written; rookery resume {folder} writes it anew")
    return found


def find_runs(folders: list[Path]) -> list[StoredRun]:
    """The runs in these folders, or in folders directly inside them."""
    found = []
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is not a folder of a run")
        inside = (
            [folder] if (folder / "config.toml").exists() else sorted(p.parent for p in folder.glob("*/config.toml"))
        )
        if not inside:
            raise ValueError(f"{folder} holds no run: there is no config.toml in it")
        found += [read_run(each) for each in inside]
    return found


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Makes a folder this process's to write in, until it lets go or ends in whatever way."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a+") as file:
        try:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ValueError(f"{folder} is being written by process {file.read().strip() or '(unknown)'}") from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        for place in (folder, folder / "checkpoints"):
            remove_parts(place)  # of a process that was killed
        yield


def write_config(folder: Path, tables: Mapping[str, Any]) -> str:
    """Writes ``config.toml`` with its checksum, which is returned."""
    tables = as_read(tables)
    seal = digest(tables)
    write(folder / "config.toml", tomli_w.dumps({**tables, "checksum": {"sha256": seal}}).encode())
    return seal


def read_config(folder: Path) -> dict[str, Any]:
    """The tables of ``config.toml``, if they are what was written."""
    path = folder / "config.toml"
    if not path.exists():
        raise ValueError(f"{folder} holds no run: there is no config.toml in it")
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from None
    tables = {name: each for name, each in config.items() if name != "checksum"}
    if config.get("checksum") != {"sha256": digest(tables)}:
        raise ValueError(
            f"{path} was changed since the run began (its checksum says so): rookery run {path} --out ANOTHER starts a run "
            "of its own"
        )
    return config


def as_read(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Tables as TOML gives them back."""
    return tomllib.loads(tomli_w.dumps(dict(tables)))


def metrics(row: Mapping[str, Any]) -> list[str]:
    """The columns of a row that ``evaluate`` gave."""
    names = list(row)
    return names[names.index("seconds") + 1 :]
