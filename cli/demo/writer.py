"""A writer process: runs one source's transactions and records each in the journal once it is committed.

    python -m cli.demo.writer SOURCE FOLDER SEED SECONDS TRANSACTIONS

SECONDS and TRANSACTIONS are limits, 0 means none. It stops at the first, on SIGTERM, or when stdin closes.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from cli.demo import journal
from cli.demo.layout import SOURCES, Source
from cli.demo.model import Change, Tables, statement
from cli.demo.workload import Workload, initial

_ROLLBACKS = 0.05
"""The share of transactions that do all their work and are rolled back."""


class Database(ABC):
    """The writer's own connection to a source: plain SQL, nothing of Lockstep."""

    pause: float
    """Mean seconds between two bursts."""
    burst: int
    """Transactions in one burst at most."""

    def __init__(self, source: Source, folder: Path) -> None:
        self.source = source
        self.path = source.path(folder)

    @abstractmethod
    @contextmanager
    def session(self) -> Iterator[Any]:
        """A connection for one burst."""

    def run(self, connection: Any, changes: Sequence[Change], *, commit: bool) -> None:
        """One transaction with these changes."""
        connection.execute(self.begin)
        for change in changes:
            connection.execute(*statement(self.source, change))
        connection.execute("COMMIT" if commit else "ROLLBACK")

    begin = "BEGIN"


class SqliteDatabase(Database):
    """SQLite: the connection stays open, as an application's would."""

    pause, burst = 0.035, 1
    begin = "BEGIN IMMEDIATE"

    def __init__(self, source: Source, folder: Path) -> None:
        super().__init__(source, folder)
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def session(self) -> Iterator[sqlite3.Connection]:
        if self._connection is None:
            self._connection = sqlite3.connect(self.path, timeout=30, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
        yield self._connection


class DuckDBDatabase(Database):
    """DuckDB: one process owns the file for writing, so a burst opens and closes it."""

    pause, burst = 0.4, 6

    @contextmanager
    def session(self) -> Iterator[Any]:
        import duckdb

        deadline = time.monotonic() + 30
        while True:
            try:
                connection = duckdb.connect(str(self.path))
                break
            except duckdb.IOException:  # a reader has it open
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        try:
            yield connection
        finally:
            connection.close()


def database(source: Source, folder: Path) -> Database:
    """The source's database."""
    return (SqliteDatabase if source.adapter == "sqlite" else DuckDBDatabase)(source, folder)


def create(source: Source, folder: Path, seed: int) -> None:
    """Create the source's file with its initial rows, and start its journal."""
    changes = initial(source, _random(source, seed))
    base = database(source, folder)
    with base.session() as connection:
        for table in source.tables:
            connection.execute(table.ddl)
        base.run(connection, changes, commit=True)
        connection.close()
    journal.append(source.journal(folder), 0, time.time(), changes)


def write(source: Source, folder: Path, seed: int, limits: Limits) -> int:
    """Run transactions until a limit is reached; returns how many were committed."""
    tables, number = Tables(source), 0
    for entry in journal.read(source.journal(folder)):
        tables.apply(entry.changes)
        number = entry.number
    random = _random(source, seed + 1)
    workload = Workload(tables, random)
    base = database(source, folder)
    first = number
    while not limits.reached(number - first):
        with base.session() as connection:
            for _ in range(random.randint(1, base.burst)):
                if limits.reached(number - first):
                    break
                changes = workload.transaction(number + 1)
                commit = random.random() >= _ROLLBACKS
                base.run(connection, changes, commit=commit)
                if commit:
                    number += 1
                    journal.append(source.journal(folder), number, time.time(), changes)
                    tables.apply(changes)
        limits.sleep(random.expovariate(1 / base.pause))
    return number - first


class Limits:
    """When to stop: after some seconds, after some transactions, or when told to; 0 means no limit."""

    def __init__(self, seconds: float, transactions: int) -> None:
        self._deadline = time.monotonic() + seconds if seconds else None
        self._transactions = transactions
        self.stop = threading.Event()

    def reached(self, transactions: int) -> bool:
        late = self._deadline is not None and time.monotonic() >= self._deadline
        return self.stop.is_set() or late or (0 < self._transactions <= transactions)

    def sleep(self, seconds: float) -> None:
        self.stop.wait(seconds)


def _random(source: Source, seed: int) -> Random:
    return Random(f"{source.name} {seed}")


def main() -> None:
    """The process."""
    name, folder, seed, seconds, transactions = sys.argv[1:]
    limits = Limits(float(seconds), int(transactions))

    def until_stdin_closes() -> None:
        while os.read(0, 4096):
            pass
        limits.stop.set()

    signal.signal(signal.SIGTERM, lambda *_: limits.stop.set())
    threading.Thread(target=until_stdin_closes, daemon=True).start()
    write(SOURCES[name], Path(folder), int(seed), limits)


if __name__ == "__main__":
    main()
