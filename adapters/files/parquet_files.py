"""Parquet: columns and types are the file's own; rows come a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import pyarrow as pa
from pyarrow import parquet as pq

from adapters.files.options import RelationOptions
from adapters.files.readers import (
    BROKEN,
    FileShape,
    Guess,
    IncompleteError,
    Reader,
    RowError,
    Task,
    check_key,
)

BATCH_ROWS = 65_536
_ENDS = b"PAR1"


class ParquetReader(Reader):
    """Parquet files."""

    def shape(self, file: BinaryIO, options: RelationOptions, longest: int) -> FileShape | None:
        schema = _open(file).schema_arrow
        return FileShape(tuple(schema.names), {f.name: _shown(f.type) for f in schema})

    def infer(self, file: BinaryIO, names: Sequence[str], options: RelationOptions, longest: int) -> Guess:
        return Guess({f.name: (_shown(f.type),) for f in _open(file).schema_arrow})

    def batches(self, file: BinaryIO, task: Task) -> Iterator[pa.RecordBatch]:
        first = 1
        for batch in _stored(file, task.schema.names):
            table = pa.Table.from_batches([batch]).select(task.schema.names)
            for part in _good(table, first, task):
                yield from part.to_batches()
            first += batch.num_rows


def _open(file: BinaryIO) -> pq.ParquetFile:
    file.seek(0)
    head = file.read(len(_ENDS))
    try:
        file.seek(-len(_ENDS), 2)
        if head != _ENDS or file.read() != _ENDS:
            raise IncompleteError("is not a whole Parquet file")
        return pq.ParquetFile(file, page_checksum_verification=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise IncompleteError(f"is not a whole Parquet file ({str(error).splitlines()[0]})") from error


def _stored(file: BinaryIO, names: list[str]) -> Iterator[pa.RecordBatch]:
    """The file's own batches; IncompleteError where they cannot be decoded."""
    batches = _open(file).iter_batches(BATCH_ROWS, columns=names)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except (OSError, pa.ArrowException) as error:
            raise IncompleteError(f"is a damaged Parquet file ({str(error).splitlines()[0]})") from error
        yield batch


def _good(table: pa.Table, first: int, task: Task) -> Iterator[pa.Table]:
    """The rows that fit the declared types; the others are found by halving, and reported."""
    pending = [(0, table.num_rows)]
    while pending:
        low, high = pending.pop()
        rows = table.slice(low, high - low)
        try:
            yield check_key(_cast(rows, task.schema), task.key)
        except BROKEN as error:
            if high - low == 1:
                reason = str(error).splitlines()[0]
                task.malformed.report(task.file, first + low, reason, str(rows.to_pylist()[0]))
            else:
                middle = (low + high) // 2
                pending += [(middle, high), (low, middle)]


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = []
    for f in schema:
        try:
            columns.append(table[f.name].cast(f.type))
        except pa.ArrowInvalid as error:
            raise RowError(f"column {f.name!r}: {str(error).splitlines()[0]}") from error
    return pa.Table.from_arrays(columns, schema=schema)


def _shown(type_: pa.DataType) -> pa.DataType:
    """The type that values of a stored type are shown as: what is only another layout of it is not told."""
    if pa.types.is_dictionary(type_):
        return _shown(type_.value_type)
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return pa.string()
    if (
        pa.types.is_large_binary(type_)
        or pa.types.is_binary_view(type_)
        or pa.types.is_fixed_size_binary(type_)
    ):
        return pa.binary()
    if pa.types.is_timestamp(type_) and type_.tz is not None and type_.unit in ("s", "ms", "us"):
        return pa.timestamp("us", "UTC")
    if pa.types.is_time32(type_):
        return pa.time64("us")
    if pa.types.is_decimal(type_) and type_.bit_width < 128:
        return pa.decimal128(type_.precision, type_.scale)
    return type_
