"""A private MariaDB server for tests: a free loopback port, a temporary directory, ended by its id.

    with MariaDBServer.start() as server:
        database = server.create_database()
        connection = server.connect(database)      # PyMySQL, as the server's owner
        url = server.url(database)                 # for `SourceConfig`

`shared_server()` is one for all tests of the process. Debian's own service is never touched. Where no server
is installed, `start` skips the test and names the command that installs it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pymysql
import pytest

INSTALL = "apt-get install --no-install-recommends mariadb-server"
PATIENCE = 60.0
"""Seconds until a server that does not start counts as broken."""

_SYSTEM_USER = "mysql"
_SETTINGS = (
    "--no-defaults",
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--character-set-server=utf8mb4",
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=64M",
    "--innodb-log-file-size=16M",
    "--innodb-fast-shutdown=2",
    "--max-allowed-packet=256M",
    "--performance-schema=OFF",
    # Without it, only a superuser may create triggers where there is a binlog.
    "--log-bin-trust-function-creators=1",
)


class MariaDBServer:
    """One running server. `restart` keeps its port and its data."""

    def __init__(self, directory: Path, settings: Sequence[str] = ()) -> None:
        self.directory = directory
        self.host, self.user, self.password = "127.0.0.1", "owner", "owner's secret"
        self._data = directory / "data"
        self._socket = Path("/tmp") / f"lockstep-mariadb-{os.getpid()}-{id(self):x}.sock"
        self._settings = tuple(settings)
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)
        self.port = 0

    @classmethod
    @contextmanager
    def start(cls, directory: Path | None = None, settings: Sequence[str] = ()) -> Iterator[MariaDBServer]:
        """A new server with further settings; skips where none is installed.

        Its directory, if given, must stay open to the server's user: pytest closes those of `tmp_path`.
        """
        if reason := missing():
            pytest.skip(reason)
        with contextlib.ExitStack() as stack:
            if directory is None:
                directory = Path(tempfile.mkdtemp(prefix="lockstep-mariadb-"))
                stack.callback(shutil.rmtree, directory, ignore_errors=True)
            server = cls(directory, settings)
            server._install()
            stack.callback(server.down)
            server.up()
            server._create_owner()
            yield server

    def up(self) -> None:
        """Start the process and wait until it answers."""
        self.port = self.port or _free_port()
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(find("mariadbd")), *_SETTINGS, *_as_user(), *self._settings,
                    f"--datadir={self._data}", f"--socket={self._socket}", f"--port={self.port}",
                    f"--pid-file={self._data}/server.pid", f"--tmpdir={self._data}",
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        deadline = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the MariaDB server did not start:\n{self._log()[-3000:]}")
            time.sleep(0.02)

    def down(self) -> None:
        """End the process in an orderly way."""
        self._end(lambda process: process.terminate())

    def kill(self) -> None:
        """End the process at once, as a crash does."""
        self._end(lambda process: process.kill())

    def restart(self) -> None:
        """Down and up again: every connection is lost."""
        self.down()
        self.up()

    def url(self, database: str, user: str | None = None, password: str | None = None) -> str:
        """The url of a database, with the password as it stands in a url."""
        from urllib.parse import quote

        secret = quote(self.password if user is None else password or "", safe="")
        return f"mariadb://{user or self.user}:{secret}@{self.host}:{self.port}/{database}"

    def connect(
        self, database: str | None = None, user: str | None = None, password: str | None = None, **more: Any
    ) -> pymysql.Connection[Any]:
        """A connection in autocommit mode; by default of a user who may do everything."""
        return pymysql.connect(
            host=self.host,
            port=self.port,
            user=user or self.user,
            password=self.password if user is None else password or "",
            database=database,
            charset="utf8mb4",
            **{"autocommit": True, "ssl_disabled": True, **more},
        )

    def create_database(self, prefix: str = "case") -> str:
        """A new empty database; its name."""
        name = f"{prefix}_{next(self._numbers)}"
        self.run(f"CREATE DATABASE `{name}` CHARACTER SET utf8mb4")
        return name

    def drop_database(self, name: str) -> None:
        self.run(f"DROP DATABASE IF EXISTS `{name}`")

    def run(self, *statements: str, database: str | None = None) -> tuple[Any, ...]:
        """Run statements as the owner, each its own transaction; the rows of the last one."""
        rows: tuple[Any, ...] = ()
        with contextlib.closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = tuple(cursor.fetchall())
        return rows

    def _install(self) -> None:
        self._data.mkdir(parents=True)
        if os.geteuid() == 0:
            shutil.chown(self._data, _SYSTEM_USER)
            for parent in (self.directory, *self.directory.parents):
                if parent.stat().st_uid == 0 and not parent.stat().st_mode & 0o001:
                    parent.chmod(parent.stat().st_mode | 0o011)  # the server's user has to get through
        done = subprocess.run(
            [
                str(find("mariadb-install-db")), "--no-defaults", *_as_user(), f"--datadir={self._data}",
                "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
                "--innodb-log-file-size=16M", "--innodb-buffer-pool-size=64M",
            ],
            # A server that starts removes temporary tables wherever it has its own, also those of others.
            env={**os.environ, "TMPDIR": str(self._data)},
            capture_output=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"mariadb-install-db failed: {done.stdout.decode()}{done.stderr.decode()}")

    def _create_owner(self) -> None:
        root = pymysql.connect(unix_socket=str(self._socket), user="root", autocommit=True, ssl_disabled=True)
        with contextlib.closing(root), root.cursor() as cursor:
            cursor.execute(f"CREATE USER {self.user}@'%%' IDENTIFIED BY %s", (self.password,))
            cursor.execute(f"GRANT ALL PRIVILEGES ON *.* TO {self.user}@'%' WITH GRANT OPTION")

    def _answers(self) -> bool:
        try:
            pymysql.connect(unix_socket=str(self._socket), user="root", ssl_disabled=True).close()
        except pymysql.err.OperationalError as error:
            # Refused by name is answered: root may have been given a password by a test.
            return bool(error.args[0] == 1045)
        return True

    def _end(self, how: Any) -> None:
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            how(process)
            process.wait()
        self._socket.unlink(missing_ok=True)

    def _log(self) -> str:
        return (self.directory / "server.log").read_text(errors="replace")


def missing() -> str | None:
    """Why there can be no server here, with the command that installs one; None if there can."""
    if find("mariadbd") and find("mariadb-install-db"):
        return None
    return f"no MariaDB server is installed: {INSTALL}"


@functools.cache
def shared_server() -> MariaDBServer:
    """The one server of this process, started when first asked for and ended with the process."""
    stack = contextlib.ExitStack()
    server = stack.enter_context(MariaDBServer.start())
    atexit.register(stack.close)
    return server


def find(program: str) -> str | None:
    """Where a program of the server is; its folders are not on everybody's path."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/usr/bin")


def _as_user() -> list[str]:
    """Started by root, the server runs as the user that its package made."""
    return [f"--user={_SYSTEM_USER}"] if os.geteuid() == 0 else []


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
