"""Faults that need many rows, many columns, large values, savepoints or patience to show."""

from __future__ import annotations

import pyarrow.compute as pc

from adapters.conformance import Insert, Operation, Writer, effective
from adapters.conformance.tests.fault import (
    BROKEN_QUIRKS,
    COUNT,
    BrokenAdapter,
    BrokenSnapshot,
    Record,
    edit_changes,
    harness_fault,
    snapshot_fault,
)
from adapters.conformance.tests.memory_harness import MemoryHarness, MemoryWriter
from adapters.spi import SourceTransaction
from algebra.delta import Delta
from algebra.position import Position

# Sizes


class CountsIn16Bits(BrokenSnapshot):
    """No entry has more than 65,536 rows."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        return [
            SourceTransaction(
                entry.position, {name: Delta(d.rows.slice(0, 1 << 16)) for name, d in entry.deltas.items()}
            )
            for entry in super().entries(after)
        ]


class LosesOldRowsOfLargeUpdates(BrokenSnapshot):
    """A statement that changes very many rows is logged with its new rows alone."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        def new(delta: Delta) -> Delta:
            if len(delta) < 1500:
                return delta
            return Delta(delta.rows.filter(pc.greater(delta.rows[COUNT], 0)))

        return [
            SourceTransaction(entry.position, {name: new(delta) for name, delta in entry.deltas.items()})
            for entry in super().entries(after)
        ]


class CountsColumnsIn8Bits(BrokenSnapshot):
    """Columns past the 256th come as NULL in changes."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        def cut(relation: str, rows: list[Record]) -> list[Record]:
            return [
                {name: v if at < 256 or name == COUNT else None for at, (name, v) in enumerate(row.items())}
                for row in rows
            ]

        return [edit_changes(entry, cut) for entry in super().entries(after)]


class LeavesOutWhatAnUpdateLeftAlone(BrokenSnapshot):
    """A large value that an update did not touch is not in the log, and comes as NULL."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        def unchanged(relation: str, rows: list[Record]) -> list[Record]:
            texts = [row["text"] for row in rows]
            return [{**row, "text": None} if texts.count(row["text"]) > 1 else row for row in rows]

        return [edit_changes(entry, unchanged) for entry in super().entries(after)]


# Transactions


class LeakyWriter(MemoryWriter):
    """Does again, at the end, what was rolled back in a table that has no key to be in the way."""

    def commit(self) -> None:
        kept = effective(self._operations)
        lost = [o for o in self._operations if isinstance(o, Insert) and o not in kept]
        self._operations += [operation for operation in lost if operation.relation == "posting"]
        super().commit()


class ShowsWhatWasRolledBack(MemoryHarness):
    """What was rolled back to a savepoint is in the log all the same."""

    quirks = BROKEN_QUIRKS

    def writer(self, number: int) -> Writer:
        return LeakyWriter(self.database)


class HastyWriter(MemoryWriter):
    def execute(self, operation: Operation) -> None:
        super().begin()
        super().execute(operation)
        super().commit()
        super().begin()


class ShowsOpenTransactions(MemoryHarness):
    """Every statement shows at once."""

    quirks = BROKEN_QUIRKS

    def writer(self, number: int) -> Writer:
        return HastyWriter(self.database)


BEGUN: dict[tuple[str, int], int] = {}
"""(database, number of a commit) -> how many commits there were when its transaction began."""


class NotingWriter(MemoryWriter):
    """Notes when its transactions began."""

    def begin(self) -> None:
        super().begin()
        self._at = self._database.version.ordinal

    def commit(self) -> None:
        super().commit()
        BEGUN[self._database.name, self._database.version.ordinal] = self._at


class TrustsTheSequence(MemoryHarness):
    """Transactions are numbered when they begin, and what has a lower number than was read is not read: one
    that stays open while others commit is lost."""

    quirks = BROKEN_QUIRKS

    def writer(self, number: int) -> Writer:
        return NotingWriter(self.database)

    class adapter_class(BrokenAdapter):
        class broken_snapshot(BrokenSnapshot):
            def entries(self, after: Position) -> list[SourceTransaction]:
                name, read = self.adapter.database.name, after.ordinal
                return [e for e in super().entries(after) if BEGUN[name, e.position.ordinal] >= read]


FAULTS = (
    snapshot_fault(CountsIn16Bits, "a-transaction-of-100-000-rows"),
    snapshot_fault(LosesOldRowsOfLargeUpdates, "statements-that-touch-every-row"),
    snapshot_fault(CountsColumnsIn8Bits, "rows-of-many-columns"),
    snapshot_fault(LeavesOutWhatAnUpdateLeftAlone, "large-values"),
    harness_fault(ShowsWhatWasRolledBack, "savepoints-take-back-a-part"),
    harness_fault(ShowsOpenTransactions, "a-long-transaction-shows-when-it-commits"),
    harness_fault(TrustsTheSequence, "a-long-transaction-shows-when-it-commits"),
)
