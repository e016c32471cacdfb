"""Omniglot: handwritten characters of many alphabets, few drawings of each."""

import functools
import re
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rookery.datasets.download import fetch
from rookery.datasets.files import DataError, checksum
from rookery.datasets.formats import read_png
from rookery.datasets.kept import fingerprint, kept

_DRAWINGS = 20  # of each character
_SIDE = 105  # of an official image
_SIZE = 28  # what it is shrunk to
_NAME = re.compile(r"[^/]+/(?P<character>(?P<alphabet>[^/]+)/character\d+)/\d+_\d+\.png")


@dataclass(frozen=True)
class Omniglot:
    """Images (characters, 20, 28, 28) of ink (0 none, 255 all), and of each character its alphabet's number.

    ``alphabets`` are the names: those of the background set in alphabetical order, then those of the evaluation set.
    The characters of an alphabet stand together, in the order of their numbers.
    """

    images: np.ndarray
    alphabet: np.ndarray
    alphabets: tuple[str, ...]


@functools.cache
def load_omniglot() -> Omniglot:
    """All 1623 characters of 50 alphabets, read-only; found or downloaded as ``load`` does.

    What was decoded once is kept in the user's cache, under the checksums of the files that it comes from.
    """
    paths = fetch("omniglot")
    key = fingerprint(checksum(path, "sha256") for path in paths)

    def decode() -> dict[str, np.ndarray]:
        data = read_omniglot(paths)
        return {"images": data.images, "alphabet": data.alphabet, "alphabets": np.array(data.alphabets)}

    arrays = kept("omniglot", f"{_SIZE}-{key}", decode)
    return Omniglot(arrays["images"], arrays["alphabet"], tuple(arrays["alphabets"].tolist()))


def read_omniglot(paths: Sequence[Path]) -> Omniglot:
    """The characters of the official zip files, one file after the other."""
    images, alphabet = [], []
    alphabets: list[str] = []
    for path in paths:
        for name, drawings in _characters(path):
            if name not in alphabets:
                alphabets.append(name)
            alphabet.append(alphabets.index(name))
            images.append(area_average(1 - drawings, _SIZE))
    return Omniglot(np.stack(images), np.array(alphabet, np.int32), tuple(alphabets))


def area_average(images: np.ndarray, size: int) -> np.ndarray:
    """Squares of zeros and ones (n, m, m) to (n, size, size): 255 times the covered share of each new pixel, rounded.

    New pixel i covers the interval [i, i+1]·m/size, so that the shares are W image Wᵀ with W the matrix of the lengths
    of overlap with the old pixels [j, j+1], divided by m/size.
    """
    old = images.shape[-1]
    scale = old / size
    start, end = scale * np.arange(size)[:, None], np.arange(old) + 1.0
    overlap = np.minimum(start + scale, end) - np.maximum(start, end - 1)
    weights = (np.maximum(overlap, 0) / scale).astype(np.float32)
    found: np.ndarray = np.rint(255 * (weights @ images @ weights.T)).astype(np.uint8)
    return found


def _characters(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Each character's alphabet and drawings (20, 105, 105), 1 where the paper is white, in the order of their names."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = defaultdict(list)
            for name in sorted(archive.namelist()):
                if match := _NAME.fullmatch(name):
                    names[match["alphabet"], match["character"]].append(name)
            if not names:
                raise DataError(f"{path}: no drawings <set>/<alphabet>/character<number>/<number>_<number>.png in it")
            for (alphabet, character), drawings in names.items():
                if len(drawings) != _DRAWINGS:
                    raise DataError(f"{path}: {len(drawings)} drawings of {character}, must be {_DRAWINGS}")
                yield alphabet, np.stack([_drawing(archive.read(name), f"{path}: {name}") for name in drawings])
    except (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError) as error:
        raise DataError(f"{path}: not a whole zip archive: {error}") from error


def _drawing(data: bytes, name: str) -> np.ndarray:
    image = read_png(data, name)
    if image.shape != (_SIDE, _SIDE):
        raise DataError(f"{name}: shape {image.shape}, must be {_SIDE}×{_SIDE}")
    return image
