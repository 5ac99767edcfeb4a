"""The three source databases: files with the base tables, their keys and indexes on foreign keys.

Loading is slow and every run needs untouched sources, so they are built once per scale factor and copied.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lab.bench.dataset import Dataset
from lab.bench.workload import INTEGER, SOURCES, Table, tables_of

if TYPE_CHECKING:
    import pyarrow as pa

SQLITE = "sqlite"
DUCKDB = "duckdb"
_SUFFIX = {SQLITE: ".db", DUCKDB: ".duckdb"}


@dataclass(frozen=True)
class SourceFile:
    """One source's database file and the adapter that reads it."""

    source: str
    adapter: str
    path: Path

    @property
    def url(self) -> str:
        """The file as the adapter's URL."""
        return f"{self.adapter}:///{self.path}"


def build_sources(dataset: Dataset, directory: Path, adapters: Mapping[str, str]) -> list[SourceFile]:
    """Files with the base tables in `directory`, one per source; files that are there already are kept.

    `adapters` names the adapter of each source that is not an SQLite file.
    """
    directory.mkdir(parents=True, exist_ok=True)
    files = []
    for source in SOURCES:
        adapter = adapters.get(source, SQLITE)
        file = SourceFile(source, adapter, directory / f"{source}{_SUFFIX[adapter]}")
        if not file.path.exists():
            _build(file, dataset)
        files.append(file)
    return files


def copy_sources(files: list[SourceFile], directory: Path) -> list[SourceFile]:
    """Copies of those files in `directory`, for one run."""
    directory.mkdir(parents=True, exist_ok=True)
    return [replace(file, path=Path(shutil.copy(file.path, directory))) for file in files]


def read_tables(files: list[SourceFile]) -> dict[str, pa.Table]:
    """Every base table as it is now in the sources, read around Lockstep."""
    return {table.name: _read(file, table) for file in files for table in tables_of(file.source)}


def _build(file: SourceFile, dataset: Dataset) -> None:
    partial = replace(file, path=file.path.with_name(f"{file.path.name}.partial"))
    partial.path.unlink(missing_ok=True)
    if file.adapter == SQLITE:
        _build_sqlite(partial.path, file.source, dataset)
    else:
        _build_duckdb(partial.path, file.source, dataset)
    partial.path.rename(file.path)


def _build_sqlite(path: Path, source: str, dataset: Dataset) -> None:
    import pyarrow.parquet as pq

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")  # stays with the file
    connection.execute("BEGIN")
    for table in tables_of(source):
        connection.execute(_create(table, {INTEGER: "INTEGER"}))
        marks = ", ".join("?" * len(table.columns))
        for batch in pq.ParquetFile(dataset.base(table.name)).iter_batches():
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            connection.executemany(f"INSERT INTO {table.name} VALUES ({marks})", rows)
        for column in table.indexes:
            connection.execute(_index(table, column))
    connection.execute("COMMIT")
    connection.close()


def _build_duckdb(path: Path, source: str, dataset: Dataset) -> None:
    import duckdb

    with duckdb.connect(str(path)) as connection:
        for table in tables_of(source):
            connection.execute(_create(table, {}))
            parquet = dataset.base(table.name)
            connection.execute(f"INSERT INTO {table.name} SELECT * FROM read_parquet('{parquet}')")
            for column in table.indexes:
                connection.execute(_index(table, column))


def _create(table: Table, types: Mapping[str, str]) -> str:
    columns = [f"{name} {types.get(kind, kind)} NOT NULL" for name, kind in table.columns]
    columns.append(f"PRIMARY KEY ({', '.join(table.key)})")
    return f"CREATE TABLE {table.name} ({', '.join(columns)})"


def _index(table: Table, column: str) -> str:
    return f"CREATE INDEX {table.name}_{column} ON {table.name} ({column})"


def _read(file: SourceFile, table: Table) -> pa.Table:
    import pyarrow as pa

    select = f"SELECT {', '.join(table.column_names)} FROM {table.name}"
    if file.adapter == DUCKDB:
        import duckdb

        with duckdb.connect(str(file.path), read_only=True) as database:
            return database.sql(select).to_arrow_table()
    connection = sqlite3.connect(file.path)
    try:
        rows = connection.execute(select).fetchall()
    finally:
        connection.close()
    types = [pa.int64() if kind == INTEGER else pa.string() for _, kind in table.columns]
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, types, strict=True)]
    return pa.table(arrays, names=list(table.column_names))
