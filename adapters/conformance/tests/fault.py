"""What a broken adapter is made of: the memory adapter, one deliberate fault, the cases that must see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from adapters.conformance import Quirks
from adapters.conformance.tests.memory_harness import MemoryHarness
from adapters.memory import MemoryAdapter
from adapters.memory.adapter import MemorySnapshot
from adapters.spi import COUNT, Changes, Snapshot, SourceTransaction
from algebra.delta import Delta
from algebra.local_view import Keys, LocalView
from algebra.position import Position

Record = dict[str, Any]
"""A row by column name; in changes with its `_count`."""

BROKEN_QUIRKS = Quirks(workload=25, patience=1.0)
"""Small and impatient: a fault shows soon, and a wait that never ends should not take long to see."""


class BrokenSnapshot(Snapshot):
    """The healthy snapshot behind a layer that faults override."""

    def __init__(self, healthy: MemorySnapshot, adapter: BrokenAdapter) -> None:
        self.healthy = healthy
        self.adapter = adapter

    @property
    def position(self) -> Position:
        return self.healthy.position

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        return Changes.of(self.entries(after))

    def entries(self, after: Position) -> list[SourceTransaction]:
        return list(self.healthy.changes(after).transactions())

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        return self.answer(query, keys).to_reader()

    def answer(self, query: LocalView, keys: Keys | None) -> pa.Table:
        return self.healthy.fetch(query, keys).read_all()


class BrokenAdapter(MemoryAdapter):
    """The healthy adapter with a broken snapshot."""

    broken_snapshot: ClassVar[type[BrokenSnapshot]] = BrokenSnapshot

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        with super().snapshot() as healthy:
            assert isinstance(healthy, MemorySnapshot)
            yield self.broken_snapshot(healthy, self)


@dataclass(frozen=True)
class Fault:
    """A harness whose source has one fault, and the cases that must fail for it.

    `raises`: the fault is an error where none should be; otherwise a case must see the fault by itself
    and not stumble over an exception.
    """

    name: str
    harness: type[MemoryHarness]
    cases: tuple[str, ...]
    raises: bool = False


def harness_for(name: str, adapter: type[MemoryAdapter]) -> type[MemoryHarness]:
    """A memory harness that opens this adapter."""
    return type(name, (MemoryHarness,), {"adapter_class": adapter, "quirks": BROKEN_QUIRKS})


def adapter_fault(adapter: type[MemoryAdapter], *cases: str, raises: bool = False) -> Fault:
    """A fault in the adapter itself."""
    return Fault(adapter.__name__, harness_for(adapter.__name__, adapter), cases, raises)


def snapshot_fault(snapshot: type[BrokenSnapshot], *cases: str, raises: bool = False) -> Fault:
    """A fault in what a snapshot shows."""
    adapter = type(snapshot.__name__, (BrokenAdapter,), {"broken_snapshot": snapshot})
    return Fault(snapshot.__name__, harness_for(snapshot.__name__, adapter), cases, raises)


def harness_fault(harness: type[MemoryHarness], *cases: str) -> Fault:
    """A fault that only shows below the adapter: what its source lets it see."""
    return Fault(harness.__name__, harness, cases)


def edit_rows(table: pa.Table, edit: Callable[[Record], Record | None]) -> pa.Table:
    """The table with every row edited, or dropped where `edit` gives None."""
    rows = [edited for row in table.to_pylist() if (edited := edit(dict(row))) is not None]
    return pa.Table.from_pylist(rows, table.schema)


def edit_changes(
    entry: SourceTransaction, edit: Callable[[str, list[Record]], list[Record]]
) -> SourceTransaction:
    """The entry with the counted rows of each relation edited."""
    deltas: Mapping[str, Delta] = {
        relation: Delta(pa.Table.from_pylist(edit(relation, delta.rows.to_pylist()), delta.rows.schema))
        for relation, delta in entry.deltas.items()
    }
    kept = {relation: delta for relation, delta in deltas.items() if not delta.is_empty}
    return SourceTransaction(entry.position, kept, entry.batched, entry.part_of)


__all__ = [
    "BROKEN_QUIRKS",
    "COUNT",
    "BrokenAdapter",
    "BrokenSnapshot",
    "Fault",
    "Record",
    "adapter_fault",
    "edit_changes",
    "edit_rows",
    "harness_fault",
    "snapshot_fault",
]
