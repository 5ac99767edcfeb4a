"""The source contract: what an adapter must offer, and the one sentence it must get right.

**Changes and query answers read inside one snapshot agree exactly.** Everything a wrapper does (local
correction, ordered replies) and everything a mediator does (compensation) rests on that sentence; the
conformance kit in `adapters/conformance` tests it.

An adapter is one object per source. It is used by one thread at a time, except `close`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import numpy as np
import pyarrow as pa

from algebra.consistency import Boundaries, Level, source_bounds
from algebra.delta import Delta
from algebra.global_transaction import GlobalTransaction
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import COUNT, Catalog

TRANSACTION = "_tx"
"""In `Changes`: the index of the transaction a row belongs to."""


@dataclass(frozen=True)
class Capabilities:
    """What an adapter with its configured capture can do; the reachable consistency follows from it.

    `capture`: the capture style in use. `history`: positions can be resumed after the wrapper restarts.
    `total_order`: transactions come in commit order. `before_images`: deletes and updates carry old rows.
    `needs_write`: capture writes into the source (triggers, log tables). `global_transactions`: prepare
    makes a table (`adapters/global_marks.py`) in which a transaction says of which global one it is a part.
    `bounded_runs`: `Snapshot.changes` heeds `most_rows`, so that a backlog can be read piece by piece.
    """

    capture: str
    boundaries: Boundaries
    history: bool = True
    total_order: bool = True
    before_images: bool = True
    needs_write: bool = True
    global_transactions: bool = False
    bounded_runs: bool = False

    @property
    def level(self) -> Level:
        """The strongest consistency that a view over this source can have."""
        return min(
            bound.level
            for bound in source_bounds(
                "", self.boundaries, total_order=self.total_order, before_images=self.before_images
            )
        )


@dataclass(frozen=True)
class CaptureProfile:
    """One capture style of an adapter, as far as it is the same for every source of its kind.

    `capabilities`: at their best; a configured source may have exactly these, or weaker boundaries.
    `rights`: the least rights the source's owner has to grant. `load`: what it costs the source and its
    writers. `deletes`: how rows that were deleted or changed are known. All three are short texts for the
    table in docs/adapters.md, which is generated from them.
    """

    capabilities: Capabilities
    rights: str
    load: str
    deletes: str = "old rows are logged"


@dataclass(frozen=True)
class SourceConfig:
    """One source as configured. `relations` None means all; `options` are the adapter's own.

    The URL and the options may hold secrets: neither is in the text form.
    """

    name: str
    adapter: str
    url: str = field(repr=False)
    relations: tuple[str, ...] | None = None
    capture: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class SourceTransaction:
    """What one committed source transaction did: a delta per relation it changed."""

    position: Position
    deltas: Mapping[str, Delta]
    batched: bool = False
    part_of: GlobalTransaction | None = None


@dataclass(frozen=True)
class Changes:
    """A run of consecutive source transactions in commit order, in columnar form.

    `positions[i]` is the position after transaction i. `tables` holds, for each relation that any of them
    changed, its columns plus `_tx` (int32, the index of the transaction; ascending) and `_count` (int64,
    +1 or -1 or a sum of them; normal form is not required). `batched` holds the indexes of entries that
    may be several source transactions in one. `part_of` tells, by index, of which global transaction an
    entry is a part; such an entry is there even if it changed nothing. `more`: the snapshot may show further
    transactions after these; never without at least one here, whose position is where to go on.
    """

    positions: tuple[Position, ...]
    tables: Mapping[str, pa.Table]
    batched: frozenset[int] = frozenset()
    part_of: Mapping[int, GlobalTransaction] = field(default_factory=dict)
    more: bool = False

    def __len__(self) -> int:
        return len(self.positions)

    def transactions(self) -> Iterator[SourceTransaction]:
        """The same run, one transaction at a time; for tests and tools, not for hot paths."""
        import pyarrow.compute as pc

        for index, position in enumerate(self.positions):
            deltas = {}
            for relation, table in self.tables.items():
                rows = table.filter(pc.equal(table[TRANSACTION], index)).drop_columns([TRANSACTION])
                if rows.num_rows:
                    deltas[relation] = Delta(rows)
            yield SourceTransaction(position, deltas, index in self.batched, self.part_of.get(index))

    def part(self, first: int, end: int) -> Changes:
        """The transactions from index `first` up to, not including, `end`, as a run of their own."""
        tables: dict[str, pa.Table] = {}
        for relation, table in self.tables.items():
            numbers = table[TRANSACTION].to_numpy()
            begin, stop = np.searchsorted(numbers, [first, end])
            if begin < stop:
                own = pa.array(numbers[begin:stop] - first, pa.int32())
                place = table.column_names.index(TRANSACTION)
                tables[relation] = table.slice(begin, stop - begin).set_column(place, TRANSACTION, own)
        return Changes(
            self.positions[first:end],
            tables,
            frozenset(index - first for index in self.batched if first <= index < end),
            {index - first: mark for index, mark in self.part_of.items() if first <= index < end},
            self.more or end < len(self),
        )

    @classmethod
    def of(cls, transactions: Iterable[SourceTransaction]) -> Changes:
        """The run made of single transactions; the easy way for an adapter without columnar changes."""
        run = list(transactions)
        parts: dict[str, list[pa.Table]] = {}
        for index, transaction in enumerate(run):
            for relation, delta in transaction.deltas.items():
                tag = pa.repeat(pa.scalar(index, pa.int32()), len(delta))
                parts.setdefault(relation, []).append(delta.rows.append_column(TRANSACTION, tag))
        return cls(
            positions=tuple(t.position for t in run),
            tables={relation: pa.concat_tables(tables) for relation, tables in parts.items()},
            batched=frozenset(i for i, t in enumerate(run) if t.batched),
            part_of={i: t.part_of for i, t in enumerate(run) if t.part_of is not None},
        )

    @classmethod
    def joined(cls, runs: Sequence[Changes]) -> Changes:
        """Consecutive runs as one."""
        if len(runs) == 1:
            return runs[0]
        positions: list[Position] = []
        tables: dict[str, list[pa.Table]] = {}
        batched: set[int] = set()
        part_of: dict[int, GlobalTransaction] = {}
        for run in runs:
            first = len(positions)
            for relation, table in run.tables.items():
                numbers = pa.array(table[TRANSACTION].to_numpy() + first, pa.int32())
                place = table.column_names.index(TRANSACTION)
                tables.setdefault(relation, []).append(table.set_column(place, TRANSACTION, numbers))
            batched.update(first + index for index in run.batched)
            part_of.update({first + index: mark for index, mark in run.part_of.items()})
            positions += run.positions
        return cls(
            tuple(positions),
            {relation: pa.concat_tables(parts) for relation, parts in tables.items()},
            frozenset(batched),
            part_of,
            bool(runs) and runs[-1].more,
        )


class Snapshot(ABC):
    """One read transaction on the source: everything read through it shows the same state."""

    @property
    @abstractmethod
    def position(self) -> Position:
        """The position of the state that this snapshot shows."""

    @abstractmethod
    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        """Every committed transaction after that position that this snapshot sees, in commit order.

        Never a part of a transaction, never one that `fetch` does not show. Covers all relations that
        were prepared, and, with `Capabilities.global_transactions`, every transaction that has a mark, also
        if it changed none of them: others may wait for it. Raises PositionTrimmedError if that history is
        gone or the position is not of this source's history (for example after a restore from backup).

        With `most_rows`, only the first of them, and `Changes.more` if there may be others: whole
        transactions, as many as it takes to have about so many rows. The last one may go beyond, no other
        may. Who always has little to tell, or no way to stop early, may ignore it
        (`Capabilities.bounded_runs`).
        """

    @final
    def runs(self, after: Position, most_rows: int) -> Iterator[Changes]:
        """The transactions of `changes(after)`, in order, run by run; at least one run, maybe empty."""
        while True:
            run = self.changes(after, most_rows)
            yield run
            if not run.more:
                return
            after = run.positions[-1]

    @abstractmethod
    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        """The rows of `query`, as a bag with the columns and types of `query.arrow`, in any order.

        With `keys`, only rows that match one of the key values. Joins and keys compare by value (binary
        collation for text), NULL matches nothing. `query.predicates` may be applied where the source
        decides them exactly as written, or ignored: the caller applies them again.
        Needs no write rights. The reader is consumed before the snapshot is left.
        """


class Adapter(ABC):
    """A source behind the contract. Constructing one must not connect; every other call may.

    Errors: SourceUnavailableError when the source does not answer (the wrapper retries),
    ConfigurationError for what only a person can mend, PositionTrimmedError and SchemaChangedError when
    the stream of changes is broken, DataError for a value that does not fit its declared type.
    """

    kind: ClassVar[str]
    """The name used in `adapter:`."""

    captures: ClassVar[Mapping[str, CaptureProfile]] = {}
    """What can stand in `capture:`, the default first; readable without a source and without connecting."""

    def __init__(self, config: SourceConfig) -> None:
        self.config = config

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this adapter can do with the configured capture."""

    @abstractmethod
    def catalog(self) -> Catalog:
        """The relations this source shows (those configured, or all), with Arrow types and keys."""

    @abstractmethod
    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        """Install capture on these relations, idempotently; returns each statement or step, in order.

        With `Capabilities.global_transactions` this includes the marker table, which is no relation.
        With `dry_run` nothing is changed and the steps that would be taken are returned. Relations that
        were prepared before and are not named stay prepared.
        """

    def missing_rights(self, relations: Sequence[str]) -> list[str] | None:
        """What this user lacks to prepare these relations, each as a line for their owner; changes nothing.

        None, the default, where only trying can tell.
        """
        return None

    @abstractmethod
    def remove(self, *, dry_run: bool = False) -> list[str]:
        """Remove every trace of capture, idempotently; returns the steps as `prepare` does."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """A context manager over one read transaction. At most one is open at a time."""

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """Return when something may have changed since the last snapshot, or after `timeout` seconds."""

    @abstractmethod
    def acknowledge(self, position: Position) -> None:
        """History up to here is no longer needed and may be trimmed; idempotent, never goes back."""

    def wake(self) -> None:
        """Make a `wait` that another thread is in return soon; the default lets it time out."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all connections and files; further calls are errors."""


AdapterFactory = Callable[[SourceConfig], Adapter]

__all__ = [
    "COUNT",
    "TRANSACTION",
    "Adapter",
    "AdapterFactory",
    "Boundaries",
    "Capabilities",
    "CaptureProfile",
    "Changes",
    "Level",
    "Snapshot",
    "SourceConfig",
    "SourceTransaction",
]
