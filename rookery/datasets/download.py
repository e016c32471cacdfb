"""Downloads: over HTTPS from several mirrors, verified before a file takes its place."""

import hashlib
import http.client
import tarfile
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from rookery.datasets.files import DataError, algorithms, cache_folder, mismatch, provided, state
from rookery.datasets.sources import DataFile, Published, published
from rookery.files import replacing

Opener = Callable[..., Any]
_TIMEOUT = 30.0  # seconds without an answer
_CHUNK = 1 << 18


def fetch(name: str) -> list[Path]:
    """The verified files of a data set, in the order of ``DATASETS``; what is missing is downloaded into the cache.

    Of one by hand, what the user has put here.
    """
    source = published(name)
    return provided(source) if source.by_hand else fetch_from(source, source.mirrors, _https().open)


def fetch_from(dataset: Published, mirrors: Sequence[str], opener: Opener) -> list[Path]:
    """The same from these mirrors; ``opener(request, timeout=...)`` answers as ``urllib.request.urlopen`` does."""
    paths = {file.name: path for file in dataset.files if (path := _verified(dataset, file))}
    missing = [file for file in dataset.files if file.name not in paths]
    if missing:
        folder = cache_folder(dataset.name)
        try:
            _download(dataset.archive, missing, folder, mirrors, opener)
        except DataError as error:
            raise DataError(f"{dataset.name}: {error}; {_by_hand(dataset, missing, folder)}") from error
        paths |= {file.name: folder / file.name for file in missing}
    return [paths[file.name] for file in dataset.files]


def _verified(dataset: Published, file: DataFile) -> Path | None:
    found = state(dataset.name, file)
    if found.path and found.status == "bad":
        error = mismatch(found.path, found.expected, found.found)
        raise DataError(f"{error}; delete it to have it downloaded again")
    return found.path


def _download(
    archive: DataFile | None, files: Sequence[DataFile], folder: Path, mirrors: Sequence[str], opener: Opener
) -> None:
    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        if archive is None:
            for file in files:
                _from_a_mirror(file, folder / file.name, mirrors, opener, progress)
            return
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as scratch:
            packed = Path(scratch) / archive.name
            _from_a_mirror(archive, packed, mirrors, opener, progress)
            _unpack(packed, files, folder)


def _from_a_mirror(file: DataFile, path: Path, mirrors: Sequence[str], opener: Opener, progress: Progress) -> None:
    """The first mirror that gives the right file; all reasons if none does."""
    task = progress.add_task(file.name, total=file.bytes)
    reasons = []
    for mirror in mirrors:
        progress.reset(task)
        # Checksums decide; the limit only ends what is far too long. Omniglot's two packings differ in size.
        chunks = _chunks(mirror + file.name, opener, 2 * file.bytes)
        try:
            _save(chunks, path, file.checksums, lambda count: progress.advance(task, count))
            return
        except DataError as error:
            reasons.append(f"{urlsplit(mirror).netloc}: {error}")
    raise DataError(f"{file.name} could not be downloaded ({'; '.join(reasons)})")


def _chunks(url: str, opener: Opener, limit: int) -> Iterator[bytes]:
    """What the server sends; only errors of the network become a DataError, those of writing stay what they are."""
    request = urllib.request.Request(url, headers={"User-Agent": "rookery"})
    try:
        with opener(request, timeout=_TIMEOUT) as response:
            expected, received = response.length, 0
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                if received > limit:
                    raise DataError(f"sends more than {limit} bytes")
                yield chunk
            if expected is not None and received < expected:
                raise DataError(f"cut off after {received} of {expected} bytes")
    except (OSError, http.client.HTTPException) as error:
        cause = error if isinstance(error, HTTPError) else getattr(error, "reason", error)
        raise DataError(str(cause) or type(cause).__name__) from error


def _save(
    chunks: Iterable[bytes], path: Path, checksums: Sequence[str], advance: Callable[[int], None] = lambda count: None
) -> None:
    hashes = {algorithm: hashlib.new(algorithm, usedforsecurity=False) for algorithm in algorithms(checksums)}
    with replacing(path) as file:
        for chunk in chunks:
            file.write(chunk)
            for digest in hashes.values():
                digest.update(chunk)
            advance(len(chunk))
        found = [f"{algorithm}:{digest.hexdigest()}" for algorithm, digest in hashes.items()]
        if not set(found) & set(checksums):
            raise mismatch(path.name, checksums, found)


def _unpack(archive: Path, files: Sequence[DataFile], folder: Path) -> None:
    """Write the wanted files and nothing else: no path of the archive is ever followed."""
    wanted = {file.name: file for file in files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.isreg() and member.name in wanted and (content := tar.extractfile(member)):
                    file = wanted.pop(member.name)
                    _save(iter(partial(content.read, _CHUNK), b""), folder / file.name, file.checksums)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive.name}: not a whole tar.gz archive: {error}") from error
    if wanted:
        raise DataError(f"{archive.name}: does not contain {', '.join(wanted)}")


def _by_hand(dataset: Published, missing: Sequence[DataFile], folder: Path) -> str:
    mirror = dataset.mirrors[0]
    if dataset.archive:
        todo = f"download {mirror}{dataset.archive.name} by hand and unpack it in {folder}"
    else:
        todo = f"download {', '.join(file.name for file in missing)} by hand from {mirror} and put them into {folder}"
    return f"{todo}, or set ROOKERY_DATA to a folder that has the files in {dataset.name}/"


def _https() -> urllib.request.OpenerDirector:
    """Opens https only, also after a redirection, and honours the usual variables for proxies."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener
