"""Parquet files as the warehouse writes and checks them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from algebra.errors import DataError
from mediator.warehouse.delta_files import DataFile
from mediator.warehouse.storage import Storage

_COMPRESSION = "zstd"
_ROW_GROUP = 122_880
_CACHE_BYTES = 64 * 1024
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._/-]+")
# A few rows: every part of a file's footer is cheaper than what it could save.
_SMALL_ROWS = 64


def file_name() -> str:
    """A name for a new data file that no other file has."""
    return f"{uuid.uuid4().hex}.parquet"


def write_table(directory: Path, table: pa.Table, range_column: str | None) -> DataFile:
    """Writes a table as one new data file of `directory`; the rows of a small one stay cached."""
    name = file_name()
    low, high = _bounds(table, range_column)
    pq.write_table(
        table,
        directory / name,
        compression=_COMPRESSION,
        row_group_size=_ROW_GROUP,
        use_dictionary=table.num_rows > _SMALL_ROWS,
        store_schema=False,
    )
    size = (directory / name).stat().st_size
    cached = table if table.nbytes <= _CACHE_BYTES else None
    return DataFile(name, size, table.num_rows, low, high, cached)


def write_batches(
    directory: Path, schema: pa.Schema, tables: Iterable[pa.Table], range_column: str | None = None
) -> list[DataFile]:
    """Writes a stream of tables of one schema as one new data file; no file if there are no rows."""
    name = file_name()
    directory.mkdir(parents=True, exist_ok=True)
    rows, low, high = 0, 0, 0
    with pq.ParquetWriter(directory / name, schema, compression=_COMPRESSION, store_schema=False) as writer:
        for table in tables:
            if table.num_rows == 0:
                continue
            first, last = _bounds(table, range_column)
            low, high = (first, last) if rows == 0 else (min(low, first), max(high, last))
            rows += table.num_rows
            writer.write_table(table, row_group_size=_ROW_GROUP)
    if rows == 0:
        (directory / name).unlink()
        return []
    return [DataFile(name, (directory / name).stat().st_size, rows, low, high)]


def adopt(
    table_directory: Path,
    paths: Sequence[Path],
    storage: Storage,
    extra: Sequence[str],
    range_column: str | None,
) -> list[DataFile]:
    """Data files of the table for files that an engine staged inside its folder; empty files are left out.

    An engine may write the view's columns as declared, or in stored form. What is not in stored form (Spark's
    INT96 timestamps, an unsigned column, an escaped name) is written again, without loss or not at all.
    """
    expected = storage.with_columns(*extra)
    files: list[DataFile] = []
    for path in paths:
        try:
            relative = path.resolve().relative_to(table_directory.resolve()).as_posix()
        except ValueError:
            raise DataError(f"{path} was not staged in the folder that stage_directory gave") from None
        with pq.ParquetFile(path) as parquet:
            rows = parquet.metadata.num_rows
            if rows == 0:
                continue
            same = _same_columns(parquet.schema_arrow, expected) and _PLAIN_NAME.fullmatch(relative)
            bounds = _footer_bounds(parquet, range_column) if same else None
            if not same:
                tables = (
                    storage.to_stored(pa.Table.from_batches([batch]), *extra)
                    for batch in parquet.iter_batches(_ROW_GROUP)
                )
                files += write_batches(table_directory, expected, tables, range_column)
                continue
        low, high = bounds or _bounds(pq.read_table(path, columns=[range_column]), range_column)
        files.append(DataFile(relative, path.stat().st_size, rows, low, high))
    return files


def integers(paths: Sequence[Path], *columns: str) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], ...]:
    """These integer columns of all files, one array per column."""
    tables = [pq.read_table(path, columns=list(columns), partitioning=None) for path in paths]
    if not tables:
        return tuple(np.empty(0, np.int64) for _ in columns)
    table = pa.concat_tables(tables)
    return tuple(column_integers(table, name) for name in columns)


def column_integers(table: pa.Table, name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """One integer column without NULLs as a numpy array."""
    if table[name].null_count:
        raise DataError(f"column {name!r} holds NULL")
    return np.asarray(table[name].to_numpy(), np.int64)


def _same_columns(actual: pa.Schema, expected: pa.Schema) -> bool:
    """The same names and types; order, nullability and metadata do not matter to a Delta table."""
    if len(actual.names) != len(expected.names):
        return False
    return all(
        actual.get_field_index(field.name) >= 0 and actual.field(field.name).type.equals(field.type)
        for field in expected
    )


def _footer_bounds(parquet: pq.ParquetFile, column: str | None) -> tuple[int, int] | None:
    """The bounds of an integer column from the file's footer; None if the footer does not tell."""
    if column is None:
        return (0, 0)
    index = parquet.schema_arrow.get_field_index(column)
    groups = [
        parquet.metadata.row_group(number).column(index).statistics
        for number in range(parquet.metadata.num_row_groups)
    ]
    if not all(statistics is not None and statistics.has_min_max for statistics in groups):
        return None
    return (min(s.min for s in groups), max(s.max for s in groups))


def _bounds(table: pa.Table, column: str | None) -> tuple[int, int]:
    if column is None or table.num_rows == 0:
        return (0, 0)
    values = column_integers(table, column)
    return (int(values.min()), int(values.max()))
