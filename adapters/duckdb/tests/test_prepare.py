"""Installing and removing capture."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from adapters.duckdb.adapter import DuckDBAdapter
from adapters.duckdb.tests.conftest import MakeAdapter
from adapters.duckdb.tests.owner import Owner
from adapters.duckdb.tests.views import changes_after, deltas
from adapters.spi import SourceConfig
from algebra.errors import ConfigurationError
from algebra.position import ORIGIN

TRACES = (
    "SELECT count(*) FROM duckdb_triggers()",
    "SELECT count(*) FROM duckdb_schemas() WHERE schema_name LIKE '\\_lockstep%' ESCAPE '\\'",
    "SELECT count(*) FROM duckdb_tables() WHERE table_name LIKE '\\_lockstep%' ESCAPE '\\'",
    "SELECT count(*) FROM duckdb_sequences()",
)


@pytest.fixture
def tables(owner: Owner, path: Path) -> None:
    owner.write(path, "CREATE TABLE t (n INTEGER)", "CREATE TABLE u (n INTEGER)")


def _traces(owner: Owner, path: Path) -> list[Any]:
    owner.open(path)
    found = [owner.run(query)[0][0] for query in TRACES]
    owner.close()
    return found


@pytest.mark.usefixtures("tables")
def test_dry_run_lists_what_would_be_done_and_changes_nothing(path: Path, make: MakeAdapter) -> None:
    before = hashlib.sha256(path.read_bytes()).digest()
    steps = make().prepare(["t"], dry_run=True)
    assert hashlib.sha256(path.read_bytes()).digest() == before
    assert sum(step.startswith("CREATE TRIGGER") and '"t"' in step for step in steps) == 6
    assert sum("_lockstep_global" in step for step in steps) == 3, "the marker table and its two triggers"
    done = make().prepare(["t"])
    assert [step.split(" AS SELECT")[0] for step in done] == [step.split(" AS SELECT")[0] for step in steps]


@pytest.mark.usefixtures("tables")
def test_prepare_twice_does_nothing_and_keeps_the_history(
    owner: Owner, path: Path, make: MakeAdapter
) -> None:
    adapter = make()
    adapter.prepare(["t"])
    owner.write(path, "INSERT INTO t VALUES (1)")
    assert adapter.prepare(["t"]) == []
    changes, _ = changes_after(adapter, ORIGIN)
    assert deltas(changes) == [{"t": {(1,): 1}}]


@pytest.mark.usefixtures("tables")
def test_a_relation_added_later_joins_the_same_history(owner: Owner, path: Path, make: MakeAdapter) -> None:
    adapter = make()
    adapter.prepare(["t"])
    owner.write(path, "BEGIN", "INSERT INTO t VALUES (1)", "INSERT INTO u VALUES (1)", "COMMIT")
    _, position = changes_after(adapter, ORIGIN)
    adapter.prepare(["u"])
    owner.write(path, "BEGIN", "INSERT INTO t VALUES (2)", "INSERT INTO u VALUES (2)", "COMMIT")
    changes, _ = changes_after(adapter, position)
    assert deltas(changes) == [{"t": {(2,): 1}, "u": {(2,): 1}}]
    assert deltas(changes_after(adapter, ORIGIN)[0])[0] == {"t": {(1,): 1}}


@pytest.mark.usefixtures("tables")
def test_remove_leaves_no_trace(owner: Owner, path: Path, make: MakeAdapter) -> None:
    adapter = make()
    clean = _traces(owner, path)
    adapter.prepare(["t", "u"])
    owner.write(path, "INSERT INTO t VALUES (1)")
    assert _traces(owner, path) != clean
    planned = adapter.remove(dry_run=True)
    assert _traces(owner, path) != clean
    assert adapter.remove() == planned
    assert _traces(owner, path) == clean
    assert adapter.remove() == []
    assert owner.write(path, "INSERT INTO t VALUES (2)", "SELECT * FROM t") == [[1], [2]]


@pytest.mark.usefixtures("tables")
def test_a_source_without_capture_says_what_to_do(make: MakeAdapter) -> None:
    with make().snapshot() as snapshot:
        with pytest.raises(ConfigurationError, match="prepare it first"):
            _ = snapshot.position
        with pytest.raises(ConfigurationError, match="prepare it first"):
            snapshot.changes(ORIGIN)


@pytest.mark.usefixtures("tables")
def test_unknown_relations_are_refused_with_those_that_exist(make: MakeAdapter) -> None:
    with pytest.raises(ConfigurationError, match="no relation 'nope'; it has: t, u"):
        make().prepare(["nope"])
    with pytest.raises(ConfigurationError, match="configured for: t"):
        make(relations=("t",)).prepare(["u"])


def test_a_missing_file_is_named_and_not_created(path: Path, make: MakeAdapter) -> None:
    with pytest.raises(ConfigurationError, match=str(path)):
        make().catalog()
    with pytest.raises(ConfigurationError, match=str(path)):
        make().prepare(["t"])
    assert not path.exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"url": "duckdb://"}, "is not duckdb:///"),
        ({"url": "sqlite:///x.db"}, "is not duckdb:///"),
        ({"capture": "log"}, "capture 'log'"),
        ({"options": {"tirm": False}}, "unknown option 'tirm'"),
        ({"options": {"trim": "no"}}, "trim is 'no'"),
        ({"options": {"lock_timeout": -1}}, "lock_timeout is -1"),
        ({"options": {"memory_limit": "much"}}, "memory_limit is 'much', not a size"),
        ({"options": {"exclude": "t.c"}}, "exclude is 't.c'"),
    ],
)
def test_wrong_configuration_is_one_clear_line(changed: dict[str, Any], message: str) -> None:
    values: dict[str, Any] = {"name": "shop", "adapter": "duckdb", "url": "duckdb:///x.duckdb", **changed}
    with pytest.raises(ConfigurationError, match=message) as caught:
        DuckDBAdapter(SourceConfig(**values))
    assert "\n" not in str(caught.value)


def test_relative_urls_are_relative_to_the_working_directory(
    owner: Owner, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner.write(path, "CREATE TABLE t (n INTEGER)")
    monkeypatch.chdir(path.parent)
    adapter = DuckDBAdapter(SourceConfig("shop", "duckdb", f"duckdb:///{path.name}"))
    assert list(adapter.catalog().relations) == ["t"]
    adapter.close()


@pytest.mark.usefixtures("tables")
def test_a_renamed_file_and_a_writer_that_attaches_it_are_still_captured(
    owner: Owner, path: Path, make: MakeAdapter
) -> None:
    make().prepare(["t"])
    moved = path.with_name("moved elsewhere.duckdb")
    path.rename(moved)
    owner.write(path.with_name("other.duckdb"), f"ATTACH '{moved}' AS x", "USE x", "INSERT INTO t VALUES (4)")
    moved.rename(path)
    changes, _ = changes_after(make(), ORIGIN)
    assert deltas(changes) == [{"t": {(4,): 1}}]
