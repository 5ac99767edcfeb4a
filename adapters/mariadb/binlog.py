"""The binlog between two places, as transactions.

The library `mysql-replication` speaks the protocol and reads events; here they become transactions. One is a
GTID event, then row events, then the event that commits it. Statements that stand alone (DDL) have a GTID
event of their own and no commit.

Not wanted of the library: it connects again by itself and goes on in the middle of a transaction, where it
may take one table for another. So it gets its two connections once, and a lost one is an error.

The stream stays open between two reads: whoever follows the source reads on where it stopped, and asks for
no more than what a snapshot shows, which the server has sent already.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import pymysql
from pymysqlreplication import BinLogStreamReader
from pymysqlreplication.event import (
    ExecuteLoadQueryEvent,
    FormatDescriptionEvent,
    MariadbBinLogCheckPointEvent,
    MariadbGtidEvent,
    MariadbGtidListEvent,
    NotImplementedEvent,
    QueryEvent,
    RotateEvent,
    StopEvent,
    XAPrepareEvent,
    XidEvent,
)
from pymysqlreplication.row_event import DeleteRowsEvent, TableMapEvent, UpdateRowsEvent, WriteRowsEvent

from adapters.mariadb.connection import connect_arguments, failure, opened, translated
from adapters.mariadb.options import Options
from algebra.errors import PositionTrimmedError, ResyncRequiredError, SourceUnavailableError

# Its advice on settings is for those who let it decode rows.
logging.getLogger("pymysqlreplication").setLevel(logging.ERROR)

OFFSET_BITS = 40
MOST_OFFSET = (1 << 32) - 1
"""How far events and the protocol can tell an offset; a file goes on until its last transaction ends."""
_EVENTS = [
    ExecuteLoadQueryEvent, FormatDescriptionEvent, MariadbBinLogCheckPointEvent, MariadbGtidEvent,
    MariadbGtidListEvent, NotImplementedEvent, QueryEvent, RotateEvent, StopEvent, XAPrepareEvent, XidEvent,
    DeleteRowsEvent, TableMapEvent, UpdateRowsEvent, WriteRowsEvent,
]  # fmt: skip
SILENCE_SECONDS = 60.0
"""The stream is never read beyond what the server has: it has to say something."""
_GONE = 1236
_TOO_LARGE = "max_allowed_packet"
_INCIDENT = 26
_COMPRESSED = range(165, 172)


@dataclass(frozen=True, order=True)
class Place:
    """A place in the binlog: the number of a file and an offset in it."""

    number: int
    offset: int

    @property
    def ordinal(self) -> int:
        return self.number << OFFSET_BITS | self.offset

    @classmethod
    def of(cls, ordinal: int) -> Place:
        return cls(ordinal >> OFFSET_BITS, ordinal & ((1 << OFFSET_BITS) - 1))


@dataclass(frozen=True)
class Files:
    """How this server calls its binlog files."""

    base: str

    @classmethod
    def like(cls, file: str) -> tuple[Files, int]:
        base, _, number = file.rpartition(".")
        return cls(base), int(number)

    def name(self, number: int) -> str:
        return f"{self.base}.{number:06d}"


@dataclass(frozen=True)
class Event:
    """An event of the library, where it ends, in which file, and whether that begins after a crash."""

    event: Any
    end: Place
    identity: str
    after_crash: bool = False


class Stream:
    """The binlog from one place on, for the tables of one database."""

    def __init__(
        self, source: str, options: Options, files: Files, start: Place, tables: Collection[str]
    ) -> None:
        self.source = source
        self.place = start
        self.tables = frozenset(tables)
        self.identity = ""
        self._closed = self._closed_file = False
        self._left = 2
        self._open: list[Any] = []
        arguments = connect_arguments(options)
        arguments["read_timeout"] = SILENCE_SECONDS
        self._reader = BinLogStreamReader(
            connection_settings=arguments,
            # A server drops the older of two readers that have one id.
            server_id=secrets.randbelow(1 << 31) + (1 << 31),
            blocking=True,
            resume_stream=True,
            log_file=files.name(start.number),
            log_pos=start.offset,
            only_events=_EVENTS,
            only_schemas=[options.server.database],
            only_tables=sorted(tables),
            filter_non_implemented_events=False,
            enable_logging=False,
            pymysql_wrapper=self._connect,
        )

    def _connect(self, **arguments: Any) -> Any:
        if not self._left:
            raise SourceUnavailableError(f"source {self.source!r}: the connection to its binlog was lost")
        self._left -= 1
        self._open.append(opened(arguments))
        return self._open[-1]

    @property
    def is_open(self) -> bool:
        return not self._closed

    def identify(self) -> str:
        """What tells the file at the start from any other of that name."""
        while not self.identity:
            self._next()
        return self.identity

    def until(self, end: Place) -> Iterator[Event]:
        """The events up to a place, which the server must have reached already."""
        while self.place < end:
            found = self._next()
            if found is not None:
                yield found

    def _next(self) -> Event | None:
        event = self._fetch()
        if event is None:
            raise SourceUnavailableError(f"source {self.source!r}: the server ended the stream of its binlog")
        match event:
            case RotateEvent():
                number = Files.like(event.next_binlog)[1]
                if number > self.place.number:
                    # A server that has started anew gives the numbers of its tables to others. The library
                    # forgets them only where the old file ends by a rotation; ended servers write none.
                    self._reader.table_map.clear()
                    crashed = not self._closed_file and event.timestamp == 0
                    self.place, self._closed_file = Place(number, 0), event.timestamp != 0
                    return Event(event, self.place, self.identity, crashed)
                return None
            case FormatDescriptionEvent():
                self.identity = f"{event.packet.server_id}.{event.timestamp}"
                self._closed_file = False
            case StopEvent():
                self._closed_file = True
            case NotImplementedEvent():
                self._check_known(event.event_type)
        # Events that the server makes up for its readers have no place.
        if event.packet.log_pos > self.place.offset:
            self.place = Place(self.place.number, event.packet.log_pos)
        return Event(event, self.place, self.identity)

    def _fetch(self) -> Any:
        try:
            with translated(self.source):
                try:
                    return self._reader.fetchone()
                except pymysql.MySQLError as error:
                    raise self._failure(error) from error
        except BaseException:
            self.close()
            raise

    def _failure(self, error: pymysql.MySQLError) -> Exception:
        said = str(error.args[1]) if len(error.args) > 1 else str(error)
        if error.args and error.args[0] == _GONE and _TOO_LARGE not in said:
            return PositionTrimmedError(
                f"source {self.source!r}: its binlog cannot be read from there on any more: {said}"
            )
        return failure(self.source, error)

    def _check_known(self, kind: int) -> None:
        if kind in _COMPRESSED:
            raise ResyncRequiredError(
                f"source {self.source!r}: its binlog has compressed events; set log_bin_compress = OFF"
            )
        if kind == _INCIDENT:
            raise ResyncRequiredError(
                f"source {self.source!r}: its binlog tells of an incident: changes are lost"
            )

    def close(self) -> None:
        for connection in self._open:
            connection._force_close()
        self._open.clear()
        self._closed = True


Opened = Callable[[Place, Collection[str]], Stream]
