"""Whatever statement changes a captured table, the changes add up to what the table then holds."""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from adapters.sqlite.adapter import SqliteAdapter
from adapters.sqlite.tests.support import (
    WriteError,
    Writer,
    adapter_on,
    captured,
    changes,
    contents,
    deltas,
    net,
)
from algebra.errors import ConfigurationError
from algebra.position import ORIGIN


def assert_in_step(adapter: SqliteAdapter, *relations: str) -> None:
    run = changes(adapter, ORIGIN)
    for relation in relations:
        assert net(run, relation) == contents(adapter, relation)


def test_insert_update_delete(path: Path, writer: Writer) -> None:
    with captured(path, writer, "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT)") as adapter:
        writer(
            "INSERT INTO t VALUES (1, 'x'), (2, 'y')",
            "UPDATE t SET b = 'z' WHERE a = 1",
            "UPDATE t SET a = 7 WHERE a = 2",
            "DELETE FROM t",
        )
        assert deltas(changes(adapter, ORIGIN)) == [
            {"t": {(1, "x"): 1, (2, "y"): 1}},
            {"t": {(1, "x"): -1, (1, "z"): 1}},
            {"t": {(2, "y"): -1, (7, "y"): 1}},
            {"t": {(1, "z"): -1, (7, "y"): -1}},
        ]


def test_duplicates_in_a_table_without_a_key(path: Path, writer: Writer) -> None:
    with captured(path, writer, "CREATE TABLE t (a INT, b TEXT)") as adapter:
        writer("INSERT INTO t VALUES (1, 'x'), (1, 'x'), (1, 'x'), (NULL, NULL)")
        writer("DELETE FROM t WHERE rowid = 2", "UPDATE t SET b = 'y' WHERE rowid = 3")
        assert contents(adapter, "t") == Counter([(1, "x"), (1, "y"), (None, None)])
        assert_in_step(adapter, "t")


TABLES = {
    "integer key": "CREATE TABLE t (a INTEGER PRIMARY KEY, b INT UNIQUE, c TEXT)",
    "text key": "CREATE TABLE t (a TEXT PRIMARY KEY, b INT UNIQUE, c TEXT)",
    "no rowid": "CREATE TABLE t (a INT, b INT, c TEXT, PRIMARY KEY (b, a), UNIQUE (c)) WITHOUT ROWID",
    "no case": "CREATE TABLE t (a TEXT COLLATE NOCASE PRIMARY KEY, b INT, c TEXT, UNIQUE (b, c))",
    "no key": "CREATE TABLE t (a INT, b INT, c TEXT)",
    "partial": "CREATE TABLE t (a INT UNIQUE, b INT, c TEXT); CREATE UNIQUE INDEX p ON t (b) WHERE c > 'm'",
    "replacing": "CREATE TABLE t (a INTEGER PRIMARY KEY ON CONFLICT REPLACE, "
    "b INT UNIQUE ON CONFLICT REPLACE, c)",
    "own names": 'CREATE TABLE t (a INT UNIQUE, row_key INT UNIQUE, rel TEXT, "c0" INT AS (a + 1))',
    "hidden rowid": "CREATE TABLE t (rowid INT UNIQUE, oid INT, c TEXT)",
}


def statements(rnd: random.Random, columns: list[str]) -> Iterator[str]:
    """Random changes of a table of three columns with few values, so that conflicts are frequent."""
    a, b, c = columns

    def row() -> str:
        return f"{rnd.randrange(6)}, {rnd.randrange(6)}, '{rnd.choice('aAbmz')}'"

    while True:
        verb = rnd.choice(["INSERT OR REPLACE", "INSERT OR REPLACE", "INSERT OR IGNORE", "REPLACE", "INSERT"])
        yield f"{verb} INTO t ({a}, {b}, {c}) VALUES ({row()})"
        yield f"INSERT OR REPLACE INTO t ({a}, {b}, {c}) VALUES ({row()}), ({row()}), ({row()})"
        yield (
            f"INSERT INTO t ({a}, {b}, {c}) VALUES ({row()}) "
            f"ON CONFLICT DO UPDATE SET {c} = 'u{rnd.randrange(3)}', {b} = {b} + 1"
        )
        policy = rnd.choice(["", "OR REPLACE", "OR IGNORE", "OR REPLACE"])
        new_a, new_b, old_a = rnd.randrange(6), rnd.randrange(6), rnd.randrange(6)
        yield f"UPDATE {policy} t SET {a} = {new_a}, {b} = {new_b} WHERE {a} = {old_a}"
        yield f"UPDATE {policy} t SET {b} = {b} + 1"
        yield f"DELETE FROM t WHERE {b} = {rnd.randrange(6)}"


@pytest.mark.parametrize("recursive", ["OFF", "ON"])
@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_conflicts_of_every_kind_stay_in_step(path: Path, writer: Writer, table: str, recursive: str) -> None:
    rnd = random.Random(f"{table} {recursive}")
    with captured(path, writer, *table.split("; ")) as adapter:
        columns = [f'"{column.name}"' for column in adapter.catalog().relation("t").columns]
        writer(f"PRAGMA recursive_triggers = {recursive}")
        done = statements(rnd, columns[:3])
        for _ in range(25):
            kept = "ROLLBACK" if rnd.random() < 0.1 else "COMMIT"
            writer("BEGIN")
            for _ in range(rnd.randrange(1, 12)):
                # A refused statement changes nothing, and the transaction goes on.
                try_write(writer, next(done))
            writer(kept)
            assert_in_step(adapter, "t")


def try_write(writer: Writer, statement: str) -> None:
    """Run it, or have it refused for the writer's own constraints, never for those of capture."""
    try:
        writer(statement)
    except WriteError as error:
        if "constraint failed: t." not in str(error):
            raise


def test_the_rowid_of_a_table_without_a_key_can_be_replaced(path: Path, writer: Writer) -> None:
    with captured(path, writer, "CREATE TABLE t (a INT)") as adapter:
        writer("INSERT INTO t (rowid, a) VALUES (1, 10), (2, 20), (-1, 30)")
        writer("INSERT OR REPLACE INTO t (rowid, a) VALUES (2, 21)", "INSERT INTO t VALUES (40)")
        writer("UPDATE OR REPLACE t SET rowid = 1 WHERE rowid = 2")
        assert contents(adapter, "t") == Counter([(21,), (30,), (40,)])
        assert_in_step(adapter, "t")


def test_the_writers_own_triggers_may_interfere(path: Path, writer: Writer) -> None:
    """Between our BEFORE and AFTER triggers theirs may change the very rows that are about to be replaced."""
    schema = (
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b INT UNIQUE, c INT)",
        "CREATE TABLE audit (note TEXT)",
        "CREATE TRIGGER touch BEFORE INSERT ON t WHEN NEW.c = 1 BEGIN UPDATE t SET c = c + 100; END",
        "CREATE TRIGGER clear BEFORE INSERT ON t WHEN NEW.c = 2 BEGIN DELETE FROM t WHERE b = NEW.b; END",
        "CREATE TRIGGER more AFTER INSERT ON t WHEN NEW.c = 3 BEGIN "
        "INSERT OR REPLACE INTO t VALUES (NEW.a + 1, NEW.b + 1, 0); INSERT INTO audit VALUES ('more'); END",
        "CREATE TRIGGER move BEFORE INSERT ON t WHEN NEW.c = 4 "
        "BEGIN UPDATE t SET a = a + 50 WHERE a = NEW.a; END",
    )
    for order in ("ours first", "theirs first"):
        database = path.with_name(f"{order}.db")
        writer.open(database)
        rnd = random.Random(order)
        tables, own = schema[:2], schema[2:]
        with captured(database, writer, *tables, *(own if order == "theirs first" else ())) as adapter:
            if order == "ours first":
                writer(*own)
            for _ in range(120):
                row = f"{rnd.randrange(8)}, {rnd.randrange(8)}, {rnd.randrange(5)}"
                verb = rnd.choice(["INSERT OR REPLACE INTO", "INSERT OR IGNORE INTO", "INSERT INTO"])
                try_write(writer, f"{verb} t VALUES ({row})")
            assert_in_step(adapter, "t", "audit")


def test_foreign_key_actions_are_captured(path: Path, writer: Writer) -> None:
    schema = (
        "CREATE TABLE parent (id INTEGER PRIMARY KEY, name TEXT UNIQUE)",
        "CREATE TABLE child "
        "(id INTEGER PRIMARY KEY, p INT REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE)",
        "CREATE TABLE loose (id INTEGER PRIMARY KEY, p INT REFERENCES parent ON DELETE SET NULL)",
    )
    with captured(path, writer, *schema) as adapter:
        writer("PRAGMA foreign_keys = ON", "INSERT INTO parent VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        writer(
            "INSERT INTO child VALUES (10, 1), (20, 2), (30, 3)", "INSERT INTO loose VALUES (1, 1), (3, 3)"
        )
        writer("UPDATE parent SET id = 5 WHERE id = 2", "DELETE FROM parent WHERE id = 1")
        writer("INSERT OR REPLACE INTO parent VALUES (9, 'c')")
        assert contents(adapter, "child") == Counter([(20, 5)])
        assert contents(adapter, "loose") == Counter([(1, None), (3, None)])
        assert_in_step(adapter, "parent", "child", "loose")


def test_ugly_identifiers(path: Path, writer: Writer) -> None:
    schema = (
        'CREATE TABLE "or""der; DROP" ("gro up" INTEGER PRIMARY KEY, "NEW" TEXT UNIQUE, "é\'s" INT)',
        'CREATE TABLE "select" ("t" INT, "OLD.a" INT, "c0" TEXT)',
        'CREATE TABLE "表" ("列" TEXT PRIMARY KEY)',
    )
    with captured(path, writer, *schema) as adapter:
        writer(
            'INSERT INTO "or""der; DROP" VALUES (1, \'x\', 2)',
            'REPLACE INTO "or""der; DROP" VALUES (2, \'x\', 3)',
        )
        writer(
            "INSERT INTO \"select\" VALUES (1, 2, '3')",
            'UPDATE "select" SET t = 5',
            "INSERT INTO \"表\" VALUES ('é')",
        )
        assert_in_step(adapter, 'or"der; DROP', "select", "表")
        assert contents(adapter, 'or"der; DROP') == Counter([(2, "x", 3)])


def test_a_unique_index_on_an_expression_is_refused_unless_nobody_replaces(
    path: Path, writer: Writer
) -> None:
    schema = ("CREATE TABLE t (a TEXT)", "CREATE UNIQUE INDEX u ON t (lower(a))")
    with pytest.raises(ConfigurationError, match="replace: never"), captured(path, writer, *schema):
        pass
    with captured(path, writer, replace="never") as adapter:
        writer("INSERT INTO t VALUES ('x')")
        assert_in_step(adapter, "t")


def test_an_upsert_reports_the_writers_own_conflict(path: Path, writer: Writer) -> None:
    """What capture sets aside must not turn the writer's errors into errors of its own tables."""
    with captured(path, writer, "CREATE TABLE t (a INTEGER PRIMARY KEY, b INT)") as adapter:
        writer("INSERT INTO t VALUES (1, 1)", "INSERT OR IGNORE INTO t VALUES (1, 2)")
        for policy in ("", "OR ABORT", "OR FAIL"):
            with pytest.raises(WriteError, match=r"UNIQUE constraint failed: t\.a"):
                writer(f"INSERT {policy} INTO t VALUES (1, 3)")
        assert_in_step(adapter, "t")


@pytest.mark.parametrize(
    ("table", "left", "renumber"),
    [
        (
            "CREATE TABLE t (a TEXT, b INT)",
            "INSERT OR IGNORE INTO t (rowid, a, b) VALUES (5, 'x', 0)",
            "VACUUM",
        ),
        ("CREATE TABLE t (a TEXT UNIQUE, b INT)", "INSERT OR IGNORE INTO t VALUES ('a5', 0)", "dump"),
        (
            "CREATE TABLE t (a TEXT UNIQUE, b INT)",
            "INSERT INTO t VALUES ('a5', 0) ON CONFLICT DO UPDATE SET b = 5",
            "dump",
        ),
    ],
)
@pytest.mark.parametrize(
    "first",
    [
        "INSERT INTO t VALUES ('new', 6)",
        "INSERT INTO t (rowid, a, b) VALUES (5, 'new', 6)",
        "INSERT OR REPLACE INTO t (rowid, a, b) VALUES (2, 'new', 6)",
        "UPDATE t SET b = 7 WHERE a = 'a3'",
        "UPDATE OR REPLACE t SET rowid = 5 WHERE a = 'a4'",
    ],
)
def test_a_conflict_of_before_rows_were_numbered_anew_is_forgotten(
    path: Path, writer: Writer, table: str, left: str, renumber: str, first: str
) -> None:
    with captured(path, writer, table) as adapter:
        writer("INSERT INTO t VALUES ('a1', 1), ('a2', 2), ('a3', 3), ('a4', 4), ('a5', 5)")
        writer("DELETE FROM t WHERE b < 3", left)
        assert writer("SELECT count(*) FROM _lockstep_replaced") == [[1]]
        if renumber == "VACUUM":
            writer("VACUUM")
    database = path
    if renumber == "dump":
        database = path.with_name("read back.db")
        read_back(path, database)
        writer.open(database)
    assert writer("SELECT a, rowid FROM t") == [["a3", 1], ["a4", 2], ["a5", 3]]
    with adapter_on(database) as adapter:
        writer(first, "INSERT OR REPLACE INTO t (rowid, a, b) VALUES (1, 'replacing', 8)")
        assert_in_step(adapter, "t")


def read_back(path: Path, copy: Path) -> None:
    """A dump of the database, made into another one; in another process, for that has another library."""
    script = """
import sqlite3, sys
dump = "\\n".join(sqlite3.connect(sys.argv[1]).iterdump())
sqlite3.connect(sys.argv[2]).executescript(dump)
"""
    subprocess.run([sys.executable, "-c", script, str(path), str(copy)], check=True)
