"""One opened database: read transactions that follow each other without a gap, and the commits between.

A WAL is reset, and its frames overwritten, once all of it was copied into the database file and no reader
needs it any more. To see every commit, the next read transaction is opened, and the WAL polled, before
the last one is closed: while a reader holds frames, there is no reset; and while a reader reads from the
database file alone, there is at most one, after which nothing of the new WAL can be copied. So between
two polls under an open read transaction the WAL was reset at most once, and only after everything it held
had been polled. `Commits.consecutive` checks the first half of that sentence.

The price: under constant writing a WAL that is always being read never gets a chance to be reset, and
grows. `relieve` gives it that chance: it copies what can be copied without holding anyone up, then, only
if the WAL is larger than its limit, holds writers for the moment it takes to copy the small rest.

In rollback-journal mode an open read transaction would keep writers from committing, so none is kept.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from adapters.sqlite.capture import LOG, META, CaptureState, read_state
from adapters.sqlite.commit_marks import CommitMarks
from adapters.sqlite.connection import Connection, Database
from adapters.sqlite.schema import BaseTable, read_tables, right_edge
from adapters.sqlite.wal import LogRoot, WalReader
from algebra.errors import SourceUnavailableError

WRITE_TIMEOUT_MS = 250
_IDLE_WAL_BYTES = 4 << 20
"""Below this a WAL is left to the source's own automatic checkpoints."""
_CHECKPOINT = "PRAGMA wal_checkpoint(PASSIVE)"


@dataclass(frozen=True)
class SourceState:
    """What the database declares and what is captured, as of one schema version.

    `log_root`: the root page of the change log, or 0.
    """

    version: int
    log_root: int
    tables: dict[str, BaseTable]
    capture: CaptureState
    drift: dict[str, str]


@dataclass(frozen=True)
class ReadView:
    """One open read transaction and what it sees of the change log: its last row, epoch and trimmed end.

    `data_version` was read before the transaction began: as long as it holds, nothing has changed since.
    `seen_nonce`: that of the row that was the last one of the transaction before, or None if it is gone.
    """

    connection: Connection
    data_version: int
    source: SourceState
    last: int = 0
    last_nonce: int = 0
    epoch: str = ""
    trimmed: int = 0
    trimmed_nonce: int = 0
    seen_nonce: int | None = 0

    def continues(self, row: int, nonce: int) -> bool:
        """Whether history goes on from there: `row`, which is the last seen, has that nonce, or had it."""
        if self.seen_nonce is None and row == self.trimmed:
            return nonce == self.trimmed_nonce
        return nonce == self.seen_nonce


class Session:
    """The connections to one database file. `replace`: capture is expected to see REPLACE."""

    def __init__(self, path: Path, *, replace: bool, wal_limit: int) -> None:
        self.database = Database(path)
        self._replace, self._wal_limit = replace, wal_limit
        self.writer = self.database.connect()
        self.patience(WRITE_TIMEOUT_MS)
        self._readers = [self.database.connect(), self.database.connect()]
        self._wal = WalReader(path)
        self._source: SourceState | None = None
        self._held: ReadView | None = None
        self._epoch = ""
        self._seen = (0, 0)
        """The last row that the last read transaction showed, and its nonce."""
        self._relieved = 0
        self.marks = CommitMarks()

    def patience(self, milliseconds: int) -> None:
        """How long the writer waits for others' locks."""
        self.writer.execute(f"PRAGMA busy_timeout = {milliseconds}")

    def data_version(self) -> int:
        """A number that changes with every commit of someone else."""
        return int(self.writer.value("PRAGMA data_version"))

    def journal_mode(self) -> str:
        return str(self.writer.value("PRAGMA journal_mode"))

    def begin(self) -> ReadView:
        """A read transaction on the newest state, with every commit it shows polled."""
        version = self.data_version()
        if self._held is not None and self._held.data_version == version:
            return self._held
        return self._advance(version)

    def end(self, view: ReadView) -> None:
        """Done reading; the transaction itself is kept until the next begins, where that harms nobody."""
        view.connection.finish()
        if self.journal_mode() != "wal":
            self.release()

    def release(self) -> None:
        """Close the read transaction that is kept, if any."""
        held, self._held = self._held, None
        if held is not None:
            held.connection.finish()
            held.connection.execute("ROLLBACK")

    def forget_schema(self) -> None:
        """Let go of what may have been changed through this session's own writer."""
        self.release()
        self._source = None

    def renew(self) -> None:
        """Move the read transaction that is kept to the newest state, and so out of a checkpoint's way."""
        if self._held is not None:
            self._advance(self.data_version())

    def relieve(self, *, idle: bool) -> None:
        """Let the WAL be reset if it has grown; where others are in the way, a later call may do it."""
        size = self._wal.bytes_read
        if self._held is None or size == self._relieved or size < _IDLE_WAL_BYTES:
            return
        if not idle and size < self._wal_limit:
            return
        self._relieved = size
        with suppress(SourceUnavailableError):
            self.writer.execute(_CHECKPOINT)
            if idle:
                self.renew()
                return
            with self.writer.transaction():
                # Nobody can write now: all of the WAL is copied, and the next reader does not need it.
                self.renew()
                self._readers[0].execute(_CHECKPOINT)
                self.renew()

    def close(self) -> None:
        self._held = None
        self.database.close()

    def _advance(self, version: int) -> ReadView:
        """Open the next read transaction, poll the commits it shows, and only then close the last one."""
        connection = self._readers[0]
        connection.execute("BEGIN")
        try:
            view = self._view(connection, version)
            self._poll(view)
        except BaseException:
            connection.finish()
            connection.execute("ROLLBACK")
            raise
        self.release()
        self._readers.reverse()
        self._held = view
        return view

    def _view(self, connection: Connection, data_version: int) -> ReadView:
        # BEGIN reads nothing; this first read is what pins the snapshot.
        schema_version = int(connection.value("PRAGMA schema_version"))
        source = self._source
        if source is None or source.version != schema_version:
            tables, capture = read_tables(connection), read_state(connection)
            drift = capture.drift(tables, replace=self._replace)
            root = connection.value(f"SELECT rootpage FROM sqlite_schema WHERE name = '{LOG}'")
            source = self._source = SourceState(schema_version, root or 0, tables, capture, drift)
        if not source.capture.installed:
            return ReadView(connection, data_version, source)
        nonce = source.capture.nonce
        last, last_nonce, epoch, trimmed, trimmed_nonce, seen_nonce = connection.rows(
            f"SELECT (SELECT max(seq) FROM {LOG}), (SELECT {nonce} FROM {LOG} ORDER BY seq DESC LIMIT 1), "
            f"(SELECT value FROM {META} WHERE name = 'epoch'), "
            f"(SELECT value FROM {META} WHERE name = 'trimmed'), "
            f"(SELECT value FROM {META} WHERE name = 'trimmed_nonce'), "
            f"(SELECT {nonce} FROM {LOG} WHERE seq = {self._seen[0]:d})"
        )[0]
        return ReadView(
            connection,
            data_version,
            source,
            int(last or 0),
            int(last_nonce or 0),
            str(epoch),
            int(trimmed),
            int(trimmed_nonce or 0),
            seen_nonce,
        )

    def _poll(self, view: ReadView) -> None:
        is_same = view.epoch == self._epoch
        if not is_same:
            self._epoch = view.epoch
            self._wal.rewind()
            self.marks.clear()
        commits = self._wal.poll(LogRoot(view.source.log_root, view.source.version))
        if commits.restarted and not (commits.consecutive and self._held is not None):
            self.marks.skip()
        self.marks.add(commits.last_rows)
        if is_same and not view.continues(*self._seen):
            self.marks.lose()
        self.marks.confirm(view.last)
        self._seen = (view.last, view.last_nonce)
        if view.source.capture.installed and self._wal.is_lost:
            self._wal.learn(right_edge(view.connection, LOG), view.last, view.last_nonce)
