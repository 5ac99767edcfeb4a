"""Making, listing, staging for and dropping views; one writer; readers of other processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from algebra.errors import (
    AlreadyExistsError,
    ConfigurationError,
    DataError,
    NotFoundError,
    OrderingViolationError,
)
from mediator.warehouse import ViewInstall, Warehouse
from mediator.warehouse.tests.builders import SCHEMA, at, change, counted, row


def test_views_are_listed_and_dropped(warehouse: Warehouse) -> None:
    assert warehouse.views() == []
    warehouse.create_view("b", {}, SCHEMA, counted({(1, "x"): 1}), row(0))
    warehouse.create_view("a", {}, SCHEMA, counted({}), row(0))
    assert [view.name for view in warehouse.views()] == ["a", "b"]
    with pytest.raises(AlreadyExistsError, match="there is a view 'a' already"):
        warehouse.create_view("a", {}, SCHEMA, counted({}), row(0))
    with pytest.raises(OrderingViolationError):
        warehouse.create_view("c", {}, SCHEMA, counted({}), row(1))
    warehouse.install([change("b", 1, {(2, "y"): 1})])
    folders = {path.name for path in (warehouse.root / "data").iterdir()}
    warehouse.drop_view("b")
    assert [view.name for view in warehouse.views()] == ["a"]
    assert len(folders - {path.name for path in (warehouse.root / "data").iterdir()}) == 1
    with pytest.raises(NotFoundError):
        warehouse.drop_view("b")


def test_a_view_made_again_begins_anew(tmp_path: Path) -> None:
    with Warehouse(tmp_path, durable=False) as warehouse:
        warehouse.create_view("v", {}, SCHEMA, counted({(1, "old"): 1}), row(0))
        warehouse.install([change("v", 1, {(2, "old"): 1})])
        warehouse.drop_view("v")
        other = pa.schema([("x", pa.float64())])
        warehouse.create_view("v", {}, other, counted({(0.5,): 3}, other), row(0))
        assert warehouse.newest("v").version == 0
    with Warehouse(tmp_path, durable=False) as warehouse:
        assert warehouse.newest("v").version == 0
        assert len(warehouse.history("v")) == 1
        assert at(warehouse, "v") == {(0.5,): 3}


def test_the_first_state_comes_as_table_stream_or_files(warehouse: Warehouse) -> None:
    table = counted({(number, f"n{number % 7}"): 1 + number % 3 for number in range(1000)})
    warehouse.create_view("table", {}, SCHEMA, table, row(0))
    stream = pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=100))
    warehouse.create_view("stream", {}, SCHEMA, stream, row(0))
    staged = warehouse.stage_directory("files")
    paths = [staged / "part 1.parquet", staged / "empty.parquet", staged / "part-2.parquet"]
    for path, part in zip(paths, (table.slice(0, 600), table.slice(0, 0), table.slice(600)), strict=True):
        pq.write_table(part, path)
    warehouse.create_view("files", {}, SCHEMA, paths, row(0))
    assert at(warehouse, "table") == at(warehouse, "stream") == at(warehouse, "files")
    assert {warehouse.newest(view).rows for view in ("table", "stream", "files")} == {1999}
    with pytest.raises(DataError, match="count below 1"):
        warehouse.create_view("wrong", {}, SCHEMA, counted({(1, "a"): -1}), row(0))
    assert len(warehouse.views()) == 3


def test_staged_files_of_several_versions(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted({(0, "a"): 1}), row(0))
    staged = warehouse.stage_directory("v")
    rows = pa.table(
        {"_version": [1, 1, 3], "name": ["b", "a", "c"], "_count": [2, -1, 1], "id": [1, 0, 2]},
        schema=pa.schema(
            [("_version", pa.int64()), ("name", pa.string()), ("_count", pa.int64()), ("id", pa.int64())]
        ),
    )
    pq.write_table(rows, staged / "0.parquet")
    pq.write_table(rows.slice(0, 0), staged / "1.parquet")
    small = counted({(9, None): 1}, SCHEMA, 2)
    warehouse.install([ViewInstall("v", [row(1), row(2), row(3)], sorted(staged.iterdir()), small)])
    assert at(warehouse, "v", 1) == {(1, "b"): 2}
    assert at(warehouse, "v", 2) == {(1, "b"): 2, (9, None): 1}
    assert at(warehouse, "v", 3) == {(1, "b"): 2, (9, None): 1, (2, "c"): 1}
    assert [record.rows for record in warehouse.history("v")] == [4, 3, 2, 1]
    assert [record.changed_rows for record in warehouse.history("v")] == [1, 1, 3, 1]


def test_staged_rows_must_fit(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted({}), row(0))
    with pytest.raises(DataError, match=r"holds rows of versions 2\.\.2, its versions are 1\.\.1"):
        warehouse.install([ViewInstall("v", [row(1)], table=counted({(1, "a"): 1}, SCHEMA, 2))])
    short = counted({(1, "a"): 1}, SCHEMA, 1).drop_columns(["name"])
    with pytest.raises(DataError, match="lack its columns name"):
        warehouse.install([ViewInstall("v", [row(1)], table=short)])
    elsewhere = warehouse.root.parent / "x.parquet"
    pq.write_table(counted({(1, "a"): 1}, SCHEMA, 1), elsewhere)
    with pytest.raises(DataError, match="not staged"):
        warehouse.install([ViewInstall("v", [row(1)], files=[elsewhere])])
    staged = warehouse.stage_directory("v")
    floats = counted({(1, "a"): 1}, SCHEMA, 1).cast(
        pa.schema([*SCHEMA, ("_count", pa.float64()), ("_version", pa.int64())])
    )
    pq.write_table(floats, staged / "0.parquet")
    with pytest.raises(DataError, match="must be an integer"):
        warehouse.install([ViewInstall("v", [row(1)], files=[staged / "0.parquet"])])
    warehouse.discard(staged)
    assert not staged.exists()
    assert warehouse.newest("v").version == 0


def test_what_was_staged_and_never_installed_is_removed(tmp_path: Path) -> None:
    with Warehouse(tmp_path, durable=False) as warehouse:
        warehouse.create_view("v", {}, SCHEMA, counted({(1, "a"): 1}), row(0))
        for view in ("v", "never made"):
            pq.write_table(counted({}), warehouse.stage_directory(view) / "0.parquet")
    with Warehouse(tmp_path, durable=False) as warehouse:
        assert at(warehouse, "v") == {(1, "a"): 1}
        assert len(list((tmp_path / "data").iterdir())) == 1
        assert list(tmp_path.rglob("staged-*")) == []


def test_only_one_mediator_writes(warehouse: Warehouse) -> None:
    program = (
        "import sys; from mediator.warehouse import Warehouse\n"
        "try: Warehouse(sys.argv[1])\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    root = Path(__file__).resolve().parents[3]
    output = subprocess.run(
        [sys.executable, "-c", program, warehouse.root], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    assert output.startswith("ConfigurationError the warehouse")
    assert "is held by another mediator (process " in output
    assert len(output.splitlines()) == 1


def test_readers_need_no_lock(warehouse: Warehouse) -> None:
    with pytest.raises(NotFoundError, match="no warehouse"):
        Warehouse(warehouse.root / "nowhere", read_only=True)
    with pytest.raises(ConfigurationError, match="object stores"):
        Warehouse("s3://bucket/warehouse")
    warehouse.create_view("v", {}, SCHEMA, counted({(1, "a"): 1}), row(0))
    with Warehouse(warehouse.root, read_only=True) as reader:
        warehouse.install([change("v", 1, {(2, "b"): 1})])
        assert reader.newest("v").version == 0
        assert at(reader, "v") == {(1, "a"): 1}
        reader.refresh()
        assert at(reader, "v") == {(1, "a"): 1, (2, "b"): 1}
        warehouse.compact("v")
        reader.refresh()
        assert at(reader, "v", 0) == {(1, "a"): 1}
        for forbidden in (
            lambda: reader.install([]),
            lambda: reader.drop_view("v"),
            lambda: reader.stage_directory("v"),
            reader.maintain,
            reader.recover,
        ):
            with pytest.raises(ConfigurationError, match="for reading only"):
                forbidden()


def test_any_delta_reader_reads_the_tables(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted({(1, "a"): 1}), row(0))
    for number in range(1, 40):
        warehouse.install([change("v", number, {(number, "b"): 2})])
        if number == 20:
            warehouse.maintain()
    folder = next((warehouse.root / "data").iterdir())
    for _ in range(2):
        changes = DeltaTable(str(folder / "changes")).to_pyarrow_table()
        assert sorted(changes["_version"].to_pylist()) == list(range(1, 40))
        assert changes.schema.names == ["id", "name", "_count", "_version"]
        versions = DeltaTable(str(warehouse.root / "versions")).to_pyarrow_table()
        assert sorted(versions["version"].to_pylist()) == list(range(40))
        assert set(versions["vector"].to_pylist()) >= {'{"shop":[3,"t3"],"crm":[7,"say \\"hi\\""]}'}
        filtered = DeltaTable(str(folder / "changes")).to_pyarrow_table(filters=[("_version", "=", 17)])
        assert filtered["id"].to_pylist() == [17]
        state = folder / f"state-{warehouse.view('v').state_version}"
        warehouse.compact("v")
    assert DeltaTable(str(state)).to_pyarrow_table().num_rows == 40
    views = DeltaTable(str(warehouse.root / "views")).to_pyarrow_table()
    assert set(views["view"].to_pylist()) == {"v"}


def test_many_commits_are_merged_and_checkpointed(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted({}), row(0))
    warehouse.create_view("gone", {}, SCHEMA, counted({}), row(0))
    warehouse.drop_view("gone")
    for number in range(1, 131):
        warehouse.install([change("v", number, {(number, "b"): 1})])
    warehouse.maintain()
    folder = next((warehouse.root / "data").iterdir())
    for table in (folder / "changes", warehouse.root / "versions"):
        assert (table / "_delta_log" / "_last_checkpoint").exists()
        assert len(list(table.rglob("*.parquet"))) == 2, "one data file and one checkpoint"
    names = DeltaTable(str(warehouse.root / "versions")).to_pyarrow_table()["view"].to_pylist()
    assert set(names) == {"v"}
    warehouse.install([change("v", 131, {(1, "b"): -1})])
    assert len(at(warehouse, "v")) == 129
    assert len(at(warehouse, "v", 130)) == 130
