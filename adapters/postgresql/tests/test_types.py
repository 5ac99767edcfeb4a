"""Values that only PostgreSQL has, and values that are refused in fetch and in changes alike."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from adapters.conformance.queries import select, whole
from adapters.postgresql.tests.conftest import CAPTURES, MakeAdapter, Sql
from adapters.postgresql.tests.support import Follower
from algebra.errors import ConfigurationError, DataError
from algebra.local_view import Keys

pytestmark = pytest.mark.parametrize("capture", CAPTURES)


REFUSED = (
    ("numeric", "'NaN'"),
    ("numeric(8,2)", "'NaN'"),
    ("numeric", "'Infinity'"),
    ("numeric", "0.00000000001"),
    ("date", "'infinity'"),
    ("date", "'0044-03-15 BC'"),
    ("timestamp", "'-infinity'"),
    ("timestamp", "'12024-01-01'"),
    ("timestamptz", "'infinity'"),
)


def test_values_that_do_not_fit_are_refused(capture: str, sql: Sql, make: MakeAdapter) -> None:
    names = [f"t{i}" for i in range(len(REFUSED))]
    sql(*(f"CREATE TABLE {name} (v {kind})" for name, (kind, _) in zip(names, REFUSED, strict=True)))
    adapter = make(capture)
    adapter.prepare(names)
    at = Follower(adapter).position
    catalog = adapter.catalog()
    for name, (_, value) in zip(names, REFUSED, strict=True):
        sql(f"INSERT INTO {name} VALUES ({value})")
        with adapter.snapshot() as snapshot:
            with pytest.raises(DataError, match=f"{name}.v") as changed:
                snapshot.changes(at)
            with pytest.raises(DataError, match=f"{name}.v") as fetched:
                snapshot.fetch(whole(catalog, name)).read_all()
            for caught in (changed, fetched):
                assert "v has a " in caught.value.message
                assert value.strip("'") not in caught.value.message, "others read no value"
            at = snapshot.position  # past it


def test_shown_types(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql(
        "CREATE TYPE mood AS ENUM ('sad', 'glad')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE DOMAIN price AS numeric(10, 2) CHECK (value >= 0)",
        "CREATE TABLE item (n numeric, big numeric(40, 2) , p price, t time, m mood, c pair, ms mood[],"
        " g int GENERATED ALWAYS AS (length(x)) STORED, x text, neg numeric(3, -2), cash money)",
    )
    adapter = make(capture)
    with pytest.raises(ConfigurationError, match=r"item.big has type numeric\(40,2\).*exclude"):
        adapter.catalog()
    adapter = make(capture, exclude=["item.big", "item.cash"])
    shown = {column.name: column.type for column in adapter.catalog().relation("item").columns}
    expected = {
        "n": pa.decimal128(38, 10), "p": pa.decimal128(10, 2), "t": pa.time64("us"), "m": pa.string(),
        "c": pa.string(), "ms": pa.string(), "g": pa.int32(), "x": pa.string(), "neg": pa.decimal128(5, 0),
    }  # fmt: skip
    if capture == "log":
        del expected["g"]  # logical decoding does not send generated columns
    assert shown == expected
    adapter.prepare(["item"])
    follower = Follower(adapter)
    sql("INSERT INTO item (n, p, t, m, c, ms, x, neg, big) VALUES"
        " (1.5, 2, '23:59:59.999999', 'sad', '(1,\"a,b\")', '{sad,glad}', 'four', 12345, 1), (DEFAULT,"
        " NULL, '00:00',"
        " 'glad', NULL, '{}', NULL, -100, NULL)")  # fmt: skip
    sql(
        "UPDATE item SET n = n * 2, t = t - interval '1 second'",
        "DELETE FROM item WHERE m = 'glad'",
        "TRUNCATE item",
    )
    follower.follow()
    assert len(follower.entries) == 4
    assert {row[0] for row in follower.entries[0]["item"]} == {Decimal("1.5000000000"), None}


def test_text_compares_by_its_bytes(capture: str, sql: Sql, make: MakeAdapter) -> None:
    sql(
        "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE TABLE item (id int PRIMARY KEY, loose text COLLATE nocase,"
        ' plain text COLLATE "C.utf8", fixed char(4))',
        "INSERT INTO item VALUES (1, 'a', 'a', 'a'), (2, 'A', 'A', 'A'), (3, 'a', 'A', 'a')",
    )
    adapter = make(capture)
    catalog = adapter.catalog()
    with adapter.snapshot() as snapshot:
        for column in ("loose", "plain", "fixed"):
            query = select(catalog, {"i": "item"}, [("i", "id"), ("i", column)])
            keys = Keys((query.columns[1].name,), pa.table({query.columns[1].name: ["a", "a ", "b\0"]}))
            found = snapshot.fetch(query, keys).read_all()
            expected = {"loose": [1, 3], "plain": [1], "fixed": [1, 3]}[column]
            assert sorted(found.column(0).to_pylist()) == expected, column
        joined = select(
            catalog,
            {"a": "item", "b": "item"},
            [("a", "id"), ("b", "id")],
            joins=[(("a", "loose"), ("b", "plain"))],
        )
        pairs = {tuple(row.values()) for row in snapshot.fetch(joined).read_all().to_pylist()}
    assert pairs == {(1, 1), (3, 1), (2, 2), (2, 3)}


def test_keys_use_an_index(capture: str, sql: Sql, make: MakeAdapter) -> None:
    """A key fetch of a large table does not read it: each type's comparison is one an index serves."""
    from adapters.postgresql.catalog import read_tables
    from adapters.postgresql.connection import Session
    from adapters.postgresql.fetch import Statement

    sql(
        "CREATE TABLE item (i int2, t text, u uuid, n numeric(10, 2), d timestamptz)",
        "INSERT INTO item SELECT i % 30000, i::text, gen_random_uuid(), i, now() FROM"
        " generate_series(1, 20000) i",
        *(f"CREATE INDEX ON item ({column})" for column in "itund"),
        "ANALYZE item",
    )
    adapter = make(capture)
    catalog = adapter.catalog()
    session = Session("shop", adapter._options.conninfo)
    tables = read_tables(session, adapter._options, None)
    samples = {"i": 5, "t": "5", "u": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "n": Decimal("5.00")}
    for column, value in samples.items():
        query = select(catalog, {"x": "item"}, [("x", column)])
        name, type_ = query.columns[0].name, query.columns[0].type
        keys = Keys((name,), pa.table({name: pa.array([value], type_)}))
        ((statement, parameters),) = Statement(tables, query).by_keys(keys)
        assert parameters is not None
        literal = "ARRAY[" + ", ".join(f"'{v}'" for v in parameters.column(0).to_pylist()[0]) + "]"
        plan = session.rows("EXPLAIN " + statement.replace("$1", literal))
        assert any("Index" in line for (line,) in plan), (column, plan)
    session.close()
