"""Connections to one SQLite file, all through one SQLite library, with errors a user can act on.

POSIX locks belong to a process, not to a descriptor: when any descriptor of a file is closed, every lock
the process holds on that file is gone. Two SQLite libraries in one process (the ADBC driver's and
Python's `sqlite3`), or a plain `open()` of the database or its `-shm` file, would thus drop each other's
locks and corrupt data without a sign. So this module is the only door to the database file, and the door
is the ADBC driver, which also hands out Arrow without a Python object per value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import adbc_driver_manager
import adbc_driver_sqlite
import pyarrow as pa

from algebra.errors import ConfigurationError, LockstepError, SourceUnavailableError

URL_PREFIX = "sqlite:///"
BATCH_ROWS = 2048
"""Rows per Arrow batch, at most. The driver counts a batch's bytes in 32 bits, so rows must be below 1 MiB on
average; larger batches are hardly faster."""

READ_TIMEOUT_MS = 5000
_CACHE_KIB = 32 * 1024
_MMAP_BYTES = 64 << 20
"""Of the file; mapped pages count as memory of the process, for each of its connections."""


def database_path(url: str) -> Path:
    """The file that `sqlite:///relative.db` or `sqlite:////absolute.db` names."""
    if not url.startswith(URL_PREFIX) or len(url) == len(URL_PREFIX):
        raise ConfigurationError(
            f"not a SQLite url: {url!r}; write sqlite:///relative.db or sqlite:////absolute.db"
        )
    return Path(url[len(URL_PREFIX) :])


@dataclass(frozen=True)
class FileIdentity:
    """Which file a path named at some moment; it changes when the file is replaced (a restored backup)."""

    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        try:
            status = os.stat(path)
        except OSError as error:
            raise SourceUnavailableError(f"SQLite database {path}: {error.strerror}") from error
        if not os.path.isfile(path):
            raise ConfigurationError(f"SQLite database {path}: not a file")
        return cls(status.st_dev, status.st_ino)


def translate(path: Path, text: str) -> LockstepError:
    """The error to raise for what SQLite said: retryable, or for a person to mend."""
    said = " ".join(text.split("\nquery:")[0].split()) or "no answer"
    lowered = said.lower()
    if "locked" in lowered or "busy" in lowered:
        return SourceUnavailableError(f"SQLite database {path} is locked by another process")
    if "not a database" in lowered or "malformed" in lowered:
        return ConfigurationError(f"{path} is not a readable SQLite database ({said})")
    if "readonly" in lowered or "read-only" in lowered:
        return ConfigurationError(f"SQLite database {path} is read-only, and this step has to write")
    return SourceUnavailableError(f"SQLite database {path}: {said}")


class Result:
    """A running statement: its Arrow batches, and the statement that has to be closed after them."""

    def __init__(self, connection: Connection, statement: adbc_driver_manager.AdbcStatement, handle: Any):
        self._connection = connection
        self._statement: adbc_driver_manager.AdbcStatement | None = statement
        self.batches = pa.RecordBatchReader.from_stream(handle)

    def close(self) -> None:
        """End the statement; what was read stays valid."""
        statement, self._statement = self._statement, None
        if statement is None:
            return
        self.batches.close()
        self._connection.forget(self)
        # The driver repeats the error of the last step here; whoever read the batches has seen it.
        with suppress(adbc_driver_manager.Error):
            statement.close()

    def __enter__(self) -> Result:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Connection:
    """One SQLite connection. Each statement commits by itself unless `BEGIN` was executed."""

    def __init__(self, path: Path, database: adbc_driver_manager.AdbcDatabase):
        self._path = path
        self._running: set[Result] = set()
        try:
            self._handle = adbc_driver_manager.AdbcConnection(database)
        except adbc_driver_manager.Error as error:
            raise translate(path, str(error)) from error
        self.execute(f"PRAGMA busy_timeout = {READ_TIMEOUT_MS}")
        self.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        self.execute(f"PRAGMA mmap_size = {_MMAP_BYTES}")

    def query(
        self, sql: str, parameters: Sequence[int | float | str] = (), batch_rows: int = BATCH_ROWS
    ) -> Result:
        """The statement's rows as Arrow batches of so many rows; close the result when done."""
        statement, handle = self._run(sql, parameters, batch_rows)
        result = Result(self, statement, handle)
        self._running.add(result)
        return result

    def rows(self, sql: str, parameters: Sequence[int | float | str] = ()) -> list[tuple[Any, ...]]:
        """All rows as Python tuples; for catalogs and single values, not for data."""
        with self.query(sql, parameters) as result:
            try:
                table = result.batches.read_all()
            except (OSError, pa.ArrowException) as error:
                raise self.failure(str(error)) from error
        return list(zip(*(column.to_pylist() for column in table.columns), strict=True))

    def value(self, sql: str, parameters: Sequence[int | float | str] = ()) -> Any:
        """The first column of the first row, or None."""
        rows = self.rows(sql, parameters)
        return rows[0][0] if rows else None

    def execute(self, sql: str, parameters: Sequence[int | float | str] = ()) -> None:
        """Run one statement for its effect."""
        statement = self._statement(sql, parameters)
        try:
            statement.execute_update()
        except adbc_driver_manager.Error as error:
            raise self.failure(_closing(statement, error)) from error
        _closing(statement, None)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A write transaction: all of the body's statements, or none."""
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            self.execute("ROLLBACK")
            raise

    def _run(
        self, sql: str, parameters: Sequence[int | float | str], batch_rows: int
    ) -> tuple[adbc_driver_manager.AdbcStatement, Any]:
        statement = self._statement(sql, parameters, batch_rows)
        try:
            handle, _ = statement.execute_query()
        except adbc_driver_manager.Error as error:
            raise self.failure(_closing(statement, error)) from error
        return statement, handle

    def _statement(
        self, sql: str, parameters: Sequence[int | float | str], batch_rows: int = BATCH_ROWS
    ) -> adbc_driver_manager.AdbcStatement:
        statement = adbc_driver_manager.AdbcStatement(self._handle)
        statement.set_options(**{adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value: str(batch_rows)})
        statement.set_sql_query(sql)
        if parameters:
            arrays = [pa.array([value]) for value in parameters]
            names = [str(i) for i in range(len(arrays))]
            statement.bind(pa.RecordBatch.from_arrays(arrays, names=names))
        return statement

    def failure(self, text: str) -> LockstepError:
        """The error to raise for what SQLite said on this connection."""
        return translate(self._path, text)

    def forget(self, result: Result) -> None:
        self._running.discard(result)

    def finish(self) -> None:
        """Close every result that is still open: a running SELECT would keep its transaction alive."""
        for result in list(self._running):
            result.close()

    def close(self) -> None:
        self.finish()
        self._handle.close()


def _closing(statement: adbc_driver_manager.AdbcStatement, error: Exception | None) -> str:
    """Close the statement and return all that was said: for SQLITE_BUSY only the closing has the text."""
    said = [] if error is None else [str(error)]
    try:
        statement.close()
    except adbc_driver_manager.Error as second:
        said.append(str(second))
    return " ".join(said)


class Database:
    """One SQLite file, opened; a factory of connections to it."""

    def __init__(self, path: Path):
        self.path = path
        self.identity = FileIdentity.of(path)
        # mode=rw: without it SQLite would create an empty database where a file is missing.
        uri = f"file:{quote(str(path.absolute()))}?mode=rw"
        try:
            self._handle = adbc_driver_sqlite.connect(uri)
        except adbc_driver_manager.Error as error:
            raise SourceUnavailableError(f"SQLite database {path} cannot be opened") from error
        self._connections: list[Connection] = []

    def connect(self) -> Connection:
        connection = Connection(self.path, self._handle)
        self._connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections = []
        self._handle.close()
