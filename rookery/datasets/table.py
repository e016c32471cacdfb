"""Tables from files: CSV and its kin with the standard library, Parquet with pyarrow."""

import codecs
import csv
import importlib
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from rookery.datasets.columns import Cells, Column, Kind, listed, of_array
from rookery.datasets.user_file import UserFile

_DELIMITERS = ",;\t|"
_SAMPLE = 1 << 16  # characters from which the delimiter is told
_ROWS = 8192  # cells are Python objects only as long as such a piece is read


def open_csv(path: Path) -> UserFile:
    """A text file whose first line names the columns. Delimiter and byte order mark are told from its beginning."""
    with _rows(path) as rows:
        header = [name.strip() for name in next(rows, [])]
    if not any(header):
        raise ValueError(f"{path}: empty; its first line must name the columns")
    return UserFile(str(path), _unique(header, path), lambda kinds: _read_csv(path, header, kinds))


def open_parquet(path: Path) -> UserFile:
    """A Parquet file with columns of numbers, truth values and text."""
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise ValueError(f"{path}: Parquet needs pyarrow: pip install 'rookery[parquet]'") from error
    try:
        file = parquet.ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are both
        raise ValueError(f"{path}: not a whole Parquet file: {_first_line(error)}") from error
    names = _unique(file.schema_arrow.names, path)
    return UserFile(str(path), names, lambda kinds: _read_parquet(path, file, kinds))


def _unique(header: list[str], path: Path) -> tuple[str, ...]:
    """The names of the columns that have one: pandas writes its index without, and a delimiter at the end adds one."""
    names = tuple(filter(None, header))
    if len(names) < len(header):
        warnings.warn(f"{path}: column {header.index('')} (from 0) has no name and is left out", stacklevel=2)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"{path}: more than one column has the name {listed(twice)}")
    return names


@contextmanager
def _rows(path: Path) -> Iterator[Iterator[list[str]]]:
    """The rows that are not empty, the header first."""
    with open(path, "rb") as raw:
        mark = raw.read(2)
    encoding = "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        with open(path, newline="", encoding=encoding) as file:
            delimiter = _delimiter(file.read(_SAMPLE))
            file.seek(0)
            yield filter(None, csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True))
    except UnicodeError as error:
        raise ValueError(
            f"{path}: not text in UTF-8 ({error.reason if hasattr(error, 'reason') else error})"
        ) from error
    except csv.Error as error:
        raise ValueError(f"{path}: not a table of text: {error}") from error


def _delimiter(sample: str) -> str:
    """That which cuts all first lines into equally many cells, the more the better."""
    lines = sample.splitlines(keepends=True)[:-1] or [sample]  # the last may be cut off

    def quality(delimiter: str) -> tuple[bool, int]:
        try:
            rows = list(filter(None, islice(csv.reader(lines, delimiter=delimiter, skipinitialspace=True), 20)))
        except csv.Error:
            return False, 0
        widths = [len(row) for row in rows]
        return len(set(widths)) == 1 and widths[0] > 1, widths[0] if widths else 0

    return max(_DELIMITERS, key=quality)


def _read_csv(path: Path, header: list[str], kinds: Mapping[str, Kind | None]) -> dict[str, Column]:
    readers = {name: Cells(f"{path}: column {name!r}", kind) for name, kind in kinds.items()}
    places = {name: header.index(name) for name in kinds}
    with _rows(path) as rows:
        next(rows)
        count = 0
        while piece := list(islice(rows, _ROWS)):
            for at, row in enumerate(piece):
                if len(row) != len(header):
                    raise ValueError(
                        f"{path}: row {count + at} has {len(row)} cells, and {len(header)} columns have a name"
                    )
            columns = list(zip(*piece, strict=True))
            for name, reader in readers.items():
                reader.add(columns[places[name]])
            count += len(piece)
    return {name: reader.column() for name, reader in readers.items()}


def _read_parquet(path: Path, file: Any, kinds: Mapping[str, Kind | None]) -> dict[str, Column]:
    try:
        return {name: _parquet_column(file, name, kind, f"{path}: column {name!r}") for name, kind in kinds.items()}
    except OSError as error:
        raise ValueError(f"{path}: not a whole Parquet file: {_first_line(error)}") from error


def _parquet_column(file: Any, name: str, kind: Kind | None, where: str) -> Column:
    """One column at a time: of a wide table the others need no memory meanwhile."""
    arrow = importlib.import_module("pyarrow")
    column = file.read(columns=[name]).column(0)
    if arrow.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if arrow.types.is_decimal(column.type):
        column = column.cast(arrow.float64())
    if not arrow.types.is_string(column.type) and not arrow.types.is_large_string(column.type):
        of_numbers = arrow.types.is_integer(column.type) or arrow.types.is_floating(column.type)
        if not of_numbers and not arrow.types.is_boolean(column.type) and not arrow.types.is_null(column.type):
            raise ValueError(f"{where}: type {column.type} is neither numbers nor words; ignore the column")
        if column.null_count and kind != "words":
            column = column.cast(arrow.float64(), safe=False)
        return of_array(column.to_numpy(), where, kind)
    cells = Cells(where, kind)
    for chunk in column.chunks:
        for start in range(0, len(chunk), _ROWS):
            cells.add(chunk.slice(start, _ROWS).to_pylist())
    return cells.column()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
