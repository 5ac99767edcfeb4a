"""A source's own application: commits random transactions and keeps a journal of what it did.

A process, `python -m integration_tests.random_writer`; its arguments are the source's name and kind, where
its database is, the journal's path, a seed, the number of transactions, and how large the source is. Tables
are bags without keys; values come from a small domain, so rows repeat, and NULLs are frequent. Every
committed transaction also counts up the `tx` of a ticket row (all other columns -1), so that any state of the
source tells which of its transactions it reflects, whatever captures it.
"""

from __future__ import annotations

import json
import random
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration_tests.stores import Row, Store, open_store

TABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "a": {"r": ("k", "x", "tx"), "s": ("x", "y")},
    "b": {"t": ("y", "z", "tx")},
    "c": {"u": ("z", "w", "tx"), "v": ("w", "q")},
    "d": {"m": ("q", "n", "tx")},
    "e": {"f": ("n", "g", "tx")},
}
"""Source → table → columns, all BIGINT: a chain, each table joined to the next by the column they share. One
table of each source has `tx`, and so the ticket."""
TICKET = -1


@dataclass(frozen=True)
class Size:
    """How many different values a column has, and about how many rows a table."""

    values: int
    rows: int


SMALL = Size(values=4, rows=25)


def create(source: str, kind: str, where: str) -> None:
    """The source's empty tables with their ticket rows."""
    store = open_store(kind, where, TABLES[source])
    store.create({table: ticket(columns, 0) for table, columns in TABLES[source].items()})
    store.close()


def ticket(columns: Sequence[str], number: int) -> Row:
    return tuple(number if c == "tx" else TICKET for c in columns)


class Writer:
    """Random transactions on one source, and the bag of each of its tables as it knows it."""

    def __init__(self, source: str, kind: str, where: str, journal: Path, seed: int, size: Size) -> None:
        self._kind, self._where = kind, where
        self._tables, self._size = TABLES[source], size
        self._journal = journal.open("w")
        self._random = random.Random(seed)
        self._bags: dict[str, Counter[Row]] = {table: Counter() for table in self._tables}
        self._number = 0

    def run(self, transactions: int) -> None:
        """Commit that many transactions, at an application's pace."""
        pause = threading.Event()
        store = self._opened()
        while self._number < transactions:
            burst = min(self._number + self._random.randint(1, 4), transactions)
            while self._number < burst:
                self._transaction(store)
            if self._kind == "duckdb":
                # A DuckDB file has one owner at a time: let readers in between.
                store.close()
                pause.wait(0.1)
                store = self._opened()
            else:
                pause.wait(0.05)
        store.close()

    def _opened(self) -> Store:
        return open_store(self._kind, self._where, self._tables)

    def _value(self, column: str) -> int | None:
        if column == "tx":
            return None
        return None if self._random.random() < 0.15 else self._random.randrange(self._size.values)

    def _transaction(self, store: Store) -> None:
        rollback = self._random.random() < 0.1
        changes: list[tuple[str, int, Row]] = []
        bags = {table: Counter(bag) for table, bag in self._bags.items()}
        store.begin()
        for _ in range(self._random.choice([0, 1, 1, 2, 5])):
            table = self._random.choice(list(self._tables))
            size = bags[table].total()
            if size and self._random.random() < (0.35 if size < self._size.rows else 0.7):
                row = self._random.choice(sorted(bags[table].elements(), key=str))
                store.delete(table, row)
                changes.append((table, -1, row))
                bags[table][row] -= 1
                if self._random.random() < 0.4:  # an update is a deletion and an insertion
                    changes.append((table, 1, self._insert(store, table, bags)))
            else:
                changes.append((table, 1, self._insert(store, table, bags)))
        for table, columns in self._tables.items():
            if "tx" in columns:
                store.stamp(table, self._number + 1)
        if rollback:
            store.rollback()
            return
        store.commit()
        self._number += 1
        self._bags = {table: +bag for table, bag in bags.items()}
        self._journal.write(json.dumps(changes) + "\n")
        self._journal.flush()

    def _insert(self, store: Store, table: str, bags: dict[str, Counter[Row]]) -> Row:
        row = tuple(self._value(c) for c in self._tables[table])
        store.insert(table, row)
        bags[table][row] += 1
        return row


def read_journal(path: Path) -> list[list[tuple[str, int, Row]]]:
    """What each committed transaction did: (table, sign, row)."""
    with path.open() as lines:
        return [[(t, sign, tuple(row)) for t, sign, row in json.loads(line)] for line in lines]


if __name__ == "__main__":
    source_, kind_, where_, journal_, *numbers = sys.argv[1:]
    seed_, transactions_, values_, rows_ = map(int, numbers)
    Writer(source_, kind_, where_, Path(journal_), seed_, Size(values_, rows_)).run(transactions_)
