"""Schema drift: an owner changes a table, and the view over it pauses instead of going wrong."""

from __future__ import annotations

import functools

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import Case, fail, require
from adapters.conformance.operations import Delete, Insert, Row, Transaction, Update
from adapters.conformance.queries import table, whole
from adapters.conformance.schema_change import (
    AddColumn,
    DropColumn,
    RenameTable,
    RetypeColumn,
    SchemaChange,
)
from algebra.errors import ResyncRequiredError, SchemaChangedError
from algebra.local_view import LocalView
from algebra.position import Position
from algebra.schema import Column

ITEM = table("item", {"id": pa.int64(), "name": pa.string(), "qty": pa.int64()}, key=["id"])
NOTE = table("note", {"text": pa.string()})

CHANGES: tuple[tuple[SchemaChange, Row], ...] = (
    (AddColumn("item", Column("more", pa.string())), (9, "new", 9, "more")),
    (DropColumn("item", "name"), (9, 9)),
    (RetypeColumn("item", "qty", pa.string()), (9, "new", "nine")),
    (RenameTable("item", "article"), (9, "new", 9)),
)
"""What happens to `item`, and a row that fits it afterwards."""


def _drift(change: SchemaChange, row: Row, bench: Bench) -> None:
    start = bench.start(ITEM, NOTE)
    bench.write(
        Transaction((Insert("item", ((1, "a", 10), (2, "b", 20), (3, "c", 30))), Insert("note", (("x",),)))),
        Transaction((Update("item", (1, "a", 10), (1, "z", 11)), Delete("item", (3, "c", 30)))),
    )
    bench.require_agreement(start, "before the change")
    known = whole(bench.catalog, "item")
    before = bench.position()

    bench.alter(change)
    name = change.to if isinstance(change, RenameTable) else "item"
    bench.write(Transaction((Insert(name, (row,)), Insert("note", (("y",),)))))
    for when in ("after the change", "in an adapter opened after the change"):
        for position in (start, before):
            _require_refused(bench, position, when)
        _require_no_wrong_rows(bench, known, change, when)
        bench.open()

    bench.truth.clear()
    bench.prepare(name, "note")
    again = bench.position()
    bench.write(
        Transaction((Delete(name, row), Insert("note", (("z",),)))),
        Transaction((Insert(name, (row,)),)),
    )
    bench.require_agreement(again, "when it is prepared again")
    if not isinstance(change, RenameTable):
        _require_resync(bench, before, "when it is prepared again")
    _require_no_wrong_rows(bench, known, change, "when it is prepared again")


def _require_refused(bench: Bench, after: Position, when: str) -> None:
    with bench.reading() as reading:
        try:
            found = reading.snapshot.changes(after)
        except SchemaChangedError as error:
            require("\n" not in str(error), f"{when}: the error has several lines: {error}")
            return
    fail(f"{when}, changes({after}) answered with {len(found)} entries, not SchemaChangedError")


def _require_resync(bench: Bench, after: Position, when: str) -> None:
    with bench.reading() as reading:
        try:
            found = reading.snapshot.changes(after)
        except ResyncRequiredError:
            return
    fail(f"{when}, changes({after}) answered with {len(found)} entries across the change")


def _require_no_wrong_rows(bench: Bench, known: LocalView, change: SchemaChange, when: str) -> None:
    """The query of before is refused, unless a column came that it does not read."""
    try:
        with bench.reading() as reading:
            found = reading.rows(known)
    except SchemaChangedError:
        return
    if not isinstance(change, AddColumn):
        fail(f"{when}, the fetch made for the schema of before answered with {sum(found.values())} rows")
    bench.require_answer(known, what=f"{when}, the fetch made for the schema of before")


CASES = tuple(
    Case(
        f"drift-{change.kind}",
        f"{type(change).__name__} on a captured table: changes say SchemaChangedError, no fetch goes wrong, "
        "and prepare mends it.",
        functools.partial(_drift, change, row),
    )
    for change, row in CHANGES
)
