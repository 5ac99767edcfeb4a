"""A private PostgreSQL server for tests: its own folder, a free port of the loopback interface, not durable.

Use the fixture by importing it into a `conftest.py`:

    from adapters.postgresql.tests.server import postgres_server  # noqa: F401

or a server of one's own where it is to be stopped and started:

    with PostgresServer.started() as server:
        url = server.create_database()

PostgreSQL refuses to run as root; then it runs as the user `postgres`, which Debian's package makes.
"""

from __future__ import annotations

import glob
import itertools
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

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


def binaries() -> Path | None:
    """The folder of the server's programs, newest version first, or None if there is none."""
    found = shutil.which("postgres")
    if found and shutil.which("initdb", path=str(Path(found).parent)):
        return Path(found).parent
    versions = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]))
    return next((Path(path) for path in reversed(versions) if (Path(path) / "postgres").exists()), None)


def why_not() -> str | None:
    """Why no server can be started here, with the command that mends it; None if one can."""
    if binaries() is None:
        return f"no PostgreSQL server is installed; {INSTALL}"
    if os.getuid() == 0 and _account() is None:
        return f"PostgreSQL does not run as root, and there is no user {SUPERUSER!r}; {INSTALL}"
    return None


class PostgresServer:
    """One server in one folder. `stop` and `start` keep the data and the port."""

    def __init__(self, folder: Path) -> None:
        found = binaries()
        assert found is not None, why_not()
        self._bin = found
        self._data = folder / "data"
        self._log = folder / "log"
        self._account = _account() if os.getuid() == 0 else None
        if self._account is not None:
            os.chown(folder, self._account.pw_uid, self._account.pw_gid)
        self.port = _free_port()
        self._numbers = itertools.count(1)
        self._run(
            "initdb", "-D", str(self._data), "-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8",
            "--no-sync",
        )  # fmt: skip
        settings = {**SETTINGS, "port": str(self.port), "unix_socket_directories": str(folder)}
        with (self._data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    @classmethod
    @contextmanager
    def started(cls) -> Iterator[PostgresServer]:
        """A running server, stopped and deleted in the end."""
        # Not pytest's folder: that is closed to the user the server runs as. Short, for the socket's path.
        folder = Path(tempfile.mkdtemp(prefix="lockstep-pg-"))
        try:
            server = cls(folder)
            server.start()
            try:
                yield server
            finally:
                server.stop()
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def start(self) -> None:
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self._log), "-w", "-t", "120", "start")

    def stop(self, mode: str = "immediate") -> None:
        """Stop it; `immediate` is a crash, `fast` an orderly end that breaks connections."""
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "-t", "120", "stop")

    def restart(self, mode: str = "fast") -> None:
        self.stop(mode)
        self.start()

    def url(self, database: str = "postgres", user: str = SUPERUSER) -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str = "postgres", user: str = SUPERUSER) -> psycopg.Connection:
        """A connection in autocommit mode."""
        return psycopg.connect(self.url(database, user), autocommit=True)

    def create_database(self) -> str:
        """The name of a new, empty database."""
        name = f"case_{next(self._numbers)}"
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

    def _run(self, program: str, *arguments: str) -> None:
        account = self._account
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            cwd="/",
            stdin=subprocess.DEVNULL,
            # The server inherits what pg_ctl writes to: a pipe would never end.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            log = self._log.read_text()[-2000:] if self._log.exists() else ""
            raise RuntimeError(f"{program} ended with {done.returncode}\n{log}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """The session's server; skips, with the command that installs one, where there is none."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with PostgresServer.started() as server:
        yield server


def _account() -> pwd.struct_passwd | None:
    try:
        return pwd.getpwnam(SUPERUSER)
    except KeyError:
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
