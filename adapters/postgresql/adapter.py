"""The PostgreSQL adapter: one read transaction per snapshot, changes from the log or from triggers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar

import pyarrow as pa

from adapters.postgresql.capture import ArrowLease, Capture, View
from adapters.postgresql.catalog import read_tables
from adapters.postgresql.connection import ArrowSession, Session, translated
from adapters.postgresql.fetch import Fetch
from adapters.postgresql.log_capture import LogCapture
from adapters.postgresql.options import LOG, TRIGGER, parse
from adapters.postgresql.trigger_capture import TriggerCapture
from adapters.rate_limit import RateLimit
from adapters.spi import (
    Adapter,
    Boundaries,
    Capabilities,
    CaptureProfile,
    Changes,
    Snapshot,
    SourceConfig,
)
from algebra.errors import ConfigurationError
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import Catalog


class PostgresSnapshot(Snapshot):
    """The database's state in one read transaction."""

    def __init__(self, view: View, lease: ArrowLease, limit: RateLimit) -> None:
        self._view = view
        self._lease = lease
        self._limit = limit
        self._fetches: list[Fetch] = []

    @property
    def position(self) -> Position:
        return self._view.history.position

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        self._drain()
        self._limit.spend()
        with translated(self._view.tables.source):
            return self._view.history.changes(after, most_rows)

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        tables = self._view.tables
        query.check(tables.catalog([name for name in query.relations if name in tables.relations]))
        self._drain()
        session = self._lease.join(self._view.session)
        fetch = Fetch(session, tables, query, keys, self._limit.spend)
        self._fetches.append(fetch)
        return fetch.reader()

    def close(self) -> None:
        """Let go of every answer that was not read to its end."""
        for fetch in self._fetches:
            fetch.close()

    def _drain(self) -> None:
        while self._fetches:
            self._fetches.pop().drain()


class PostgresAdapter(Adapter):
    """A PostgreSQL database as a source; see `options` for what can be configured."""

    kind: ClassVar[str] = "postgresql"
    captures: ClassVar[Mapping[str, CaptureProfile]] = {
        LOG: CaptureProfile(
            Capabilities(
                capture=LOG,
                boundaries=Boundaries.EXACT,
                needs_write=False,
                global_transactions=True,
                bounded_runs=True,
            ),
            rights="REPLICATION, and to own the tables (once, for prepare)",
            load="whole old rows in the write-ahead log; it is kept until acknowledged, up to a bound",
        ),
        TRIGGER: CaptureProfile(
            Capabilities(
                capture=TRIGGER, boundaries=Boundaries.EXACT, global_transactions=True, bounded_runs=True
            ),
            rights="SELECT and TRIGGER on the tables, CREATE on database and schema (once, for prepare)",
            load="each changed row is also written to a log table; notifying commits one after the other",
        ),
    }

    def __init__(self, config: SourceConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        self._options = parse(config)
        self._session = Session(config.name, self._options.conninfo)
        self._arrow = ArrowSession(config.name, self._options.conninfo)
        self._limit = RateLimit(self._options.footprint.rate_limit, clock=clock)
        capture = LogCapture if self._options.capture == LOG else TriggerCapture
        self._capture: Capture = capture(config.name, self._options, config.relations, clock)
        self._closed = False

    @property
    def capabilities(self) -> Capabilities:
        return self.captures[self._options.capture].capabilities

    def catalog(self) -> Catalog:
        self._check_open()
        self._limit.spend()
        with translated(self.config.name), self._session.reading():
            # All, so that a relation that does not exist is refused with what does.
            return read_tables(self._session, self._options, None).catalog(self.config.relations)

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        self._check_open()
        configured = self.config.relations
        for name in relations:
            if configured is not None and name not in configured:
                raise ConfigurationError(
                    f"source {self.config.name!r} does not show relation {name!r}; "
                    f"it is configured for: {', '.join(configured)}"
                )
        with translated(self.config.name):
            return self._capture.prepare(relations, dry_run=dry_run)

    def remove(self, *, dry_run: bool = False) -> list[str]:
        self._check_open()
        with translated(self.config.name):
            return self._capture.remove(dry_run=dry_run)

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        self._check_open()
        self._limit.pause()
        self._limit.spend()
        with ExitStack() as stack:
            lease = ArrowLease(self._arrow)
            stack.callback(lease.end)
            view = stack.enter_context(self._capture.open(lease))
            snapshot = PostgresSnapshot(view, lease, self._limit)
            stack.callback(snapshot.close)
            yield snapshot

    def wait(self, timeout: float) -> None:
        if not self._closed:
            self._capture.wait(timeout)

    def wake(self) -> None:
        self._capture.wake()

    def acknowledge(self, position: Position) -> None:
        self._check_open()
        with translated(self.config.name):
            self._capture.acknowledge(position)

    def close(self) -> None:
        self._closed = True
        self._limit.close()
        self._capture.close()
        self._session.close()
        self._arrow.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ConfigurationError(f"the adapter of source {self.config.name!r} is closed")
