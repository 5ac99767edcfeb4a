"""What is not acknowledged and does not fit into memory lies in a file, and is the same from there."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from adapters.postgresql import stream
from adapters.postgresql.adapter import PostgresAdapter
from adapters.postgresql.log_capture import LogCapture
from adapters.postgresql.pgoutput import Content
from adapters.postgresql.spool import Spool
from adapters.postgresql.tests.conftest import MakeAdapter, Sql
from adapters.postgresql.tests.support import Follower
from algebra.errors import SourceUnavailableError


def running(adapter: PostgresAdapter) -> Any:
    assert isinstance(adapter._capture, LogCapture)
    return adapter._capture._stream._running


def write(sql: Sql) -> None:
    sql("INSERT INTO item SELECT i, 'item ' || i FROM generate_series(1, 50) i")
    sql("UPDATE item SET name = name || '!' WHERE id < 10", "DELETE FROM item WHERE id > 40")
    sql("BEGIN", "TRUNCATE item", "INSERT INTO item VALUES (1, NULL)", "COMMIT")
    sql("BEGIN", "INSERT INTO _lockstep_global VALUES ('g1', 'shop,crm')", "DELETE FROM item", "COMMIT")


@pytest.mark.parametrize("held", [0, 4000, 1 << 30])
def test_entries_are_the_same_from_the_file(
    sql: Sql, make: MakeAdapter, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(stream, "HELD_BYTES", held)
    sql("CREATE TABLE item (id int PRIMARY KEY, name text)")
    adapter = make("log")
    adapter.prepare(["item"])
    follower = Follower(adapter)
    write(sql)
    start = follower.position
    follower.follow()
    assert len(follower.entries) == 5
    in_memory = [isinstance(entry.kept, Content) for entry in running(adapter).entries]
    assert in_memory == {0: [False] * 5, 4000: [False, True, True, False, True], 1 << 30: [True] * 5}[held]
    with adapter.snapshot() as snapshot:
        runs = list(snapshot.runs(start, 1))
        whole = snapshot.changes(start)
    assert [len(run) for run in runs] == [1] * 5
    assert [mark.id for run in runs for mark in run.part_of.values()] == ["g1"]
    assert sum(run.tables["item"].num_rows for run in runs) == whole.tables["item"].num_rows
    adapter.acknowledge(follower.position)
    assert running(adapter).entries == []
    assert running(adapter)._spool._size == 0, "the file is used anew"
    write(sql)
    follower.follow()
    assert len(follower.entries) == 10


def test_what_cannot_be_kept_has_not_been_reached(
    sql: Sql, make: MakeAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the slot could be moved past it."""
    sql("CREATE TABLE item (id int PRIMARY KEY)")
    adapter = make("log")
    adapter.prepare(["item"])
    follower = Follower(adapter)
    opened = running(adapter)
    before = opened.reached

    def full(_: object) -> None:
        raise SourceUnavailableError("the disk is full")

    monkeypatch.setattr(opened, "keep", full)
    sql("INSERT INTO item VALUES (1)")
    with opened.changed:
        assert opened.changed.wait_for(lambda: opened.problem is not None, 30)
    (end,) = sql("SELECT (pg_current_wal_flush_lsn() - '0/0')::int8")[0]
    assert before <= opened.reached < end
    monkeypatch.undo()
    with pytest.raises(SourceUnavailableError, match="the disk is full"), adapter.snapshot():
        pass
    assert len(follower.follow()) == 1


def test_what_the_system_reads_in_pieces_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call returns 2 GiB at most, whatever it is asked for."""
    read = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, start: read(file, min(size, 100), start))
    spool = Spool()
    content = Content(marks=[(f"g{i}", "shop,crm") for i in range(100)])
    first, second = spool.put(content), spool.put(Content())
    assert first.size > 1000
    assert (first.read(), second.read()) == (content, Content())
    spool.close()


def test_a_full_disk_is_an_unavailable_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    spool = Spool()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(SourceUnavailableError, match="No space left on device"):
        spool.put(Content())
    spool.close()
