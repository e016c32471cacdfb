"""Files of data sets on this machine: where they are looked for, and whether they are the right ones."""

import functools
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rookery.datasets.sources import DataFile, Published, published


class DataError(ValueError):
    """A data set cannot be had: a file is not the official one, not in the official format or not to be downloaded."""


@dataclass(frozen=True)
class FileState:
    """What is known of a file of a data set: found where, with which checksums, and which ones are accepted."""

    dataset: str
    file: str
    path: Path | None
    status: Literal["ok", "missing", "bad", "here"]
    """"here" is what cannot be compared with anything: nobody has published checksums."""
    expected: tuple[str, ...]
    found: tuple[str, ...] = ()


def user_cache() -> Path:
    """Where this package keeps what can be had again."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # also when it is not set; the XDG rules ignore a relative path
        try:
            base = Path.home() / ".cache"
        except RuntimeError as error:
            raise DataError(f"no cache folder: {error}; set ROOKERY_DATA or XDG_CACHE_HOME") from error
    return base / "rookery"


def cache_folder(name: str) -> Path:
    """Where the files of this data set are kept that the user has not put somewhere."""
    return user_cache() / "data" / name


def locate(dataset: str, file: DataFile) -> tuple[Path, tuple[str, ...]] | None:
    """The first that exists, with its checksums: below ROOKERY_DATA, then in the cache; packed, then unpacked."""
    for folder in _folders(dataset):
        for name, checksums in file.accepted.items():
            if (folder / name).is_file():
                return folder / name, checksums
    return None


def state(dataset: str, file: DataFile) -> FileState:
    """Look for a file, and compare what is found with its checksums."""
    here = locate(dataset, file)
    if here is None:
        return FileState(dataset, file.name, None, "missing", file.checksums)
    path, expected = here
    found = tuple(checksum(path, algorithm) for algorithm in algorithms(expected))
    status: Literal["ok", "bad"] = "ok" if set(found) & set(expected) else "bad"
    return FileState(dataset, file.name, path, status, expected, found)


def verify(name: str) -> list[FileState]:
    """The state of every file of a data set; of what a user must provide, whether it is here."""
    source = published(name)
    if source.layouts:
        paths = laid_out(source)
        missing = [FileState(name, each, None, "missing", ()) for each in source.layouts[0].names]
        return [FileState(name, path.name, path, "here", ()) for path in paths] or missing
    return [state(name, file) for file in source.files]


def where(dataset: Published) -> Path | None:
    """The first file's folder when all files are there (verified or not)."""
    if dataset.layouts:
        return paths[0].parent if (paths := laid_out(dataset)) else None
    paths = [here[0] for file in dataset.files if (here := locate(dataset.name, file))]
    return paths[0].parent if paths and len(paths) == len(dataset.files) else None


def laid_out(dataset: Published) -> list[Path]:
    """What a user has put here of a data set by hand: all of its first layout that is whole; nothing if none is."""
    for folder in _folders(dataset.name):
        for layout in dataset.layouts:
            if all((folder / name).exists() for name in layout.names):
                return [folder / name for name in layout.names]
    return []


def provided(dataset: Published) -> list[Path]:
    """The same, and an error that says what must be put where."""
    found = laid_out(dataset)
    if not found:
        wanted = ", or ".join(layout.told for layout in dataset.layouts)
        raise DataError(
            f"{dataset.name}: not here, and nobody may hand it on: put {wanted}, into {cache_folder(dataset.name)}, "
            f"or set ROOKERY_DATA to a folder that has it in {dataset.name}/"
        )
    return found


def checksum(path: Path, algorithm: str) -> str:
    """ "algorithm:digits" of a file, computed once in a process unless the file changes."""
    status = path.stat()
    return _checksum(path, algorithm, status.st_size, status.st_mtime_ns)


def algorithms(checksums: Sequence[str]) -> list[str]:
    """Those that these checksums need."""
    return list(dict.fromkeys(value.split(":")[0] for value in checksums))


def mismatch(name: str | Path, expected: Sequence[str], found: Sequence[str]) -> DataError:
    """The error for a file that is not what it should be."""
    return DataError(f"{name}: not the official file: expected {' or '.join(expected)}, found {', '.join(found)}")


def _folders(name: str) -> Iterator[Path]:
    given = os.environ.get("ROOKERY_DATA")
    if given:
        yield Path(given).expanduser() / name
    yield cache_folder(name)


@functools.cache
def _checksum(path: Path, algorithm: str, size: int, changed: int) -> str:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{digest.hexdigest()}"
