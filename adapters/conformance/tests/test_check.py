"""`check_source` on live sources: it finds what it can without writing, and writes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from adapters.conformance import CheckResult, check_source
from adapters.conformance.tests.broken_fetch import AnswersOnce, IgnoresKeys
from adapters.conformance.tests.broken_lifecycle import GuessesTypes
from adapters.conformance.tests.fault import BrokenAdapter, BrokenSnapshot
from adapters.memory import MemoryAdapter, MemoryDatabase
from adapters.spi import SourceConfig


@pytest.fixture
def database() -> MemoryDatabase:
    database = MemoryDatabase("checked")
    database.create("item", {"id": pa.int64(), "price": pa.decimal128(9, 2)}, ["id"])
    database.create("note", {"text": pa.string(), "score": pa.float64()})
    database.create("empty", {"a": pa.float64()})
    with database.transaction() as tx:
        tx.insert("item", [(i, i) for i in range(300)])
        tx.insert("note", [("x", float("nan")), ("x", None), (None, 1.0), (None, 1.0)])
    return database


def check(adapter: type[MemoryAdapter], max_rows: int = 1000) -> dict[str, CheckResult]:
    config = SourceConfig("shop", "memory", "memory:///checked")
    return {result.name: result for result in check_source(adapter(config), max_rows)}


def wrong(results: dict[str, CheckResult]) -> list[str]:
    return [name for name, result in results.items() if not result.ok]


def broken(snapshot: type[BrokenSnapshot]) -> type[MemoryAdapter]:
    return type(snapshot.__name__, (BrokenAdapter,), {"broken_snapshot": snapshot})


@pytest.mark.parametrize("prepared", [("item", "note", "empty"), ()])
def test_a_healthy_source_is_found_so_and_left_alone(
    database: MemoryDatabase, prepared: Sequence[str]
) -> None:
    MemoryAdapter(SourceConfig("shop", "memory", "memory:///checked")).prepare(prepared)
    before = database.version
    results = check(MemoryAdapter)
    assert wrong(results) == []
    assert list(results) == [
        "capabilities",
        "catalog",
        "prepare (dry run)",
        "relation item",
        "relation note",
        "relation empty",
        "changes",
    ]
    assert results["relation item"].detail == "300 rows, 50 keys tried"
    assert ("not captured" in results["changes"].detail) == (not prepared)
    assert database.version is before


def test_a_large_relation_is_checked_on_its_first_rows(database: MemoryDatabase) -> None:
    results = check(MemoryAdapter, max_rows=100)
    assert wrong(results) == []
    assert results["relation item"].detail == "100 rows and more, 50 keys tried"


@pytest.mark.parametrize("max_rows", [100, 1000])
def test_ignored_keys_are_found(database: MemoryDatabase, max_rows: int) -> None:
    results = check(broken(IgnoresKeys), max_rows)
    assert "relation item" in wrong(results)


def test_an_unstable_snapshot_is_found(database: MemoryDatabase) -> None:
    results = check(broken(AnswersOnce))
    assert "two fetches in one snapshot differ" in results["relation item"].detail


def test_wrong_types_are_found(database: MemoryDatabase) -> None:
    assert wrong(check(GuessesTypes)) == ["relation item"]


def test_a_source_that_does_not_answer_is_one_clear_line() -> None:
    results = check_source(MemoryAdapter(SourceConfig("shop", "memory", "memory:///nowhere")))
    assert results[-1].name == "catalog"
    assert not results[-1].ok
    assert "nowhere" in results[-1].detail
