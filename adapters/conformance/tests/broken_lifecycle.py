"""Faults around the reading: positions, trimming, waiting, the catalog, prepare and remove."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from adapters.conformance.queries import table
from adapters.conformance.tests.fault import BrokenAdapter, BrokenSnapshot, adapter_fault, snapshot_fault
from adapters.memory import MemoryAdapter
from adapters.memory.database import Capture, Version
from adapters.spi import Boundaries, Capabilities, CaptureProfile, Changes, Snapshot, SourceTransaction
from algebra.errors import ConfigurationError, PositionTrimmedError
from algebra.position import ORIGIN, Position
from algebra.schema import Catalog, Column

# Positions and resuming


class LosesOneOnResume(BrokenSnapshot):
    """The first entry after a position other than the start is skipped."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        return super().entries(after)[1 if after.ordinal else 0 :]


class RepeatsOnResume(BrokenSnapshot):
    """The entry at the position itself comes again, as if it were new."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        if after.ordinal == 0:
            return super().entries(after)
        again = self.healthy.changes(replace(after, ordinal=after.ordinal - 1)).transactions()
        return [replace(e, position=replace(e.position, ordinal=e.position.ordinal + 1)) for e in again][
            :-1
        ] + (super().entries(after)[-1:])


class StartsOver(BrokenAdapter):
    """Positions are good for one run of the adapter only."""

    class broken_snapshot(BrokenSnapshot):
        @property
        def position(self) -> Position:
            return replace(self.healthy.position, token=str(id(self.adapter)))

        def entries(self, after: Position) -> list[SourceTransaction]:
            if after.token not in ("", str(id(self.adapter))):
                raise PositionTrimmedError("the adapter was restarted")
            epoch = self.healthy.position.token
            token = str(id(self.adapter))
            healthy = self.healthy.changes(replace(after, token=epoch)).transactions()
            return [replace(e, position=replace(e.position, token=token)) for e in healthy]


class PositionGoesBack(BrokenAdapter):
    """Every third snapshot has an older position."""

    class broken_snapshot(BrokenSnapshot):
        @property
        def position(self) -> Position:
            taken = self.adapter.__dict__["taken"] = self.adapter.__dict__.get("taken", 0) + 1
            healthy = self.healthy.position
            return replace(healthy, ordinal=max(0, healthy.ordinal - 3)) if taken % 3 == 0 else healthy


class PositionCreeps(BrokenAdapter):
    """Every snapshot has a new position, whether something happened or not."""

    class broken_snapshot(BrokenSnapshot):
        @property
        def position(self) -> Position:
            taken = self.adapter.__dict__["taken"] = self.adapter.__dict__.get("taken", 0) + 1
            return replace(self.healthy.position, ordinal=self.healthy.position.ordinal + taken)


class HalfAnOrigin(BrokenSnapshot):
    """After ORIGIN come the latest entries only."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        entries = super().entries(after)
        return entries[-3:] if after == ORIGIN and after.token == "" else entries


class AcceptsTheFuture(BrokenSnapshot):
    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        return super().changes(min(after, self.healthy.position))


class IgnoresTheEpoch(BrokenSnapshot):
    """Positions of a removed capture pass for positions of this one."""

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        capture = self.healthy._version.capture
        assert capture is not None
        return super().changes(Position(max(after.ordinal, capture.floor), capture.epoch))


class NeverReportsTrimming(BrokenSnapshot):
    """What is left of the history passes for all of it."""

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        try:
            return super().changes(after)
        except PositionTrimmedError:
            capture = self.healthy._version.capture
            assert capture is not None
            return super().changes(Position(capture.floor, capture.epoch))


class TrimsTooEarly(MemoryAdapter):
    """Acknowledging a position trims one more."""

    def acknowledge(self, position: Position) -> None:
        super().acknowledge(replace(position, ordinal=position.ordinal + 1))


class TrimsWhatWasRead(BrokenAdapter):
    """Reading is taken for acknowledging."""

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        with super().snapshot() as snapshot:
            yield snapshot
            self.acknowledge(replace(snapshot.position, ordinal=max(0, snapshot.position.ordinal - 2)))


class RestartsItsLog(MemoryAdapter):
    """Acknowledging an older position again starts the log over."""

    def acknowledge(self, position: Position) -> None:
        def restart(version: Version) -> Version:
            if version.capture is None or position.ordinal >= version.capture.floor:
                return version
            return replace(version, capture=replace(version.capture, floor=version.ordinal, log=()))

        super().acknowledge(position)
        self.database.change(restart)


# Waiting


class NeverReturns(MemoryAdapter):
    """Only a wake ends the wait."""

    def wait(self, timeout: float) -> None:
        with self.database.changed:
            self.database.changed.wait_for(lambda: self._woken)
            self._woken = False


class LosesWakeUps(MemoryAdapter):
    """A commit before the wait does not count."""

    def wait(self, timeout: float) -> None:
        self._seen = self.database.version.ordinal
        super().wait(timeout)


class IgnoresWake(MemoryAdapter):
    """`wake` does nothing; commits still end a wait."""

    def wake(self) -> None:
        pass


# Catalog, prepare and remove


class HidesKeys(MemoryAdapter):
    def catalog(self) -> Catalog:
        healthy = super().catalog()
        return replace(healthy, relations={n: replace(r, key=()) for n, r in healthy.relations.items()})


class GuessesTypes(MemoryAdapter):
    """Decimals are declared as floats."""

    def catalog(self) -> Catalog:
        def guess(column: Column) -> Column:
            return replace(column, type=pa.float64()) if pa.types.is_decimal(column.type) else column

        healthy = super().catalog()
        relations = {
            name: replace(relation, columns=tuple(map(guess, relation.columns)))
            for name, relation in healthy.relations.items()
        }
        return replace(healthy, relations=relations)


class ShowsEverything(MemoryAdapter):
    """The configured relations are not looked at."""

    def catalog(self) -> Catalog:
        return Catalog(self.config.name, self.database.version.schemas)


class SkipsUnknownRelations(MemoryAdapter):
    def _refuse_unknown(self, relations: Sequence[str]) -> None:
        pass

    def catalog(self) -> Catalog:
        known = self.database.version.schemas
        shown = self.config.relations or tuple(known)
        return Catalog(self.config.name, {name: known[name] for name in shown if name in known})


class ShowsItsLog(MemoryAdapter):
    def catalog(self) -> Catalog:
        healthy = super().catalog()
        if self.database.version.capture is None:
            return healthy
        log = table("change log", {"seq": pa.int64()}, key=["seq"])
        return replace(healthy, relations={**healthy.relations, log.name: log})


class PreparesAgain(MemoryAdapter):
    """A second prepare installs a second capture in the place of the first."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        if not dry_run:
            self.remove()
        return super().prepare(relations, dry_run=dry_run)


class ReplacesPrepared(MemoryAdapter):
    """Only the relations named last are captured."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        steps = super().prepare(relations, dry_run=dry_run)

        def narrow(version: Version) -> Version:
            capture = version.capture or Capture("", 0)
            shapes = {name: version.schemas[name] for name in relations}
            return replace(version, capture=replace(capture, shapes=shapes))

        if not dry_run:
            self.database.change(narrow)
        return steps


class DryRunsForReal(MemoryAdapter):
    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        return super().prepare(relations)


class DryRemovesForReal(MemoryAdapter):
    def remove(self, *, dry_run: bool = False) -> list[str]:
        return super().remove()


class SummarizesDryRuns(MemoryAdapter):
    """A dry run says how much would be done, not what."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        steps = super().prepare(relations, dry_run=dry_run)
        return [f"step {number}" for number in range(len(steps))] if dry_run else steps


class RemovesMoreThanItSays(MemoryAdapter):
    """A dry run of remove leaves a step out."""

    def remove(self, *, dry_run: bool = False) -> list[str]:
        return super().remove(dry_run=dry_run)[1 if dry_run else 0 :]


class DeclaresNothing(MemoryAdapter):
    captures: ClassVar[Mapping[str, CaptureProfile]] = {}

    @property
    def capabilities(self) -> Capabilities:
        return MemoryAdapter.captures["log"].capabilities


class CanDoMoreThanItDeclares(MemoryAdapter):
    """The class declares batches, and its sources say that they tell transactions apart."""

    captures: ClassVar[Mapping[str, CaptureProfile]] = {
        "log": replace(
            MemoryAdapter.captures["log"],
            capabilities=replace(MemoryAdapter.captures["log"].capabilities, boundaries=Boundaries.BATCHED),
        )
    }

    @property
    def capabilities(self) -> Capabilities:
        return MemoryAdapter.captures["log"].capabilities


class NeverTrims(MemoryAdapter):
    """Acknowledged history stays for ever."""

    def acknowledge(self, position: Position) -> None:
        pass


class LeavesATrace(MemoryAdapter):
    """The log stays behind, empty."""

    def remove(self, *, dry_run: bool = False) -> list[str]:
        def empty(version: Version) -> Version:
            capture = version.capture
            return replace(version, capture=capture and replace(capture, shapes={}, log=()))

        if not dry_run:
            self.database.change(empty)
        return ["empty the log"]


class RemovesOnce(MemoryAdapter):
    """Removing what is not there is an error."""

    def remove(self, *, dry_run: bool = False) -> list[str]:
        if self.database.version.capture is None:
            raise ConfigurationError("there is nothing to remove")
        return super().remove(dry_run=dry_run)


FAULTS = (
    snapshot_fault(LosesOneOnResume, "resume-after-any-position", "entries-follow-concurrent-writers"),
    snapshot_fault(RepeatsOnResume, "resume-after-any-position"),
    adapter_fault(StartsOver, "resume-after-a-restart", raises=True),
    adapter_fault(PositionGoesBack, "positions-rise-with-commits"),
    adapter_fault(PositionCreeps, "positions-rest-when-nothing-happens"),
    snapshot_fault(HalfAnOrigin, "the-origin-is-the-whole-history-or-refused"),
    snapshot_fault(AcceptsTheFuture, "positions-from-the-future-are-refused"),
    snapshot_fault(IgnoresTheEpoch, "positions-of-a-removed-capture-are-refused"),
    snapshot_fault(NeverReportsTrimming, "trimmed-history-is-refused"),
    adapter_fault(
        TrimsTooEarly, "acknowledged-positions-can-be-resumed", "nothing-is-trimmed-unasked", raises=True
    ),
    adapter_fault(TrimsWhatWasRead, "nothing-is-trimmed-unasked", "resume-after-any-position", raises=True),
    adapter_fault(RestartsItsLog, "acknowledging-never-goes-back", raises=True),
    adapter_fault(
        NeverReturns,
        "wait-returns-after-a-commit",
        "wait-returns-for-an-earlier-commit",
        "wait-returns-when-time-is-up",
    ),
    adapter_fault(LosesWakeUps, "wait-returns-for-an-earlier-commit"),
    adapter_fault(IgnoresWake, "wake-ends-a-wait"),
    adapter_fault(HidesKeys, "the-catalog-shows-tables-as-declared"),
    adapter_fault(GuessesTypes, "the-catalog-shows-tables-as-declared"),
    adapter_fault(
        ShowsEverything, "configured-relations-are-all-that-shows", "unknown-relations-are-refused"
    ),
    adapter_fault(SkipsUnknownRelations, "unknown-relations-are-refused"),
    adapter_fault(ShowsItsLog, "capture-leaves-the-catalog-alone"),
    adapter_fault(PreparesAgain, "prepare-is-idempotent", raises=True),
    adapter_fault(ReplacesPrepared, "prepare-adds-to-what-is-prepared"),
    adapter_fault(DryRunsForReal, "dry-runs-change-nothing"),
    adapter_fault(DryRemovesForReal, "dry-runs-change-nothing"),
    adapter_fault(SummarizesDryRuns, "dry-runs-show-every-statement"),
    adapter_fault(RemovesMoreThanItSays, "dry-runs-show-every-statement"),
    adapter_fault(DeclaresNothing, "captures-are-declared"),
    adapter_fault(CanDoMoreThanItDeclares, "captures-are-declared"),
    adapter_fault(NeverTrims, "acknowledged-history-is-let-go"),
    adapter_fault(LeavesATrace, "remove-leaves-no-trace", "remove-is-idempotent"),
    adapter_fault(RemovesOnce, "remove-is-idempotent", raises=True),
)
