"""Log capture: logical decoding with `pgoutput`, matched to snapshots by transaction visibility.

Problem. An answer is read in a snapshot, the changes come from the write-ahead log (WAL). Which
transactions of the log does the snapshot show?

- A commit becomes visible when its backend leaves the list of running transactions, some time after its
  commit record is in the WAL. Two backends may do so in the other order than their records. So a snapshot
  need not be a prefix of the log.
- With `synchronous_commit = off` a commit is visible before its record is flushed, and decoding reads only
  what is flushed. So a snapshot may show what the log does not have yet.

Wrong ways: *compare log positions* (the WAL position at the time of a snapshot says nothing about who is
visible);
*take the snapshot and read the log up to the last visible transaction* (with the order turned, one before
it is not shown, and one prefix or the other would be wrong).

Chosen way:
1. Take the snapshot, and in the same statement the WAL's insert position. All that the snapshot shows has
   its commit record before that position.
2. If that much is not flushed, commit an empty message of our own, which flushes everything before it.
3. Read the log up to that position (`stream.py`). Each of its transactions is shown or not: its id is below
   the snapshot's xmax and not among the running ones.
4. If those shown are a prefix, its end is the snapshot's position. Else one that committed is about to
   become visible: let the snapshot go and take another.
A commit that waits for a synchronous standby can stay invisible for long, while later ones, which do not
wait, are visible. Then no snapshot is a prefix, and the source counts as unavailable until the standby
answers.

So nothing is reported that a crash of the server could take back, and entries are exact transactions in the
order of their commit records.

Positions. The ordinal is where the entry's commit record ends in the WAL. The slot's name holds the epoch:
a slot that is made anew has another. A position between the slot's place and the newest entry must be that
of an entry with the same transaction id and commit time; so a database restored from a copy, slot included,
is told apart.

The slot moves by `acknowledge` alone, with one exception: when all entries are acknowledged, and other
tables or databases write on, the slot moves past what holds nothing of ours. The table `idle` notes from
where to where, first; so the last position stays valid, and stays the newest. A mediator that stalls holds
back the slot until `wal_limit_mb`; then the slot is dropped, positions are refused, and the next `prepare`
makes another.

Old rows come from REPLICA IDENTITY FULL. A TRUNCATE is in the log without its rows, so a trigger before it
writes them into the log, as messages (`pg_logical_emit_message`); marks of global transactions are such
messages, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import psycopg
import pyarrow as pa

from adapters.global_marks import Mark, parts
from adapters.postgresql.capture import (
    ArrowLease,
    Capture,
    History,
    Nothing,
    View,
    change_schema,
    changed,
    elsewhere,
    foreign,
    lock_statement,
    not_prepared,
    read_table,
    record_columns,
    record_table,
    run_together,
    trimmed,
)
from adapters.postgresql.catalog import OWN, SourceRelation
from adapters.postgresql.connection import ArrowSession, is_refused, translated
from adapters.postgresql.known import Known, KnownReader
from adapters.postgresql.log_installation import IDLE, PUBLICATION, LogInstallation, Slot, problems, read_slot
from adapters.postgresql.options import Options
from adapters.postgresql.pgoutput import Content, Entry, RelationMessage, parse
from adapters.postgresql.sql import text
from adapters.postgresql.stream import LogStream
from adapters.postgresql.visibility import Visibility
from adapters.run_length import run_length
from adapters.spi import COUNT, TRANSACTION, Changes
from algebra.errors import (
    LockstepError,
    PositionTrimmedError,
    SchemaChangedError,
    SourceUnavailableError,
)
from algebra.position import Position

log = logging.getLogger(__name__)

TEND_SECONDS = 1.0
IDLE_BYTES = 16 << 20
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05

_NOW = """
    SELECT pg_current_snapshot()::text, (pg_current_wal_insert_lsn() - '0/0')::int8,
           (pg_current_wal_flush_lsn() - '0/0')::int8"""
_FENCE = (
    "BEGIN READ WRITE; SET LOCAL synchronous_commit = local;"
    f" SELECT pg_logical_emit_message(true, '{OWN}:fence', ''); COMMIT"
)


class LogCapture(Capture):
    """Follows the write-ahead log through a slot."""

    def __init__(
        self,
        source: str,
        options: Options,
        shown: Sequence[str] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(source, options, clock)
        self._stream = LogStream(source, options.conninfo, PUBLICATION, self._waker.wake, clock)
        self._floor = Position(0)
        self._seen = 0
        self._wanted: Position | None = None
        self._tended_at = clock()
        self._known = KnownReader(source, options, shown, problems, self._control)
        self._installation = LogInstallation(source, options, self._control)

    # Installing

    def prepare(self, relations: Sequence[str], *, dry_run: bool) -> list[str]:
        plan = self._installation.plan(relations)
        if dry_run:
            return plan.steps
        if plan.last:
            self._stream.close()
        for step in plan.first:
            self._control.run(step)
        run_together(self._control, plan.together)
        for step in plan.last:
            self._control.run(step)
        self._locked = ()
        return plan.steps

    def remove(self, *, dry_run: bool) -> list[str]:
        steps, slots = self._installation.removal()
        if not dry_run:
            self._stream.close()
            run_together(self._control, steps)
            for step in slots:
                self._control.run(step)
            self._locked = ()
        return [*steps, *slots]

    # Reading

    def _open(self, arrow: ArrowLease) -> View:
        deadline = self._clock() + self._options.lock_timeout
        pause = FIRST_PAUSE
        while True:
            try:
                view = self._try_open(arrow)
                if view is not None:
                    return view
            except psycopg.errors.UndefinedTable:
                # Renamed, dropped or removed meanwhile: look again.
                self._locked = ()
                self._known.forget()
            except BaseException:
                self._reader.rollback()
                raise
            self._reader.rollback()
            if self._clock() > deadline:
                raise SourceUnavailableError(
                    f"source {self._source!r}: a commit has been waiting for a standby for"
                    f" {self._options.lock_timeout:g} s, and others are visible before it"
                )
            time.sleep(pause)  # nothing to wait on: a backend is between two steps of its commit
            pause = min(2 * pause, LONGEST_PAUSE)

    def _try_open(self, arrow: ArrowLease) -> View | None:
        """The view, or None if this snapshot shows no prefix of the log."""
        self._reader.run(f"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; {lock_statement(self._locked)}")
        shown, inserted, flushed = self._reader.one(_NOW)
        known = self._known.read(self._reader)
        if [r.qualified for r in known.locked] != [r.qualified for r in self._locked]:
            self._locked = known.locked
            return None  # once more, with these tables locked
        tables = known.tables
        if not known.installed.epoch:
            return View(self._reader, tables, Nothing(not_prepared(self._source)))
        self._seen = 0
        slot = read_slot(self._control)
        if slot is None or self._overdue(slot, inserted):
            return View(self._reader, tables, Nothing(self._no_slot()))
        if known.installed.foreign:
            return View(self._reader, tables, Nothing(elsewhere(self._source)))
        self._follow(slot)
        if flushed < inserted:
            self._control.run(_FENCE)
        self._stream.read_until(inserted, max(self._options.footprint.statement_timeout, 30.0))
        visibility = Visibility.of(shown)
        entries = self._stream.entries
        flags = [visibility.shows(visibility.whole(entry.xid)) for entry in entries]
        count = flags.index(False) if False in flags else len(flags)
        if any(flags[count:]):
            return None
        entries = entries[:count]
        self._seen = entries[-1].end if entries else max(1, self._floor.ordinal)
        history = LogHistory(
            self._source, slot.epoch, self._floor, entries, known, lambda: arrow.join(self._reader)
        )
        return View(self._reader, tables, history)

    def _follow(self, slot: Slot) -> None:
        """Have the stream of this slot; a new one begins where the slot stands."""
        self._stream.check()
        if self._stream.slot == slot.name:
            return
        self._stream.start(slot.name)
        # Read after the copy was made: the copy does not stand further than this.
        now = read_slot(self._control)
        if now is None or now.name != slot.name:
            raise SourceUnavailableError(f"source {self._source!r}: the slot was replaced meanwhile")
        ordinal = now.confirmed
        for last, upto in self._control.rows(f"SELECT last, upto FROM {IDLE} WHERE epoch = %s", [slot.epoch]):
            if last <= now.confirmed <= upto:
                ordinal = last
        self._floor = Position(ordinal, f"{slot.epoch}:")
        self._stream.forget(now.confirmed)

    def _no_slot(self) -> PositionTrimmedError:
        return PositionTrimmedError(
            f"source {self._source!r}: the replication slot is gone, because acknowledgement lagged by"
            " more than"
            f" wal_limit_mb ({self._options.wal_limit_mb:g}), or by a restore; prepare again"
        )

    # Waiting and tending

    def wait(self, timeout: float) -> None:
        deadline = self._clock() + timeout
        while True:
            with translated(self._source):
                self._tend()
                self._stream.check()
            if self._seen and not self._stream.slot:
                return  # the stream was lost: only another snapshot can tell what it missed
            entries = self._stream.entries
            left = deadline - self._clock()
            if left <= 0 or (entries and entries[-1].end > self._seen):
                return
            if self._waker.wait([], min(left, TEND_SECONDS)):
                with translated(self._source):
                    self._stream.check()
                return

    def acknowledge(self, position: Position) -> None:
        if self._wanted is None or self._wanted < position or self._wanted.token[:16] != position.token[:16]:
            self._wanted = position
        with translated(self._source):
            self._tend(self._options.trim_seconds)

    def _tend(self, seconds: float = TEND_SECONDS) -> None:
        """Every now and then: move the slot, see that it holds back no more than it may."""
        if self._clock() - self._tended_at < seconds:
            return
        self._tended_at = self._clock()
        if not self._stream.slot:
            return
        slot = read_slot(self._control)
        if slot is None:
            return
        slot = self._advance(slot)
        inserted = self._control.one("SELECT (pg_current_wal_insert_lsn() - '0/0')::int8")[0]
        self._overdue(slot, inserted)

    def _advance(self, slot: Slot) -> Slot:
        """Move the slot to what was acknowledged, or past what is of no concern."""
        wanted = self._wanted
        try:
            if wanted is not None and self._stream.slot == slot.name:
                # Only what is known: a place of another history would skip what was never read.
                if any(
                    entry.end == wanted.ordinal and wanted.token == f"{slot.epoch}:{entry.mark}"
                    for entry in self._stream.entries
                ):
                    self._move(slot, wanted.ordinal)
                    slot = Slot(slot.name, wanted.ordinal)
                    self._stream.forget(wanted.ordinal)
                    self._floor = wanted
                self._wanted = None
            limit = self._options.wal_limit_mb * (1 << 20) or float("inf")
            upto = self._stream.passed
            if self._stream.slot == slot.name and upto - slot.confirmed > min(IDLE_BYTES, limit / 4):
                with self._control.transaction():
                    self._control.run(f"DELETE FROM {IDLE}")
                    self._control.run(
                        f"INSERT INTO {IDLE} VALUES ({text(slot.epoch)}, {self._floor.ordinal}, {upto})"
                    )
                self._move(slot, upto)
                slot = Slot(slot.name, upto)
        except Exception as error:
            # Another adapter has it, or the right to note it is missing: it is moved another time.
            if not isinstance(error, LockstepError) and not is_refused(error):
                raise
            log.debug("source %s: the slot was not moved: %s", self._source, error)
        return slot

    def _move(self, slot: Slot, place: int) -> None:
        self._control.rows(
            "SELECT pg_replication_slot_advance(%s, least('0/0'::pg_lsn + %s::numeric,"
            " pg_current_wal_flush_lsn()))",
            [slot.name, place],
        )

    def _overdue(self, slot: Slot, inserted: int) -> bool:
        """Whether the slot held back more than it may; it is dropped then."""
        limit = self._options.wal_limit_mb * (1 << 20)
        if not limit or inserted - slot.confirmed <= limit:
            return False
        log.warning(
            "source %s: acknowledgement lags by %d MB, more than wal_limit_mb; the slot %s is dropped, and"
            " views have to be refreshed",
            self._source,
            (inserted - slot.confirmed) >> 20,
            slot.name,
        )
        self._stream.close()
        self._control.rows("SELECT pg_drop_replication_slot(%s)", [slot.name])
        return True

    def close(self) -> None:
        self._waker.wake()
        self._stream.close()
        self._control.close()
        self._reader.close()


class LogHistory(History):
    """The log as one snapshot shows it."""

    def __init__(
        self,
        source: str,
        epoch: str,
        floor: Position,
        entries: Sequence[Entry],
        known: Known,
        arrow: Callable[[], ArrowSession],
    ) -> None:
        self._source = source
        self._epoch = epoch
        self._floor = floor
        self._entries = entries
        self._tables = known.tables
        self._installed = known.installed
        self._broken = known.broken
        self._arrow = arrow

    @property
    def position(self) -> Position:
        return self._place(self._entries[-1]) if self._entries else self._floor

    def changes(self, after: Position, most_rows: int | None) -> Changes:
        self._check(after)
        if self._broken:
            raise self._broken[0]
        entries = [entry for entry in self._entries if entry.end > after.ordinal]
        shown = len(entries)
        if most_rows is not None and entries:
            sizes = ((i, entry.rows) for i, entry in enumerate(entries[:most_rows]))
            entries = entries[: run_length(sizes, shown, most_rows)]
        contents = [entry.content for entry in entries]
        for content in contents:
            if content.unexplained:
                raise SchemaChangedError(
                    f"source {self._source!r}: TRUNCATE of {content.unexplained[0]} is in the log without"
                    " its rows;"
                    " prepare again"
                )
        positions = tuple(map(self._place, entries))
        marks = (Mark(i, *mark) for i, content in enumerate(contents) for mark in content.marks)
        return Changes(
            positions,
            self._rows(contents),
            part_of=parts(self._source, positions, marks),
            more=len(entries) < shown,
        )

    def _place(self, entry: Entry) -> Position:
        return Position(entry.end, f"{self._epoch}:{entry.mark}")

    def _check(self, after: Position) -> None:
        if not after.token or after.token.partition(":")[0] == self._epoch:
            if after.ordinal < self._floor.ordinal:
                raise trimmed(self._source, after)
            if after.ordinal == self._floor.ordinal and after.token:
                return
            entry = next((e for e in self._entries if e.end == after.ordinal), None)
            if entry is not None and after.token == f"{self._epoch}:{entry.mark}":
                return
        raise foreign(self._source, after)

    def _rows(self, contents: Sequence[Content]) -> Mapping[str, pa.Table]:
        by_oid = {relation.oid: relation for relation in self._tables.relations.values()}
        messages: dict[tuple[RelationMessage, int], list[bytes]] = {}
        indexes: dict[tuple[RelationMessage, int], list[tuple[int, int]]] = {}
        for index, content in enumerate(contents):
            for bucket, found in content.changes.items():
                messages.setdefault(bucket, []).extend(found)
                indexes.setdefault(bucket, []).append((index, len(found)))
        tables: dict[str, list[pa.Table]] = {}
        for (message, kind), found in messages.items():
            relation = by_oid.get(message.oid)
            if relation is None:
                continue  # prepared for a source that shows it; this one does not
            owner = np.repeat(*np.array(indexes[message, kind], np.int64).T)
            tables.setdefault(relation.name, []).extend(
                _typed(self._source, relation, message, kind, found, owner)
            )
        for name, table in self._truncated(contents):
            tables.setdefault(name, []).append(table)
        return {name: _ordered(pa.concat_tables(found)) for name, found in tables.items()}

    def _truncated(self, contents: Sequence[Content]) -> Iterator[tuple[str, pa.Table]]:
        names = {prepared.number: prepared.name for prepared in self._installed.relations}
        records: dict[str, tuple[list[str], list[int]]] = {}
        for index, content in enumerate(contents):
            for number, rows in content.truncated.items():
                if rows and number in names and names[number] in self._tables.relations:
                    texts, owners = records.setdefault(names[number], ([], []))
                    texts += rows
                    owners += [index] * len(rows)
        for name, (texts, owners) in records.items():
            relation = self._tables.relations[name]
            batch = pa.record_batch(
                {
                    "1": pa.array([texts], pa.list_(pa.string())),
                    "2": pa.array([owners], pa.list_(pa.int32())),
                }
            )
            found = read_table(
                self._arrow(),
                f"SELECT {record_columns(relation)}, r.tx, -1::int8 FROM (SELECT"
                f" k.v::{relation.qualified} AS v, k.tx"
                f" FROM unnest($1::text[], $2::int4[]) AS k(v, tx) OFFSET 0) AS r",
                batch,
            )
            yield name, record_table(relation, found)


def _typed(
    source: str,
    relation: SourceRelation,
    message: RelationMessage,
    kind: int,
    found: Sequence[bytes],
    owner: np.ndarray,
) -> Iterator[pa.Table]:
    missing = [column.name for column in relation.columns if column.name not in message.columns]
    if missing:
        raise changed(source, relation.name, f"had no column {missing[0]!r} when it was changed")
    for rows in parse(message, kind, found):
        columns = [
            column.known.parsed(
                rows.columns[message.columns.index(column.name)], f"{relation.name}.{column.name}"
            )
            for column in relation.columns
        ]
        columns.append(pa.array(owner[rows.messages].astype(np.int32)))
        columns.append(pa.array(rows.counts))
        yield pa.Table.from_arrays(columns, schema=change_schema(relation))


def _ordered(table: pa.Table) -> pa.Table:
    order = np.argsort(table[TRANSACTION].to_numpy(), kind="stable")
    return table.take(pa.array(order)) if table.num_rows else table


__all__ = ["COUNT", "LogCapture", "LogHistory"]
