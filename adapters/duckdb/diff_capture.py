"""Diff capture: a shadow of the relations beside the wrapper, compared with the file whenever it changed.

For tables that are written with MERGE or ON CONFLICT DO UPDATE, which DuckDB refuses where triggers look on,
and for files whose owner wants nothing written into them.

Problem: give changes that agree with the rows of the same snapshot, and give them again after a restart.

Wrong ways: compare keys or timestamps (bags have none); keep the shadow in memory (a restart loses what
was not delivered); show a difference before it is durable (a crash would compute another one).

Chosen way: the shadow file holds, per relation, every distinct row with its number of copies, and the
differences found so far. A snapshot of a changed file sums +1 for each row now and -copies for each row of
the shadow, grouped by all columns (GROUP BY takes NULL and NaN as equal to themselves); what does not
cancel is the difference. State, differences, ordinal and the file's signature are committed in one
transaction before the snapshot is shown. All that was written since the last look is one batched entry.
The comparison reads the relations as a whole and holds the file meanwhile: that is its price.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

import duckdb
import pyarrow as pa

from adapters.duckdb.catalog import CatalogReader, SourceRelation, SourceTables
from adapters.duckdb.history import (
    Bounds,
    Capture,
    History,
    Shape,
    TrimPolicy,
    change_schema,
    check_shapes,
    drift,
)
from adapters.duckdb.options import DIFF, Options
from adapters.duckdb.session import SOURCE, LockedError, Session, one, transaction
from adapters.duckdb.sql import NEW_EPOCH, path, quote, text
from adapters.duckdb.types import duckdb_name
from adapters.duckdb.watch import Signature
from adapters.spi import COUNT, TRANSACTION, Boundaries, Capabilities, CaptureProfile, Changes
from algebra.errors import ConfigurationError, PositionTrimmedError
from algebra.position import Position

SHADOW = "shadow"
FLOATS = ("FLOAT", "DOUBLE")
_META = path(SHADOW, "main", "meta")
_RELATIONS = path(SHADOW, "main", "relations")
_CYCLES = path(SHADOW, "main", "cycles")
_FOUND = "_lockstep_found"


@dataclass(frozen=True)
class Kept:
    """One relation as the shadow knows it."""

    number: int
    name: str
    shape: Shape

    @property
    def columns(self) -> list[str]:
        return [f"c{i}" for i in range(len(self.shape))]

    @property
    def identity(self) -> list[str]:
        """Expressions over `columns` that tell any two rows apart: 0.0 equals -0.0, but is another row."""
        declared = [type_ for _, type_ in self.shape]
        return self.columns + [f"signbit(c{i})" for i, type_ in enumerate(declared) if type_ in FLOATS]

    @property
    def state(self) -> str:
        return path(SHADOW, "main", f"state_{self.number}")

    @property
    def diff(self) -> str:
        return path(SHADOW, "main", f"diff_{self.number}")


@dataclass(frozen=True)
class Shadow:
    """What the attached shadow holds; `epoch` is empty if it is new."""

    epoch: str
    trimmed: int
    mark: str
    signature: str
    relations: tuple[Kept, ...]


NEW = Shadow("", 0, "", "", ())


class DiffCapture(Capture):
    """Keeps the shadow file and finds what changed by comparison."""

    profile: ClassVar[CaptureProfile] = CaptureProfile(
        Capabilities(capture=DIFF, boundaries=Boundaries.BATCHED, needs_write=False),
        rights="read the file; write beside it",
        load="each cycle reads the captured tables whole, and holds the file while it does",
        deletes="found by comparing with a shadow",
    )

    def __init__(
        self, session: Session, options: Options, catalog: CatalogReader, policy: TrimPolicy
    ) -> None:
        self._session = session
        self._options = options
        self._catalog = catalog
        self._policy = policy
        self._names: tuple[str, ...] = ()

    def prepare(self, relations: Sequence[str], *, dry_run: bool) -> list[str]:
        with self._session.attached(timeout=self._options.lock_timeout) as connection:
            tables = self._catalog.read(connection)
            # Planned before anything is opened: what is refused must not leave a file behind.
            planned = _plan(self._session.source, NEW, tables, relations)
            exists = self._options.shadow.exists()
            steps = [] if exists else [f"create {self._options.shadow}"]
            if dry_run and not exists:
                return steps + planned
            with self._shadow(connection):
                statements = _plan(self._session.source, read_shadow(connection), tables, relations)
                if statements and not dry_run:
                    with transaction(connection):
                        for statement in statements:
                            connection.execute(statement)
                self._names = tuple(kept.name for kept in read_shadow(connection).relations)
        return steps + statements

    def remove(self, *, dry_run: bool) -> list[str]:
        shadow = self._options.shadow
        files = [file for file in (shadow, _wal(shadow)) if file.exists()]
        if not dry_run:
            self._names = ()
            for file in files:
                file.unlink()
        return [f"delete {file}" for file in files]

    @contextmanager
    def history(
        self, connection: duckdb.DuckDBPyConnection, tables: SourceTables, signature: Signature | None
    ) -> Iterator[History]:
        if not self._names and not self._options.shadow.exists():
            yield DiffHistory(connection, self._session.source, NEW, tables)
            return
        with self._shadow(connection):
            shadow = read_shadow(connection)
            if not shadow.epoch and self._names:
                # The file was lost while we ran: start a new history; positions of the old one are refused.
                with transaction(connection):
                    for statement in _plan(self._session.source, NEW, tables, self._names):
                        connection.execute(statement)
                shadow = read_shadow(connection)
            whole = not any(drift(k.shape, tables.relations.get(k.name)) for k in shadow.relations)
            if shadow.epoch and whole and (signature is None or shadow.signature != str(signature)):
                with transaction(connection):
                    compare(connection, shadow, tables, signature)
            yield DiffHistory(connection, self._session.source, shadow, tables)

    def acknowledge(self, position: Position) -> None:
        if not self._policy.is_due(position) or not self._options.shadow.exists():
            return
        try:
            with (
                self._session.attached_file(
                    SHADOW, self._options.shadow, write=True, timeout=0
                ) as connection,
                transaction(connection),
            ):
                trimmed = _trim(connection, self._session.source, position)
        except LockedError:
            return
        self._policy.done(trimmed)

    @contextmanager
    def _shadow(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        if not self._options.shadow.exists() and not self._options.shadow.parent.is_dir():
            raise ConfigurationError(
                f"source {self._session.source!r}: the folder of shadow {self._options.shadow} does not exist"
            )
        timeout = self._options.lock_timeout
        with self._session.attached_file(SHADOW, self._options.shadow, write=True, timeout=timeout):
            yield


class DiffHistory(History):
    """The differences found so far, as kept in the attached shadow."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, source: str, shadow: Shadow, tables: SourceTables
    ) -> None:
        self._connection = connection
        self._source = source
        self._shadow = shadow
        self._tables = tables

    @property
    def position(self) -> Position:
        bounds = self._bounds()
        return Position(bounds.current, bounds.token(self._marks(bounds.current - 1)[-1]))

    def changes(self, after: Position) -> Changes:
        bounds = self._bounds()
        check_shapes(self._source, {k.name: k.shape for k in self._shadow.relations}, self._tables)
        bounds.check(after)
        at, *later = self._marks(after.ordinal - 1)
        bounds.check_mark(after, at)
        positions = tuple(
            Position(ordinal, bounds.token(mark)) for ordinal, mark in enumerate(later, after.ordinal + 1)
        )
        if not positions:
            return Changes((), {})
        return Changes(positions, self._rows(after), frozenset(range(len(positions))))

    def _bounds(self) -> Bounds:
        if not self._shadow.epoch:
            raise ConfigurationError(f"source {self._source!r} has no capture installed; prepare it first")
        return _bounds(self._connection, self._source, self._shadow)

    def _marks(self, after: int) -> list[str]:
        """The marks of all entries after an ordinal, led by that of the trimmed stretch if it is reached."""
        rows = self._connection.execute(
            f"SELECT mark FROM {_CYCLES} WHERE ordinal > $1 ORDER BY ordinal", [after]
        ).fetchall()
        marks = [str(row[0]) for row in rows]
        return [self._shadow.mark, *marks] if after < self._shadow.trimmed else marks

    def _rows(self, after: Position) -> Mapping[str, pa.Table]:
        tables = {}
        for kept in self._shadow.relations:
            shown = self._tables.relations[kept.name].shown(self._source)
            columns = [
                f"{stored} AS {quote(c.name)}" for stored, c in zip(kept.columns, shown.columns, strict=True)
            ]
            rows = self._connection.sql(
                f"SELECT {', '.join(columns)}, CAST(ordinal - $1 - 1 AS INTEGER) AS {TRANSACTION}, "
                f"copies AS {COUNT} FROM {kept.diff} WHERE ordinal > $1 ORDER BY ordinal",
                params=[after.ordinal],
            ).to_arrow_table()
            if rows.num_rows:
                tables[kept.name] = rows.cast(change_schema(shown))
        return tables


def read_shadow(connection: duckdb.DuckDBPyConnection) -> Shadow:
    """What the attached shadow holds."""
    found = one(
        connection, "SELECT 1 FROM duckdb_tables() WHERE database_name = $1 AND table_name = 'meta'", [SHADOW]
    )
    meta = found and one(connection, f"SELECT epoch, trimmed, mark, signature FROM {_META}")
    if not meta:
        return NEW
    rows = connection.execute(f"SELECT number, relation, shape FROM {_RELATIONS} ORDER BY number").fetchall()
    relations = tuple(
        Kept(number, name, tuple((column, declared) for column, declared in json.loads(shape)))
        for number, name, shape in rows
    )
    return Shadow(meta[0], meta[1], meta[2], meta[3], relations)


def compare(
    connection: duckdb.DuckDBPyConnection, shadow: Shadow, tables: SourceTables, signature: Signature | None
) -> None:
    """Add what differs between the attached file and the shadow as one entry, if anything does."""
    row = one(connection, f"SELECT max(ordinal) FROM {_CYCLES}")
    ordinal = 1 + max(shadow.trimmed, row[0] or 0 if row else 0)
    changed = False
    for kept in shadow.relations:
        changed |= _compare_relation(connection, kept, tables.relations[kept.name], ordinal)
    if changed:
        connection.execute(f"INSERT INTO {_CYCLES} VALUES ($1, $2)", [ordinal, uuid4().hex])
    connection.execute(f"UPDATE {_META} SET signature = $1", ["" if signature is None else str(signature)])


def _compare_relation(
    connection: duckdb.DuckDBPyConnection, kept: Kept, relation: SourceRelation, ordinal: int
) -> bool:
    columns = ", ".join(kept.columns)
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {_FOUND} AS "
        f"SELECT {columns}, sum(copies)::BIGINT AS copies, sum(present)::BIGINT AS present "
        f"FROM (SELECT {_reads(relation)}, 1 AS copies, 1 AS present FROM {_origin(relation)} AS t "
        f"UNION ALL SELECT {columns}, -copies, 0 FROM {kept.state}"
        f") GROUP BY {', '.join(kept.identity)} HAVING sum(copies) <> 0"
    )
    row = one(connection, f"SELECT count(*) FROM {_FOUND}")
    if row is None or row[0] == 0:
        return False
    same = " AND ".join(f"s.i{n} IS NOT DISTINCT FROM f.i{n}" for n in range(len(kept.identity)))
    parts = ", ".join(f"{expression} AS i{n}" for n, expression in enumerate(kept.identity))
    connection.execute(f"INSERT INTO {kept.diff} SELECT {ordinal}, copies, {columns} FROM {_FOUND}")
    connection.execute(
        f"DELETE FROM {kept.state} WHERE rowid IN (SELECT s.place "
        f"FROM (SELECT rowid AS place, {parts} FROM {kept.state}) AS s "
        f"JOIN (SELECT {parts} FROM {_FOUND}) AS f ON {same})"
    )
    connection.execute(f"INSERT INTO {kept.state} SELECT present, {columns} FROM {_FOUND} WHERE present > 0")
    return True


def _plan(source: str, shadow: Shadow, tables: SourceTables, names: Sequence[str]) -> list[str]:
    wanted = tables.select(names)
    for relation in wanted:
        relation.shown(source)
    steps = [] if shadow.epoch else _create_base()
    broken = [k for k in shadow.relations if drift(k.shape, tables.relations.get(k.name))]
    for kept in broken:
        steps += [
            f"DROP TABLE {kept.state}",
            f"DROP TABLE {kept.diff}",
            f"DELETE FROM {_RELATIONS} WHERE number = {kept.number}",
        ]
        if kept.name in tables.relations:
            wanted.append(tables.relations[kept.name])
    healthy = [k for k in shadow.relations if k not in broken]
    if broken:
        # The history is given up, but ordinals go on: positions never go backwards.
        steps += [
            f"UPDATE {_META} SET epoch = {NEW_EPOCH}, mark = '', signature = '', "
            f"trimmed = greatest(trimmed, coalesce((SELECT max(ordinal) FROM {_CYCLES}), 0))",
            f"DELETE FROM {_CYCLES}",
            *(f"DELETE FROM {kept.diff}" for kept in healthy),
        ]
    number = max((k.number for k in shadow.relations), default=0)
    for name, relation in {r.name: r for r in wanted}.items():
        if name not in {k.name for k in healthy}:
            number += 1
            steps += _create_relation(Kept(number, name, relation.shape), relation)
    return steps


def _create_base() -> list[str]:
    return [
        f"CREATE TABLE {_META} AS "
        f"SELECT {NEW_EPOCH} AS epoch, 0::BIGINT AS trimmed, '' AS mark, '' AS signature",
        f"CREATE TABLE {_RELATIONS} (number INTEGER, relation VARCHAR, shape VARCHAR)",
        f"CREATE TABLE {_CYCLES} (ordinal BIGINT, mark VARCHAR)",
    ]


def _create_relation(kept: Kept, relation: SourceRelation) -> list[str]:
    shown = [duckdb_name(c.type.arrow) for c in relation.columns if c.type is not None]
    columns = ", ".join(f"{name} {type_}" for name, type_ in zip(kept.columns, shown, strict=True))
    shape = json.dumps(relation.shape, ensure_ascii=False)
    names = ", ".join(kept.columns)
    return [
        f"CREATE TABLE {kept.state} (copies BIGINT, {columns})",
        f"CREATE TABLE {kept.diff} (ordinal BIGINT, copies BIGINT, {columns})",
        f"INSERT INTO {kept.state} SELECT count(*), {names} "
        f"FROM (SELECT {_reads(relation)} FROM {_origin(relation)} AS t) GROUP BY {', '.join(kept.identity)}",
        f"INSERT INTO {_RELATIONS} VALUES ({kept.number}, {text(kept.name)}, {text(shape)})",
    ]


def _reads(relation: SourceRelation) -> str:
    return ", ".join(f"{relation.read(c.name, 't')} AS c{i}" for i, c in enumerate(relation.columns))


def _origin(relation: SourceRelation) -> str:
    return path(SOURCE, relation.schema, relation.table)


def _bounds(connection: duckdb.DuckDBPyConnection, source: str, shadow: Shadow) -> Bounds:
    row = one(connection, f"SELECT max(ordinal) FROM {_CYCLES}")
    current = max(shadow.trimmed, row[0] or 0 if row else 0)
    return Bounds(source, shadow.epoch, shadow.trimmed, current)


def _trim(connection: duckdb.DuckDBPyConnection, source: str, position: Position) -> int:
    """Delete the differences up to a position of this history; returns how far it is trimmed now."""
    shadow = read_shadow(connection)
    row = one(connection, f"SELECT mark FROM {_CYCLES} WHERE ordinal = $1", [position.ordinal])
    if row is None:
        return shadow.trimmed
    try:
        _bounds(connection, source, shadow).check_mark(position, row[0])
    except PositionTrimmedError:
        # A position of another history: nothing of this one was acknowledged by it.
        return shadow.trimmed
    for kept in shadow.relations:
        connection.execute(f"DELETE FROM {kept.diff} WHERE ordinal <= $1", [position.ordinal])
    connection.execute(f"DELETE FROM {_CYCLES} WHERE ordinal <= $1", [position.ordinal])
    connection.execute(f"UPDATE {_META} SET trimmed = $1, mark = $2", [position.ordinal, row[0]])
    return position.ordinal


def _wal(file: Path) -> Path:
    return file.with_name(file.name + ".wal")
