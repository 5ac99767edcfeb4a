"""Living beside the owner: waiting for the file, waiting for changes, letting go."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from adapters.duckdb.adapter import DuckDBAdapter
from adapters.duckdb.tests.conftest import MakeAdapter
from adapters.duckdb.tests.owner import Owner, OwnerError
from adapters.duckdb.tests.views import changes_after, deltas, whole
from algebra.errors import SourceUnavailableError
from algebra.position import ORIGIN

LONG = 20.0
"""Far beyond what any of these waits should take; reaching it fails the test."""


@pytest.fixture
def adapter(owner: Owner, path: Path, make: MakeAdapter) -> DuckDBAdapter:
    owner.write(path, "CREATE TABLE t (n INTEGER)")
    adapter = make(lock_timeout=LONG)
    adapter.prepare(["t"])
    with adapter.snapshot():
        pass
    return adapter


def waited(adapter: DuckDBAdapter, timeout: float) -> float:
    start = time.monotonic()
    adapter.wait(timeout)
    return time.monotonic() - start


def test_a_file_that_stays_locked_is_unavailable(
    adapter: DuckDBAdapter, owner: Owner, path: Path, make: MakeAdapter
) -> None:
    owner.open(path)
    with pytest.raises(SourceUnavailableError, match="held open by another process"):
        make(lock_timeout=0.05).catalog()
    with pytest.raises(SourceUnavailableError, match="held open by another process"):
        make(lock_timeout=0.05).prepare(["t"])
    with pytest.raises(SourceUnavailableError, match="held open by another process"):
        changes_after(make(lock_timeout=0.05), ORIGIN)


def test_a_snapshot_waits_until_the_owner_closes(adapter: DuckDBAdapter, owner: Owner, path: Path) -> None:
    owner.open(path)
    owner.run_later("INSERT INTO t SELECT i FROM range(200000) r(i)", "DELETE FROM t WHERE n > 0")
    changes, _ = changes_after(adapter, ORIGIN)
    owner.answer()
    assert len(changes) == 2


def test_the_owner_is_kept_out_only_while_a_snapshot_is_open(
    adapter: DuckDBAdapter, owner: Owner, path: Path
) -> None:
    with adapter.snapshot(), pytest.raises(OwnerError, match="lock"):
        owner.open(path)
    owner.write(path, "INSERT INTO t VALUES (1)")


def test_the_file_is_let_go_when_the_block_fails(adapter: DuckDBAdapter, owner: Owner, path: Path) -> None:
    with pytest.raises(ZeroDivisionError), adapter.snapshot():
        raise ZeroDivisionError
    owner.write(path, "INSERT INTO t VALUES (1)")


def test_inside_a_snapshot_the_catalog_can_be_read_and_trimming_waits(
    owner: Owner, path: Path, make: MakeAdapter
) -> None:
    owner.write(path, "CREATE TABLE t (n INTEGER)")
    adapter = make(trim_entries=1)
    adapter.prepare(["t"])
    owner.write(path, "INSERT INTO t VALUES (1)")
    with adapter.snapshot() as snapshot:
        assert list(adapter.catalog().relations) == ["t"]
        adapter.acknowledge(snapshot.position)
        assert len(snapshot.changes(ORIGIN)) == 1
    owner.write(path, "INSERT INTO t VALUES (2)")
    assert len(changes_after(adapter, ORIGIN)[0]) == 2


def test_adapters_of_one_process_do_not_break_each_others_lock(
    adapter: DuckDBAdapter, owner: Owner, path: Path, make: MakeAdapter
) -> None:
    """POSIX drops a process's locks on a file with the first descriptor of it that is closed."""
    other = make(lock_timeout=0.05)
    with other.snapshot():
        pass
    with adapter.snapshot() as snapshot:
        with pytest.raises(SourceUnavailableError, match="held open"):
            other.catalog()
        other.close()
        with pytest.raises(OwnerError, match="lock"):
            owner.open(path)
        assert len(snapshot.changes(ORIGIN)) == 0
    owner.write(path, "INSERT INTO t VALUES (1)")


def test_a_lock_that_was_lost_is_noticed(adapter: DuckDBAdapter, owner: Owner, path: Path) -> None:
    catalog = adapter.catalog()
    with adapter.snapshot() as snapshot:
        reader = snapshot.fetch(whole(catalog, "t"))
        # Something else in this process opens and closes the file: its locks are gone now.
        path.open("rb").close()
        owner.write(path, "INSERT INTO t VALUES (1)")
        with pytest.raises(SourceUnavailableError, match="was changed while it was being read"):
            reader.read_all()
        with pytest.raises(SourceUnavailableError, match="was changed while it was being read"):
            snapshot.changes(ORIGIN)
    assert len(changes_after(adapter, ORIGIN)[0]) == 1


def test_wait_times_out_when_nothing_happens(adapter: DuckDBAdapter) -> None:
    assert 0.1 <= waited(adapter, 0.1) < LONG


def test_wait_returns_at_once_if_something_changed_since_the_snapshot(
    adapter: DuckDBAdapter, owner: Owner, path: Path
) -> None:
    owner.write(path, "INSERT INTO t VALUES (1)")
    assert waited(adapter, LONG) < LONG / 2
    assert len(changes_after(adapter, ORIGIN)[0]) == 1
    assert waited(adapter, 0.05) >= 0.05


def test_wait_wakes_when_the_writer_closes(adapter: DuckDBAdapter, owner: Owner, path: Path) -> None:
    owner.open(path)
    owner.run("INSERT INTO t VALUES (1)")
    # Committed, but still held open: there is nothing to be had yet.
    assert waited(adapter, 0.1) >= 0.1
    owner.run_later("INSERT INTO t VALUES (2)")
    assert waited(adapter, LONG) < LONG / 2
    owner.answer()
    assert deltas(changes_after(adapter, ORIGIN)[0]) == [{"t": {(1,): 1}}, {"t": {(2,): 1}}]


def test_wait_wakes_when_the_writer_crashes(adapter: DuckDBAdapter, path: Path) -> None:
    with Owner() as owner:
        owner.open(path)
        owner.run("INSERT INTO t VALUES (1)")
        owner.crash()
    assert waited(adapter, LONG) < LONG / 2
    assert len(changes_after(adapter, ORIGIN)[0]) == 1


def test_a_write_that_leaves_size_and_time_as_they_were_is_noticed(
    adapter: DuckDBAdapter, owner: Owner, path: Path
) -> None:
    """File times are too coarse for quick writes; the counter in the file's header is not."""
    for n in range(4):
        owner.write(path, f"INSERT INTO t VALUES ({n})")
    _, position = changes_after(adapter, ORIGIN)
    before = path.stat()
    # The file's size goes up and down with every other checkpoint.
    owner.write(path, "INSERT INTO t VALUES (10)")
    owner.write(path, "INSERT INTO t VALUES (11)")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size, "the size changed: this test shows nothing"
    assert waited(adapter, LONG) < LONG / 2
    assert deltas(changes_after(adapter, position)[0]) == [{"t": {(10,): 1}}, {"t": {(11,): 1}}]


def test_wake_ends_a_wait(adapter: DuckDBAdapter) -> None:
    finished = threading.Event()

    def wait() -> None:
        adapter.wait(LONG)
        finished.set()

    thread = threading.Thread(target=wait)
    thread.start()
    adapter.wake()
    assert finished.wait(LONG / 2)
    thread.join()


def test_close_frees_the_file_and_ends_the_adapter(adapter: DuckDBAdapter, owner: Owner, path: Path) -> None:
    adapter.close()
    adapter.close()
    owner.write(path, "INSERT INTO t VALUES (1)")
    with pytest.raises(SourceUnavailableError, match="closed"):
        changes_after(adapter, ORIGIN)


def test_constructing_touches_nothing(path: Path, make: MakeAdapter) -> None:
    make()
    make("diff")
    assert list(path.parent.iterdir()) == []
