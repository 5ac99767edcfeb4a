"""Connections to the server: opened when first used, given up when they break, and errors in our words.

A connection that failed in any way but a refused statement is closed, so that the next call opens a new one:
an adapter outlives restarts of its server.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import adbc_driver_manager
import adbc_driver_postgresql.dbapi
import psycopg
import pyarrow as pa

from algebra.errors import (
    ConfigurationError,
    DataError,
    LockstepError,
    SchemaChangedError,
    SourceUnavailableError,
)

MINIMUM_VERSION = 140000

Parameters = Sequence[object] | None


class Session:
    """One psycopg connection in autocommit mode, replaced when it broke."""

    def __init__(self, source: str, conninfo: str) -> None:
        self.source = source
        self._conninfo = conninfo
        self._connection: psycopg.Connection[Any] | None = None

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection, opened if there is none that works."""
        if self._connection is not None and (self._connection.closed or self._connection.broken):
            self.close()
        if self._connection is None:
            self._connection = psycopg.connect(self._conninfo, autocommit=True)
            if self._connection.info.server_version < MINIMUM_VERSION:
                version = self._connection.info.server_version // 10000
                self.close()
                raise ConfigurationError(
                    f"source {self.source!r}: the server is PostgreSQL {version}; 14 or newer is needed"
                )
        return self._connection

    @property
    def is_open(self) -> bool:
        return self._connection is not None and not self._connection.closed

    def run(self, statement: str) -> None:
        """Execute statements without parameters, in one message."""
        self.connection.execute(statement.encode())

    def execute(self, statement: str, parameters: Sequence[object]) -> None:
        """Execute one statement with parameters, without an answer."""
        self.connection.execute(statement.encode(), parameters)

    def rows(self, statement: str, parameters: Parameters = None) -> list[Any]:
        """All rows of one statement."""
        return self.connection.execute(statement.encode(), parameters).fetchall()

    def one(self, statement: str, parameters: Parameters = None) -> Any:
        """The first row, or None."""
        rows = self.rows(statement, parameters)
        return rows[0] if rows else None

    @contextmanager
    def transaction(self, begin: str = "BEGIN") -> Iterator[None]:
        """BEGIN, then COMMIT if the block succeeds, else ROLLBACK."""
        self.run(begin)
        try:
            yield
        except BaseException:
            self.rollback()
            raise
        self.run("COMMIT")

    def reading(self) -> AbstractContextManager[None]:
        """A read transaction: whatever is read inside is of one moment."""
        return self.transaction("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")

    def rollback(self) -> None:
        """End the transaction, if the connection still has one."""
        connection = self._connection
        if connection is None:
            return
        try:
            if not connection.closed and connection.info.transaction_status != 0:
                connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()


class ArrowSession:
    """One ADBC connection, whose answers are Arrow; it reads in the snapshot that another one exported."""

    def __init__(self, source: str, conninfo: str) -> None:
        self.source = source
        self._conninfo = conninfo
        self._connection: Any = None
        self._lock = threading.Lock()

    def begin(self, snapshot: str) -> None:
        """Start a read transaction on an exported snapshot, on a new connection if the old one is broken."""
        if not re.fullmatch(r"[0-9A-F-]+", snapshot):
            raise SourceUnavailableError(f"source {self.source!r}: {snapshot!r} is no snapshot")
        kept = self._connection is not None
        try:
            self._begin(snapshot)
        except adbc_driver_manager.Error:
            self.close()
            if not kept:
                raise
            self._begin(snapshot)

    def _begin(self, snapshot: str) -> None:
        with self._lock:
            if self._connection is None:
                self._connection = adbc_driver_postgresql.dbapi.connect(self._conninfo, autocommit=True)
        self.run("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self.run(f"SET TRANSACTION SNAPSHOT '{snapshot}'")

    def run(self, statement: str) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(statement)

    def cursor(self) -> Any:
        return self._connection.cursor()

    def end(self) -> None:
        """End the read transaction; a connection on which that fails is given up."""
        if self._connection is None:
            return
        try:
            self.run("ROLLBACK")
        except Exception:
            self.close()

    def close(self) -> None:
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()


@contextmanager
def translated(source: str) -> Iterator[None]:
    """Errors of the database libraries leave the block as errors of the contract."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(source, str(error), error.sqlstate) from error
    except adbc_driver_manager.Error as error:
        raise translate(source, _adbc_text(error), error.sqlstate) from error
    except (pa.ArrowException, OSError) as error:
        found = re.search(r"SQLSTATE: (\w{5})", str(error))
        raise translate(source, _adbc_text(error), found[1] if found else None) from error


def is_refused(error: Exception) -> bool:
    """Whether the server refused a statement for lack of a right, or because something is in use."""
    return getattr(error, "sqlstate", None) in ("42501", "55006", "55000", "55P03")


_UNAVAILABLE = {"08", "40", "53", "55", "57", "58", "XX"}
_NOT_OURS_TO_MEND = re.compile(
    r"authentication failed|password|does not exist|pg_hba\.conf|not permitted to log in|replication role"
    # How TLS is set up; that an encrypted connection broke is told as an error of SSL, too.
    r"|does not support SSL|certificate|tlsv1 alert|wrong version number|unsupported protocol"
)
_SCHEMA = {"42P01", "42703", "42704", "42883", "42804", "3F000", "0A000"}


def translate(source: str, text: str, state: str | None) -> LockstepError:
    """The error of the contract for one of the server, as one line."""
    line = " ".join(text.split())[:500] or "no answer"
    line = f"source {source!r}: {line}"
    match state:
        case "42501":
            return ConfigurationError(f"{line}; see the rights that docs/sources/postgresql.md asks for")
        case "55P03":
            return SourceUnavailableError(f"{line} (option lock_timeout)")
        case "57014":
            return SourceUnavailableError(f"{line} (option statement_timeout)")
        case None if "statement timeout" in line:
            return SourceUnavailableError(f"{line} (option statement_timeout)")
        case None:
            mend = _NOT_OURS_TO_MEND.search(line) is not None and "starting up" not in line
            return ConfigurationError(line) if mend else SourceUnavailableError(line)
    if state[:2] in _UNAVAILABLE:
        return SourceUnavailableError(line)
    if state[:2] == "22":
        return DataError(line, told=f"source {source!r}: a value does not fit its type")
    if state in _SCHEMA:
        return SchemaChangedError(line)
    return ConfigurationError(line)


def _adbc_text(error: Exception) -> str:
    """The server's own words: ADBC adds the query and codes of its own around them."""
    text = str(error).partition("Query was:")[0]
    found = re.search(r"(?:ERROR|FATAL):\s*(.*)", text, re.DOTALL)
    return found[1] if found else text
