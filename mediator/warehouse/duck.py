"""DuckDB as the warehouse's reader: one engine, a cheap cursor per use, results as Arrow streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa

from algebra.scratch import ScratchFolder
from mediator.warehouse.query import query_error
from mediator.warehouse.scan import Scan
from mediator.warehouse.storage import literal

BATCH_ROWS = 122_880


class Duck:
    """An in-memory DuckDB that reads the warehouse's files and nothing else on this machine.

    Once it is set up, files outside of the warehouse's folder, settings and extensions are out of reach for
    any SQL that it runs. Cursors are independent: each has its own temporary views.
    """

    def __init__(self, root: Path) -> None:
        # DuckDB may read and write whatever lies beside its spilled rows, so they get a folder of their own.
        self._spill = ScratchFolder("warehouse")
        self._connection = duckdb.connect(
            config={"python_enable_replacements": False, "temp_directory": str(self._spill.path)}
        )
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.execute(f"SET allowed_directories = [{literal(str(root))}]")
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")

    def cursor(self) -> duckdb.DuckDBPyConnection:
        return self._connection.cursor()

    def table(self, scan: Scan) -> pa.Table:
        """All rows of the scan."""
        with self.cursor() as cursor:
            register(cursor, scan)
            return cursor.sql(scan.sql).to_arrow_table()

    def stream(self, scan: Scan) -> pa.RecordBatchReader:
        """The scan's rows, computed as they are read."""
        cursor = self.cursor()
        register(cursor, scan)
        reader = cursor.sql(scan.sql).to_arrow_reader(BATCH_ROWS)
        return transform(reader, reader.schema, lambda batch: batch, cursor)

    def close(self) -> None:
        self._connection.close()
        self._spill.close()


def register(cursor: duckdb.DuckDBPyConnection, scan: Scan) -> None:
    """Makes the scan's in-memory tables known to the cursor."""
    for name, table in scan.tables.items():
        cursor.register(name, table)


def transform(
    reader: pa.RecordBatchReader,
    schema: pa.Schema,
    function: Callable[[pa.RecordBatch], pa.RecordBatch],
    *kept: object,
) -> pa.RecordBatchReader:
    """A reader of transformed batches; it keeps `kept` alive until it is exhausted or dropped."""

    def batches(kept: tuple[object, ...]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader:
                if batch.num_rows:
                    yield function(batch)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise query_error(error) from error
        del kept

    return pa.RecordBatchReader.from_batches(schema, batches(kept))
