"""DuckDB files for the conformance kit, with trigger capture and with diff capture."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from adapters.conformance import (
    Disturbance,
    Harness,
    LoseCapture,
    Quirks,
    SchemaChange,
    SqlWriter,
    Transaction,
    Writer,
    alter_table,
    altered,
    disturb_table,
    in_process,
)
from adapters.duckdb.adapter import DuckDBAdapter
from adapters.duckdb.trigger_layout import COMMITS
from adapters.shadow.store import shadow_file
from adapters.spi import Adapter, SourceConfig
from algebra.schema import RelationSchema

DECLARED = {
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.decimal128(18, 4): "DECIMAL(18, 4)",
    pa.decimal128(38, 10): "DECIMAL(38, 10)",
    pa.string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.bool_(): "BOOLEAN",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
}

LOCK_PAUSE = 0.002

TURN = 3
"""Transactions that the owner runs before it lets go of the file."""


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def create_table(table: RelationSchema) -> str:
    parts = [f"{quote(column.name)} {DECLARED[column.type]}" for column in table.columns]
    if table.key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote, table.key))})")
    return f"CREATE TABLE {quote(table.name)} ({', '.join(parts)})"


def _count(path: Path, table: str) -> int:
    with duckdb.connect(str(path), read_only=True) as connection:
        found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(found[0]) if found else 0


class DuckDBWriter(SqlWriter):
    """The file's owner: opens it, runs a few transactions, and closes it, so that others get their turn."""

    def __init__(self, path: Path, tables: Sequence[RelationSchema]) -> None:
        super().__init__(tables)
        self._path = path
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._stays = False

    def run(self, transactions: Iterable[Transaction]) -> None:
        script = list(transactions)
        for start in range(0, len(script), TURN):
            self._open()
            self._stays = True
            try:
                super().run(script[start : start + TURN])
            finally:
                self._stays = False
                self.close()  # also if it failed: others would wait for the file for ever

    def begin(self) -> None:
        self._open()
        super().begin()

    def _open(self) -> None:
        while self._connection is None:
            try:
                self._connection = duckdb.connect(str(self._path))
            except duckdb.IOException:
                time.sleep(LOCK_PAUSE)  # DuckDB offers nothing to wait on for a file that is held open

    def commit(self) -> None:
        super().commit()
        if not self._stays:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def sql(self, statement: str, parameters: Sequence[Any] = ()) -> int:
        assert self._connection is not None
        touched = self._connection.execute(statement, list(parameters)).fetchone()
        return int(touched[0]) if touched else -1


class DuckDBHarness(Harness):
    """A DuckDB file. One process has it open at a time, so nothing overlaps."""

    quirks = Quirks(
        overlap=False,
        case_sensitive_names=False,
        workload=12,
        no_savepoints="DuckDB has none",
        no_restart="a file, no server",
        no_disconnect="a file is opened, not connected to",
        no_rights="DuckDB has no users; who may not open the file is told by the file system",
        no_overwrite="DuckDB refuses ON CONFLICT DO UPDATE and MERGE where triggers look on",
    )
    capture = "trigger"

    @property
    def path(self) -> Path:
        return self.directory / "shop.duckdb"

    def create(self, tables: Sequence[RelationSchema]) -> None:
        self._tables = tuple(tables)
        with duckdb.connect(str(self.path)) as connection:
            for table in tables:
                connection.execute(create_table(table))

    def writer(self, number: int) -> Writer:
        return in_process(number, DuckDBWriter, self.path, self._tables)

    def adapter(self, relations: tuple[str, ...] | None = None) -> Adapter:
        # Trim at once: the kit acknowledges a handful of entries and looks at what became of them.
        options = {"trim_entries": 0, "trim_seconds": 0}
        return DuckDBAdapter(
            SourceConfig("shop", "duckdb", f"duckdb:///{self.path}", relations, self.capture, options)
        )

    def objects(self) -> frozenset[str]:
        with duckdb.connect(str(self.path), read_only=True) as connection:
            found = connection.execute(
                "SELECT 'table ' || schema_name || '.' || table_name FROM duckdb_tables()"
                " UNION ALL SELECT 'view ' || view_name FROM duckdb_views() WHERE NOT internal"
                " UNION ALL SELECT 'schema ' || schema_name FROM duckdb_schemas() WHERE NOT internal"
                " UNION ALL SELECT 'sequence ' || sequence_name FROM duckdb_sequences()"
                " UNION ALL SELECT 'trigger ' || trigger_name FROM duckdb_triggers()"
            ).fetchall()
        # The write-ahead log comes and goes with the owner.
        files = {path.name for path in self.directory.iterdir() if path.suffix != ".wal"}
        return frozenset({name for (name,) in found} | files)

    def alter(self, change: SchemaChange) -> None:
        before = next(table for table in self._tables if table.name == change.relation)
        self._tables = altered(self._tables, change)
        after = change.applied(before)
        kept = ", ".join(quote(column.name) for column in before.columns if after.has_column(column.name))
        with duckdb.connect(str(self.path)) as connection:
            try:
                connection.execute(alter_table(change, quote, DECLARED))
            except duckdb.DependencyException:
                # Triggers forbid it: the owner has to make the table anew.
                connection.execute(f"CREATE TEMP TABLE old AS SELECT {kept} FROM {quote(before.name)}")
                connection.execute(f"DROP TABLE {quote(before.name)}")
                connection.execute(create_table(after))
                connection.execute(f"INSERT INTO {quote(after.name)} SELECT * FROM old")

    def disturb(self, disturbance: Disturbance) -> None:
        with duckdb.connect(str(self.path)) as connection:
            if isinstance(disturbance, LoseCapture):
                name = disturbance.table.name
                found = connection.execute(
                    "SELECT trigger_name FROM duckdb_triggers() WHERE table_name = ?", [name]
                )
                statements = [f"DROP TRIGGER {quote(t)} ON {quote(name)}" for (t,) in found.fetchall()]
            else:
                statements = disturb_table(disturbance, quote, create_table)
            for statement in statements:
                connection.execute(statement)

    def history_size(self) -> int:
        return _count(self.path, COMMITS)


class DuckDBDiffHarness(DuckDBHarness):
    """The same file, followed by comparing it with a shadow."""

    quirks = replace(DuckDBHarness.quirks, no_overwrite="")
    capture = "diff"

    @property
    def shadow(self) -> Path:
        return shadow_file(self.path.with_name("shop.duckdb.lockstep-shadow"))

    def disturb(self, disturbance: Disturbance) -> None:
        if isinstance(disturbance, LoseCapture):
            self.shadow.unlink()
        else:
            super().disturb(disturbance)

    def history_size(self) -> int:
        return _count(self.shadow, "cycles")


HARNESSES = {"trigger": DuckDBHarness, "diff": DuckDBDiffHarness}
"""By capture style, for `lockstep bench capture`."""
