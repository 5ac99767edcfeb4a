"""SQLite files for the conformance kit, in write-ahead mode and with a rollback journal.

This process must not open the file by Python's sqlite3: that is a second SQLite library beside the
adapter's, and closing one library's descriptors drops the other's locks. Whatever the harness does to the
file, it does in another process.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from adapters.conformance import (
    Disturbance,
    DropColumn,
    Harness,
    LoseCapture,
    Quirks,
    RetypeColumn,
    SchemaChange,
    SqlWriter,
    Stored,
    Writer,
    alter_table,
    altered,
    disturb_table,
    in_process,
)
from adapters.spi import Adapter, SourceConfig
from adapters.sqlite.adapter import SqliteAdapter
from adapters.sqlite.capture import LOG
from algebra.position import Position
from algebra.schema import RelationSchema

DECLARED = {
    pa.int64(): "INTEGER",
    pa.float64(): "REAL",
    pa.decimal128(18, 4): "DECIMAL(18, 4)",
    pa.string(): "TEXT",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
}

BUSY_SECONDS = 60.0

SCRIPT = """
import json, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA synchronous = OFF")
for statement in json.loads(sys.argv[2]):
    rows = connection.execute(statement).fetchall()
print(json.dumps(rows))
"""


def elsewhere(path: Path, statements: Sequence[str]) -> list[Any]:
    """The rows of the last statement, all executed in a process that ends."""
    command = [sys.executable, "-S", "-c", SCRIPT, str(path), json.dumps(list(statements))]
    rows: list[Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return rows


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def create_table(table: RelationSchema) -> str:
    parts = [
        f"{quote(column.name)} {DECLARED[column.type]}{'' if column.nullable else ' NOT NULL'}"
        for column in table.columns
    ]
    if table.key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote, table.key))})")
    return f"CREATE TABLE {quote(table.name)} ({', '.join(parts)})"


class SqliteWriter(SqlWriter):
    """An application with Python's own SQLite; made in the writer process only."""

    same = "IS"

    def __init__(self, path: Path, tables: Sequence[RelationSchema], synchronous: str) -> None:
        super().__init__(tables)
        self._connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
        self._connection.execute(f"PRAGMA synchronous = {synchronous}")

    def begin(self) -> None:
        self.sql("BEGIN IMMEDIATE")

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        return self._connection.execute(statement, list(parameters)).rowcount

    def parameter(self, value: Any) -> Any:
        match value:
            case datetime():
                return value.isoformat(sep=" ")
            case date():
                return value.isoformat()
            case Decimal():
                return str(value)
        return value

    def close(self) -> None:
        self._connection.close()


class PromptlyTrimming(SqliteAdapter):
    """Trims with every acknowledgement: as far as trimming goes, a minute passes before each."""

    def __init__(self, config: SourceConfig) -> None:
        self._skipped = 0.0
        super().__init__(config, clock=lambda: time.monotonic() + self._skipped)

    def acknowledge(self, position: Position) -> None:
        self._skipped += 60.0
        super().acknowledge(position)


class SqliteHarness(Harness):
    """A SQLite file in write-ahead mode, where readers and a writer do not hinder each other."""

    quirks = Quirks(
        stored={
            pa.float64(): Stored(
                pa.float64(),
                "SQLite stores NaN as NULL and -0.0 as 0.0",
                lambda value: None if value != value else value + 0.0,
            ),
            pa.decimal128(18, 4): Stored(
                pa.decimal128(18, 4),
                "SQLite stores a decimal as a double, which holds 15 digits",
                holds=lambda value: len(value.as_tuple().digits) <= 15,
            ),
        },
        unsupported={pa.decimal128(38, 10): "SQLite stores a decimal as a double"},
        one_open_transaction=True,
        case_sensitive_names=False,
        workload=60,
        no_restart="a file, no server",
        no_disconnect="a file is opened, not connected to",
        no_rights="SQLite has no users; who may not write the file is told by the file system",
    )
    options: ClassVar[Mapping[str, Any]] = {}
    synchronous: ClassVar[str] = "OFF"
    """Of its writers: what they commit survives their end, and not that of the machine."""

    @property
    def path(self) -> Path:
        return self.directory / "shop.db"

    def create(self, tables: Sequence[RelationSchema]) -> None:
        self._tables = tuple(tables)
        elsewhere(self.path, [create_table(table) for table in tables])

    def writer(self, number: int) -> Writer:
        return in_process(number, SqliteWriter, self.path, self._tables, self.synchronous)

    def adapter(self, relations: tuple[str, ...] | None = None) -> Adapter:
        url = f"sqlite:///{self.path}"
        return PromptlyTrimming(SourceConfig("shop", "sqlite", url, relations, options=self.options))

    def objects(self) -> frozenset[str]:
        rows = elsewhere(self.path, ["SELECT type || ' ' || name FROM sqlite_schema"])
        return frozenset(name for (name,) in rows)

    def alter(self, change: SchemaChange) -> None:
        self._tables = altered(self._tables, change)
        if isinstance(change, RetypeColumn | DropColumn):
            # There is no statement to retype, and triggers forbid the one to drop: SQLite's documentation
            # says to copy the table.
            new = next(table for table in self._tables if table.name == change.relation)
            old, copy = quote(change.relation), quote("copy of " + change.relation)
            columns = ", ".join(quote(column.name) for column in new.columns)
            elsewhere(
                self.path,
                [
                    "BEGIN",
                    create_table(replace(new, name="copy of " + change.relation)),
                    f"INSERT INTO {copy} SELECT {columns} FROM {old}",
                    f"DROP TABLE {old}",
                    f"ALTER TABLE {copy} RENAME TO {old}",
                    "COMMIT",
                ],
            )
        else:
            elsewhere(self.path, [alter_table(change, quote, DECLARED)])

    def disturb(self, disturbance: Disturbance) -> None:
        if isinstance(disturbance, LoseCapture):
            condition = f"type = 'trigger' AND tbl_name = '{disturbance.table.name}'"
            triggers = elsewhere(self.path, [f"SELECT name FROM sqlite_schema WHERE {condition}"])
            statements = [f"DROP TRIGGER {quote(name)}" for (name,) in triggers]
        else:
            statements = disturb_table(disturbance, quote, create_table, truncate="DELETE FROM")
        elsewhere(self.path, ["BEGIN", *statements, "COMMIT"])

    def history_size(self) -> int:
        return int(elsewhere(self.path, [f"SELECT count(*) FROM {LOG}"])[0][0])


class RollbackJournalHarness(SqliteHarness):
    """The same file where the journal mode is left alone: a reader holds up who wants to commit."""

    quirks = replace(SqliteHarness.quirks, overlap=False, workload=20)
    options: ClassVar[Mapping[str, Any]] = {"journal": "keep"}


class WalHarness(SqliteHarness):
    """A file that was in write-ahead mode before: what is measured is what capture costs beside that."""

    synchronous: ClassVar[str] = "FULL"

    def create(self, tables: Sequence[RelationSchema]) -> None:
        super().create(tables)
        elsewhere(self.path, ["PRAGMA journal_mode = WAL"])


HARNESSES = {"trigger": WalHarness}
"""By capture style, for `lockstep bench capture`."""
