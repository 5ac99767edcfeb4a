"""What the source shows of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from adapters.duckdb.tests.conftest import MakeAdapter
from adapters.duckdb.tests.owner import Owner
from algebra.errors import ConfigurationError


def test_tables_of_all_schemas_with_keys_and_estimates(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(
        path,
        "CREATE TABLE orders (id INTEGER, pos INTEGER, PRIMARY KEY (id, pos))",
        "CREATE TABLE codes (a INTEGER UNIQUE, b INTEGER NOT NULL UNIQUE)",
        "CREATE TABLE bag (n INTEGER)",
        "CREATE SCHEMA crm",
        "CREATE TABLE crm.customer (id INTEGER PRIMARY KEY)",
        "CREATE VIEW v AS SELECT * FROM bag",
        "INSERT INTO bag SELECT * FROM range(100)",
    )
    adapter = make()
    adapter.prepare(["bag"])
    catalog = adapter.catalog()
    assert {r.name: r.key for r in catalog} == {
        "orders": ("id", "pos"),
        "codes": ("b",),
        "bag": (),
        "crm.customer": ("id",),
    }
    assert catalog.relation("bag").row_estimate == 100
    assert [c.nullable for c in catalog.relation("codes").columns] == [True, False]


def test_configured_relations_restrict_it(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(path, "CREATE TABLE a (n INTEGER)", "CREATE TABLE b (n INTEGER)")
    assert list(make(relations=("b",)).catalog().relations) == ["b"]
    with pytest.raises(ConfigurationError, match="no relation 'c'; it has: a, b"):
        make(relations=("c",)).catalog()


def test_the_catalog_follows_changes_of_the_schema(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(path, "CREATE TABLE a (n INTEGER)")
    adapter = make()
    assert adapter.catalog().relation("a").key == ()
    owner.write(path, "DROP TABLE a", "CREATE TABLE a (n INTEGER PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    assert adapter.catalog().relation("a").key == ("n",)
    assert adapter.catalog().relation("a").row_estimate == 1


def test_reserved_column_names_are_refused(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(path, 'CREATE TABLE a (n INTEGER, "_count" INTEGER)')
    with pytest.raises(ConfigurationError, match=r"a\._count has a name that Lockstep reserves"):
        make().catalog()
