"""A user's file by its suffix, whatever the format, and its checksum."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from rookery.datasets.arrays import open_npz
from rookery.datasets.image_folder import SUFFIXES, folder_digest, open_folder
from rookery.datasets.table import open_csv, open_parquet
from rookery.datasets.user_file import UserFile

_FORMATS: dict[str, Callable[[Path], UserFile]] = {
    ".csv": open_csv,
    ".tsv": open_csv,
    ".txt": open_csv,
    ".parquet": open_parquet,
    ".npz": open_npz,
    **dict.fromkeys(SUFFIXES, open_folder),
}


def open_file(file: str, argument: str = "data") -> UserFile:
    """A user's file or folder; ``argument`` is what a message calls it when it is not there."""
    path = _path(file, argument)
    if path.is_dir():
        return open_folder(path)
    if path.suffix.lower() not in _FORMATS:
        known = ", ".join(suffix for suffix in _FORMATS if suffix not in SUFFIXES)
        raise ValueError(f"{argument}={file!r}: must end with one of {known}, or be a folder of images")
    try:
        return _FORMATS[path.suffix.lower()](path)
    except OSError as error:
        raise ValueError(f"{argument}={file!r}: cannot be read: {error.strerror or error}") from error


def digest(file: str, argument: str = "data") -> str:
    """SHA-256 of a file's bytes, or of the names and bytes of a folder's images."""
    path = _path(file, argument)
    if path.is_dir():
        return folder_digest(path)
    with open(path, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _path(file: str, argument: str) -> Path:
    path = Path(file).expanduser()
    if not path.exists():
        raise ValueError(f"{argument}={file!r}: there is no such file or folder")
    return path
