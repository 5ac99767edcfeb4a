"""Readers, installs and compactions at the same time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from mediator.warehouse import Warehouse
from mediator.warehouse.lock import WriterLock
from mediator.warehouse.tests.builders import SCHEMA, at, bag, change, counted, row


def test_readers_see_whole_versions_while_installs_and_compactions_run(tmp_path: Path) -> None:
    """In version n both views hold n in their one row, so any mixture is seen at once."""
    problems: list[BaseException] = []
    done = threading.Event()
    reads = 0

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            problems.append(problem)
            done.set()

    with Warehouse(tmp_path, durable=False, grace_seconds=0.0) as warehouse:
        for view in ("one", "two"):
            warehouse.create_view(view, {}, SCHEMA, counted({(0, "n"): 1}), row(0))

        def read() -> None:
            nonlocal reads
            while not done.is_set():
                result, versions = warehouse.query("SELECT l.id AS l, r.id AS r FROM one l, two r")
                found = [tuple(entry.values()) for entry in result.read_all().to_pylist()]
                assert versions["one"] == versions["two"]
                assert found == [(versions["one"],) * 2]
                assert at(warehouse, "one", 3 if versions["one"] >= 3 else 0)
                reads += 1

        def compact() -> None:
            while not done.is_set():
                warehouse.compact("one")
                warehouse.maintain()

        threads = [threading.Thread(target=guarded, args=(work,)) for work in (read, read, compact)]
        for thread in threads:
            thread.start()
        for number in range(1, 120):
            step = {(number - 1, "n"): -1, (number, "n"): 1}
            warehouse.install([change("one", number, step), change("two", number, step)])
            if done.is_set():
                break
        while reads < 10 and not done.is_set():
            done.wait(0.01)
        done.set()
        for thread in threads:
            thread.join()
        assert problems == []
        for number in (0, 1, 50, 119):
            assert at(warehouse, "one", number) == at(warehouse, "two", number) == {(number, "n"): 1}


def test_a_slow_reader_keeps_its_files(warehouse: Warehouse) -> None:
    numbers = pa.array(range(300_000), pa.int64())
    ones = pa.repeat(pa.scalar(1, pa.int64()), 300_000)
    rows = pa.table([numbers, pa.repeat("x" * 50, 300_000), ones], names=["id", "name", "_count"])
    warehouse.create_view("v", {}, SCHEMA, rows, row(0))
    warehouse.install([change("v", 1, {(-1, "y"): 1})])
    reader = warehouse.read("v", 0)
    first = reader.read_next_batch()
    state = next((warehouse.root / "data").glob("*/state-0"))
    warehouse.compact("v")
    warehouse.maintain()
    assert state.exists()
    assert first.num_rows + sum(batch.num_rows for batch in reader) == 300_000
    del reader
    warehouse.maintain()
    assert not state.exists()
    assert warehouse.read("v", 0).read_all().num_rows == 300_000


def test_a_reader_never_begun_holds_nothing_after_it_is_gone(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted({(1, "a"): 1}), row(0))
    warehouse.install([change("v", 1, {(2, "b"): 1})])
    unread: pa.RecordBatchReader | None = warehouse.read("v")
    assert unread is not None
    warehouse.compact("v")
    state = next((warehouse.root / "data").glob("*/state-0"))
    del unread
    warehouse.maintain()
    assert not state.exists()


def test_a_view_dropped_while_it_is_read(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted({(1, "a"): 1}), row(0))
    reader = warehouse.read("v")
    warehouse.drop_view("v")
    assert bag(reader) == {(1, "a"): 1}
    del reader
    warehouse.maintain()
    assert list((warehouse.root / "data").iterdir()) == []


def test_another_program_may_optimize_the_tables(warehouse: Warehouse) -> None:
    from deltalake import DeltaTable

    warehouse.create_view("v", {}, SCHEMA, counted({}), row(0))
    for number in range(1, 20):
        warehouse.install([change("v", number, {(number, "a"): 1})])
    folder = next((warehouse.root / "data").glob("*/changes"))
    DeltaTable(str(folder)).optimize.compact()
    warehouse.install([change("v", 20, {(20, "a"): 1})])
    DeltaTable(str(folder)).optimize.compact()
    warehouse.maintain()
    assert len(at(warehouse, "v")) == 20
    assert len(at(warehouse, "v", 10)) == 10


def test_a_lock_is_given_up_also_if_a_process_is_started_meanwhile(tmp_path: Path) -> None:
    """Until it runs its own program, a new process has a copy of every open file."""
    lock = WriterLock(tmp_path / ".lock")
    copy = os.dup(lock._descriptor)
    lock.release()
    WriterLock(tmp_path / ".lock").release()
    os.close(copy)
