"""Readers of the official formats; what is not in the format is a ``DataError`` that names the file."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np

from rookery.datasets.files import DataError


def read_idx(path: Path) -> np.ndarray:
    """An IDX file of unsigned bytes, gzipped or not.

    Two zero bytes, the type (8), the number of dimensions, each as a big-endian 32-bit number, then the values with
    the last index running fastest.
    """
    with open(path, "rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            zeros, kind, dimensions = struct.unpack(">HBB", file.read(4))
            if zeros or kind != 8:
                raise DataError(f"{path}: not an IDX file of unsigned bytes")
            shape = struct.unpack(f">{dimensions}I", file.read(4 * dimensions))
            values = np.frombuffer(file.read(), np.uint8)
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise DataError(f"{path}: truncated or damaged: {error}") from error
    if values.size != math.prod(shape):
        raise DataError(f"{path}: {values.size} values where the header says {' × '.join(map(str, shape))}")
    return values.reshape(shape)


def read_cifar(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 32, 32, 3) and labels of a CIFAR-10 batch.

    A record is one byte of label and 3072 of pixels: the red, the green and the blue plane, each row after row.
    """
    data = np.fromfile(path, np.uint8)
    if data.size == 0 or data.size % 3073:
        raise DataError(f"{path}: {data.size} bytes, not a whole number of records of 3073")
    records = data.reshape(-1, 3073)
    labels = records[:, 0].astype(np.int32)
    if labels.max() > 9:
        raise DataError(f"{path}: label {labels.max()}, must lie in 0..9")
    planes = records[:, 1:].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), labels


def read_png(data: bytes, name: str) -> np.ndarray:
    """(height, width) zeros (black) and ones (white) of a PNG of 1 bit without filters, the only kind in Omniglot.

    After the signature come chunks: length, kind, content, checksum. IHDR has the size; the contents of the IDATs,
    joined, are the zlib-packed rows, each a byte that names its filter (0: none) and the bits, first bit highest.
    """
    try:
        chunks = _png_chunks(data)
        width, height, *kind = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
        values = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8)
    except (KeyError, struct.error, zlib.error) as error:
        raise DataError(f"{name}: not a whole PNG: {error!r}") from error
    stride = 1 + (width + 7) // 8
    if kind != [1, 0, 0, 0, 0] or values.size != height * stride or values[::stride].any():
        raise DataError(f"{name}: not a grey PNG of {width}×{height} pixels of 1 bit without filters and interlace")
    return np.unpackbits(values.reshape(height, stride)[:, 1:], axis=1, count=width)


def _png_chunks(data: bytes) -> dict[bytes, bytes]:
    chunks: dict[bytes, bytes] = {}
    at = 8 if data.startswith(b"\x89PNG\r\n\x1a\n") else len(data)
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        chunks[kind] = chunks.get(kind, b"") + data[at + 8 : at + 8 + length]
        at += 12 + length
    return chunks
