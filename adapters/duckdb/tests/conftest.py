from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from adapters.duckdb.adapter import DuckDBAdapter
from adapters.duckdb.tests.owner import Owner
from adapters.spi import SourceConfig

MakeAdapter = Callable[..., DuckDBAdapter]


@pytest.fixture(scope="session")
def owner_process() -> Iterator[Owner]:
    with Owner() as owner:
        yield owner


@pytest.fixture
def owner(owner_process: Owner) -> Iterator[Owner]:
    yield owner_process
    owner_process.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shop.duckdb"


@pytest.fixture
def make(path: Path) -> Iterator[MakeAdapter]:
    """Makes adapters for the test's file; all are closed in the end."""
    made: list[DuckDBAdapter] = []

    def create(
        capture: str = "trigger", relations: tuple[str, ...] | None = None, **options: Any
    ) -> DuckDBAdapter:
        config = SourceConfig("shop", "duckdb", f"duckdb:///{path}", relations, capture, options)
        made.append(DuckDBAdapter(config))
        return made[-1]

    yield create
    for adapter in made:
        adapter.close()
