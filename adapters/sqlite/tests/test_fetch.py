"""Keyed and joined fetches compare by value and give the same answer whichever way they look up."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from adapters.rate_limit import Footprint
from adapters.sqlite import lookup
from adapters.sqlite.adapter import SqliteAdapter
from adapters.sqlite.connection import Connection, Database, Result
from adapters.sqlite.rows import read_rows
from adapters.sqlite.schema import read_tables
from adapters.sqlite.sql import FetchBuilder
from adapters.sqlite.tests.support import Writer, adapter_on, bag, fetch, view_of
from algebra.errors import DataError, RefusedError, SchemaChangedError, SourceUnavailableError
from algebra.expressions import Call, ColumnRef, Expression, Literal, Operator
from algebra.local_view import Keys, LocalView


@contextmanager
def database(path: Path, writer: Writer, *statements: str) -> Iterator[SqliteAdapter]:
    writer(*statements)
    with adapter_on(path) as adapter:
        yield adapter


KEYS: list[tuple[str, list[str], pa.Array, set[int]]] = [
    ("INTEGER", ["1", "-9223372036854775808", "3", "NULL"], pa.array([1, -(2**63), 99]), {0, 1}),
    (
        "REAL",
        ["0.1", "0.30000000000000004", "9e999", "2"],
        pa.array([0.1, 0.3, float("inf"), 2.0]),
        {0, 2, 3},
    ),
    ("REAL", ["1", "2"], pa.array([float("nan"), 2.0]), {1}),
    ("TEXT", ["'a'", "'A'", "'né\"e\\\n'", "'1'", "''"], pa.array(["a", 'né"e\\\n', "", "x"]), {0, 2, 4}),
    ("TEXT COLLATE NOCASE", ["'a'", "'A'", "'b'"], pa.array(["A", "b"]), {1, 2}),
    ("TEXT", ["'12'", "'012'", "'1e1'"], pa.array(["12"]), {0}),
    ("BLOB", ["x'00'", "x''", "x'0000'", "x'ff'"], pa.array([b"\x00", b"", b"\xfe"]), {0, 1}),
    ("BOOLEAN", ["1", "0", "1"], pa.array([True]), {0, 2}),
    ("DATE", ["'2024-02-29'", "'2024-03-01'"], pa.array([date(2024, 2, 29)]), {0}),
    (
        "TIMESTAMP",
        ["'2024-01-01 00:00:00'", "'2024-01-01T00:00:00.000'", "'2024-01-01'", "'2024-01-01 00:00:00.5'"],
        pa.array([datetime(2024, 1, 1)], pa.timestamp("us")),
        {0, 1, 2},
    ),
    (
        "TIMESTAMPTZ",
        ["'2024-01-01 00:00:00Z'", "'2023-12-31T23:00:00.0-01:00'", "'2024-01-01 00:00:00.0001Z'"],
        pa.array([datetime(2024, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")),
        {0, 1},
    ),
    (
        "DECIMAL(10, 2)",
        ["0.1 + 0.2", "0.3", "'0.30'", "3", "0.31"],
        pa.array([Decimal("0.30"), Decimal("3.00")], pa.decimal128(10, 2)),
        {0, 1, 2, 3},
    ),
    ("", ["1", "'1'", "1.5", "'x'"], pa.array(["1", "1.5"]), {0, 1, 2}),
]


@pytest.mark.parametrize("indexed", [True, False], ids=["index", "no index"])
@pytest.mark.parametrize(("declared", "stored", "keys", "expected"), KEYS, ids=[k[0] or "none" for k in KEYS])
def test_keys_of_each_type(
    path: Path,
    writer: Writer,
    declared: str,
    stored: list[str],
    keys: pa.Array,
    expected: set[int],
    indexed: bool,
) -> None:
    statements = [f"CREATE TABLE t (i INTEGER PRIMARY KEY, v {declared})"]
    statements += [f"INSERT INTO t VALUES ({i}, {literal})" for i, literal in enumerate(stored)]
    statements += ["CREATE INDEX by_v ON t (v)"] * indexed
    with database(path, writer, *statements) as adapter:
        query = view_of(adapter, {"t": "t"}, {"i": ("t", "i"), "v": ("t", "v")})
        assert set(fetch(adapter, query, {"v": keys})["i"].to_pylist()) == expected
        # Both ways of looking up, and as a part of a longer key.
        pairs = pa.array([i for i in range(len(stored)) for _ in keys])
        both = {"i": pairs, "v": pa.concat_arrays([keys] * len(stored))}
        assert set(fetch(adapter, query, both)["i"].to_pylist()) == expected
        for select in all_ways(path, query, {"v": keys}):
            assert {row[0] for row in select} == expected


def all_ways(path: Path, query: LocalView, keys: dict[str, pa.Array]) -> Iterator[Counter[tuple[Any, ...]]]:
    wanted = Keys(tuple(keys), pa.table(keys))
    with connected(path) as connection:
        builder = FetchBuilder(query, read_tables(connection))
        first = builder.key_columns(wanted)[0].occurrence
        for select in (builder.by_key(wanted, first), builder.by_scan(wanted)):
            reader = read_rows(connection, select.columns, select.tail, select.parameters, holds=select.holds)
            yield bag(reader.read_all())


@contextmanager
def connected(path: Path) -> Iterator[Connection]:
    database = Database(path)
    try:
        yield database.connect()
    finally:
        database.close()


def test_no_keys_match_nothing(path: Path, writer: Writer) -> None:
    with database(path, writer, "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1), (NULL)") as adapter:
        query = view_of(adapter, {"t": "t"}, {"a": ("t", "a")})
        assert fetch(adapter, query, {"a": pa.array([], pa.int64())}).num_rows == 0


def test_few_and_many_keys_agree_with_a_filter(path: Path, writer: Writer) -> None:
    rnd = random.Random(7)
    rows = [(i, rnd.randrange(300), rnd.choice("abc")) for i in range(3000)]
    values = ", ".join(f"({i}, {k}, '{t}')" for i, k, t in rows)
    statements = [
        "CREATE TABLE t (i INTEGER PRIMARY KEY, k INT, s TEXT)",
        "CREATE INDEX by_k ON t (k)",
        f"INSERT INTO t VALUES {values}",
    ]
    with database(path, writer, *statements) as adapter:
        query = view_of(adapter, {"t": "t"}, {"i": ("t", "i"), "k": ("t", "k"), "s": ("t", "s")})
        for count in (1, 10, 64, 65, 100, 299):
            chosen = rnd.sample(range(400), count)
            found = bag(fetch(adapter, query, {"k": pa.array(chosen)}))
            assert found == Counter(row for row in rows if row[1] in chosen)
            wanted = {(k, rnd.choice("abc")) for k in chosen}
            ks, ss = zip(*wanted, strict=True)
            found = bag(fetch(adapter, query, {"k": pa.array(ks), "s": pa.array(ss)}))
            assert found == Counter(row for row in rows if row[1:] in wanted)


def test_the_way_to_look_up_follows_the_share_of_rows(path: Path, writer: Writer) -> None:
    statements = [
        "CREATE TABLE t (i INTEGER PRIMARY KEY, k INT, plain INT)",
        "CREATE INDEX by_k ON t (k)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000) "
        "INSERT INTO t SELECT i, i % 500, i FROM n",
    ]
    with database(path, writer, *statements) as adapter, connected(path) as connection:
        query = view_of(adapter, {"t": "t"}, {"i": ("t", "i"), "k": ("t", "k"), "p": ("t", "plain")})
        builder = FetchBuilder(query, read_tables(connection))

        def is_scan(column: str, count: int) -> bool:
            keys = Keys((column,), pa.table({column: pa.array(range(count))}))
            return " IN (SELECT" in lookup.keyed_select(connection, builder, keys).tail

        assert [is_scan("k", n) for n in (10, 80, 200)] == [False, False, True]
        assert [is_scan("i", n) for n in (80, 300, 900)] == [False, False, True]
        assert is_scan("p", 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_joins_compare_by_value(path: Path, writer: Writer, reverse: bool) -> None:
    statements = [
        "CREATE TABLE a (x TEXT COLLATE NOCASE, n INT, d DECIMAL(8, 2), at TIMESTAMP)",
        "CREATE TABLE b (y TEXT, m REAL, d DECIMAL(8, 3), at DATETIME)",
        "INSERT INTO a VALUES ('k', 1, 0.1 + 0.2, '2024-01-01'), ('K', 2, 5, '2024-01-01 10:00')",
        "INSERT INTO a VALUES (NULL, NULL, NULL, NULL)",
        "INSERT INTO b VALUES ('k', 1.0, 0.3, '2024-01-01T00:00:00')",
        "INSERT INTO b VALUES ('K', 2.5, 5.001, '2024-01-01 10:00:00.0')",
        "INSERT INTO b VALUES (NULL, NULL, NULL, NULL)",
    ]
    with database(path, writer, *statements) as adapter:
        columns = {"x": ("a", "x"), "y": ("b", "y")}
        for left, right, expected in (
            ("a.x", "b.y", {("k", "k"): 1, ("K", "K"): 1}),
            ("a.n", "b.m", {("k", "k"): 1}),
            ("a.d", "b.d", {("k", "k"): 1}),
            ("a.at", "b.at", {("k", "k"): 1, ("K", "K"): 1}),
        ):
            join = (right, left) if reverse else (left, right)
            query = view_of(adapter, {"a": "a", "b": "b"}, columns, joins=(join,))
            assert bag(fetch(adapter, query)) == Counter(expected)
        with pytest.raises(RefusedError, match="cannot join"):
            fetch(adapter, view_of(adapter, {"a": "a", "b": "b"}, columns, joins=(("a.x", "b.m"),)))


def test_self_joins_and_keys_over_several_occurrences(path: Path, writer: Writer) -> None:
    statements = [
        'CREATE TABLE "select" ("from" INTEGER PRIMARY KEY, "o""f ü" INT)',
        'INSERT INTO "select" VALUES (1, NULL), (2, 1), (3, 1), (4, 2)',
    ]
    with database(path, writer, *statements) as adapter:
        query = view_of(
            adapter,
            {"child": "select", "pa rent": "select"},
            {"c": ("child", "from"), "p": ("pa rent", "from")},
            joins=(('child.o"f ü', "pa rent.from"),),
        )
        assert bag(fetch(adapter, query)) == Counter([(2, 1), (3, 1), (4, 2)])
        keys = {"c": pa.array([2, 3, 4]), "p": pa.array([1, 2, 2])}
        assert bag(fetch(adapter, query, keys)) == Counter([(2, 1), (4, 2)])
        assert bag(fetch(adapter, query, {"p": pa.array([1])})) == Counter([(2, 1), (3, 1)])


def test_duplicates_are_kept(path: Path, writer: Writer) -> None:
    with database(path, writer, "CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1), (1), (2)") as adapter:
        query = view_of(adapter, {"t": "t"}, {"a": ("t", "a")})
        assert bag(fetch(adapter, query, {"a": pa.array([1])})) == Counter({(1,): 2})


def compare(operator: Operator, column: str, *values: Any) -> Call:
    literals = [Literal(value, pa.scalar(value).type) for value in values]
    return Call(operator, (ColumnRef("t", column), *literals))


PREDICATES: list[tuple[Expression, set[int]]] = [
    (compare(Operator.GT, "n", 1), {2}),
    (compare(Operator.NE, "n", 1), {2}),
    (compare(Operator.IN, "n", 1, 2), {1, 2}),
    (compare(Operator.LE, "r", 1.5), {1}),
    (compare(Operator.EQ, "s", "a"), {1}),
    (compare(Operator.IN, "s", "a", "B"), {1}),
    (compare(Operator.EQ, "b", True), {1}),
    (Call(Operator.IS_NULL, (ColumnRef("t", "n"),)), {3}),
    (Call(Operator.NOT, (compare(Operator.EQ, "n", 1),)), {2}),
    (
        Call(Operator.OR, (compare(Operator.EQ, "n", 2), Call(Operator.IS_NULL, (ColumnRef("t", "n"),)))),
        {2, 3},
    ),
]


@pytest.mark.parametrize(("predicate", "expected"), PREDICATES)
def test_predicates_that_sqlite_decides_alike_are_applied(
    path: Path, writer: Writer, predicate: Expression, expected: set[int]
) -> None:
    statements = [
        "CREATE TABLE t (i INT, n INT, r REAL, s TEXT COLLATE NOCASE, b BOOLEAN)",
        "INSERT INTO t VALUES (1, 1, 1.5, 'a', 1), (2, 2, 2.5, 'A', 0), (3, NULL, NULL, NULL, NULL)",
    ]
    with database(path, writer, *statements) as adapter:
        query = view_of(adapter, {"t": "t"}, {"i": ("t", "i")}, predicates=(predicate,))
        assert set(fetch(adapter, query)["i"].to_pylist()) == expected


@pytest.mark.parametrize(
    "predicate",
    [
        compare(Operator.GT, "at", "2024-01-01"),
        compare(Operator.LT, "s", "b"),
        compare(Operator.EQ, "n", 1.5),
        compare(Operator.EQ, "n", "1"),
        Call(Operator.OR, (compare(Operator.EQ, "n", 1), compare(Operator.GT, "at", "2024"))),
    ],
)
def test_other_predicates_are_left_to_the_caller(path: Path, writer: Writer, predicate: Expression) -> None:
    statements = [
        "CREATE TABLE t (i INT, n INT, s TEXT, at TIMESTAMP)",
        "INSERT INTO t VALUES (1, 1, 'a', '2024-01-01T00:00:00')",
    ]
    with database(path, writer, *statements) as adapter:
        query = view_of(adapter, {"t": "t"}, {"i": ("t", "i")}, predicates=(predicate,))
        assert fetch(adapter, query)["i"].to_pylist() == [1]


def test_a_view_on_what_is_no_longer_there_is_refused(path: Path, writer: Writer) -> None:
    with database(path, writer, "CREATE TABLE t (a INT, b INT)") as adapter:
        query = view_of(adapter, {"t": "t"})
        writer("ALTER TABLE t DROP COLUMN b")
        with pytest.raises(SchemaChangedError, match=r"shop\.t no longer has column 'b'"):
            fetch(adapter, query)


def test_large_results_come_in_batches(path: Path, writer: Writer) -> None:
    statements = [
        "CREATE TABLE t (i INTEGER PRIMARY KEY, s TEXT)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 30000) "
        "INSERT INTO t SELECT i, 'row ' || i FROM n",
    ]
    with database(path, writer, *statements) as adapter:
        query = view_of(adapter, {"t": "t"})
        with adapter.snapshot() as snapshot:
            sizes = [batch.num_rows for batch in snapshot.fetch(query)]
        assert sum(sizes) == 30000
        assert len(sizes) > 2
        # A reader that was not read to its end does not stand in the way of anything.
        with adapter.snapshot() as snapshot:
            next(iter(snapshot.fetch(query)))
        writer("DELETE FROM t WHERE i > 1")
        assert fetch(adapter, query).num_rows == 1


@pytest.mark.parametrize("keys", [None, Keys(("i",), pa.table({"i": pa.array([1])}))], ids=["all", "keys"])
def test_no_row_is_in_the_batch_that_the_driver_does_not_check(
    path: Path, writer: Writer, keys: Keys | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = [
        "CREATE TABLE t (i INTEGER PRIMARY KEY, s TEXT)",
        "INSERT INTO t VALUES (1, 'row'), (2, 'row')",
    ]
    unchecked = []
    query = Connection.query

    def look(self: Connection, sql: str, parameters: Sequence[int | float | str], batch_rows: int) -> Result:
        with query(self, sql, parameters, batch_rows) as result:
            unchecked.append(next(result.batches))
        return query(self, sql, parameters, batch_rows)

    with database(path, writer, *statements) as adapter, adapter.snapshot() as snapshot:
        view = view_of(adapter, {"t": "t"}, {"i": ("t", "i"), "s": ("t", "s")})
        monkeypatch.setattr(Connection, "query", look)
        answer = snapshot.fetch(view, keys)
        monkeypatch.undo()
        assert set(answer.read_all()["s"].to_pylist()) == {"row"}
    (batch,) = unchecked
    assert set(batch[1].to_pylist()) == {""}


@pytest.mark.slow
def test_rows_that_are_too_large_for_a_batch_are_an_error(path: Path, writer: Writer) -> None:
    """Of one large row, joined with enough others."""
    statements = [
        "CREATE TABLE large (g INT, b BLOB)",
        "INSERT INTO large VALUES (1, zeroblob(200000000))",
        "CREATE TABLE many (g INT)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 12) "
        "INSERT INTO many SELECT 1 FROM n",
    ]
    with database(path, writer, *statements) as adapter:
        view = view_of(adapter, {"l": "large", "m": "many"}, {"b": ("l", "b")}, joins=(("l.g", "m.g"),))
        with pytest.raises(DataError, match=r"rows with shop\.large\.b are too large"):
            fetch(adapter, view)
        assert fetch(adapter, view_of(adapter, {"m": "many"})).num_rows == 12


def thousand_rows(path: Path, writer: Writer) -> None:
    writer(
        "CREATE TABLE t (i INTEGER PRIMARY KEY, v INTEGER)",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "
        "INSERT INTO t SELECT i, i FROM n",
    )


@pytest.mark.parametrize("keys", [None, {"a": pa.array([5000]), "d": pa.array([5000])}], ids=["all", "keys"])
def test_a_product_without_end_is_given_up(
    path: Path, writer: Writer, keys: dict[str, pa.Array] | None
) -> None:
    """Four times a thousand rows, multiplied, of which all or none are asked for."""
    thousand_rows(path, writer)
    with adapter_on(path, statement_timeout=0.2) as adapter:
        aliases = dict.fromkeys("abcd", "t")
        query = view_of(adapter, aliases, {alias: (alias, "v") for alias in aliases})
        wanted = None if keys is None else Keys(tuple(keys), pa.table(keys))
        with adapter.snapshot() as snapshot, pytest.raises(SourceUnavailableError, match="statement_timeout"):
            sum(batch.num_rows for batch in snapshot.fetch(query, wanted))
        # The source is none the worse for it; what has an end may take longer where much else goes on.
        adapter._options = replace(adapter._options, footprint=Footprint(60.0, 0.0))
        assert fetch(adapter, view_of(adapter, {"t": "t"})).num_rows == 1000


def test_keys_of_a_product_pick_what_they_name(path: Path, writer: Writer) -> None:
    """Also where the test of keys lets some rows pass that only show how time goes by."""
    thousand_rows(path, writer)
    writer("UPDATE t SET v = 'no number' WHERE i > 500")
    with adapter_on(path, statement_timeout=0) as adapter:
        query = view_of(adapter, {"a": "t", "b": "t"}, {"a": ("a", "v"), "b": ("b", "v")})
        wanted = {"a": pa.array([1, 2, 5000]), "b": pa.array([7, 8, 9])}
        for found in all_ways(path, query, wanted):
            assert found == {(1, 7): 1, (2, 8): 1}
