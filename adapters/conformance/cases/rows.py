"""Rows: what inserts, updates and deletes do, with keys and without, NULL and duplicates included."""

from __future__ import annotations

import pyarrow as pa

from adapters.conformance.bench import Bench
from adapters.conformance.case import CaseSkipped, case, require
from adapters.conformance.operations import Delete, Insert, Operation, Overwrite, Transaction, Update
from adapters.conformance.queries import table

ITEM = table("item", {"id": pa.int64(), "name": pa.string(), "size": pa.int64()}, key=["id"])
PART = table("part", {"box": pa.int64(), "slot": pa.string(), "size": pa.int64()}, key=["box", "slot"])
NOTE = table("note", {"text": pa.string(), "size": pa.int64()})


def _one(*operations: Operation) -> Transaction:
    return Transaction(operations)


@case
def inserts(bench: Bench) -> None:
    """Rows inserted by one statement or by several show in changes and in fetch."""
    start = bench.start(ITEM, NOTE)
    bench.write(
        _one(Insert("item", ((1, "a", 10), (2, "b", 20)))),
        _one(Insert("item", ((3, "c", 30),)), Insert("note", (("x", 1), ("y", 2)))),
    )
    bench.require_agreement(start)


@case
def deletes(bench: Bench) -> None:
    """A deleted row is in the changes with all its old values."""
    start = bench.start(ITEM, PART, NOTE)
    bench.write(
        _one(Insert("item", ((1, "a", 10), (2, None, 20))), Insert("part", ((1, "l", 1), (1, "r", 2)))),
        _one(Insert("note", (("x", 1), ("y", None)))),
        _one(Delete("item", (2, None, 20)), Delete("part", (1, "l", 1)), Delete("note", ("y", None))),
        _one(Delete("item", (1, "a", 10))),
    )
    bench.require_agreement(start)


@case
def updates(bench: Bench) -> None:
    """An updated row is in the changes once with its old values and once with its new ones."""
    start = bench.start(ITEM, PART, NOTE)
    bench.write(
        _one(Insert("item", ((1, "a", 10), (2, "b", 20))), Insert("note", (("x", 1),))),
        _one(Update("item", (1, "a", 10), (1, "a", 11)), Update("note", ("x", 1), ("x", None))),
        _one(Update("item", (1, "a", 11), (1, None, 12)), Update("item", (1, None, 12), (1, "z", 13))),
        _one(Update("note", ("x", None), ("y", 2))),
    )
    bench.require_agreement(start)


@case
def key_changes(bench: Bench) -> None:
    """An update may change a key, also to one that was just set free, also of a composite key."""
    start = bench.start(ITEM, PART)
    bench.write(
        _one(Insert("item", ((1, "a", 10), (2, "b", 20))), Insert("part", ((1, "l", 1), (1, "r", 2)))),
        _one(Update("item", (1, "a", 10), (3, "a", 10))),
        _one(Update("item", (2, "b", 20), (1, "b", 21)), Update("item", (3, "a", 10), (2, "a", 10))),
        _one(Update("part", (1, "l", 1), (2, "l", 1)), Update("part", (1, "r", 2), (1, "l", 2))),
        _one(Delete("item", (1, "b", 21)), Insert("item", ((1, "new", 1),))),
    )
    bench.require_agreement(start)


@case
def overwritten_rows(bench: Bench) -> None:
    """A row that a single statement writes over another leaves with its old values."""
    if bench.quirks.no_overwrite:
        raise CaseSkipped(bench.quirks.no_overwrite)
    start = bench.start(ITEM, PART)
    bench.write(
        _one(Insert("item", ((1, "a", 10), (2, "b", 20))), Insert("part", ((1, "l", 1),))),
        _one(Overwrite("item", (1, "a", 10), (1, "A", None)), Overwrite("item", None, (3, "c", 30))),
        _one(Overwrite("part", (1, "l", 1), (1, "l", 2)), Overwrite("part", (1, "l", 2), (1, "l", 3))),
        _one(Overwrite("item", (2, "b", 20), (2, "b", 20)), Delete("item", (3, "c", 30))),
        _one(Overwrite("item", None, (3, "back", 31)), Update("item", (3, "back", 31), (3, "on", 32))),
    )
    bench.require_agreement(start)


@case
def no_op_updates(bench: Bench) -> None:
    """An update that sets a row to what it is changes nothing."""
    start = bench.start(ITEM, NOTE)
    bench.write(_one(Insert("item", ((1, "a", None),)), Insert("note", ((None, 1),))))
    before = bench.entries(start)
    bench.write(_one(Update("item", (1, "a", None), (1, "a", None)), Update("note", (None, 1), (None, 1))))
    later = bench.entries(start)[len(before) :]
    require(not later, f"a no-op update shows as {[entry.change for entry in later]}")
    bench.require_agreement(start)


@case
def duplicates_are_counted(bench: Bench) -> None:
    """A table without a key is a bag: copies come, go and change one by one."""
    start = bench.start(NOTE)
    row = ("same", 1)
    bench.write(_one(Insert("note", (row, row, row))), _one(Insert("note", (row, ("other", None)))))
    bench.require_agreement(start, "after inserts of duplicates")
    bench.write(_one(Delete("note", row)), _one(Update("note", row, ("other", None))))
    bench.require_agreement(start, "after one copy was deleted and one was updated")
    bench.write(_one(Delete("note", row), Delete("note", row)), _one(Insert("note", (row,))))
    bench.require_agreement(start)


@case
def nulls_are_kept(bench: Bench) -> None:
    """NULL stays NULL in every type, whole rows of it included, through inserts, updates and deletes."""
    from adapters.conformance.samples import SAMPLES

    types = bench.supported({sample.name: sample.type for sample in SAMPLES})
    samples = {sample.name: sample for sample in SAMPLES}
    empty = (None,) * len(types)
    full = tuple(samples[name].values[0] for name in types)
    mixed = tuple(None if i % 2 else value for i, value in enumerate(full))
    start = bench.start(table("bag", types))
    bench.write(
        _one(Insert("bag", (empty, full, mixed, empty))),
        _one(Update("bag", full, empty)),
        _one(Update("bag", empty, mixed)),
        _one(Delete("bag", empty)),
    )
    bench.require_agreement(start)


@case
def rows_from_before_the_capture_are_followed(bench: Bench) -> None:
    """Rows that were there before capture are fetched, are not changes, and leave with their old values."""
    bench.create(ITEM, NOTE)
    old = ((1, "a", 1), (2, "b", None))
    bench.write(_one(Insert("item", old), Insert("note", (("x", 1), ("x", 1)))))
    bench.prepare()
    bench.truth.clear()
    start = bench.position()
    bench.require_agreement(start, "before the first captured change")
    bench.write(
        _one(Update("item", old[0], (1, "a", 2)), Delete("note", ("x", 1))),
        _one(Delete("item", old[1])),
    )
    bench.require_agreement(start)


CASES = (
    inserts,
    deletes,
    updates,
    key_changes,
    overwritten_rows,
    no_op_updates,
    duplicates_are_counted,
    nulls_are_kept,
    rows_from_before_the_capture_are_followed,
)
