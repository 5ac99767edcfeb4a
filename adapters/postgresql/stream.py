"""The log as it is written: a replication stream of our own, beside the slot that keeps our place.

Problem. The slot may only move when the mediator acknowledges. Several adapters read one source at the same
time: one follows, others load. Reading must not cost more the more is unacknowledged.

Wrong ways:
- `pg_logical_slot_peek_changes` on the slot decodes everything since the slot's `restart_lsn` at every call,
  and that place moves only with the running-transactions records, every 15 seconds at best (measured for
  100,000 rows, on a busy machine: 0.6 s at every look, and still 0.1 s at every look after they were
  acknowledged).
- Streaming from the slot itself: it has one reader at a time, and a load would wait for the follower to end.

Chosen way. A temporary copy of the slot (`pg_copy_logical_replication_slot`) that lives and dies with one
replication connection. It starts where the slot stands, is read once, in order, and its place is confirmed
as it is read, so it never holds more of the log than the slot does. What was read is kept until it is
acknowledged: up to HELD_BYTES in memory, beyond that in a file, of which memory has the places only. After a
lost connection or a restart a new copy starts again where the slot stands.

A thread does the reading, also while nobody asks: a server that shuts down waits for its replication
clients to confirm what they were sent, and one that is busy elsewhere would hold it up.
"""

from __future__ import annotations

import os
import re
import select
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from psycopg import Error as PsycopgError
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from adapters.postgresql.connection import translate
from adapters.postgresql.pgoutput import Content, Decoder, Entry
from adapters.postgresql.spool import Spool
from adapters.postgresql.sql import quote, text
from algebra.errors import LockstepError, SourceUnavailableError

PING_SECONDS = 0.005
"""While somebody waits for the log, how often the server is asked how far it is."""
HELD_BYTES = 32 << 20
"""About how much of what is not acknowledged stays in memory."""
IDLE_SECONDS = 10.0
"""How often the server is told that we are there."""


class LogStream:
    """Entries of the log from where a slot stood when the stream began. `arrived` is called when one came."""

    def __init__(
        self,
        source: str,
        conninfo: str,
        publication: str,
        arrived: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        given = conninfo_to_dict(conninfo)
        settings = f"{given.get('options') or ''} -c wal_sender_timeout=60000 -c statement_timeout=0"
        self._conninfo = make_conninfo(conninfo, replication="database", options=settings)
        self._publication = publication
        self._arrived = arrived
        self._clock = clock
        self._running: _Running | None = None

    @property
    def slot(self) -> str:
        """The slot that the stream is a copy of; empty if there is no stream."""
        return self._running.slot if self._running is not None else ""

    @property
    def passed(self) -> int:
        """Every transaction whose commit ends up to here has been read, and none is kept; else 0.

        Both are told of one moment: the thread that reads may take an entry at any other.
        """
        running = self._running
        if running is None:
            return 0
        with running.changed:
            return 0 if running.entries or running.problem is not None else running.reached

    @property
    def entries(self) -> list[Entry]:
        """What was read and is not forgotten, in commit order."""
        running = self._running
        if running is None:
            return []
        with running.changed:
            return list(running.entries)

    def start(self, slot: str) -> None:
        """Begin anew, at the place of this slot."""
        self.close()
        connection = pq.PGconn.connect(self._conninfo.encode())
        if connection.status != pq.ConnStatus.OK:
            message = connection.error_message.decode(errors="replace")
            connection.finish()
            raise translate(self._source, message, None)
        try:
            copy = f"{slot}_{os.getpid()}_{connection.backend_pid}"[:63]
            self._execute(
                connection,
                f"SELECT pg_catalog.pg_copy_logical_replication_slot({text(slot)}, {text(copy)}, true)",
                pq.ExecStatus.TUPLES_OK,
            )
            self._execute(
                connection,
                f"START_REPLICATION SLOT {quote(copy)} LOGICAL 0/0 (proto_version '1',"
                f" publication_names {text(quote(self._publication))}, messages 'true')",
                pq.ExecStatus.COPY_BOTH,
            )
        except BaseException:
            connection.finish()
            raise
        self._running = _Running(self._source, slot, connection, self._arrived)

    def check(self) -> None:
        """Raise SourceUnavailableError, and give the stream up, if it broke."""
        running = self._running
        if running is not None and running.problem is not None:
            self.close()
            raise running.problem

    def read_until(self, place: int, timeout: float) -> None:
        """Return when everything before `place` has come; it must have been flushed."""
        running = self._running
        if running is None:
            raise SourceUnavailableError(f"source {self._source!r}: the replication stream is closed")
        deadline = self._clock() + timeout
        while running.reached < place:
            self.check()
            if self._clock() > deadline:
                raise SourceUnavailableError(
                    f"source {self._source!r}: the log was not decoded within {timeout:g} s"
                )
            running.ask()
            with running.changed:
                running.changed.wait_for(
                    lambda: running.reached >= place or running.problem is not None, PING_SECONDS
                )

    def forget(self, end: int) -> None:
        """Let go of what is acknowledged."""
        running = self._running
        if running is not None:
            with running.changed:
                running.forget(end)

    def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _execute(self, connection: pq.abc.PGconn, command: str, expected: pq.ExecStatus) -> None:
        result = connection.exec_(command.encode())
        if result.status != expected:
            state = result.error_field(pq.DiagnosticField.SQLSTATE)
            message = result.error_message.decode(errors="replace")
            raise translate(
                self._source, re.sub(r"^ERROR:\s*", "", message), state.decode() if state else None
            )


class _Running:
    """One stream that has begun, and the thread that reads it; it ends with the connection."""

    def __init__(
        self, source: str, slot: str, connection: pq.abc.PGconn, arrived: Callable[[], None]
    ) -> None:
        self.slot = slot
        self.entries: list[Entry] = []
        self._held = 0
        self._spool = Spool()
        self.reached = 0
        self.problem: LockstepError | None = None
        self.changed = threading.Condition()
        self._source = source
        self._connection = connection
        self._arrived = arrived
        self._decoder = Decoder()
        self._stopping, self._stop = os.pipe()
        connection.nonblocking = 1
        self._thread = threading.Thread(target=self._read, name=f"lockstep log {source}", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Ask the server how far it is."""
        with self.changed:
            if self.problem is None:
                self._confirm(ask=True)

    def keep(self, entry: Entry) -> None:
        """Keep what was read until it is forgotten."""
        if isinstance(entry.kept, Content):
            size = entry.kept.size
            if self._held + size > HELD_BYTES:
                entry.kept = self._spool.put(entry.kept)
            else:
                self._held += size
        self.entries.append(entry)

    def forget(self, end: int) -> None:
        """Let go of what is acknowledged; with the lock held."""
        self.entries = [entry for entry in self.entries if entry.end > end]
        held = [entry.kept for entry in self.entries if isinstance(entry.kept, Content)]
        self._held = sum(content.size for content in held)
        if len(held) == len(self.entries):
            self._spool.clear()

    def stop(self) -> None:
        with suppress(OSError):
            os.write(self._stop, b"!")
        self._thread.join()
        for descriptor in (self._stopping, self._stop):
            os.close(descriptor)
        self._connection.finish()
        self._spool.close()

    def _read(self) -> None:
        while self.problem is None:
            ready, _, _ = select.select([self._connection.socket, self._stopping], [], [], IDLE_SECONDS)
            if self._stopping in ready:
                return
            with self.changed:
                before = len(self.entries)
                try:
                    self._take_available()
                    self._confirm(ask=False)
                except (PsycopgError, SourceUnavailableError) as error:
                    self.problem = SourceUnavailableError(
                        f"source {self._source!r}: the replication stream broke:"
                        f" {' '.join(str(error).split())}"
                    )
                except Exception as error:  # of the decoder: nothing of this stream can be trusted any more
                    self.problem = LockstepError(
                        f"source {self._source!r}: the log cannot be read: {error!r}"
                    )
                self.changed.notify_all()
                news = len(self.entries) > before or self.problem is not None
            if news:
                self._arrived()

    def _take_available(self) -> None:
        connection = self._connection
        connection.consume_input()
        while True:
            length, data = connection.get_copy_data(1)
            if length <= 0:
                break
            self._take(bytes(data))
        if length < 0:
            message = connection.error_message.decode(errors="replace").strip()
            raise SourceUnavailableError(message or "the server ended it")

    def _take(self, data: bytes) -> None:
        if data[0] == 0x77:  # w: one message of the log
            entry = self._decoder.feed(data[25:])
            if entry is not None:
                # Kept first: what cannot be kept has not been reached.
                if not entry.content.is_empty:
                    self.keep(entry)
                self.reached = max(self.reached, entry.end)
        elif data[0] == 0x6B:  # k: how far the server has read
            (end,) = struct.unpack_from("!Q", data, 1)
            self.reached = max(self.reached, end)

    def _confirm(self, *, ask: bool) -> None:
        """Tell the server what came, so that the copy holds nothing, and ask for an answer if need be."""
        place = self.reached
        try:
            self._connection.put_copy_data(struct.pack("!cQQQQB", b"r", place, place, place, 0, ask))
            self._connection.flush()
        except PsycopgError as error:
            self.problem = SourceUnavailableError(
                f"source {self._source!r}: the replication stream broke: {' '.join(str(error).split())}"
            )
