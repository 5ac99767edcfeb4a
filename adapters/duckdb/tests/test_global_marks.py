"""Marks of global transactions in DuckDB: what an application writes, and what becomes of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from adapters.duckdb.tests.conftest import MakeAdapter
from adapters.duckdb.tests.owner import Owner
from adapters.duckdb.tests.views import changes_after, deltas
from adapters.spi import Changes
from algebra.position import ORIGIN

MARK = "INSERT INTO _lockstep_global (id, participants) VALUES ('{}', 'shop,crm')"


@pytest.fixture
def prepared(owner: Owner, path: Path, make: MakeAdapter) -> MakeAdapter:
    owner.write(path, "CREATE TABLE t (n INTEGER)")
    make().prepare(["t"])
    return make


def ids(changes: Changes) -> list[list[str]]:
    """The ids of the marks of each entry."""
    return [[o.id for o in entry.part_of.all] if entry.part_of else [] for entry in changes.transactions()]


def test_marks_come_with_their_transactions(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    owner.write(
        path,
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        MARK.format("x"),
        "INSERT INTO t VALUES (2)",
        "COMMIT",
        "INSERT INTO t VALUES (3)",
        MARK.format("y"),
    )
    changes, position = changes_after(prepared(), ORIGIN)
    assert ids(changes) == [["x"], [], ["y"]]
    assert changes.part_of[0].participants == {"shop", "crm"}
    assert deltas(changes) == [{"t": {(1,): 1, (2,): 1}}, {"t": {(3,): 1}}, {}]
    assert changes.positions[-1] == position


def test_marks_of_transactions_that_overlap_stay_apart(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    owner.open(path)
    owner.run("BEGIN", MARK.format("early"), connection=0)
    owner.run("BEGIN", "INSERT INTO t VALUES (2)", MARK.format("late"), "COMMIT", connection=1)
    owner.run("BEGIN", MARK.format("never"), connection=2)
    owner.run("INSERT INTO t VALUES (1)", "COMMIT", connection=0)
    owner.run("ROLLBACK", connection=2)
    owner.close()
    changes, _ = changes_after(prepared(), ORIGIN)
    assert ids(changes) == [["late"], ["early"]]
    assert deltas(changes) == [{"t": {(2,): 1}}, {"t": {(1,): 1}}]


def test_marks_survive_a_crash_of_the_owner(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    owner.open(path)
    owner.run(MARK.format("x"), "BEGIN", MARK.format("y"))
    owner.crash()
    changes, _ = changes_after(prepared(), ORIGIN)
    assert ids(changes) == [["x"]]


def test_the_marker_table_is_cleared_with_the_log(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    owner.write(path, MARK.format("x"), MARK.format("y"))
    adapter = prepared(trim_entries=0, trim_seconds=0)
    changes, position = changes_after(adapter, ORIGIN)
    adapter.acknowledge(changes.positions[0])
    assert ids(changes_after(adapter, changes.positions[0])[0]) == [["y"]]
    assert owner.write(path, "SELECT count(*) FROM _lockstep_global") == [[0]]
    adapter.acknowledge(position)
    assert owner.write(path, "SELECT count(*) FROM _lockstep.marks") == [[0]]


def test_marks_that_say_nothing_are_reported_and_lose_nothing(
    prepared: MakeAdapter, owner: Owner, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner.write(
        path,
        "BEGIN",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO _lockstep_global VALUES ('x', 'crm')",
        "COMMIT",
        "INSERT INTO _lockstep_global VALUES (NULL, 'shop')",
    )
    with caplog.at_level(logging.WARNING):
        changes, _ = changes_after(prepared(), ORIGIN)
    assert ids(changes) == [[], []]
    assert deltas(changes) == [{"t": {(1,): 1}}, {}]
    (record,) = caplog.records
    assert record.getMessage() == (
        "source shop: 2 marks in _lockstep_global are ignored, their transactions taken for local ones; "
        "the first at 2, id 'x', names crm and not this source"
    )


def test_a_capture_from_before_there_were_marks_gets_its_marker_table(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    owner.write(
        path,
        "DROP TRIGGER _lockstep_global_rows ON _lockstep_global",
        "DROP TRIGGER _lockstep_global_commit ON _lockstep_global",
        "DROP TABLE _lockstep_global",
        "DROP TABLE _lockstep.marks",
        "INSERT INTO t VALUES (1)",
    )
    adapter = prepared(trim_entries=0, trim_seconds=0)
    changes, position = changes_after(adapter, ORIGIN)
    assert ids(changes) == [[]]
    steps = adapter.prepare(["t"], dry_run=True)
    assert sum("_lockstep_global" in step for step in steps) == 3
    assert adapter.prepare(["t"]) == steps
    assert adapter.prepare(["t"]) == []
    owner.write(path, MARK.format("x"))
    assert ids(changes_after(adapter, position)[0]) == [["x"]]
    assert ids(changes_after(adapter, ORIGIN)[0]) == [[], ["x"]]


def test_a_lost_trigger_is_put_back(prepared: MakeAdapter, owner: Owner, path: Path) -> None:
    owner.write(path, "DROP TRIGGER _lockstep_global_commit ON _lockstep_global")
    adapter = prepared()
    assert adapter.prepare(["t"])
    owner.write(path, MARK.format("x"))
    assert ids(changes_after(adapter, ORIGIN)[0]) == [["x"]]


def test_a_relation_that_is_prepared_anew_begins_without_old_marks(
    prepared: MakeAdapter, owner: Owner, path: Path
) -> None:
    owner.write(path, MARK.format("x"))
    adapter = prepared()
    for trigger in ("insert_rows", "insert_commit"):
        owner.write(path, f"DROP TRIGGER _lockstep_1_{trigger} ON t")
    adapter.prepare(["t"])
    with adapter.snapshot() as snapshot:
        position = snapshot.position
    owner.write(path, MARK.format("y"))
    assert ids(changes_after(adapter, position)[0]) == [["y"]]


def test_diff_capture_takes_no_marks_and_writes_nothing(owner: Owner, path: Path, make: MakeAdapter) -> None:
    owner.write(path, "CREATE TABLE t (n INTEGER)")
    adapter = make(capture="diff")
    assert not adapter.capabilities.global_transactions
    adapter.prepare(["t"])
    tables = owner.write(path, "SELECT table_name FROM duckdb_tables()")
    assert tables == [["t"]]
