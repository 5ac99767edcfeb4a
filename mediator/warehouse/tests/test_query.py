"""SELECTs over views: one instant, versions of choice, and nothing but views within reach."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from algebra.errors import DataError, LockstepError, NotFoundError, RefusedError, ViewDefinitionError
from mediator.warehouse import Warehouse
from mediator.warehouse.tests.builders import SCHEMA, change, counted, row


@pytest.fixture
def shop(warehouse: Warehouse) -> Warehouse:
    warehouse.create_view("orders", {}, SCHEMA, counted({(1, "a"): 2, (2, "b"): 1}), row(0))
    warehouse.create_view('odd "name".x', {}, SCHEMA, counted({(1, "one"): 1}), row(0))
    warehouse.install([change("orders", 1, {(1, "a"): -1, (3, "c"): 1})])
    return warehouse


def rows(warehouse: Warehouse, sql: str, **versions: int) -> list[tuple[object, ...]]:
    table = warehouse.query(sql, versions)[0].read_all()
    return [tuple(entry.values()) for entry in table.to_pylist()]


def test_views_are_tables_with_duplicates(shop: Warehouse) -> None:
    assert rows(shop, "SELECT id, name FROM orders ORDER BY 1") == [(1, "a"), (2, "b"), (3, "c")]
    assert rows(shop, "SELECT count(*) FROM Orders", orders=0) == [(3,)]
    assert rows(shop, "SELECT * FROM orders WHERE id = 1", orders=0) == [(1, "a"), (1, "a")]
    assert rows(shop, "FROM orders SELECT max(id)") == [(3,)]


def test_joins_ctes_subqueries_and_odd_names(shop: Warehouse) -> None:
    sql = """
        WITH big AS (SELECT * FROM orders WHERE id > 0), counts AS (SELECT count(*) AS n FROM big)
        SELECT o.name, x.name, n FROM big o JOIN "odd ""name"".x" x USING (id), counts
        WHERE o.id IN (SELECT id FROM orders) AND EXISTS (SELECT 1 FROM range(3) r(i) WHERE i = o.id)
    """
    result, versions = shop.query(sql)
    assert [column.to_pylist() for column in result.read_all().columns] == [["a"], ["one"], [3]]
    assert versions == {"orders": 1, 'odd "name".x': 0}
    assert rows(shop, "SELECT 1 AS one UNION ALL SELECT id FROM orders WHERE false") == [(1,)]
    assert rows(shop, "SELECT sum(i) FROM generate_series(1, 4) AS s(i)") == [(10,)]
    assert rows(shop, "SELECT unnest([1, 2])") == [(1,), (2,)]


def test_names_ignore_case_as_sql_does(shop: Warehouse) -> None:
    assert rows(shop, "SELECT count(*) FROM Orders a JOIN oRDERS b USING (id), orders c") == [(9,)]
    shop.create_view("ORDERS", {}, SCHEMA, counted({}), row(0))
    assert rows(shop, "SELECT count(*) FROM ORDERS") == [(0,)]
    with pytest.raises(RefusedError, match="differ only in case"):
        shop.query("SELECT * FROM ORDERS, orders")


def test_all_views_are_read_at_one_instant(shop: Warehouse) -> None:
    reader, versions = shop.query("SELECT a.id FROM orders a JOIN orders b ON a.id = b.id ORDER BY 1")
    shop.install([change("orders", 2, {(3, "c"): -1})])
    shop.compact("orders")
    shop.maintain()
    assert versions == {"orders": 1}
    assert reader.read_all()["id"].to_pylist() == [1, 2, 3]


def test_unknown_tables_are_named(shop: Warehouse) -> None:
    with pytest.raises(NotFoundError, match="there is no view 'customers'; the views are: odd"):
        shop.query("SELECT * FROM customers")
    with pytest.raises(NotFoundError, match="no view"):
        shop.query("SELECT * FROM information_schema.tables")
    with pytest.raises(NotFoundError, match="no version 5"):
        shop.query("SELECT * FROM orders", {"orders": 5})
    with pytest.raises(NotFoundError, match="no view 'nix'"):
        shop.query("SELECT * FROM orders", {"nix": 0})


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_parquet('{root}/versions/*.parquet')",
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM parquet_scan('{root}/versions/*.parquet')",
        "SELECT * FROM parquet_metadata('{root}/versions/x.parquet')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM '{root}/versions/x.parquet'",
        "SELECT * FROM glob('/*')",
        "SELECT getenv('HOME')",
        "SELECT current_setting('temp_directory')",
        "SELECT * FROM query('SELECT 1')",
        "SELECT * FROM query_table('orders')",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM pragma_database_list()",
        "SELECT * FROM sqlite_scan('x.db', 't')",
        "SELECT * FROM orders; SELECT 1",
        "DELETE FROM orders",
        "DROP VIEW orders",
        "CREATE TABLE t AS SELECT 1",
        "COPY orders TO '{root}/stolen.parquet'",
        "COPY (SELECT 1) TO '{root}/../stolen.parquet'",
        "ATTACH '{root}/../x.db'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SET threads = 1",
        "PRAGMA database_list",
        "SUMMARIZE orders",
        "EXPLAIN ANALYZE SELECT 1",
        "EXPORT DATABASE '{root}/../x'",
        "CALL pragma_version()",
        "",
    ],
)
def test_anything_else_is_refused(shop: Warehouse, sql: str) -> None:
    with pytest.raises((RefusedError, NotFoundError, ViewDefinitionError)) as refused:
        shop.query(sql.format(root=shop.root))
    assert len(str(refused.value).splitlines()) == 1


def test_a_mistyped_select_is_named(shop: Warehouse) -> None:
    with pytest.raises(ViewDefinitionError, match="'selec' does not begin one"):
        shop.query("selec")


def test_bad_sql_is_one_line(shop: Warehouse) -> None:
    for sql in ("SELECT FROM WHERE", "SELECT nope FROM orders", "SELECT 1 +", "SELEKT 1", "SELECT nofunc(1)"):
        with pytest.raises(LockstepError) as bad:
            shop.query(sql)
        assert len(str(bad.value).splitlines()) == 1


def test_a_query_that_fails_while_it_runs(shop: Warehouse) -> None:
    with pytest.raises(DataError, match="Conversion Error"):
        shop.query("SELECT CAST(name AS INTEGER) FROM orders")[0].read_all()
    late = "SELECT CASE WHEN i = 990000 THEN error('too late') ELSE i END FROM range(1000000) AS r(i)"
    with pytest.raises(DataError, match="too late"):
        shop.query(late)[0].read_all()


def test_the_second_fence_holds_without_the_first(shop: Warehouse, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    cursor = shop._store.duck.cursor()
    for sql in (
        f"SELECT * FROM read_csv('{secret}')",
        f"SELECT * FROM '{secret}'",
        f"SELECT * FROM read_csv('{shop.root}/../{secret.name}')",
        f"ATTACH '{tmp_path}/x.db'",
        f"COPY (SELECT 1) TO '{tmp_path}/x.csv'",
        "SET enable_external_access = true",
        "SET allowed_directories = ['/']",
        "SELECT * FROM secret",
    ):
        with pytest.raises(duckdb.Error):
            cursor.execute(sql)
