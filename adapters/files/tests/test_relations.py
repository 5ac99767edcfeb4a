"""Relations of a folder: found or configured, with types that are declared, inferred, and pinned."""

from __future__ import annotations

import os
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from adapters.files.adapter import FilesAdapter
from adapters.files.tests.conftest import MakeAdapter
from adapters.files.tests.owner import replace_file
from adapters.files.tests.support import changes, rows, start, types
from adapters.files.tests.workbook import workbook
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError, DataError, SchemaChangedError


def test_every_supported_file_is_a_relation_by_its_name(make: MakeAdapter, folder: Path) -> None:
    (folder / "items.csv").write_bytes(b"id\n1\n")
    (folder / 'dot.ted na"me; [x].TSV').write_bytes(b"id\tname\n1\ta\n")
    (folder / "notes.jsonl").write_bytes(b'{"text": "x"}\n')
    pq.write_table(pa.table({"n": [1]}), folder / "numbers.parquet")
    (folder / "stock.xlsx").write_bytes(workbook(Sheet1=[["id"], [1]]))
    for other in ("README.txt", ".hidden.csv", "~$stock.xlsx", "noextension"):
        (folder / other).write_bytes(b"whatever")
    (folder / "deeper").mkdir()
    (folder / "deeper" / "not.csv").write_bytes(b"id\n")
    adapter = make()
    assert set(adapter.catalog().relations) == {
        "items", 'dot.ted na"me; [x]', "notes", "numbers", "stock",
    }  # fmt: skip
    start(adapter, *adapter.catalog().relations)
    assert rows(adapter, 'dot.ted na"me; [x]') == {(1, "a"): 1}


def test_two_files_of_one_name_must_be_told_apart(make: MakeAdapter, folder: Path) -> None:
    (folder / "item.csv").write_bytes(b"id\n1\n")
    (folder / "item.jsonl").write_bytes(b'{"id": 2}\n')
    with pytest.raises(ConfigurationError, match="two files that are called 'item'"):
        make().catalog()
    adapter = make({"a": {"path": "item.csv"}, "b": {"path": "item.jsonl"}})
    assert (rows(adapter, "a"), rows(adapter, "b")) == ({(1,): 1}, {(2,): 1})


def test_a_pattern_is_one_relation_of_many_files(make: MakeAdapter, folder: Path) -> None:
    for day in (1, 2):
        (folder / f"2024/{day}").mkdir(parents=True)
        pq.write_table(pa.table({"id": [day], "name": ["x"]}), folder / f"2024/{day}/orders.parquet")
    adapter = make({"orders": {"path": "2024/*/orders.parquet"}, "deep": {"path": "**/*.parquet"}})
    position = start(adapter, "orders")
    assert rows(adapter, "orders") == rows(adapter, "deep") == {(1, "x"): 1, (2, "x"): 1}
    (folder / "2024/3").mkdir()
    # Another order of columns is the same relation.
    pq.write_table(pa.table({"name": ["x"], "id": [3]}), folder / "2024/3/orders.parquet")
    (folder / "2024/1/orders.parquet").unlink()
    assert changes(adapter, position) == [{"orders": {(3, "x"): 1, (1, "x"): -1}}]
    pq.write_table(pa.table({"id": [4]}), folder / "2024/2/orders.parquet")
    with adapter.snapshot() as snapshot, pytest.raises(SchemaChangedError, match="lost column 'name'"):
        snapshot.changes(position)


def test_files_of_one_relation_must_have_the_same_columns(make: MakeAdapter, folder: Path) -> None:
    (folder / "p1.csv").write_bytes(b"id,a\n")
    (folder / "p2.csv").write_bytes(b"id,b\n")
    with pytest.raises(ConfigurationError, match=r"'a' is not in both p1\.csv and p2\.csv"):
        make({"p": {"path": "p*.csv"}}).catalog()


CSV_TYPES: dict[str, tuple[list[str], str]] = {
    "integers": (["1", "-5", "", "0"], "int64"),
    "codes": (["1", "007"], "string"),
    "long numbers": (["1", "12345678901234567890"], "string"),
    "fractions": (["1", "2.5", "-1e3", "nan"], "double"),
    "too exact": (["0.1234567890123456789"], "string"),
    "booleans": (["true", "FALSE"], "bool"),
    "dates": (["2024-01-31", ""], "date32[day]"),
    "times": (["2024-01-31 10:00", "2024-01-31T10:00:00.123456"], "timestamp[us]"),
    "instants": (["2024-01-31T10:00:00Z", "2024-01-31T10:00:00.5+02:00"], "timestamp[us, tz=UTC]"),
    "mixed": (["1", "a"], "string"),
    "nothing": (["", ""], "string"),
}


@pytest.mark.parametrize(("values", "expected"), CSV_TYPES.values(), ids=CSV_TYPES)
def test_types_of_csv_are_inferred_from_all_values(
    make: MakeAdapter, folder: Path, values: list[str], expected: str
) -> None:
    (folder / "item.csv").write_text("n,x\n" + "".join(f"{i},{value}\n" for i, value in enumerate(values)))
    adapter = make()
    assert types(adapter, "item") == {"n": "int64", "x": expected}
    assert sum(rows(adapter, "item").values()) == len(values)


def test_types_of_json_and_excel_are_those_of_their_values(make: MakeAdapter, folder: Path) -> None:
    (folder / "j.jsonl").write_bytes(
        b'{"i": 1, "f": 1, "b": true, "t": "2024-01-01", "n": null}\n{"f": 2.5, "late": 1}\n'
    )
    sheet: list[Any] = [
        ["i", "f", "b", "t", "d", "m"],
        [1, 1, True, "x", date(2024, 1, 31), datetime(2024, 1, 31, 12)],
    ]
    (folder / "e.xlsx").write_bytes(workbook(Sheet1=[*sheet, [2, 2.5, None, "y", None, None]]))
    adapter = make()
    assert types(adapter, "j") == {
        "i": "int64", "f": "double", "b": "bool", "t": "string", "n": "string", "late": "int64",
    }  # fmt: skip
    assert types(adapter, "e") == {
        "i": "int64", "f": "double", "b": "bool", "t": "string", "d": "date32[day]", "m": "timestamp[us]",
    }  # fmt: skip
    assert rows(adapter, "e") == {
        (1, 1.0, True, "x", date(2024, 1, 31), datetime(2024, 1, 31, 12)): 1,
        (2, 2.5, None, "y", None, None): 1,
    }


def test_what_has_no_single_type_must_be_declared(make: MakeAdapter, folder: Path) -> None:
    (folder / "j.jsonl").write_bytes(b'{"a": 1}\n{"a": "x"}\n')
    with pytest.raises(ConfigurationError, match=r"j\.jsonl has values of several types in 'a'; declare"):
        make().catalog()
    (folder / "j.jsonl").write_bytes(b'{"a": 1, "list": [1]}\n')
    with pytest.raises(ConfigurationError, match="lists or objects in 'list'"):
        make().catalog()
    adapter = make({"j": {"columns": {"a": "BIGINT"}, "exclude": ["list"]}})
    start(adapter, "j")
    assert rows(adapter, "j") == {(1,): 1}


def test_inferred_types_are_pinned_when_prepared(make: MakeAdapter, folder: Path) -> None:
    """A later file that would be taken for another type does not change it; what does not fit is named."""
    path = folder / "item.csv"
    path.write_bytes(b"id,x\n1,5\n2,6\n")
    adapter = make()
    position = start(adapter, "item")
    replace_file(path, b"id,x\n1,true\n2,6\n")
    with pytest.raises(DataError, match=r"item\.csv:2: column 'x': 'true' is not int64"), adapter.snapshot():
        pass
    replace_file(path, b"x,id\n,1\n6,2\n")
    assert changes(adapter, position) == [{"item": {(1, 5): -1, (1, None): 1}}]
    replace_file(path, b"id,x\n")
    assert types(make(), "item") == {"id": "int64", "x": "int64"}, "pinned over a restart and without rows"
    assert changes(make(), position)[1:] == [{"item": {(1, None): -1, (2, 6): -1}}]


@pytest.mark.parametrize(
    ("header", "problem"),
    [(b"id,x,y\n", "got column 'y'"), (b"id\n", "lost column 'x'"), (b"id,z\n", "lost column 'x'")],
)
def test_another_header_is_drift_and_prepare_takes_it_over(
    make: MakeAdapter, folder: Path, header: bytes, problem: str
) -> None:
    path = folder / "item.csv"
    path.write_bytes(b"id,x\n1,5\n")
    adapter = make()
    position = start(adapter, "item")
    replace_file(path, header + b"1" + b",a" * header.count(b",") + b"\n")
    with adapter.snapshot() as snapshot, pytest.raises(SchemaChangedError, match=problem):
        snapshot.changes(position)
    adapter.prepare(["item"])
    assert sum(rows(adapter, "item").values()) == 1
    assert list(types(adapter, "item")) == header.decode().strip().split(",")


def test_a_parquet_file_with_another_type_is_drift(make: MakeAdapter, folder: Path) -> None:
    path = folder / "item.parquet"
    pq.write_table(pa.table({"id": pa.array([1], pa.int32())}), path)
    adapter = make()
    position = start(adapter, "item")
    pq.write_table(pa.table({"id": ["1"]}), path)
    with adapter.snapshot() as snapshot, pytest.raises(SchemaChangedError, match="from int32 to string"):
        snapshot.changes(position)
    adapter.prepare(["item"])
    assert rows(adapter, "item") == {("1",): 1}


def test_a_new_key_in_json_is_drift(make: MakeAdapter, folder: Path) -> None:
    path = folder / "item.jsonl"
    path.write_bytes(b'{"id": 1}\n')
    adapter = make()
    position = start(adapter, "item")
    replace_file(path, b'{"id": 1}\n{"id": 2, "more": "x"}\n')
    with adapter.snapshot() as snapshot, pytest.raises(SchemaChangedError, match="got column 'more'"):
        snapshot.changes(position)
    adapter.prepare(["item"])
    assert rows(adapter, "item") == {(1, None): 1, (2, "x"): 1}


def test_columns_of_json_that_are_declared_in_another_order_keep_their_values(
    make: MakeAdapter, folder: Path
) -> None:
    path = folder / "item.jsonl"
    path.write_bytes(b'{"a": 1, "b": 2, "c": 3}\n')

    def declaring(*columns: str) -> FilesAdapter:
        return make({"item": {"columns": dict.fromkeys(columns, "BIGINT"), "exclude": ["c"]}})

    position = start(declaring("a", "b", "c"), "item")
    replace_file(path, b'{"a": 1, "b": 2, "c": 3}\n{"a": 3, "b": 4, "c": 5}\n')
    assert changes(declaring("c", "b", "a"), position) == [{"item": {(3, 4): 1}}]


def test_declared_types_of_every_format(make: MakeAdapter, folder: Path) -> None:
    declared = {
        "i": "smallint", "d": "DECIMAL(10,2)", "b": "BYTEA", "t": "time", "w": "timestamptz", "c": "CHAR(3)",
    }  # fmt: skip
    (folder / "c.csv").write_bytes(b"i,d,b,t,w,c\n5,1.5,00ff,10:30:00,2024-01-01T00:00:00+01:00,007\n")
    (folder / "j.jsonl").write_bytes(
        b'{"i": 5, "d": 1.50, "b": "00FF", "t": "10:30:00", "w": "2024-01-01T00:00:00+01:00", "c": "007"}\n'
    )
    sheet: list[Any] = [list(declared), [5, 1.5, "00ff", "10:30:00", "2024-01-01T00:00:00+01:00", "007"]]
    (folder / "e.xlsx").write_bytes(workbook(Sheet1=sheet))
    table = pa.table({
        "i": [5], "d": [Decimal("1.5")], "b": pa.array([b"\x00\xff"], pa.large_binary()),
        "t": pa.array([37_800_000], pa.time32("ms")), "w": [datetime(2023, 12, 31, 23, tzinfo=UTC)],
        "c": pa.array(["007"]).dictionary_encode(),
    })  # fmt: skip
    pq.write_table(table, folder / "p.parquet")
    adapter = make({name: {"columns": declared} for name in ("c", "j", "e", "p")})
    for name in ("c", "j", "e", "p"):
        assert list(types(adapter, name).values()) == [
            "int16", "decimal128(10, 2)", "binary", "time64[us]", "timestamp[us, tz=UTC]", "string",
        ]  # fmt: skip
        [row] = rows(adapter, name)
        assert row[:3] == (5, Decimal("1.50"), b"\x00\xff"), name
        assert (str(row[3]), row[4], row[5]) == ("10:30:00", datetime(2023, 12, 31, 23, tzinfo=UTC), "007"), (
            name
        )


def test_a_parquet_value_that_a_declared_type_cannot_hold_is_named_by_row(
    make: MakeAdapter, folder: Path
) -> None:
    times = pa.array([0, 1000, 1], pa.timestamp("ns"))
    pq.write_table(pa.table({"at": times}), folder / "item.parquet")
    assert types(make(), "item") == {"at": "timestamp[ns]"}
    with pytest.raises(DataError, match=r"item\.parquet:3: column 'at': .*would lose data"):
        make({"item": {"columns": {"at": "timestamp"}}}).prepare(["item"])


def test_unsupported_columns_are_named_and_can_be_excluded(make: MakeAdapter, folder: Path) -> None:
    pq.write_table(pa.table({"id": [1], "tags": [["a"]]}), folder / "item.parquet")
    with pytest.raises(ConfigurationError, match=r"column shop\.item\.tags has type list.*exclude"):
        make().catalog()
    adapter = make({"item": {"exclude": "tags"}})
    position = start(adapter, "item")
    pq.write_table(pa.table({"id": [2], "tags": [["b"]]}), folder / "item.parquet")
    assert changes(adapter, position) == [{"item": {(1,): -1, (2,): 1}}]


def test_dialects_encodings_and_nulls(make: MakeAdapter, folder: Path) -> None:
    (folder / "bom.csv").write_bytes("\ufeffid,name\r\n1,é\r\n".encode())
    (folder / "latin.csv").write_bytes("id;name\n1;Zoë\n".encode("latin-1"))
    (folder / "wide.csv").write_bytes("id,name\n1,表\n".encode("utf-16"))
    (folder / "nulls.csv").write_bytes(b'id,name\n1,NA\n2,"NA"\n3,\n4,""\n')
    (folder / "raw.csv").write_bytes(b'1|5" disk\n2|"x"\n')
    columns = {"id": "BIGINT", "name": "VARCHAR"}
    adapter = make({
        "bom": {},
        "latin": {"encoding": "latin-1", "delimiter": ";"},
        "wide": {"encoding": "utf-16"},
        "nulls": {"null": ["NA"]},
        "raw": {"delimiter": "|", "quote": "", "header": False, "columns": columns},
    })  # fmt: skip
    start(adapter, "bom", "latin", "wide", "nulls", "raw")
    assert rows(adapter, "bom") == {(1, "é"): 1}
    assert rows(adapter, "latin") == {(1, "Zoë"): 1}
    assert rows(adapter, "wide") == {(1, "表"): 1}
    assert rows(adapter, "nulls") == {(1, None): 1, (2, "NA"): 1, (3, ""): 1, (4, ""): 1}
    assert rows(adapter, "raw") == {(1, '5" disk'): 1, (2, '"x"'): 1}
    replace_file(folder / "wide.csv", "id,name\n1,".encode("utf-16") + b"\x00\xd8\n\x00")
    with pytest.raises(DataError, match=r"wide\.csv:2: bytes that are not utf-16"), adapter.snapshot():
        pass


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"id,id\n1,2\n", "two columns that are called 'id'"),
        (b"id,\n1,2\n", "a column without a name"),
        (b"id,_count\n1,2\n", "a name that Lockstep reserves"),
        (b'id,"x"y\n1,2\n', "malformed header line"),
        (b"id,\xff\n1,2\n", "header line that is not utf-8"),
    ],
)
def test_a_header_that_names_no_columns_is_refused(
    make: MakeAdapter, folder: Path, content: bytes, problem: str
) -> None:
    (folder / "item.csv").write_bytes(content)
    with pytest.raises(ConfigurationError, match=problem):
        make().catalog()


def test_a_huge_line_is_read_up_to_a_bound(make: MakeAdapter, folder: Path) -> None:
    value = "x" * (3 << 20)
    (folder / "item.csv").write_text(f'id,text\n1,"{value}\n"\n2,b\n')
    adapter = make()
    start(adapter, "item")
    assert rows(adapter, "item") == {(1, value + "\n"): 1, (2, "b"): 1}
    with pytest.raises(DataError, match=r"item\.csv:2: the row is longer than 1 MB"):
        make(max_line_mb=1, shadow=str(folder.with_name("other"))).prepare(["item"])


def test_a_large_file_is_read_in_blocks(make: MakeAdapter, folder: Path) -> None:
    count = 400_000
    with (folder / "item.csv").open("w") as file:
        file.write("id,text\n")
        file.writelines(f'{i},"value ""{i}"""\n' for i in range(count))
    adapter = make({"item": {"key": "id"}}, patience=30.0)
    position = start(adapter, "item")
    with (folder / "item.csv").open("a") as file:
        file.write(f"{count},last\n")
    assert changes(adapter, position) == [{"item": {(count, "last"): 1}}]


class TestConfinement:
    """Nothing outside of the folder is read."""

    @pytest.mark.parametrize("path", ["../secret.csv", "/etc/passwd", "a/../../secret.csv", ""])
    def test_paths_that_lead_outside_are_refused(self, make: MakeAdapter, path: str) -> None:
        with pytest.raises(ConfigurationError, match="a path inside the folder"):
            make({"item": {"path": path, "format": "csv"}})

    @pytest.mark.parametrize("settings", [None, {"item": {"path": "link.csv"}}, {"item": {"path": "*.csv"}}])
    def test_links_that_lead_outside_are_refused(
        self, make: MakeAdapter, folder: Path, settings: dict[str, Any] | None
    ) -> None:
        (folder.parent / "secret.csv").write_bytes(b"id\n1\n")
        os.symlink(folder.parent / "secret.csv", folder / "link.csv")
        with pytest.raises(ConfigurationError, match=r"link\.csv is or leads outside of"):
            make(settings).catalog()

    def test_a_link_inside_is_followed(self, make: MakeAdapter, folder: Path) -> None:
        (folder / "2024.csv").write_bytes(b"id\n1\n")
        os.symlink("2024.csv", folder / "current.csv")
        adapter = make({"item": {"path": "current.csv"}})
        position = start(adapter, "item")
        (folder / "2025.csv").write_bytes(b"id\n2\n")
        os.symlink("2025.csv", folder / "next.csv")
        os.replace(folder / "next.csv", folder / "current.csv")
        assert changes(adapter, position) == [{"item": {(1,): -1, (2,): 1}}]

    def test_a_folder_in_the_place_of_a_file_is_refused(self, make: MakeAdapter, folder: Path) -> None:
        (folder / "item.csv").mkdir()
        with pytest.raises(ConfigurationError, match=r"item\.csv is no ordinary file"):
            make({"item": {"path": "item.csv"}}).catalog()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"delimeter": ","}, "unknown option 'delimeter'"),
        ({"delimiter": "::"}, "option delimiter is '::', not a single ASCII character"),
        ({"encoding": "utf-9"}, "option encoding is 'utf-9', not an encoding that is known"),
        ({"malformed": "skip"}, "option malformed is 'skip', not refuse or quarantine"),
        ({"header": "yes"}, "option header is 'yes', not true or false"),
        ({"patience": -1}, "option patience is -1, not a number of at least 0"),
        ({"commit_file": "../x"}, r"option commit_file is '\.\./x', not the name of a file"),
        ({"relations": ["a"]}, "option relations is .* not a mapping"),
        ({"relations": {"a": {"colums": {}}}}, "relation 'a': unknown option 'colums'"),
        ({"relations": {"a": {"columns": {"x": "point"}}}}, r"option columns\.x is 'point', not a type"),
        ({"relations": {"a": {"format": "xml"}}}, "option format is 'xml', not csv, jsonl, parquet or excel"),
        ({"columns": {"x": "int"}}, "unknown option 'columns'"),
        ({"rate_limit": "slow"}, "option rate_limit is 'slow', not a number"),
        ({"memory_limit": "much"}, "option memory_limit is 'much', not a size"),
    ],
)
def test_wrong_options_are_one_line(make: MakeAdapter, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as refused:
        make(**options)
    assert "\n" not in str(refused.value)


def test_a_shadow_inside_the_folder_is_refused(make: MakeAdapter, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match="inside the folder of the files"):
        make(shadow=str(folder / "shadow"))


def test_a_shadow_of_another_folder_is_refused(make: MakeAdapter, folder: Path, tmp_path: Path) -> None:
    (folder / "item.csv").write_bytes(b"id\n1\n")
    start(make(shadow=str(tmp_path / "kept")), "item")
    folder.rename(tmp_path / "outbox")
    folder.mkdir()
    (folder / "item.csv").write_bytes(b"id\n2\n")
    config = SourceConfig(
        "shop", "files", f"files:///{tmp_path / 'outbox'}", options={"shadow": str(tmp_path / "kept")}
    )
    outbox = FilesAdapter(config)
    for refused in (outbox.catalog, lambda: outbox.prepare(["item"])):
        with pytest.raises(ConfigurationError, match=f"the shadow of another database, {folder}; "):
            refused()
    outbox.close()


def test_the_steps_of_prepare_and_remove_are_told_before(
    make: MakeAdapter, folder: Path, tmp_path: Path
) -> None:
    (folder / "item.csv").write_bytes(b"id\n1\n")
    before = set(tmp_path.iterdir())
    adapter = make()
    planned = adapter.prepare(["item"], dry_run=True)
    assert set(tmp_path.iterdir()) == before
    assert planned[0].startswith("create ")
    assert any("the rows of item (item.csv)" in step for step in planned)
    assert len(adapter.prepare(["item"])) == len(planned)
    assert adapter.prepare(["item"]) == []
    assert adapter.remove(dry_run=True) == adapter.remove()
    assert set(tmp_path.iterdir()) == before


def test_nothing_is_remembered_of_files_that_are_gone(folder: Path, make: MakeAdapter) -> None:
    adapter = make({"r": {"path": "*.csv"}}, discover=True)
    (folder / "p0.csv").write_text("id,v\n1,2\n")
    start(adapter, "r")
    for day in range(1, 4):
        replace_file(folder / f"p{day}.csv", f"id,v\n{day},2\n".encode())
        replace_file(folder / f"found{day}.jsonl", b'{"id": 1}\n')
        (folder / f"p{day - 1}.csv").unlink()
        (folder / f"found{day - 1}.jsonl").unlink(missing_ok=True)
        assert rows(adapter, "r") == Counter([(day, 2)])
        assert types(adapter, f"found{day}") == {"id": "int64"}
        for learned in (adapter._memory.shapes, adapter._memory.guesses):
            assert learned.keys() <= {f"p{day}.csv", f"found{day}.jsonl"}
    assert adapter._memory.shapes
    assert adapter._memory.guesses
