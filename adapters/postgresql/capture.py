"""What both captures share: what they note in the source, how drift is told, and what they offer the
adapter."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from adapters.global_marks import MARKER
from adapters.postgresql.catalog import (
    OWN,
    STATES,
    Shape,
    SourceRelation,
    SourceTables,
    State,
    read_tables,
)
from adapters.postgresql.connection import ArrowSession, Session, translated
from adapters.postgresql.options import Options
from adapters.postgresql.sql import path, quote, text
from adapters.postgresql.waker import Waker
from adapters.spi import COUNT, TRANSACTION, Changes
from algebra.errors import ConfigurationError, PositionTrimmedError, SchemaChangedError
from algebra.position import Position

META = f"{OWN}.meta"
RELATIONS = f"{OWN}.relations"


@dataclass(frozen=True)
class Prepared:
    """One relation as capture knows it. `identity`: the replica identities to restore, by table. `state`:
    that of its tables, as of when it was last found to mean no other rows."""

    number: int
    name: str
    schema: str
    table: str
    shape: Shape
    identity: tuple[tuple[str, str], ...]
    state: State


@dataclass(frozen=True)
class Installed:
    """What is installed in the source; `epoch` is empty if nothing is.

    `foreign`: it was installed in another database, of which this one is a copy, or by an earlier version.
    Its history does not count, and `prepare` installs everything anew.
    """

    epoch: str = ""
    trimmed: int = 0
    relations: tuple[Prepared, ...] = ()
    foreign: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(prepared.name for prepared in self.relations)


def read_installed(session: Session, source: str, capture: str) -> Installed:
    """What capture finds of itself; ConfigurationError if another capture is installed."""
    if session.one("SELECT to_regclass(%s)", [META])[0] is None:
        return Installed()
    found = session.one(f"SELECT to_jsonb(m) FROM {META} m")
    if found is None:
        raise ConfigurationError(
            f"source {source!r}: the table {META} is empty; remove capture and prepare again"
        )
    (meta,) = found
    if meta["capture"] != capture:
        raise ConfigurationError(
            f"source {source!r} has capture {meta['capture']!r} installed, not {capture!r}; remove it first"
        )
    rows = session.rows(f"SELECT to_jsonb(r) FROM {RELATIONS} r ORDER BY r.number")
    home = meta.get("home")
    # Ids of tables mean nothing in another database; an earlier version did not note where it was.
    moved = home is not None and not _is_same_home(home, read_home(session))
    return Installed(
        meta["epoch"],
        meta["trimmed"],
        tuple(_prepared(row, moved=moved) for (row,) in rows),
        foreign=moved or home is None,
    )


def _prepared(row: Mapping[str, Any], *, moved: bool) -> Prepared:
    identity = () if moved else json.loads(row["identity"])
    return Prepared(
        number=row["number"],
        name=row["relation"],
        schema=row["schema"],
        table=row["table"],
        shape=tuple(tuple(part) for part in json.loads(row["shape"])),
        identity=tuple((table, kind) for table, kind in identity),
        state=row.get("state", {}),
    )


def read_home(session: Session) -> str:
    """What tells this database from any other that its dump is restored into.

    The server's own identity where its role may ask for it, as every role may unless that was revoked.
    """
    database, may_ask = session.one(
        "SELECT oid::text, has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')"
        " FROM pg_database WHERE datname = current_database()"
    )
    if not may_ask:
        return str(database)
    return f"{session.one('SELECT system_identifier FROM pg_control_system()')[0]}.{database}"


def _is_same_home(noted: str, now: str) -> bool:
    """Whether both tell of one database; the server counts if who noted it and who looks could ask for it."""
    pairs = zip(reversed(noted.split(".")), reversed(now.split(".")), strict=False)
    return all(before == after for before, after in pairs)


EPOCH = "replace(gen_random_uuid()::text, '-', '')"
"""Drawn by the server, so that a dry run shows the statements as they will be."""


def create_base(capture: str, home: str) -> list[str]:
    """The statements that make room for what capture notes."""
    return [
        f"CREATE SCHEMA {OWN}",
        f"CREATE TABLE {META} (capture text NOT NULL, epoch text NOT NULL, trimmed int8 NOT NULL,"
        " home text NOT NULL)",
        f"INSERT INTO {META} VALUES ({text(capture)}, {EPOCH}, 0, {text(home)})",
        f"CREATE TABLE {RELATIONS} (number int4 PRIMARY KEY, relation text UNIQUE NOT NULL,"
        ' "schema" text NOT NULL,'
        f' "table" text NOT NULL, shape text NOT NULL, identity text NOT NULL, state jsonb NOT NULL)',
    ]


def note_relation(number: int, relation: SourceRelation, identity: Sequence[tuple[str, str]] = ()) -> str:
    """The statement that notes a relation as prepared, in the state that it has by then."""
    values = (
        relation.name,
        relation.schema,
        relation.table,
        json.dumps(relation.shape),
        json.dumps(list(identity)),
    )
    oids = ", ".join(map(str, relation.oids))
    return (
        f"INSERT INTO {RELATIONS} SELECT {number}, {', '.join(text(value) for value in values)},"
        f" jsonb_object_agg(s.oid, s.state) FROM ({STATES} WHERE c.oid IN ({oids})) AS s"
    )


def note_state(session: Session, prepared: Prepared, state: State) -> None:
    """Note what has become of a relation's tables, if nobody else has done so; not worth waiting for."""
    session.execute(
        f"UPDATE {RELATIONS} SET state = %s::jsonb WHERE number = (SELECT number FROM {RELATIONS}"
        " WHERE number = %s AND state = %s::jsonb FOR UPDATE SKIP LOCKED)",
        [json.dumps(state), prepared.number, json.dumps(prepared.state)],
    )


def create_marker(schema: str, function: str, body: str, *, definer: bool) -> list[str]:
    """The marker: a view whose INSERT runs `body` with NEW.id and NEW.participants, and keeps no row.

    A view, because rows would have to be deleted again, and because its trigger cannot fail on a constraint.
    """
    marker = path(schema, MARKER)
    return [
        f"CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql"
        f" {'SECURITY DEFINER ' if definer else ''}SET search_path = pg_catalog, pg_temp"
        f" AS $lockstep$ BEGIN {body} RETURN NEW; END $lockstep$",
        f"CREATE VIEW {marker} AS SELECT NULL::text AS id, NULL::text AS participants WHERE false",
        f"CREATE TRIGGER _lockstep_mark INSTEAD OF INSERT ON {marker}"
        f" FOR EACH ROW EXECUTE FUNCTION {function}()",
        # A mark must not make an application's transaction fail.
        f"GRANT INSERT ON {marker} TO PUBLIC",
    ]


def drop_marker(session: Session) -> list[str]:
    """The statement that takes the marker away, wherever it is."""
    marker = session.one(
        "SELECT c.oid::regclass::text FROM pg_class c JOIN pg_trigger t ON t.tgrelid = c.oid"
        " WHERE c.relname = %s AND c.relkind = 'v' AND t.tgname = '_lockstep_mark'",
        [MARKER],
    )
    return [f"DROP VIEW {marker[0]}"] if marker is not None else []


def run_together(session: Session, steps: Sequence[str]) -> None:
    """Run the statements in one transaction."""
    if steps:
        with session.transaction():
            for step in steps:
                session.run(step)


def drift(prepared: Prepared, relation: SourceRelation | None) -> str | None:
    """In words, how a relation differs from what was prepared; None if it does not."""
    if relation is None:
        return "was dropped or renamed"
    before = {name: rest for name, *rest in prepared.shape}
    now = {name: rest for name, *rest in relation.shape}
    for name in before.keys() - now.keys():
        return f"lost {_thing(name)}"
    for name in now.keys() - before.keys():
        return f"got {_thing(name)}"
    for name, (declared, which) in now.items():
        if before[name][0] != declared:
            return f"changed column {name!r} from {before[name][0]} to {declared}"
        if before[name][1] != which:
            return f"got another {_thing(name)} of that name"
    if tuple(before) != tuple(now):
        return "changed the order of its columns"
    if any(_was_rewritten(prepared.state.get(oid), state) for oid, state in relation.state.items()):
        return "may have other values in its columns (it was rewritten, and its columns were altered)"
    return None


def _was_rewritten(before: Mapping[str, str] | None, now: Mapping[str, str]) -> bool:
    """Whether a table's rows may have been changed by ALTER COLUMN … TYPE … USING.

    It makes a new file and alters a column. TRUNCATE, VACUUM FULL and CLUSTER do only the former; statistics,
    defaults, grants and constraints do only the latter.
    """
    return before is None or (before["file"] != now["file"] and before["columns"] != now["columns"])


def _thing(name: str) -> str:
    return name if name.startswith("partition ") else f"column {name!r}"


def changed(source: str, relation: str, problem: str) -> SchemaChangedError:
    return SchemaChangedError(
        f"relation {source}.{relation} {problem} since capture was prepared; prepare again"
    )


def change_schema(relation: SourceRelation) -> pa.Schema:
    """The schema of a relation's table in `Changes`."""
    fields = [pa.field(column.name, column.known.arrow) for column in relation.columns]
    return pa.schema([*fields, pa.field(TRANSACTION, pa.int32()), pa.field(COUNT, pa.int64())])


def record_columns(relation: SourceRelation) -> str:
    """A select list over a subquery `r` whose `v` is a row of the relation."""
    return ", ".join(column.known.read.format(f"(r.v).{quote(column.name)}") for column in relation.columns)


def record_table(relation: SourceRelation, table: pa.Table) -> pa.Table:
    """What was selected by `record_columns`, then `_tx` and `_count`, as a table of `Changes`."""
    columns = [
        column.known.shown(table.column(i), f"{relation.name}.{column.name}")
        for i, column in enumerate(relation.columns)
    ]
    columns += [table.column(table.num_columns - 2), table.column(table.num_columns - 1)]
    return pa.Table.from_arrays(columns, schema=change_schema(relation))


def read_table(arrow: ArrowSession, statement: str, parameters: pa.RecordBatch | None = None) -> pa.Table:
    """The answer to one statement, as a whole."""
    with translated(arrow.source), arrow.cursor() as cursor:
        cursor.execute(statement, parameters=parameters)
        return cursor.fetch_arrow_table()


def not_prepared(source: str) -> ConfigurationError:
    return ConfigurationError(f"source {source!r} is not prepared: no capture is installed in it")


def elsewhere(source: str) -> PositionTrimmedError:
    return PositionTrimmedError(
        f"source {source!r}: capture was installed in another database, of which this one is a restored copy,"
        " or by an earlier version; prepare again"
    )


def foreign(source: str, after: Position) -> PositionTrimmedError:
    return PositionTrimmedError(
        f"source {source!r}: position {after} is not of this history (capture was installed anew, a relation "
        "was lost and prepared again, or the database was restored)"
    )


def trimmed(source: str, after: Position) -> PositionTrimmedError:
    return PositionTrimmedError(f"source {source!r}: the history after position {after} is gone")


def check_rights(
    session: Session, source: str, relations: Sequence[SourceRelation], rights: Sequence[str]
) -> None:
    """Raise ConfigurationError, with the GRANT that mends it, for the first right that is missing."""
    for relation in relations:
        for right in rights:
            have = session.one("SELECT has_table_privilege(%s::oid, %s), current_user", [relation.oid, right])
            if not have[0]:
                raise ConfigurationError(
                    f"source {source!r}: {right} on {relation.qualified} is missing;"
                    f' GRANT {right} ON {relation.qualified} TO "{have[1]}"'
                )


def check_creation(session: Session, source: str, schema: str, *, base: bool) -> None:
    """Raise ConfigurationError unless a schema, and in `schema` a view, may be created."""
    row = session.one(
        "SELECT has_database_privilege(current_database(), 'CREATE'), current_database(), current_user,"
        " (SELECT has_schema_privilege(oid, 'CREATE') FROM pg_namespace WHERE nspname = %s)",
        [schema],
    )
    if base and not row[0]:
        raise ConfigurationError(
            f"source {source!r}: CREATE on the database is missing;"
            f' GRANT CREATE ON DATABASE "{row[1]}" TO "{row[2]}"'
        )
    if row[3] is None:
        raise ConfigurationError(f"source {source!r} has no schema {schema!r} (option schema)")
    if base and not row[3]:
        raise ConfigurationError(
            f"source {source!r}: CREATE on the schema is missing;"
            f' GRANT CREATE ON SCHEMA "{schema}" TO "{row[2]}"'
        )


class ArrowLease:
    """The ADBC connection for one snapshot: joins the snapshot when it is first needed."""

    def __init__(self, session: ArrowSession) -> None:
        self._session = session
        self._joined = False

    def join(self, holder: Session) -> ArrowSession:
        """The connection, reading in the snapshot that `holder` has open."""
        if not self._joined:
            with translated(holder.source):
                self._session.begin(holder.one("SELECT pg_export_snapshot()")[0])
            self._joined = True
        return self._session

    def end(self) -> None:
        if self._joined:
            self._session.end()


class History(ABC):
    """The captured history as one snapshot shows it."""

    @property
    @abstractmethod
    def position(self) -> Position:
        """The position of the state that the snapshot shows."""

    @abstractmethod
    def changes(self, after: Position, most_rows: int | None) -> Changes:
        """The entries after that position: all, or a first run of them, as in the contract."""


@dataclass(frozen=True)
class View:
    """An open read transaction: the session that holds it, the tables as it sees them, and its history."""

    session: Session
    tables: SourceTables
    history: History


class Capture(ABC):
    """A way to learn what changed. One connection installs and keeps order, another one reads."""

    def __init__(self, source: str, options: Options, clock: Callable[[], float]) -> None:
        self._source = source
        self._options = options
        self._clock = clock
        self._control = Session(source, options.conninfo)
        self._reader = Session(source, options.conninfo)
        self._waker = Waker()
        self._locked: tuple[SourceRelation, ...] = ()

    @abstractmethod
    def prepare(self, relations: Sequence[str], *, dry_run: bool) -> list[str]:
        """As in the contract."""

    @abstractmethod
    def remove(self, *, dry_run: bool) -> list[str]:
        """As in the contract."""

    @contextmanager
    def open(self, arrow: ArrowLease) -> Iterator[View]:
        """A read transaction whose state is a position of the history."""
        with translated(self._source):
            view = self._open(arrow)
        try:
            yield view
        finally:
            self._reader.rollback()

    @abstractmethod
    def _open(self, arrow: ArrowLease) -> View:
        """The transaction, opened by the reader, which is rolled back when it is done with."""

    @abstractmethod
    def wait(self, timeout: float) -> None:
        """As in the contract."""

    def wake(self) -> None:
        """As in the contract; from any thread."""
        self._waker.wake()

    @abstractmethod
    def acknowledge(self, position: Position) -> None:
        """As in the contract."""

    @abstractmethod
    def close(self) -> None:
        """Let go of all connections; from any thread."""


class Nothing(History):
    """The history of a source without capture: there is none, and asking for it says why."""

    def __init__(self, why: Exception) -> None:
        self._why = why

    @property
    def position(self) -> Position:
        raise self._why

    def changes(self, after: Position, most_rows: int | None) -> Changes:
        raise self._why


def lock_statement(relations: Sequence[SourceRelation]) -> str:
    """Keep these tables as they are while the transaction lasts.

    TRUNCATE and rewriting ALTER TABLE do not heed snapshots: a table would look empty to one that is older.
    Taken before the snapshot, so that whoever held the lock before is shown.
    """
    if not relations:
        return ""
    return f"LOCK TABLE {', '.join(relation.scanned for relation in relations)} IN ACCESS SHARE MODE;"


def known_tables(
    session: Session, options: Options, installed: Installed, shown: Sequence[str] | None
) -> SourceTables:
    """The tables that a snapshot may be asked about: all, or those shown and those prepared."""
    names = None if shown is None else tuple(dict.fromkeys((*shown, *installed.names)))
    return read_tables(session, options, names)
