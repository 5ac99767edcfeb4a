"""What the figures are measured against: DuckDB computing the whole view anew from the final tables."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lab.bench.workload import SOURCES, TABLES, VIEW_SQL

if TYPE_CHECKING:
    import pyarrow as pa

REPEATS = 5


@dataclass(frozen=True)
class Recompute:
    """The view computed from scratch, and the median seconds that took with the tables in memory."""

    view: pa.Table
    seconds: float


def recompute(tables: Mapping[str, pa.Table], repeats: int = REPEATS) -> Recompute:
    """The view over base tables given by name; loading them into DuckDB is not timed."""
    import duckdb

    with duckdb.connect() as connection:
        for source in SOURCES:
            connection.execute(f"CREATE SCHEMA {source}")
        for name, table in TABLES.items():
            connection.register("base", tables[name])
            connection.execute(f"CREATE TABLE {table.source}.{name} AS SELECT * FROM base")
            connection.unregister("base")
        seconds = []
        for _ in range(repeats):
            begin = time.perf_counter()
            connection.execute(f"CREATE OR REPLACE TABLE view_rows AS {VIEW_SQL}")
            seconds.append(time.perf_counter() - begin)
        view = connection.sql("FROM view_rows").to_arrow_table()
    return Recompute(view, statistics.median(seconds))
