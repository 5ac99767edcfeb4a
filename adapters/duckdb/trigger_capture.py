"""Trigger capture: a change log inside the source, read in the same snapshot as the rows.

Problem: from log rows that triggers wrote, tell which belong to one transaction, and in which order the
transactions committed; and number them so that nothing is ever lost or delivered twice.

Wrong ways:
- Transaction ids: `txid_current()` starts anew whenever the file is opened, and orders by start, not by
  commit (measured: 1,377 neighbours out of id order in a run of 3,687 concurrent transactions).
- A sequence: drawn when a statement runs, so concurrent transactions interleave, and one with small
  numbers may commit last.
- A counter row that every trigger updates: concurrent transactions of the owner would conflict.

Chosen way: the physical order of the table `commits`. DuckDB keeps the rows a transaction inserts private
to it and appends them to the table while it commits, one commit after the other. So `rowid` order is commit
order, and the entries of one transaction are adjacent. Checkpoints, deletes and the replay of the
write-ahead log keep that order. (Measured: six connections, restarts, crashes, checkpoints, rollbacks,
transactions of 390,000 rows, trims: all 1,846 commits whose order was known came out in that order; every
transaction was contiguous.) Rowids themselves may change when deleted rows are vacuumed, so an entry's
ordinal is the number of entries trimmed so far plus its place in that order; both change in one
transaction.

A transaction is a run of entries with the same (`txid_current()`, `now()`); `now()` is the microsecond the
transaction began, and tells apart equal ids of two openings of the file. Were both ever equal (a clock that
stands still or is set back to that very microsecond), a run that is not adjacent, or reaches back over a
position given out before, is found and ends in a resync; two adjacent ones that are both new would come as
one entry, with the right rows.

A snapshot can only be had while no writer has the file open (`session.py`): there are no transactions in
flight, whatever commits later is appended later, and the position needs no list of gaps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from adapters.duckdb import trigger_layout as layout
from adapters.duckdb.catalog import OWN_SCHEMA, CatalogReader, SourceRelation, SourceTables
from adapters.duckdb.history import Capture, History
from adapters.duckdb.options import TRIGGER, Options
from adapters.duckdb.session import SOURCE, Session
from adapters.duckdb.watch import Signature
from adapters.global_marks import Mark, parts
from adapters.run_length import run_length
from adapters.shadow.engine import LockedError, one
from adapters.shadow.history import Bounds, Shape, TrimPolicy, change_schema, changed, drift, not_prepared
from adapters.shadow.sql import quote, text
from adapters.spi import COUNT, TRANSACTION, Boundaries, Capabilities, CaptureProfile, Changes
from algebra.errors import ConfigurationError, PositionTrimmedError
from algebra.position import Position

_TRIGGERS = f"""
    SELECT trigger_name, schema_name, table_name FROM duckdb_triggers()
    WHERE database_name = {text(SOURCE)} AND starts_with(trigger_name, {text(OWN_SCHEMA)}) ORDER BY ALL"""
_INDEX = "_lockstep_index"


@dataclass(frozen=True)
class Prepared:
    """One relation as capture knows it."""

    number: int
    name: str
    shape: Shape


@dataclass(frozen=True)
class Installed:
    """What is installed in the attached file; `epoch` is empty if nothing is."""

    epoch: str
    trimmed: int
    mark: str
    relations: tuple[Prepared, ...]
    triggers: tuple[tuple[str, str, str], ...]

    def broken(self, tables: SourceTables) -> dict[int, str]:
        """The prepared relations whose capture no longer works, by number, with the reason in words."""
        problems = {}
        for prepared in self.relations:
            relation = tables.relations.get(prepared.name)
            problem = drift(prepared.shape, None if relation is None else relation.shape)
            if problem is None and relation is not None and not self._has_triggers(prepared, relation):
                problem = "lost its triggers"
            if problem is not None:
                problems[prepared.number] = problem
        return problems

    @property
    def takes_marks(self) -> bool:
        """Whether the marker table is there and works."""
        return {name for name, _, _ in self.triggers}.issuperset(layout.MARK_TRIGGERS)

    def _has_triggers(self, prepared: Prepared, relation: SourceRelation) -> bool:
        found = {name for name, *place in self.triggers if place == [relation.schema, relation.table]}
        return found.issuperset(layout.trigger_names(prepared.number))


def read_installed(connection: duckdb.DuckDBPyConnection) -> Installed:
    """What trigger capture finds of itself in the attached file."""
    triggers = tuple(connection.execute(_TRIGGERS).fetchall())
    found = one(
        connection,
        "SELECT 1 FROM duckdb_schemas() WHERE database_name = $1 AND schema_name = $2",
        [SOURCE, OWN_SCHEMA],
    )
    if found is None:
        return Installed("", 0, "", (), triggers)
    meta = one(connection, f"SELECT epoch, trimmed, mark FROM {_in_source(layout.META)}")
    if meta is None:
        raise ConfigurationError(f"the table {layout.META} is empty; remove capture and prepare again")
    rows = connection.execute(
        f"SELECT number, relation, shape FROM {_in_source(layout.RELATIONS)} ORDER BY number"
    ).fetchall()
    relations = tuple(
        Prepared(number, name, tuple((column, declared) for column, declared in json.loads(shape)))
        for number, name, shape in rows
    )
    return Installed(meta[0], meta[1], meta[2], relations, triggers)


class TriggerCapture(Capture):
    """Installs, reads and trims the change log in the source's own file."""

    profile: ClassVar[CaptureProfile] = CaptureProfile(
        Capabilities(
            capture=TRIGGER, boundaries=Boundaries.EXACT, global_transactions=True, bounded_runs=True
        ),
        rights="read and write the file",
        load="triggers copy each changed row into a log table; a snapshot holds the file for a moment",
    )

    def __init__(
        self, session: Session, options: Options, catalog: CatalogReader, policy: TrimPolicy
    ) -> None:
        self._session = session
        self._options = options
        self._catalog = catalog
        self._policy = policy

    def prepare(self, relations: Sequence[str], *, dry_run: bool) -> list[str]:
        with self._session.attached(timeout=self._options.lock_timeout) as connection:
            steps = self._plan(connection, relations)
        if steps and not dry_run:
            with self._session.writing(self._options.lock_timeout) as connection:
                # The file was free in between: what has to be done is decided again, under the lock.
                steps = self._plan(connection, relations)
                _run(connection, steps)
        return steps

    def remove(self, *, dry_run: bool) -> list[str]:
        with self._session.attached(timeout=self._options.lock_timeout) as connection:
            steps = _removal(read_installed(connection))
        if steps and not dry_run:
            with self._session.writing(self._options.lock_timeout) as connection:
                steps = _removal(read_installed(connection))
                _run(connection, steps)
        return steps

    @contextmanager
    def history(
        self, connection: duckdb.DuckDBPyConnection, tables: SourceTables, signature: Signature | None
    ) -> Iterator[History]:
        yield TriggerHistory(connection, self._session.source, read_installed(connection), tables)

    def acknowledge(self, position: Position) -> None:
        if not self._policy.is_due(position):
            return
        try:
            with self._session.writing(timeout=0) as connection:
                trimmed = _trim(connection, self._session.source, position)
        except LockedError:
            return
        self._policy.done(trimmed)

    def _plan(self, connection: duckdb.DuckDBPyConnection, names: Sequence[str]) -> list[str]:
        tables = self._catalog.read(connection)
        wanted = tables.select(names)
        for relation in wanted:
            relation.shown(self._session.source)
        installed = read_installed(connection)
        steps = [] if installed.epoch else layout.create_base()
        if not installed.takes_marks:
            steps += _drop_triggers(installed, frozenset(layout.MARK_TRIGGERS))
            steps += layout.create_marker()
        broken = installed.broken(tables)
        kept = [p for p in installed.relations if p.number not in broken]
        for prepared in installed.relations:
            if prepared.number in broken:
                steps += _drop_triggers(installed, layout.trigger_names(prepared.number))
                steps += layout.drop_relation(prepared.number)
                if prepared.name in tables.relations:
                    wanted.append(tables.relations[prepared.name])
        if broken:
            steps += layout.new_epoch([p.number for p in kept])
        have = {p.name for p in kept}
        number = max((p.number for p in installed.relations), default=0)
        for name, relation in {r.name: r for r in wanted}.items():
            if name not in have:
                number += 1
                steps += layout.create_relation(number, relation)
        return steps


class TriggerHistory(History):
    """The change log as one snapshot shows it."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, source: str, installed: Installed, tables: SourceTables
    ) -> None:
        self._connection = connection
        self._source = source
        self._installed = installed
        self._tables = tables

    @property
    def position(self) -> Position:
        bounds = self._bounds()
        return Position(bounds.current, bounds.token(self._mark(bounds.current)))

    def changes(self, after: Position, most_rows: int | None) -> Changes:
        bounds = self._bounds()
        self._check_capture()
        bounds.check(after)
        bounds.check_mark(after, self._mark(after.ordinal))
        if after.ordinal == bounds.current:
            return Changes((), {})
        transactions = self._transactions(after, most_rows)
        if self._any_broken(transactions):
            raise bounds.foreign(after)
        if most_rows is not None and transactions.num_rows > 1:
            transactions = transactions.slice(0, self._run_length(transactions, most_rows))
        positions = tuple(
            Position(ordinal, bounds.token(mark))
            for ordinal, mark in zip(
                transactions["last"].to_pylist(), transactions["mark"].to_pylist(), strict=True
            )
        )
        cursor = self._connection.cursor()
        try:
            index = pa.array(range(transactions.num_rows), pa.int32())
            cursor.register(_INDEX, transactions.select(["tx", "started"]).append_column(TRANSACTION, index))
            marked = pc.any(transactions["marked"]).as_py()
            part_of = parts(self._source, positions, self._global_marks(cursor)) if marked else {}
            more = positions[-1].ordinal < bounds.current
            return Changes(positions, self._rows(cursor), part_of=part_of, more=more)
        finally:
            cursor.close()

    def _bounds(self) -> Bounds:
        if not self._installed.epoch:
            raise not_prepared(self._source)
        count = one(self._connection, f"SELECT count(*) FROM {_in_source(layout.COMMITS)}")
        entries = int(count[0]) if count else 0
        trimmed = self._installed.trimmed
        return Bounds(self._source, self._installed.epoch, trimmed, trimmed + entries)

    def _check_capture(self) -> None:
        names = {p.number: p.name for p in self._installed.relations}
        for number, problem in self._installed.broken(self._tables).items():
            raise changed(self._source, names[number], problem)

    def _mark(self, ordinal: int) -> str:
        return mark_at(self._connection, self._installed.trimmed, self._installed.mark, ordinal)

    def _transactions(self, after: Position, most_rows: int | None) -> pa.Table:
        """One row per transaction that ends after the position, in commit order.

        With `most_rows`, as many as can be in a run of so many rows: each entry has a row at least.
        """
        commits, skipped = _in_source(layout.COMMITS), after.ordinal - self._installed.trimmed
        window = None if most_rows is None else most_rows + 1
        while True:
            limit = "" if window is None else f"LIMIT {window}"
            found = self._connection.sql(
                f"""
                SELECT tx, started, min(ordinal) AS first, max(ordinal) AS last, count(*) AS entries,
                       tx || '.' || started AS mark, bool_or(number = {layout.MARK}) AS marked
                FROM (
                    SELECT tx, started, number, $1 + row_number() OVER (ORDER BY place) AS ordinal
                    FROM (SELECT tx, started, number, rowid AS place FROM {commits}
                          ORDER BY rowid {limit} OFFSET $2)
                )
                GROUP BY tx, started ORDER BY last
                """,
                params=[after.ordinal, skipped],
            ).to_arrow_table()
            if window is None or pc.sum(found["entries"]).as_py() < window:
                return found
            if found.num_rows > 1:
                return found.slice(0, found.num_rows - 1)  # the last one may go on beyond the window
            window *= 2

    def _any_broken(self, transactions: pa.Table) -> bool:
        """Whether a transaction is not one run of entries, all of them among those that were looked at."""
        length = pc.add(pc.subtract(transactions["last"], transactions["first"]), 1)
        if pc.any(pc.not_equal(length, transactions["entries"])).as_py():
            return True
        cursor = self._connection.cursor()
        try:
            cursor.register(_INDEX, transactions.select(["tx", "started"]))
            entries = one(
                cursor,
                f"SELECT count(*) FROM {_in_source(layout.COMMITS)} AS c "
                f"SEMI JOIN {_INDEX} AS i ON c.tx = i.tx AND c.started = i.started",
            )
            return entries is None or entries[0] != pc.sum(transactions["entries"]).as_py()
        finally:
            cursor.close()

    def _run_length(self, transactions: pa.Table, most_rows: int) -> int:
        """How many of these transactions, in order, make a run."""
        cursor = self._connection.cursor()
        try:
            index = pa.array(range(transactions.num_rows), pa.int32())
            cursor.register(_INDEX, transactions.select(["tx", "started"]).append_column(TRANSACTION, index))
            counts: list[tuple[int, int]] = []
            for prepared in self._installed.relations:
                counts += cursor.execute(
                    f"SELECT i.{TRANSACTION}, count(*) "
                    f"FROM {_in_source(layout.log_table(prepared.number))} AS l "
                    f"JOIN {_INDEX} AS i ON l.tx = i.tx AND l.started = i.started GROUP BY ALL"
                ).fetchall()
            return run_length(counts, transactions.num_rows, most_rows)
        finally:
            cursor.close()

    def _rows(self, cursor: duckdb.DuckDBPyConnection) -> Mapping[str, pa.Table]:
        tables = {
            prepared.name: self._relation_rows(cursor, prepared) for prepared in self._installed.relations
        }
        return {name: table for name, table in tables.items() if table.num_rows}

    def _global_marks(self, cursor: duckdb.DuckDBPyConnection) -> list[Mark]:
        rows = cursor.execute(
            f"SELECT i.{TRANSACTION}, m.id, m.participants FROM {_in_source(layout.MARKS)} AS m "
            f"JOIN {_INDEX} AS i ON m.tx = i.tx AND m.started = i.started"
        ).fetchall()
        return [Mark(*row) for row in rows]

    def _relation_rows(self, cursor: duckdb.DuckDBPyConnection, prepared: Prepared) -> pa.Table:
        relation = self._tables.relations[prepared.name]
        shown = relation.shown(self._source)
        columns = ", ".join(
            f"{column.type.read(f'l.{layout.log_column(i)}')} AS {quote(column.name)}"
            for i, column in enumerate(relation.columns)
            if column.type is not None
        )
        rows = cursor.sql(
            f"SELECT {columns}, i.{TRANSACTION}, CAST(l.sign AS BIGINT) AS {COUNT} "
            f"FROM {_in_source(layout.log_table(prepared.number))} AS l "
            f"JOIN {_INDEX} AS i ON l.tx = i.tx AND l.started = i.started ORDER BY i.{TRANSACTION}"
        ).to_arrow_table()
        return rows.cast(change_schema(shown.arrow))


def mark_at(connection: duckdb.DuckDBPyConnection, trimmed: int, mark: str, ordinal: int) -> str:
    """The mark of the entry with this ordinal; '' before the first."""
    if ordinal <= trimmed:
        return mark
    row = one(
        connection,
        f"SELECT tx || '.' || started FROM {_in_source(layout.COMMITS)} ORDER BY rowid LIMIT 1 OFFSET $1",
        [ordinal - trimmed - 1],
    )
    return str(row[0]) if row else ""


def _trim(connection: duckdb.DuckDBPyConnection, source: str, position: Position) -> int:
    """Delete the log up to a position of this history; returns how far it is trimmed now."""
    installed = read_installed(connection)
    row = one(connection, f"SELECT count(*) FROM {layout.COMMITS}")
    bounds = Bounds(
        source, installed.epoch, installed.trimmed, installed.trimmed + (int(row[0]) if row else 0)
    )
    mark = mark_at(connection, installed.trimmed, installed.mark, position.ordinal)
    try:
        bounds.check(position)
        bounds.check_mark(position, mark)
    except PositionTrimmedError:
        # Trimmed before, or a position of another history: nothing of this one was acknowledged by it.
        return installed.trimmed
    last = one(
        connection,
        f"SELECT max(place) FROM (SELECT rowid AS place FROM {layout.COMMITS} ORDER BY rowid LIMIT $1)",
        [position.ordinal - installed.trimmed],
    )
    logs = [layout.log_table(prepared.number) for prepared in installed.relations]
    if installed.takes_marks:
        # Nobody else has the file open: whatever is in the marker table was taken over into `marks`.
        connection.execute(f"DELETE FROM {layout.MARKER}")
        logs.append(layout.MARKS)
    for table in logs:
        connection.execute(
            f"DELETE FROM {table} AS l USING "
            f"(SELECT DISTINCT tx, started FROM {layout.COMMITS} WHERE rowid <= $1) AS e "
            "WHERE l.tx = e.tx AND l.started = e.started",
            last,
        )
    connection.execute(f"DELETE FROM {layout.COMMITS} WHERE rowid <= $1", last)
    connection.execute(f"UPDATE {layout.META} SET trimmed = $1, mark = $2", [position.ordinal, mark])
    return position.ordinal


def _removal(installed: Installed) -> list[str]:
    steps = _drop_triggers(installed, frozenset(name for name, _, _ in installed.triggers))
    return [*steps, *layout.drop_base()] if installed.epoch else steps


def _drop_triggers(installed: Installed, names: frozenset[str]) -> list[str]:
    return [layout.drop_trigger(*trigger) for trigger in installed.triggers if trigger[0] in names]


def _run(connection: duckdb.DuckDBPyConnection, steps: Sequence[str]) -> None:
    for step in steps:
        connection.execute(step)


def _in_source(name: str) -> str:
    return f"{quote(SOURCE)}.{name}"
