"""How a model's inputs are made of a user's columns or images: learned from the training rows, applied to any rows."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.datasets.columns import Column, Kind, Numbers, Words, listed, shown
from rookery.datasets.reading import open_file
from rookery.datasets.user_file import UserFile, no_column

_MOST_CATEGORIES = 1000  # of a column: each is an input
_PIECE = 1024  # images whose moments are taken at once


@dataclass(frozen=True)
class Scaled:
    """A column of numbers: (value − mean)/deviation, the median where one is missing; all three of the training rows."""

    name: str
    mean: float
    deviation: float
    median: float


@dataclass(frozen=True)
class OneHot:
    """A column of words: an input for each category of the training rows, and one for missing cells if there were any."""

    name: str
    categories: tuple[str, ...]
    missing: bool = False


@dataclass(frozen=True)
class Encoding:
    """How inputs are made: of the ``columns`` of a table, or of images of this ``shape``.

    ``others`` are columns that are no inputs (labels, clients, ignored and constant ones); new data may have them or not.
    A model sees (input − mean)/deviation; a table is scaled already, and has 0 and 1.
    """

    columns: tuple[Scaled | OneHot, ...] = ()
    others: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    mean: float | tuple[float, ...] = 0.0
    deviation: float | tuple[float, ...] = 1.0

    @property
    def features(self) -> tuple[str, ...]:
        """The names of a table's inputs: "age", "sex=f"."""
        return tuple(name for code in self.columns for name in _features(code))

    @property
    def kinds(self) -> dict[str, Kind | None]:
        """How each column is to be read."""
        return {code.name: "numbers" if isinstance(code, Scaled) else "words" for code in self.columns}

    def apply(self, file: str, fill: bool = False, ignore: Sequence[str] = ()) -> tuple[np.ndarray, np.ndarray]:
        """New data of the same kind as inputs, and where each row stands: its number, or an image's path.

        Columns must be those of the training data, in any order; labels may be there or not. ``ignore`` names further
        columns that do not matter. ``fill`` replaces what is missing as it would have been in training.
        """
        opened = open_file(file)
        if self.shape and opened.images is None:
            raise ValueError(f"data={file!r}: must be images, as the model was trained on")
        if self.shape and opened.images is not None:
            images = opened.images(self.shape)
            return images, np.arange(len(images)) if opened.rows is None else opened.rows
        self.check_columns(opened, ignore)
        (inputs,) = self.encode(opened.read(self.kinds), [slice(None)], fill, opened.origin)
        if len(inputs) == 0:
            raise ValueError(f"{opened.origin}: has no rows")
        return inputs, np.arange(len(inputs))

    def check_columns(self, file: UserFile, ignore: Sequence[str] = ()) -> None:
        """Refuses a table whose columns are not those of the training data, and names them."""
        if file.images is not None:
            raise ValueError(f"{file.origin}: images, must be a table as the training data")
        for name in ignore:
            if name not in file.names:
                raise no_column("ignore", name, file)
            if name in self.kinds:
                raise ValueError(f"ignore={name!r}: is a column that the model was trained on")
        missing = [name for name in self.kinds if name not in file.names]
        extra = [name for name in file.names if name not in {*self.kinds, *self.others, *ignore}]
        told = [f"without {listed(missing)}"] * bool(missing) + [f"with {listed(extra)} in addition"] * bool(extra)
        if told:
            raise ValueError(f"{file.origin}: other columns than the training data: {' and '.join(told)}")

    def encode(
        self, columns: dict[str, Column], parts: Sequence[np.ndarray | slice], fill: bool, origin: str
    ) -> list[np.ndarray]:
        """Inputs of these parts of the rows. Columns are taken out of the dictionary, so that their memory is free."""
        check_cells({code.name: columns[code.name] for code in self.columns}, fill, origin)
        count = _length(columns)
        width = len(self.features)
        inputs = [np.zeros((len(np.arange(count)[part]), width), np.float32) for part in parts]
        at, news = 0, []
        for code in self.columns:
            column = columns.pop(code.name)
            if isinstance(code, Scaled) and isinstance(column, Numbers):
                values = np.where(column.missing, code.median, column.values)
                values = (values - code.mean) / code.deviation
                for part, into in zip(parts, inputs, strict=True):
                    into[:, at] = values[part]
            elif isinstance(code, OneHot) and isinstance(column, Words):
                places, new = _places(code, column)
                news += [f"{name!r} of {code.name!r}" for name in new]
                for part, into in zip(parts, inputs, strict=True):
                    rows = np.flatnonzero(places[part] >= 0)
                    into[rows, at + places[part][rows]] = 1.0
            at += len(_features(code))
        if news:
            told = ", ".join(news[:5]) + (f" and {len(news) - 5} more" if len(news) > 5 else "")
            warnings.warn(f"{origin}: never seen in training, taken for none of the categories: {told}", stacklevel=2)
        return inputs

    def values(self, inputs: np.ndarray) -> list[tuple[str, str | float]]:
        """One row of a table's inputs as its columns' names and values, for a person: in the units of the file."""
        found: list[tuple[str, str | float]] = []
        at = 0
        for code in self.columns:
            if isinstance(code, Scaled):
                found.append((code.name, float(f"{float(inputs[at]) * code.deviation + code.mean:.6g}")))
            else:
                names = [*code.categories, *["missing"] * code.missing]
                chosen = np.flatnonzero(inputs[at : at + len(names)])
                found.append((code.name, names[chosen[0]] if len(chosen) else "another"))
            at += len(_features(code))
        return found

    def tables(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        if self.shape:
            return {"shape": list(self.shape), "mean": _listed(self.mean), "deviation": _listed(self.deviation)}
        columns: list[dict[str, Any]] = [
            {"name": code.name, "mean": code.mean, "deviation": code.deviation, "median": code.median}
            if isinstance(code, Scaled)
            else {"name": code.name, "categories": list(code.categories), "missing": code.missing}
            for code in self.columns
        ]
        return {"columns": columns, "others": list(self.others)}

    @classmethod
    def of(cls, tables: Mapping[str, Any]) -> "Encoding":
        """From what ``tables`` gave; what it cannot have given is refused."""
        try:
            if "shape" in tables:
                shape = tuple(int(side) for side in tables["shape"])
                if len(shape) not in (2, 3) or min(shape) < 1:
                    raise ValueError(f"shape {shape}")
                mean, deviation = _moment(tables["mean"], shape), _moment(tables["deviation"], shape)
                if np.min(deviation) <= 0:
                    raise ValueError(f"deviation {deviation}")
                return cls(shape=shape, mean=mean, deviation=deviation)
            columns = tuple(map(_code, tables["columns"]))
            if not columns or len({code.name for code in columns}) < len(columns):
                raise ValueError("no columns, or two of one name")
            return cls(columns, tuple(map(_text, tables["others"])))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ValueError(f"encoding: not what Rookery stores about a model's inputs: {error!r}") from error


def learn_table(columns: Mapping[str, Column], train: np.ndarray, others: Sequence[str], origin: str) -> Encoding:
    """The encoding of a table, of its training rows. A column that is constant there is left out, with a warning."""
    codes = {name: _learned(name, column, train, origin) for name, column in columns.items()}
    constant = [name for name, code in codes.items() if code is None]
    kept = tuple(code for code in codes.values() if code is not None)
    if not kept:
        raise ValueError(f"{origin}: no column is left to learn from" + (": all are constant" if constant else ""))
    if constant:
        warnings.warn(f"{origin}: left out, as they are constant: {listed(constant)}", stacklevel=2)
    return Encoding(kept, (*others, *constant))


def learn_images(images: np.ndarray) -> Encoding:
    """The encoding of images: mean and deviation of the pixels, of each colour if there are several."""
    colours = images.shape[3] if images.ndim == 4 else 1
    pixels = images.reshape(len(images), -1, colours)
    pieces = [pixels[start : start + _PIECE] for start in range(0, len(pixels), _PIECE)]
    count = pixels.shape[0] * pixels.shape[1]
    mean = sum(piece.sum((0, 1), dtype=float) for piece in pieces) / count
    square = sum(((piece - mean) ** 2).sum((0, 1)) for piece in pieces) / count
    deviation = np.where(square > 0, np.sqrt(square), 1.0)
    if images.ndim == 3:
        return Encoding(shape=images.shape[1:], mean=float(mean[0]), deviation=float(deviation[0]))
    return Encoding(shape=images.shape[1:], mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()))


def check_cells(columns: Mapping[str, Column], fill: bool, origin: str) -> None:
    """Refuses infinite numbers, and missing cells unless they are to be filled."""
    gaps = {name: count for name, column in columns.items() if (count := int(column.missing.sum()))}
    if gaps and not fill:
        told = ", ".join(f"{count} in {shown(name)}" for name, count in list(gaps.items())[:5])
        more = f" and in {len(gaps) - 5} more columns" if len(gaps) > 5 else ""
        raise ValueError(
            f"{origin}: missing values: {told}{more}; fill=True (--fill) fills them, ignore leaves columns out"
        )
    for name, column in columns.items():
        if isinstance(column, Numbers) and np.isinf(column.values).any():
            row = int(np.argmax(np.isinf(column.values)))
            raise ValueError(f"{origin}: column {name!r}, row {row}: {column.values[row]} is not a finite number")


def _learned(name: str, column: Column, train: np.ndarray, origin: str) -> Scaled | OneHot | None:
    if isinstance(column, Words):
        return _one_hot(name, column, train, origin)
    values = column.values[train]
    known = values[~np.isnan(values)]
    if len(known) == 0 or known.min() == known.max():
        return None
    median = float(np.median(known))
    values = np.where(np.isnan(values), median, values)
    with np.errstate(over="ignore", invalid="ignore"):
        mean, deviation = float(values.mean()), float(values.std())
    if not 0 < deviation < math.inf:
        raise ValueError(
            f"{origin}: column {name!r}: numbers up to {np.abs(known).max():g} cannot be scaled; ignore it"
        )
    return Scaled(name, mean, deviation, median)


def _one_hot(name: str, column: Words, train: np.ndarray, origin: str) -> OneHot | None:
    codes = column.codes[train]
    present = np.unique(codes)
    categories = tuple(sorted(column.categories[code] for code in present if code >= 0))
    known = int((codes >= 0).sum())
    if len(present) < 2:
        return None
    if 2 * len(categories) > known or len(categories) > _MOST_CATEGORIES:
        raise ValueError(
            f"{origin}: column {name!r} has {len(categories)} different words in {known} training rows, such as"
            f" {shown(categories[0])}: nothing to learn from; ignore it"
        )
    return OneHot(name, categories, bool(present[0] < 0))


def _places(code: OneHot, column: Words) -> tuple[np.ndarray, list[str]]:
    """Of each row which of the column's inputs is 1 (−1: none), and the categories that were never seen."""
    known = {name: place for place, name in enumerate(code.categories)}
    of_missing = len(known) if code.missing else -1
    table = np.array([*(known.get(name, -1) for name in column.categories), of_missing], np.int64)
    places = table[column.codes]
    unseen = np.unique(column.codes[places < 0])
    return places, [column.categories[each] if each >= 0 else "missing" for each in unseen]


def _features(code: Scaled | OneHot) -> list[str]:
    if isinstance(code, Scaled):
        return [code.name]
    return [f"{code.name}={category}" for category in (*code.categories, *["missing"] * code.missing)]


def _length(columns: Mapping[str, Column]) -> int:
    column = next(iter(columns.values()))
    return len(column.values if isinstance(column, Numbers) else column.codes)


def _listed(moment: float | tuple[float, ...]) -> float | list[float]:
    return list(moment) if isinstance(moment, tuple) else moment


def _moment(stored: Any, shape: tuple[int, ...]) -> float | tuple[float, ...]:
    if len(shape) == 2:
        return _finite(stored)
    if len(stored) != shape[2]:
        raise ValueError(f"{len(stored)} numbers for {shape[2]} colours")
    return tuple(map(_finite, stored))


def _finite(stored: Any) -> float:
    if isinstance(stored, bool) or not isinstance(stored, int | float) or not math.isfinite(stored):
        raise ValueError(f"{stored!r} is not a finite number")
    return float(stored)


def _text(stored: Any) -> str:
    if not isinstance(stored, str):
        raise ValueError(f"{stored!r} is not text")
    return stored


def _code(stored: Any) -> Scaled | OneHot:
    name = _text(stored["name"])
    if "categories" in stored:
        return OneHot(name, tuple(map(_text, stored["categories"])), bool(stored["missing"]))
    code = Scaled(name, *(_finite(stored[each]) for each in ("mean", "deviation", "median")))
    if code.deviation <= 0:
        raise ValueError(f"deviation {code.deviation} of {name!r}")
    return code
