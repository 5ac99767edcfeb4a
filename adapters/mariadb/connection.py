"""Connections to the server: sessions with known settings, errors of the one taxonomy, rows as Arrow.

Sessions run in UTC, and with a `sql_mode` of our own: how text is quoted and what a zero date is must not
depend on the server's defaults. Values are handed to PyMySQL as parameters, which escapes them for the
session's character set (utf8mb4).

A server may vanish without a word: the host is gone, or something between forgot the connection. The first is
noticed by keepalives after about half a minute. The second looks like a server that thinks for long; it is
given up when it has said nothing for longer than a statement may take.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pymysql
from pymysql.connections import MySQLResult
from pymysql.constants import COMMAND
from pymysql.protocol import MysqlPacket

from adapters.mariadb.options import Options
from adapters.mariadb.wire import Rows, row_packets
from adapters.rate_limit import RateLimit
from algebra.errors import ConfigurationError, LockstepError, SchemaChangedError, SourceUnavailableError

SQL_MODE = "NO_ENGINE_SUBSTITUTION"
LOCK_SECONDS = 10
"""How long a lock is waited for. A change of a schema that waits holds up everybody behind it."""
SLOT = "\0"
"""Stands for a parameter in the statements of `packets`: no name can hold this character."""
GRACE_SECONDS = 30.0
"""How much longer than a statement may take the server may say nothing: it is to end the statement itself."""
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 30_000}
"""PyMySQL asks for keepalives, but for the system's own, which begin after hours."""
_OLDEST = (10, 6)
_REFUSED = {1044, 1045, 1142, 1143, 1227, 1370, 1419, 1698, 1410}
"""Not allowed: to log in, to use a database, a command, a column, a routine."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_UNKNOWN_DATABASE = 1049
_CHANGED = {1054, 1146, 1109, 1932}
"""A column or a table that is not there (any more)."""
_CHANGED_MEANWHILE = 1412
_TOO_MANY = {1040, 1203, 1226}
_TIMED_OUT = {1969, 3024, 1317}
_LOCK_WAIT = {1205, 1213}
_READ_ONLY = 1290


class Connection:
    """One session. Not shared between threads."""

    def __init__(self, source: str, options: Options, limit: RateLimit | None = None) -> None:
        self.source = source
        self._rate = limit or RateLimit(0)
        with translated(source):
            # Typed as anything: its stubs leave out what reading packets by ourselves needs.
            self._raw: Any = opened(connect_arguments(options))
        try:
            self.version = self._checked_version()
            self.execute(
                f"SET SESSION time_zone = '+00:00', sql_mode = '{SQL_MODE}', "
                f"lock_wait_timeout = {LOCK_SECONDS}, innodb_lock_wait_timeout = {LOCK_SECONDS}"
            )
            self.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        except LockstepError:
            self.close()
            raise

    @property
    def is_open(self) -> bool:
        return bool(self._raw.open)

    def execute(self, statement: str, parameters: Sequence[Any] | None = None) -> int:
        """Run one statement; returns how many rows it touched."""
        self._rate.spend()
        with translated(self.source), self._raw.cursor() as cursor:
            return int(cursor.execute(statement, parameters))

    def rows(self, statement: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """All rows of a query as Python values, for small results."""
        self._rate.spend()
        with translated(self.source), self._raw.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    def row(self, statement: str, parameters: Sequence[Any] | None = None) -> tuple[Any, ...]:
        """The one row of a query."""
        return self.rows(statement, parameters)[0]

    def value(self, statement: str, parameters: Sequence[Any] | None = None) -> Any:
        """The one value of a query."""
        return self.row(statement, parameters)[0]

    def packets(self, statement: str, parameters: Sequence[Any] = ()) -> Iterator[Rows]:
        """The rows of a query as they come; the connection is taken until the last one is read.

        Parameters take the places of SLOT in the statement.
        """
        self._rate.spend()
        first, *others = statement.split(SLOT)
        with translated(self.source):
            values = [self._raw.escape(value) for value in parameters]
            query = first + "".join(v + text for v, text in zip(values, others, strict=True))
            self._raw._execute_command(COMMAND.COM_QUERY, query)
            result = MySQLResult(self._raw)
            result.init_unbuffered_query()
            # From here on the packets are read past PyMySQL, which must not wait for them itself.
            result.unbuffered_active = False
            result.connection = None
        if result.field_count:
            yield from self._read_packets()

    def _read_packets(self) -> Iterator[Rows]:
        done = False
        stream = self._raw._rfile
        try:
            with translated(self.source):
                yield from row_packets(stream.read1, _raise)
            done = True
        except LockstepError:
            raise
        finally:
            if not done:
                # Whatever was not read would be taken for the answer to the next statement.
                self.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """What is done inside takes effect as a whole or not at all."""
        self.execute("START TRANSACTION")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(LockstepError):
                self.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Let go at once, without a word to the server that it might not answer."""
        with contextlib.suppress(pymysql.MySQLError, OSError):
            self._raw._force_close()

    def _checked_version(self) -> tuple[int, ...]:
        text = str(self._raw.get_server_info())
        if "MariaDB" not in text:
            raise ConfigurationError(
                f"source {self.source!r}: the server is MySQL {text}, not MariaDB, which this adapter is for"
            )
        numbers = text.removeprefix("5.5.5-").partition("-")[0]
        version = tuple(int(part) for part in numbers.split(".") if part.isdigit())
        if version < _OLDEST:
            raise ConfigurationError(
                f"source {self.source!r}: the server is MariaDB {numbers}; 10.6 is the oldest that works"
            )
        return version


def opened(arguments: Mapping[str, Any]) -> pymysql.Connection[Any]:
    """A connection of PyMySQL, with keepalives."""
    made = pymysql.connect(**arguments)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # not every system has all of them
            made._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)  # type: ignore[attr-defined]
    return made


def connect_arguments(options: Options) -> dict[str, Any]:
    """What `opened` is called with."""
    server = options.server
    timeout = options.footprint.statement_timeout
    silence = timeout + GRACE_SECONDS if timeout else None
    arguments: dict[str, Any] = {
        "host": server.host,
        "port": server.port,
        "user": server.user,
        "password": server.password,
        "database": server.database,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": max(1, int(options.connect_timeout)),
        "read_timeout": silence,
        "write_timeout": silence,
        "client_flag": 0,
        "program_name": "lockstep",
    }
    if server.tls_ca is not None:
        arguments["ssl"] = ssl.create_default_context(cafile=server.tls_ca)
    elif server.host in _LOOPBACK:
        # PyMySQL would load all certificates of the system for every connection.
        arguments["ssl_disabled"] = True
    return arguments


@contextmanager
def translated(source: str) -> Iterator[None]:
    """Errors of the driver and the network as errors of the one taxonomy."""
    try:
        yield
    except pymysql.MySQLError as error:
        raise failure(source, error) from error
    except (ConnectionError, TimeoutError, OSError) as error:
        raise SourceUnavailableError(f"source {source!r}: {error}") from error


def failure(source: str, error: pymysql.MySQLError) -> LockstepError:
    """What a driver's error means for whoever asked."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    said = str(error.args[1] if len(error.args) > 1 else error)
    where = f"source {source!r}: "
    if code in _REFUSED or code == _READ_ONLY:
        return ConfigurationError(f"{where}a right is missing, or the login is wrong: {said}")
    if code == _UNKNOWN_DATABASE:
        return ConfigurationError(f"{where}{said}")
    if code in _CHANGED:
        return SchemaChangedError(f"{where}the schema changed: {said}")
    if code in _TIMED_OUT:
        return SourceUnavailableError(f"{where}a statement took longer than option statement_timeout allows")
    if code == _CHANGED_MEANWHILE:
        return SourceUnavailableError(f"{where}a table was altered while it was being read; try again")
    if code in _LOCK_WAIT or code in _TOO_MANY or isinstance(error, pymysql.err.OperationalError):
        return SourceUnavailableError(f"{where}{said}")
    if isinstance(error, pymysql.err.InterfaceError | pymysql.err.InternalError):
        return SourceUnavailableError(f"{where}the connection is lost: {said}")
    return ConfigurationError(f"{where}the server refused a statement: {said}")


def _raise(payload: bytes) -> None:
    MysqlPacket(payload, "utf8").raise_for_error()


Connect = Callable[[], Connection]
