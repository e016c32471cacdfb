"""A user's own data as a data set: from a file or a folder, or from arrays."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rookery.datasets.arrays import of_arrays
from rookery.datasets.columns import Column, Kind, Words, listed, numbered, shown
from rookery.datasets.dataset import Dataset, draw_test
from rookery.datasets.encoding import Encoding, check_cells, learn_images, learn_table
from rookery.datasets.reading import digest, open_file
from rookery.datasets.user_file import UserFile, no_column

TEST_FRACTION = 0.2
_MOST_FRACTIONS = 20  # different labels that are not whole numbers; more of them are a quantity
_TRUTH = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "0.0": False}


@dataclass(frozen=True)
class OwnFile:
    """Where a user's data are, and which column is what: all that a run's configuration stores of them.

    Args:
        file: A table (.csv, .tsv, .txt, .parquet), arrays (.npz), or a folder of images by class, or by client and class.
        label: The column of the labels. Arrays have them in ``labels``, images in the names of their folders.
        client_column: The column that says whose a row is.
        checked_column: The column that says which labels somebody has checked (true, false, yes, no, 1, 0).
        ignore: Columns to leave out.
        fill: Missing numbers become the median of the training rows, missing words a category of their own.
        test: Another file of the same form with the test part; without it, a fifth of the rows is drawn.
    """

    file: str
    label: str | None = None
    client_column: str | None = None
    checked_column: str | None = None
    ignore: tuple[str, ...] = ()
    fill: bool = False
    test: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.ignore, str):
            raise TypeError(f"ignore must be several names, got the text {self.ignore!r}")
        object.__setattr__(self, "ignore", tuple(self.ignore))  # a list, as TOML has it, is as good

    def read(self) -> Dataset:
        """The data set. The test part is the same for everybody who reads the same file."""
        opened = open_file(self.file)
        test = open_file(self.test, "test") if self.test is not None else None
        given = {"label": self.label, "client": self.client_column, "checked": self.checked_column}
        roles = _roles(opened, given, self.ignore)
        return _dataset(
            Path(self.file).expanduser().resolve().name, opened, roles, self.ignore, self.fill, test, seed=0
        )

    def sha256(self) -> str:
        """Of the file; of all images' names and bytes; with a test file, of the line "<sha256> <sha256>" of the two."""
        if self.test is None:
            return digest(self.file, "data")
        both = f"{digest(self.file, 'data')} {digest(self.test, 'test')}"
        return hashlib.sha256(both.encode()).hexdigest()


def from_arrays(
    features: Any,
    labels: Any,
    *,
    clients: Any = None,
    checked: Any = None,
    test: tuple[Any, Any] | None = None,
    fill: bool = False,
    seed: int = 0,
    name: str = "data",
) -> Dataset:
    """A data set of arrays: NumPy's, JAX's or PyTorch's, or a pandas table.

    Args:
        features: A table (rows, columns), scaled as a file's is, or images (n, height, width[, colours]).
        labels: Of each row its class: words or whole numbers.
        clients: Of each row whose it is.
        checked: Of each row whether somebody has checked its label.
        test: Features and labels of the test part; without it, a fifth of the rows is drawn with ``seed``.
        fill: Missing numbers become the median of the training rows, missing words a category of their own.
        seed: For the test part.
        name: What the data set is called.
    """
    others = {"labels": labels, "clients": clients, "checked": checked}
    opened = of_arrays("features", features, {key: value for key, value in others.items() if value is not None})
    if test is not None and (not isinstance(test, tuple | list) or len(test) != 2):
        raise TypeError(f"test must be a pair of features and labels, got {type(test).__name__}")
    apart = of_arrays("test", test[0], {"labels": test[1]}) if test is not None else None
    return _dataset(name, opened, _roles(opened, {}, ()), (), fill, apart, seed)


class _Roles(NamedTuple):
    """The names of the columns that are no inputs."""

    label: str
    client: str | None
    checked: str | None

    @property
    def columns(self) -> dict[str, Kind | None]:
        return {name: "words" for name in self if name is not None}


_ARGUMENTS = {"label": "label", "client": "client_column", "checked": "checked_column"}


def _roles(file: UserFile, given: Mapping[str, str | None], ignore: tuple[str, ...]) -> _Roles:
    """Which column is what, all of them there, none of them twice."""
    names = {*file.names, *file.others}
    for role, name in given.items():
        if name is not None and name not in names:
            raise no_column(_ARGUMENTS[role], name, file)
    for name in ignore:
        if name not in file.names:
            raise no_column("ignore", name, file)
    chosen = {role: given.get(role) or file.defaults.get(role) for role in _ARGUMENTS}
    label = chosen["label"]
    if label is None:
        there = listed([*file.names, *file.others], 20)
        raise ValueError(
            f"label: say which column of {file.origin} has the labels" + (f"; there are {there}" * bool(there))
        )
    roles = _Roles(label, chosen["client"], chosen["checked"])
    named = [name for name in (*roles, *ignore) if name is not None]
    twice = [name for name in named if named.count(name) > 1]
    if twice:
        raise ValueError(f"{twice[0]!r} is named twice among label, client_column, checked_column and ignore")
    return roles


def _dataset(
    name: str, file: UserFile, roles: _Roles, ignore: tuple[str, ...], fill: bool, test: UserFile | None, seed: int
) -> Dataset:
    wanted = {column: None for column in file.names if column not in {*roles.columns, *ignore}}
    if not wanted and file.images is None:
        raise ValueError(f"{file.origin}: has no column besides those that are labels, clients, checked or ignored")
    columns = file.read(wanted | roles.columns)
    known = _Known.of(columns, roles, file.origin, fill)
    _check_classes(known, test is not None, file.origin)
    train, drawn = _split(known, test is not None, seed, file.origin)
    if file.images is not None:
        images = file.images(None)
        parts = [images[train], images[drawn]]
        encoding = learn_images(parts[0])
    else:
        check_cells(columns, fill, file.origin)
        encoding = learn_table(columns, train, [*ignore, *roles.columns], file.origin)
        parts = encoding.encode(columns, [train, drawn], fill, file.origin)
    rows = np.arange(len(known.labels)) if file.rows is None else file.rows
    test_part = _Test(parts[1], known.labels[drawn], rows[drawn])
    if test is not None:
        test_part = _read_test(test, roles, encoding, known.class_names, fill)
    return Dataset(
        name,
        parts[0],
        known.labels[train],
        test_part.inputs,
        test_part.labels,
        encoding.mean,
        encoding.deviation,
        class_names=known.class_names,
        train_clients=None if known.clients is None else known.clients[train],
        client_names=known.client_names,
        train_checked=None if known.checked is None else known.checked[train],
        train_rows=rows[train],
        test_rows=test_part.rows,
        encoding=encoding,
    )


class _Test(NamedTuple):
    inputs: np.ndarray
    labels: np.ndarray
    rows: np.ndarray


@dataclass(frozen=True)
class _Known:
    """What is known of each row besides its inputs."""

    label: str
    labels: np.ndarray
    class_names: tuple[str, ...]
    clients: np.ndarray | None
    client_names: tuple[str, ...] | None
    checked: np.ndarray | None

    @classmethod
    def of(cls, columns: dict[str, Column], roles: _Roles, origin: str, fill: bool) -> "_Known":
        """Takes the columns of the roles out of the dictionary."""
        found = {role: columns.pop(role) for role in roles.columns}
        labels, class_names = _labels(_words(found[roles.label]), roles.label, origin)
        clients, client_names = None, None
        if roles.client is not None:
            clients, client_names = _clients(_words(found[roles.client]), roles.client, origin)
        checked = None
        if roles.checked is not None:
            checked = _checked(_words(found[roles.checked]), roles.checked, origin, fill)
        return cls(roles.label, labels, class_names, clients, client_names, checked)


def _words(column: Column) -> Words:
    if not isinstance(column, Words):  # it was asked for as words
        raise TypeError("a column of labels, clients or checks must be read as words")
    return column


def _labels(words: Words, name: str, origin: str) -> tuple[np.ndarray, tuple[str, ...]]:
    where = f"{origin}: label {name!r}"
    _none_missing(words, where)
    if len(words.codes) == 0:
        raise ValueError(f"{origin}: has no rows")
    labels, names = numbered(words, as_numbers=True)
    if len(names) < 2:
        raise ValueError(f"{where} is constant: all {len(labels)} rows have {shown(names[0])}")
    if len(names) > _MOST_FRACTIONS and _is_quantity(names):
        raise ValueError(f"{where} has {len(names)} different numbers, such as {names[0]}: a quantity, must be classes")
    return labels, names


def _is_quantity(names: tuple[str, ...]) -> bool:
    try:
        return not all(float(each).is_integer() for each in names)
    except ValueError:
        return False


def _clients(words: Words, name: str, origin: str) -> tuple[np.ndarray, tuple[str, ...]]:
    where = f"{origin}: client column {name!r}"
    _none_missing(words, where)
    clients, names = numbered(words, as_numbers=False)
    if len(names) < 2:
        raise ValueError(f"{where} has one value, {shown(names[0])}: a federation needs at least two clients")
    return clients, names


def _checked(words: Words, name: str, origin: str, fill: bool) -> np.ndarray:
    """A missing cell is "not checked", if missing cells are to be filled."""
    where = f"{origin}: checked column {name!r}"
    if not fill:
        _none_missing(words, where)
    truth = [_TRUTH.get(each.lower()) for each in words.categories]
    for code, value in enumerate(truth):
        if value is None:
            row = int(np.argmax(words.codes == code))
            raise ValueError(f"{where}, row {row}: {shown(words.categories[code])} is neither true nor false")
    checked: np.ndarray = np.array([*truth, False], bool)[words.codes]
    if not checked.any():
        raise ValueError(f"{where}: no row is checked")
    return checked


def _none_missing(words: Words, where: str) -> None:
    missing = np.flatnonzero(words.missing)
    if len(missing):
        raise ValueError(f"{where} is missing in {len(missing)} rows, first in row {missing[0]}")


def _check_classes(known: _Known, separate: bool, origin: str) -> None:
    """Every class needs a training row, and a test row if these are drawn: of the checked ones where some are."""
    counts = np.bincount(known.labels, minlength=len(known.class_names))
    fewest = int(counts.argmin())
    if not separate and counts[fewest] < 2:
        raise ValueError(
            f"{origin}: class {shown(known.class_names[fewest])} of {known.label!r} has a single row;"
            " must have one to train and one to test"
        )
    if not separate and known.checked is not None:
        checked = np.bincount(known.labels[known.checked], minlength=len(counts))
        if not checked.all():
            name = known.class_names[int(checked.argmin())]
            raise ValueError(f"{origin}: no row of class {shown(name)} is checked; must be one, to test with")


def _split(known: _Known, separate: bool, seed: int, origin: str) -> tuple[np.ndarray, np.ndarray]:
    if separate:
        count = len(known.labels)
        return np.random.default_rng([seed, count]).permutation(count), np.zeros(0, int)
    train, test = draw_test(known.labels, TEST_FRACTION, seed, known.clients, known.checked)
    tested = np.bincount(known.labels[test], minlength=len(known.class_names))
    if not tested.all():
        name = known.class_names[int(tested.argmin())]
        raise ValueError(
            f"{origin}: class {shown(name)} has no row to test with that is not the last of its client; give a test file"
        )
    return train, test


def _read_test(file: UserFile, roles: _Roles, encoding: Encoding, class_names: tuple[str, ...], fill: bool) -> _Test:
    """The test part from a file of its own, encoded as the training part; its clients and checks do not matter."""
    label = roles.label
    if label not in (*file.names, *file.others):
        raise no_column("label", label, file)
    if not encoding.shape:
        encoding.check_columns(file)
    columns = file.read({**encoding.kinds, label: "words"})
    words = _words(columns.pop(label))
    _none_missing(words, f"{file.origin}: label {label!r}")
    labels, names = numbered(words, as_numbers=True)  # the same names are in the same order
    new = [name for name in names if name not in class_names]
    lacking = [name for name in class_names if name not in names]
    if new:
        raise ValueError(
            f"{file.origin}: label {label!r} has classes that the training data do not have: {listed(new)}"
        )
    if lacking:
        raise ValueError(f"{file.origin}: has no row of class {shown(lacking[0])}; must have one of each to test with")
    if not encoding.shape:
        (inputs,) = encoding.encode(columns, [slice(None)], fill, file.origin)
    elif file.images is not None:
        inputs = file.images(encoding.shape)
    else:
        raise ValueError(f"{file.origin}: must be images, as the training data")
    return _Test(inputs, labels, np.arange(len(labels)) if file.rows is None else file.rows)
