"""What differs between databases: the isolation that reads one state, time limits, session settings.

One cycle reads all prepared relations in one transaction, and must see one state of the database: no
transaction in part. Each dialect has its own name for the level that gives it:

    postgresql      REPEATABLE READ, a snapshot taken by the first statement; TRUNCATE, and a table that is
                    made anew, show through it, so tables are locked against that before it is taken
    mysql, mariadb  REPEATABLE READ, likewise, for transactional storage engines; others have no snapshots.
                    A table that was truncated or made anew since is refused by the database itself
    sqlite          any, once there is a transaction: BEGIN must be sent, which the driver omits
    oracle          SERIALIZABLE, a snapshot as of the transaction's begin
    mssql           SNAPSHOT, which the database's owner has to allow; SERIALIZABLE would lock what it reads
    ibm_db_sa       its REPEATABLE READ locks what it reads; the owner must choose that

Where nothing is known, or what is known would hold up writers, nothing is assumed: the option `isolation`
names the level, or says `none`, and then nothing is promised but that the view converges.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy import URL, Connection, Engine, event
from sqlalchemy.exc import ProgrammingError

from adapters.sqlalchemy.options import NO_ISOLATION

Settings = Callable[[Connection, float], None]
"""Prepares a transaction that has begun, before anything is read; takes the statement timeout, 0 for none."""

Place = tuple[str | None, str]
"""Schema and name of a table as SQLAlchemy has them; None is the connection's own schema."""

Hold = Callable[[Connection, Iterable[Place]], None]
"""Keeps tables, as far as they are there, as they are until the transaction ends; before anything is read."""


@dataclass(frozen=True)
class DialectRules:
    """How one dialect is read.

    `isolation`: the level that reads one state, "" if none is known. `settings`: what each transaction sets.
    `has_timeout`: whether the database can end statements by time. `begin`: sent when a transaction begins,
    where the driver would not. `hold`: what a transaction needs so that tables cannot be emptied or replaced
    behind its snapshot.
    """

    isolation: str = ""
    settings: Settings = lambda connection, timeout: None
    has_timeout: bool = False
    begin: str = ""
    hold: Hold = lambda connection, places: None


def _postgresql(connection: Connection, timeout: float) -> None:
    connection.exec_driver_sql("SET LOCAL TIME ZONE 'UTC'")
    connection.exec_driver_sql("SET LOCAL extra_float_digits = 1")
    connection.exec_driver_sql(f"SET LOCAL statement_timeout = {int(timeout * 1000)}")


def _hold_postgresql(connection: Connection, places: Iterable[Place]) -> None:
    quoted = connection.dialect.identifier_preparer.format_table
    for schema, name in places:
        # What is not there, or may be read by column only, cannot be locked; reading it tells the one.
        with suppress(ProgrammingError), connection.begin_nested():
            connection.exec_driver_sql(
                f"LOCK TABLE {quoted(sa.table(name, schema=schema))} IN ACCESS SHARE MODE"
            )


def _mysql(connection: Connection, timeout: float) -> None:
    connection.exec_driver_sql("SET SESSION time_zone = '+00:00'")
    if getattr(connection.dialect, "is_mariadb", False):
        connection.exec_driver_sql(f"SET SESSION max_statement_time = {timeout:f}")
    else:
        connection.exec_driver_sql(f"SET SESSION max_execution_time = {int(timeout * 1000)}")


def _oracle(connection: Connection, timeout: float) -> None:
    connection.exec_driver_sql("ALTER SESSION SET TIME_ZONE = '+00:00'")
    connection.connection.dbapi_connection.call_timeout = int(timeout * 1000)  # type: ignore[union-attr]


def _mssql(connection: Connection, timeout: float) -> None:
    connection.connection.dbapi_connection.timeout = int(timeout)  # type: ignore[union-attr]


_MYSQL = DialectRules("REPEATABLE READ", _mysql, has_timeout=True)
RULES = {
    "postgresql": DialectRules("REPEATABLE READ", _postgresql, has_timeout=True, hold=_hold_postgresql),
    "mysql": _MYSQL,
    "mariadb": _MYSQL,
    "sqlite": DialectRules("SERIALIZABLE", begin="BEGIN"),
    "oracle": DialectRules("SERIALIZABLE", _oracle, has_timeout=True),
    "mssql": DialectRules("SNAPSHOT", _mssql, has_timeout=True),
}
UNKNOWN = DialectRules()

CONNECT_SECONDS = 10
GRACE_SECONDS = 30.0
"""How much longer than a statement may take the server may say nothing: it is to end the statement itself."""
_POSTGRESQL_DRIVERS = frozenset({"psycopg", "psycopg2"})
_MYSQL_DRIVERS = frozenset({"pymysql", "mysqldb"})
_ADDRESS = frozenset({"host", "port", "dbname", "database", "unix_socket", "service", "service_name", "sid"})
"""Where a url may name its database beside the usual places, by some driver."""
_KEEPALIVE = {
    "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 30_000,
}  # fmt: skip
"""A server that has gone without a word is noticed after about half a minute; the system's own take hours."""

SNAPSHOT_STORAGE = frozenset({"innodb", "myrocks", "rocksdb", "tokudb"})
"""MySQL's and MariaDB's storage engines whose tables are read as of one snapshot."""


def rules_of(dialect: str) -> DialectRules:
    """How a dialect is read, as far as it is known."""
    return RULES.get(dialect, UNKNOWN)


def level_of(dialect: str, configured: str) -> str:
    """The isolation level to read by: as configured, or what the dialect is known to have; "" if none."""
    return configured or rules_of(dialect).isolation


def connect_arguments(url: URL, timeout: float) -> dict[str, Any]:
    """What the driver is told on connecting, unless the url says it: not to wait for ever for a server that
    does not answer. `timeout`: of statements, 0 for none.

    >>> connect_arguments(sa.make_url("mysql+pymysql://host/db?write_timeout=5"), 300)
    {'connect_timeout': 10, 'read_timeout': 330}
    >>> connect_arguments(sa.make_url("postgresql+psycopg://host/db"), 300)["keepalives_idle"]
    10
    """
    driver = url.get_driver_name()
    wanted: dict[str, Any] = {}
    if driver in _POSTGRESQL_DRIVERS | _MYSQL_DRIVERS:
        wanted["connect_timeout"] = CONNECT_SECONDS
    if driver in _POSTGRESQL_DRIVERS:
        wanted |= _KEEPALIVE
    if driver in _MYSQL_DRIVERS and timeout:
        silence = math.ceil(timeout + GRACE_SECONDS)
        wanted |= {"read_timeout": silence, "write_timeout": silence}
    return {name: value for name, value in wanted.items() if name not in url.query}


def address(url: URL) -> str:
    """Which database a url names, without its driver, the user, and what else matters to a connection only.

    >>> address(sa.make_url("postgresql+psycopg://reader:secret@Host:5432/db?sslmode=require"))
    'postgresql://host:5432/db'
    >>> address(sa.make_url("oracle+oracledb://reader:secret@host/?service_name=erp"))
    'oracle://host?service_name=erp'
    >>> address(sa.make_url("sqlite:////srv/sub/../shop.db?timeout=5"))
    'sqlite:////srv/shop.db'
    """
    dialect, database = url.get_backend_name(), url.database
    if dialect == "sqlite" and database and database != ":memory:":
        database = os.path.abspath(database.removeprefix("file:"))
    query = {name: value for name, value in url.query.items() if name in _ADDRESS}
    host = url.host and url.host.lower()
    return str(URL.create(dialect, host=host, port=url.port, database=database or None, query=query))


def install(engine: Engine, level: str) -> None:
    """Let every transaction of the engine begin as the dialect needs it."""
    rules = rules_of(engine.dialect.name)
    if not rules.begin or level == NO_ISOLATION:
        return

    # The driver is told to leave transactions alone: it would begin none for a SELECT.
    @event.listens_for(engine, "connect")
    def _connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql(rules.begin)
