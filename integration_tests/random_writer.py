"""A source's own application: commits random transactions and keeps a journal of what it did.

A process, `python -m integration_tests.random_writer`; its arguments are the source's name and kind, the
database's path, the journal's path, a seed and the number of transactions. Tables are bags without keys;
values come from a small domain, so rows repeat, and NULLs are frequent. Every committed transaction also
counts up the `tx` of a ticket row (all other columns -1), so that any state of the source tells which of
its transactions it reflects, whatever captures it.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import duckdb

TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "a": {"r": ("k", "x", "tx"), "s": ("x", "y")},
    "b": {"t": ("y", "z", "tx")},
    "c": {"u": ("z", "w", "tx"), "v": ("w", "q")},
}
"""Source → table → columns, all BIGINT. The table with `tx` holds the ticket."""
TICKET = -1

Row = tuple[int | None, ...]


class Database(Protocol):
    def execute(self, sql: str, parameters: Sequence[Any] = ...) -> Any: ...
    def close(self) -> None: ...


def connect(kind: str, path: str) -> Database:
    """A connection; one on DuckDB is retried while a wrapper reads the file."""
    if kind == "sqlite":
        connection = sqlite3.connect(path, isolation_level=None, timeout=60)
        connection.execute("PRAGMA journal_mode=WAL")
        return connection
    pause = threading.Event()
    for _ in range(3000):
        try:
            return duckdb.connect(path)
        except duckdb.IOException:
            pause.wait(0.01)
    raise TimeoutError(f"{path} stayed locked")


def create(source: str, kind: str, path: Path) -> None:
    """The source's empty tables with their ticket rows."""
    database = connect(kind, str(path))
    for table, columns in TABLES[source].items():
        database.execute(f"CREATE TABLE {table} ({', '.join(f'{c} BIGINT' for c in columns)})")
        database.execute(f"INSERT INTO {table} VALUES ({', '.join(str(v) for v in ticket(columns, 0))})")
    database.close()


def ticket(columns: Sequence[str], number: int) -> Row:
    return tuple(number if c == "tx" else TICKET for c in columns)


class Writer:
    """Random transactions on one source, and the bag of each of its tables as it knows it."""

    def __init__(self, source: str, kind: str, path: str, journal: Path, seed: int) -> None:
        self._kind, self._path = kind, path
        self._tables = TABLES[source]
        self._journal = journal.open("w")
        self._random = random.Random(seed)
        self._bags: dict[str, Counter[Row]] = {table: Counter() for table in self._tables}
        self._number = 0

    def run(self, transactions: int) -> None:
        """Commit that many transactions, at an application's pace."""
        pause = threading.Event()
        database = connect(self._kind, self._path)
        while self._number < transactions:
            burst = min(self._number + self._random.randint(1, 4), transactions)
            while self._number < burst:
                self._transaction(database)
            if self._kind == "duckdb":
                # A DuckDB file has one owner at a time: let readers in between.
                database.close()
                pause.wait(0.1)
                database = connect(self._kind, self._path)
            else:
                pause.wait(0.05)
        database.close()

    def _value(self, column: str) -> int | None:
        if column == "tx":
            return None
        return None if self._random.random() < 0.15 else self._random.randrange(4)

    def _transaction(self, database: Database) -> None:
        rollback = self._random.random() < 0.1
        changes: list[tuple[str, int, Row]] = []
        bags = {table: Counter(bag) for table, bag in self._bags.items()}
        database.execute("BEGIN IMMEDIATE" if self._kind == "sqlite" else "BEGIN")
        for _ in range(self._random.choice([0, 1, 1, 2, 5])):
            table = self._random.choice(list(self._tables))
            size = bags[table].total()
            if size and self._random.random() < (0.35 if size < 25 else 0.7):
                row = self._random.choice(sorted(bags[table].elements(), key=str))
                self._delete(database, table, row)
                changes.append((table, -1, row))
                bags[table][row] -= 1
                if self._random.random() < 0.4:  # an update is a deletion and an insertion
                    changes.append((table, 1, self._insert(database, table, bags)))
            else:
                changes.append((table, 1, self._insert(database, table, bags)))
        for table, columns in self._tables.items():
            if "tx" in columns:
                database.execute(f"UPDATE {table} SET tx = ? WHERE tx IS NOT NULL", [self._number + 1])
        if rollback:
            database.execute("ROLLBACK")
            return
        database.execute("COMMIT")
        self._number += 1
        self._bags = {table: +bag for table, bag in bags.items()}
        self._journal.write(json.dumps(changes) + "\n")
        self._journal.flush()

    def _insert(self, database: Database, table: str, bags: dict[str, Counter[Row]]) -> Row:
        row = tuple(self._value(c) for c in self._tables[table])
        marks = ", ".join("?" for _ in row)
        database.execute(f"INSERT INTO {table} VALUES ({marks})", row)
        bags[table][row] += 1
        return row

    def _delete(self, database: Database, table: str, row: Row) -> None:
        same = " AND ".join(f"{c} IS NOT DISTINCT FROM ?" for c in self._tables[table])
        database.execute(
            f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE {same} LIMIT 1)", row
        )


def read_journal(path: Path) -> list[list[tuple[str, int, Row]]]:
    """What each committed transaction did: (table, sign, row)."""
    with path.open() as lines:
        return [[(t, sign, tuple(row)) for t, sign, row in json.loads(line)] for line in lines]


if __name__ == "__main__":
    source_, kind_, path_, journal_, seed_, transactions_ = sys.argv[1:]
    Writer(source_, kind_, path_, Path(journal_), int(seed_)).run(int(transactions_))
