"""MiniImageNet and Tiny-ImageNet, photographs that a user must provide: decoded once, and kept in the user's cache."""

import csv
import functools
import io
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from rookery.datasets.download import fetch
from rookery.datasets.files import DataError, checksum
from rookery.datasets.image_folder import SUFFIXES, decoded, opened
from rookery.datasets.kept import fingerprint, kept
from rookery.datasets.sources import DATASETS

MEAN, DEVIATION = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
"""Of ImageNet's pixels in 0..255, as everybody rounds them: networks that have seen ImageNet want their inputs so."""
PARTS = {"train": 64, "val": 16, "test": 20}
"""The classes of MiniImageNet."""
EACH = 600
"""Images of each of them."""


@dataclass(frozen=True)
class MiniImageNet:
    """Photographs (classes, 600, 84, 84, 3), of each class its ``part`` (0 training, 1 validation, 2 test) and its name.

    The classes of a part stand together, in the order of their names.
    """

    images: np.ndarray
    part: np.ndarray
    names: tuple[str, ...]
    mean: tuple[float, ...] = MEAN
    deviation: tuple[float, ...] = DEVIATION


@functools.cache
def load_mini_imagenet() -> MiniImageNet:
    """All 100 classes, read-only, from where the user has put them; other sizes are shrunk to 84×84 pixels."""
    arrays = read_mini_imagenet(fetch("mini-imagenet"))
    return MiniImageNet(arrays["images"], arrays["part"], tuple(arrays["names"].tolist()))


def read_mini_imagenet(paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """The fields of :class:`MiniImageNet` from either layout: folders of classes, or images with tables of labels."""
    with _files(paths) as files:
        parts = [_classes(files, part) for part in PARTS]
        found = [(names, part, name) for part, classes in enumerate(parts) for name, names in sorted(classes.items())]
        twice = [name for name, count in Counter(name for *_, name in found).items() if count > 1]
        if twice:
            raise DataError(f"{files.origin}: class {twice[0]} is in more than one of {', '.join(PARTS)}")

        def decode() -> dict[str, np.ndarray]:
            images = _decoded(files, [name for names, *_ in found for name in names], _shape("mini-imagenet"), True)
            part, names = zip(*((part, name) for _, part, name in found), strict=True)
            shape = len(found), EACH, *images.shape[1:]
            return {"images": images.reshape(shape), "part": np.array(part, np.int32), "names": np.array(names)}

        return kept("mini-imagenet", files.key, decode)


def read_tiny_imagenet(paths: Sequence[Path]) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """(training images and labels, validation images and labels) from the official folder, or from its zip archive.

    Classes are numbered in the order of their WordNet ids.
    """
    source = DATASETS["tiny-imagenet"]
    with _files(paths, "tiny-imagenet-200/") as files:
        classes = sorted(set(files.text("wnids.txt").split()))
        _check(files, len(classes), source.classes, "classes in wnids.txt")
        train = [(name, cut[1]) for name, cut in files.images("train") if len(cut) == 4 and cut[2] == "images"]
        lines = files.text("val/val_annotations.txt").splitlines()
        test = [(f"val/images/{name}", label) for name, label, *_ in (f"{line}\t".split("\t") for line in lines)]
        _check(files, len(train), source.train, "images train/CLASS/images/*.JPEG")
        _check(files, len(test), source.test, "lines in val/val_annotations.txt")
        strange = next((each for each in (*train, *test) if each[1] not in classes), None)
        if strange:
            raise DataError(f"{files.origin}: {strange[0]} is of class {strange[1]!r}, which is not in wnids.txt")
        number = {name: place for place, name in enumerate(classes)}
        labels = [np.array([number[name] for _, name in part], np.int32) for part in (train, test)]

        def decode() -> dict[str, np.ndarray]:
            parts = (_decoded(files, [name for name, _ in part], source.shape, False) for part in (train, test))
            return dict(zip(("train", "test"), parts, strict=True))

        arrays = kept("tiny-imagenet", files.key, decode)
    return (arrays["train"], labels[0]), (arrays["test"], labels[1])


@dataclass(frozen=True)
class _Files:
    """Files by their paths below ``origin``, a folder or a zip archive; ``key`` changes if they do."""

    origin: Path
    names: frozenset[str]
    reader: Callable[[str], bytes]
    key: str

    def read(self, name: str) -> bytes:
        """The content of a file."""
        try:
            return self.reader(name)
        except (OSError, KeyError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError) as error:
            raise DataError(f"{self.origin}: {name} cannot be read: {error}") from error

    def text(self, name: str) -> str:
        """The same as text."""
        if name not in self.names:
            raise DataError(f"{self.origin}: there is no {name} in it")
        return self.read(name).decode("utf-8-sig", "replace")

    def images(self, folder: str) -> Iterator[tuple[str, tuple[str, ...]]]:
        """The images in a folder, each with the parts of its path, in the order of their names."""
        for name in sorted(self.names):
            path = PurePosixPath(name)
            if path.parts[0] == folder and path.suffix.lower() in SUFFIXES and not path.name.startswith("."):
                yield name, path.parts


@contextmanager
def _files(paths: Sequence[Path], top: str = "") -> Iterator[_Files]:
    """What lies at these paths, beside or in each other; of a zip archive, what lies below ``top``."""
    first = paths[0]
    if first.suffix != ".zip":
        origin = first if len(paths) == 1 else first.parent
        found = {path.relative_to(origin).as_posix(): path for each in paths for path in _below(each)}
        marks = (f"{name}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for name, path in sorted(found.items()))
        yield _Files(origin, frozenset(found), lambda name: found[name].read_bytes(), fingerprint(marks))
        return
    try:
        archive = zipfile.ZipFile(first)
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{first}: not a whole zip archive: {error}") from error
    with archive:
        names = frozenset(name.removeprefix(top) for name in archive.namelist() if name.startswith(top))
        key = fingerprint([checksum(first, "sha256")])
        yield _Files(first, names - {""}, lambda name: archive.read(top + name), key)


def _below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, _, names in os.walk(path):
        yield from (Path(folder) / name for name in names)


def _classes(files: _Files, part: str) -> dict[str, list[str]]:
    """The names of the images of each class of a part of MiniImageNet."""
    classes: dict[str, list[str]] = {}
    for name, label in _table(files, part) if f"{part}.csv" in files.names else _folders(files, part):
        classes.setdefault(label, []).append(name)
    _check(files, len(classes), PARTS[part], f"classes in {part}")
    for label, names in classes.items():
        _check(files, len(set(names)), EACH, f"images of class {label} in {part}")
    return classes


def _folders(files: _Files, part: str) -> list[tuple[str, str]]:
    return [(name, cut[1]) for name, cut in files.images(part) if len(cut) == 3]


def _table(files: _Files, part: str) -> list[tuple[str, str]]:
    rows = csv.DictReader(io.StringIO(files.text(f"{part}.csv")))
    if not {"filename", "label"} <= set(rows.fieldnames or ()):
        raise DataError(f"{files.origin}: {part}.csv must have the columns filename and label, has {rows.fieldnames}")
    return sorted((f"images/{row['filename']}", str(row["label"])) for row in rows)


def _check(files: _Files, found: int, wanted: int, what: str) -> None:
    if found != wanted:
        raise DataError(f"{files.origin}: {found} {what}, must be {wanted}: not the whole data set, or another one")


def _shape(name: str) -> tuple[int, ...]:
    return DATASETS[name].shape


def _decoded(files: _Files, names: Sequence[str], shape: tuple[int, ...], shrink: bool) -> np.ndarray:
    """Images in colours (names, *shape); those of another size are shrunk to it, or refused."""
    absent = next((name for name in names if name not in files.names), None)
    if absent is not None:
        raise DataError(f"{files.origin}: there is no {absent} in it")
    images = np.empty((len(names), *shape), np.uint8)
    for place, name in enumerate(names):
        try:
            images[place] = _picture(files.read(name), f"{files.origin}: {name}", shape, shrink)
        except ValueError as error:
            raise DataError(str(error)) from error
    return images


def _picture(content: bytes, name: str, shape: tuple[int, ...], shrink: bool) -> np.ndarray:
    from PIL.Image import Resampling  # as image_folder imports it

    height, width = shape[:2]
    with opened(name, content) as image:
        whole = decoded(image.convert, name, "RGB")
        if whole.size != (width, height) and not shrink:
            raise DataError(f"{name}: {whole.width}×{whole.height} pixels, must be {width}×{height}")
        return np.asarray(whole.resize((width, height), Resampling.BILINEAR))
