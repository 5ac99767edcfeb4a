"""The harness of the memory adapter, and the one the broken adapters reuse.

A database inside the process has no server, no connections and no users. What the hooks of the kit do to it
is therefore played: so that a broken adapter can be wrong about it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from adapters.conformance import (
    AddColumn,
    CreateTable,
    Delete,
    Disturbance,
    DropColumn,
    DropTable,
    Empty,
    Fill,
    Harness,
    Insert,
    LoseCapture,
    Mark,
    Operation,
    Overwrite,
    Raise,
    RenameTable,
    RetypeColumn,
    Row,
    SchemaChange,
    Update,
    Writer,
    effective,
    keeps,
)
from adapters.global_marks import MARKER
from adapters.memory import MemoryAdapter, MemoryDatabase
from adapters.memory.database import Version
from adapters.spi import Adapter, SourceConfig
from algebra.delta import Delta
from algebra.errors import ConfigurationError, SourceUnavailableError
from algebra.schema import COUNT, RelationSchema

_numbers = itertools.count()


class ServedDatabase(MemoryDatabase):
    """A memory database that can be down, and counts how often its connections were cut."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.up = True
        self.restarts = 0
        self.cuts = 0

    @property
    def version(self) -> Version:
        if not self.up:
            raise SourceUnavailableError(f"memory database {self.name!r} is down")
        return super().version

    def change(self, step: Callable[[Version], Version]) -> None:
        if not self.up:
            raise SourceUnavailableError(f"memory database {self.name!r} is down")
        super().change(step)


class ReadOnly(MemoryDatabase):
    """Another database as a user sees it who may not change it."""

    def __init__(self, name: str, origin: MemoryDatabase) -> None:
        super().__init__(name)
        self.origin = origin

    @property
    def version(self) -> Version:
        return self.origin.version

    def change(self, step: Callable[[Version], Version]) -> None:
        raise ConfigurationError(f"this user may not log changes of {self.origin.name!r}; grant it that")


class MemoryWriter(Writer):
    """Collects a transaction's operations and commits them at once."""

    def __init__(self, database: MemoryDatabase) -> None:
        self._database = database
        self._operations: list[Operation] = []

    def begin(self) -> None:
        self._operations = []

    def execute(self, operation: Operation) -> None:
        self._operations.append(operation)

    def commit(self) -> None:
        with self._database.transaction() as tx:
            for operation in effective(self._operations):
                match operation:
                    case Insert(relation, rows):
                        tx.insert(relation, rows)
                    case Delete(relation, row):
                        tx.delete(relation, [row])
                    case Update(relation, before, after):
                        tx.update(relation, [before], [after])
                    case Overwrite(relation, old, after):
                        tx.update(relation, [old] if old else [], [after])
                    case Mark(id, participants):
                        tx.mark(id, participants)
                    case Fill(relation):
                        tx.insert(relation, operation.insert.rows)
                    case Raise(relation, by):
                        present = self._present(relation, tx.deltas.get(relation))
                        tx.update(relation, present, [(number, value + by) for number, value in present])
                    case Empty(relation):
                        tx.delete(relation, self._present(relation, tx.deltas.get(relation)))

    def _present(self, relation: str, delta: Delta | None) -> list[Row]:
        """The rows of a table without copies, as the transaction sees them."""
        contents = self._database.version.contents[relation]
        rows = (contents.plus(delta) if delta else contents).rows.drop_columns([COUNT])
        return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def rollback(self) -> None:
        self._operations = []

    def close(self) -> None:
        self._operations = []


class MemoryHarness(Harness):
    """Writers are threads; nothing is lost, nothing is unsupported."""

    rights: ClassVar[tuple[str, ...]] = ("capture",)
    adapter_class: type[MemoryAdapter] = MemoryAdapter

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.database = ServedDatabase(f"conformance {next(_numbers)}")

    def create(self, tables: Sequence[RelationSchema]) -> None:
        for table in tables:
            self.database.create(table.name, {c.name: c.type for c in table.columns}, table.key)

    def writer(self, number: int) -> Writer:
        return MemoryWriter(self.database)

    def adapter(self, relations: tuple[str, ...] | None = None) -> Adapter:
        return self._adapter(self.database, relations)

    def objects(self) -> frozenset[str]:
        version = self.database.version
        capture = [f"log of {name}" for name in version.capture.relations] if version.capture else []
        return frozenset(
            [
                *(f"table {name}" for name in version.schemas),
                *capture,
                *(["change log", f"table {MARKER}"] if version.capture else []),
            ]
        )

    @contextmanager
    def restarting(self) -> Iterator[None]:
        self.database.up = False
        yield
        self.database.restarts += 1
        self.database.up = True

    def disconnect(self) -> None:
        self.database.cuts += 1

    def alter(self, change: SchemaChange) -> None:
        version = self.database.version
        schema = version.schemas[change.relation]
        names = [column.name for column in schema.columns]
        rows = version.table(change.relation).to_pylist()
        match change:
            case DropColumn(_, dropped):
                rows = [{name: row[name] for name in names if name != dropped} for row in rows]
            case RetypeColumn(_, retyped, _):
                rows = [{**row, retyped: str(row[retyped])} for row in rows]
            case AddColumn() | RenameTable():
                pass
        self.database.alter(change.relation, change.applied(schema), rows)

    def disturb(self, disturbance: Disturbance) -> None:
        table = disturbance.table
        match disturbance:
            case LoseCapture():
                self.database.change(lambda version: replace(version, capture=None))
            case DropTable():
                self.database.drop(table.name)
            case CreateTable():
                self.create([table])
            case _:
                rows = self.database.version.table(table.name).to_pylist()
                kept = [row for row in rows if keeps(disturbance, tuple(row.values()))]
                self.database.alter(table.name, table, kept)

    def without_right(self, right: str) -> Adapter:
        self._restricted = ReadOnly(f"{self.database.name} for reading", self.database)
        return self._adapter(self._restricted, None)

    def history_size(self) -> int:
        capture = self.database.version.capture
        return len(capture.log) if capture else 0

    def _adapter(self, database: MemoryDatabase, relations: tuple[str, ...] | None) -> Adapter:
        return self.adapter_class(SourceConfig("shop", "memory", f"memory:///{database.name}", relations))
