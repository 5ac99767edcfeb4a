"""The MariaDB adapter: one read transaction per snapshot, changes from the binlog or from triggers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import ClassVar

import pyarrow as pa

from adapters.mariadb import log_capture, trigger_capture
from adapters.mariadb.catalog import CatalogReader, SourceTable, SourceTables
from adapters.mariadb.connection import Connection
from adapters.mariadb.fetch import batches, select_of
from adapters.mariadb.history import Capture, Followed, History
from adapters.mariadb.log_capture import LogCapture
from adapters.mariadb.options import LOG, TRIGGER, Options, parse
from adapters.mariadb.trigger_capture import TriggerCapture
from adapters.rate_limit import RateLimit
from adapters.spi import Adapter, Capabilities, CaptureProfile, Changes, Snapshot, SourceConfig
from algebra.errors import ConfigurationError, LockstepError, SourceUnavailableError
from algebra.local_view import Keys, LocalView
from algebra.position import Position
from algebra.schema import Catalog

_FIRST_PAUSE, _LONGEST_PAUSE = 0.003, 0.05


class MariaDBSnapshot(Snapshot):
    """What one consistent read transaction shows."""

    def __init__(
        self, connection: Connection, history: History, tables: SourceTables, options: Options
    ) -> None:
        self.connection = connection
        self._history = history
        self.tables = tables
        self._options = options
        self._reading: Iterator[pa.RecordBatch] | None = None

    @property
    def position(self) -> Position:
        self.finish()
        return self._history.position

    def changes(self, after: Position, most_rows: int | None = None) -> Changes:
        self.finish()
        return self._history.changes(after, most_rows)

    def fetch(self, query: LocalView, keys: Keys | None = None) -> pa.RecordBatchReader:
        present = [name for name in query.relations if name in self.tables.tables]
        query.check(self.tables.catalog(present))
        self.finish()
        # A load takes as long as it takes; a look-up by keys must not.
        timeout = self._options.footprint.statement_timeout if keys is not None else 0.0
        select = replace(select_of(self.tables, query, keys), timeout=timeout)
        self._reading = batches(self.connection, select)
        return pa.RecordBatchReader.from_batches(query.arrow, _cast(self._reading, query.arrow))

    def finish(self) -> None:
        """An answer that was not read to its end occupies the connection, and with it the transaction."""
        reading, self._reading = self._reading, None
        if reading is not None:
            for _ in reading:
                pass


def _cast(rows: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        yield batch.cast(schema)


def _named(tables: SourceTables, names: Sequence[str]) -> dict[str, SourceTable]:
    return {table.name: table for table in tables.select(names)}


class MariaDBAdapter(Adapter):
    """A MariaDB database as a source. See `options` for what can be configured."""

    kind: ClassVar[str] = "mariadb"
    captures: ClassVar[Mapping[str, CaptureProfile]] = {
        LOG: log_capture.PROFILE,
        TRIGGER: trigger_capture.PROFILE,
    }

    def __init__(self, config: SourceConfig, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        self._options = parse(config)
        self._clock = clock
        self._limit = RateLimit(self._options.footprint.rate_limit, clock=clock)
        server = self._options.server
        self._reader = CatalogReader(
            config.name, server.database, self._options.exclude, booleans=self._options.booleans
        )
        make = LogCapture if self._options.capture == LOG else TriggerCapture
        self._capture: Capture = make(Followed(config.name, self._options, self._reader.read, clock))
        self._connection: Connection | None = None
        self._woken = threading.Event()
        self._lock = threading.RLock()
        self._closed = self._in_snapshot = False

    @property
    def capabilities(self) -> Capabilities:
        return self.captures[self._options.capture].capabilities

    def catalog(self) -> Catalog:
        with self._using() as connection:
            return self._reader.read(connection).catalog(self.config.relations)

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        configured = self.config.relations
        for name in relations:
            if configured is not None and name not in configured:
                raise ConfigurationError(
                    f"source {self.config.name!r} does not show relation {name!r}; "
                    f"it is configured for: {', '.join(configured)}"
                )
        with self._using() as connection:
            tables = self._reader.read(connection)
            steps = self._capture.plan(connection, tables, relations)
            if steps and not dry_run:
                self._install(connection, replace(tables, tables=_named(tables, relations)), steps)
            return steps

    def _install(self, connection: Connection, tables: SourceTables, steps: Sequence[str]) -> None:
        """Take all steps or, of a first installation that is refused on the way, none."""
        first = not self._capture.is_installed(connection)
        self._capture.check_rights(connection, tables)
        try:
            self._take(connection, steps)
        except ConfigurationError:
            if first:
                with suppress(LockstepError):
                    self._take(connection, self._capture.removal(connection))
            raise

    def remove(self, *, dry_run: bool = False) -> list[str]:
        with self._using() as connection:
            steps = self._capture.removal(connection)
            if not dry_run:
                self._take(connection, steps)
            return steps

    def _take(self, connection: Connection, steps: Sequence[str]) -> None:
        self._capture.close()
        try:
            for step in steps:
                connection.execute(step)
        except BaseException:
            # Some steps make one transaction, and to begin another would commit what there is of it.
            with suppress(LockstepError):
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        self._limit.pause()
        with self._using() as connection:
            history = self._capture.begin(connection)
            self._in_snapshot = True
        snapshot = MariaDBSnapshot(connection, history, history.tables, self._options)
        try:
            yield snapshot
        except SourceUnavailableError:
            connection.close()
            raise
        finally:
            with self._lock:
                self._in_snapshot = False
                self._end(connection, snapshot)
                if self._closed:
                    self.close()

    def _end(self, connection: Connection, snapshot: MariaDBSnapshot) -> None:
        """Leave the read transaction; where that fails, the connection is given up."""
        try:
            if connection.is_open:
                snapshot.finish()
                connection.execute("ROLLBACK")
        except LockstepError:
            connection.close()

    def wait(self, timeout: float) -> None:
        """See the contract; commits are noticed within milliseconds, on an idle source within 50."""
        start = self._clock()
        pause = _FIRST_PAUSE
        while not (self._closed or self._changed()):
            rest = timeout - (self._clock() - start)
            if rest <= 0 or self._woken.wait(min(pause, rest)):
                break
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        self._woken.clear()

    def _changed(self) -> bool:
        with self._using() as connection:
            return self._capture.changed(connection)

    def acknowledge(self, position: Position) -> None:
        # What cannot be trimmed now is trimmed another time.
        with suppress(SourceUnavailableError), self._using() as connection:
            self._capture.acknowledge(connection, position)

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._woken.set()
        self._limit.close()
        with self._lock:
            self._closed = True
            if self._in_snapshot:
                return
            self._capture.close()
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @contextmanager
    def _using(self) -> Iterator[Connection]:
        """The connection, made anew if it was lost; `close` waits until it is given back."""
        with self._lock:
            if self._closed:
                raise ConfigurationError(f"the adapter of source {self.config.name!r} is closed")
            if self._connection is None or not self._connection.is_open:
                self._capture.close()
                self._connection = Connection(self.config.name, self._options, self._limit)
            try:
                yield self._connection
            except SourceUnavailableError:
                self._connection.close()
                raise
