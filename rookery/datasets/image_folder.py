"""A folder of images: FOLDER/CLASS/image, or FOLDER/CLIENT/CLASS/image."""

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rookery.datasets.columns import Column, Kind, of_array
from rookery.datasets.user_file import UserFile

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
_GREY = ("1", "L", "LA")  # Pillow's names
_DEPTHS = {1: "in no folder of a class", 2: "in FOLDER/CLASS", 3: "in FOLDER/CLIENT/CLASS"}


def open_folder(folder: Path) -> UserFile:
    """The images of a folder, or a single image; those in folders of classes (and clients) have a "class" ("client")."""
    paths = image_paths(folder)
    depths = {len(parts): path for path in reversed(paths) if (parts := path.relative_to(_base(folder)).parts)}
    if len(depths) > 1:
        told = " and ".join(f"{path} {_DEPTHS[depth]}" for depth, path in sorted(depths.items()))
        raise ValueError(f"{folder}: images must lie at one depth, and there are {told}")
    (depth,) = depths
    names = [path.relative_to(_base(folder)) for path in paths]
    known = {"class": [each.parent.name for each in names]} if depth > 1 else {}
    if depth == 3:
        known["client"] = [each.parts[0] for each in names]

    def read(kinds: Mapping[str, Kind | None]) -> dict[str, Column]:
        return {name: of_array(np.array(known[name]), f"{folder}: {name}", kind) for name, kind in kinds.items()}

    rows = np.array([each.as_posix() for each in names])
    defaults = {role: name for role, name in (("label", "class"), ("client", "client")) if name in known}
    return UserFile(str(folder), (), read, tuple(known), lambda shape: _read(paths, shape), rows, defaults)


def image_paths(folder: Path) -> list[Path]:
    """All images in a folder and up to two levels below, in the order of their names; hidden ones do not count."""
    if folder.is_file():
        return [folder]
    found = sorted(_below(folder, 2), key=lambda path: path.relative_to(folder).as_posix())
    if not found:
        raise ValueError(f"{folder}: no images in it ({', '.join(SUFFIXES)}), nor in its folders CLASS or CLIENT/CLASS")
    return found


def folder_digest(folder: Path) -> str:
    """SHA-256 of all images' names and bytes."""
    digest = hashlib.sha256()
    for path in image_paths(folder):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{content}  {path.relative_to(folder).as_posix()}\n".encode())
    return digest.hexdigest()


def _base(folder: Path) -> Path:
    return folder.parent if folder.is_file() else folder


def _below(folder: Path, levels: int) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name.startswith((".", "__")):
            continue
        if path.is_dir():
            if levels:
                yield from _below(path, levels - 1)
        elif path.suffix.lower() in SUFFIXES:
            yield path


def _read(paths: list[Path], shape: tuple[int, ...] | None) -> np.ndarray:
    """All images in one array. Sizes are compared first, from the heads of the files: a wrong one is told at once."""
    sizes, modes = zip(*(_head(path) for path in paths), strict=True)
    size = sizes[0] if shape is None else shape[:2]
    for path, each in zip(paths, sizes, strict=True):
        if each != size:
            other = "the model's" if shape is not None else f"{paths[0]}"
            raise ValueError(f"{path}: {_pixels(each)} pixels, must be {_pixels(size)} as {other}")
    grey = all(mode in _GREY for mode in modes) if shape is None else len(shape) == 2
    if grey and not all(mode in _GREY for mode in modes):
        colour = next(path for path, mode in zip(paths, modes, strict=True) if mode not in _GREY)
        raise ValueError(f"{colour}: in colours, must be grey as the model's images")
    images = np.empty((len(paths), *size) if grey else (len(paths), *size, 3), np.uint8)
    for place, path in enumerate(paths):
        with opened(path) as image:
            images[place] = np.asarray(decoded(image.convert, path, "L" if grey else "RGB"))
    return images


def _pixels(size: tuple[int, ...]) -> str:
    return f"{size[1]}×{size[0]}"


def _head(path: Path) -> tuple[tuple[int, int], str]:
    """Height, width and mode."""
    with opened(path) as image:
        if image.mode.startswith(("I", "F")):
            raise ValueError(f"{path}: has more than 8 bits a pixel (Pillow's mode {image.mode}); save it with 8")
        return (image.height, image.width), image.mode


def opened(path: Path | str, content: bytes | None = None) -> Any:
    """An image of Pillow's, of a file or of the content of what messages call ``path``."""
    from PIL import Image  # takes as long to import as everything else here

    return decoded(Image.open, path, path if content is None else io.BytesIO(content))


def decoded(call: Callable[[Any], Any], path: Path | str, argument: Any) -> Any:
    """What a function of Pillow's gives; whatever it raises becomes an error of one line that names the image."""
    try:
        return call(argument)
    except Exception as error:  # Pillow's decoders raise what they like: OSError, SyntaxError, struct.error, …
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise ValueError(f"{path}: not an image that can be read: {reason}") from error
