from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from adapters.conformance.case import CaseSkipped
from adapters.postgresql.adapter import PostgresAdapter
from adapters.postgresql.tests import harnesses
from adapters.servers.postgresql import PostgresServer
from adapters.spi import SourceConfig

MakeAdapter = Callable[..., PostgresAdapter]
Sql = Callable[..., list[Any]]
CAPTURES = ("log", "trigger")


@pytest.fixture(scope="session")
def server() -> PostgresServer:
    try:
        return harnesses.server()
    except CaseSkipped as skipped:
        pytest.skip(str(skipped))


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    name = server.create_database()
    yield name
    server.drop_database(name)


@pytest.fixture
def owner(server: PostgresServer, database: str) -> Iterator[psycopg.Connection[Any]]:
    """The database's superuser, in autocommit mode."""
    with server.connect(database) as connection:
        yield connection


@pytest.fixture
def sql(owner: psycopg.Connection[Any]) -> Sql:
    """Runs statements as the superuser; the rows of the last one."""

    def run(*statements: str) -> list[Any]:
        for statement in statements:
            cursor = owner.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []

    return run


@pytest.fixture
def make(server: PostgresServer, database: str) -> Iterator[MakeAdapter]:
    """Makes adapters for the test's database; all are closed in the end."""
    made: list[PostgresAdapter] = []

    def create(
        capture: str = "log",
        relations: tuple[str, ...] | None = None,
        user: str = "postgres",
        url: str = "",
        **options: Any,
    ) -> PostgresAdapter:
        options = {"trim_seconds": 0, **options}
        url = url or server.url(database, user)
        made.append(PostgresAdapter(SourceConfig("shop", "postgresql", url, relations, capture, options)))
        return made[-1]

    yield create
    for adapter in made:
        adapter.close()
