"""Declared types: the same Arrow value from a base row and from its change, or a DataError."""

from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from adapters.sqlite.tests.support import Writer, bag, captured, changes, contents, fetch, net, view_of
from adapters.sqlite.types import codec_for
from algebra.errors import DataError
from algebra.position import ORIGIN


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("INTEGER", pa.int64()),
        ("BIGINT", pa.int64()),
        ("unsigned big int", pa.int64()),
        ("REAL", pa.float64()),
        ("double precision", pa.float64()),
        ("TEXT", pa.string()),
        ("VARCHAR(20)", pa.string()),
        ("character varying (20)", pa.string()),
        ("CLOB", pa.string()),
        ("BLOB", pa.binary()),
        ("BOOLEAN", pa.bool_()),
        ("DATE", pa.date32()),
        ("DATETIME", pa.timestamp("us")),
        ("TIMESTAMP(6)", pa.timestamp("us")),
        ("TIMESTAMP WITHOUT TIME ZONE", pa.timestamp("us")),
        ("TIMESTAMPTZ", pa.timestamp("us", "UTC")),
        ("timestamp(6) with time zone", pa.timestamp("us", "UTC")),
        ("DECIMAL(12, 2)", pa.decimal128(12, 2)),
        ("NUMERIC(9)", pa.decimal128(9, 0)),
        ("DECIMAL(50,4)", pa.decimal256(50, 4)),
        ("NUMERIC", pa.float64()),
        ("DECIMAL(2,5)", pa.float64()),
        ("", pa.string()),
        (None, pa.string()),
        ("JSON", pa.string()),
    ],
)
def test_declared_types(declared: str | None, expected: pa.DataType) -> None:
    assert codec_for(declared).arrow == expected


VALUES: list[tuple[str, dict[str, Any]]] = [
    ("INTEGER", {"1": 1, "-9223372036854775808": -(2**63), "9223372036854775807": 2**63 - 1, "'12'": 12}),
    ("REAL", {"1": 1.0, "0.1": 0.1, "1e308": 1e308, "9e999": float("inf"), "-0.0": 0.0, "5e-324": 5e-324}),
    ("NUMERIC", {"1": 1.0, "'2.5'": 2.5, "9007199254740992": 2.0**53}),
    ("TEXT", {"''": "", "'née 漢字 🙂'": "née 漢字 🙂", "1": "1", "'a' || char(0) || 'b'": "a\0b"}),
    ("BLOB", {"x''": b"", "x'00ff10'": b"\x00\xff\x10"}),
    ("BOOLEAN", {"1": True, "0": False, "TRUE": True}),
    (
        "DECIMAL(12, 2)",
        {"12.34": "12.34", "0.1 + 0.2": "0.30", "5": "5.00", "'7.10'": "7.10", "-1.5": "-1.50"},
    ),
    ("DECIMAL(18, 0)", {"999999999999999999": "999999999999999999", "1e15": "1000000000000000"}),
    ("DATE", {"'2024-02-29'": date(2024, 2, 29), "'0001-01-01'": date(1, 1, 1)}),
    (
        "TIMESTAMP",
        {
            "'2024-02-29 13:14:15'": datetime(2024, 2, 29, 13, 14, 15),
            "'2024-02-29T13:14:15.25'": datetime(2024, 2, 29, 13, 14, 15, 250000),
            "'2024-02-29 13:14:15.000001'": datetime(2024, 2, 29, 13, 14, 15, 1),
            "'2024-02-29'": datetime(2024, 2, 29),
            "'2024-02-29 13:14'": datetime(2024, 2, 29, 13, 14),
        },
    ),
    (
        "TIMESTAMP WITH TIME ZONE",
        {
            "'2024-02-29 13:14:15Z'": datetime(2024, 2, 29, 13, 14, 15, tzinfo=UTC),
            "'2024-02-29T23:30:00.5-02:30'": datetime(2024, 3, 1, 2, 0, 0, 500000, tzinfo=UTC),
            "'2024-02-29 13:14:15'": datetime(2024, 2, 29, 13, 14, 15, tzinfo=UTC),
        },
    ),
    ("", {"'x'": "x", "7": "7", "0.1": "0.1", "1e100": "1.0e+100"}),
]


def expected_value(declared: str, value: Any) -> Any:
    return Decimal(value) if declared.startswith("DECIMAL") else value


@pytest.mark.parametrize(("declared", "values"), VALUES, ids=[declared or "none" for declared, _ in VALUES])
def test_rows_and_changes_carry_the_same_values(
    path: Path, writer: Writer, declared: str, values: dict[str, Any]
) -> None:
    expected = Counter((i, expected_value(declared, v)) for i, v in enumerate(values.values()))
    expected[(-1, None)] = 1
    with captured(path, writer, f"CREATE TABLE t (i INTEGER PRIMARY KEY, v {declared})") as adapter:
        writer("INSERT INTO t VALUES (-1, NULL)")
        writer(*[f"INSERT INTO t VALUES ({i}, {literal})" for i, literal in enumerate(values)])
        assert contents(adapter, "t") == expected
        assert net(changes(adapter, ORIGIN), "t") == expected
        writer("UPDATE t SET v = v", "DELETE FROM t")
        run = changes(adapter, ORIGIN)
        assert net(run, "t") == {}
        assert run.tables["t"].schema.field("v").type == codec_for(declared).arrow


@pytest.mark.parametrize("declared", [declared for declared, _ in VALUES])
def test_columns_of_nulls_and_empty_tables_keep_their_type(path: Path, writer: Writer, declared: str) -> None:
    with captured(path, writer, f"CREATE TABLE t (v {declared})") as adapter:
        query = view_of(adapter, {"t": "t"})
        assert fetch(adapter, query).num_rows == 0
        writer("INSERT INTO t VALUES (NULL), (NULL)")
        assert bag(fetch(adapter, query)) == Counter({(None,): 2})
        assert changes(adapter, ORIGIN).tables["t"]["v"].null_count == 2


@pytest.mark.parametrize(
    ("declared", "literal"),
    [
        ("INTEGER", "1.5"),
        ("INTEGER", "'twelve'"),
        ("INTEGER", "x'01'"),
        ("REAL", "'much'"),
        ("NUMERIC", "9007199254740993"),
        ("NUMERIC", "'much'"),
        ("TEXT", "x'41'"),
        ("TEXT", "CAST(x'ff' AS TEXT)"),
        ("BLOB", "'text'"),
        ("BLOB", "1"),
        ("BOOLEAN", "2"),
        ("BOOLEAN", "'yes'"),
        ("DECIMAL(6, 2)", "1.234"),
        ("DECIMAL(6, 2)", "123456"),
        ("DECIMAL(6, 2)", "'much'"),
        ("DATE", "'29.02.2024'"),
        ("DATE", "'2023-02-29'"),
        ("DATE", "'2024-02-29 00:00:00'"),
        ("DATE", "20240229"),
        ("TIMESTAMP", "1709214855"),
        ("TIMESTAMP", "'2024-02-29 13:14:15Z'"),
        ("TIMESTAMP", "'2024-02-29 13:14:15.0000001'"),
        ("TIMESTAMPTZ", "'2024-02-29 13:14:15+0100'"),
        ("", "x'41'"),
    ],
)
@pytest.mark.parametrize("rows_before", [0, 9000], ids=["first batch", "later batch"])
def test_a_value_of_another_type_is_an_error_that_names_its_column(
    path: Path, writer: Writer, declared: str, literal: str, rows_before: int
) -> None:
    with captured(path, writer, f"CREATE TABLE t (v {declared})", "CREATE TABLE other (n INT)") as adapter:
        query = view_of(adapter, {"t": "t"})
        writer(
            "BEGIN",
            f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows_before}) "
            f"INSERT INTO t SELECT NULL FROM n WHERE {rows_before} > 0",
            f"INSERT INTO t VALUES ({literal})",
            "COMMIT",
        )
        for attempt in (lambda: fetch(adapter, query), lambda: changes(adapter, ORIGIN)):
            with pytest.raises(DataError, match=r"shop\.t\.v") as caught:
                attempt()
            told = f"shop.t.v holds a value that is not {query.arrow.field(0).type}"
            assert caught.value.message == told, "others read no value"
        # The error is of those rows alone.
        assert fetch(adapter, view_of(adapter, {"o": "other"})).num_rows == 0


def test_a_generated_column_is_a_column(path: Path, writer: Writer) -> None:
    schema = (
        "CREATE TABLE t (a INT, twice INT AS (a * 2) VIRTUAL, thrice REAL AS (a * 3.0) STORED)",
        "CREATE TABLE s (a INTEGER PRIMARY KEY, b TEXT) STRICT",
    )
    with captured(path, writer, *schema) as adapter:
        writer(
            "INSERT INTO t VALUES (1), (2)", "UPDATE t SET a = 5 WHERE a = 2", "INSERT INTO s VALUES (1, 'x')"
        )
        assert contents(adapter, "t") == Counter([(1, 2, 3.0), (5, 10, 15.0)])
        run = changes(adapter, ORIGIN)
        assert net(run, "t") == contents(adapter, "t")
        assert net(run, "s") == contents(adapter, "s")


@pytest.mark.parametrize("encoding", ["UTF-8", "UTF-16le", "UTF-16be"])
def test_the_databases_own_encoding_does_not_matter(path: Path, writer: Writer, encoding: str) -> None:
    schema = (f"PRAGMA encoding = '{encoding}'", "CREATE TABLE t (v TEXT UNIQUE, w TEXT)")
    with captured(path, writer, *schema) as adapter:
        writer("INSERT INTO t VALUES ('née 🙂', ''), ('b', NULL)", "REPLACE INTO t VALUES ('b', '漢字')")
        expected = Counter([("née 🙂", ""), ("b", "漢字")])
        assert contents(adapter, "t") == expected
        run = changes(adapter, ORIGIN)
        assert net(run, "t") == expected
        assert len(run) == 2
        query = view_of(adapter, {"t": "t"}, {"v": ("t", "v")})
        assert bag(fetch(adapter, query, {"v": pa.array(["née 🙂", "B"])})) == Counter([("née 🙂",)])
