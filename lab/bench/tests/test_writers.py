"""A writer applies its part of a stream exactly, one commit per transaction."""

from __future__ import annotations

import io
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from lab.bench.errors import BenchmarkError
from lab.bench.processes import ROOT
from lab.bench.sources import SourceFile, build_sources, copy_sources, read_tables
from lab.bench.streams import Operation, Transaction, transactions, write_stream
from lab.bench.tests.tiny import apply, tiny_base, tiny_dataset
from lab.bench.workload import Row
from lab.bench.writers import TARGETS, Applied, Writer, serve, statements

STREAM = list(transactions(tiny_base(), 120, 7))


@pytest.fixture(params=["sqlite", "duckdb"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> list[SourceFile]:
    dataset = tiny_dataset(tmp_path / "data")
    built = build_sources(dataset, tmp_path / "built", {"c": request.param})
    return copy_sources(built, tmp_path / "run")


def test_sources_hold_the_base_tables(files: list[SourceFile]) -> None:
    assert _contents(files) == {name: set(rows) for name, rows in tiny_base().items()}


def test_sources_have_keys_and_indexes(files: list[SourceFile]) -> None:
    b = next(file for file in files if file.source == "b")
    connection = sqlite3.connect(b.path)
    indexed = {row[0] for row in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'index'")}
    assert {"orders_o_custkey", "lineitem_l_suppkey"} <= indexed
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    connection.close()


def test_all_writers_together_leave_the_streams_final_tables(files: list[SourceFile]) -> None:
    expected = {name: set(rows) for name, rows in tiny_base().items()}
    for transaction in STREAM:
        apply(expected, transaction)
    for file in files:
        mine = [t for t in STREAM if t.source == file.source]
        target = TARGETS[file.adapter](file.path)
        applied = Writer(target, mine).apply_all()
        target.close()
        assert applied.commits == len(mine)
        assert applied.first_ns <= applied.last_ns
    assert _contents(files) == expected


def test_a_writer_process_obeys_its_commands(files: list[SourceFile], tmp_path: Path) -> None:
    stream = tmp_path / "k120.jsonl"
    write_stream(stream, STREAM)
    file = files[0]
    mine = [t for t in STREAM[:100] if t.source == file.source]
    arguments = ["--stream", str(stream), "--count", "100", "--source", file.source]
    arguments += ["--adapter", file.adapter, "--file", str(file.path)]
    done = subprocess.run(
        [sys.executable, "-m", "lab.bench.writers", *arguments],
        input="next\nall\n",
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    ready, first, rest = done.stdout.splitlines()
    assert ready == f"ready {len(mine)}"
    assert json.loads(first)["number"] == mine[0].number
    assert Applied(**json.loads(rest)).commits == len(mine) - 1


def test_a_missing_row_is_an_error(files: list[SourceFile]) -> None:
    file = next(file for file in files if file.source == "c")
    gone = Transaction(1, "c", "delete", (Operation("-", "supplier", (99, "nobody", 0)),))
    target = TARGETS[file.adapter](file.path)
    with pytest.raises(BenchmarkError, match="changed 0 rows"):
        target.apply(gone)
    target.close()


def test_next_after_the_end_is_an_error(files: list[SourceFile]) -> None:
    writer = Writer(TARGETS[files[0].adapter](files[0].path), [])
    with pytest.raises(BenchmarkError, match="no transaction left"):
        serve(writer, ["next\n"], io.StringIO())


def test_delete_and_insert_of_one_key_is_an_update() -> None:
    old: Row = (1, "old", 2)
    new: Row = (1, "new", 3)
    other: Row = (2, "other", 3)
    ops = [
        Operation("-", "supplier", old),
        Operation("+", "supplier", new),
        Operation("-", "supplier", other),
    ]
    assert list(statements(ops)) == [
        ("UPDATE supplier SET s_name = ?, s_nationkey = ? WHERE s_suppkey = ?", ("new", 3, 1)),
        ("DELETE FROM supplier WHERE s_suppkey = ?", (2,)),
    ]


def test_different_keys_stay_delete_and_insert() -> None:
    ops = [Operation("-", "region", (1, "x")), Operation("+", "region", (2, "x"))]
    assert list(statements(ops)) == [
        ("DELETE FROM region WHERE r_regionkey = ?", (1,)),
        ("INSERT INTO region VALUES (?, ?)", (2, "x")),
    ]


def _contents(files: list[SourceFile]) -> dict[str, set[Row]]:
    return {
        name: {tuple(row.values()) for row in table.to_pylist()} for name, table in read_tables(files).items()
    }
