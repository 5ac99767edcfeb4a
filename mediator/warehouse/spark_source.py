"""Views as Spark tables: `spark.read.format("lockstep")` with the options `warehouse` and `view`.

Problem: a view at a version is a sum of counted rows over several Delta tables; Spark's own Delta reader
shows those tables, not the view.

Wrong ways: collecting the view on the driver; one partition per file, for equal rows of different files
have to meet.

Chosen way: Spark's Python Data Source API. The driver fixes the version and plans; each partition computes
the rows whose hash falls to it with DuckDB, straight from the Parquet files, and hands Arrow batches to
Spark. A view whose state is at the wanted version needs no summing: its partitions are its files' rows as
they stand.

Options: `warehouse` (its folder), `view`, `version` (default: the newest), `counted` (true: each row once,
with `_count`), `partitions` (default: one per 64 MB of files, at most 16). Types are those that the
warehouse stores: unsigned integers come as wider signed ones, times as microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import duckdb
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from algebra.errors import ConfigurationError
from algebra.schema import COUNT
from mediator.warehouse.scan import ViewSnapshot, counted_scan, repeated, visible_counted_scan
from mediator.warehouse.storage import Storage, quote
from mediator.warehouse.warehouse import Warehouse

_PARTITION_BYTES = 64 * 1024 * 1024
_MOST_PARTITIONS = 16
_BATCH_ROWS = 65_536


def register(spark: SparkSession) -> None:
    """Makes the format `lockstep` known to the session."""
    spark.dataSource.register(LockstepDataSource)


@dataclass
class ScanPartition(InputPartition):
    """One part of a view: the SQL that computes it, and the types its rows must have."""

    sql: str
    schema: pa.Schema

    def __init__(self, sql: str, schema: pa.Schema) -> None:
        super().__init__(None)
        self.sql = sql
        self.schema = schema


class LockstepDataSource(DataSource):
    """The format `lockstep`."""

    @classmethod
    def name(cls) -> str:
        return "lockstep"

    def schema(self) -> StructType:
        with self._open() as warehouse:
            shown = warehouse.view(self._option("view")).visible
        return from_arrow_schema(_schema(shown, self._counted), prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        with self._open() as warehouse:
            view = self._option("view")
            version = self._integer("version")
            if version is None:
                version = warehouse.newest(view).version
            else:
                warehouse.version_record(view, version)
            snapshot = warehouse.snapshot(view)
        parts = self._integer("partitions") or _partitions(snapshot)
        return LockstepReader(_plan(snapshot, version, self._counted, parts))

    @property
    def _counted(self) -> bool:
        return str(self.options.get("counted", "false")).lower() == "true"

    def _open(self) -> Warehouse:
        return Warehouse(self._option("warehouse"), read_only=True)

    def _option(self, name: str) -> str:
        value = self.options.get(name)
        if not value:
            raise ConfigurationError(f'the format "lockstep" needs the option {name!r}')
        return str(value)

    def _integer(self, name: str) -> int | None:
        value = self.options.get(name)
        if value is None:
            return None
        if not str(value).isdigit():
            raise ConfigurationError(f"the option {name!r} must be a number, not {value!r}")
        return int(value)


class LockstepReader(DataSourceReader):
    """Reads the planned parts of a view."""

    def __init__(self, parts: list[ScanPartition]) -> None:
        self._parts = parts

    def partitions(self) -> list[InputPartition]:
        return list(self._parts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, ScanPartition)
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            # One Spark task owns one core.
            connection.execute("SET threads = 1")
            for batch in connection.sql(partition.sql).to_arrow_reader(_BATCH_ROWS):
                yield batch.cast(partition.schema)


def _plan(snapshot: ViewSnapshot, version: int, counted: bool, parts: int) -> list[ScanPartition]:
    shown = snapshot.view.visible
    columns = [column.quoted for column in shown.columns]
    named = [f"{column.quoted} AS {quote(column.name)}" for column in shown.columns]
    rows = (visible_counted_scan if counted else counted_scan)(snapshot, version).sql
    schema = _schema(shown, counted)
    plan = []
    for part in range(parts):
        share = rows
        if parts > 1:
            share = f"SELECT * FROM ({rows}) WHERE hash({', '.join(columns)}) % {parts} = {part}"
        source = f"({share})" if counted else repeated(share)
        selected = ", ".join([*named, COUNT] if counted else named)
        plan.append(ScanPartition(f"SELECT {selected} FROM {source}", schema))
    return plan


def _schema(storage: Storage, counted: bool) -> pa.Schema:
    fields = [pa.field(column.name, column.stored.arrow) for column in storage.columns]
    return pa.schema([*fields, pa.field(COUNT, pa.int64())] if counted else fields)


def _partitions(snapshot: ViewSnapshot) -> int:
    size = sum(path.stat().st_size for path in snapshot.state_files) + sum(f.size for f in snapshot.changes)
    return max(1, min(_MOST_PARTITIONS, -(-size // _PARTITION_BYTES)))
