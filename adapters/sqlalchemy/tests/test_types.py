"""Types of each database: what they are shown as, and what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from adapters.sqlalchemy.adapter import SqlAlchemyAdapter
from adapters.sqlalchemy.tests.conftest import MakeAdapter, on_mariadb, on_postgresql
from adapters.sqlalchemy.tests.harnesses import SqlAlchemyHarness
from adapters.sqlalchemy.tests.support import deltas_after, position_of, rows_of
from algebra.errors import ConfigurationError, DataError

UTC_US = pa.timestamp("us", "UTC")

Typed = tuple[str, pa.DataType, str, Any]
"""Declared type, type shown, a constant in SQL, the value shown."""

POSTGRESQL: tuple[Typed, ...] = (
    ("SMALLINT", pa.int16(), "-32768", -32768),
    ("INTEGER", pa.int32(), "2147483647", 2147483647),
    ("REAL", pa.float32(), "0.5", 0.5),
    ("NUMERIC", pa.decimal128(38, 10), "1.5", Decimal("1.5000000000")),
    ("NUMERIC(5, 2)", pa.decimal128(5, 2), "1.5", Decimal("1.50")),
    ("NUMERIC(5, -2)", pa.decimal128(7, 0), "12300", Decimal("12300")),
    ("CHAR(3)", pa.string(), "'a'", "a  "),
    ("TIME", pa.time64("us"), "'12:34:56.789'", time(12, 34, 56, 789000)),
    ("TIMESTAMPTZ", UTC_US, "'2024-06-01 12:00+02'", datetime(2024, 6, 1, 10, tzinfo=UTC)),
    ("UUID", pa.string(), "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    ("JSONB", pa.string(), """'{"b": [1, null]}'""", '{"b": [1, null]}'),
    ("JSON", pa.string(), """'{ "b":1}'""", '{ "b":1}'),
    ("TEXT[]", pa.string(), "ARRAY['a', NULL, 'b,c']", '{a,NULL,"b,c"}'),
    ("mood", pa.string(), "'sad'", "sad"),
    ("INTERVAL", pa.string(), "'1 day 2 hours'", "1 day 02:00:00"),
    ("INET", pa.string(), "'10.0.0.1/8'", "10.0.0.1/8"),
    ("INT4RANGE", pa.string(), "'[1,5]'", "[1,6)"),
    ("BYTEA", pa.binary(), r"'\x00ff'", b"\x00\xff"),
)
MARIADB: tuple[Typed, ...] = (
    ("TINYINT", pa.int8(), "-128", -128),
    ("TINYINT UNSIGNED", pa.uint8(), "255", 255),
    ("MEDIUMINT", pa.int32(), "-8388608", -8388608),
    ("INT UNSIGNED", pa.uint32(), "4294967295", 4294967295),
    ("BIGINT UNSIGNED", pa.uint64(), "18446744073709551615", 2**64 - 1),
    ("BOOLEAN", pa.bool_(), "TRUE", True),
    ("FLOAT", pa.float32(), "16777215", 16777215.0),
    ("CHAR(3)", pa.string(), "'a'", "a"),
    ("ENUM('red', 'Red, too')", pa.string(), "'Red, too'", "Red, too"),
    ("SET('x', 'y')", pa.string(), "'y,x'", "x,y"),
    ("JSON", pa.string(), """'{"a": 1}'""", '{"a": 1}'),
    ("TIME", pa.string(), "'-100:30:00'", "-100:30:00"),
    ("YEAR", pa.int16(), "2024", 2024),
    ("BIT(10)", pa.uint64(), "b'1000000001'", 513),
    ("DATE", pa.date32(), "'2024-02-29'", date(2024, 2, 29)),
    ("TIMESTAMP(6)", UTC_US, "'2024-06-01 10:00:00.000001'", datetime(2024, 6, 1, 10, 0, 0, 1, tzinfo=UTC)),
    ("VARBINARY(9)", pa.binary(), "X'00FF'", b"\x00\xff"),
)
SQLITE: tuple[Typed, ...] = (
    ("INT", pa.int64(), "9223372036854775807", 2**63 - 1),
    ("VARCHAR(5)", pa.string(), "'longer than five'", "longer than five"),
    ("DOUBLE", pa.float64(), "1.5", 1.5),
    ("NUMERIC(8, 3)", pa.decimal128(8, 3), "1.5", Decimal("1.500")),
    ("TIME", pa.time64("us"), "'12:34:56'", time(12, 34, 56)),
    ("DATETIME", pa.timestamp("us"), "'2024-06-01 10:00:00'", datetime(2024, 6, 1, 10)),
)


def _check(database: SqlAlchemyHarness, make: MakeAdapter, typed: tuple[Typed, ...]) -> None:
    """All in one table: loaded when it is prepared, and found when they come and go."""
    columns = ", ".join(f"c{i} {declared}" for i, (declared, *_) in enumerate(typed))
    constants = ", ".join(constant for _, _, constant, _ in typed)
    database.execute(f"CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY, {columns})")
    database.execute(f"INSERT INTO t VALUES (1, {constants})")
    adapter = make()
    shown = adapter.catalog().relation("t").columns[1:]
    assert [column.type for column in shown] == [type_ for _, type_, _, _ in typed]
    adapter.prepare(["t"])
    values = tuple(value for *_, value in typed)
    assert rows_of(adapter, "t") == {(1, *values): 1}
    before = position_of(adapter)
    database.execute(f"INSERT INTO t VALUES (2, {constants})", "DELETE FROM t WHERE id = 1")
    assert deltas_after(adapter, before) == [{"t": {(1, *values): -1, (2, *values): 1}}]


@on_postgresql
def test_types_of_postgresql(database: SqlAlchemyHarness, make: MakeAdapter) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    _check(database, make, POSTGRESQL)
    database.execute("ALTER TYPE mood ADD VALUE 'mad'")
    database.execute("CREATE TABLE of_money (m MONEY)")
    with pytest.raises(ConfigurationError, match=r"of_money\.m has type MONEY.*exclude"):
        make().prepare(["of_money"])


@on_mariadb
def test_types_of_mariadb(database: SqlAlchemyHarness, make: MakeAdapter) -> None:
    _check(database, make, MARIADB)


def test_types_of_sqlite(database: SqlAlchemyHarness, make: MakeAdapter) -> None:
    _check(database, make, SQLITE)


def _unfit(database: SqlAlchemyHarness, adapter: SqlAlchemyAdapter, values: dict[str, str]) -> Iterator[str]:
    for column, constant in values.items():
        database.execute(f"UPDATE t SET {column} = {constant}")
        with pytest.raises(DataError, match=r"shop") as caught:
            position_of(adapter)
        yield str(caught.value)
        database.execute(f"UPDATE t SET {column} = NULL")
        position_of(adapter)


@on_postgresql
def test_values_that_do_not_fit_in_postgresql(database: SqlAlchemyHarness, make: MakeAdapter) -> None:
    database.execute(
        "CREATE TABLE t (d DATE, s TIMESTAMP, n NUMERIC, m NUMERIC(5, 2))", "INSERT INTO t VALUES (NULL)"
    )
    adapter = make()
    adapter.prepare(["t"])
    unfit = {"d": "'infinity'", "s": "'20000-01-01'", "n": "1e-11", "m": "'NaN'"}
    messages = list(_unfit(database, adapter, unfit))
    assert all("\n" not in message for message in messages)
    assert "shop.t.n has a value that is no decimal128(38, 10)" in messages[2]


@on_mariadb
def test_values_that_do_not_fit_in_mariadb(database: SqlAlchemyHarness, make: MakeAdapter) -> None:
    database.execute("CREATE TABLE t (d DATE, b BOOLEAN)", "INSERT INTO t VALUES (NULL, NULL)")
    adapter = make()
    adapter.prepare(["t"])
    messages = list(_unfit(database, adapter, {"d": "'0000-00-00'", "b": "7"}))
    assert "shop.t.d has a value that is no date32" in messages[0]
    assert "shop.t.b has a value that is no bool: 7 is neither 0 nor 1" in messages[1]


@on_mariadb
def test_ugly_names_of_mariadb(database: SqlAlchemyHarness, make: MakeAdapter) -> None:
    """The kit's names, but for those that MariaDB refuses, and ticks, which SQLAlchemy reads wrongly."""
    names = [
        "select", "two words", 'quo"te', "apo'strophe", "x; DROP TABLE y; --", "Ünï 表", "1st", "per%cent",
        "ques?tion", ":colon", "$1", "{brace}", "back\\slash", "dot.ted", "[bracket]", " space", "c0",
    ]  # fmt: skip
    columns = ", ".join(f"{database.quote(name)} INTEGER" for name in names)
    for name in names:
        key = f"PRIMARY KEY ({database.quote(name)})"
        database.execute(f"CREATE TABLE {database.quote(name)} ({columns}, {key})")
        values = ", ".join(map(str, range(len(names))))
        database.execute(f"INSERT INTO {database.quote(name)} VALUES ({values})")
    adapter = make()
    adapter.prepare(names)
    for name in names:
        assert rows_of(adapter, name) == {tuple(range(len(names))): 1}
