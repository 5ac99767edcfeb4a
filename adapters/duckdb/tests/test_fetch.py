"""Answers: joins, keys and predicates over one snapshot."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from adapters.duckdb.adapter import DuckDBAdapter
from adapters.duckdb.tests.conftest import MakeAdapter
from adapters.duckdb.tests.owner import Owner
from adapters.duckdb.tests.views import changes_after, deltas, rows, whole
from adapters.rate_limit import Footprint
from algebra.errors import SchemaChangedError, SourceUnavailableError
from algebra.expressions import Call, ColumnRef, Literal, Operator
from algebra.local_view import EquiJoin, Keys, LocalView, Occurrence, OutputColumn
from algebra.position import ORIGIN

UGLY_TABLE = 'od"d; DROP TABLE x --'
UGLY_COLUMN = "select \"'ü"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.fixture
def adapter(owner: Owner, path: Path, make: MakeAdapter) -> DuckDBAdapter:
    owner.write(
        path,
        "CREATE TABLE orders (id INTEGER PRIMARY KEY, customer VARCHAR)",
        "CREATE TABLE lines (ord INTEGER, qty INTEGER)",
        "INSERT INTO orders VALUES (1, 'ann'), (2, 'bob'), (3, NULL)",
        "INSERT INTO lines VALUES (1, 10), (1, 10), (2, 20), (NULL, 30), (9, NULL)",
    )
    return make()


JOIN = LocalView(
    "v",
    "shop",
    (Occurrence("o", "orders"), Occurrence("l", "lines")),
    (EquiJoin(ColumnRef("o", "id"), ColumnRef("l", "ord")),),
    (),
    (
        OutputColumn("order", ColumnRef("o", "id"), pa.int32()),
        OutputColumn("who", ColumnRef("o", "customer"), pa.string()),
        OutputColumn("qty", ColumnRef("l", "qty"), pa.int32()),
    ),
)


def fetch(adapter: DuckDBAdapter, query: LocalView, keys: Keys | None = None) -> Counter[tuple[Any, ...]]:
    with adapter.snapshot() as snapshot:
        table = snapshot.fetch(query, keys).read_all()
    assert table.schema == query.arrow
    return rows(table)


def test_joins_keep_duplicates_and_null_matches_nothing(adapter: DuckDBAdapter) -> None:
    assert fetch(adapter, JOIN) == Counter({(1, "ann", 10): 2, (2, "bob", 20): 1})


def test_a_self_join(adapter: DuckDBAdapter) -> None:
    query = LocalView(
        "v",
        "shop",
        (Occurrence("a", "lines"), Occurrence("b", "lines")),
        (EquiJoin(ColumnRef("a", "ord"), ColumnRef("b", "ord")),),
        (),
        (
            OutputColumn("x", ColumnRef("a", "qty"), pa.int32()),
            OutputColumn("y", ColumnRef("b", "ord"), pa.int32()),
        ),
    )
    assert fetch(adapter, query) == Counter({(10, 1): 4, (20, 2): 1, (None, 9): 1})


def test_keys_restrict_by_one_or_several_columns(adapter: DuckDBAdapter) -> None:
    one = Keys(("order",), pa.table({"order": pa.array([2, 7], pa.int32())}))
    assert fetch(adapter, JOIN, one) == Counter({(2, "bob", 20): 1})
    two = Keys(("who", "order"), pa.table({"who": ["ann", "bob"], "order": pa.array([1, 1], pa.int32())}))
    assert fetch(adapter, JOIN, two) == Counter({(1, "ann", 10): 2})
    none = Keys(("order",), pa.table({"order": pa.array([], pa.int32())}))
    assert fetch(adapter, JOIN, none) == Counter()


def test_many_keys(adapter: DuckDBAdapter, owner: Owner, path: Path) -> None:
    owner.write(path, "INSERT INTO lines SELECT i, -1 FROM range(1000, 200000) r(i)")
    keys = Keys(("ord",), pa.table({"ord": pa.array(range(500, 150_000, 3), pa.int32())}))
    with adapter.snapshot() as snapshot:
        query = whole(adapter._reader.read(snapshot._connection).catalog(None), "lines")  # type: ignore[attr-defined]
        table = snapshot.fetch(query, keys).read_all()
    expected = {n for n in range(500, 150_000, 3) if n >= 1000}
    assert sorted(table["ord"].to_pylist()) == sorted(expected)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (Call(Operator.EQ, (ColumnRef("r", "id"), Literal(2, pa.int64()))), {2}),
        (Call(Operator.NE, (ColumnRef("r", "customer"), Literal("ann", pa.string()))), {2}),
        (Call(Operator.LT, (ColumnRef("r", "id"), Literal(2.5, pa.float64()))), {1, 2}),
        (Call(Operator.IS_NULL, (ColumnRef("r", "customer"),)), {3}),
        (Call(Operator.NOT, (Call(Operator.IS_NULL, (ColumnRef("r", "customer"),)),)), {1, 2}),
        (
            Call(
                Operator.OR,
                (
                    Call(Operator.GE, (ColumnRef("r", "id"), Literal(3, pa.int32()))),
                    Call(
                        Operator.AND,
                        (
                            Call(Operator.LE, (ColumnRef("r", "id"), Literal(1, pa.int32()))),
                            Call(Operator.GT, (ColumnRef("r", "customer"), Literal("a", pa.string()))),
                        ),
                    ),
                ),
            ),
            {1, 3},
        ),
        (
            Call(
                Operator.IN,
                (
                    ColumnRef("r", "customer"),
                    Literal("bob", pa.string()),
                    Literal("x' OR '1'='1", pa.string()),
                ),
            ),
            {2},
        ),
        (Call(Operator.EQ, (ColumnRef("r", "customer"), Literal(None, pa.string()))), set()),
    ],
)
def test_predicates_are_decided_as_written(
    adapter: DuckDBAdapter, predicate: Call, expected: set[int]
) -> None:
    query = whole(adapter.catalog(), "orders", predicate)
    assert {row[0] for row in fetch(adapter, query)} == expected


def test_ugly_identifiers(owner: Owner, path: Path, make: MakeAdapter) -> None:
    name = f"odd schema.{UGLY_TABLE}"
    table = f'"odd schema".{quoted(UGLY_TABLE)}'
    owner.write(
        path,
        'CREATE SCHEMA "odd schema"',
        f'CREATE TABLE {table} ({quoted(UGLY_COLUMN)} VARCHAR, "tx" INTEGER)',
    )
    adapter = make()
    adapter.prepare([name])
    owner.write(path, f"INSERT INTO {table} VALUES ('it''s', 1)", f"UPDATE {table} SET tx = 2")
    changes, _ = changes_after(adapter, ORIGIN)
    assert deltas(changes) == [{name: {("it's", 1): 1}}, {name: {("it's", 1): -1, ("it's", 2): 1}}]
    keys = Keys((UGLY_COLUMN,), pa.table({UGLY_COLUMN: ["it's"]}))
    assert fetch(adapter, whole(adapter.catalog(), name), keys) == Counter({("it's", 2): 1})
    adapter.remove()


def test_text_compares_by_its_bytes_whatever_the_collation(
    owner: Owner, path: Path, make: MakeAdapter
) -> None:
    owner.write(path, "CREATE TABLE t (s VARCHAR COLLATE NOCASE)", "INSERT INTO t VALUES ('a'), ('A'), ('b')")
    adapter = make()
    query = whole(adapter.catalog(), "t", Call(Operator.NE, (ColumnRef("r", "s"), Literal("B", pa.string()))))
    assert fetch(adapter, query) == Counter([("a",), ("A",), ("b",)])
    assert fetch(adapter, query, Keys(("s",), pa.table({"s": ["A"]}))) == Counter([("A",)])


def test_keys_of_text_shown_types(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(
        path,
        "CREATE TABLE t (u UUID, e ENUM ('x', 'y'))",
        "INSERT INTO t VALUES ('0da74416-568a-4cdb-b462-c01ff391320a', 'x'), (NULL, 'y')",
    )
    adapter = make()
    query = whole(adapter.catalog(), "t")
    uuids = Keys(("u",), pa.table({"u": ["0da74416-568a-4cdb-b462-c01ff391320a", "no uuid"]}))
    assert len(fetch(adapter, query, uuids)) == 1
    assert fetch(adapter, query, Keys(("e",), pa.table({"e": ["y", "z"]}))) == Counter([(None, "y")])


def test_answers_can_be_read_in_turns(adapter: DuckDBAdapter, owner: Owner, path: Path) -> None:
    owner.write(path, "INSERT INTO lines SELECT 1000 + i, i FROM range(300000) r(i)")
    catalog = adapter.catalog()
    with adapter.snapshot() as snapshot:
        first = snapshot.fetch(whole(catalog, "lines"))
        second = snapshot.fetch(whole(catalog, "lines"))
        total = [0, 0]
        for a, b in zip(first, second, strict=True):
            total[0] += a.num_rows
            total[1] += b.num_rows
    assert total == [300_005, 300_005]


def test_an_answer_left_unread_does_not_keep_the_owner_out(
    adapter: DuckDBAdapter, owner: Owner, path: Path
) -> None:
    owner.write(path, "INSERT INTO lines SELECT i, i FROM range(500000) r(i)")
    with adapter.snapshot() as snapshot:
        reader = snapshot.fetch(whole(adapter._reader.read(snapshot._connection).catalog(None), "lines"))  # type: ignore[attr-defined]
        reader.read_next_batch()
    owner.write(path, "DELETE FROM lines")
    with pytest.raises(SourceUnavailableError, match="before its answer was read"):
        reader.read_all()


def test_a_local_view_that_no_longer_fits_is_refused(
    adapter: DuckDBAdapter, owner: Owner, path: Path
) -> None:
    owner.write(path, "ALTER TABLE lines ALTER qty TYPE BIGINT")
    with pytest.raises(SchemaChangedError, match=r"shop\.lines\.qty is now int64"):
        fetch(adapter, JOIN)
    owner.write(path, "DROP TABLE lines")
    with pytest.raises(SchemaChangedError, match="no longer shows relation 'lines'"):
        fetch(adapter, JOIN)


def test_an_error_of_the_caller_stays_the_callers(adapter: DuckDBAdapter) -> None:
    with pytest.raises(duckdb.Error), adapter.snapshot():
        duckdb.sql("SELECT nonsense")


def test_a_product_without_end_is_given_up(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(path, "CREATE TABLE t AS SELECT range AS i FROM range(10000)")
    for capture in ("trigger", "diff"):
        adapter = make(capture=capture, statement_timeout=0.2)
        adapter.prepare(["t"])
        aliases = ("a", "b", "c", "d")
        # Nothing comes out of it: it is ended from outside.
        lost = Call(Operator.EQ, (ColumnRef("d", "i"), ColumnRef("a", "i")))
        query = LocalView(
            "v",
            "shop",
            tuple(Occurrence(alias, "t") for alias in aliases),
            (),
            (lost,),
            tuple(OutputColumn(alias, ColumnRef(alias, "i"), pa.int64()) for alias in aliases),
        )
        with adapter.snapshot() as snapshot, pytest.raises(SourceUnavailableError, match="statement_timeout"):
            sum(batch.num_rows for batch in snapshot.fetch(query))
        # What has an end may take longer than that where much else goes on.
        adapter._options = replace(adapter._options, footprint=Footprint(60.0, 0.0))
        assert sum(fetch(adapter, whole(adapter.catalog(), "t")).values()) == 10000
        adapter.close()
