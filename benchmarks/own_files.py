"""Files as users have them, of data that no preset knows: tables with words in them, and folders of PNGs by class.

Every maker writes into an empty folder and says where the data are. Another seed is another draw of rows.
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from sklearn.datasets import load_breast_cancer, load_wine, make_classification

from rookery.datasets import OwnFile

PIXELS = 16
STROKES = 5


def breast_cancer(folder: Path, seed: int) -> OwnFile:
    """scikit-learn's: 569 rows, 30 numbers, 2 classes."""
    data = load_breast_cancer()
    return _table(folder, data.data, data.target_names[data.target], seed)


def wine(folder: Path, seed: int) -> OwnFile:
    """scikit-learn's: 178 rows, 13 numbers, 3 classes."""
    data = load_wine()
    return _table(folder, data.data, data.target_names[data.target], seed)


def forest(
    folder: Path, seed: int, train: int = 1500, shares: Sequence[float] = (0.5, 0.27, 0.14, 0.065, 0.025)
) -> OwnFile:
    """Like covtype: 14 numbers and 2 columns of words, classes of unlike sizes; 4000 rows of their own to test on."""
    count = train + 4000
    features, labels = make_classification(
        count, 16, n_informative=8, n_redundant=4, n_classes=len(shares), n_clusters_per_class=2, weights=list(shares),
        flip_y=0.01, class_sep=1.0, random_state=7,
    )  # fmt: skip
    order = np.random.default_rng([*b"forest", seed]).permutation(count)
    names = np.array([f"kind {number + 1}" for number in range(len(shares))])[labels]
    soil, side = ("sand", "loam", "clay", "peat"), ("N", "S")
    words = {"soil": _words(features[:, 0], soil), "side": _words(features[:, 1], side)}
    parts = {"train.csv": order[:train], "test.csv": order[train:]}
    for name, rows in parts.items():
        own = {column: values[rows] for column, values in words.items()}
        _write(folder / name, features[rows, 2:], names[rows], own)
    return OwnFile(str(folder / "train.csv"), label="label", test=str(folder / "test.csv"))


def many_kinds(folder: Path, seed: int, classes: int = 25, each: int = 40) -> OwnFile:
    """A table of 25 classes, 40 rows each: 20 numbers, of which 12 are the same for all classes but for noise."""
    rng = np.random.default_rng([*b"kinds", seed])
    centres = 1.6 * rng.normal(size=(classes, 8))
    labels = np.repeat(np.arange(classes), each)
    own = centres[labels] + rng.normal(size=(len(labels), 8))
    features = np.concatenate([own, 2.0 * rng.normal(size=(len(labels), 12))], 1) @ rng.normal(size=(20, 20))
    return _table(folder, features, np.array([f"kind {number:02}" for number in range(classes)])[labels], seed)


def glyphs(
    folder: Path, seed: int, sizes: Sequence[int] = (150,) * 8, tested: int = 60, alike: bool = False
) -> OwnFile:
    """PNGs of hand-drawn signs, so many of each class to train on; with ``alike`` the last two differ by one stroke."""
    rng = np.random.default_rng([*b"glyphs", seed])
    signs = rng.uniform(2.5, PIXELS - 2.5, (len(sizes), STROKES + 1, 2))
    if alike:
        signs[-1, :STROKES] = signs[-2, :STROKES]
    for part, counts in (("train", sizes), ("test", [tested] * len(sizes))):
        if not tested and part == "test":
            return OwnFile(str(folder / "train"))
        for number, (sign, count) in enumerate(zip(signs, counts, strict=True)):
            where = folder / part / f"sign {number + 1:02}"
            where.mkdir(parents=True)
            for place in range(count):
                _drawn(sign, rng).save(where / f"{place:04}.png")
    return OwnFile(str(folder / "train"), test=str(folder / "test"))


def _drawn(sign: np.ndarray, rng: np.random.Generator) -> Image.Image:
    """One drawing: points shaken, the whole turned, moved and scaled, thin strokes on a noisy ground."""
    angle, size = rng.normal(0, 0.2), rng.normal(1, 0.1)
    turn = size * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    middle = PIXELS / 2
    points = (sign + rng.normal(0, 0.9, sign.shape) - middle) @ turn.T + middle + rng.normal(0, 0.8, 2)
    image = Image.new("L", (4 * PIXELS, 4 * PIXELS))
    ImageDraw.Draw(image).line([(4 * x, 4 * y) for x, y in points], fill=255, width=5)
    small = np.asarray(image.resize((PIXELS, PIXELS), Image.Resampling.BOX), float)
    return Image.fromarray(np.clip(small + rng.normal(40, 35, small.shape), 0, 255).astype(np.uint8))


def _words(values: np.ndarray, names: Sequence[str]) -> np.ndarray:
    cuts = np.quantile(values, np.linspace(0, 1, len(names) + 1)[1:-1])
    return np.array(names)[np.searchsorted(cuts, values)]


def _table(folder: Path, features: np.ndarray, labels: np.ndarray, seed: int) -> OwnFile:
    order = np.random.default_rng([*b"table", seed]).permutation(len(labels))
    _write(folder / "table.csv", features[order], labels[order], {})
    return OwnFile(str(folder / "table.csv"), label="label")


def _write(file: Path, features: np.ndarray, labels: np.ndarray, words: dict[str, np.ndarray]) -> None:
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow([*(f"n{column}" for column in range(features.shape[1])), *words, "label"])
        for row, label, *others in zip(features, labels, *words.values(), strict=True):
            writer.writerow([*(f"{value:.6g}" for value in row), *others, label])


Maker = Callable[[Path, int], OwnFile]
