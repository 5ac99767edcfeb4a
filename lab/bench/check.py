"""No figure without a right view: what a finished run must fulfil before it is reported."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lab.bench.errors import BenchmarkError
from lab.bench.workload import VIEW_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Difference:
    """How two bags of rows differ: rows only in the one or the other, duplicates counted."""

    surplus: int
    missing: int

    def __bool__(self) -> bool:
        return bool(self.surplus or self.missing)


def difference(got: pa.Table, expected: pa.Table) -> Difference:
    """How the view's rows differ from the expected ones, as bags, columns compared by name."""
    import duckdb

    columns = ", ".join(VIEW_COLUMNS)
    with duckdb.connect() as connection:
        connection.register("got", got)
        connection.register("expected", expected)
        row = connection.execute(
            f"SELECT coalesce(sum(n) FILTER (n > 0), 0), coalesce(-sum(n) FILTER (n < 0), 0)"
            f" FROM (SELECT sum(c) AS n FROM (SELECT {columns}, 1 AS c FROM got"
            f" UNION ALL SELECT {columns}, -1 AS c FROM expected) GROUP BY {columns})"
        ).fetchone()
    assert row is not None
    return Difference(int(row[0]), int(row[1]))


def check_view(got: pa.Table, expected: pa.Table, against: str) -> None:
    """Raises BenchmarkError unless both are the same bag of rows."""
    found = difference(got, expected)
    if found:
        raise BenchmarkError(
            f"the view differs from {against}: {found.surplus} rows too many, {found.missing} missing"
        )


def check_expected_file(view: pa.Table, path: Path) -> None:
    """Raises BenchmarkError unless the file, written by somebody else, holds the same bag of rows."""
    import pyarrow.parquet as pq

    check_view(view, pq.read_table(path), path.name)


def check_versions(versions: int, transactions: int, batched: int) -> None:
    """Raises BenchmarkError unless every transaction has its version.

    Where a source could not tell transactions apart (`batched` versions), there may be fewer.
    """
    if versions == transactions or (batched and versions < transactions):
        return
    raise BenchmarkError(f"{transactions} transactions made {versions} versions")
