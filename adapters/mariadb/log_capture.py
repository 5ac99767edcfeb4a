"""Log capture: the row binlog, read up to exactly the place that a snapshot shows.

Problem: to know which place of the binlog a read transaction shows, without stopping writers. Wrong ways:
*the place before or after opening it*, for commits come in between; *FLUSH TABLES WITH READ LOCK*, for it
stops writers, and waits for their long statements. Chosen way: MariaDB opens a transaction WITH CONSISTENT
SNAPSHOT under the lock by which commits are ordered in the engine and in the binlog alike, and keeps the
place of that moment in the session's status variables `binlog_snapshot_file` and `binlog_snapshot_position`.

An ordinal is the number of the file and the offset in it. The token is the epoch of the capture, and the
identity of that file: the id of the server, and the second in which the file was made, from its first event.
So a server whose binlog was reset, or which was built anew from a backup, is noticed.

Events tell their places by 32 bits. A very large transaction makes its file longer than that: its end would
be taken for a place far before. So such a file is refused.

What the binlog does not tell: sessions with `sql_log_bin = 0`, cascades of foreign keys (refused), and
transactions of two phases (XA): their rows come with the first phase, so a commit in the second cannot be
followed. What it tells only as text, such as TRUNCATE, ends in an error, never in a wrong row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from pymysqlreplication.event import ExecuteLoadQueryEvent, QueryEvent, XAPrepareEvent, XidEvent
from pymysqlreplication.row_event import DeleteRowsEvent, TableMapEvent, UpdateRowsEvent, WriteRowsEvent

from adapters.global_marks import MARKER, Mark, parts
from adapters.mariadb import binlog
from adapters.mariadb.binlog import Event, Files, Place, Stream
from adapters.mariadb.catalog import SourceTable, SourceTables
from adapters.mariadb.connection import Connection
from adapters.mariadb.history import (
    CREATE_META,
    CREATE_RELATIONS,
    MAY_DROP,
    SNAPSHOT,
    Capture,
    Followed,
    History,
    Installed,
    Prepared,
    change_schema,
    changed,
    check_position,
    drift,
    is_replica,
    listing,
    read_installed,
    relation_row,
    removal,
    set_epoch,
    set_fact,
)
from adapters.mariadb.images import Images, check_decodable, field_of
from adapters.mariadb.options import LOG
from adapters.mariadb.statements import Effect, effect
from adapters.spi import COUNT, TRANSACTION, Boundaries, Capabilities, CaptureProfile, Changes
from algebra.errors import (
    ConfigurationError,
    DataError,
    LockstepError,
    PositionTrimmedError,
    ResyncRequiredError,
    SchemaChangedError,
)
from algebra.position import Position

CREATE_MARKER = (
    f"CREATE TABLE IF NOT EXISTS {MARKER} (id TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, "
    "participants TEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin, "
    "number BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY INVISIBLE) ENGINE = InnoDB"
)
_NEWEST = "SELECT @@global.gtid_binlog_pos"
_SETTINGS = (
    ("log_bin", ("1",), "log_bin (start the server with --log-bin)"),
    ("binlog_format", ("ROW",), "binlog_format = ROW"),
    ("binlog_row_image", ("FULL", "FULL_NODUP"), "binlog_row_image = FULL"),
    ("log_bin_compress", ("0",), "log_bin_compress = OFF"),
)
_SIGNS: dict[type[Any], tuple[int, ...]] = {
    WriteRowsEvent: (1,),
    DeleteRowsEvent: (-1,),
    UpdateRowsEvent: (-1, 1),
}


PROFILE = CaptureProfile(
    Capabilities(capture=LOG, boundaries=Boundaries.EXACT, global_transactions=True, bounded_runs=True),
    rights="SELECT; REPLICATION SLAVE, BINLOG MONITOR; CREATE, DROP, INSERT, DELETE to prepare and remove",
    load="writers pay nothing; the binlog of the whole server is sent to the wrapper",
    deletes="old rows are in the binlog",
)


class LogCapture(Capture):
    """Follows the binlog. In the database there is only what it has to remember, and the marker table."""

    def __init__(self, followed: Followed) -> None:
        super().__init__(followed)
        self._stream: Stream | None = None
        self._identity = ("", "")
        self._newest = Place(0, 0)
        self._seen: object = None
        self._checked: Connection | None = None
        self._logs_replicated = False
        self._cleaned_at = followed.clock()

    def plan(self, connection: Connection, tables: SourceTables, names: Sequence[str]) -> list[str]:
        wanted = tables.select(names)
        for table in wanted:
            table.capturable(self._source)
            for column in table.columns:
                check_decodable(self._source, table.name, column)
        check_settings(connection, self._source)
        self.require_sight(connection, follows=False)
        installed = read_installed(connection, self._database)
        if installed.epoch:
            installed.require(self._source, LOG)
        steps = []
        if not installed.epoch:
            steps += [MAY_DROP, CREATE_META, CREATE_RELATIONS, CREATE_MARKER]
            if installed.relations:
                steps.append("DELETE FROM _lockstep_relations")
                installed = Installed(installed.own)
            steps += [set_fact("capture", LOG), set_epoch()]
        elif MARKER not in installed.own:
            steps.append(CREATE_MARKER)
        lost = {p.name: p for p in installed.relations if drift(p, tables.tables.get(p.name))}
        known = {p.name for p in installed.relations if p.name not in lost}
        again = [tables.tables[name] for name in sorted(lost) if name in tables.tables]
        fresh = [
            table for table in {t.name: t for t in [*wanted, *again]}.values() if table.name not in known
        ]
        rows = []
        if fresh:
            since = _place(connection).ordinal
            for number, table in enumerate(fresh, installed.next_number()):
                table.capturable(self._source)
                rows.append(relation_row(number, table, since, reshaped=table.name in lost, identity=""))
        return [*steps, *listing(lost.values(), rows)]

    def check_rights(self, connection: Connection, tables: SourceTables) -> None:
        super().check_rights(connection, tables)
        shown = dict(connection.rows("SHOW STATUS LIKE 'binlog_snapshot_%'"))
        files, number = Files.like(shown["Binlog_snapshot_file"])
        self.forget()
        self.identity(files, number)

    def removal(self, connection: Connection) -> list[str]:
        return removal(read_installed(connection, self._database))

    def blind(self, connection: Connection) -> str | None:
        """See the contract. What a server writes into its binlog is fixed until it is started anew."""
        if self._checked is not connection:
            status = connection.rows("SHOW MASTER STATUS")
            if not status:
                return "the server writes no binlog; start it with --log-bin"
            _, _, only, ignored = status[0][:4]
            if (only and self._database not in only.split(",")) or self._database in str(ignored).split(","):
                return (
                    f"database {self._database!r} is kept out of the binlog by binlog_do_db or "
                    "binlog_ignore_db"
                )
            self._logs_replicated = bool(connection.value("SELECT @@global.log_slave_updates"))
            self._checked = connection
        if not self._logs_replicated and is_replica(connection):
            return (
                "the server is a replica, whose binlog does not hold what it replicates; "
                "set log_slave_updates = ON"
            )
        return None

    def begin(self, connection: Connection) -> History:
        self.require_sight(connection, follows=True)
        # Asked before: what commits in between wakes `wait` too often, never too seldom.
        self._seen = connection.value(_NEWEST)
        connection.execute(SNAPSHOT)
        shown = dict(connection.rows("SHOW STATUS LIKE 'binlog_snapshot_%'"))
        file = shown.get("Binlog_snapshot_file", "")
        tables = self._read_tables(connection)
        installed = read_installed(connection, self._database)
        files, number = Files.like(file) if file else (Files(""), 0)
        place = Place(number, int(shown.get("Binlog_snapshot_position") or 0))
        if place < self._newest:
            self.forget()  # it was reset
        self._newest = place
        return LogHistory(self, connection, self._source, installed, tables, files, place)

    def changed(self, connection: Connection) -> bool:
        return bool(connection.value(_NEWEST) != self._seen)

    def acknowledge(self, connection: Connection, position: Position) -> None:
        """The binlog is the server's own; only marks that were read are cleared from their table."""
        now = self._clock()
        if now - self._cleaned_at < self._options.trim_seconds:
            return
        self._cleaned_at = now
        # Marks that are left do no harm: the right may be missing, or capture gone.
        with suppress(ConfigurationError, SchemaChangedError):
            self._clear_marks(connection)

    def _clear_marks(self, connection: Connection) -> None:
        numbers = connection.rows(f"SELECT number FROM {MARKER} LIMIT {self._options.trim_rows}")
        if numbers:
            # By key, and only what has committed: nobody who is writing a mark is waited for.
            listed = ", ".join(str(number) for (number,) in numbers)
            connection.execute(f"DELETE FROM {MARKER} WHERE number IN ({listed})")

    def close(self) -> None:
        self._seen = None
        self._drop_stream()

    def _drop_stream(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def stream(self, files: Files, start: Place, tables: Iterable[str]) -> Stream:
        """The open stream if it stands at that place, else a new one."""
        wanted = frozenset(tables)
        current = self._stream
        if current is None or current.place != start or current.tables != wanted or not current.is_open:
            self._drop_stream()
            self._stream = current = Stream(self._source, self._options, files, start, wanted)
        return current

    def identity(self, files: Files, number: int) -> str:
        """What tells the binlog file of that number from any other of its name; kept of the last one."""
        name = files.name(number)
        if name != self._identity[0]:
            stream = Stream(self._source, self._options, files, Place(number, 4), ())
            try:
                self._identity = (name, stream.identify())
            finally:
                stream.close()
        return self._identity[1]

    def forget(self) -> None:
        """What is known of the server's files may be wrong."""
        self._identity = ("", "")
        self._drop_stream()


def check_settings(connection: Connection, source: str) -> None:
    """ConfigurationError, with what to set, unless the binlog holds changes as rows."""
    names = ", ".join(f"@@global.{name}" for name, _, _ in _SETTINGS)
    for (_, allowed, remedy), value in zip(_SETTINGS, connection.row(f"SELECT {names}"), strict=True):
        if str(value) not in allowed:
            raise ConfigurationError(f"source {source!r}: capture `log` needs the server setting {remedy}")


def _place(connection: Connection) -> Place:
    shown = dict(connection.rows("SHOW STATUS LIKE 'binlog_snapshot_%'"))
    return Place(Files.like(shown["Binlog_snapshot_file"])[1], int(shown["Binlog_snapshot_position"]))


class LogHistory(History):
    """The binlog up to one snapshot."""

    def __init__(
        self,
        capture: LogCapture,
        connection: Connection,
        source: str,
        installed: Installed,
        tables: SourceTables,
        files: Files,
        place: Place,
    ) -> None:
        self._capture = capture
        self._connection = connection
        self._source = source
        self._installed = installed
        self.tables = tables
        self._files = files
        self._place = place

    @property
    def position(self) -> Position:
        self._installed.require(self._source, LOG)
        return self._position(self._place, self._capture.identity(self._files, self._place.number))

    def changes(self, after: Position, most_rows: int | None) -> Changes:
        self._installed.require(self._source, LOG)
        try:
            for prepared in self._installed.relations:
                problem = drift(prepared, self.tables.tables.get(prepared.name))
                if problem:
                    raise changed(self._source, prepared.name, problem)
            check_position(self._source, self._installed, after, self._place.ordinal, 0, None)
            start = Place.of(after.ordinal)
            self._check_lengths(start)
            names = [relation.name for relation in self._installed.relations]
            stream = self._capture.stream(self._files, start, [*names, MARKER])
            self._check_identity(stream, after)
            if start == self._place:
                return Changes((), {})
            reading = _Reading(self._source, self.tables, self._installed.relations, self._durable)
            for event in stream.until(self._place):
                reading.take(event)
                if most_rows is not None and reading.is_full(most_rows):
                    break
            return reading.changes(self._position, more=stream.place < self._place)
        except LockstepError:
            self._capture.forget()
            raise

    def _check_identity(self, stream: Stream, after: Position) -> None:
        # An open stream goes on in the file that it has checked before.
        known = after.token.partition(":")[2]
        if stream.identify() != known:
            raise PositionTrimmedError(
                f"source {self._source!r}: position {after} is not of this binlog (it was reset, or the "
                "server was built anew)"
            )

    def _check_lengths(self, start: Place) -> None:
        """Raise ResyncRequiredError if a file is longer than its events can tell: they begin again from 0."""
        lengths = {self._place.number: self._place.offset}
        if start.number < self._place.number:
            for name, length, *_ in self._connection.rows("SHOW BINARY LOGS"):
                lengths.setdefault(Files.like(name)[1], length)
        for number, length in lengths.items():
            if start.number <= number <= self._place.number and length > binlog.MOST_OFFSET:
                raise ResyncRequiredError(
                    f"source {self._source!r}: its binlog file {self._files.name(number)} is longer than "
                    "4 GiB by a very large transaction; beyond that, no place in it can be told"
                )

    def _durable(self) -> bool:
        flushed, synced = self._connection.row(
            "SELECT @@global.innodb_flush_log_at_trx_commit, @@global.sync_binlog"
        )
        return int(flushed) in (1, 3) and int(synced) == 1

    def _position(self, place: Place, identity: str) -> Position:
        return Position(place.ordinal, f"{self._installed.epoch}:{identity}")


class _Reading:
    """Turns events into entries."""

    def __init__(
        self,
        source: str,
        tables: SourceTables,
        relations: Sequence[Prepared],
        is_durable: Callable[[], bool],
    ) -> None:
        self._source = source
        self._tables = tables
        self._relations = {relation.name: relation for relation in relations}
        self._is_durable = is_durable
        self._images: dict[str, Images] = {}
        self._maps: dict[int, TableMapEvent] = {}
        self._ends: list[tuple[Place, str]] = []
        self._touched = False

    def take(self, found: Event) -> None:
        """One event, in order."""
        event = found.event
        if found.after_crash and not self._is_durable():
            raise ResyncRequiredError(
                f"source {self._source!r}: the server crashed, and its settings let it lose transactions "
                "that its binlog tells of; set innodb_flush_log_at_trx_commit = 1 and sync_binlog = 1"
            )
        match event:
            case TableMapEvent():
                self._maps[event.table_id] = event
            case WriteRowsEvent() | DeleteRowsEvent() | UpdateRowsEvent():
                self._rows(event, found.end)
            case XidEvent():
                self._commit(found)
            case XAPrepareEvent():
                # A single-phase one (`XA COMMIT … ONE PHASE`) is logged like any other transaction.
                if self._touched:
                    raise self._two_phases()
            case QueryEvent() | ExecuteLoadQueryEvent():
                self._statement(event, found)

    def is_full(self, most_rows: int) -> bool:
        """Whether this is a place to stop: between transactions, with so many rows taken."""
        rows = sum(len(images.transactions) for images in self._images.values())
        return bool(self._ends) and not self._touched and rows >= most_rows

    def changes(self, position: Callable[[Place, str], Position], *, more: bool) -> Changes:
        """All entries taken; `more` if it was not read to the snapshot's place."""
        places = tuple(position(place, identity) for place, identity in self._ends)
        tables = {name: self._table(name) for name in self._images if name != MARKER}
        part_of = parts(self._source, places, self._marks()) if MARKER in self._images else {}
        return Changes(places, tables, part_of=part_of, more=more)

    def _rows(self, event: Any, end: Place) -> None:
        name = event.table
        if name != MARKER and end.ordinal <= self._relations[name].since:
            return
        if name == MARKER and not isinstance(event, WriteRowsEvent):
            return
        images = self._images.get(name)
        if images is None:
            images = self._images[name] = Images(self._fields(name, event))
        elif len(images.fields) != event.number_of_columns:
            raise changed(self._source, name, "has another number of columns")
        every = (1 << event.number_of_columns) - 1
        bitmaps = [event.columns_present_bitmap, getattr(event, "columns_present_bitmap2", None)]
        if any(b is not None and int.from_bytes(b, "little") & every != every for b in bitmaps):
            raise ResyncRequiredError(
                f"relation {self._source}.{name} was changed by a session that logs incomplete rows "
                "(binlog_row_image is not FULL)"
            )
        body = event.packet.read(event.event_size - event.packet.read_bytes)
        images.add(body, len(self._ends), _SIGNS[type(event)])
        self._touched = True

    def _fields(self, name: str, event: Any) -> tuple[Any, ...]:
        columns = self._maps[event.table_id].columns
        fields = tuple(field_of(column) for column in columns)
        if name != MARKER:
            table = self._tables.tables[name]
            if len(fields) != len(table.all_columns):
                raise changed(self._source, name, "has another number of columns")
            self._check_names(table, columns)
        if any(field is None for field in fields):
            place = fields.index(None)
            raise ConfigurationError(
                f"relation {self._source}.{name}: column {place + 1} is stored in a format that cannot be "
                "read from the binlog; use capture: trigger"
            )
        return fields

    def _check_names(self, table: SourceTable, columns: Sequence[Any]) -> None:
        """With binlog_row_metadata = FULL, the binlog tells the names of the columns as they were."""
        for column, shown in zip(columns, table.all_columns, strict=True):
            if column.name and column.name != shown.name:
                raise changed(self._source, table.name, f"had a column {column.name!r}")

    def _commit(self, found: Event) -> None:
        self._maps.clear()
        if self._touched:
            self._ends.append((found.end, found.identity))
        self._touched = False

    def _statement(self, event: Any, found: Event) -> None:
        schema, text = (event.schema, event.query) if isinstance(event, QueryEvent) else _loaded(event)
        text = _text(text)
        what, name = effect(text, _text(schema), self._tables.database, self._relations)
        match what:
            case Effect.COMMIT:
                self._commit(found)
            case Effect.ROLLBACK:
                if self._touched:
                    raise ResyncRequiredError(
                        f"source {self._source!r}: a transaction over several engines was rolled back in part"
                    )
            case Effect.XA:
                if not text.upper().lstrip().startswith(("XA END", "XA START", "XA ROLLBACK")):
                    raise self._two_phases()
            case Effect.EMPTIED | Effect.UNSEEN_ROWS:
                if found.end.ordinal > self._relations[name].since:
                    raise ResyncRequiredError(f"relation {self._source}.{name} {what.value}; read it again")
            case Effect.SHAPE:
                if found.end.ordinal > self._relations[name].since:
                    raise SchemaChangedError(f"relation {self._source}.{name} {what.value}; read it again")

    def _two_phases(self) -> ResyncRequiredError:
        return ResyncRequiredError(
            f"source {self._source!r}: a transaction of two phases (XA) cannot be followed in the binlog; "
            "use capture: trigger"
        )

    def _table(self, name: str) -> pa.Table:
        images, table = self._images[name], self._tables.tables[name]
        arrays = []
        for column in table.columns:
            try:
                arrays.append(images.column(column.place, column))
            except (pa.ArrowInvalid, UnicodeDecodeError) as error:
                where = f"{self._source}.{name}.{column.name}"
                told = f"{where} has a value that is no {column.shown.arrow}"
                raise DataError(f"{where}: {error}; its type is {column.shown.arrow}", told=told) from error
        arrays += [pa.array(images.transactions, pa.int32()), pa.array(images.signs, pa.int64())]
        names = [*(column.name for column in table.columns), TRANSACTION, COUNT]
        return pa.table(arrays, names=names).cast(change_schema(table.shown(self._source)))

    def _marks(self) -> list[Mark]:
        images = self._images[MARKER]
        ids, participants = (
            [
                None if length < 0 else bytes(images.data[begin : begin + length]).decode(errors="replace")
                for begin, length in zip(images.begins[i], images.lengths[i], strict=True)
            ]
            for i in range(2)
        )
        return [Mark(*row) for row in zip(images.transactions, ids, participants, strict=True)]


def _loaded(event: ExecuteLoadQueryEvent) -> tuple[bytes, bytes]:
    """The schema and the text of a LOAD DATA that is logged as text, which the library leaves unread."""
    packet: Any = event.packet
    packet.advance(event.status_vars_length)
    schema = packet.read(event.schema_length)
    packet.advance(1)
    return schema, packet.read(event.event_size - packet.read_bytes)


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
