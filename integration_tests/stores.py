"""A source as its own application sees it, whatever database it is: transactions on tables without keys."""

from __future__ import annotations

import csv
import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import duckdb

Row = tuple[int | None, ...]
Tables = Mapping[str, tuple[str, ...]]
"""Table → columns, all BIGINT."""


class Database(Protocol):
    def execute(self, sql: str, parameters: Sequence[Any] = ...) -> Any: ...
    def close(self) -> None: ...


class Store(Protocol):
    """At most one transaction is open."""

    def create(self, first: Mapping[str, Row]) -> None:
        """Make the tables, each with one row."""

    def begin(self) -> None: ...

    def insert(self, table: str, row: Row) -> None: ...

    def delete(self, table: str, row: Row) -> None:
        """Remove one copy of the row."""

    def stamp(self, table: str, number: int) -> None:
        """Set `tx` in the only row that has one."""

    def commit(self) -> None: ...

    def rollback(self) -> None: ...

    def close(self) -> None: ...


def connect(kind: str, where: str) -> Database:
    """A connection that commits when told to; one on DuckDB is retried while a wrapper reads the file."""
    if kind == "sqlite":
        connection = sqlite3.connect(where, isolation_level=None, timeout=60)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")
        return connection
    if kind == "postgresql":
        import psycopg

        return psycopg.connect(where, autocommit=True)
    if kind == "mariadb":
        return MariaDB(where)
    pause = threading.Event()
    for _ in range(3000):
        try:
            return duckdb.connect(where)
        except duckdb.IOException:
            pause.wait(0.01)
    raise TimeoutError(f"{where} stayed locked")


class MariaDB:
    """PyMySQL behind the few calls that the other drivers have in common."""

    def __init__(self, url: str) -> None:
        from urllib.parse import unquote, urlsplit

        import pymysql

        parts = urlsplit(url)
        self._connection = pymysql.connect(
            host=parts.hostname or "",
            port=parts.port or 0,
            user=unquote(parts.username or ""),
            password=unquote(parts.password or ""),
            database=parts.path.strip("/"),
            autocommit=True,
        )

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        with self._connection.cursor() as cursor:
            cursor.execute(sql, parameters)

    def close(self) -> None:
        self._connection.close()


_ONE_COPY = {
    "sqlite": "rowid IN (SELECT rowid FROM {table} WHERE {same} LIMIT 1)",
    "duckdb": "rowid IN (SELECT rowid FROM {table} WHERE {same} LIMIT 1)",
    "postgresql": "ctid IN (SELECT ctid FROM {table} WHERE {same} LIMIT 1)",
    "mariadb": "{same} LIMIT 1",
}
"""What picks one of several equal rows."""


class SqlStore:
    """Tables in a database that speaks SQL."""

    def __init__(self, kind: str, where: str, tables: Tables) -> None:
        self._kind, self._tables = kind, tables
        self._slot = "?" if kind in ("sqlite", "duckdb") else "%s"
        self._equal = "<=>" if kind == "mariadb" else "IS NOT DISTINCT FROM"
        self._database = connect(kind, where)

    def create(self, first: Mapping[str, Row]) -> None:
        for table, columns in self._tables.items():
            self._database.execute(f"CREATE TABLE {table} ({', '.join(f'{c} BIGINT' for c in columns)})")
            self.insert(table, first[table])

    def begin(self) -> None:
        self._database.execute("BEGIN IMMEDIATE" if self._kind == "sqlite" else "BEGIN")

    def insert(self, table: str, row: Row) -> None:
        self._database.execute(f"INSERT INTO {table} VALUES ({', '.join([self._slot] * len(row))})", row)

    def delete(self, table: str, row: Row) -> None:
        same = " AND ".join(f"{column} {self._equal} {self._slot}" for column in self._tables[table])
        one = _ONE_COPY[self._kind].format(table=table, same=same)
        self._database.execute(f"DELETE FROM {table} WHERE {one}", row)

    def stamp(self, table: str, number: int) -> None:
        self._database.execute(f"UPDATE {table} SET tx = {self._slot} WHERE tx IS NOT NULL", (number,))

    def commit(self) -> None:
        self._database.execute("COMMIT")

    def rollback(self) -> None:
        self._database.execute("ROLLBACK")

    def close(self) -> None:
        self._database.close()


class CsvStore:
    """One table as a file in a folder; a commit replaces the file."""

    def __init__(self, folder: str, tables: Tables) -> None:
        ((self._table, self._columns),) = tables.items()
        self._file = Path(folder) / f"{self._table}.csv"
        self._rows: list[Row] = []
        if self._file.exists():
            with self._file.open(newline="") as file:
                self._rows = [
                    tuple(int(value) if value else None for value in row)
                    for row in list(csv.reader(file))[1:]
                ]
        self._open = list(self._rows)

    def create(self, first: Mapping[str, Row]) -> None:
        self.begin()
        self.insert(self._table, first[self._table])
        self.commit()

    def begin(self) -> None:
        self._open = list(self._rows)

    def insert(self, table: str, row: Row) -> None:
        self._open.append(row)

    def delete(self, table: str, row: Row) -> None:
        self._open.remove(row)

    def stamp(self, table: str, number: int) -> None:
        tx = self._columns.index("tx")
        self._open = [row if row[tx] is None else (*row[:tx], number, *row[tx + 1 :]) for row in self._open]

    def commit(self) -> None:
        draft = self._file.with_suffix(".draft")
        with draft.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(self._columns)
            writer.writerows(self._open)
        os.replace(draft, self._file)
        self._rows = self._open

    def rollback(self) -> None:
        self._open = list(self._rows)

    def close(self) -> None:
        """Nothing is kept open."""


def open_store(kind: str, where: str, tables: Tables) -> Store:
    """The source's store; `where` is a file, a folder, or a database's url."""
    return CsvStore(where, tables) if kind == "csv" else SqlStore(kind, where, tables)
