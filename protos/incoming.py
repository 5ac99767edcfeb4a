"""Rows that a wrapper sends, checked before anyone counts on them.

A mediator believes a wrapper about its source, not about the protocol: what does not fit the local view it is
about ends the stream, and no view is changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from algebra.arrow_ipc import from_ipc
from algebra.engines.contract import Relation
from algebra.errors import DataError, OrderingViolationError
from algebra.local_view import LocalView
from algebra.schema import COUNT
from protos.lockstep.v1 import wrapper_pb2 as pb

TRANSACTION = "_tx"


def checked_touched(delta: pb.LocalViewDelta, transactions: int) -> tuple[int, ...]:
    """The indexes of the transactions that touch a local view: ascending, and of this update."""
    touched = tuple(delta.touched)
    ascending = all(earlier < later for earlier, later in itertools.pairwise(touched))
    if touched and not (ascending and touched[0] >= 0 and touched[-1] < transactions):
        raise OrderingViolationError(
            f"changes of local view {delta.local_view!r} name transactions that the update does not have"
        )
    return touched


def checked_delta(parts: Sequence[Relation], view: LocalView, touched: tuple[int, ...]) -> Relation | None:
    """The rows of a ΔIS from its parts: the local view's columns, `_tx` and `_count`; None without parts."""
    if not parts:
        return None
    expected = pa.schema([*view.arrow, pa.field(TRANSACTION, pa.int32()), pa.field(COUNT, pa.int64())])
    rows = pa.concat_tables([_with_columns(part, expected, view.name) for part in parts])
    numbers = rows[TRANSACTION].combine_chunks()
    if isinstance(numbers, pa.ChunkedArray):  # no chunk at all
        numbers = pa.array([], pa.int32())
    if numbers.null_count or rows[COUNT].null_count:
        raise DataError(f"an update of local view {view.name!r} has rows without a transaction or a count")
    if len(numbers) > 1 and not pc.all(pc.greater_equal(numbers[1:], numbers[:-1])).as_py():
        raise DataError(f"an update of local view {view.name!r} has its transactions out of order")
    if not pc.all(pc.is_in(numbers, value_set=pa.array(touched, pa.int32()))).as_py() and len(numbers):
        raise DataError(
            f"an update of local view {view.name!r} has rows of transactions that do not touch it"
        )
    return rows


def _with_columns(rows: pa.Table, expected: pa.Schema, name: str) -> pa.Table:
    if sorted(rows.column_names) != sorted(expected.names) or any(
        rows.schema.field(f.name).type != f.type for f in expected
    ):
        raise DataError(f"an update of local view {name!r} does not have its columns")
    # What a column is called and holds counts; whether it may be null, and remarks, do not.
    return pa.Table.from_arrays([rows[f.name] for f in expected], schema=expected)


def decoded_answer(payload: bytes, schema: pa.Schema, local_view: str) -> Relation:
    """The rows of one chunk of an answer; DataError if they do not have the schema."""
    rows = from_ipc(payload)
    if not rows.schema.equals(schema):
        raise DataError(f"an answer for {local_view!r} does not have its columns")
    if COUNT in schema.names and rows[COUNT].null_count:
        raise DataError(f"an answer for {local_view!r} has rows without a count")
    return rows
