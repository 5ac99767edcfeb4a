"""Files that are being written: nothing is taken of a write under way, and no change is overlooked."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from adapters.files import readers
from adapters.files.csv_files import CsvReader
from adapters.files.folder import TICK_NS, Folder, Identity, RelationFiles
from adapters.files.readers import Task
from adapters.files.state import FolderState
from adapters.files.tests.conftest import MakeAdapter
from adapters.files.tests.owner import replace_file
from adapters.files.tests.support import changes, fetch, rows, settle, start
from adapters.files.tests.workbook import workbook
from algebra.errors import DataError, SchemaChangedError, SourceUnavailableError

PATIENT = 30.0


class Interference:
    """Does something to the folder right before or after a file is opened for reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._before: list[Callable[[], object]] = []
        self._after: list[Callable[[], object]] = []
        open_, opened = Folder.open, FolderState._opened

        def interfere_and_open(folder: Folder, file: str) -> BinaryIO:
            if self._before:
                self._before.pop(0)()
            return open_(folder, file)

        @contextmanager
        def open_and_interfere(state: FolderState, files: RelationFiles, file: str) -> Iterator[BinaryIO]:
            with opened(state, files, file) as found:
                if self._after:
                    self._after.pop(0)()
                yield found

        monkeypatch.setattr(Folder, "open", interfere_and_open)
        monkeypatch.setattr(FolderState, "_opened", open_and_interfere)

    def before(self, *actions: Callable[[], object]) -> None:
        """After the file was looked at, when it is about to be opened."""
        self._before += actions

    def next(self, action: Callable[[], object]) -> None:
        self._after.append(action)

    def later(self, action: Callable[[], object]) -> None:
        """After the header was looked at, when the rows are to be read."""
        self._after += [lambda: None, action]


@pytest.fixture
def interference(monkeypatch: pytest.MonkeyPatch) -> Interference:
    return Interference(monkeypatch)


def _append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


@pytest.mark.parametrize(
    ("name", "first", "whole", "row"),
    [
        ("item.csv", b"id,name\n1,a\n", b"12,bcd\n", (12, "bcd")),
        ("item.csv", b"id,name\r\n1,a\r\n", b'12,"b\r\nd"\r\n', (12, "b\r\nd")),
        ("item.jsonl", b'{"id": 1, "name": "a"}\n', b'{"id": 12, "name": "bcd"}\n', (12, "bcd")),
    ],
    ids=["csv", "csv-quoted-line-end", "jsonl"],
)
def test_a_line_counts_when_it_is_finished(
    make: MakeAdapter, folder: Path, name: str, first: bytes, whole: bytes, row: tuple[Any, ...]
) -> None:
    """However far an append has got, its row is not there or there as a whole."""
    path = folder / name
    path.write_bytes(first)
    adapter = make({"item": {"columns": {"id": "BIGINT", "name": "VARCHAR"}}})
    position = start(adapter, "item")
    for size in range(len(whole)):
        path.write_bytes(first + whole[:size])
        part = whole[:size]
        # A line end that is inside a value, if only that was known: refused, not taken.
        doubtful = b"\n" in part and part.count(b'"') % 2 == 1
        with pytest.raises(DataError, match="never closed") if doubtful else nullcontext():
            assert changes(adapter, position) == [], f"after {whole[:size]!r}"
    path.write_bytes(first + whole)
    assert changes(adapter, position) == [{"item": {row: 1}}]


def test_a_last_line_without_end_can_be_taken(make: MakeAdapter, folder: Path) -> None:
    (folder / "item.csv").write_bytes(b"id\n1\n2")
    assert rows(make(), "item") == {(1,): 1}
    assert rows(make(last_line="take"), "item") == {(1,): 1, (2,): 1}


def test_what_is_appended_while_a_file_is_read_comes_with_the_next_snapshot(
    make: MakeAdapter, folder: Path, interference: Interference
) -> None:
    path = folder / "item.csv"
    path.write_bytes(b"id\n1\n")
    adapter = make({"item": {"columns": {"id": "BIGINT"}}})
    position = start(adapter, "item")
    _append(path, b"2\n")
    interference.later(lambda: _append(path, b"3\n"))
    assert changes(adapter, position) == [{"item": {(2,): 1}}]
    assert changes(adapter, position) == [{"item": {(2,): 1}}, {"item": {(3,): 1}}]


def test_a_file_that_is_replaced_while_it_is_read_is_read_as_it_was(
    make: MakeAdapter, folder: Path, interference: Interference
) -> None:
    path = folder / "item.csv"
    path.write_bytes(b"id\n1\n")
    adapter = make({"item": {"columns": {"id": "BIGINT"}}})
    position = start(adapter, "item")
    replace_file(path, b"id\n2\n")
    interference.later(lambda: replace_file(path, b"id\n3\n"))
    assert changes(adapter, position) == [{"item": {(1,): -1, (2,): 1}}]
    assert changes(adapter, position)[1:] == [{"item": {(2,): -1, (3,): 1}}]


def test_a_file_that_is_changed_in_place_while_it_is_read_is_read_again(
    make: MakeAdapter, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "item.csv"
    path.write_bytes(b"id\n1\n")
    adapter = make({"item": {"columns": {"id": "BIGINT"}}}, patience=PATIENT)
    start(adapter, "item")
    old, new = (b"id\n" + b"".join(b"%d\n" % i for i in range(k, k + 500)) for k in (1000, 2000))
    replace_file(path, old)
    overwrites = [new]
    batches = CsvReader.batches

    def overwritten(reader: CsvReader, file: BinaryIO, task: Task) -> Iterator[pa.RecordBatch]:
        for batch in batches(reader, file, task):
            yield batch
            if overwrites:
                path.write_bytes(overwrites.pop())

    monkeypatch.setattr(readers, "BLOCK_BYTES", 100)
    monkeypatch.setattr(CsvReader, "batches", overwritten)
    assert set(rows(adapter, "item")) == {(i,) for i in range(2000, 2500)}
    assert not overwrites


@pytest.fixture
def one_inode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file gets the inode that the one before it has left, which file systems do as they please."""
    identity = Identity.of
    monkeypatch.setattr(Identity, "of", lambda found: replace(identity(found), inode=1))


@pytest.mark.usefixtures("one_inode")
def test_a_longer_file_in_the_inode_of_the_one_seen_is_not_taken_for_an_append(
    make: MakeAdapter, folder: Path, interference: Interference
) -> None:
    path = folder / "item.csv"
    path.write_bytes(b"id\n1\n2\n")
    settings = {"item": {"columns": {"id": "BIGINT"}}}
    interference.before(lambda: replace_file(path, b"id\n3\n4\n5\n"))
    position = start(make(settings), "item")
    adapter = make(settings)
    assert rows(adapter, "item") == {(3,): 1, (4,): 1, (5,): 1}
    replace_file(path, b"id\n6\n")
    interference.before(lambda: replace_file(path, b"id\n7\n8\n"))
    assert changes(adapter, position) == [{"item": {(3,): -1, (4,): -1, (5,): -1, (7,): 1, (8,): 1}}]


def test_a_file_that_always_grows_is_read(
    make: MakeAdapter, folder: Path, interference: Interference
) -> None:
    """Also one that never is what it was a moment ago, once it is known to be the same file."""
    path = folder / "item.csv"
    path.write_bytes(b"id\n1\n")
    adapter = make({"item": {"columns": {"id": "BIGINT"}}})
    position = start(adapter, "item")
    _append(path, b"2\n")
    interference.before(*[lambda: _append(path, b"3\n")] * 3)
    assert changes(adapter, position) == [{"item": {(2,): 1, (3,): 1}}]
    assert changes(adapter, position)[1:] == [{"item": {(3,): 2}}]
    replace_file(path, b"id\n1\n")
    assert not any(held.is_at(Identity.of(path.stat())) for held in adapter._memory.growing.values())
    assert changes(adapter, position)[2:] == [{"item": {(2,): -1, (3,): -3}}]
    assert not adapter._memory.growing


def test_files_that_all_grow_all_the_time_are_read_at_the_second_attempt(
    make: MakeAdapter, folder: Path, interference: Interference
) -> None:
    names = ("a", "b", "c")
    for name in names:
        (folder / f"{name}.csv").write_bytes(b"id\n1\n")
    adapter = make({name: {"columns": {"id": "BIGINT"}} for name in names}, patience=0)
    position = start(adapter, *names)

    def grow() -> None:
        for name in names:
            _append(folder / f"{name}.csv", b"2\n")

    grow()
    # When the first is opened, when the others are taken hold of, and whenever the second attempt opens one.
    interference.before(*[grow] * (1 + 2 + 6))
    assert changes(adapter, position) == [{name: {(2,): 4} for name in names}]
    assert changes(adapter, position)[1:] == [{name: {(2,): 6} for name in names}]


def test_files_are_held_open_for_as_long_as_they_grow(
    make: MakeAdapter, folder: Path, interference: Interference
) -> None:
    """Of many that are written one after the other, none but the last."""
    settings = {"item": {"path": "*.csv", "columns": {"id": "BIGINT"}}}
    (folder / "0.csv").write_bytes(b"id\n")
    adapter = make(settings)
    position = start(adapter, "item")
    for number in range(1, 5):
        path = folder / f"{number}.csv"
        path.write_bytes(b"id\n1\n")
        interference.before(*[lambda: None] * number, partial(_append, path, b"2\n"))
        assert changes(adapter, position)[number - 1 :] == [{"item": {(1,): 1, (2,): 1}}]
        assert set(adapter._memory.growing) <= {path.name}
    (folder / "5.csv").write_bytes(b"id\n1\n")
    assert changes(adapter, position)[4:] == [{"item": {(1,): 1}}]
    assert not adapter._memory.growing


def test_a_closed_adapter_holds_no_file(make: MakeAdapter, folder: Path, interference: Interference) -> None:
    path = folder / "item.csv"
    path.write_bytes(b"id\n1\n")
    adapter = make({"item": {"columns": {"id": "BIGINT"}}})
    start(adapter, "item")
    _append(path, b"2\n")
    interference.before(*[lambda: _append(path, b"3\n")] * 3)
    with adapter.snapshot():
        assert adapter._memory.growing
    adapter.close()
    assert not adapter._memory.growing


def test_what_is_prepared_while_files_are_published_is_a_state_that_was_published(
    make: MakeAdapter, folder: Path, interference: Interference
) -> None:
    """The second file is changed in place, so that nothing but the commit file tells."""
    a, b, marker = folder / "a.csv", folder / "b.csv", folder / "DONE"
    for path in (a, b):
        path.write_bytes(b"id\n1\n")
    marker.write_bytes(b"1")
    settings = {name: {"columns": {"id": "BIGINT"}} for name in ("a", "b")}
    adapter = make(settings, commit_file="DONE")

    def begin() -> None:
        marker.unlink()
        times = b.stat()
        b.write_bytes(b"id\n2\n")
        os.utime(b, ns=(times.st_atime_ns, times.st_mtime_ns))

    # The headers of both, then the rows of the first.
    interference.later(lambda: None)
    interference.next(begin)
    with pytest.raises(SourceUnavailableError, match="there is no DONE: the files are being changed"):
        adapter.prepare(["a", "b"])
    replace_file(a, b"id\n2\n")
    marker.write_bytes(b"2")
    start(adapter, "a", "b")
    assert rows(adapter, "a") == rows(adapter, "b") == {(2,): 1}


def test_a_state_of_two_files_is_one_that_was_there(
    make: MakeAdapter, folder: Path, interference: Interference
) -> None:
    """Both are appended to while the first is read: the state is that of before, for both."""
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_bytes(b"id\n1\n")
    settings = {name: {"columns": {"id": "BIGINT"}} for name in ("a", "b")}
    adapter = make(settings, patience=PATIENT)
    position = start(adapter, "a", "b")

    def both(number: int) -> None:
        _append(folder / "a.csv", b"%d\n" % number)
        _append(folder / "b.csv", b"%d\n" % number)

    both(2)
    # The attempt ends when `b` is opened: then both are known to be the files that the next one sees.
    interference.next(lambda: both(3))
    interference.next(lambda: both(4))
    interference.later(lambda: both(5))
    assert changes(adapter, position) == [{name: {(i,): 1 for i in (2, 3)} for name in ("a", "b")}]
    assert changes(adapter, position)[1:] == [{name: {(i,): 1 for i in (4, 5)} for name in ("a", "b")}]


def test_a_second_file_that_is_replaced_before_it_is_read_starts_the_cycle_over(
    make: MakeAdapter, folder: Path, interference: Interference
) -> None:
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_bytes(b"id\n1\n")
    adapter = make({name: {"columns": {"id": "BIGINT"}} for name in ("a", "b")}, patience=PATIENT)
    position = start(adapter, "a", "b")
    replace_file(folder / "a.csv", b"id\n2\n")
    replace_file(folder / "b.csv", b"id\n2\n")

    def both() -> None:
        replace_file(folder / "a.csv", b"id\n3\n")
        replace_file(folder / "b.csv", b"id\n3\n")

    # While the headers are looked at, that of the first file is open.
    interference.next(both)
    [entry] = changes(adapter, position)
    assert entry in (
        {"a": {(1,): -1, (3,): 1}, "b": {(1,): -1, (3,): 1}},
        {"a": {(1,): -1, (2,): 1}, "b": {(1,): -1, (2,): 1}},
    )


def test_a_state_in_which_files_changed_between_their_looks_is_none(
    make: MakeAdapter, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First `a`, then `b` got a row, after `a` was looked at and before `b` was."""
    for name in ("a", "b"):
        (folder / f"{name}.csv").write_bytes(b"id\n1\n")
    adapter = make({name: {"columns": {"id": "BIGINT"}} for name in ("a", "b")}, patience=PATIENT)
    position = start(adapter, "a", "b")
    todo = [lambda: _append(folder / "a.csv", b"2\n"), lambda: _append(folder / "b.csv", b"2\n")]
    identity = Folder.identity

    def changing(self: Folder, file: str) -> Identity | None:
        while file == "b.csv" and todo:
            todo.pop(0)()
        return identity(self, file)

    monkeypatch.setattr(Folder, "identity", changing)
    assert changes(adapter, position) == [{"a": {(2,): 1}, "b": {(2,): 1}}]


def test_every_state_under_a_busy_owner_is_one_that_was_there(make: MakeAdapter, folder: Path) -> None:
    """Each number is appended to one file, then put into the other, then into a third by a rename."""
    for name in ("a", "b", "c"):
        (folder / f"{name}.csv").write_bytes(b"id\n")
    adapter = make({n: {"columns": {"id": "BIGINT"}} for n in ("a", "b", "c")}, patience=PATIENT)
    position = start(adapter, "a", "b", "c")
    schemas = [adapter.catalog().relation(name) for name in ("a", "b", "c")]
    done = threading.Event()

    def write() -> None:
        for i in range(120):
            _append(folder / "a.csv", b"%d\n" % i)
            _append(folder / "b.csv", b"%d\n" % i)
            replace_file(folder / "c.csv", (folder / "b.csv").read_bytes())
        done.set()

    owner = threading.Thread(target=write)
    owner.start()
    last, seen = False, 0
    while not last:
        last = done.is_set()
        with adapter.snapshot() as snapshot:
            a, b, c = (set(fetch(snapshot, schema)) for schema in schemas)
            summed = Counter[tuple[Any, ...]]()
            for transaction in snapshot.changes(position).transactions():
                summed.update(transaction.deltas["a"].to_dict() if "a" in transaction.deltas else {})
        assert c <= b <= a
        assert len(a) - 1 <= len(b) <= len(c) + 1
        assert set(+summed) == a
        seen = max(seen, len(c))
    owner.join()
    assert seen == 120


def test_a_change_that_leaves_size_and_times_as_they_were_is_not_overlooked(
    make: MakeAdapter, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one tick of the file system's clock, here a long one, a file looks the same after a change."""
    tick = time.time_ns() + 3600 * 1_000_000_000 + 1
    identity = Identity.of
    frozen = lambda found: replace(identity(found), modified_ns=tick, changed_ns=tick)  # noqa: E731
    monkeypatch.setattr(Identity, "of", frozen)
    path = folder / "item.csv"
    path.write_bytes(b"id\n0\n")
    adapter = make({"item": {"columns": {"id": "BIGINT"}}})
    start(adapter, "item")
    for i in range(5):
        with path.open("r+b") as file:
            file.write(b"id\n%d\n" % i)
        assert rows(adapter, "item") == {(i,): 1}
        # And whoever waits is told to look again, though nothing seems to have changed.
        assert adapter._seen is not None
        assert adapter._seen[1] == tick + TICK_NS


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("item.parquet", None),
        ("item.xlsx", workbook(Sheet1=[["id"], [1]])),
    ],
    ids=["parquet", "xlsx"],
)
def test_a_half_written_file_is_waited_for(
    make: MakeAdapter, folder: Path, name: str, content: bytes | None
) -> None:
    path = folder / name
    if content is None:
        pq.write_table(pa.table({"id": [1]}), path)
        content = path.read_bytes()
    for size in (0, 3, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        with pytest.raises(SourceUnavailableError, match=rf"{name} is not a whole .*waited 0 s"):
            make().catalog()
    path.write_bytes(content[: len(content) // 2])
    adapter = make(patience=PATIENT)
    timer = threading.Timer(0.05, lambda: replace_file(path, content))
    timer.start()
    assert rows(adapter, "item") == {(1,): 1}
    timer.join()


def test_a_damaged_parquet_file_is_unavailable(make: MakeAdapter, folder: Path) -> None:
    path = folder / "item.parquet"
    pq.write_table(pa.table({"id": range(1000)}), path, write_page_checksum=True)
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(SourceUnavailableError, match=r"item\.parquet is a damaged Parquet file"):
        make().prepare(["item"])


def test_an_empty_file_is_one_whose_header_is_still_to_come(make: MakeAdapter, folder: Path) -> None:
    (folder / "item.csv").write_bytes(b"")
    with pytest.raises(
        SourceUnavailableError, match=r"item\.csv is empty, or its header line has no end yet"
    ):
        make().catalog()
    (folder / "item.csv").write_bytes(b"id,na")
    with pytest.raises(SourceUnavailableError, match="no end yet"):
        make().catalog()
    (folder / "item.csv").write_bytes(b"id,name\n")
    assert rows(make(), "item") == {}


def test_a_vanished_file_is_dropped_after_a_while_unless_it_may_be_missing(
    make: MakeAdapter, folder: Path
) -> None:
    path = folder / "item.csv"
    path.write_bytes(b"id\n1\n")
    settings = {"item": {"path": "item.csv", "columns": {"id": "BIGINT"}}}
    adapter = make(settings)
    position = start(adapter, "item")
    path.unlink()
    with adapter.snapshot() as snapshot, pytest.raises(SchemaChangedError, match="item was dropped"):
        snapshot.changes(position)
    path.write_bytes(b"id\n2\n")
    assert changes(adapter, position) == [{"item": {(1,): -1, (2,): 1}}]
    path.unlink()
    adapter = make(settings, missing="empty")
    assert changes(adapter, position)[1:] == [{"item": {(2,): -1}}]


def test_a_file_that_is_deleted_and_written_anew_is_waited_for(make: MakeAdapter, folder: Path) -> None:
    path = folder / "item.csv"
    path.write_bytes(b"id\n1\n")
    adapter = make({"item": {"columns": {"id": "BIGINT"}}}, patience=PATIENT)
    position = start(adapter, "item")
    path.unlink()
    timer = threading.Timer(0.05, lambda: replace_file(path, b"id\n2\n"))
    timer.start()
    assert changes(adapter, position) == [{"item": {(1,): -1, (2,): 1}}]
    timer.join()


class TestCommitFile:
    """Several files as one transaction: while the commit file is gone, nothing is read."""

    SETTINGS: ClassVar[dict[str, Any]] = {
        name: {"path": f"{name}.csv", "columns": {"id": "BIGINT"}} for name in ("a", "b")
    }

    def _write(self, folder: Path, number: int) -> None:
        for name in ("a", "b"):
            replace_file(folder / f"{name}.csv", b"id\n%d\n" % number)

    def test_changes_show_when_the_commit_file_is_back(self, make: MakeAdapter, folder: Path) -> None:
        self._write(folder, 1)
        (folder / "DONE").write_text("1")
        adapter = make(self.SETTINGS, commit_file="DONE")
        position = start(adapter, "a", "b")
        catalog = adapter.catalog()
        (folder / "DONE").unlink()
        replace_file(folder / "a.csv", b"id\n2\n")
        with adapter.snapshot() as snapshot:
            assert fetch(snapshot, catalog.relation("a")) == {(1,): 1}
            assert len(snapshot.changes(position)) == 0
        replace_file(folder / "b.csv", b"id\n2\n")
        replace_file(folder / "DONE", b"2")
        assert changes(adapter, position) == [{"a": {(1,): -1, (2,): 1}, "b": {(1,): -1, (2,): 1}}]

    def test_files_that_are_changed_too_early_wait_for_the_commit_file(
        self, make: MakeAdapter, folder: Path
    ) -> None:
        """An owner that does not remove the commit file first: what it does shows when the file is new."""
        self._write(folder, 1)
        (folder / "DONE").write_text("1")
        adapter = make(self.SETTINGS, commit_file="DONE")
        position = start(adapter, "a", "b")
        settle(folder / "DONE")
        assert changes(adapter, position) == []
        replace_file(folder / "a.csv", b"id,more\n2,x\n")
        assert changes(adapter, position) == []
        replace_file(folder / "a.csv", b"id\n2\n")
        assert changes(adapter, position) == []
        replace_file(folder / "DONE", b"2")
        assert changes(adapter, position) == [{"a": {(1,): -1, (2,): 1}}]

    def test_without_a_commit_file_nothing_is_prepared(self, make: MakeAdapter, folder: Path) -> None:
        self._write(folder, 1)
        with pytest.raises(SourceUnavailableError, match="there is no DONE: the files are being changed"):
            make(self.SETTINGS, commit_file="DONE").prepare(["a"])

    def test_a_commit_file_that_goes_while_files_are_read_voids_the_reading(
        self, make: MakeAdapter, folder: Path, interference: Interference
    ) -> None:
        self._write(folder, 1)
        (folder / "DONE").write_text("1")
        adapter = make(self.SETTINGS, commit_file="DONE", patience=PATIENT)
        position = start(adapter, "a", "b")
        (folder / "DONE").unlink()
        self._write(folder, 2)
        replace_file(folder / "DONE", b"2")
        interference.next((folder / "DONE").unlink)

        def publish() -> None:
            self._write(folder, 3)
            replace_file(folder / "DONE", b"3")

        timer = threading.Timer(0.1, publish)
        timer.start()
        found = changes(adapter, position)
        timer.join()
        # Shown meanwhile: what was published before, or what is published after; never the reading between.
        assert found in ([], [{"a": {(1,): -1, (3,): 1}, "b": {(1,): -1, (3,): 1}}])
        total = changes(adapter, position)
        assert total == [{"a": {(1,): -1, (3,): 1}, "b": {(1,): -1, (3,): 1}}]


class TestWaiting:
    """`wait` ends with a change, with reports of the system and without."""

    @pytest.mark.parametrize("reports", [True, False], ids=["reports", "polling"])
    @pytest.mark.parametrize("deep", [False, True], ids=["file", "folder"])
    def test_a_change_ends_it(self, make: MakeAdapter, folder: Path, reports: bool, deep: bool) -> None:
        path = folder / "parts" / "item.csv" if deep else folder / "item.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"id\n1\n")
        settings = {"item": {"path": "parts/*.csv" if deep else "item.csv"}}
        adapter = make(settings, reports=reports, poll_seconds=0.05 if not reports else 3600.0)
        start(adapter, "item")
        os.utime(path, ns=(0, 0))
        rows(adapter, "item")
        returned = threading.Event()

        def wait() -> None:
            adapter.wait(3600)
            returned.set()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        replace_file(path, b"id\n2\n")
        assert returned.wait(PATIENT)
        thread.join(PATIENT)

    def test_a_folder_that_is_not_there_yet_is_looked_for(self, make: MakeAdapter, folder: Path) -> None:
        adapter = make()
        folder.rmdir()
        with pytest.raises(SourceUnavailableError, match="there is no folder"):
            adapter.catalog()
        adapter.wait(0.01)
        folder.mkdir()
        (folder / "item.csv").write_bytes(b"id\n1\n")
        assert rows(adapter, "item") == {(1,): 1}


def test_a_rate_limit_spaces_out_what_is_read(make: MakeAdapter, folder: Path) -> None:
    """What is read counts, what the shadow answers does not; the debt is paid before the next snapshot."""
    path = folder / "item.csv"
    path.write_bytes(b"id\n1\n")
    settings = {"item": {"columns": {"id": "BIGINT"}}}
    adapter = make(settings, rate_limit=0.001)
    adapter.prepare(["item"])
    replace_file(path, b"id\n2\n")
    assert rows(adapter, "item") == {(2,): 1}
    assert adapter._limit.delay > 0
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(rows, adapter, "item")
        with pytest.raises(TimeoutError):
            waiting.result(0.1)
        adapter.close()
        with pytest.raises(SourceUnavailableError, match="the adapter is closed"):
            waiting.result(PATIENT)
