"""Nothing that Lockstep keeps can be read by another user of the machine, whatever the umask is."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from adapters.duckdb.adapter import DuckDBAdapter
from adapters.files.adapter import FilesAdapter
from adapters.shadow.engine import Engine
from adapters.spi import SourceConfig
from algebra.private_files import make_private_folder
from mediator.warehouse import Warehouse
from mediator.warehouse.backup import backup
from mediator.warehouse.client_query import ClientQueries, QueryLimits, Question
from mediator.warehouse.tests.builders import SCHEMA, change, counted, row
from protos.security.audit import AuditLog
from protos.security.tokens import TokenFile


@pytest.fixture(autouse=True)
def no_umask() -> Iterator[None]:
    """The mode that each file is made with is the mode that it has."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, where temporary files are made too; everybody may look into it."""
    tmp_path.chmod(0o777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def open_to_others(folder: Path) -> list[Path]:
    """The files below a folder that another user could read or change."""
    found: list[Path] = []
    for path in folder.iterdir():
        mode = stat.S_IMODE(path.stat().st_mode)
        if path.is_dir():
            found += open_to_others(path) if mode & 0o077 else []
        elif mode & 0o077:
            found.append(path)
    return found


def test_folders_that_are_made_are_private_and_others_stay_as_they_are(place: Path) -> None:
    make_private_folder(place / "a" / "b")
    modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (place, place / "a", place / "a" / "b")]
    assert modes == [0o777, 0o700, 0o700]
    (place / "a").chmod(0o755)
    make_private_folder(place / "a")
    assert stat.S_IMODE((place / "a").stat().st_mode) == 0o755
    (place / "file").touch()
    with pytest.raises(NotADirectoryError):
        make_private_folder(place / "file")


def test_the_warehouse_and_its_copies(place: Path) -> None:
    with Warehouse(place / "w", durable=False) as warehouse:
        warehouse.create_view("v", {}, SCHEMA, counted({(1, "x"): 1}), row(0))
        warehouse.install([change("v", 1, {(2, "y"): 1})])
        backup(place / "w", place / "copy")
        assert open_to_others(place) == []
        # Who opens the folder, as documented, opens all of it.
        (place / "w").chmod(0o755)
        assert set(open_to_others(place)) >= set((place / "w").rglob("*.parquet"))
        warehouse.install([change("v", 2, {(3, "z"): 1})])
    assert stat.S_IMODE((place / "w").stat().st_mode) == 0o755


def test_the_shadow_of_a_file_while_it_is_open(place: Path) -> None:
    source = place / "source"
    source.mkdir(mode=0o700)
    with duckdb.connect(str(source / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE item AS SELECT 1 AS id")
    config = SourceConfig(
        "shop",
        "duckdb",
        f"duckdb:///{source / 'shop.duckdb'}",
        None,
        "diff",
        {"shadow": str(place / "shadow")},
    )
    adapter = DuckDBAdapter(config)
    try:
        adapter.prepare(["item"])
        assert open_to_others(place) == []
        with adapter.snapshot():
            assert list((place / "shadow").iterdir())
            assert open_to_others(place) == []
    finally:
        adapter.close()


def test_the_shadow_and_the_quarantine_of_a_folder(place: Path) -> None:
    inbox = place / "inbox"
    inbox.mkdir(mode=0o700)
    (inbox / "item.csv").write_bytes(b"id\n1\nnone\n")
    settings = {"item": {"path": "item.csv", "columns": {"id": "int64"}, "malformed": "quarantine"}}
    adapter = FilesAdapter(
        SourceConfig("shop", "files", f"files:///{inbox}", None, None, {"patience": 0, "relations": settings})
    )
    try:
        adapter.prepare(["item"])
        kept = {path.name for path in place.glob("inbox.*")}
        assert kept == {"inbox.lockstep-shadow", "inbox.lockstep-shadow.quarantine.jsonl"}
        assert open_to_others(place) == []
    finally:
        adapter.close()


def test_audit_log_and_token_file(place: Path) -> None:
    AuditLog(place / "audit" / "mediator.jsonl", "mediator").record(None, "peer", "query", "v", "ok")
    TokenFile(place / "tokens" / "tokens.json").create("ann", ["read"])
    AuditLog(place / "audit.jsonl", "mediator").record(None, "peer", "query", "v", "ok")
    TokenFile(place / "tokens.json").create("ann", ["read"])
    assert stat.S_IMODE((place / "audit").stat().st_mode) == 0o700
    assert stat.S_IMODE((place / "tokens").stat().st_mode) == 0o700
    assert open_to_others(place) == []


def _spill(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute("CREATE TEMP TABLE t AS SELECT range AS a, hash(range) AS b FROM range(3000000)")


def test_what_does_not_fit_into_memory(place: Path) -> None:
    queries = ClientQueries(QueryLimits(memory="64MiB"))
    sorted_rows = "SELECT range AS a, hash(range) AS b FROM range(8000000) ORDER BY b"
    answer = queries.run(Question(sorted_rows, {}, []))
    assert answer.read_next_batch().num_rows, "all is sorted before the first row comes"
    shadow = Engine("shop", memory_limit="20MiB")
    _spill(shadow.connection)
    spilled = {path.parent for path in place.rglob("*") if path.is_file()}
    assert len(spilled) == 2, "not both have spilled"
    assert open_to_others(place) == []
    del answer
    queries.close()
    shadow.close()
    assert list(place.iterdir()) == [], "spilled rows stay behind"
