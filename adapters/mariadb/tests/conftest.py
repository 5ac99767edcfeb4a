from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pymysql
import pytest

from adapters.conformance.queries import whole
from adapters.mariadb.adapter import MariaDBAdapter
from adapters.mariadb.tests.server import shared_server
from adapters.servers.mariadb import DURABLE, MariaDBServer, why_not
from adapters.spi import SourceConfig, SourceTransaction
from algebra.local_view import Keys
from algebra.position import Position


class Source:
    """A database of its own on the shared server; adapters and connections are closed in the end."""

    def __init__(self, server: MariaDBServer, database: str = "") -> None:
        self.server = server
        self.database = server.create_database(database)
        self._open: list[Any] = []

    def run(self, *statements: str) -> tuple[Any, ...]:
        """Run statements as an application, each its own transaction; the rows of the last one."""
        return self.server.run(*statements, database=self.database)

    def connect(self, **more: Any) -> pymysql.Connection[Any]:
        connection = self.server.connect(self.database, **more)
        self._open.append(connection)
        return connection

    def adapter(
        self, capture: str = "log", user: str | None = None, password: str | None = None, **options: Any
    ) -> MariaDBAdapter:
        url = self.server.url(self.database, user, password)
        config = SourceConfig("shop", "mariadb", url, None, capture, {"trim_seconds": 0, **options})
        adapter = MariaDBAdapter(config)
        self._open.append(adapter)
        return adapter

    def prepared(self, capture: str, *relations: str, **options: Any) -> tuple[MariaDBAdapter, Position]:
        """An adapter with these relations under capture, and the position from where they are."""
        adapter = self.adapter(capture, **options)
        adapter.prepare(relations)
        return adapter, position(adapter)

    def close(self) -> None:
        for opened in self._open:
            opened.close()
        self.server.drop_database(self.database)


def position(adapter: MariaDBAdapter) -> Position:
    with adapter.snapshot() as snapshot:
        return snapshot.position


def entries(adapter: MariaDBAdapter, after: Position) -> list[SourceTransaction]:
    with adapter.snapshot() as snapshot:
        return list(snapshot.changes(after).transactions())


def rows(
    adapter: MariaDBAdapter, relation: str, keys: dict[str, list[Any]] | None = None
) -> list[tuple[Any, ...]]:
    """The rows of one relation, sorted; `keys` by column."""
    catalog = adapter.catalog()
    query = whole(catalog, relation)
    wanted = None
    if keys is not None:
        names = {c.source.column: c for c in query.columns}
        columns = [names[name] for name in keys]
        arrays = [pa.array(values, c.type) for c, values in zip(columns, keys.values(), strict=True)]
        wanted = Keys(tuple(c.name for c in columns), pa.table(arrays, names=[c.name for c in columns]))
    with adapter.snapshot() as snapshot:
        table = snapshot.fetch(query, wanted).read_all()
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=repr)


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source(shared_server())
    yield made
    made.close()


@pytest.fixture
def own_server() -> Iterator[MariaDBServer]:
    if reason := why_not():
        pytest.skip(reason)
    with MariaDBServer.started(DURABLE) as server:
        yield server


@pytest.fixture(params=["log", "trigger"])
def capture(request: pytest.FixtureRequest) -> str:
    return str(request.param)
