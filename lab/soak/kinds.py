"""The kinds of source that a soak can use: how each is made, written, locked and configured.

A new kind of source joins by a class here and an entry in `KINDS`; nothing else here knows databases. Where a
source is, its `place`, is a path, or the url of a database on a server.
"""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import duckdb

from lab.soak.layout import Source
from lab.soak.stores import MARKER, Database, Dialect, FilesStore, SqlStore, Store

if TYPE_CHECKING:
    from adapters.servers.process import ServerProcess

PATIENCE_SECONDS = 120.0
_PAUSE = 0.01
_CONNECT_SECONDS = 10
_Made = TypeVar("_Made")


class Kind(ABC):
    """One kind of source."""

    server: ClassVar[str] = ""
    """Which of `SERVERS` it is on; none if it is made of files."""
    one_owner: ClassVar[bool] = False
    """Readers get in only while nobody has the database open for writing."""

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What an application gets when the database refuses or goes away: it tries again."""
        return ()

    def why_not(self) -> str | None:
        """Why it cannot be used here, with what mends it; None if it can."""
        return None

    @abstractmethod
    def section(self, source: Source) -> Mapping[str, Any]:
        """The source's section of the configuration, without `relations` and `listen`."""

    @abstractmethod
    def open(self, source: Source) -> Store:
        """The source for its application; waits while others are in the way, or the server is."""

    @contextmanager
    def locked(self, source: Source) -> Iterator[None]:
        """Nobody else can write, and where possible read, meanwhile."""
        with closing(self.open(source)) as store:
            store.lock()
            yield
            store.rollback()


class Sqlite(Kind):
    """A SQLite file in the given journal mode."""

    def __init__(self, journal_mode: str) -> None:
        self._mode = journal_mode

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        return (sqlite3.Error,)

    def section(self, source: Source) -> Mapping[str, Any]:
        options = {} if self._mode == "WAL" else {"journal": "keep"}
        return {"adapter": "sqlite", "url": f"sqlite:///{source.place}", "options": options}

    def open(self, source: Source) -> Store:
        connection = sqlite3.connect(source.place, isolation_level=None, timeout=PATIENCE_SECONDS)
        connection.execute(f"PRAGMA journal_mode = {self._mode}")
        return SqlStore(connection, Dialect(begin="BEGIN IMMEDIATE"), source.relations)


class Duckdb(Kind):
    """A DuckDB file with the given capture."""

    one_owner = True

    def __init__(self, capture: str) -> None:
        self._capture = capture

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        return (duckdb.Error,)

    def section(self, source: Source) -> Mapping[str, Any]:
        return {"adapter": "duckdb", "url": f"duckdb:///{source.place}", "capture": self._capture}

    def open(self, source: Source) -> Store:
        database = _patiently(lambda: duckdb.connect(source.place), duckdb.IOException)
        return SqlStore(database, Dialect(), source.relations)


class Postgresql(Kind):
    """A database of the PostgreSQL server with the given capture."""

    server = "postgresql"

    def __init__(self, capture: str) -> None:
        self._capture = capture

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        import psycopg

        return (psycopg.Error,)

    def why_not(self) -> str | None:
        if missing := _missing_extra("postgresql", "psycopg", "adbc_driver_postgresql"):
            return missing
        from adapters.servers import postgresql

        return postgresql.why_not()

    def section(self, source: Source) -> Mapping[str, Any]:
        return {"adapter": "postgresql", "url": source.place, "capture": self._capture}

    def open(self, source: Source) -> Store:
        import psycopg

        def connect() -> Database:
            return psycopg.connect(source.place, autocommit=True, connect_timeout=_CONNECT_SECONDS)

        dialect = Dialect(
            slot="%s",
            one_copy="ctid IN (SELECT ctid FROM {table} WHERE {same} LIMIT 1)",
            lock="LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE",
        )
        return SqlStore(_patiently(connect, psycopg.OperationalError), dialect, source.relations)


class SqlAlchemy(Postgresql):
    """A database of the PostgreSQL server behind SQLAlchemy, which knows nothing of its log or triggers."""

    def __init__(self) -> None:
        super().__init__("diff")

    def why_not(self) -> str | None:
        return _missing_extra("sqlalchemy", "sqlalchemy") or super().why_not()

    def section(self, source: Source) -> Mapping[str, Any]:
        shadow = f"{source.name}.lockstep-shadow"
        return {
            "adapter": "sqlalchemy",
            "url": source.place.replace("postgresql:", "postgresql+psycopg:", 1),
            "capture": self._capture,
            "options": {"shadow": str(source.directory / shadow), "poll_interval": 0.2},
        }


class MariaDB(Kind):
    """A database of the MariaDB server with the given capture."""

    server = "mariadb"

    def __init__(self, capture: str) -> None:
        self._capture = capture

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        import pymysql

        return (pymysql.err.MySQLError,)

    def why_not(self) -> str | None:
        if missing := _missing_extra("mariadb", "pymysql", "pymysqlreplication"):
            return missing
        from adapters.servers import mariadb

        return mariadb.why_not()

    def section(self, source: Source) -> Mapping[str, Any]:
        return {"adapter": "mariadb", "url": source.place, "capture": self._capture}

    def open(self, source: Source) -> Store:
        import pymysql

        dialect = Dialect(slot="%s", equal="<=>", one_copy="{same} LIMIT 1", lock="LOCK TABLES {table} WRITE")
        database = _patiently(lambda: _PyMySql(source.place), pymysql.err.OperationalError)
        return SqlStore(database, dialect, source.relations)


class _PyMySql:
    """PyMySQL behind the two calls that the other drivers have in common."""

    def __init__(self, url: str) -> None:
        import pymysql

        parts = urlsplit(url)
        self._connection = pymysql.connect(
            host=parts.hostname or "",
            port=parts.port or 0,
            user=parts.username,
            database=parts.path.strip("/"),
            autocommit=True,
            ssl_disabled=True,
            connect_timeout=_CONNECT_SECONDS,
        )

    def execute(self, sql: str, parameters: Any = ()) -> Any:
        cursor = self._connection.cursor()
        cursor.execute(sql, tuple(parameters) or None)
        return cursor

    def close(self) -> None:
        import pymysql

        try:
            self._connection.close()
        except pymysql.err.Error:  # the server has closed it
            return


class CsvFiles(Kind):
    """A folder of CSV files, published by a commit file."""

    def why_not(self) -> str | None:
        return _missing_extra("files", "watchfiles")

    def section(self, source: Source) -> Mapping[str, Any]:
        relations = {
            relation.name: {
                "path": f"{relation.name}.csv",
                "columns": dict.fromkeys(relation.columns, "int64"),
            }
            for relation in source.relations
        }
        options = {"commit_file": MARKER, "relations": relations}
        return {"adapter": "files", "url": f"files:///{source.place}", "capture": "diff", "options": options}

    def open(self, source: Source) -> Store:
        return FilesStore(Path(source.place), source.relations)


KINDS: Mapping[str, Kind] = {
    "sqlite-wal": Sqlite("WAL"),
    "sqlite-journal": Sqlite("DELETE"),
    "duckdb-trigger": Duckdb("trigger"),
    "duckdb-diff": Duckdb("diff"),
    "postgresql-log": Postgresql("log"),
    "postgresql-trigger": Postgresql("trigger"),
    "mariadb-log": MariaDB("log"),
    "mariadb-trigger": MariaDB("trigger"),
    "sqlalchemy-diff": SqlAlchemy(),
    "files-csv": CsvFiles(),
}
"""By name; the names are what `--source` of `lockstep lab soak` takes."""


def available() -> tuple[list[str], dict[str, str]]:
    """The kinds that can be used here, and of all others why they cannot."""
    reasons = {name: kind.why_not() for name, kind in KINDS.items()}
    return (
        [name for name, reason in reasons.items() if not reason],
        {name: reason for name, reason in reasons.items() if reason},
    )


def _postgresql_server(folder: Path) -> ServerProcess:
    from adapters.servers.postgresql import PostgresServer

    return PostgresServer(folder)


def _mariadb_server(folder: Path) -> ServerProcess:
    from adapters.servers.mariadb import DURABLE, MariaDBServer

    # Without a password: its url stands in the configuration.
    return MariaDBServer(folder, DURABLE, password="")


SERVERS: Mapping[str, Callable[[Path], ServerProcess]] = {
    "postgresql": _postgresql_server,
    "mariadb": _mariadb_server,
}
"""The servers that kinds are on, each to be made in a folder; all sources of a soak share one of each."""


def _missing_extra(extra: str, *modules: str) -> str | None:
    absent = [module for module in modules if find_spec(module) is None]
    return f"the module {absent[0]} is not installed; pip install 'lockstep[{extra}]'" if absent else None


def _patiently(make: Callable[[], _Made], while_: type[Exception]) -> _Made:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return make()
        except while_:
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
