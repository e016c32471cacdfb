"""A user's own data, as tests write them: a small table, and a small folder of images."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SITES = ("north", "south", "west")
KINDS = ("bad", "mild", "worse")
GROUPS = tuple(f"group {letter}" for letter in "uvwxyz")
Row = dict[str, str]


def patients(count: int = 180) -> list[Row]:
    """Rows of a table. Of 18 rows north has 9, south 6 and west 3, each as many of every kind; half of them are checked."""
    random = np.random.default_rng(7)
    rows = []
    for number in range(count):
        kind, block = number % 3, number // 18
        rows.append(
            {
                "age": f"{random.normal(50 + 8 * kind, 4):.4f}",
                "sex": "fm"[random.integers(2)],
                "dose": f"{random.normal(-kind, 0.5):.5f}",
                "site": SITES[(0, 0, 0, 1, 1, 2)[number // 3 % 6]],
                "kind": KINDS[kind],
                "group": GROUPS[(number + block) % 6],
                "ok": "yes" if block % 2 else "no",
            }
        )
    return rows


def write_table(path: Path, rows: Sequence[Row], columns: Sequence[str] = ()) -> Path:
    """As a CSV file with these columns; by default all."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, columns or list(rows[0]), extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    return path


def read_table(path: Path) -> list[Row]:
    """A CSV file."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def write_images(folder: Path, classes: int = 6, each: int = 12) -> Path:
    """Grey images of 8×8 pixels with one bright line, whose place is the class: FOLDER/CLASS/NUMBER.png."""
    random = np.random.default_rng(8)
    for label in range(classes):
        place = folder / f"line {label}"
        place.mkdir(parents=True)
        for number in range(each):
            pixels = random.integers(0, 90, (8, 8)).astype(np.uint8)
            pixels[label] = 220
            Image.fromarray(pixels).save(place / f"{number:02}.png")
    return folder
