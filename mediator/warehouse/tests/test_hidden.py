"""Hidden columns: stored for maintenance, and shown to no reader."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from algebra.errors import RefusedError, ViewDefinitionError
from mediator.warehouse import Warehouse
from mediator.warehouse.client_query import ClientQueries, QueryLimits, Question
from mediator.warehouse.scan import Scan
from mediator.warehouse.tests.builders import Bag, at, bag, change, counted, plus, row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEYED = pa.schema([("name", pa.string()), ("_key_o_id", pa.uint8()), ("qty", pa.int64())])
HIDDEN = ("_key_o_id",)
FIRST = {("a", 1, 5): 1, ("a", 2, 5): 1, ("b", 3, 7): 1}


@pytest.fixture
def keyed(warehouse: Warehouse) -> Warehouse:
    warehouse.create_view("v", {"sql": "x"}, KEYED, counted(FIRST, KEYED), row(0), HIDDEN)
    warehouse.install([change("v", 1, {("a", 1, 5): -1, ("a", 4, 5): 1}, KEYED)])
    warehouse.install([change("v", 2, {("b", 3, 7): -1, ("a", 5, 5): 1}, KEYED)])
    return warehouse


def visible(rows: Any) -> Bag:
    """The bag of the columns that readers are shown."""
    shown: Bag = Counter()
    for (name, _, qty), count in rows.items():
        shown[name, qty] += count
    return Counter({key: count for key, count in shown.items() if count})


def queried(warehouse: Warehouse, version: int | None = None) -> Bag:
    table = warehouse.query("SELECT * FROM v", {} if version is None else {"v": version})[0].read_all()
    return Counter(tuple(entry.values()) for entry in table.to_pylist())


def scanned(scan: Scan) -> pa.Table:
    with duckdb.connect() as connection:
        for name, table in scan.tables.items():
            connection.register(name, table)
        return connection.sql(scan.sql).to_arrow_table()


def test_a_query_shows_the_bag_without_hidden_columns(keyed: Warehouse) -> None:
    assert queried(keyed, 0) == {("a", 5): 2, ("b", 7): 1}
    assert queried(keyed) == {("a", 5): 3}
    assert keyed.query("SELECT * FROM v")[0].schema.names == ["name", "qty"]
    assert keyed.query("SELECT count(*) AS n FROM v")[0].read_all()["n"].to_pylist() == [3]
    with pytest.raises(ViewDefinitionError, match="_key_o_id"):
        keyed.query("SELECT _key_o_id FROM v")


NAMES_ON_WHICH_PARSERS_DISAGREE = [
    "SELECT * FROM '{file}'",
    "SELECT * FROM {rows}",
    "SELECT sql FROM sqlite_master",
    "SELECT sql FROM temp.sqlite_master",
    "SELECT sql FROM duckdb_views",
    "SELECT * FROM v, (TABLE duckdb_views)",
    "SELECT * FROM pg_catalog.pg_views",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM read_parquet('{file}')",
    "SELECT * FROM v, LATERAL read_parquet('{file}')",
    "SELECT bin FROM LATERAL histogram('{file}', _key_o_id)",
    "SELECT bin FROM LATERAL histogram({rows}, _key_o_id)",
    "SELECT * FROM query_table('{rows}')",
    "SELECT * FROM (SELECT 1 UNION ALL SELECT _key_o_id FROM {rows})",
    "SELECT * FROM v WHERE qty IN (SELECT _key_o_id FROM {rows})",
    "SELECT * FROM (WITH {rows} AS (SELECT 1) SELECT 1) s, {rows}",
    'SELECT * FROM (WITH "{file}" AS (SELECT 1) SELECT 1) s, "{file}"',
    "SELECT * FROM (SHOW ALL TABLES)",
    "SELECT getenv('PATH') FROM v",
    "SELECT * FROM v; SELECT * FROM v",
    "COPY v TO '{file}'",
]


@pytest.mark.parametrize("sql", NAMES_ON_WHICH_PARSERS_DISAGREE)
def test_no_name_reaches_them_whatever_was_accepted(keyed: Warehouse, sql: str) -> None:
    """The query's process looks by itself, with DuckDB's parser: nothing has looked before it here."""
    snapshot = keyed.snapshot("v")
    scan = keyed.scan_sql("v")
    (rows,) = scan.tables
    assert "_key_o_id" in scan.tables[rows].column_names
    text = sql.format(file=snapshot.state_files[0], rows=rows)
    queries = ClientQueries(QueryLimits())
    try:
        with pytest.raises(RefusedError, match=r"must not be used in a query|a query is one SELECT"):
            queries.run(Question(text, {"v": scan}, snapshot.files))
        shown = queries.run(Question("WITH x AS (FROM V) FROM x", {"v": scan}, snapshot.files)).read_all()
        assert shown.column_names == ["name", "qty"]
    finally:
        queries.close()


def test_the_name_of_rows_in_memory_is_not_guessed(keyed: Warehouse) -> None:
    names = [name for _ in range(3) for name in keyed.scan_sql("v").tables]
    assert len({name for name in names if re.fullmatch("_lockstep_rows_[0-9a-f]{32}", name)}) == 3


def test_maintenance_reads_them(keyed: Warehouse) -> None:
    assert keyed.read("v").schema.names == [*KEYED.names, "_count"]
    assert at(keyed, "v") == {("a", 2, 5): 1, ("a", 4, 5): 1, ("a", 5, 5): 1}


def test_changes_are_merged_over_what_is_shown(keyed: Warehouse) -> None:
    found = list(keyed.changes("v", 0))
    assert [bag(rows) for _, rows in found] == [{}, {("b", 7): -1, ("a", 5): 1}]
    assert all(rows.column_names == ["name", "qty", "_count"] for _, rows in found)


def test_counts_of_versions_are_those_of_the_stored_rows(keyed: Warehouse) -> None:
    assert [(r.version, r.changed_rows, r.rows) for r in keyed.history("v")] == [
        (2, 2, 3),
        (1, 2, 3),
        (0, 3, 3),
    ]


def test_scans_for_readers(keyed: Warehouse) -> None:
    assert bag(scanned(keyed.scan_sql("v", counted=True))) == {("a", 5): 3}
    assert scanned(keyed.scan_sql("v", 0)).column_names == ["name", "qty"]


def test_the_definition_says_what_is_hidden(keyed: Warehouse) -> None:
    keyed.compact("v")
    keyed.create_view("plain", {}, KEYED, counted(FIRST, KEYED), row(0))
    with Warehouse(keyed.root, read_only=True) as reopened:
        stored = reopened.view("v")
        assert stored == keyed.view("v")
        assert (stored.hidden, reopened.view("plain").hidden) == (HIDDEN, ())
        assert stored.schema.equals(KEYED)
        assert stored.visible_schema.equals(KEYED.remove(1), check_metadata=True)
        assert queried(reopened) == {("a", 5): 3}
        assert at(reopened, "v", 1) == at(keyed, "v", 1)


@pytest.mark.parametrize("seed", range(3))
def test_random_histories_show_the_projection(tmp_path: Path, seed: int) -> None:
    generator = random.Random(seed)
    state: Bag = Counter(FIRST)
    states, deltas = [state], [Counter[tuple[Any, ...]]()]
    with Warehouse(tmp_path, durable=False, grace_seconds=0.0) as warehouse:
        warehouse.create_view("v", {}, KEYED, counted(FIRST, KEYED), row(0), HIDDEN)
        for version in range(1, 25):
            delta: Bag = Counter({key: -1 for key in state if generator.random() < 0.3})
            for _ in range(generator.randrange(4)):
                key = generator.randrange(250)
                if all(key != existing[1] for existing in plus(state, delta)):
                    delta[generator.choice("ab"), key, generator.randrange(2)] += 1
            delta = Counter({key: count for key, count in delta.items() if count})
            state = plus(state, delta)
            states.append(state)
            deltas.append(delta)
            warehouse.install([change("v", version, delta, KEYED)])
            if generator.random() < 0.2:
                warehouse.compact("v")
        for version, expected in enumerate(states):
            assert at(warehouse, "v", version) == expected
            assert queried(warehouse, version) == visible(expected)
            assert bag(scanned(warehouse.scan_sql("v", version, counted=True))) == visible(expected)
        found = {record.version: bag(rows) for record, rows in warehouse.changes("v", 0)}
        assert found == {version: visible(delta) for version, delta in enumerate(deltas) if version}


@pytest.mark.spark
def test_spark_sees_them_no_more_than_others_do(keyed: Warehouse, spark: SparkSession) -> None:
    from mediator.warehouse.spark_source import register

    register(spark)
    reader = spark.read.format("lockstep").option("warehouse", str(keyed.root)).option("view", "v")
    frame = reader.load()
    assert frame.columns == ["name", "qty"]
    assert Counter(tuple(r) for r in frame.collect()) == {("a", 5): 3}
    split = reader.option("partitions", 3).option("counted", "true").load()
    assert split.columns == ["name", "qty", "_count"]
    assert [tuple(r) for r in split.collect()] == [("a", 5, 3)]
    first = reader.option("partitions", 2).option("counted", "false").option("version", 0).load()
    assert Counter(tuple(r) for r in first.collect()) == {("a", 5): 2, ("b", 7): 1}
