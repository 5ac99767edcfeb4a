"""The kinds of source that a soak can use: how each is made, written, locked and configured.

A new kind of source joins by a class here and an entry in `KINDS`; nothing else here knows databases.
"""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

import duckdb

from lab.soak.layout import JOURNAL, Relation

PATIENCE_SECONDS = 120.0
_PAUSE = 0.01


class Database(Protocol):
    """A connection that is in no transaction unless `begin` was executed."""

    def execute(self, sql: str, parameters: Sequence[Any] = ...) -> Any: ...
    def close(self) -> None: ...


class Kind(ABC):
    """One kind of source."""

    one_owner: ClassVar[bool] = False
    """Readers get in only while nobody has the database open for writing."""
    begin: ClassVar[str] = "BEGIN"

    @abstractmethod
    def section(self, path: Path) -> Mapping[str, Any]:
        """The source's section of the configuration, without `relations` and `listen`."""

    @abstractmethod
    def connect(self, path: Path) -> Database:
        """A connection for writing; waits while others are in the way."""

    @contextmanager
    def locked(self, path: Path) -> Iterator[None]:
        """Nobody else can write, and where there is one owner read, meanwhile."""
        database = self.connect(path)
        try:
            database.execute(self.begin)
            yield
            database.execute("ROLLBACK")
        finally:
            database.close()

    def create(self, path: Path, relations: Sequence[Relation]) -> None:
        """The empty relations with their tickets, and the journal."""
        database = self.connect(path)
        for relation in relations:
            columns = ", ".join(f"{column} BIGINT" for column in relation.columns)
            database.execute(f"CREATE TABLE {relation.name} ({columns})")
            self.insert(database, relation, relation.ticket(0))
        database.execute(f"CREATE TABLE {JOURNAL} (tx BIGINT, changes TEXT)")
        database.close()

    def insert(self, database: Database, relation: Relation, row: Sequence[int | None]) -> None:
        database.execute(f"INSERT INTO {relation.name} VALUES ({', '.join('?' for _ in row)})", row)

    def delete_one(self, database: Database, relation: Relation, row: Sequence[int | None]) -> None:
        """Delete one of the rows that equal this one."""
        same = " AND ".join(f"{column} IS NOT DISTINCT FROM ?" for column in relation.columns)
        database.execute(
            f"DELETE FROM {relation.name} WHERE rowid IN "
            f"(SELECT rowid FROM {relation.name} WHERE {same} LIMIT 1)",
            row,
        )

    def set_ticket(self, database: Database, relation: Relation, number: int) -> None:
        database.execute(f"UPDATE {relation.name} SET tx = ? WHERE tx IS NOT NULL", [number])

    def rows(self, database: Database, sql: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in database.execute(sql).fetchall()]


class Sqlite(Kind):
    """A SQLite file in the given journal mode."""

    begin = "BEGIN IMMEDIATE"

    def __init__(self, journal_mode: str) -> None:
        self._mode = journal_mode

    def section(self, path: Path) -> Mapping[str, Any]:
        options = {} if self._mode == "WAL" else {"journal": "keep"}
        return {"adapter": "sqlite", "url": f"sqlite:///{path}", "options": options}

    def connect(self, path: Path) -> Database:
        connection = sqlite3.connect(path, isolation_level=None, timeout=PATIENCE_SECONDS)
        connection.execute(f"PRAGMA journal_mode = {self._mode}")
        return connection


class Duckdb(Kind):
    """A DuckDB file with the given capture."""

    one_owner = True

    def __init__(self, capture: str) -> None:
        self._capture = capture

    def section(self, path: Path) -> Mapping[str, Any]:
        return {"adapter": "duckdb", "url": f"duckdb:///{path}", "capture": self._capture}

    def connect(self, path: Path) -> Database:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return duckdb.connect(path)
            except duckdb.IOException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE)


KINDS: Mapping[str, Kind] = {
    "sqlite-wal": Sqlite("WAL"),
    "sqlite-journal": Sqlite("DELETE"),
    "duckdb-trigger": Duckdb("trigger"),
    "duckdb-diff": Duckdb("diff"),
}
"""By name; the names are what `--source` of `lockstep lab soak` takes."""
