"""Faults in the marks of global transactions: lost, misplaced, made up, or kept too short or too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from adapters.conformance import Mark, Writer
from adapters.conformance.tests.broken_lifecycle import LeavesATrace
from adapters.conformance.tests.fault import (
    BROKEN_QUIRKS,
    BrokenAdapter,
    BrokenSnapshot,
    adapter_fault,
    harness_fault,
    snapshot_fault,
)
from adapters.conformance.tests.memory_harness import MemoryHarness, MemoryWriter
from adapters.memory.adapter import MemoryAdapter
from adapters.memory.database import Version
from adapters.spi import SourceTransaction
from algebra.global_transaction import GlobalTransaction
from algebra.position import Position


class LosesMarks(BrokenSnapshot):
    """No entry has a mark, though the capture says that it takes them."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        return [replace(entry, part_of=None) for entry in super().entries(after)]


class LosesParticipants(BrokenSnapshot):
    """A part is shown as a whole: this source is its only participant."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        here = frozenset({self.healthy._source})
        return [
            replace(entry, part_of=entry.part_of and replace(entry.part_of, participants=here))
            for entry in super().entries(after)
        ]


class MarksTheNext(BrokenSnapshot):
    """A mark comes with the entry after its own, as where marks are read from a table that has no order."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        entries = super().entries(after)
        marks = [None, *(entry.part_of for entry in entries)]
        return [replace(entry, part_of=mark) for entry, mark in zip(entries, marks, strict=False)]


class MarksStick(BrokenSnapshot):
    """The last mark of the history holds for all that comes after it."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        capture = self.healthy._version.capture
        assert capture is not None
        last: GlobalTransaction | None = None
        entries = []
        for entry in self.healthy.changes(Position(capture.floor, capture.epoch)).transactions():
            last = entry.part_of or last
            if entry.position > after:
                entries.append(replace(entry, part_of=last))
        return entries


class SkipsPartsWithoutChanges(BrokenSnapshot):
    """Only what changes a captured relation is an entry."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        return [entry for entry in super().entries(after) if entry.deltas]


class KeepsOneMark(BrokenSnapshot):
    """Of several marks on one entry the first is taken."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        return [
            replace(entry, part_of=entry.part_of and replace(entry.part_of, together_with=frozenset()))
            for entry in super().entries(after)
        ]


class BelievesAnyMark(BrokenSnapshot):
    """A row in the marker table makes a part, whatever it says."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        capture = self.healthy._version.capture
        assert capture is not None
        rows = {commit.ordinal: commit.marks for commit in capture.log}

        def mark(entry: SourceTransaction) -> GlobalTransaction | None:
            return GlobalTransaction.joined(
                GlobalTransaction(id or "", frozenset((participants or "").split(",")))
                for id, participants in rows[entry.position.ordinal]
            )

        return [replace(entry, part_of=mark(entry)) for entry in super().entries(after)]


class MarksOnlyFromTheStart(BrokenSnapshot):
    """Read from a position in the middle, the history has no marks."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        capture = self.healthy._version.capture
        assert capture is not None
        entries = super().entries(after)
        if after.ordinal == capture.floor:
            return entries
        return [replace(entry, part_of=None) for entry in entries]


class RemembersMarksItself(BrokenAdapter):
    """Marks are kept in the adapter, not in the source: those of before it was made are lost."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        self.__dict__["prepared"] = True
        return super().prepare(relations, dry_run=dry_run)

    class broken_snapshot(BrokenSnapshot):
        def entries(self, after: Position) -> list[SourceTransaction]:
            entries = super().entries(after)
            if self.adapter.__dict__.get("prepared"):
                return entries
            return [replace(entry, part_of=None) for entry in entries]


class TrimsAllMarks(MemoryAdapter):
    """An acknowledgement clears the marker table, also of what was not acknowledged."""

    def acknowledge(self, position: Position) -> None:
        def clear(version: Version) -> Version:
            if version.capture is None:
                return version
            log = tuple(replace(commit, marks=()) for commit in version.capture.log)
            return replace(version, capture=replace(version.capture, log=log))

        super().acknowledge(position)
        self.database.change(clear)


class KeepsOldMarks(BrokenAdapter):
    """Marks of a removed capture turn up in the next one."""

    def remove(self, *, dry_run: bool = False) -> list[str]:
        with self.snapshot() as snapshot:
            capture = self.database.version.capture
            found = snapshot.changes(Position(capture.floor, capture.epoch)).part_of if capture else {}
        self.__dict__["old"] = next(iter(found.values()), None)
        return super().remove(dry_run=dry_run)

    class broken_snapshot(BrokenSnapshot):
        def entries(self, after: Position) -> list[SourceTransaction]:
            old = self.adapter.__dict__.get("old")
            return [replace(entry, part_of=entry.part_of or old) for entry in super().entries(after)]


class MarksOutliveRollback(MemoryWriter):
    """Marks are not undone, as for a capture that takes them outside of the transaction."""

    def rollback(self) -> None:
        self._operations = [operation for operation in self._operations if isinstance(operation, Mark)]
        self.commit()


class ShowsRolledBackMarks(MemoryHarness):
    quirks = BROKEN_QUIRKS

    def writer(self, number: int) -> Writer:
        return MarksOutliveRollback(self.database)


FAULTS = (
    snapshot_fault(LosesMarks, "marks-come-with-their-transactions", "marks-follow-concurrent-writers"),
    snapshot_fault(LosesParticipants, "marks-come-with-their-transactions"),
    snapshot_fault(MarksTheNext, "marks-come-with-their-transactions", "marks-follow-concurrent-writers"),
    snapshot_fault(MarksStick, "unmarked-transactions-carry-no-mark"),
    snapshot_fault(SkipsPartsWithoutChanges, "parts-without-changes-have-an-entry"),
    snapshot_fault(KeepsOneMark, "several-marks-add-up"),
    snapshot_fault(BelievesAnyMark, "marks-that-say-nothing-are-ignored"),
    snapshot_fault(MarksOnlyFromTheStart, "marks-are-the-same-after-any-position"),
    adapter_fault(RemembersMarksItself, "marks-survive-a-restart"),
    adapter_fault(TrimsAllMarks, "marks-stay-until-they-are-acknowledged"),
    adapter_fault(LeavesATrace, "removal-takes-the-marks-with-it"),
    adapter_fault(KeepsOldMarks, "removal-takes-the-marks-with-it"),
    harness_fault(ShowsRolledBackMarks, "rolled-back-marks-vanish"),
)
