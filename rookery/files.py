"""The one way that this package writes a file which others rely on: whole, or not at all."""

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

PRIVATE = 0o600
"""The mode of a file that nobody but its owner may read."""


@contextmanager
def replacing(path: Path, mode: int = 0o666, lasting: bool = True) -> Iterator[BinaryIO]:
    """A file to write that takes its place at ``path`` at the end, and leaves nothing behind if anything goes wrong.

    It is new, whatever is at ``path`` (a link is replaced, not followed), and is on the disk when the block ends; so is its
    name if it is ``lasting``. Without, a killed process loses nothing either, but a power cut may bring the old file back.
    ``mode`` is that of the new file, less the umask. Folders are made as they are needed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    if lasting:
        _sync_folder(path.parent)


def write(path: Path, content: bytes, private: bool = False, lasting: bool = True) -> None:
    """Writes a file whole or not at all; a ``private`` one can be read by nobody but its owner."""
    with replacing(path, PRIVATE if private else 0o666, lasting) as file:
        file.write(content)


def is_part(path: Path, name: str = "") -> bool:
    """Whether this is what a process that was killed left of writing a file (the file ``name``, if given)."""
    return path.name.startswith(f".{name}") and path.name.endswith(".part")


def remove_parts(folder: Path) -> None:
    """Removes what processes that were killed left of writing files here. Nobody may be writing in the folder."""
    for path in folder.glob(".*.part"):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Brings the names in a folder to the disk, where the system can."""
    if hasattr(os, "O_DIRECTORY"):
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(opened)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems have no such thing
                raise
        finally:
            os.close(opened)
