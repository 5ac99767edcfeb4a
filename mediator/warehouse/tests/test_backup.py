"""A copy taken while the warehouse is written is a legal state of it, and can be written further."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from algebra.errors import (
    AlreadyExistsError,
    ConfigurationError,
    DataError,
    NotFoundError,
    SourceUnavailableError,
    StorageError,
)
from mediator.warehouse import Warehouse, upkeep
from mediator.warehouse.backup import backup
from mediator.warehouse.lock import held_upkeep
from mediator.warehouse.tests.builders import SCHEMA, Bag, at, change, counted, row


def test_copies_while_versions_come_and_files_are_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_MERGE_FILES", 4)
    versions = 60
    with Warehouse(tmp_path / "w", durable=False, grace_seconds=0.0) as warehouse:
        warehouse.create_view("v", {}, SCHEMA, counted({}), row(0))
        copied: list[int] = []

        def write() -> None:
            for number in range(1, versions + 1):
                warehouse.install([change("v", number, {(number, "x"): 1})])
                if number % 5 == 0:
                    warehouse.maintain()

        writer = threading.Thread(target=write)
        writer.start()
        while writer.is_alive():
            copied.append(backup(tmp_path / "w", tmp_path / f"copy-{len(copied)}")["v"])
        writer.join()
        warehouse.maintain()
    assert copied == sorted(copied)
    for number, newest in enumerate(copied):
        with Warehouse(tmp_path / f"copy-{number}", durable=False) as copy:
            assert at(copy, "v") == Bag({(i, "x"): 1 for i in range(1, newest + 1)})
            copy.install([change("v", newest + 1, {(0, "new"): 1})])
            assert at(copy, "v", newest) == Bag({(i, "x"): 1 for i in range(1, newest + 1)})


def test_upkeep_waits_for_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_MERGE_FILES", 2)
    with Warehouse(tmp_path / "w", durable=False, grace_seconds=0.0) as warehouse:
        warehouse.create_view("v", {}, SCHEMA, counted({}), row(0))
        for number in (1, 2, 3):
            warehouse.install([change("v", number, {(number, "x"): 1})])
        files = set((tmp_path / "w").rglob("*.parquet"))
        with held_upkeep(tmp_path / "w"):
            warehouse.maintain()
            assert set((tmp_path / "w").rglob("*.parquet")) == files
            with pytest.raises(SourceUnavailableError, match="being copied"):
                warehouse.compact("v")
        warehouse.maintain()
        assert set((tmp_path / "w").rglob("*.parquet")) != files


def test_what_cannot_be_copied_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no warehouse"):
        backup(tmp_path / "none", tmp_path / "copy")
    Warehouse(tmp_path / "w", durable=False).close()
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "file").touch()
    with pytest.raises(AlreadyExistsError, match="not empty"):
        backup(tmp_path / "w", tmp_path / "copy")
    with pytest.raises(AlreadyExistsError, match="is a file; name a new folder"):
        backup(tmp_path / "w", tmp_path / "copy" / "file")


@pytest.mark.parametrize("target", ["w", "w/sub", "w/data/copy", "link/sub", "."])
def test_a_copy_and_its_warehouse_are_apart(tmp_path: Path, target: str) -> None:
    Warehouse(tmp_path / "w", durable=False).close()
    (tmp_path / "link").symlink_to(tmp_path / "w")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigurationError, match="are one in the other; name another folder"):
        backup(tmp_path / "w", tmp_path / target)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_place_that_takes_no_copy_is_named(tmp_path: Path) -> None:
    Warehouse(tmp_path / "w", durable=False).close()
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/copy cannot be written \(Not a directory\)"):
        backup(tmp_path / "w", tmp_path / "file" / "copy")


@pytest.mark.parametrize("step", ["copy2", "opened"])
def test_a_full_disk_is_told_by_the_place_of_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    Warehouse(tmp_path / "w", durable=False).close()

    def full(source: object, *_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(tmp_path / "copy"))

    def full_when_opened(*_: object) -> None:
        raise ConfigurationError(f"the warehouse cannot be written: {os.strerror(errno.ENOSPC)}")

    if step == "copy2":
        monkeypatch.setattr(shutil, "copy2", full)
    else:
        monkeypatch.setattr("mediator.warehouse.backup.Warehouse", full_when_opened)
    with pytest.raises(StorageError) as told:
        backup(tmp_path / "w", tmp_path / "copy")
    assert str(told.value) == f"{tmp_path / 'copy'}: the disk is full; free some space"
    assert not (tmp_path / "copy").exists()


def test_a_file_of_the_warehouse_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Warehouse(tmp_path / "w", durable=False).close()

    def denied(source: object, *_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(source))

    monkeypatch.setattr(shutil, "copy2", denied)
    with pytest.raises(StorageError, match=r"w/versions/.* cannot be read \(Permission denied\)"):
        backup(tmp_path / "w", tmp_path / "copy")


class Copying:
    """Steps in while a copy is made: does something right before the file of that number is copied."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._copy = shutil.copy2
        self.moment = -1
        self.action: Callable[[], object] = lambda: None
        self.copied: list[Path] = []
        monkeypatch.setattr(shutil, "copy2", self)

    def arm(self, moment: int, action: Callable[[], object]) -> None:
        self.copied, self.moment, self.action = [], moment, action

    def __call__(self, source: Path, target: Path) -> object:
        if len(self.copied) == self.moment:
            self.moment = -1
            self.action()
        self.copied.append(source)
        return self._copy(source, target)


@pytest.fixture
def copying(monkeypatch: pytest.MonkeyPatch) -> Copying:
    return Copying(monkeypatch)


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    """Two views, each with its version in every row; one was compacted."""
    with Warehouse(tmp_path / "w", durable=False, grace_seconds=0.0) as warehouse:
        for view in ("one", "two"):
            make(warehouse, view)
        warehouse.compact("one")
        yield warehouse


def make(warehouse: Warehouse, view: str) -> None:
    warehouse.create_view(view, {}, SCHEMA, counted({(0, view): 1}), row(0))
    install(warehouse, view)


def install(warehouse: Warehouse, view: str) -> None:
    number = warehouse.newest(view).version + 1
    warehouse.install([change(view, number, {(number - 1, view): -1, (number, view): 1})])


def make_another(warehouse: Warehouse) -> None:
    make(warehouse, "fresh")


def drop(warehouse: Warehouse) -> None:
    warehouse.drop_view("one")


def make_again(warehouse: Warehouse) -> None:
    warehouse.drop_view("one")
    make(warehouse, "one")


def write_and_keep(warehouse: Warehouse) -> None:
    for view in ("one", "two"):
        install(warehouse, view)
    warehouse.maintain()
    warehouse.recover()
    with pytest.raises(SourceUnavailableError, match="being copied"):
        warehouse.compact("one")


@pytest.mark.slow
@pytest.mark.parametrize("disturbance", [make_another, drop, make_again, write_and_keep])
def test_whatever_happens_at_any_moment_of_a_copy(
    warehouse: Warehouse, tmp_path: Path, copying: Copying, disturbance: Callable[[Warehouse], None]
) -> None:
    """A copy is made at the first attempt, opens, and shows every view as it was at one of its versions."""
    backup(warehouse.root, tmp_path / "counted")
    moments = len(copying.copied)
    warehouse.close()
    assert moments > 15
    for moment in range(moments):
        root = shutil.copytree(tmp_path / "w", tmp_path / f"w-{moment}")
        target = tmp_path / f"copy-{moment}"
        with Warehouse(root, durable=False, grace_seconds=0.0) as disturbed:
            copying.arm(moment, lambda of=disturbed: disturbance(of))  # type: ignore[misc]
            found = backup(root, target)
            assert copying.moment == -1
            assert len(copying.copied) == len(set(copying.copied)), "one attempt"
            disturbed.maintain()
            folders = len(list((root / "data").iterdir()))
            assert folders == len(disturbed.views()), "what was dropped is deleted after the copy"
        assert set(found) - {"fresh"} in ({"one", "two"}, {"two"})
        with Warehouse(target, durable=False) as copy:
            assert {view.name: copy.newest(view.name).version for view in copy.views()} == found
            for view, version in found.items():
                for number in range(version + 1):
                    assert at(copy, view, number) == {(number, view): 1}
                install(copy, view)
        shutil.rmtree(root)
        shutil.rmtree(target)


@pytest.mark.parametrize("folder", ["versions/_delta_log", "views/_delta_log", "data"])
@pytest.mark.parametrize("disturbance", [make_another, make_again])
def test_a_view_made_right_before_a_folder_is_listed(
    warehouse: Warehouse,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    disturbance: Callable[[Warehouse], None],
    folder: str,
) -> None:
    """Which views have data is looked up after `versions` and `views` were copied, or one may be missing."""
    listed, scanned = os.listdir, os.scandir
    watched = [warehouse.root / folder]

    def disturbed(path: Path) -> Path:
        if watched and Path(path) == watched[0]:
            watched.clear()
            disturbance(warehouse)
        return path

    monkeypatch.setattr(os, "listdir", lambda path: listed(disturbed(path)))
    monkeypatch.setattr(os, "scandir", lambda path: scanned(disturbed(path)))
    found = backup(warehouse.root, tmp_path / "copy")
    assert not watched
    assert found["two"] == 1
    with Warehouse(tmp_path / "copy", durable=False) as copy:
        for view in found:
            assert at(copy, view) == {(found[view], view): 1}


def test_a_view_that_is_lost_during_a_copy_is_a_reason_to_copy_again(
    warehouse: Warehouse, tmp_path: Path, copying: Copying
) -> None:
    """A mediator that starts deletes the folders of views that were dropped."""
    root = warehouse.root

    def drop_and_restart() -> None:
        warehouse.drop_view("one")
        warehouse.close()
        Warehouse(root, durable=False).close()

    backup(root, tmp_path / "counted")
    first = next(i for i, path in enumerate(copying.copied) if path.is_relative_to(root / "data"))
    copying.arm(first, drop_and_restart)
    assert backup(root, tmp_path / "copy") == {"two": 1}


def test_what_cannot_be_copied_whole_is_refused_in_one_line(
    warehouse: Warehouse, tmp_path: Path, copying: Copying
) -> None:
    changes = next(warehouse.root.glob("data/one-*/changes"))
    shutil.rmtree(changes)
    with pytest.raises(
        DataError, match=r"^no copy was made: .* lacks .*; views are being dropped, try again"
    ):
        backup(warehouse.root, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_that_fails_leaves_nothing(warehouse: Warehouse, tmp_path: Path, copying: Copying) -> None:
    def full_disk() -> None:
        raise OSError(28, "No space left on device")

    copying.arm(7, full_disk)
    with pytest.raises(StorageError, match=r"copy: the disk is full; free some space$"):
        backup(warehouse.root, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_that_was_cut_off_is_no_warehouse(
    warehouse: Warehouse, tmp_path: Path, copying: Copying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the process was killed: nobody tidies up."""

    class KilledError(Exception):
        pass

    def end() -> None:
        raise KilledError

    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    backup(warehouse.root, tmp_path / "counted")
    for moment in range(len(copying.copied)):
        target = tmp_path / f"copy-{moment}"
        copying.arm(moment, end)
        with pytest.raises(KilledError):
            backup(warehouse.root, target)
        for read_only in (True, False):
            with pytest.raises(ConfigurationError, match=r"copy of a warehouse that was cut off; make it"):
                Warehouse(target, read_only)
        with pytest.raises(AlreadyExistsError):
            backup(warehouse.root, target)


def test_a_commit_that_comes_while_the_log_is_listed_leaves_no_gap(
    warehouse: Warehouse, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder's listing may show the later of two new entries without the earlier one."""
    for _ in range(3):
        install(warehouse, "two")
    listed = os.listdir
    hidden = f"{2:020}.json"
    monkeypatch.setattr(os, "listdir", lambda path: [name for name in listed(path) if name != hidden])
    assert backup(warehouse.root, tmp_path / "copy") == {"one": 1, "two": 4}
    with Warehouse(tmp_path / "copy", durable=False) as copy:
        assert at(copy, "two") == {(4, "two"): 1}
