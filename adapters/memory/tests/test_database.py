from __future__ import annotations

import threading

import pyarrow as pa
import pytest

from adapters.memory import MemoryAdapter, MemoryDatabase
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError, DataError
from algebra.position import ORIGIN


@pytest.fixture
def database() -> MemoryDatabase:
    database = MemoryDatabase("shop")
    database.create("item", {"id": pa.int64(), "name": pa.string()}, ["id"])
    database.create("note", {"text": pa.string()})
    return database


def test_a_block_that_raises_changes_nothing(database: MemoryDatabase) -> None:
    before = database.version

    def fails() -> None:
        with database.transaction() as tx:
            tx.insert("item", [(1, "a")])
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert database.version is before


def test_rows_are_tuples_mappings_or_tables(database: MemoryDatabase) -> None:
    with database.transaction() as tx:
        tx.insert("item", [(1, "a"), {"id": 2}])
        tx.insert("item", pa.table({"id": [3], "name": ["c"]}))
    assert sorted(database.version.table("item").to_pylist(), key=lambda row: row["id"]) == [
        {"id": 1, "name": "a"},
        {"id": 2, "name": None},
        {"id": 3, "name": "c"},
    ]


def test_duplicates_come_and_go_one_by_one(database: MemoryDatabase) -> None:
    with database.transaction() as tx:
        tx.insert("note", [("x",), ("x",), ("x",)])
    with database.transaction() as tx:
        tx.delete("note", [("x",)])
    assert database.version.table("note").to_pylist() == [{"text": "x"}] * 2


def test_what_a_database_refuses_is_refused_as_a_whole(database: MemoryDatabase) -> None:
    with database.transaction() as tx:
        tx.insert("item", [(1, "a")])
    before = database.version

    def write(relation: str, *rows: tuple[object, ...], delete: bool = False) -> None:
        with database.transaction() as tx:
            tx.insert("note", [("also in it",)])
            (tx.delete if delete else tx.insert)(relation, rows)

    with pytest.raises(DataError, match="same key"):
        write("item", (1, "again"))
    with pytest.raises(DataError, match="not in 'item'"):
        write("item", (2, "b"), delete=True)
    with pytest.raises(DataError, match="2 columns"):
        write("item", (2,))
    with pytest.raises(ConfigurationError, match="no relation 'nope'"):
        write("nope", (2,))
    assert database.version is before


def test_a_relation_is_created_once(database: MemoryDatabase) -> None:
    with pytest.raises(ConfigurationError, match="already"):
        database.create("item", {"id": pa.int64()})


def test_threads_lose_no_transaction(database: MemoryDatabase) -> None:
    adapter = MemoryAdapter(SourceConfig("shop", "memory", "memory:///shop"))
    adapter.prepare(["item", "note"])

    def write(thread: int) -> None:
        for number in range(50):
            with adapter.transaction() as tx:
                tx.insert("item", [(thread * 100 + number, "x")])
                tx.insert("note", [("x",)])

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with adapter.snapshot() as snapshot:
        assert snapshot.position.ordinal == 200
        assert len(snapshot.changes(ORIGIN)) == 200
    assert database.version.table("note").num_rows == 200


@pytest.mark.parametrize("url", ["memory:///", "sqlite:///shop", "memory:///nobody"])
def test_a_wrong_url_is_a_configuration_error(url: str) -> None:
    adapter = MemoryAdapter(SourceConfig("shop", "memory", url))
    with pytest.raises(ConfigurationError):
        adapter.catalog()


def test_a_mark_needs_a_prepared_capture(database: MemoryDatabase) -> None:
    before = database.version

    def mark() -> None:
        with database.transaction() as tx:
            tx.insert("item", [(1, "a")])
            tx.mark("x", "shop")

    with pytest.raises(ConfigurationError, match="no marker table"):
        mark()
    assert database.version is before


def test_prepare_and_remove_name_the_marker_table(database: MemoryDatabase) -> None:
    adapter = MemoryAdapter(SourceConfig("shop", "memory", "memory:///shop"))
    assert sum("_lockstep_global" in step for step in adapter.prepare(["item"])) == 1
    assert sum("_lockstep_global" in step for step in adapter.prepare(["note"])) == 0
    assert sum("_lockstep_global" in step for step in adapter.remove()) == 1
