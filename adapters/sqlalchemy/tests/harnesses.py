"""SQLite, PostgreSQL and MariaDB behind SQLAlchemy, for the conformance kit.

Servers are started when the first case needs one, once per process, and ended with it. Adapters connect as a
user that may do nothing but SELECT.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import sqlite3
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import psycopg
import pyarrow as pa
import pymysql

from adapters.conformance import (
    Disturbance,
    DropColumn,
    Harness,
    LoseCapture,
    Quirks,
    RetypeColumn,
    SchemaChange,
    SqlWriter,
    Stored,
    Writer,
    alter_table,
    altered,
    disturb_table,
    in_process,
)
from adapters.conformance.case import CaseSkipped
from adapters.conformance.samples import Sample
from adapters.mariadb.tests.deadlocks import PatientWriter
from adapters.servers import mariadb as mariadb_server
from adapters.servers import postgresql as postgresql_server
from adapters.servers.mariadb import MariaDBServer
from adapters.servers.postgresql import ORDERLY, PostgresServer
from adapters.shadow.store import shadow_file
from adapters.spi import Adapter, SourceConfig
from adapters.sqlalchemy.adapter import SqlAlchemyAdapter
from algebra.schema import RelationSchema

READER, STRANGER = "reader", "stranger"
"""The user of the adapters, who may SELECT, and one who may not."""

PROMPT: Mapping[str, Any] = {"poll_interval": 0, "trim_entries": 0, "trim_seconds": 0}
"""Every snapshot is a cycle, and what is acknowledged is trimmed: the kit looks at each step."""

BUSY_SECONDS = 60.0


class SqlAlchemyHarness(Harness):
    """A database behind a SQLAlchemy url, with the shadow in the case's folder."""

    declared_types: ClassVar[Mapping[pa.DataType, str]]
    truncate: ClassVar[str] = "TRUNCATE TABLE"

    @property
    @abstractmethod
    def url(self) -> str:
        """The url for an adapter."""

    @abstractmethod
    def execute(self, *statements: str) -> list[Any]:
        """Run statements as the owner; the rows of the last one."""

    @abstractmethod
    def quote(self, name: str) -> str: ...

    @property
    def shadow(self) -> Path:
        return self.directory / "shop.lockstep-shadow"

    def create(self, tables: Sequence[RelationSchema]) -> None:
        self._tables = tuple(tables)
        self.execute(*(self.create_table(table) for table in tables))

    def create_table(self, table: RelationSchema) -> str:
        parts = []
        for column in table.columns:
            type_ = self.declared.get((table.name, column.name)) or self.type_of(
                table, column.name, column.type
            )
            parts.append(f"{self.quote(column.name)} {type_}{'' if column.nullable else ' NOT NULL'}")
        if table.key:
            parts.append(f"PRIMARY KEY ({', '.join(map(self.quote, table.key))})")
        return f"CREATE TABLE {self.quote(table.name)} ({', '.join(parts)})"

    def type_of(self, table: RelationSchema, column: str, type_: pa.DataType) -> str:
        return self.declared_types[type_]

    def adapter(self, relations: tuple[str, ...] | None = None) -> Adapter:
        return self.adapter_at(self.url, relations)

    def adapter_at(self, url: str, relations: tuple[str, ...] | None = None) -> Adapter:
        options = {**PROMPT, "shadow": str(self.shadow)}
        return SqlAlchemyAdapter(SourceConfig("shop", "sqlalchemy", url, relations, "diff", options))

    def files(self) -> set[str]:
        """What lies beside the source: the shadow, if there is one."""
        return {path.name for path in self.directory.iterdir() if "shadow" in path.name}

    def alter(self, change: SchemaChange) -> None:
        self._tables = altered(self._tables, change)
        self.execute(alter_table(change, self.quote, self.declared_types))

    def disturb(self, disturbance: Disturbance) -> None:
        if isinstance(disturbance, LoseCapture):
            shutil.rmtree(self.shadow)
        else:
            self.execute(*disturb_table(disturbance, self.quote, self.create_table, truncate=self.truncate))

    def history_size(self) -> int:
        with duckdb.connect(str(shadow_file(self.shadow)), read_only=True) as connection:
            (count,) = connection.execute("SELECT count(*) FROM cycles").fetchone() or (0,)
        return int(count)


# SQLite


class SqliteWriter(SqlWriter):
    """An application with Python's own SQLite."""

    same = "IS"

    def __init__(self, path: Path, tables: Sequence[RelationSchema]) -> None:
        super().__init__(tables)
        self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = OFF")

    def begin(self) -> None:
        self.sql("BEGIN IMMEDIATE")

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        return self._connection.execute(statement, list(parameters)).rowcount

    def parameter(self, value: Any) -> Any:
        match value:
            case datetime():
                # As SQLAlchemy itself writes them.
                return value.isoformat(sep=" ", timespec="microseconds")
            case date():
                return value.isoformat()
            case Decimal():
                return str(value)
        return value

    def close(self) -> None:
        self._connection.close()


class SqliteHarness(SqlAlchemyHarness):
    """A SQLite file in write-ahead mode, read by Python's driver."""

    truncate: ClassVar[str] = "DELETE FROM"
    declared_types: ClassVar[Mapping[pa.DataType, str]] = {
        pa.int64(): "INTEGER",
        pa.float64(): "REAL",
        pa.decimal128(18, 4): "DECIMAL(18, 4)",
        pa.string(): "TEXT",
        pa.binary(): "BLOB",
        pa.bool_(): "BOOLEAN",
        pa.date32(): "DATE",
        pa.timestamp("us"): "TIMESTAMP",
    }
    quirks = Quirks(
        stored={
            pa.float64(): Stored(
                pa.float64(),
                "SQLite stores NaN as NULL and -0.0 as 0.0",
                lambda value: None if value != value else value + 0.0,
            ),
            pa.decimal128(18, 4): Stored(
                pa.decimal128(18, 4),
                "SQLite stores a decimal as a double, which holds 15 digits",
                holds=lambda value: len(value.as_tuple().digits) <= 15,
            ),
        },
        unsupported={
            pa.decimal128(38, 10): "SQLite stores a decimal as a double",
            pa.timestamp("us", "UTC"): "SQLAlchemy has no type with a time zone for SQLite",
        },
        one_open_transaction=True,
        case_sensitive_names=False,
        workload=20,
        no_restart="a file, no server",
        no_disconnect="a file is opened, not connected to",
        no_rights="SQLite has no users; who may not write the file is told by the file system",
    )

    @property
    def path(self) -> Path:
        return self.directory / "shop.db"

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}?timeout={BUSY_SECONDS}"

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def execute(self, *statements: str) -> list[Any]:
        rows: list[Any] = []
        with closing(sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = OFF")
            for statement in statements:
                rows = connection.execute(statement).fetchall()
        return rows

    def writer(self, number: int) -> Writer:
        return in_process(number, SqliteWriter, self.path, self._tables)

    def objects(self) -> frozenset[str]:
        rows = self.execute("SELECT type || ' ' || name FROM sqlite_schema")
        return frozenset({name for (name,) in rows} | self.files())

    def alter(self, change: SchemaChange) -> None:
        if not isinstance(change, RetypeColumn | DropColumn):
            super().alter(change)
            return
        # There is no statement to retype: SQLite's documentation says to copy the table.
        self._tables = altered(self._tables, change)
        new = next(table for table in self._tables if table.name == change.relation)
        old, copy = self.quote(change.relation), self.quote("copy of " + change.relation)
        columns = ", ".join(self.quote(column.name) for column in new.columns)
        self.execute(
            "BEGIN",
            self.create_table(replace(new, name="copy of " + change.relation)),
            f"INSERT INTO {copy} SELECT {columns} FROM {old}",
            f"DROP TABLE {old}",
            f"ALTER TABLE {copy} RENAME TO {old}",
            "COMMIT",
        )


# PostgreSQL


@functools.cache
def postgres() -> PostgresServer:
    """This process's server."""
    if reason := postgresql_server.why_not():
        raise CaseSkipped(reason)
    stack = ExitStack()
    atexit.register(stack.close)
    server = stack.enter_context(PostgresServer.started())
    with server.connect() as connection:
        for user in (READER, STRANGER):
            connection.execute(f"CREATE ROLE {user} LOGIN")
    return server


class PostgresWriter(SqlWriter):
    """An application with psycopg, which puts values into the statement itself."""

    placeholder = "%s"
    row_id = "ctid"

    def __init__(self, url: str, tables: Sequence[RelationSchema]) -> None:
        super().__init__(tables)
        self._connection = psycopg.connect(url, autocommit=True, cursor_factory=psycopg.ClientCursor)

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        return self._connection.execute(statement.encode(), list(parameters)).rowcount

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""').replace("%", "%%") + '"'

    def overwrite(self, relation: str) -> Sequence[str]:
        table = self._tables[relation]
        names = self._names(relation)
        slots = ", ".join([self.placeholder] * len(names))
        sets = ", ".join(f"{name} = excluded.{name}" for name in names)
        key = ", ".join(map(self.quote, table.key))
        insert = f"INSERT INTO {self.quote(relation)} VALUES ({slots})"
        return [f"{insert} ON CONFLICT ({key}) DO UPDATE SET {sets}"]

    def parameter(self, value: Any) -> Any:
        # As a number, -0.0 would lose its sign before it is stored.
        return repr(value) if isinstance(value, float) else value

    def close(self) -> None:
        self._connection.close()


class PostgresHarness(SqlAlchemyHarness):
    """A database of this process's PostgreSQL server, read by psycopg."""

    declared_types: ClassVar[Mapping[pa.DataType, str]] = {
        pa.int64(): "BIGINT",
        pa.float64(): "DOUBLE PRECISION",
        pa.decimal128(18, 4): "NUMERIC(18, 4)",
        pa.decimal128(38, 10): "NUMERIC(38, 10)",
        pa.string(): "TEXT",
        pa.binary(): "BYTEA",
        pa.bool_(): "BOOLEAN",
        pa.date32(): "DATE",
        pa.timestamp("us"): "TIMESTAMP",
        pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
    }
    quirks = Quirks(
        workload=20,
        samples=(
            Sample(
                "uuid",
                pa.string(),
                ("00000000-0000-0000-0000-000000000001", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
                absent="a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a12",
                declared="UUID",
            ),
        ),
    )
    rights: ClassVar[tuple[str, ...]] = ("select",)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._server = postgres()
        self._database = self._server.create_database()
        self.execute(f"ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO {READER}")

    @property
    def url(self) -> str:
        return self._url(READER)

    def _url(self, user: str) -> str:
        return self._server.url(self._database, user).replace("postgresql:", "postgresql+psycopg:")

    def quote(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def execute(self, *statements: str) -> list[Any]:
        rows: list[Any] = []
        with self._server.connect(self._database) as connection:
            for statement in statements:
                cursor = connection.execute(statement.encode())
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def writer(self, number: int) -> Writer:
        return in_process(number, PostgresWriter, self._server.url(self._database), self._tables)

    def objects(self) -> frozenset[str]:
        found = self.execute(
            "SELECT 'table ' || relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            " UNION ALL SELECT 'schema ' || nspname FROM pg_namespace WHERE nspname !~ '^pg_'"
            " UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger"
            " UNION ALL SELECT 'function ' || proname FROM pg_proc"
            " WHERE pronamespace = 'public'::regnamespace"
            " UNION ALL SELECT 'slot ' || slot_name FROM pg_replication_slots"
            f" WHERE database = '{self._database}'"
        )
        return frozenset({name for (name,) in found} | self.files())

    def alter(self, change: SchemaChange) -> None:
        self._tables = altered(self._tables, change)
        statement = alter_table(change, self.quote, self.declared_types)
        if isinstance(change, RetypeColumn):
            statement += f" USING {self.quote(change.column)}::text"
        self.execute(statement)

    @contextmanager
    def restarting(self) -> Iterator[None]:
        self._server.stop(ORDERLY)
        try:
            yield
        finally:
            self._server.start()

    def disconnect(self) -> None:
        self.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{READER}'")

    def without_right(self, right: str) -> Adapter:
        return self.adapter_at(self._url(STRANGER))

    def close(self) -> None:
        self._server.drop_database(self._database)


# MariaDB


@functools.cache
def mariadb() -> MariaDBServer:
    """This process's server."""
    if reason := mariadb_server.why_not():
        raise CaseSkipped(reason)
    stack = ExitStack()
    atexit.register(stack.close)
    server = stack.enter_context(MariaDBServer.started())
    for user in (READER, STRANGER):
        server.run(f"CREATE USER {user}@'%' IDENTIFIED BY '{user}'")
    return server


class MariaDBWriter(PatientWriter):
    """An application with PyMySQL."""

    placeholder = "%s"
    same = "<=>"

    def __init__(self, connect: Mapping[str, Any], tables: Sequence[RelationSchema]) -> None:
        super().__init__(tables)
        self._connection = pymysql.connect(**connect, charset="utf8mb4", autocommit=True)
        self.sql("SET time_zone = '+00:00'")

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        with self._connection.cursor() as cursor:
            # Rows that are set to what they are are not counted.
            touched = int(cursor.execute(statement, list(parameters)))
        return -1 if statement.startswith("UPDATE") else touched

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``").replace("%", "%%") + "`"

    def overwrite(self, relation: str) -> Sequence[str]:
        slots = ", ".join([self.placeholder] * len(self._tables[relation].columns))
        return [f"REPLACE INTO {self.quote(relation)} VALUES ({slots})"]

    def parameter(self, value: Any) -> Any:
        match value:
            case datetime():
                return value.replace(tzinfo=None)
            case float():
                return repr(value)  # as a number, -0.0 would lose its sign before it is stored
        return value

    def _one(self, relation: str, row: tuple[Any, ...]) -> tuple[str, list[Any]]:
        if self._tables[relation].key:
            return super()._one(relation, row)
        condition = " AND ".join(f"{name} {self.same} {self.placeholder}" for name in self._names(relation))
        return f"{condition} LIMIT 1", self._values(row)

    def close(self) -> None:
        self._connection.close()


FIRST_MOMENT, LAST_MOMENT = datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(2038, 1, 19, tzinfo=UTC)


class MariaDBHarness(SqlAlchemyHarness):
    """A database of this process's MariaDB server, read by PyMySQL."""

    declared_types: ClassVar[Mapping[pa.DataType, str]] = {
        pa.int64(): "BIGINT",
        pa.float64(): "DOUBLE",
        pa.decimal128(18, 4): "DECIMAL(18, 4)",
        pa.decimal128(38, 10): "DECIMAL(38, 10)",
        pa.string(): "LONGTEXT",
        pa.binary(): "LONGBLOB",
        pa.bool_(): "BOOLEAN",
        pa.date32(): "DATE",
        pa.timestamp("us"): "DATETIME(6)",
        pa.timestamp("us", "UTC"): "TIMESTAMP(6) NULL",
    }
    key_types: ClassVar[Mapping[pa.DataType, str]] = {
        pa.string(): "VARCHAR(200)",
        pa.binary(): "VARBINARY(400)",
        pa.timestamp("us", "UTC"): "TIMESTAMP(6) DEFAULT '2000-01-01'",
    }
    quirks = Quirks(
        stored={
            pa.float64(): Stored(
                pa.float64(),
                "MariaDB has neither NaN nor infinity, and stores -0.0 as 0.0",
                lambda value: value + 0.0,
                holds=lambda value: value == value and abs(value) != float("inf"),
            ),
            pa.timestamp("us", "UTC"): Stored(
                pa.timestamp("us", "UTC"),
                "MariaDB's TIMESTAMP reaches from 1970 to 2038",
                holds=lambda value: FIRST_MOMENT <= value < LAST_MOMENT,
            ),
        },
        case_sensitive_names=False,
        workload=20,
        skips=dict.fromkeys(
            ("ugly-table-names", "ugly-column-names"),
            "MariaDB's names have no characters beyond the basic plane; the others are tried in test_types",
        ),
    )
    rights: ClassVar[tuple[str, ...]] = ("select",)

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._server = mariadb()
        self._database = self._server.create_database()
        self._server.run(
            f"ALTER DATABASE `{self._database}` COLLATE utf8mb4_nopad_bin",
            f"GRANT SELECT ON `{self._database}`.* TO {READER}@'%'",
            f"GRANT INSERT ON `{self._database}`.* TO {STRANGER}@'%'",
        )

    @property
    def url(self) -> str:
        return self._url(READER)

    def _url(self, user: str) -> str:
        return self._server.url(self._database, user, user).replace("mariadb:", "mariadb+pymysql:")

    def quote(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def type_of(self, table: RelationSchema, column: str, type_: pa.DataType) -> str:
        types = {**self.declared_types, **self.key_types} if column in table.key else self.declared_types
        return types[type_]

    def execute(self, *statements: str) -> list[Any]:
        return list(self._server.run(*statements, database=self._database))

    def writer(self, number: int) -> Writer:
        server = self._server
        connect = {
            "host": server.host,
            "port": server.port,
            "user": server.user,
            "password": server.password,
            "database": self._database,
        }
        return in_process(number, MariaDBWriter, connect, self._tables)

    def objects(self) -> frozenset[str]:
        found = self.execute(
            "SELECT CONCAT('table ', table_name) FROM information_schema.tables"
            " WHERE table_schema = DATABASE()"
            " UNION ALL SELECT CONCAT('trigger ', trigger_name) FROM information_schema.triggers"
            " WHERE trigger_schema = DATABASE()"
        )
        return frozenset({name for (name,) in found} | self.files())

    def alter(self, change: SchemaChange) -> None:
        self._tables = altered(self._tables, change)
        statement = alter_table(change, self.quote, self.declared_types)
        if isinstance(change, RetypeColumn):
            table, column = self.quote(change.relation), self.quote(change.column)
            statement = f"ALTER TABLE {table} MODIFY COLUMN {column} {self.declared_types[change.type]}"
        self.execute(statement)

    @contextmanager
    def restarting(self) -> Iterator[None]:
        self._server.stop()
        try:
            yield
        finally:
            self._server.start()

    def disconnect(self) -> None:
        ids = self._server.run(f"SELECT id FROM information_schema.processlist WHERE user = '{READER}'")
        for (number,) in ids:
            try:
                self._server.run(f"KILL {number}")
            except pymysql.err.OperationalError:
                continue  # it ended by itself meanwhile

    def without_right(self, right: str) -> Adapter:
        return self.adapter_at(self._url(STRANGER))

    def close(self) -> None:
        self._server.drop_database(self._database)


HARNESSES = {"diff": PostgresHarness}
"""By capture style, for `lockstep bench capture`."""
