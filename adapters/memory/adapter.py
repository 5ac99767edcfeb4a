"""The in-memory adapter: the whole source contract over a `MemoryDatabase`, for readers and for tests.

Read it next to `adapters/spi.py`. What a real source has to work for is free here: a snapshot is a
reference to an immutable version, and the change log is a part of that version.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import duckdb
import pyarrow as pa

from adapters.global_marks import MARKER, Mark, parts
from adapters.local_join import evaluate
from adapters.memory.database import Capture, MemoryDatabase, Transaction, Version
from adapters.run_length import run_length
from adapters.spi import (
    Adapter,
    Boundaries,
    Capabilities,
    CaptureProfile,
    Changes,
    Snapshot,
    SourceConfig,
    SourceTransaction,
)
from algebra.errors import ConfigurationError, PositionTrimmedError, SchemaChangedError
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import Catalog


class MemoryAdapter(Adapter):
    """A `MemoryDatabase` as a source; `url: memory:///name`."""

    kind = "memory"
    captures: ClassVar[Mapping[str, CaptureProfile]] = {
        "log": CaptureProfile(
            Capabilities(
                capture="log",
                boundaries=Boundaries.EXACT,
                needs_write=False,
                global_transactions=True,
                bounded_runs=True,
            ),
            rights="none: it is in the process of the wrapper",
            load="each commit keeps its change until it is acknowledged",
        )
    }

    def __init__(self, config: SourceConfig) -> None:
        super().__init__(config)
        self._opened: MemoryDatabase | None = None
        self._engine: duckdb.DuckDBPyConnection | None = None
        self._seen: int | None = None
        self._woken = False

    @property
    def database(self) -> MemoryDatabase:
        """The database behind this source."""
        if self._opened is None:
            url = urlsplit(self.config.url)
            name = unquote(url.path.lstrip("/"))
            if url.scheme != "memory" or not name:
                raise ConfigurationError(
                    f"source {self.config.name!r}: the url must be memory:///name, not {self.config.url!r}"
                )
            self._opened = MemoryDatabase.named(name)
        return self._opened

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Write to the source: commits when the block ends, rolls back when it raises."""
        return self.database.transaction()

    @property
    def capabilities(self) -> Capabilities:
        return self.captures["log"].capabilities

    def catalog(self) -> Catalog:
        schemas = self.database.version.schemas
        shown = tuple(schemas) if self.config.relations is None else self.config.relations
        self._refuse_unknown(shown)
        return Catalog(self.config.name, {name: schemas[name] for name in shown})

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        self._refuse_unknown(relations)
        capture = self.database.version.capture
        drifted = capture.drifted(self.database.version.schemas) if capture else ()
        known = set(capture.relations if capture else ()) - set(drifted)
        new = tuple(name for name in dict.fromkeys((*relations, *drifted)) if name not in known)

        def install(version: Version) -> Version:
            # The epoch tells this log from any other the database had or will have. A log that holds
            # relations as they no longer are is given up.
            old = version.capture
            if old is None or drifted:
                old = Capture(secrets.token_hex(4), version.ordinal, old.shapes if old else {})
            named = [name for name in (*old.relations, *new) if name in version.schemas]
            return replace(version, capture=replace(old, shapes={n: version.schemas[n] for n in named}))

        if new and not dry_run:
            self.database.change(install)
        steps = [f"log the changes of {name}" for name in new if name in self.database.version.schemas]
        return [f"take marks of global transactions in {MARKER}", *steps] if new and not capture else steps

    def remove(self, *, dry_run: bool = False) -> list[str]:
        capture = self.database.version.capture
        if capture is None:
            return []
        if not dry_run:
            self.database.change(lambda version: replace(version, capture=None))
        forget = [f"forget the changes of {name}" for name in capture.relations]
        return [*forget, f"take no more marks in {MARKER}"]

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        version = self.database.version
        self._seen = version.ordinal
        if self._engine is None:
            self._engine = duckdb.connect()
        yield MemorySnapshot(self.config.name, version, self._engine)

    def wait(self, timeout: float) -> None:
        changed = self.database.changed
        with changed:
            changed.wait_for(lambda: self._woken or self.database.version.ordinal != self._seen, timeout)
            self._woken = False

    def wake(self) -> None:
        with self.database.changed:
            self._woken = True
            self.database.changed.notify_all()

    def acknowledge(self, position: Position) -> None:
        def trim(version: Version) -> Version:
            capture = version.capture
            # A position of a removed log says nothing about this one.
            if capture is None or position.token != capture.epoch:
                return version
            return replace(version, capture=capture.trim(min(position.ordinal, version.ordinal)))

        self.database.change(trim)

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None
        self._opened = None

    def _refuse_unknown(self, relations: Sequence[str]) -> None:
        schemas = self.database.version.schemas
        unknown = [name for name in relations if name not in schemas]
        if unknown:
            raise ConfigurationError(
                f"source {self.config.name!r} has no relation {unknown[0]!r}; "
                f"it has: {', '.join(sorted(schemas)) or 'none'}"
            )


class MemorySnapshot(Snapshot):
    """One version of the database."""

    def __init__(self, source: str, version: Version, engine: duckdb.DuckDBPyConnection) -> None:
        self._source = source
        self._version = version
        self._engine = engine

    @property
    def position(self) -> Position:
        return self._position(self._version.ordinal)

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        capture = self._version.capture
        if capture is None:
            raise ConfigurationError(f"source {self._source!r} is not prepared: its changes are not logged")
        drifted = capture.drifted(self._version.schemas)
        if drifted:
            raise SchemaChangedError(
                f"relation {self._source}.{drifted[0]} has changed and has to be prepared again"
            )
        # A position without an epoch (ORIGIN) is in every log that reaches back to it.
        foreign = after.token not in ("", capture.epoch)
        if foreign or not capture.floor <= after.ordinal <= self._version.ordinal:
            raise PositionTrimmedError(
                f"source {self._source!r} has the changes after {capture.floor} "
                f"up to {self._version.ordinal}, not those after {after}"
            )
        commits = [commit for commit in capture.log if commit.ordinal > after.ordinal]
        shown = len(commits)
        if most_rows is not None and commits:
            sizes = ((i, sum(map(len, commit.deltas.values()))) for i, commit in enumerate(commits))
            commits = commits[: run_length(sizes, shown, most_rows)]
        positions = [self._position(commit.ordinal) for commit in commits]
        marks = (Mark(i, *row) for i, commit in enumerate(commits) for row in commit.marks)
        part_of = parts(self._source, positions, marks)
        run = Changes.of(
            SourceTransaction(position, commit.deltas, part_of=part_of.get(i))
            for i, (position, commit) in enumerate(zip(positions, commits, strict=True))
        )
        return replace(run, more=len(commits) < shown)

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        query.check(Catalog(self._source, self._version.schemas))
        tables = {
            occurrence.alias: self._version.table(occurrence.relation) for occurrence in query.occurrences
        }
        return evaluate(self._engine, query, tables, keys).to_reader()

    def _position(self, ordinal: int) -> Position:
        return Position(ordinal, self._version.capture.epoch if self._version.capture else "")
