"""Typed rows: run a SELECT and get Arrow batches of exactly the declared types, or a DataError.

The driver fixes a result column's type by its first batch, which it does not check: bytes beyond what its
32-bit offsets can count end the process. A first batch of constants, of each column's own type, pins the
types (NULL-only columns and empty results included) and is dropped again. From then on the driver reports
too many bytes and most misfits itself; those it would convert without a word are found by one extra column
that holds the number of the first misfit column, or 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from adapters.sqlite.connection import BATCH_ROWS, Connection, Result
from adapters.sqlite.types import Codec
from adapters.statement_limit import UNLIMITED, StatementLimit
from algebra.errors import DataError, LockstepError

_LEFT_OUT = -1
"""Stands for the number of a misfit column where the row does not count."""

_FEWEST_ROWS = 128

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
    *,
    holds: str = "",
    limit: StatementLimit = UNLIMITED,
    expected: int = BATCH_ROWS,
) -> pa.RecordBatchReader:
    """The rows of `SELECT columns tail`, streamed; a value that does not fit raises DataError.

    Where few are `expected`, batches are small. Rows that do not meet `holds` are left out. The driver cannot
    be interrupted, so the limit is looked at with every batch.
    """
    sentinels = ", ".join([*(column.codec.sentinel for column in columns), "0"])
    values = [column.codec.select(column.sql) for column in columns]
    if holds:
        # What a row that does not count has in it is nobody's concern.
        values = [f"CASE WHEN {holds} THEN {value} END" for value in values]
    selected = ", ".join([*values, _misfit(columns, holds)])
    size = min(max(expected, _FEWEST_ROWS), BATCH_ROWS)
    numbers = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {size}) SELECT i FROM n"
    statement = f"SELECT {sentinels} FROM ({numbers}) UNION ALL SELECT {selected} {tail}"
    with limit.working():
        result = connection.query(statement, parameters, size)
    schema = pa.schema([pa.field(column.name, column.codec.arrow) for column in columns])
    return pa.RecordBatchReader.from_batches(schema, _batches(connection, result, columns, schema, limit))


def _misfit(columns: Sequence[ResultColumn], holds: str) -> str:
    tests = [(number, column.codec.misfit(column.sql)) for number, column in enumerate(columns, 1)]
    if holds:
        tests.insert(0, (_LEFT_OUT, f"({holds}) IS NOT TRUE"))
    cases = " ".join(f"WHEN {test} THEN {number}" for number, test in tests if test is not None)
    return f"CASE {cases} ELSE 0 END" if cases else "0"


def _batches(
    connection: Connection,
    result: Result,
    columns: Sequence[ResultColumn],
    schema: pa.Schema,
    limit: StatementLimit,
) -> Iterator[pa.RecordBatch]:
    with result:
        for column, field in zip(columns, result.batches.schema, strict=False):
            if field.type != column.codec.wire:
                raise _misfit_error(column)
        first = True
        while True:
            try:
                with limit.working():
                    batch = next(result.batches, None)
            except (OSError, pa.ArrowException) as error:
                raise _driver_error(connection, str(error), columns) from error
            if batch is None:
                return
            if first:
                first = False
            else:
                yield _decoded(batch, columns, schema)


def _driver_error(connection: Connection, text: str, columns: Sequence[ResultColumn]) -> LockstepError:
    if not text:
        # SQLite itself always says something.
        return DataError(f"rows with {columns[0].origin} are too large: a batch of them takes 2 GiB")
    mismatch = _MISMATCH.search(text)
    if mismatch is None or int(mismatch[1]) >= len(columns):
        return connection.failure(text)
    return _misfit_error(columns[int(mismatch[1])])


def _misfit_error(column: ResultColumn) -> DataError:
    return DataError(f"{column.origin} holds a value that is not {column.codec.arrow}")


def _decoded(batch: pa.RecordBatch, columns: Sequence[ResultColumn], schema: pa.Schema) -> pa.RecordBatch:
    found = batch.column(len(columns))
    misfit = pc.max(found).as_py()
    if misfit > 0:
        raise _misfit_error(columns[misfit - 1])
    if pc.min(found).as_py() == _LEFT_OUT:
        batch = batch.filter(pc.equal(found, 0))
    arrays = []
    for column, values in zip(columns, batch.columns, strict=False):
        try:
            arrays.append(column.codec.decode(values))
        except pa.ArrowInvalid as error:
            told = _misfit_error(column).message
            raise DataError(
                f"{column.origin}: {error}, its type is {column.codec.arrow}", told=told
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
