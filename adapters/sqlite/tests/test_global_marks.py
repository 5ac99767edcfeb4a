"""Marks of global transactions in SQLite: what an application writes, and what becomes of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from adapters.spi import Changes
from adapters.sqlite.tests.support import Writer, adapter_on, captured, changes, deltas, position
from algebra.position import ORIGIN

T = "CREATE TABLE t (a INT)"
MARK = "INSERT INTO _lockstep_global (id, participants) VALUES ('{}', 'shop,crm')"


def transaction(writer: Writer, *statements: str) -> None:
    writer("BEGIN IMMEDIATE", *statements, "COMMIT")


def ids(run: Changes) -> list[list[str]]:
    """The ids of the marks of each entry."""
    return [[one.id for one in entry.part_of.all] if entry.part_of else [] for entry in run.transactions()]


def test_marks_come_with_their_transactions(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        start = position(adapter)
        transaction(writer, "INSERT INTO t VALUES (1)", MARK.format("x"), "INSERT INTO t VALUES (2)")
        transaction(writer, "INSERT INTO t VALUES (3)")
        writer(MARK.format("y"))
        run = changes(adapter, start)
        assert run.batched == frozenset()
        assert ids(run) == [["x"], [], ["y"]]
        assert run.part_of[0].participants == {"shop", "crm"}
        assert deltas(run) == [{"t": {(1,): 1, (2,): 1}}, {"t": {(3,): 1}}, {}]


def test_the_marker_table_is_always_empty_and_trimmed_with_the_log(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        for number in range(1100):
            writer(MARK.format(number))
        assert writer("SELECT count(*) FROM _lockstep_global") == [[0]]
        adapter.acknowledge(position(adapter))
        assert writer("SELECT count(*) FROM _lockstep_log") == [[1]], "the newest row stays"


def test_a_stretch_of_transactions_is_a_part_of_all_that_they_are_parts_of(
    path: Path, writer: Writer
) -> None:
    """What was written while nobody looked, and its WAL is gone, is one entry that cannot be divided."""
    with captured(path, writer, T) as adapter:
        start = position(adapter)
    transaction(writer, "INSERT INTO t VALUES (1)", MARK.format("x"))
    transaction(writer, "INSERT INTO t VALUES (2)", MARK.format("y"))
    transaction(writer, "INSERT INTO t VALUES (3)")
    writer.open(":memory:")
    with adapter_on(path) as adapter:
        run = changes(adapter, start)
        assert run.batched == {0}
        assert ids(run) == [["x", "y"]]


def test_a_savepoint_takes_its_marks_back(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        start = position(adapter)
        transaction(
            writer,
            "INSERT INTO t VALUES (1)",
            "SAVEPOINT s",
            MARK.format("x"),
            "ROLLBACK TO s",
            MARK.format("y"),
        )
        assert ids(changes(adapter, start)) == [["y"]]


@pytest.mark.parametrize("recursive", ["OFF", "ON"])
def test_marks_are_taken_however_they_are_written(path: Path, writer: Writer, recursive: str) -> None:
    with captured(path, writer, T) as adapter:
        writer(f"PRAGMA recursive_triggers = {recursive}")
        start = position(adapter)
        writer("INSERT INTO _lockstep_global VALUES (4711, ' shop , crm ')")
        writer("INSERT OR REPLACE INTO _lockstep_global (participants, id) VALUES ('crm,shop', 'b')")
        writer("INSERT OR IGNORE INTO _lockstep_global SELECT 'c', 'shop' UNION ALL SELECT 'd', 'shop'")
        returned = writer("INSERT INTO _lockstep_global VALUES ('e', 'shop') RETURNING id")
        assert ids(changes(adapter, start)) == [["4711"], ["b"], ["c", "d"], ["e"]]
        assert returned == [["e"]]


def test_marks_that_say_nothing_are_reported_and_lose_nothing(
    path: Path, writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    with captured(path, writer, T) as adapter:
        start = position(adapter)
        unusable = [
            "NULL, 'shop'",
            "'x', 'crm'",
            "x'00ff', 'shop'",
            "'x', NULL",
            "CAST(x'ff' AS TEXT), 'shop'",
        ]
        for number, values in enumerate(unusable):
            transaction(
                writer,
                f"INSERT INTO t VALUES ({number})",
                f"INSERT INTO _lockstep_global VALUES ({values})",
            )
        with caplog.at_level(logging.WARNING):
            run = changes(adapter, start)
        assert ids(run) == [[]] * len(unusable)
        assert deltas(run) == [{"t": {(number,): 1}} for number in range(len(unusable))]
        assert [record.getMessage() for record in caplog.records] == [
            "source shop: 5 marks in _lockstep_global are ignored, their transactions taken for local ones; "
            "the first at 2 has no id"
        ]


def test_marks_are_text_in_whatever_encoding_the_database_has(path: Path, writer: Writer) -> None:
    with captured(path, writer, "PRAGMA encoding = 'UTF-16'", T) as adapter:
        start = position(adapter)
        writer(MARK.format("Überweisung 表 😀"))
        assert ids(changes(adapter, start)) == [["Überweisung 表 😀"]]


def test_a_capture_from_before_there_were_marks_gets_its_marker_table(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        writer("DROP TABLE _lockstep_global", "ALTER TABLE _lockstep_log DROP COLUMN c1")
        writer("ALTER TABLE _lockstep_replaced DROP COLUMN c1")
        start = position(adapter)
        writer("INSERT INTO t VALUES (1)")
    with adapter_on(path) as adapter:
        planned = adapter.prepare(["t"], dry_run=True)
        assert [step.split(" (")[0].split(" AFTER")[0] for step in planned] == [
            "ALTER TABLE _lockstep_log ADD COLUMN c1",
            "ALTER TABLE _lockstep_replaced ADD COLUMN c1",
            "CREATE TABLE _lockstep_global",
            "CREATE TRIGGER _lockstep_mark",
        ]
        assert adapter.prepare(["t"]) == planned
        assert adapter.prepare(["t"]) == []
        writer(MARK.format("x"))
        run = changes(adapter, start)
        assert [delta for delta in deltas(run) if delta] == [{"t": {(1,): 1}}]
        assert ids(run)[-1] == ["x"]


def test_a_lost_trigger_is_put_back(path: Path, writer: Writer) -> None:
    with captured(path, writer, T) as adapter:
        writer("DROP TRIGGER _lockstep_mark")
        writer("CREATE TRIGGER _lockstep_mark AFTER INSERT ON _lockstep_global BEGIN SELECT 1; END")
        assert [step.split(" AFTER")[0] for step in adapter.prepare(["t"])] == [
            "DROP TRIGGER _lockstep_mark",
            "CREATE TRIGGER _lockstep_mark",
        ]
        writer(MARK.format("x"))
        assert ids(changes(adapter, ORIGIN)) == [["x"]]
