"""Diff capture: the file is compared with a shadow beside the wrapper whenever it changed.

For tables that are written with MERGE or ON CONFLICT DO UPDATE, which DuckDB refuses where triggers look on,
and for files whose owner wants nothing written into them.

How differences are found, kept and given again is the shadow's (`adapters/shadow`). What is special here:
the file and the shadow are attached to one engine, so rows go from one to the other without leaving it; and
nobody can write the file while it is attached, so answers may come from the file itself. Whether anything can
have changed is told by the file's signature, which is kept with the state it belongs to. The comparison reads
the relations as a whole and holds the file meanwhile: that is its price.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import ClassVar

import duckdb

from adapters.duckdb.catalog import CatalogReader, SourceTables
from adapters.duckdb.history import Capture, History
from adapters.duckdb.options import DIFF, Options
from adapters.duckdb.session import Session
from adapters.duckdb.watch import Signature
from adapters.shadow.extent import SqlExtent
from adapters.shadow.history import Shape, TrimPolicy, changed
from adapters.shadow.store import OpenShadow, Shadow, SourceState
from adapters.spi import Boundaries, Capabilities, CaptureProfile, Changes
from algebra.position import Position
from algebra.schema import RelationSchema


class AttachedTables(SourceState):
    """The attached file's tables, read where they are."""

    def __init__(self, tables: SourceTables) -> None:
        self._tables = tables

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: relation.shape for name, relation in self._tables.relations.items()}

    def schema(self, relation: str) -> RelationSchema:
        (found,) = self._tables.select([relation])
        return found.shown(self._tables.source)

    def rows(self, relation: str) -> SqlExtent:
        found = self._tables.relations[relation]
        columns = ", ".join(f"{found.read(c.name, 't')} AS c{i}" for i, c in enumerate(found.columns))
        return SqlExtent(f"SELECT {columns} FROM {found.origin('t')}")


class DiffCapture(Capture):
    """Keeps the shadow file and finds what changed by comparison."""

    profile: ClassVar[CaptureProfile] = CaptureProfile(
        Capabilities(capture=DIFF, boundaries=Boundaries.BATCHED, needs_write=False),
        rights="read the file; write beside it",
        load="each cycle reads the captured tables whole, and holds the file while it does",
        deletes="found by comparing with a shadow",
    )

    def __init__(
        self, session: Session, options: Options, catalog: CatalogReader, policy: TrimPolicy
    ) -> None:
        self._session = session
        self._options = options
        self._catalog = catalog
        self._shadow = Shadow(
            session, options.shadow, os.path.abspath(options.path), policy, lock_timeout=options.lock_timeout
        )

    def prepare(self, relations: Sequence[str], *, dry_run: bool) -> list[str]:
        with self._session.attached(timeout=self._options.lock_timeout) as connection:
            tables = AttachedTables(self._catalog.read(connection))
            return self._shadow.prepare(tables, relations, dry_run=dry_run)

    def remove(self, *, dry_run: bool) -> list[str]:
        return self._shadow.remove(dry_run=dry_run)

    @contextmanager
    def history(
        self, connection: duckdb.DuckDBPyConnection, tables: SourceTables, signature: Signature | None
    ) -> Iterator[History]:
        state = AttachedTables(tables)
        if self._shadow.lost:
            self._shadow.prepare(state, self._shadow.lost)
        with self._shadow.opened() as held:
            drifted = held.drifted(state)
            # Not known for certain: then the next snapshot compares again.
            note = "" if signature is None else str(signature)
            if not drifted and any(not note or kept.note != note for kept in held.relations.values()):
                with held.cycle() as cycle:
                    for name in held.relations:
                        cycle.replace(name, state.rows(name), note=note)
            yield DiffHistory(held, drifted)

    def acknowledge(self, position: Position) -> None:
        self._shadow.acknowledge(position)


class DiffHistory(History):
    """The differences found so far, as kept in the attached shadow."""

    def __init__(self, held: OpenShadow, drifted: Mapping[str, str]) -> None:
        self._held = held
        self._drifted = drifted

    @property
    def position(self) -> Position:
        return self._held.position

    def changes(self, after: Position, most_rows: int | None) -> Changes:
        for relation, problem in self._drifted.items():
            raise changed(self._held.source, relation, problem)
        return self._held.changes(after)
