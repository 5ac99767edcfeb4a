"""The harness of the memory adapter: the shortest there is, and the one the broken adapters reuse."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from adapters.conformance import Delete, Harness, Insert, Mark, Operation, Overwrite, Update, Writer
from adapters.global_marks import MARKER
from adapters.memory import MemoryAdapter, MemoryDatabase
from adapters.spi import Adapter, SourceConfig
from algebra.schema import RelationSchema

_numbers = itertools.count()


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
            for operation in self._operations:
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

    def rollback(self) -> None:
        self._operations = []

    def close(self) -> None:
        pass


class MemoryHarness(Harness):
    """Writers are threads; nothing is lost, nothing is unsupported."""

    adapter_class: type[MemoryAdapter] = MemoryAdapter

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.database = MemoryDatabase(f"conformance {next(_numbers)}")

    def create(self, tables: Sequence[RelationSchema]) -> None:
        for table in tables:
            self.database.create(table.name, {c.name: c.type for c in table.columns}, table.key)

    def writer(self, number: int) -> Writer:
        return MemoryWriter(self.database)

    def adapter(self, relations: tuple[str, ...] | None = None) -> Adapter:
        config = SourceConfig("shop", "memory", f"memory:///{self.database.name}", relations)
        return self.adapter_class(config)

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
