"""Every value has one Arrow type: in the catalog, in fetch and in changes of both captures."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from adapters.duckdb.tests.conftest import MakeAdapter
from adapters.duckdb.tests.owner import Owner
from adapters.duckdb.tests.views import whole
from algebra.errors import ConfigurationError, DataError
from algebra.position import ORIGIN
from algebra.schema import COUNT

# declared type, Arrow type, constants
TYPES: list[tuple[str, pa.DataType, tuple[str, ...]]] = [
    ("BOOLEAN", pa.bool_(), ("true", "false")),
    ("TINYINT", pa.int8(), ("-128", "127")),
    ("SMALLINT", pa.int16(), ("-32768", "32767")),
    ("INTEGER", pa.int32(), ("-2147483648", "2147483647")),
    ("BIGINT", pa.int64(), ("-9223372036854775808", "9223372036854775807")),
    ("UTINYINT", pa.uint8(), ("0", "255")),
    ("USMALLINT", pa.uint16(), ("65535",)),
    ("UINTEGER", pa.uint32(), ("4294967295",)),
    ("UBIGINT", pa.uint64(), ("18446744073709551615",)),
    ("HUGEINT", pa.decimal128(38, 0), ("99999999999999999999999999999999999999",)),
    ("UHUGEINT", pa.decimal128(38, 0), ("99999999999999999999999999999999999999",)),
    ("FLOAT", pa.float32(), ("1.5", "'inf'", "'-inf'", "'nan'")),
    ("DOUBLE", pa.float64(), ("0.1", "1e308", "'inf'", "'-inf'", "'nan'")),
    ("DECIMAL(4,1)", pa.decimal128(4, 1), ("-999.9",)),
    ("DECIMAL(18,3)", pa.decimal128(18, 3), ("123456789012345.678",)),
    ("DECIMAL(38,10)", pa.decimal128(38, 10), ("1234567890123456789012345678.0123456789",)),
    ("VARCHAR", pa.string(), ("''", "'a'", "'ünï\U0001f986'", "repeat('long ', 1000)")),
    ("BLOB", pa.binary(), ("''", "'\\x00\\xFF'")),
    ("DATE", pa.date32(), ("'1582-10-15'", "'9999-12-31'")),
    ("TIME", pa.time64("us"), ("'23:59:59.999999'",)),
    ("TIME_NS", pa.time64("ns"), ("'12:00:00.123456789'",)),
    ("TIMESTAMP", pa.timestamp("us"), ("'2026-01-01 00:00:00.000001'", "'0001-01-01 00:00:00'")),
    ("TIMESTAMP_S", pa.timestamp("s"), ("'2026-01-01 00:00:01'",)),
    ("TIMESTAMP_MS", pa.timestamp("ms"), ("'2026-01-01 00:00:00.001'",)),
    ("TIMESTAMP_NS", pa.timestamp("ns"), ("'2026-01-01 00:00:00.000000001'",)),
    ("TIMESTAMPTZ", pa.timestamp("us", "UTC"), ("'2026-07-01 12:00:00+02'",)),
    ("TIMETZ", pa.string(), ("'12:00:00+02'", "'12:00:00+00'")),
    ("UUID", pa.string(), ("'0da74416-568a-4cdb-b462-c01ff391320a'",)),
    ("ENUM ('low', 'high')", pa.string(), ("'low'", "'high'")),
    ("JSON", pa.string(), ("'{\"a\": [1, null]}'",)),
    ("BIT", pa.string(), ("'10110'",)),
    ("BIGNUM", pa.string(), ("'123456789012345678901234567890123456789012345678901'",)),
]


@pytest.mark.parametrize("capture", ["trigger", "diff"])
def test_every_type_round_trips_through_catalog_fetch_and_changes(
    capture: str, owner: Owner, path: Path, make: MakeAdapter
) -> None:
    columns = ", ".join(f"c{i} {declared}" for i, (declared, _, _) in enumerate(TYPES))
    owner.write(path, f"CREATE TABLE t (id INTEGER, {columns})")
    adapter = make(capture)
    adapter.prepare(["t"])
    inserts = [f"INSERT INTO t (id) VALUES ({i})" for i in range(2)]
    for i, (_, _, constants) in enumerate(TYPES):
        inserts += [f"INSERT INTO t (id, c{i}) VALUES ({100 * i + n}, {c})" for n, c in enumerate(constants)]
    owner.write(path, "BEGIN", *inserts, "COMMIT")

    catalog = adapter.catalog()
    shown = {column.name: column.type for column in catalog.relation("t").columns}
    assert shown == {"id": pa.int32(), **{f"c{i}": type_ for i, (_, type_, _) in enumerate(TYPES)}}
    with adapter.snapshot() as snapshot:
        fetched = snapshot.fetch(whole(catalog, "t")).read_all()
        changed = snapshot.changes(ORIGIN).tables["t"]
    assert {f.name: f.type for f in fetched.schema} == shown
    assert {f.name: f.type for f in changed.schema} == {**shown, "_tx": pa.int32(), COUNT: pa.int64()}
    assert fetched.num_rows == len(inserts)
    # Compared in DuckDB, where NaN equals NaN; the columns are equal as bags, rows kept together.
    names = ", ".join(f'"{name}"' for name in shown)
    with duckdb.connect() as engine:
        engine.register("fetched", fetched)
        engine.register("changed", changed)
        for a, b in (("fetched", "changed"), ("changed", "fetched")):
            left = engine.sql(f"SELECT {names} FROM {a} EXCEPT ALL SELECT {names} FROM {b}").fetchall()
            assert left == []


def test_values_are_those_that_were_written(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(
        path,
        "SET TimeZone = 'America/New_York'",
        "CREATE TABLE t (z TIMESTAMPTZ, u UUID, e ENUM ('low', 'high'), j JSON, h HUGEINT, b BIT, k TIMETZ)",
        "INSERT INTO t VALUES ('2026-07-01 12:00:00+02', '0DA74416-568A-4CDB-B462-C01FF391320A', 'high', "
        "'{\"a\": 1}', -5, '101', '12:00:00+02')",
    )
    adapter = make()
    with adapter.snapshot() as snapshot:
        row = snapshot.fetch(whole(adapter.catalog(), "t")).read_all().to_pylist()[0]
    assert row.pop("z").isoformat() == "2026-07-01T10:00:00+00:00"
    assert {**row, "h": int(row["h"])} == {
        "u": "0da74416-568a-4cdb-b462-c01ff391320a",
        "e": "high",
        "j": '{"a": 1}',
        "h": -5,
        "b": "101",
        "k": "12:00:00+02",
    }


def test_an_integer_beyond_38_digits_is_an_error_and_never_breaks_the_owner(
    owner: Owner, path: Path, make: MakeAdapter
) -> None:
    owner.write(path, "CREATE TABLE t (h HUGEINT)")
    adapter = make()
    adapter.prepare(["t"])
    owner.write(path, "INSERT INTO t VALUES (170141183460469231731687303715884105727)")
    catalog = adapter.catalog()
    with adapter.snapshot() as snapshot:
        with pytest.raises(DataError, match="shop"):
            snapshot.fetch(whole(catalog, "t")).read_all()
        with pytest.raises(DataError, match="shop"):
            snapshot.changes(ORIGIN)


@pytest.mark.parametrize(
    "declared", ["INTEGER[]", "INTEGER[3]", "STRUCT(a INTEGER)", "MAP(VARCHAR, INTEGER)", "INTERVAL"]
)
def test_unsupported_types_are_refused_by_name_unless_excluded(
    owner: Owner, path: Path, make: MakeAdapter, declared: str
) -> None:
    owner.write(path, f"CREATE TABLE t (id INTEGER, odd {declared})", "CREATE TABLE u (n INTEGER)")
    with pytest.raises(ConfigurationError, match=r"shop\.t\.odd has type .*exclude") as caught:
        make().catalog()
    assert "\n" not in str(caught.value)
    with pytest.raises(ConfigurationError, match=r"shop\.t\.odd"):
        make().prepare(["t"])
    assert list(make(relations=("u",)).catalog().relations) == ["u"]
    adapter = make(exclude=["t.odd"])
    adapter.prepare(["t"])
    owner.write(path, "INSERT INTO t (id) VALUES (1)")
    with adapter.snapshot() as snapshot:
        assert snapshot.changes(ORIGIN).tables["t"].column_names == ["id", "_tx", "_count"]
