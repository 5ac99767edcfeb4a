"""The conformance kit on DuckDB files, with trigger capture and with diff capture."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from adapters.conformance import (
    Harness,
    Quirks,
    SqlWriter,
    Transaction,
    Writer,
    conformance_tests,
    in_process,
)
from adapters.duckdb.adapter import DuckDBAdapter
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
            super().run(script[start : start + TURN])
            self._stays = False
            self.close()

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
                parts = [f"{quote(column.name)} {DECLARED[column.type]}" for column in table.columns]
                if table.key:
                    parts.append(f"PRIMARY KEY ({', '.join(map(quote, table.key))})")
                connection.execute(f"CREATE TABLE {quote(table.name)} ({', '.join(parts)})")

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


class DuckDBDiffHarness(DuckDBHarness):
    """The same file, followed by comparing it with a shadow."""

    quirks = replace(DuckDBHarness.quirks, no_overwrite="")
    capture = "diff"


TestTrigger = conformance_tests(DuckDBHarness)
TestDiff = conformance_tests(DuckDBDiffHarness)
