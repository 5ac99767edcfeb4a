"""The log as it is written: a replication stream of our own, beside the slot that keeps our place.

Problem. The slot may only move when the mediator acknowledges. Several adapters read one source at the same time:
one follows, others load. Reading must not cost more the more is unacknowledged.

Wrong ways:
- `pg_logical_slot_peek_changes` on the slot decodes everything since the slot's `restart_lsn` at every call, and
  that place moves only with the running-transactions records, every 15 seconds at best (measured: an advance
  past 14 MB of log left it where it was; each further peek then took the 0.3 s for 100,000 rows again).
- Streaming from the slot itself: it has one reader at a time, and a load would wait for the follower to end.

Chosen way. A temporary copy of the slot (`pg_copy_logical_replication_slot`) that lives and dies with one replication
connection. It starts where the slot stands, is read once, in order, and its place is confirmed as it is read, so it
never holds more of the log than the slot does. What was read is kept until it is acknowledged. After a lost connection
or a restart a new copy starts again where the slot stands.
"""

from __future__ import annotations

import os
import re
import select
import struct
import time
from collections.abc import Callable
from contextlib import suppress

from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from adapters.postgresql.connection import translate
from adapters.postgresql.pgoutput import Decoder, Entry
from adapters.postgresql.sql import quote, text
from algebra.errors import SourceUnavailableError

PING_SECONDS = 0.005
"""While waiting for the log, how long nothing must have come before the server is asked how far it is."""


class LogStream:
    """Entries of the log from where a slot stood when the stream began."""

    def __init__(
        self, source: str, conninfo: str, publication: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source = source
        given = conninfo_to_dict(conninfo)
        # A pause between two reads is no sign of death; a connection that is gone is found by TCP.
        settings = f"{given.get('options') or ''} -c wal_sender_timeout=600000 -c statement_timeout=0"
        self._conninfo = make_conninfo(conninfo, replication="database", options=settings)
        self._publication = publication
        self._clock = clock
        self._connection: pq.abc.PGconn | None = None
        self._decoder = Decoder()
        self.slot = ""
        """The slot that the stream is a copy of; empty if there is no stream."""
        self.entries: list[Entry] = []
        self.reached = 0
        """Every transaction whose commit ends up to here has been read."""

    def start(self, slot: str) -> None:
        """Begin anew, at the place of this slot."""
        self.close()
        connection = pq.PGconn.connect(self._conninfo.encode())
        if connection.status != pq.ConnStatus.OK:
            message = connection.error_message.decode(errors="replace")
            connection.finish()
            raise translate(self._source, message, None)
        self._connection = connection
        copy = f"{slot}_{os.getpid()}_{connection.backend_pid}"[:63]
        self._execute(
            f"SELECT pg_catalog.pg_copy_logical_replication_slot({text(slot)}, {text(copy)}, true)",
            pq.ExecStatus.TUPLES_OK,
        )
        self._execute(
            f"START_REPLICATION SLOT {quote(copy)} LOGICAL 0/0 (proto_version '1',"
            f" publication_names {text(quote(self._publication))}, messages 'true')",
            pq.ExecStatus.COPY_BOTH,
        )
        connection.nonblocking = 1
        self._decoder = Decoder()
        self.entries = []
        self.reached = 0
        self.slot = slot

    @property
    def is_open(self) -> bool:
        return self._connection is not None and self._connection.status == pq.ConnStatus.OK

    @property
    def socket(self) -> int:
        assert self._connection is not None
        return self._connection.socket

    def read_until(self, place: int, timeout: float) -> None:
        """Read on until everything before `place` has come; it must have been flushed."""
        deadline = self._clock() + timeout
        self._read_available()
        asked = 0.0
        while self.reached < place:
            now = self._clock()
            if now > deadline:
                raise SourceUnavailableError(
                    f"source {self._source!r}: the log was not decoded within {timeout:g} s"
                )
            if now - asked > PING_SECONDS:
                self._confirm(ask=True)
                asked = now
            if select.select([self.socket], [], [], PING_SECONDS)[0]:
                self._read_available()
        self._confirm(ask=False)

    def read_available(self) -> None:
        """Take what has come; never waits."""
        self._read_available()
        self._confirm(ask=False)

    def forget(self, end: int) -> None:
        """Let go of what is acknowledged."""
        self.entries = [entry for entry in self.entries if entry.end > end]

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self.slot = ""
        if connection is not None:
            with suppress(Exception):
                connection.finish()

    def _execute(self, command: str, expected: pq.ExecStatus) -> None:
        assert self._connection is not None
        result = self._connection.exec_(command.encode())
        if result.status != expected:
            state = result.error_field(pq.DiagnosticField.SQLSTATE)
            message = result.error_message.decode(errors="replace")
            self.close()
            raise translate(
                self._source, re.sub(r"^ERROR:\s*", "", message), state.decode() if state else None
            )

    def _read_available(self) -> None:
        connection = self._connection
        if connection is None:
            raise SourceUnavailableError(f"source {self._source!r}: the replication stream is closed")
        try:
            connection.consume_input()
            while True:
                length, data = connection.get_copy_data(1)
                if length <= 0:
                    break
                self._take(bytes(data))
        except Exception as error:
            if isinstance(error, pq.PGconn | KeyboardInterrupt):
                raise
            self.close()
            raise SourceUnavailableError(f"source {self._source!r}: the replication stream broke") from error
        if length < 0:
            message = connection.error_message.decode(errors="replace").strip()
            self.close()
            raise SourceUnavailableError(f"source {self._source!r}: the replication stream ended: {message}")

    def _take(self, data: bytes) -> None:
        if data[0] == 0x77:  # w: one message of the log
            entry = self._decoder.feed(data[25:])
            if entry is not None:
                self.reached = max(self.reached, entry.end)
                if not entry.is_empty:
                    self.entries.append(entry)
        elif data[0] == 0x6B:  # k: how far the server has read
            (end,) = struct.unpack_from("!Q", data, 1)
            self.reached = max(self.reached, end)
            if data[17]:
                self._confirm(ask=False)

    def _confirm(self, *, ask: bool) -> None:
        """Tell the server what came, so that the copy holds nothing, and ask for an answer if need be."""
        connection = self._connection
        if connection is None:
            return
        place = self.reached
        try:
            connection.put_copy_data(struct.pack("!cQQQQB", b"r", place, place, place, 0, ask))
            connection.flush()
        except Exception as error:
            self.close()
            raise SourceUnavailableError(f"source {self._source!r}: the replication stream broke") from error
