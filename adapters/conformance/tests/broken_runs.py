"""Faults that show only where a backlog is read in runs."""

from __future__ import annotations

from dataclasses import replace

from adapters.conformance.tests.fault import BrokenSnapshot, snapshot_fault
from adapters.spi import Changes, SourceTransaction
from algebra.delta import Delta
from algebra.position import Position


class LosesWhereRunsMeet(BrokenSnapshot):
    """The next run begins one transaction too late."""

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        run = self.healthy.changes(after, most_rows)
        if not run.more:
            return run
        *kept, _ = run.transactions()
        following = next(self.healthy.changes(run.positions[-1], 1).transactions())
        return replace(Changes.of([*kept, following]), more=following.position < self.position)


class ForgetsBoundariesInRuns(BrokenSnapshot):
    """Whether an entry is one transaction is told only where all changes are read at once."""

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        run = self.healthy.changes(after, most_rows)
        return run if most_rows is None else replace(run, batched=frozenset(range(len(run))))


class LosesMarksInRuns(BrokenSnapshot):
    """Marks of global transactions are told only where all changes are read at once."""

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        run = self.healthy.changes(after, most_rows)
        return run if most_rows is None else replace(run, part_of={})


class CutsThroughTransactions(BrokenSnapshot):
    """A run ends with the row that makes it full."""

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        run = self.healthy.changes(after, most_rows)
        if most_rows is None or not run.positions:
            return run
        *kept, last = run.transactions()
        cut = {name: Delta(delta.rows.slice(0, most_rows)) for name, delta in last.deltas.items()}
        return replace(Changes.of([*kept, SourceTransaction(last.position, cut)]), more=run.more)


class NeverSaysWhereToGoOn(BrokenSnapshot):
    """There are more, it says after the last one, and tells none."""

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        run = self.healthy.changes(after, most_rows)
        return run if most_rows is None else replace(run, more=True)


class IgnoresTheLimit(BrokenSnapshot):
    """All changes come at once, and the capability says that they need not."""

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        return self.healthy.changes(after)


FAULTS = (
    snapshot_fault(LosesWhereRunsMeet, "runs-add-up-to-all-changes"),
    snapshot_fault(ForgetsBoundariesInRuns, "runs-add-up-to-all-changes"),
    snapshot_fault(LosesMarksInRuns, "runs-add-up-to-all-changes"),
    snapshot_fault(NeverSaysWhereToGoOn, "runs-add-up-to-all-changes"),
    snapshot_fault(CutsThroughTransactions, "a-run-never-ends-inside-a-transaction"),
    snapshot_fault(IgnoresTheLimit, "runs-are-as-small-as-asked"),
)
