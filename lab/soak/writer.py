"""A source's own application: random transactions until it is told to stop, or killed.

A process, `python -m lab.soak.writer KIND PATH SEED PAUSE RELATION...` (a relation with a ticket is written
`NAME+`). It writes what a transaction did into a journal table by that very transaction, so journal and data
never disagree, whenever it is killed. It goes on from what it finds. It stops when its standard input closes.
"""

from __future__ import annotations

import json
import os
import random
import select
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path

import duckdb

from lab.soak.kinds import KINDS, Database, Kind
from lab.soak.layout import JOURNAL, TICKET, Relation

_DOMAIN = 12
_MOST_ROWS = 10

Row = tuple[int | None, ...]


class Writer:
    """Random transactions on one source."""

    def __init__(
        self, kind: Kind, path: Path, relations: tuple[Relation, ...], seed: int, pause: float
    ) -> None:
        self._kind, self._path, self._relations, self._pause = kind, path, relations, pause
        self._random = random.Random(seed)
        self._bags: dict[str, Counter[Row]] = {}
        self._number = 0

    def run(self) -> None:
        database = self._open()
        while not _told_to_stop(0.0):
            for _ in range(self._random.randint(1, 4)):
                try:
                    self._transaction(database)
                except (sqlite3.OperationalError, duckdb.Error) as error:
                    print(f"a transaction failed and is tried again: {error}", flush=True)
                    database.close()
                    database = self._open()
            if self._kind.one_owner:
                database.close()
            stop = _told_to_stop(self._pause * self._random.uniform(0.5, 1.5))
            if self._kind.one_owner:
                if stop:
                    return
                database = self._kind.connect(self._path)
        database.close()

    def _open(self) -> Database:
        """A connection, with everything known about the source read anew."""
        database = self._kind.connect(self._path)
        ((number,),) = self._kind.rows(database, f"SELECT coalesce(max(tx), 0) FROM {JOURNAL}")
        self._number = int(number)
        for relation in self._relations:
            rows = self._kind.rows(database, f"SELECT {', '.join(relation.columns)} FROM {relation.name}")
            self._bags[relation.name] = Counter(row for row in rows if row[0] != TICKET)
        return database

    def _transaction(self, database: Database) -> None:
        changes: list[tuple[str, int, Row]] = []
        bags = {name: Counter(bag) for name, bag in self._bags.items()}
        database.execute(self._kind.begin)
        for _ in range(self._random.choice([0, 1, 1, 2, 5])):
            relation = self._random.choice(self._relations)
            bag = bags[relation.name]
            if bag.total() and self._random.random() < (0.4 if bag.total() < _MOST_ROWS else 0.75):
                row = self._random.choice(sorted(bag.elements(), key=str))
                self._kind.delete_one(database, relation, row)
                changes.append((relation.name, -1, row))
                bag[row] -= 1
            else:
                row = tuple(None if column == "tx" else self._value() for column in relation.columns)
                self._kind.insert(database, relation, row)
                changes.append((relation.name, 1, row))
                bag[row] += 1
        for relation in self._relations:
            if relation.ticketed:
                self._kind.set_ticket(database, relation, self._number + 1)
        if self._random.random() < 0.1:
            database.execute("ROLLBACK")
            return
        database.execute(f"INSERT INTO {JOURNAL} VALUES (?, ?)", [self._number + 1, json.dumps(changes)])
        database.execute("COMMIT")
        self._number += 1
        self._bags = {name: +bag for name, bag in bags.items()}

    def _value(self) -> int | None:
        return None if self._random.random() < 0.1 else self._random.randrange(_DOMAIN)


def _told_to_stop(seconds: float) -> bool:
    """Whether standard input closes within that time."""
    deadline = time.monotonic() + seconds
    while True:
        readable, _, _ = select.select([0], [], [], max(0.0, deadline - time.monotonic()))
        if readable and not os.read(0, 4096):
            return True
        if not readable:
            return False


if __name__ == "__main__":
    kind_, path_, seed_, pause_, *names_ = sys.argv[1:]
    print("writing", flush=True)
    Writer(
        KINDS[kind_],
        Path(path_),
        tuple(Relation(name.removesuffix("+"), name.endswith("+")) for name in names_),
        int(seed_),
        float(pause_),
    ).run()
