"""The DuckDB adapter: snapshots by attaching the file for a moment, changes by triggers or by difference."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import ClassVar

import duckdb
import pyarrow as pa

from adapters.duckdb.catalog import CatalogReader, SourceTables
from adapters.duckdb.diff_capture import DiffCapture
from adapters.duckdb.history import Capture, History
from adapters.duckdb.options import DIFF, TRIGGER, parse
from adapters.duckdb.session import Session
from adapters.duckdb.trigger_capture import TriggerCapture
from adapters.duckdb.watch import FileWatch, Signature
from adapters.rate_limit import RateLimit
from adapters.shadow.engine import LockedError, translated
from adapters.shadow.fetch import Fetch
from adapters.shadow.history import TrimPolicy
from adapters.spi import Adapter, Capabilities, CaptureProfile, Changes, Snapshot, SourceConfig
from algebra.errors import ConfigurationError, SourceUnavailableError
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import Catalog

BREATHER = 0.01
"""Seconds between two snapshots that are the owner's, if it wants them."""


class DuckDBSnapshot(Snapshot):
    """The file's state while it is attached; nobody can change it meanwhile."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        tables: SourceTables,
        history: History,
        timeout: float,
        check: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._tables = tables
        self._history = history
        self._timeout = timeout
        self._check = check
        self._fetches: list[Fetch] = []

    @property
    def position(self) -> Position:
        with translated(self._tables.source):
            return self._history.position

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        with translated(self._tables.source):
            changes = self._history.changes(after, most_rows)
        self._check()
        return changes

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        present = [name for name in query.relations if name in self._tables.relations]
        query.check(self._tables.catalog(present))
        fetch = Fetch(self._connection, self._tables.relations, query, keys, self._timeout, self._check)
        self._fetches.append(fetch)
        return fetch.reader()

    def close(self) -> None:
        """Let go of every answer that was not read to its end."""
        for fetch in self._fetches:
            fetch.close()


class DuckDBAdapter(Adapter):
    """A DuckDB file as a source.

    One process owns the file for writing. Every call here opens it for a moment, waits while it is held
    open by its owner (up to the option `lock_timeout`), and lets go of it again.
    """

    kind: ClassVar[str] = "duckdb"
    captures: ClassVar[Mapping[str, CaptureProfile]] = {
        TRIGGER: TriggerCapture.profile,
        DIFF: DiffCapture.profile,
    }

    def __init__(self, config: SourceConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        self._options = parse(config)
        limit = self._options.memory_limit
        self._session = Session(config.name, self._options.path, clock, memory_limit=limit)
        self._watch = FileWatch(self._options.path, clock)
        self._reader = CatalogReader(config.name, self._options.exclude)
        self._clock = clock
        self._limit = RateLimit(self._options.footprint.rate_limit)
        self._seen: Signature | None = None
        self._left_at = -BREATHER
        policy = TrimPolicy(
            clock,
            trim=self._options.trim,
            entries=self._options.trim_entries,
            seconds=self._options.trim_seconds,
        )
        capture = DiffCapture if self._options.capture == DIFF else TriggerCapture
        self._capture: Capture = capture(self._session, self._options, self._reader, policy)

    @property
    def capabilities(self) -> Capabilities:
        return self._capture.profile.capabilities

    def catalog(self) -> Catalog:
        with translated(self.config.name), self._attached() as connection:
            return self._reader.read(connection).catalog(self.config.relations)

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        configured = self.config.relations
        for name in relations:
            if configured is not None and name not in configured:
                raise ConfigurationError(
                    f"source {self.config.name!r} does not show relation {name!r}; "
                    f"it is configured for: {', '.join(configured)}"
                )
        with translated(self.config.name):
            return self._capture.prepare(relations, dry_run=dry_run)

    def missing_rights(self, relations: Sequence[str]) -> list[str] | None:
        trigger = self._options.capture == TRIGGER
        needed = self._options.path if trigger else self._options.shadow.absolute().parent
        return [] if os.access(needed, os.W_OK) else [f"let this user write {needed}"]

    def remove(self, *, dry_run: bool = False) -> list[str]:
        with translated(self.config.name):
            return self._capture.remove(dry_run=dry_run)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        # Snapshots one right after the other would never let an owner in that tries to open the file.
        self._session.pause(self._left_at + BREATHER - self._clock())
        self._limit.pause()
        # Looked at before the file is opened: a change in between wakes `wait` too often, never too seldom.
        signature = self._watch.signature()
        with ExitStack() as stack:
            # Only our own work is translated: an error of the caller's block is the caller's.
            with translated(self.config.name):
                connection = stack.enter_context(self._attached())
                tables = self._reader.read(connection)
                held = self._watch.signature()
                # Unchanged on both sides of opening it: this is what the state that we hold looks like.
                known = held if held == signature else None
                history = stack.enter_context(self._capture.history(connection, tables, known))
            self._seen = signature
            timeout = self._options.footprint.statement_timeout
            check = functools.partial(self._check_held, held)
            snapshot = DuckDBSnapshot(connection, tables, history, timeout, check)
            stack.callback(snapshot.close)
            try:
                yield self._limit.counted(snapshot)
            finally:
                self._left_at = self._clock()

    def wait(self, timeout: float) -> None:
        self._watch.wait(self._seen, timeout, self._is_free)

    def wake(self) -> None:
        self._watch.wake()

    def acknowledge(self, position: Position) -> None:
        with translated(self.config.name):
            self._capture.acknowledge(position)

    def close(self) -> None:
        self._watch.wake()
        self._limit.close()
        self._session.close()
        self._watch.close()

    def _attached(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        return self._session.attached(timeout=self._options.lock_timeout)

    def _check_held(self, held: Signature) -> None:
        """Raise if the file is not what it was: then our lock on it was lost, and what was read is mixed."""
        if self._watch.signature() != held:
            raise SourceUnavailableError(
                f"source {self.config.name!r}: {self._options.path} was changed while it was being read; "
                "does something else in this process open it?"
            )

    def _is_free(self) -> bool:
        """Whether a snapshot could be taken now, so that a writer that stays is waited for in `wait`."""
        try:
            with self._session.attached(timeout=0):
                return True
        except LockedError:
            return False
