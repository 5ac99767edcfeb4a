"""Faults about what happened to a table past capture: what is there now passes for what was there before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from adapters.conformance.tests.fault import BrokenSnapshot, adapter_fault, snapshot_fault
from adapters.memory import MemoryAdapter
from adapters.memory.database import Version
from adapters.spi import Changes, Snapshot
from algebra.position import Position


def _adopted(version: Version) -> Version:
    """Capture takes each relation of the same name and shape for the one that it knows."""
    capture = version.capture
    if capture is None:
        return version
    found = {name: version.schemas.get(name) for name in capture.shapes}
    same = {name: schema for name, schema in found.items() if schema and schema == capture.shapes[name]}
    return replace(version, capture=replace(capture, shapes={**capture.shapes, **same}))


class KnowsTablesByName(MemoryAdapter):
    """A table of the same name and shape is taken for the one of before."""

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        self.database.change(_adopted)
        with super().snapshot() as snapshot:
            yield snapshot


class MendsWithoutAWord(MemoryAdapter):
    """Says that a table is another, until prepare has mended it; the positions of before go on then."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        self.database.change(_adopted)
        return super().prepare(relations, dry_run=dry_run)


class ForgetsWhatIsGone(MemoryAdapter):
    """A table that is gone is no longer captured, and that is all."""

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        def forget(version: Version) -> Version:
            if version.capture is None:
                return version
            there = {name: shape for name, shape in version.capture.shapes.items() if name in version.schemas}
            return replace(version, capture=replace(version.capture, shapes=there))

        self.database.change(forget)
        return super().prepare(relations, dry_run=dry_run)


class GoesOnAfterALoss(BrokenSnapshot):
    """Where there is no capture nothing happened, and a new one goes on where the old one ended."""

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        capture = self.healthy._version.capture
        if capture is None:
            return Changes.of([])
        return super().changes(Position(max(after.ordinal, capture.floor), capture.epoch))


_REPLACED = [
    f"{what}-while-{when}" for what in ("truncated", "rebuilt", "made-again") for when in ("watched", "down")
]

FAULTS = (
    adapter_fault(KnowsTablesByName, *_REPLACED),
    adapter_fault(MendsWithoutAWord, *_REPLACED),
    adapter_fault(ForgetsWhatIsGone, "made-again-after-it-was-forgotten"),
    snapshot_fault(GoesOnAfterALoss, "capture-lost-while-watched", "capture-lost-while-down"),
)
