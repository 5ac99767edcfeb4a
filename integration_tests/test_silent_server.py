"""A database server that has vanished without a word: its connections are neither cut nor answered."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from adapters.mariadb import binlog, connection
from adapters.mariadb.adapter import MariaDBAdapter
from adapters.servers import mariadb
from adapters.servers.mariadb import MariaDBServer
from adapters.spi import Adapter, SourceConfig
from adapters.sqlalchemy import dialects
from adapters.sqlalchemy.adapter import SqlAlchemyAdapter
from algebra.errors import SourceUnavailableError
from algebra.position import Position
from lab.soak.proxy import FAIR, Proxy, Weather

SILENT = Weather(silent=True)


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDBServer]:
    if reason := mariadb.why_not():
        pytest.skip(reason)
    with MariaDBServer.started() as started:
        yield started


@pytest.fixture
def proxy(server: MariaDBServer) -> Iterator[Proxy]:
    with closing(Proxy(f"{server.host}:{server.port}")) as made:
        yield made


def adapter_on(
    server: MariaDBServer, proxy: Proxy, database: str, capture: str, statement_timeout: float = 1
) -> MariaDBAdapter:
    url = server.url(database).replace(f":{server.port}/", f":{proxy.address.rpartition(':')[2]}/")
    options = {"statement_timeout": statement_timeout, "connect_timeout": 1}
    return MariaDBAdapter(SourceConfig("shop", "mariadb", url, None, capture, options))


def position(adapter: Adapter) -> Position:
    with adapter.snapshot() as snapshot:
        return snapshot.position


@pytest.mark.parametrize("capture", ["log", "trigger"])
def test_a_server_that_is_silent_is_noticed_and_found_again(
    server: MariaDBServer, proxy: Proxy, capture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "GRACE_SECONDS", 0.2)
    database = server.create_database()
    server.run("CREATE TABLE item (id INT PRIMARY KEY)", database=database)
    with closing(adapter_on(server, proxy, database, capture)) as adapter:
        adapter.prepare(["item"])
        start = position(adapter)
        for call in (lambda: position(adapter), adapter.catalog, lambda: adapter.wait(60)):
            proxy.weather = SILENT
            with pytest.raises(SourceUnavailableError):
                call()
            proxy.weather = FAIR
            server.run("INSERT INTO item SELECT COUNT(*) FROM item", database=database)
            with adapter.snapshot() as snapshot:
                assert snapshot.changes(start).positions


@pytest.mark.parametrize("falls_silent", ["before a cycle", "in the middle of one"])
def test_a_server_that_is_silent_is_noticed_by_a_cycle(
    server: MariaDBServer, proxy: Proxy, tmp_path: Path, falls_silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialects, "GRACE_SECONDS", 0.2)
    database = server.create_database()
    server.run("CREATE TABLE item (id INT PRIMARY KEY)", database=database)
    url = server.url(database).replace(f":{server.port}/", f":{proxy.address.rpartition(':')[2]}/")
    options = {"statement_timeout": 1, "poll_interval": 0, "shadow": str(tmp_path / "shadow")}
    config = SourceConfig(
        "shop", "sqlalchemy", url.replace("mariadb:", "mariadb+pymysql:"), None, None, options
    )
    with closing(SqlAlchemyAdapter(config)) as adapter:
        adapter.prepare(["item"])
        start = position(adapter)
        with monkeypatch.context() as patch:
            patch.setattr(adapter._database, "spend", lambda: setattr(proxy, "weather", SILENT))
            if falls_silent == "before a cycle":
                proxy.weather = SILENT
            with pytest.raises(SourceUnavailableError):
                position(adapter)
        proxy.weather = FAIR
        server.run("INSERT INTO item VALUES (1)", database=database)
        with adapter.snapshot() as snapshot:
            assert len(snapshot.changes(start)) == 1


def test_a_binlog_that_is_silent_is_noticed(
    server: MariaDBServer, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of a snapshot, whose own connection is not asked and would wait for ever."""
    monkeypatch.setattr(binlog, "SILENCE_SECONDS", 1.0)
    database = server.create_database()
    server.run("CREATE TABLE item (id INT PRIMARY KEY)", database=database)
    with closing(adapter_on(server, proxy, database, "log", statement_timeout=0)) as adapter:
        adapter.prepare(["item"])
        start = position(adapter)
        server.run("INSERT INTO item VALUES (1)", database=database)
        with adapter.snapshot() as snapshot:
            proxy.weather = SILENT
            with pytest.raises(SourceUnavailableError):
                snapshot.changes(start)
            proxy.weather = FAIR
        with adapter.snapshot() as snapshot:
            assert len(snapshot.changes(start)) == 1


@pytest.mark.parametrize("capture", ["log", "trigger"])
def test_connections_have_keepalives(server: MariaDBServer, proxy: Proxy, capture: str) -> None:
    made: list[socket.socket] = []
    database = server.create_database()
    server.run("CREATE TABLE item (id INT PRIMARY KEY)", database=database)
    with (
        closing(adapter_on(server, proxy, database, capture)) as adapter,
        pytest.MonkeyPatch.context() as patch,
    ):
        connect = socket.create_connection

        def noting(*arguments: object, **named: object) -> socket.socket:
            made.append(connect(*arguments, **named))  # type: ignore[arg-type]
            return made[-1]

        patch.setattr(socket, "create_connection", noting)
        adapter.prepare(["item"])
        start = position(adapter)
        server.run("INSERT INTO item VALUES (1)", database=database)
        with adapter.snapshot() as snapshot:
            assert len(snapshot.changes(start)) == 1
        ours = [
            s for s in made if s.fileno() >= 0 and s.getpeername()[1] == int(proxy.address.rpartition(":")[2])
        ]
        assert len(ours) >= 2, "for queries, and for the binlog or for numbering"
        for found in ours:
            assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert found.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) <= 30
