"""SQLite behind the source contract: capture by triggers, exact transactions from the write-ahead log."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import ClassVar

from adapters.rate_limit import RateLimit
from adapters.relations import chosen_relations
from adapters.spi import Adapter, Boundaries, Capabilities, CaptureProfile, Snapshot, SourceConfig
from adapters.sqlite.capture import install_steps, read_state, remember_journal_mode, remove_steps
from adapters.sqlite.connection import READ_TIMEOUT_MS, Database, FileIdentity, database_path
from adapters.sqlite.options import SqliteOptions
from adapters.sqlite.schema import read_tables, row_estimate
from adapters.sqlite.session import WRITE_TIMEOUT_MS, Session
from adapters.sqlite.snapshot import SqliteSnapshot, epoch_of
from adapters.sqlite.trim import trim
from algebra.errors import ConfigurationError, SourceUnavailableError
from algebra.position import Position
from algebra.schema import Catalog

_FIRST_PAUSE, _LONGEST_PAUSE = 0.003, 0.025
_RENEW_SECONDS = 0.2
"""While waiting, the read transaction is renewed this often: a checkpoint that resets waits for it."""
_TRIM_ROWS, _TRIM_SECONDS = 1000, 1.0


class SqliteAdapter(Adapter):
    """One SQLite file as a source. See `options` for what can be configured.

    Between snapshots a read transaction on the newest state stays open (in write-ahead mode), so that no
    commit is missed. It delays the reset of the write-ahead log, not writers; see `session`.
    """

    kind = "sqlite"
    captures: ClassVar[Mapping[str, CaptureProfile]] = {
        "trigger": CaptureProfile(
            Capabilities(
                capture="trigger",
                boundaries=Boundaries.WHERE_KNOWN,
                global_transactions=True,
                bounded_runs=True,
            ),
            rights="read and write the file and its directory",
            load="triggers copy each changed row into a log table; reads do not hinder writers in WAL mode",
        )
    }

    def __init__(self, config: SourceConfig, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(config)
        self._path = database_path(config.url)
        self._options = SqliteOptions.of(config)
        self._clock = clock
        self._limit = RateLimit(self._options.footprint.rate_limit)
        self._session: Session | None = None
        self._seen: int | None = None
        self._woken = threading.Event()
        self._lock = threading.RLock()
        self._closed = self._in_snapshot = False
        self._acknowledged: Position | None = None
        self._trimmed = 0
        self._trimmed_at = self._renewed_at = clock()

    @property
    def capabilities(self) -> Capabilities:
        with self._using() as session:
            exact = session.journal_mode() == "wal" or (
                self._options.switch_to_wal and not read_state(session.writer).installed
            )
        best = self.captures["trigger"].capabilities
        return best if exact else replace(best, boundaries=Boundaries.BATCHED)

    def catalog(self) -> Catalog:
        with self._using() as session:
            tables = chosen_relations(self.config.name, read_tables(session.writer), self.config.relations)
            relations = {
                name: table.relation(row_estimate(session.writer, table)) for name, table in tables.items()
            }
        return Catalog(self.config.name, relations)

    def prepare(self, relations: Sequence[str], *, dry_run: bool = False) -> list[str]:
        with self._using() as session:
            tables = read_tables(session.writer)
            chosen_relations(self.config.name, tables, relations)
            state = read_state(session.writer)
            steps = install_steps(state, tables, relations, replace=self._options.capture_replace)
            mode = session.journal_mode()
            if self._options.switch_to_wal and mode != "wal" and (steps or state.installed):
                steps = ["PRAGMA journal_mode = WAL", *steps, remember_journal_mode(mode)]
            if not dry_run:
                self._change(session, steps)
            return steps

    def missing_rights(self, relations: Sequence[str]) -> list[str] | None:
        # The log and the shared memory of write-ahead mode are files beside the database.
        needed = (self._path, self._path.absolute().parent)
        return [f"let this user write {place}" for place in needed if not os.access(place, os.W_OK)]

    def remove(self, *, dry_run: bool = False) -> list[str]:
        with self._using() as session:
            steps = remove_steps(session.writer)
            if not dry_run:
                self._change(session, steps)
            return steps

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return self._snapshot()

    @contextmanager
    def _snapshot(self) -> Iterator[Snapshot]:
        self._limit.pause()
        with self._using() as session:
            view = session.begin()
            self._seen = view.data_version
            self._in_snapshot = True
        try:
            timeout = self._options.footprint.statement_timeout
            yield self._limit.counted(SqliteSnapshot(self.config.name, view, session.marks, timeout))
        finally:
            with self._lock:
                self._in_snapshot = False
                session.end(view)
                if self._closed:
                    self.close()

    def wait(self, timeout: float) -> None:
        """See the contract; commits are noticed within a few milliseconds, on an idle source within 25."""
        start = self._clock()
        pause = _FIRST_PAUSE
        while not (self._closed or self._changed()):
            rest = timeout - (self._clock() - start)
            if rest <= 0 or self._woken.wait(min(pause, rest)):
                break
            pause = min(pause * 1.5, _LONGEST_PAUSE)
        self._woken.clear()

    def acknowledge(self, position: Position) -> None:
        """See the contract; trimming is a write in the source, so it is done in lots and may come late."""
        known, self._acknowledged = self._acknowledged, position
        # One that goes back is of a restored history, of which nothing is trimmed yet.
        if known is None or epoch_of(known) != epoch_of(position) or position < known:
            self._trimmed = 0
        due = self._clock() - self._trimmed_at >= _TRIM_SECONDS
        if position.ordinal - self._trimmed < (1 if due else _TRIM_ROWS):
            return
        self._trimmed_at = self._clock()
        # A source that is busy is trimmed another time.
        with suppress(SourceUnavailableError), self._using() as session:
            if trim(session.writer, position, read_state(session.writer).nonce):
                self._trimmed = position.ordinal
                session.marks.forget(position.ordinal)
            session.relieve(idle=False)

    def wake(self) -> None:
        self._woken.set()

    def close(self) -> None:
        self._woken.set()
        self._limit.close()
        with self._lock:
            self._closed = True
            if self._session is not None and not self._in_snapshot:
                session, self._session = self._session, None
                session.close()

    @contextmanager
    def _using(self) -> Iterator[Session]:
        """The session on the file that the path names now, for as long as it takes: `close` waits."""
        with self._lock:
            if self._closed:
                raise ConfigurationError(f"the adapter of source {self.config.name!r} is closed")
            identity = FileIdentity.of(self._path)
            if self._session is not None and self._session.database.identity != identity:
                self._session.close()
                self._session = None
            if self._session is None:
                self._session = Session(
                    self._path,
                    replace=self._options.capture_replace,
                    wal_limit=self._options.wal_limit,
                )
                self._seen = self._acknowledged = None
            yield self._session

    def _changed(self) -> bool:
        """True if there was a commit since the last snapshot; else the source is tended while it is idle."""
        with self._using() as session:
            if session.data_version() != self._seen:
                return True
            if self._clock() - self._renewed_at >= _RENEW_SECONDS:
                self._renewed_at = self._clock()
                session.renew()
                session.relieve(idle=True)
            return False

    def _change(self, session: Session, steps: list[str]) -> None:
        """Run the steps in one transaction, except changes of the journal mode, which allow none."""
        if not steps:
            return
        before, inside, after = _by_transaction(steps)
        session.forget_schema()
        self._seen = None
        session.patience(READ_TIMEOUT_MS)
        for step in before:
            session.writer.value(step)
        with session.writer.transaction():
            for step in inside:
                session.writer.execute(step)
        session.patience(WRITE_TIMEOUT_MS)
        if after:
            self._restore_journal_mode(after)

    def _restore_journal_mode(self, steps: list[str]) -> None:
        """Leave write-ahead mode, for which nobody else may have the database open; else it stays."""
        if self._session is not None:
            self._session.close()
            self._session = None
        database = Database(self._path)
        try:
            connection = database.connect()
            for step in steps:
                connection.value(step)
        except SourceUnavailableError:
            return
        finally:
            database.close()


def _by_transaction(steps: list[str]) -> tuple[list[str], list[str], list[str]]:
    """The steps before, inside and after the transaction: pragmas at either end stay outside."""
    inside = [index for index, step in enumerate(steps) if not step.startswith("PRAGMA")]
    if not inside:
        return steps, [], []
    return steps[: inside[0]], steps[inside[0] : inside[-1] + 1], steps[inside[-1] + 1 :]
