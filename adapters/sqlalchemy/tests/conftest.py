from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.conformance.case import CaseSkipped
from adapters.spi import SourceConfig
from adapters.sqlalchemy.adapter import SqlAlchemyAdapter
from adapters.sqlalchemy.tests.harnesses import (
    PROMPT,
    MariaDBHarness,
    PostgresHarness,
    SqlAlchemyHarness,
    SqliteHarness,
)


class Clock:
    """A clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


MakeAdapter = Callable[..., SqlAlchemyAdapter]
DATABASES: dict[str, type[SqlAlchemyHarness]] = {
    "sqlite": SqliteHarness,
    "postgresql": PostgresHarness,
    "mariadb": MariaDBHarness,
}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlAlchemyHarness]:
    """A database without tables: SQLite, or those that the test is parametrized with."""
    try:
        harness = DATABASES[request.param](tmp_path)
    except CaseSkipped as reason:
        pytest.skip(str(reason))
    yield harness
    harness.close()


@pytest.fixture
def make(database: SqlAlchemyHarness, clock: Clock) -> Iterator[MakeAdapter]:
    """Makes adapters for the test's database; all are closed in the end, before it is dropped."""
    made: list[SqlAlchemyAdapter] = []

    def create(relations: tuple[str, ...] | None = None, **options: Any) -> SqlAlchemyAdapter:
        given = {**PROMPT, "shadow": str(database.shadow), **options}
        config = SourceConfig("shop", "sqlalchemy", database.url, relations, "diff", given)
        made.append(SqlAlchemyAdapter(config, clock=clock, wall=clock))
        return made[-1]

    yield create
    for adapter in made:
        adapter.close()


on_servers = pytest.mark.parametrize("database", ["postgresql", "mariadb"], indirect=True)
on_all = pytest.mark.parametrize("database", ["sqlite", "postgresql", "mariadb"], indirect=True)
on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)
on_mariadb = pytest.mark.parametrize("database", ["mariadb"], indirect=True)
