"""A private PostgreSQL server: its own folder, a free port of the loopback interface, no care for power cuts.

    with PostgresServer.started() as server:
        url = server.url(server.create_database())

What is committed survives the end of every process, and not that of the machine. PostgreSQL refuses to run as
root; then it runs as the user `postgres`, which Debian's package makes.
"""

from __future__ import annotations

import glob
import itertools
import os
import pwd
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

from adapters.servers.process import ServerProcess

INSTALL = "apt-get install --no-install-recommends postgresql"
SUPERUSER = "postgres"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "40",
    "max_prepared_transactions": "5",
    "max_connections": "100",
    "shared_buffers": "32MB",
    "fsync": "off",
    "full_page_writes": "off",
    # Autovacuum only competes with the tests, and the server lives for one run.
    "autovacuum": "off",
    "log_min_messages": "warning",
}
CRASH, ORDERLY = signal.SIGQUIT, signal.SIGINT
"""How `stop` may end it: without cleaning up, or with, breaking connections."""


def why_not() -> str | None:
    """Why no server can be started here, with the command that mends it; None if one can."""
    if _binaries() is None:
        return f"no PostgreSQL server is installed; {INSTALL}"
    if os.getuid() == 0 and _account() is None:
        return f"PostgreSQL does not run as root, and there is no user {SUPERUSER!r}; {INSTALL}"
    return None


class PostgresServer(ServerProcess):
    """One server in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        found = _binaries()
        assert found is not None, why_not()
        self._bin = found
        self._data = folder / "data"
        self._numbers = itertools.count(1)

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[PostgresServer]:
        """A running server, stopped and deleted in the end."""
        # Not pytest's folder: that is closed to the user the server runs as. Short, for the socket's path.
        server = cls(Path(tempfile.mkdtemp(prefix="lockstep-pg-")))
        with server.for_a_while():
            yield server

    def install(self) -> None:
        account = _account()
        if os.getuid() == 0 and account is not None:
            os.chown(self.folder, account.pw_uid, account.pw_gid)
        self._run_installer(
            [
                *_as_user(), str(self._bin / "initdb"), "-D", str(self._data), "-U", SUPERUSER, "-A", "trust",
                "-E", "UTF8", "--locale=C.UTF-8", "--no-sync",
            ]
        )  # fmt: skip
        settings = {**SETTINGS, "port": str(self.port), "unix_socket_directories": str(self.folder)}
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def stop(self, by: signal.Signals = CRASH) -> None:
        super().stop(by)

    def restart(self, by: signal.Signals = ORDERLY) -> None:
        self.stop(by)
        self.start()

    def url(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres", user: str = SUPERUSER) -> psycopg.Connection:
        """A connection in autocommit mode."""
        return psycopg.connect(self.url(database, user), autocommit=True)

    def create_database(self, name: str = "") -> str:
        name = name or f"case_{next(self._numbers)}"
        with self.connect() as connection:
            # By the write-ahead log: copying the files would force a checkpoint, which takes far longer.
            connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY wal_log")
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database with all its connections and replication slots."""
        for last in (False, False, False, True):
            with self.connect() as connection:
                try:
                    self._drop_database(connection, name)
                    return
                except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
                    # An adapter that is being closed connected once more, or a temporary slot has just gone.
                    if last:
                        raise

    def _drop_database(self, connection: psycopg.Connection, name: str) -> None:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s", [name]
        )
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = %s AND NOT temporary",
            [name],
        )
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")

    def _command(self) -> Sequence[str]:
        return [*_as_user(), str(self._bin / "postgres"), "-D", str(self._data)]

    def _answers(self) -> bool:
        """The server keeps its state in the file that holds its id."""
        with suppress(FileNotFoundError):
            lines = (self._data / "postmaster.pid").read_text().splitlines()
            mine = self._process is not None and lines[:1] == [str(self._process.pid)]
            return mine and len(lines) > 7 and lines[7].strip() == "ready"
        return False


def _binaries() -> Path | None:
    """The folder of the server's programs, newest version first, or None if there is none."""
    found = shutil.which("postgres")
    if found and shutil.which("initdb", path=str(Path(found).parent)):
        return Path(found).parent
    versions = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]))
    return next((Path(path) for path in reversed(versions) if (Path(path) / "postgres").exists()), None)


_BECOME = (
    "import os, sys; user, group, *command = sys.argv[1:]; "
    "os.setgroups([]); os.setgid(int(group)); os.setuid(int(user)); os.execv(command[0], command)"
)


def _as_user() -> list[str]:
    """What to put before a command that root may not run: it becomes that command as the other user."""
    account = _account()
    if os.getuid() != 0 or account is None:
        return []
    return [sys.executable, "-I", "-S", "-c", _BECOME, str(account.pw_uid), str(account.pw_gid)]


def _account() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(SUPERUSER)
    except KeyError:
        return None
