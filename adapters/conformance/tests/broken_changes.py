"""Faults in the changes: transactions split, merged, lost, out of order, or with wrong rows."""

from __future__ import annotations

from dataclasses import replace

from adapters.conformance import Delete, Insert, Operation, Update, Writer
from adapters.conformance.tests.fault import (
    BROKEN_QUIRKS,
    COUNT,
    BrokenSnapshot,
    Record,
    edit_changes,
    harness_fault,
    snapshot_fault,
)
from adapters.conformance.tests.memory_harness import MemoryHarness, MemoryWriter
from adapters.memory import MemoryDatabase
from adapters.spi import SourceTransaction
from algebra.delta import Delta
from algebra.position import Position


def doubled(position: Position, minus: int = 0) -> Position:
    return replace(position, ordinal=2 * position.ordinal - minus)


class SplitsTransactions(BrokenSnapshot):
    """Each relation that a transaction changed is an entry; ordinals are doubled to make room."""

    @property
    def position(self) -> Position:
        return doubled(self.healthy.position)

    def split(self, entry: SourceTransaction) -> list[SourceTransaction]:
        names = list(entry.deltas)
        if len(names) < 2:
            return [replace(entry, position=doubled(entry.position))]
        return [
            SourceTransaction(doubled(entry.position, 1), {names[0]: entry.deltas[names[0]]}),
            SourceTransaction(doubled(entry.position), {name: entry.deltas[name] for name in names[1:]}),
        ]

    def entries(self, after: Position) -> list[SourceTransaction]:
        whole = self.healthy.changes(replace(after, ordinal=after.ordinal // 2)).transactions()
        return [part for entry in whole for part in self.split(entry) if part.position > after]


class SplitsLargeTransactions(SplitsTransactions):
    """As a reader that takes the log in portions."""

    def split(self, entry: SourceTransaction) -> list[SourceTransaction]:
        if sum(len(delta) for delta in entry.deltas.values()) > 1000:
            return super().split(entry)
        return [replace(entry, position=doubled(entry.position))]


class MergesTransactions(BrokenSnapshot):
    """Two neighbours become one entry, though boundaries are said to be exact."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        entries = super().entries(after)
        merged = []
        for first, second in zip(entries[::2], entries[1::2], strict=False):
            deltas = dict(first.deltas)
            for name, delta in second.deltas.items():
                deltas[name] = deltas[name].plus(delta) if name in deltas else delta
            merged.append(SourceTransaction(second.position, deltas))
        return merged + (entries[-1:] if len(entries) % 2 else [])


class MarksExactEntriesAsBatched(BrokenSnapshot):
    """Entries are marked as batched, though boundaries are said to be exact."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        return [replace(entry, batched=True) for entry in super().entries(after)]


class ReordersTransactions(BrokenSnapshot):
    """Neighbours trade their places."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        entries = super().entries(after)
        for i in range(0, len(entries) - 1, 2):
            first, second = entries[i : i + 2]
            entries[i] = replace(first, deltas=second.deltas)
            entries[i + 1] = replace(second, deltas=first.deltas)
        return entries


class OrdersByFirstWrite(BrokenSnapshot):
    """Transactions come in the order of a number they took before they committed."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        log = list(self.healthy.changes(Position(0)).transactions())

        def number(entry: SourceTransaction) -> int:
            return min((row[0] for row in entry.deltas["journal"].to_dict()), default=0)

        ordered = sorted(log, key=number)
        moved = [replace(mine, position=place.position) for mine, place in zip(ordered, log, strict=True)]
        return [entry for entry in moved if entry.position > after]


class LosesATransaction(BrokenSnapshot):
    """The sixth transaction is never shown."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        return [entry for entry in super().entries(after) if entry.position.ordinal != 6]


class EditedChanges(BrokenSnapshot):
    """The rows of each entry go through `edit`."""

    def edit(self, relation: str, rows: list[Record]) -> list[Record]:
        raise NotImplementedError

    def entries(self, after: Position) -> list[SourceTransaction]:
        return [edit_changes(entry, self.edit) for entry in super().entries(after)]


class DropsDeletes(EditedChanges):
    def edit(self, relation: str, rows: list[Record]) -> list[Record]:
        return [row for row in rows if row[COUNT] > 0]


class DropsOldRowsOfUpdates(EditedChanges):
    """Where an entry has new rows of a relation, its old ones are lost."""

    def edit(self, relation: str, rows: list[Record]) -> list[Record]:
        return [row for row in rows if row[COUNT] > 0] or rows


class DropsOldKeysOfUpdates(EditedChanges):
    """An update that changes the key shows its new row only."""

    def edit(self, relation: str, rows: list[Record]) -> list[Record]:
        key = self.healthy._version.schemas[relation].key
        new = [tuple(row[name] for name in key) for row in rows if row[COUNT] > 0]
        return [r for r in rows if r[COUNT] > 0 or not new or tuple(r[name] for name in key) in new]


class KeepsOneRowPerStatement(EditedChanges):
    def edit(self, relation: str, rows: list[Record]) -> list[Record]:
        return rows[:1]


class LosesDuplicatesInChanges(EditedChanges):
    def edit(self, relation: str, rows: list[Record]) -> list[Record]:
        return [{**row, COUNT: max(-1, min(1, row[COUNT]))} for row in rows]


class NullIsZeroInChanges(EditedChanges):
    def edit(self, relation: str, rows: list[Record]) -> list[Record]:
        schema = self.healthy._version.schemas[relation]
        numbers = [column.name for column in schema.columns if str(column.type) == "int64"]
        return [{**row, **{n: 0 for n in numbers if row[n] is None}} for row in rows]


class ForgetsRowsFromBeforeTheCapture(BrokenSnapshot):
    """Old rows that the log never saw come are not shown when they go."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        start = self.healthy._version.capture
        assert start is not None
        came: dict[str, Delta] = {}

        def edit(relation: str, rows: list[Record]) -> list[Record]:
            known = came[relation].to_dict() if relation in came else {}
            return [r for r in rows if r[COUNT] > 0 or tuple(v for n, v in r.items() if n != COUNT) in known]

        entries = []
        for entry in self.healthy.changes(Position(start.floor, start.epoch)).transactions():
            if entry.position > after:
                entries.append(edit_changes(entry, edit))
            for relation, delta in entry.deltas.items():
                came[relation] = came[relation].plus(delta) if relation in came else delta
        return entries


class RolledBackWriter(MemoryWriter):
    """Inserts are not undone, as for a capture that logs outside of the transaction."""

    def rollback(self) -> None:
        self._operations = [
            op for op in self._operations if isinstance(op, Insert) and op.relation in ("posting", "journal")
        ]
        self.commit()


class AutocommitWriter(MemoryWriter):
    """Every operation shows at once."""

    def execute(self, operation: Operation) -> None:
        super().execute(operation)
        super().commit()
        self._operations = []

    def commit(self) -> None:
        pass


class NoOpWriter(MemoryWriter):
    """Of an update that changes nothing only the old row is logged."""

    def execute(self, operation: Operation) -> None:
        match operation:
            case Update(relation, before, after) if before == after:
                super().execute(Delete(relation, before))
            case _:
                super().execute(operation)


class WrittenWrong(MemoryHarness):
    """A source whose writers show the adapter what they should not."""

    quirks = BROKEN_QUIRKS
    make: type[MemoryWriter]

    def writer(self, number: int) -> Writer:
        database: MemoryDatabase = self.database
        return self.make(database)


class ShowsRolledBackWork(WrittenWrong):
    make = RolledBackWriter


class ShowsUncommittedWork(WrittenWrong):
    make = AutocommitWriter


class ShowsNoOps(WrittenWrong):
    make = NoOpWriter


FAULTS = (
    snapshot_fault(
        SplitsTransactions,
        "entries-hold-whole-transactions",
        "transactions-stay-whole-under-concurrent-writers",
        "entries-follow-concurrent-writers",
    ),
    snapshot_fault(SplitsLargeTransactions, "large-transactions-stay-whole"),
    snapshot_fault(MergesTransactions, "exact-entries-hold-one-transaction"),
    snapshot_fault(MarksExactEntriesAsBatched, "exact-entries-hold-one-transaction"),
    snapshot_fault(
        ReordersTransactions, "transactions-come-in-commit-order", "entries-follow-concurrent-writers"
    ),
    snapshot_fault(OrdersByFirstWrite, "interleaved-transactions-stay-apart"),
    snapshot_fault(
        LosesATransaction,
        "entries-hold-whole-transactions",
        "snapshots-agree-under-concurrent-writers",
        "resume-after-any-position",
    ),
    snapshot_fault(DropsDeletes, "deletes", "updates", "key-changes"),
    snapshot_fault(DropsOldRowsOfUpdates, "updates", "key-changes", "overwritten-rows"),
    snapshot_fault(DropsOldKeysOfUpdates, "key-changes"),
    snapshot_fault(KeepsOneRowPerStatement, "inserts", "large-transactions-stay-whole"),
    snapshot_fault(LosesDuplicatesInChanges, "duplicates-are-counted", "bag-of-integer"),
    snapshot_fault(NullIsZeroInChanges, "nulls-are-kept", "deletes"),
    snapshot_fault(ForgetsRowsFromBeforeTheCapture, "rows-from-before-the-capture-are-followed"),
    harness_fault(ShowsRolledBackWork, "rolled-back-work-is-invisible", "entries-hold-whole-transactions"),
    harness_fault(ShowsUncommittedWork, "uncommitted-work-is-invisible"),
    harness_fault(ShowsNoOps, "no-op-updates", "empty-transactions-do-no-harm"),
)
