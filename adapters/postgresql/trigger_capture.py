"""Trigger capture: a change log inside the source, and a commit order fixed when it is first looked at.

Problem. Triggers tell what a transaction did, not when it committed (`commit_order.py`). Snapshots tell which
transactions are over, as a set and not as a number. Several adapters look at one source at different
moments, and a position must mean the same to all of them, now and after a restart.

Wrong ways:
- *The set as the position* (the snapshot's text in the token). Two adapters that looked at different
  moments would have different sets of the same size, and only one order can be followed.
- *A lock at commit* (a deferred trigger that draws the number): exact, but commits of applications would
  wait for each other, prepared transactions would block all others, and locks taken at commit can deadlock.
- *Commit timestamps*: seldom switched on, equal or turned round for neighbours.

Chosen way. Whoever takes a snapshot writes the order down. In one transaction of the wrapper: lock the
table `commits`, take the snapshot, number all transactions that it shows and that have no number yet,
export the snapshot to the connection that answers, commit. The lock comes before the snapshot, so snapshots
of all adapters follow each other, and each contains what the one before it numbered: every snapshot shows a
prefix of the numbers. If it shows nothing that is without a number, nothing is written.

The wrapper's commit is synchronous, which flushes every commit before it: a crash cannot take back what was
reported, not even what applications committed asynchronously.

Positions: the ordinal is the number; the token holds the capture's epoch and a mark, drawn at random when
numbers are written. A restored database, which may give the same ids and numbers to other transactions, has
other marks. A dump that is restored elsewhere brings numbers and marks along, to where transactions have
other ids, maybe below the horizon: so capture notes the database that it is installed in (`capture.py`), and
counts for nothing in another one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from uuid import uuid4

import psycopg
import pyarrow as pa

from adapters.global_marks import Mark, parts
from adapters.postgresql import trigger_layout as layout
from adapters.postgresql.capture import (
    EPOCH,
    META,
    RELATIONS,
    ArrowLease,
    Capture,
    History,
    Installed,
    Nothing,
    Prepared,
    View,
    changed,
    check_creation,
    check_rights,
    drift,
    drop_marker,
    elsewhere,
    foreign,
    known_tables,
    lock_statement,
    not_prepared,
    read_home,
    read_installed,
    read_table,
    record_columns,
    record_table,
    run_together,
    trimmed,
)
from adapters.postgresql.catalog import OWN, SourceRelation, SourceTables
from adapters.postgresql.commit_order import commit_order, parse_cuts
from adapters.postgresql.connection import ArrowSession, Session, translated
from adapters.postgresql.known import Known, KnownReader
from adapters.postgresql.options import TRIGGER, Options
from adapters.postgresql.sql import text
from adapters.postgresql.visibility import Visibility
from adapters.run_length import run_length
from adapters.spi import Changes
from algebra.errors import ConfigurationError, SourceUnavailableError
from algebra.position import Position

POLL_SECONDS = 0.05
"""Without notifications, how often the log is looked at."""
LISTEN_SECONDS = 1.0
"""With notifications, how often all the same: capture may have been prepared without."""

LOT = 20_000
"""Rows that are held at once while transactions get their numbers."""

_READ = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;"
_NUMBER = "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE; SET LOCAL synchronous_commit = local;"
_NEW = f"""
    FROM {layout.STATEMENTS} s
    WHERE s.xid >= coalesce((SELECT c.horizon FROM {layout.COMMITS} c ORDER BY c.ordinal DESC LIMIT 1), 0)
      AND NOT EXISTS (SELECT FROM {layout.COMMITS} c WHERE c.xid = s.xid)"""
_ANY_NEW = f"SELECT EXISTS (SELECT {_NEW})"
_PLACE = "coalesce(max(nullif(split_part(s.cut, ':', 4), '')::int8), 0)"
_NEW_IDS = f"SELECT s.xid, {_PLACE} {_NEW} GROUP BY s.xid ORDER BY s.xid"
_XMAX = "split_part(s.cut, ':', 2)::int8"
_RUNNING = "coalesce(cardinality(string_to_array(nullif(split_part(s.cut, ':', 3), ''), ',')), 0)"
_NEW_CUTS = f"SELECT s.xid, s.cut {_NEW} ORDER BY {_XMAX}, {_RUNNING} + (s.xid < {_XMAX})::int DESC"
"""In the order that `commit_order` asks for; who logged a cut is not in it, and was running."""
_LAST = f"""
    SELECT c.ordinal, c.mark, c.horizon <= pg_snapshot_xmax(pg_current_snapshot())::text::int8
    FROM {layout.COMMITS} c ORDER BY c.ordinal DESC LIMIT 1"""
"""The last number, its mark, and whether it can be of this database: the horizon was a snapshot's before."""


class TriggerCapture(Capture):
    """Installs, reads and trims the change log in the source."""

    def __init__(
        self,
        source: str,
        options: Options,
        shown: Sequence[str] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(source, options, clock)
        self._listener = Session(source, options.conninfo)
        self._listening = False
        self._known = KnownReader(source, options, shown, self._problems, self._control)
        self._trimmed = Position(0)
        self._trimmed_at = clock() - options.trim_seconds

    # Installing

    def prepare(self, relations: Sequence[str], *, dry_run: bool) -> list[str]:
        steps = self._plan(relations)
        if steps and not dry_run:
            run_together(self._control, steps)
            self._locked = ()
        return steps

    def _plan(self, names: Sequence[str]) -> list[str]:
        session = self._control
        installed = read_installed(session, self._source, TRIGGER)
        with session.reading():
            tables = known_tables(session, self._options, installed, None)
        wanted = tables.select(names)
        for relation in wanted:
            relation.schema_shown(self._source)
        check_rights(session, self._source, wanted, ["SELECT"])
        steps: list[str] = []
        notify = self._notifies(session)
        anew = bool(installed.epoch) and (installed.foreign or self._is_ahead(session))
        problems = {} if anew else self._problems(session, installed, tables)
        broken = [p for p in installed.relations if p.number in problems or anew]
        for prepared in broken:
            steps += self._unprepare(prepared)
            if prepared.name in tables.relations:
                wanted.append(tables.relations[prepared.name])
        if anew:
            steps += self._drop_base()
        if anew or not installed.epoch:
            check_creation(session, self._source, self._options.schema, base=True)
            steps += layout.base(self._options.schema, read_home(session), notify=notify)
        elif broken:
            steps.append(f"UPDATE {META} SET epoch = {EPOCH}")
        have = {p.name for p in installed.relations} - {p.name for p in broken}
        number = max((p.number for p in installed.relations), default=0)
        new = {r.name: r for r in wanted if r.name not in have}
        check_rights(session, self._source, list(new.values()), ["SELECT", "TRIGGER"])
        self._check_subscriptions(new.values())
        for relation in new.values():
            number += 1
            always, alike = self._owns(relation), self._are_alike(relation)
            steps += layout.relation(number, relation, notify=notify, always=always, alike=alike)
        return steps

    @staticmethod
    def _is_ahead(session: Session) -> bool:
        """Whether numbers were given out in a database with other, higher transaction ids."""
        last = session.one(_LAST)
        return last is not None and not last[2]

    def _owns(self, relation: SourceRelation) -> bool:
        """Whether the relation's triggers may be altered once they are made."""
        owns = self._control.one(
            "SELECT bool_and(pg_has_role(relowner, 'USAGE')) FROM pg_class WHERE oid = ANY (%s::oid[])",
            [list(relation.oids)],
        )
        return bool(owns[0])

    def _are_alike(self, relation: SourceRelation) -> bool:
        """Whether the partitions of a relation have their columns in the root's order."""
        orders = self._control.rows(
            "SELECT DISTINCT array_agg(attname ORDER BY attnum) FROM pg_attribute"
            " WHERE attrelid = ANY (%s::oid[]) AND attnum > 0 AND NOT attisdropped GROUP BY attrelid",
            [list(relation.oids)],
        )
        return len(orders) < 2

    def _notifies(self, session: Session) -> bool:
        if self._options.notify is not None:
            return self._options.notify
        return bool(session.one("SELECT current_setting('max_prepared_transactions') = '0'")[0])

    def _check_subscriptions(self, relations: Iterable[SourceRelation]) -> None:
        fed = _fed(self._control)
        for relation in relations:
            if _is_fed(relation, fed):
                raise ConfigurationError(
                    f"source {self._source!r}: {relation.qualified} is fed by a subscription, which fires no"
                    " statement triggers; use capture: log"
                )

    @staticmethod
    def _unprepare(prepared: Prepared) -> list[str]:
        return [
            # With its triggers: to drop those by themselves takes the tables' owner.
            f"DROP FUNCTION {layout.function(prepared.number)}() CASCADE",
            f"DROP TABLE {layout.log_table(prepared.number)}",
            f"DELETE FROM {RELATIONS} WHERE number = {prepared.number}",
        ]

    def remove(self, *, dry_run: bool) -> list[str]:
        installed = read_installed(self._control, self._source, TRIGGER)
        steps: list[str] = []
        if installed.epoch:
            for prepared in installed.relations:
                steps += self._unprepare(prepared)
            steps += self._drop_base()
        if steps and not dry_run:
            run_together(self._control, steps)
            self._locked = ()
        return steps

    def _drop_base(self) -> list[str]:
        own = (layout.COMMITS, layout.MARKS, layout.STATEMENTS, RELATIONS, META)
        return [
            *drop_marker(self._control),
            f"DROP FUNCTION IF EXISTS {OWN}.mark()",
            *(f"DROP TABLE {table}" for table in own),
            f"DROP SCHEMA {OWN}",
        ]

    @staticmethod
    def _problems(session: Session, installed: Installed, tables: SourceTables) -> dict[int, str]:
        """The prepared relations whose capture no longer works, by number, with the reason in words."""
        problems = {}
        counts = dict(
            session.rows(
                "SELECT p.proname, count(*) FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid"
                " JOIN pg_namespace n ON n.oid = p.pronamespace"
                " WHERE n.nspname = %s AND t.tgenabled IN ('O', 'A') GROUP BY 1",
                [OWN],
            )
        )
        fed = _fed(session)
        for prepared in installed.relations:
            relation = tables.relations.get(prepared.name)
            problem = drift(prepared, relation)
            if problem is None and relation is not None:
                wanted = (len(layout.EVENTS) + 1) * (1 + len(relation.partitions))
                if counts.get(f"capture_{prepared.number}", 0) != wanted:
                    problem = "lost its triggers"
                elif any(
                    prepared.state[oid]["triggers"] != s["triggers"] for oid, s in relation.state.items()
                ):
                    problem = "had its triggers disabled or altered"
                elif _is_fed(relation, fed):
                    problem = "got a subscription, which fires no statement triggers,"
            if problem is not None:
                problems[prepared.number] = problem
        return problems

    # Reading

    def _open(self, arrow: ArrowLease) -> View:
        self._listen()
        for _ in range(10):
            try:
                view = self._try_open(arrow)
            except psycopg.errors.UndefinedTable:
                # Renamed, dropped or removed meanwhile: look again.
                self._locked = ()
                self._known.forget()
                view = None
            except BaseException:
                self._reader.rollback()
                self._control.rollback()
                raise
            if view is not None:
                return view
            self._reader.rollback()
            self._control.rollback()
        raise SourceUnavailableError(f"source {self._source!r}: its tables are being replaced all the time")

    def _try_open(self, arrow: ArrowLease) -> View | None:
        """The view, or None if other tables have to be locked first."""
        self._reader.run(f"{_READ} {lock_statement(self._locked)}")
        known = self._known.read(self._reader)
        if [r.qualified for r in known.locked] != [r.qualified for r in self._locked]:
            self._locked = known.locked
            return None
        if not known.installed.epoch:
            return View(self._reader, known.tables, Nothing(not_prepared(self._source)))
        if known.installed.foreign:
            return View(self._reader, known.tables, Nothing(elsewhere(self._source)))
        if self._reader.one(_ANY_NEW)[0]:
            last = self._number()
            # Something could have been changed between the two snapshots.
            known = self._known.read(self._reader)
        else:
            last = self._reader.one(_LAST)
        if last is not None and not last[2]:
            return View(self._reader, known.tables, Nothing(elsewhere(self._source)))
        epoch = known.installed.epoch
        position = (
            Position(last[0], f"{epoch}:{last[1]}")
            if last is not None
            else Position(known.installed.trimmed, f"{epoch}:")
        )
        tables = known.tables
        history = TriggerHistory(
            self._source, self._control, self._reader, known, position, lambda: arrow.join(self._reader)
        )
        return View(self._reader, tables, history)

    def _number(self) -> Any:
        """Number what has committed, and have the reader read in just that snapshot; the last number."""
        self._reader.rollback()
        control = self._control
        locks = lock_statement(self._locked)
        control.run(f"{_NUMBER} {locks} LOCK TABLE {layout.COMMITS} IN EXCLUSIVE MODE")
        try:
            now, exported = control.one("SELECT pg_current_snapshot()::text, pg_export_snapshot()")
            last = control.one(_LAST)
            trimmed = control.one(f"SELECT trimmed FROM {META}")[0]
            number = first = (last[0] if last is not None else trimmed) + 1
            cuts = parse_cuts(self._fetched("cuts", _NEW_CUTS))
            order = commit_order(self._fetched("ids", _NEW_IDS), cuts)
            mark = uuid4().hex[:12]
            while lot := list(islice(order, LOT)):
                control.execute(
                    f"INSERT INTO {layout.COMMITS} SELECT %s + place - 1, xid, %s, %s"
                    " FROM unnest(%s::int8[]) WITH ORDINALITY AS n(xid, place)",
                    [number, mark, Visibility.of(now).xmin, lot],
                )
                number += len(lot)
            if number > first:
                last = (number - 1, mark, True)
            self._reader.run(f"{_READ} SET TRANSACTION SNAPSHOT {text(exported)}; {locks}")
            control.run("COMMIT")
        except BaseException:
            control.rollback()
            raise
        return last

    def _fetched(self, name: str, query: str) -> Iterator[Any]:
        """The rows of a query, lot by lot; it sees nothing that is written after it has begun."""
        self._control.run(f"DECLARE {name} NO SCROLL CURSOR FOR {query}")
        while True:
            rows = self._control.rows(f"FETCH {LOT} FROM {name}")
            yield from rows
            if len(rows) < LOT:
                return

    # Waiting

    def wait(self, timeout: float) -> None:
        deadline = self._clock() + timeout
        with translated(self._source):
            self._listen()
            if self._notified():
                return
        while True:
            left = deadline - self._clock()
            if left <= 0:
                return
            listening = self._listening
            sockets = [self._listener.connection.fileno()] if self._listener.is_open else []
            if self._waker.wait(sockets, min(left, LISTEN_SECONDS if listening else POLL_SECONDS)):
                return
            with translated(self._source):
                if self._notified():
                    return

    def _listen(self) -> None:
        """Listen from before the snapshot on, and forget what was heard before it."""
        fresh = not self._listener.is_open or self._listener.connection.broken
        if fresh:
            self._listening = False
        if not self._listening and self._notifies(self._listener):
            self._listener.run(f"LISTEN {layout.CHANNEL}")
            self._listening = True

    def _notified(self) -> bool:
        """Whether the log has something that has no number yet."""
        if self._listening:
            pgconn = self._listener.connection.pgconn
            pgconn.consume_input()
            while pgconn.notifies() is not None:
                pass
        try:
            return bool(self._listener.one(_ANY_NEW)[0])
        except Exception as error:
            if getattr(error, "sqlstate", None) in ("42P01", "3F000"):
                return False  # nothing is prepared
            raise

    # Trimming

    def acknowledge(self, position: Position) -> None:
        if position <= self._trimmed and position.token == self._trimmed.token:
            return
        if self._clock() - self._trimmed_at < self._options.trim_seconds:
            return
        self._trimmed_at = self._clock()
        epoch, _, mark = position.token.partition(":")
        with translated(self._source):
            installed = read_installed(self._control, self._source, TRIGGER)
            if installed.epoch != epoch or position.ordinal <= installed.trimmed:
                return
            with self._control.transaction():
                xids = self._control.rows(
                    f"SELECT xid FROM {layout.COMMITS} WHERE ordinal <= %s AND EXISTS"
                    f" (SELECT FROM {layout.COMMITS} c WHERE c.ordinal = %s AND c.mark = %s)",
                    [position.ordinal, position.ordinal, mark],
                )
                if not xids:
                    return
                done = [xid for (xid,) in xids]
                logs = [layout.log_table(prepared.number) for prepared in installed.relations]
                for table in (*logs, layout.MARKS, layout.STATEMENTS):
                    self._control.execute(f"DELETE FROM {table} WHERE xid = ANY (%s)", [done])
                # The last one stays: it tells the position from that of another history.
                self._control.run(f"DELETE FROM {layout.COMMITS} WHERE ordinal < {position.ordinal}")
                self._control.run(f"UPDATE {META} SET trimmed = {position.ordinal}")
            self._trimmed = position

    def close(self) -> None:
        self._waker.wake()
        for session in (self._control, self._reader, self._listener):
            session.close()


def _fed(session: Session) -> set[int]:
    """The tables that are fed by subscriptions."""
    return {oid for (oid,) in session.rows("SELECT srrelid::int8 FROM pg_subscription_rel")}


def _is_fed(relation: SourceRelation, fed: Collection[int]) -> bool:
    return any(oid in fed for oid in relation.oids)


class TriggerHistory(History):
    """The change log as one snapshot shows it.

    The numbers may have been written after the snapshot, so they are read by another connection; what is
    numbered up to the snapshot's position never changes. The rows are read in the snapshot.
    """

    def __init__(
        self,
        source: str,
        control: Session,
        reader: Session,
        known: Known,
        position: Position,
        arrow: Callable[[], ArrowSession],
    ) -> None:
        self._source = source
        self._control = control
        self._reader = reader
        self._installed = known.installed
        self._position = position
        self._tables = known.tables
        self._broken = known.broken
        self._arrow = arrow

    @property
    def position(self) -> Position:
        return self._position

    def changes(self, after: Position, most_rows: int | None) -> Changes:
        self._check(after)
        if self._broken:
            raise self._broken[0]
        last = self._position.ordinal
        if most_rows is not None:
            last = min(last, after.ordinal + most_rows)
        entries = self._control.rows(
            f"SELECT ordinal, xid, mark FROM {layout.COMMITS} WHERE ordinal > %s AND ordinal <= %s"
            " ORDER BY ordinal",
            [after.ordinal, last],
        )
        if len(entries) != last - after.ordinal:
            raise trimmed(self._source, after)
        if not entries:
            return Changes((), {})
        if most_rows is not None and len(entries) > 1:
            entries = entries[: self._run_length([xid for _, xid, _ in entries], most_rows)]
        positions = tuple(
            Position(ordinal, f"{self._installed.epoch}:{mark}") for ordinal, _, mark in entries
        )
        index = pa.record_batch(
            {
                "1": pa.array([[xid for _, xid, _ in entries]], pa.list_(pa.int64())),
                "2": pa.array([list(range(len(entries)))], pa.list_(pa.int32())),
            }
        )
        written = self._reader.rows(
            f"SELECT DISTINCT relation FROM {layout.STATEMENTS} WHERE xid = ANY (%s)",
            [[xid for _, xid, _ in entries]],
        )
        numbers = {number for (number,) in written}
        for prepared in self._installed.relations:
            if -prepared.number in numbers:
                problem = "was truncated by a transaction that did not see all of its rows"
                raise changed(self._source, prepared.name, problem)
        marks = self._marks(index) if layout.MARK in numbers else ()
        return Changes(
            positions,
            self._rows(numbers, index),
            part_of=parts(self._source, positions, marks),
            more=positions[-1] < self._position,
        )

    def _run_length(self, xids: Sequence[int], most_rows: int) -> int:
        """How many of these entries, in order, make a run.

        Transaction by transaction, so that counting ends where the run does, however large the log is.
        """
        logs = [layout.log_table(prepared.number) for prepared in self._installed.relations]
        counted = " UNION ALL ".join(
            f"(SELECT k.tx FROM k CROSS JOIN LATERAL (SELECT FROM {log} l WHERE l.xid = k.xid OFFSET 0) AS l"
            f" LIMIT {most_rows + 1})"
            for log in logs
        )
        if not logs:
            return len(xids)
        counts = self._reader.rows(
            "WITH k AS (SELECT xid, place - 1 AS tx FROM unnest(%s::int8[]) WITH ORDINALITY AS u(xid, place))"
            f" SELECT tx, count(*) FROM ({counted}) AS c GROUP BY tx",
            [xids],
        )
        return run_length(counts, len(xids), most_rows)

    def _marks(self, index: pa.RecordBatch) -> Iterator[Mark]:
        found = read_table(
            self._arrow(),
            f"SELECT k.tx, m.id, m.participants FROM {layout.MARKS} m"
            " JOIN unnest($1::int8[], $2::int4[]) AS k(xid, tx) ON k.xid = m.xid ORDER BY k.tx",
            index,
        ).to_pydict()
        return (Mark(*row) for row in zip(found["tx"], found["id"], found["participants"], strict=True))

    def _check(self, after: Position) -> None:
        epoch, _, mark = after.token.partition(":")
        known = self._control.one(f"SELECT trimmed FROM {META}")
        first = known[0] if known is not None else self._installed.trimmed
        if after.ordinal < first or not after.token:
            raise trimmed(self._source, after)
        if after.ordinal > self._position.ordinal or epoch != self._installed.epoch:
            raise foreign(self._source, after)
        entry = self._control.one(f"SELECT mark FROM {layout.COMMITS} WHERE ordinal = %s", [after.ordinal])
        if (entry[0] if entry is not None else "") != mark:
            raise foreign(self._source, after)

    def _rows(self, numbers: Collection[int], index: pa.RecordBatch) -> Mapping[str, pa.Table]:
        tables = {}
        for prepared in self._installed.relations:
            relation = self._tables.relations.get(prepared.name)
            if relation is None or prepared.number not in numbers:
                continue  # not changed, or prepared for a source that shows it, which this one does not
            found = read_table(
                self._arrow(),
                f"SELECT {record_columns(relation)}, r.tx, r.n::int8 FROM (SELECT k.tx, l.count AS n,"
                f" l.row::{relation.qualified} AS v FROM {layout.log_table(prepared.number)} l"
                " JOIN unnest($1::int8[], $2::int4[]) AS k(xid, tx) ON k.xid = l.xid ORDER BY k.tx"
                " OFFSET 0) AS r",
                index,
            )
            if found.num_rows:
                tables[relation.name] = record_table(relation, found)
        return tables
