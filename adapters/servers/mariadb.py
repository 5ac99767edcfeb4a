"""A private MariaDB server: a free loopback port, a temporary directory, ended by its id.

    with MariaDBServer.started() as server:
        database = server.create_database()
        connection = server.connect(database)      # PyMySQL, as the server's owner
        url = server.url(database)                 # for `SourceConfig`

Debian's own service is never touched.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pymysql

from adapters.servers.process import ServerProcess

INSTALL = "apt-get install --no-install-recommends mariadb-server"
DURABLE = ("--innodb-flush-log-at-trx-commit=1", "--sync-binlog=1")
"""Further settings with which data and binlog agree after a crash."""

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


def why_not() -> str | None:
    """Why there can be no server here, with the command that installs one; None if there can."""
    if _find("mariadbd") and _find("mariadb-install-db"):
        return None
    return f"no MariaDB server is installed; {INSTALL}"


class MariaDBServer(ServerProcess):
    """One server in one folder, with further settings."""

    def __init__(self, folder: Path, settings: Sequence[str] = (), password: str = "owner's secret") -> None:
        super().__init__(folder)
        self.host, self.user, self.password = "127.0.0.1", "owner", password
        self._data = folder / "data"
        self._socket = folder / "server.sock"
        self.settings = tuple(settings)
        """Further settings, as of the next start."""
        self._numbers = itertools.count(1)

    @classmethod
    @contextmanager
    def started(cls, settings: Sequence[str] = ()) -> Iterator[MariaDBServer]:
        """A running server, stopped and deleted in the end."""
        server = cls(Path(tempfile.mkdtemp(prefix="lockstep-mariadb-")), settings)
        with server.for_a_while():
            yield server

    def install(self) -> None:
        self._data.mkdir(parents=True)
        if os.geteuid() == 0:
            shutil.chown(self.folder, _SYSTEM_USER)
            shutil.chown(self._data, _SYSTEM_USER)
        setup = self.folder / "owner.sql"
        secret = self.password.replace("'", "''")
        setup.write_text(
            "FLUSH PRIVILEGES;\n"  # until then, users cannot be made
            f"CREATE USER {self.user}@'%' IDENTIFIED BY '{secret}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO {self.user}@'%' WITH GRANT OPTION;\n"
        )
        self._run_installer(
            [
                str(_find("mariadb-install-db")), "--no-defaults", *_as_user(), f"--datadir={self._data}",
                "--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve",
                "--innodb-log-file-size=16M", "--innodb-buffer-pool-size=64M", f"--extra-file={setup}",
            ],
            # A server that starts removes temporary tables wherever it has its own, also those of others.
            {**os.environ, "TMPDIR": str(self._data)},
        )  # fmt: skip

    def restart(self) -> None:
        """Stop and start again: every connection is lost."""
        self.stop()
        self.start()

    def url(self, database: str, user: str | None = None, password: str | None = None) -> str:
        """The url of a database, with the password as it stands in a url."""
        secret = quote(self.password if user is None else password or "", safe="")
        return f"mariadb://{user or self.user}{':' * bool(secret)}{secret}@{self.host}:{self.port}/{database}"

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

    def create_database(self, name: str = "") -> str:
        name = name or f"case_{next(self._numbers)}"
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

    def _command(self) -> Sequence[str]:
        return [
            str(_find("mariadbd")), *_SETTINGS, *_as_user(), *self.settings,
            f"--datadir={self._data}", f"--socket={self._socket}", f"--port={self.port}",
            f"--pid-file={self._data}/server.pid", f"--tmpdir={self._data}",
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            pymysql.connect(unix_socket=str(self._socket), user="root", ssl_disabled=True).close()
        except pymysql.err.OperationalError as error:
            # Refused by name is answered: root may have been given a password by a test.
            return bool(error.args[0] == 1045)
        return True


def _find(program: str) -> str | None:
    """Where a program of the server is; its folders are not on everybody's path."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/usr/bin")


def _as_user() -> list[str]:
    """Started by root, the server runs as the user that its package made."""
    return [f"--user={_SYSTEM_USER}"] if os.geteuid() == 0 else []
