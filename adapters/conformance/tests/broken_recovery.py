"""Faults when a source restarts, its connections break, its schema changes, or it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from adapters.conformance.tests.fault import BrokenAdapter, BrokenSnapshot, adapter_fault, snapshot_fault
from adapters.conformance.tests.memory_harness import ReadOnly, ServedDatabase
from adapters.memory import MemoryAdapter
from adapters.memory.adapter import MemorySnapshot
from adapters.memory.database import Version
from adapters.spi import Changes, SourceTransaction
from algebra.errors import ConfigurationError, SchemaChangedError, SourceUnavailableError
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import Catalog

# Restarts and connections


def served(adapter: MemoryAdapter) -> ServedDatabase:
    database = adapter.database
    assert isinstance(database, ServedDatabase)
    return database


class LosesTheStreamOnRestart(BrokenSnapshot):
    """After a restart of the source, the first entry of every run is taken for read."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        return super().entries(after)[1 if served(self.adapter).restarts else 0 :]


class TakesAnOutageForAMistake(MemoryAdapter):
    """A source that is down is reported as a wrong configuration, which nobody retries."""

    def catalog(self) -> Catalog:
        try:
            return super().catalog()
        except SourceUnavailableError as error:
            raise ConfigurationError(f"the source is not there: {error}") from error


class AnswersFromMemory(MemoryAdapter):
    """The catalog is read once and shown for ever, also while the source is down."""

    def catalog(self) -> Catalog:
        if not hasattr(self, "_known"):
            self._known = super().catalog()
        return self._known


class LosesWithTheConnection(BrokenSnapshot):
    """What came right before the connection was lost is not asked for again."""

    def entries(self, after: Position) -> list[SourceTransaction]:
        entries = super().entries(after)
        return entries[:-1] if served(self.adapter).cuts else entries


class CutSnapshot(BrokenSnapshot):
    """Notices when the connection is lost."""

    def __init__(self, healthy: MemorySnapshot, adapter: BrokenAdapter) -> None:
        super().__init__(healthy, adapter)
        self._cuts = served(adapter).cuts

    @property
    def is_cut(self) -> bool:
        return served(self.adapter).cuts > self._cuts


class AnswersNothingWhenCut(CutSnapshot):
    """An answer that breaks off is taken for a whole one."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        answer = super().answer(query, keys)
        return answer.slice(0, 0) if self.is_cut else answer


class RaisesWhatItsDriverRaises(CutSnapshot):
    """The driver's own error leaves the adapter, and nobody knows that it can be retried."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        if self.is_cut:
            raise ConnectionResetError("the connection was closed by the server")
        return super().answer(query, keys)


class SleepsOnWhenCut(MemoryAdapter):
    """News came over a connection that is gone; nobody listens any more."""

    def wait(self, timeout: float) -> None:
        if not served(self).cuts:
            super().wait(timeout)
            return
        with self.database.changed:
            self.database.changed.wait_for(lambda: self._woken, timeout)
            self._woken = False


# Drift


class GoesOnThroughDrift(BrokenSnapshot):
    """What does not fit the schema any more is left out of the changes."""

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        try:
            return super().changes(after)
        except SchemaChangedError:
            return Changes((), {})


class FillsUpWithNull(BrokenSnapshot):
    """A query that does not fit the schema any more is answered as well as can be."""

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        try:
            return super().answer(query, keys)
        except SchemaChangedError:
            return pa.table({field.name: pa.nulls(2, field.type) for field in query.arrow})


class GoesOnAfterReshaping(MemoryAdapter):
    """Prepare takes the new schema and keeps the old history, as if the rows in it were alike."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        before = self.database.version.capture
        steps = super().prepare(relations, dry_run=dry_run)

        def keep(version: Version) -> Version:
            assert version.capture is not None
            assert before is not None
            return replace(version, capture=replace(version.capture, epoch=before.epoch, floor=before.floor))

        if before and not dry_run:
            self.database.change(keep)
        return steps


# Rights


class IgnoresRefusals(MemoryAdapter):
    """What the source refuses is taken for done."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        try:
            return super().prepare(relations, dry_run=dry_run)
        except ConfigurationError:
            if not isinstance(self.database, ReadOnly):
                raise
            return []


class InstallsHalf(MemoryAdapter):
    """The first step is allowed and stays, when the second is refused."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        if isinstance(self.database, ReadOnly):
            self.database.origin.create("_half", {"a": pa.int64()})
        return super().prepare(relations, dry_run=dry_run)


class RaisesRefusalsAsTheyCome(MemoryAdapter):
    """The driver's own error leaves the adapter."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        if isinstance(self.database, ReadOnly):
            raise PermissionError("ERROR 1142: command denied")
        return super().prepare(relations, dry_run=dry_run)


class ExplainsAtLength(MemoryAdapter):
    """The refusal is passed on with all lines that the server wrote about it."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        try:
            return super().prepare(relations, dry_run=dry_run)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error}\nLINE 1: CREATE TRIGGER\n        ^") from error


DRIFTS = ("drift-add-column", "drift-drop-column", "drift-retype-column", "drift-rename-table")

FAULTS = (
    snapshot_fault(LosesTheStreamOnRestart, "a-restart-of-the-source-loses-nothing"),
    adapter_fault(TakesAnOutageForAMistake, "a-source-that-is-down-is-unavailable"),
    adapter_fault(AnswersFromMemory, "a-source-that-is-down-is-unavailable"),
    snapshot_fault(LosesWithTheConnection, "a-lost-connection-loses-nothing"),
    snapshot_fault(AnswersNothingWhenCut, "a-connection-lost-in-a-snapshot-is-said"),
    snapshot_fault(RaisesWhatItsDriverRaises, "a-connection-lost-in-a-snapshot-is-said", raises=True),
    adapter_fault(SleepsOnWhenCut, "a-lost-connection-ends-no-waiting"),
    snapshot_fault(GoesOnThroughDrift, *DRIFTS),
    snapshot_fault(FillsUpWithNull, *DRIFTS[1:]),
    adapter_fault(GoesOnAfterReshaping, *DRIFTS[:3]),
    adapter_fault(IgnoresRefusals, "a-missing-right-is-one-clear-line"),
    adapter_fault(InstallsHalf, "a-missing-right-is-one-clear-line"),
    adapter_fault(RaisesRefusalsAsTheyCome, "a-missing-right-is-one-clear-line"),
    adapter_fault(ExplainsAtLength, "a-missing-right-is-one-clear-line"),
)
