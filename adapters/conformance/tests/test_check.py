"""`check_source` on live sources: it finds what it can without writing, and writes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pytest

from adapters.conformance import CheckResult, check_source
from adapters.conformance.tests.broken_fetch import AnswersOnce, IgnoresKeys
from adapters.conformance.tests.broken_lifecycle import (
    AcceptsTheFuture,
    DeclaresNothing,
    GuessesTypes,
    IgnoresTheEpoch,
)
from adapters.conformance.tests.fault import BrokenAdapter, BrokenSnapshot
from adapters.memory import MemoryAdapter, MemoryDatabase
from adapters.spi import Snapshot, SourceConfig, SourceTransaction
from algebra.position import Position


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
        "declared capture",
        "catalog",
        "prepare (dry run)",
        "rights",
        "relation item",
        "relation note",
        "relation empty",
        "changes",
        *(["agreement", "foreign positions"] if prepared else []),
        "needs writing",
    ]
    not_tried = {name for name, result in results.items() if not result.tried}
    assert not_tried == {"rights", "needs writing"} | (set() if prepared else {"changes"})
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


class Busy(BrokenAdapter):
    """A source whose writers go on: one commits after every snapshot."""

    @contextmanager
    def snapshot(self) -> Iterator[Snapshot]:
        with super().snapshot() as snapshot:
            yield snapshot
        with self.transaction() as tx:
            tx.insert("note", [("busy", 2.0)])


def prepared(database: MemoryDatabase) -> None:
    MemoryAdapter(SourceConfig("shop", "memory", "memory:///checked")).prepare(("item", "note", "empty"))


def test_a_busy_source_is_no_fault(database: MemoryDatabase) -> None:
    prepared(database)
    results = check(Busy)
    assert wrong(results) == []
    assert "3 relations compared" in results["agreement"].detail


def test_changes_that_are_lost_are_found(database: MemoryDatabase) -> None:
    class Loses(BrokenSnapshot):
        def entries(self, after: Position) -> list[SourceTransaction]:
            return super().entries(after)[:-1]

    prepared(database)
    results = check(type("LosesWhenBusy", (Busy,), {"broken_snapshot": Loses}))
    assert wrong(results) == ["agreement"]
    assert "note is not what it was" in results["agreement"].detail


def test_positions_that_are_not_refused_are_found(database: MemoryDatabase) -> None:
    prepared(database)
    assert wrong(check(broken(AcceptsTheFuture))) == ["foreign positions"]
    assert wrong(check(broken(IgnoresTheEpoch))) == ["foreign positions"]


def test_what_is_not_declared_is_found(database: MemoryDatabase) -> None:
    assert wrong(check(DeclaresNothing)) == ["declared capture"]


def test_missing_rights_are_told(database: MemoryDatabase) -> None:
    class MayNot(MemoryAdapter):
        def missing_rights(self, relations: Sequence[str]) -> list[str] | None:
            return [f"GRANT TRIGGER ON {name} TO lockstep" for name in relations]

    result = check(MayNot)["rights"]
    assert not result.ok
    assert result.detail.splitlines()[0] == "GRANT TRIGGER ON item TO lockstep"
