"""Sizes: transactions of many rows, tables of many columns, values of many bytes."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import case
from adapters.conformance.journal import JOURNAL, numbered, require_whole_transactions
from adapters.conformance.operations import Delete, Empty, Fill, Insert, Raise, Row, Transaction, Update
from adapters.conformance.queries import table
from algebra.position import Position

BULK = table("bulk", {"id": pa.int64(), "value": pa.int64()}, key=["id"])
DOCUMENT = {"id": pa.int64(), "title": pa.string(), "text": pa.string(), "data": pa.binary()}

MANY_ROWS = 100_000
"""Rows of one statement, and of one transaction."""


def _require_entries_and_tables(bench: Bench, after: Position) -> None:
    """Fail unless entries hold whole transactions and the tables are as they must be."""
    truth = {number: change for change in bench.truth for (number,) in change["journal"]}
    with bench.reading() as reading:
        bench.require_tables("after the large transactions", reading)
        require_whole_transactions(truth, reading.entries(after))


@case
def a_transaction_of_100_000_rows(bench: Bench) -> None:
    """A statement that adds 100,000 rows is one entry between its neighbours, with every row."""
    start = bench.start(BULK, JOURNAL)
    bench.write(
        numbered(1, Insert("bulk", ((-1, 0),))),
        numbered(2, Fill("bulk", 0, MANY_ROWS)),
        numbered(3, Delete("bulk", (7, 7))),
    )
    _require_entries_and_tables(bench, start)


@case
def statements_that_touch_every_row(bench: Bench) -> None:
    """One statement that changes or deletes all rows is captured row by row, with their old values."""
    start = bench.start(BULK, JOURNAL)
    bench.write(
        numbered(1, Fill("bulk", 0, 1000)),
        numbered(2, Raise("bulk", 7)),
        numbered(3, Raise("bulk", -3), Insert("bulk", ((5000, 0),)), Raise("bulk", 1)),
        numbered(4, Empty("bulk")),
        numbered(5, Fill("bulk", 500, 10), Empty("bulk"), Fill("bulk", 505, 10)),
    )
    _require_entries_and_tables(bench, start)


@case
def rows_of_many_columns(bench: Bench) -> None:
    """Rows of hundreds of columns come back whole, also when an update changes one of them."""
    width = bench.quirks.columns
    kinds = (pa.int64(), pa.string(), pa.float64())
    types = {"id": pa.int64()} | {f"c{i}": kinds[i % 3] for i in range(1, width)}
    start = bench.start(table("wide", types, key=["id"]))

    def row(number: int) -> Row:
        values = [(i * number, f"{number}.{i}", i + number / 4)[i % 3] for i in range(1, width)]
        return (number, *values)

    def edited(row: Row, at: int) -> Row:
        return (*row[:at], None, *row[at + 1 :])

    rows = [row(number) for number in range(1, 5)]
    places = (1, width // 2, width - 1)
    bench.write(
        Transaction((Insert("wide", tuple(rows)),)),
        Transaction(tuple(Update("wide", rows[i], edited(rows[i], at)) for i, at in enumerate(places))),
        Transaction((Delete("wide", rows[3]), Delete("wide", edited(rows[2], width - 1)))),
    )
    bench.require_agreement(start)


@case
def large_values(bench: Bench) -> None:
    """Values of a MiB come back byte for byte, also in the old row of an update that leaves them alone."""
    types = bench.supported(DOCUMENT)
    start = bench.start(table("document", types, key=["id"]))
    size, source = bench.quirks.value_bytes, random.Random(3)
    letters = "".join(source.choices("abcdefghijklmnop", k=size))
    data = source.randbytes(size)

    def row(*values: Any) -> Row:
        return values[: len(types)]  # without bytes, where there are none

    first, second = row(1, "first", letters, data), row(2, "second", "x" * size, bytes(size))
    titled, rewritten = row(1, "titled", letters, data), row(1, "titled", letters[::-1], data[::-1])
    bench.write(
        Transaction((Insert("document", (first, second)),)),
        Transaction((Update("document", first, titled),)),
        Transaction((Update("document", titled, rewritten),)),
        Transaction((Delete("document", second),)),
    )
    bench.require_agreement(start)


CASES = (
    a_transaction_of_100_000_rows,
    statements_that_touch_every_row,
    rows_of_many_columns,
    large_values,
)
