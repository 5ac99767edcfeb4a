"""Every type and every name comes back as declared, and other Delta readers can read it."""

from __future__ import annotations

import decimal
import math
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from algebra.errors import DataError
from mediator.warehouse import ViewInstall, Warehouse
from mediator.warehouse.storage import storage_of
from mediator.warehouse.tests.builders import at, bag, counted, row

INSTANT = datetime(2026, 10, 25, 0, 30, 0, 123456, tzinfo=UTC)
LOCAL = datetime(1969, 12, 31, 23, 59, 59, 999999)
TYPES: dict[str, tuple[pa.DataType, Any, Any]] = {
    "int8": (pa.int8(), -128, 127),
    "int16": (pa.int16(), -(2**15), 2**15 - 1),
    "int32": (pa.int32(), -(2**31), 2**31 - 1),
    "int64": (pa.int64(), -(2**63), 2**63 - 1),
    "uint8": (pa.uint8(), 0, 255),
    "uint16": (pa.uint16(), 0, 2**16 - 1),
    "uint32": (pa.uint32(), 0, 2**32 - 1),
    "uint64": (pa.uint64(), 0, 2**64 - 1),
    "float32": (pa.float32(), 0.5, math.nan),
    "float64": (pa.float64(), math.inf, math.nan),
    "decimal": (pa.decimal128(18, 3), decimal.Decimal("-1.001"), decimal.Decimal("123456789012345.678")),
    "wide decimal": (pa.decimal128(38, 0), decimal.Decimal(10**37), decimal.Decimal(-(10**37))),
    "string": (pa.string(), "", "naïve 🐘 \x00 '\""),
    "large string": (pa.large_string(), "", "x" * 1000),
    "binary": (pa.binary(), b"", b"\x00\xff"),
    "fixed": (pa.binary(3), b"abc", b"\x00\x01\x02"),
    "bool": (pa.bool_(), True, False),
    "date": (pa.date32(), date(1, 1, 1), date(9999, 12, 31)),
    "time": (pa.time64("us"), time(0), time(23, 59, 59, 999999)),
    "time ms": (pa.time32("ms"), time(0), time(23, 59, 59, 999000)),
    "local": (pa.timestamp("us"), LOCAL, datetime(2026, 3, 29, 2, 30)),
    "seconds": (pa.timestamp("s"), LOCAL.replace(microsecond=0), datetime(2026, 3, 29, 2, 30)),
    "instant": (pa.timestamp("us", "UTC"), INSTANT, INSTANT + timedelta(microseconds=1)),
    "zoned": (pa.timestamp("us", "Europe/Berlin"), INSTANT, INSTANT + timedelta(hours=1)),
}
SCHEMA = pa.schema([(name, type_) for name, (type_, _, _) in TYPES.items()])
ROWS: list[tuple[Any, ...]] = [
    tuple(low for _, low, _ in TYPES.values()),
    tuple(high for _, _, high in TYPES.values()),
    tuple(None for _ in TYPES),
]


def read(warehouse: Warehouse, version: int | None = None) -> pa.Table:
    return warehouse.read("v", version).read_all()


def test_every_type_round_trips(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted({ROWS[0]: 1}, SCHEMA), row(0))
    first = counted({ROWS[1]: 2, ROWS[2]: 1}, SCHEMA, 1)
    warehouse.install([ViewInstall("v", [row(1)], table=first)])
    expected = pa.concat_tables([counted({ROWS[0]: 1}, SCHEMA), first.drop_columns(["_version"])])
    for _ in range(2):
        found = read(warehouse)
        assert found.schema.equals(expected.schema)
        assert at(warehouse, "v") == bag(expected)
        assert at(warehouse, "v", 0) == bag(expected.slice(0, 1))
        [(_, watched)] = warehouse.changes("v", 0)
        assert watched.schema.equals(expected.schema)
        assert bag(watched) == bag(expected.slice(1))
        warehouse.compact("v")
    # The same values, NaN and NULL among them, must meet their own rows again to vanish.
    gone = [ViewInstall("v", [row(2)], table=_negative(expected, 2))]
    warehouse.install(gone)
    assert read(warehouse).num_rows == 0
    result = warehouse.query('SELECT uint64, "time", zoned FROM v', {"v": 1})[0].read_all()
    assert result.num_rows == 4


def test_staged_files_of_every_type(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted({}, SCHEMA), row(0))
    table = counted({ROWS[0]: 1, ROWS[1]: 2, ROWS[2]: 1}, SCHEMA, 1)
    staged = warehouse.stage_directory("v")
    pq.write_table(table, staged / "declared.parquet")
    warehouse.install([ViewInstall("v", [row(1)], files=[staged / "declared.parquet"])])
    assert at(warehouse, "v") == bag(table.drop_columns(["_version"]))
    staged = warehouse.stage_directory("v")
    stored = warehouse.view("v").storage.to_stored(
        _negative(table.drop_columns(["_version"]), 2), "_count", "_version"
    )
    pq.write_table(stored, staged / "stored.parquet")
    warehouse.install([ViewInstall("v", [row(2)], files=[staged / "stored.parquet"])])
    assert read(warehouse).num_rows == 0
    assert (staged / "stored.parquet").exists(), "what is in stored form already is taken over as it is"


def test_delta_readers_see_native_types_where_delta_has_them(warehouse: Warehouse) -> None:
    warehouse.create_view("v", {}, SCHEMA, counted(dict.fromkeys(ROWS, 1), SCHEMA), row(0))
    state = next((warehouse.root / "data").glob("*/state-0"))
    table = DeltaTable(str(state)).to_pyarrow_table()
    assert table.num_rows == 3
    types = {field.name: field.type for field in table.schema}
    assert types["int8"] == pa.int8()
    assert types["uint8"] == pa.int16()
    assert types["uint64"] == pa.decimal128(20, 0)
    assert types["local"] == pa.timestamp("us")
    assert types["instant"] == types["zoned"] == pa.timestamp("us", "UTC")
    assert types["wide%20decimal"] == pa.decimal128(38, 0)


def test_ugly_names(tmp_path: Path) -> None:
    names = [
        "a b", "a.b", 'quo"te', "it's", "ünï", "x,y;{}()=", "100%", "tab\tnew\nline", "select", "A", "a",
        "`tick`", "_COUNT", "[x]", "日本", "-", "a%20b",
    ]  # fmt: skip
    schema = pa.schema([(name, pa.int64()) for name in names])
    stored = storage_of(schema).schema.names
    assert len({name.casefold() for name in stored}) == len(names)
    values = tuple(range(len(names)))
    with Warehouse(tmp_path, durable=False) as warehouse:
        view = "Ugly/../view \"x\" 'y' ünï ."
        warehouse.create_view(view, {}, schema, counted({values: 1}, schema), row(0))
        change = counted({values: 1}, schema, 1)
        warehouse.install([ViewInstall(view, [row(1)], table=change)])
        found = warehouse.read(view).read_all()
        assert found.schema.names == [*names, "_count"]
        assert found.to_pylist() == [{**dict(zip(names, values, strict=True)), "_count": 2}]
        quoted = '"' + view.replace('"', '""') + '"'
        result = warehouse.query(f'SELECT "a b", "a.b", "quo""te", "日本" FROM {quoted}')[0].read_all()
        assert result.schema.names == ["a b", "a.b", 'quo"te', "日本"]
        assert result.num_rows == 2
        warehouse.compact(view)
        assert warehouse.read(view).read_all().num_rows == 1
        [folder] = (tmp_path / "data").iterdir()
        for table in folder.iterdir():
            assert set(stored) <= set(DeltaTable(str(table)).to_pyarrow_table().schema.names)
    with Warehouse(tmp_path, durable=False) as warehouse:
        assert warehouse.views()[0].name == view
        assert warehouse.views()[0].schema.equals(schema)


def test_legal_names_and_types_are_stored_as_they_are() -> None:
    schema = pa.schema([("id", pa.int64()), ("a.b", pa.string()), ('q"', pa.bool_()), ("ünï", pa.date32())])
    assert storage_of(schema).schema.equals(schema)


@pytest.mark.parametrize("type_", [pa.list_(pa.int64()), pa.time64("ns"), pa.decimal256(60, 2), pa.null()])
def test_types_without_an_exact_form_are_refused(warehouse: Warehouse, type_: pa.DataType) -> None:
    schema = pa.schema([("x", type_)])
    with pytest.raises(DataError, match=r"column 'x' has the type .* cannot store exactly"):
        warehouse.create_view("v", {}, schema, counted({}, schema), row(0))


def test_values_that_do_not_fit_are_refused(warehouse: Warehouse) -> None:
    schema = pa.schema([("x", pa.int8())])
    wide = pa.schema([("x", pa.int64())])
    warehouse.create_view("v", {}, schema, counted({}, schema), row(0))
    with pytest.raises(DataError, match="column 'x' does not fit"):
        warehouse.install([ViewInstall("v", [row(1)], table=counted({(300,): 1}, wide, 1))])
    warehouse.install([ViewInstall("v", [row(1)], table=counted({(100,): 1}, wide, 1))])
    assert at(warehouse, "v") == {(100,): 1}


def _negative(table: pa.Table, version: int) -> pa.Table:
    counts = pa.array([-count for count in table["_count"].to_pylist()], pa.int64())
    table = table.set_column(table.column_names.index("_count"), "_count", counts)
    return table.append_column("_version", pa.array([version] * table.num_rows, pa.int64()))
