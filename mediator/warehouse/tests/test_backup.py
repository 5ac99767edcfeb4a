"""A copy taken while the warehouse is written is a legal state of it, and can be written further."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from algebra.errors import AlreadyExistsError, NotFoundError, SourceUnavailableError
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
