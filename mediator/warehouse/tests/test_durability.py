"""After a power failure: what a commit names is there, because it was forced to the disk before it.

A model of a disk that keeps only what it was told to: a file's bytes once the file was forced, its entry once
the folder was forced after the entry was made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from mediator.warehouse import Warehouse, upkeep
from mediator.warehouse.backup import backup
from mediator.warehouse.tests import test_faults
from mediator.warehouse.tests.builders import SCHEMA, at, counted, row
from mediator.warehouse.tests.test_faults import OLD, prepare, visible


class Platter:
    """What the disk would still hold, by what was forced to it."""

    def __init__(self) -> None:
        self.files: dict[int, int] = {}
        """Forced sizes by inode."""
        self.entries: dict[Path, dict[str, int]] = {}
        """Forced entries of folders: {name: inode}."""

    def force(self, path: Path) -> None:
        if path.is_dir():
            self.entries[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self.files[path.stat().st_ino] = path.stat().st_size

    def force_everything(self, root: Path) -> None:
        for path in (root.parent, root, *root.rglob("*")):
            self.force(path)

    def lost(self, path: Path, top: Path) -> list[str]:
        """What is missing of a file after a power failure; `top` is a folder that was there before."""
        status = path.stat()
        problems = [] if self.files.get(status.st_ino) == status.st_size else [f"the bytes of {path}"]
        while path != top:
            if self.entries.get(path.parent, {}).get(path.name) != path.stat().st_ino:
                problems.append(f"the entry of {path}")
            path = path.parent
        return problems

    def lost_below(self, root: Path) -> list[str]:
        return [
            problem
            for path in root.rglob("*")
            if path.is_file() and path.name not in (".lock", ".upkeep")
            for problem in self.lost(path, root.parent)
        ]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two views at version 5, written before anybody watches."""
    prepare(tmp_path / "w")
    return tmp_path / "w"


@pytest.fixture
def platter(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platter]:
    """Watches what is forced, and at each commit whether it may rely on what it names."""
    platter = Platter()
    platter.force_everything(root)
    fsync, link, replace = os.fsync, os.link, os.replace
    lost: list[str] = []

    def forced(descriptor: int) -> None:
        platter.force(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def linked(source: Path, entry: Path) -> None:
        lost.extend(p for p in platter.lost(Path(source), Path(source).parent) if "bytes" in p)
        table = Path(entry).parent.parent
        for line in Path(source).read_text().splitlines():
            if "add" in (action := json.loads(line)):
                lost.extend(platter.lost(table / action["add"]["path"], table))
        link(source, entry)

    def replaced(source: Path, place: Path) -> None:
        lost.extend(p for p in platter.lost(Path(source), Path(source).parent) if "bytes" in p)
        replace(source, place)

    monkeypatch.setattr(os, "fsync", forced)
    monkeypatch.setattr(os, "link", linked)
    monkeypatch.setattr(os, "replace", replaced)
    monkeypatch.setattr(upkeep, "_MERGE_FILES", 4)
    monkeypatch.setattr(upkeep, "_CHECKPOINT_COMMITS", 4)
    yield platter
    assert lost == [], "a commit relied on it"


OPERATIONS = [*test_faults.OPERATIONS, test_faults.install_staged]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.__name__)
def test_everything_that_an_operation_leaves_survives(
    platter: Platter, root: Path, operation: Callable[[Warehouse], None]
) -> None:
    with Warehouse(root, grace_seconds=0.0) as warehouse:
        if operation is test_faults.install_staged:
            test_faults.stage(warehouse)
        operation(warehouse)
        assert platter.lost_below(warehouse.root) == []


def test_a_view_made_from_staged_files_survives(platter: Platter, tmp_path: Path) -> None:
    with Warehouse(tmp_path / "new") as warehouse:
        staged = warehouse.stage_directory("v")
        pq.write_table(counted({(1, "a"): 2}), staged / "0.parquet")
        warehouse.create_view("v", {}, SCHEMA, [staged / "0.parquet"], row(0))
        assert at(warehouse, "v") == {(1, "a"): 2}
        assert platter.lost_below(warehouse.root) == []


def test_a_new_warehouse_survives_with_the_folders_above_it(platter: Platter, tmp_path: Path) -> None:
    with Warehouse(tmp_path / "new" / "folders" / "w") as warehouse:
        assert platter.lost_below(warehouse.root) == []
        assert platter.lost(warehouse.root / "format.json", tmp_path) == []


def test_of_folders_above_only_those_are_forced_that_get_a_new_one(
    platter: Platter, root: Path, tmp_path: Path
) -> None:
    """One that is there already is the operator's, and may be one that can be passed and not read."""
    platter.entries.pop(root.parent)
    with Warehouse(root) as warehouse:
        test_faults.install(warehouse)
        test_faults.create(warehouse)
        test_faults.compact(warehouse)
    assert root.parent not in platter.entries
    Warehouse(tmp_path / "new").close()
    assert tmp_path in platter.entries


def test_what_a_killed_process_left_visible_is_forced_at_the_next_start(platter: Platter, root: Path) -> None:
    """It may have ended between a commit and the force that makes it last; sources are told of it now."""
    for log in root.rglob("_delta_log"):
        platter.entries[log].pop(max(name for name in platter.entries[log] if name.endswith(".json")))
    platter.entries[root].clear()
    with Warehouse(root) as warehouse:
        assert visible(warehouse) == OLD
        assert platter.lost_below(warehouse.root) == []


def test_a_copy_survives(platter: Platter, root: Path, tmp_path: Path) -> None:
    assert backup(root, tmp_path / "copy") == {"left": 5, "right": 5}
    assert platter.lost_below(tmp_path / "copy") == []
