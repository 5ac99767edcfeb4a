"""Typed rows: run a SELECT and get Arrow batches of exactly the declared types, or a DataError.

The driver fixes a result column's type by its first batch. A first row of constants, one of each column's
own type, pins it (NULL-only columns and empty results included) and is dropped again. From then on the
driver reports most misfits itself; those it would convert without a word are found by one extra column
that holds the number of the first misfit column, or 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from adapters.sqlite.connection import Connection, Result
from adapters.sqlite.types import Codec
from algebra.errors import DataError, LockstepError

_MISMATCH = re.compile(r"Type mismatch in column (\d+)")


@dataclass(frozen=True)
class ResultColumn:
    """One column of a result: its name there, SQL for the stored value, its codec, and whose it is."""

    name: str
    sql: str
    codec: Codec
    origin: str


def read_rows(
    connection: Connection,
    columns: Sequence[ResultColumn],
    tail: str,
    parameters: Sequence[int | float | str] = (),
) -> pa.RecordBatchReader:
    """The rows of `SELECT columns tail`, streamed; a value that does not fit raises DataError."""
    sentinels = ", ".join([*(column.codec.sentinel for column in columns), "0"])
    selected = ", ".join([*(column.codec.select(column.sql) for column in columns), _misfit(columns)])
    result = connection.query(f"SELECT {sentinels} UNION ALL SELECT {selected} {tail}", parameters)
    schema = pa.schema([pa.field(column.name, column.codec.arrow) for column in columns])
    return pa.RecordBatchReader.from_batches(schema, _batches(connection, result, columns, schema))


def _misfit(columns: Sequence[ResultColumn]) -> str:
    tests = [(number, column.codec.misfit(column.sql)) for number, column in enumerate(columns, 1)]
    cases = " ".join(f"WHEN {test} THEN {number}" for number, test in tests if test is not None)
    return f"CASE {cases} ELSE 0 END" if cases else "0"


def _batches(
    connection: Connection, result: Result, columns: Sequence[ResultColumn], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    with result:
        for column, field in zip(columns, result.batches.schema, strict=False):
            if field.type != column.codec.wire:
                raise _misfit_error(column)
        first = True
        while True:
            try:
                batch = result.batches.read_next_batch()
            except StopIteration:
                return
            except (OSError, pa.ArrowException) as error:
                raise _driver_error(connection, str(error), columns) from error
            if first:
                batch, first = batch.slice(1), False
            if batch.num_rows:
                yield _decoded(batch, columns, schema)


def _driver_error(connection: Connection, text: str, columns: Sequence[ResultColumn]) -> LockstepError:
    mismatch = _MISMATCH.search(text)
    if mismatch is None or int(mismatch[1]) >= len(columns):
        return connection.failure(text)
    return _misfit_error(columns[int(mismatch[1])])


def _misfit_error(column: ResultColumn) -> DataError:
    return DataError(f"{column.origin} holds a value that is not {column.codec.arrow}")


def _decoded(batch: pa.RecordBatch, columns: Sequence[ResultColumn], schema: pa.Schema) -> pa.RecordBatch:
    misfit = pc.max(batch.column(len(columns))).as_py()
    if misfit:
        raise _misfit_error(columns[misfit - 1])
    arrays = []
    for column, values in zip(columns, batch.columns, strict=False):
        try:
            arrays.append(column.codec.decode(values))
        except pa.ArrowInvalid as error:
            raise DataError(f"{column.origin}: {error}, its type is {column.codec.arrow}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
