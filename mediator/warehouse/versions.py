"""The `versions` table: which versions of which views are visible.

A version exists when, and only when, its row here is committed. All views share the one table, so that one
commit shows the versions of several views at the same instant; that is the whole transaction protocol of the
warehouse. A view that was dropped and made again has a new `view_id`, so old rows never speak for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

import numpy as np
import pyarrow as pa

from algebra.position import Position
from mediator.warehouse.delta_files import DataFile, DeltaFiles
from mediator.warehouse.disk import Disk
from mediator.warehouse.duck import Duck
from mediator.warehouse.parquet import write_table
from mediator.warehouse.records import StoredView, VersionRecord, VersionRow, parse_vector, vector_texts
from mediator.warehouse.scan import Scan, rows_of
from mediator.warehouse.storage import literal, no_rows, storage_of

_TIME = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("view", pa.string()),
        ("view_id", pa.string()),
        ("version", pa.int64()),
        ("source", pa.string()),
        ("position", pa.int64()),
        ("position_token", pa.string()),
        ("vector", pa.string()),
        ("observed_at", _TIME),
        ("committed_at", _TIME),
        ("changed_rows", pa.int64()),
        ("rows", pa.int64()),
        ("batched", pa.bool_()),
    ]
)
_EMPTY = no_rows(storage_of(SCHEMA))


class Versions:
    """The visible versions: the newest of each view in memory, the others on request."""

    def __init__(self, directory: Path, disk: Disk, duck: Duck) -> None:
        self.table = DeltaFiles(directory, "version", disk)
        self._duck = duck
        self._newest: dict[str, VersionRecord] = {}

    def load(self) -> None:
        """Reads from disk what is visible."""
        self.table.load()
        every = self._rows(self.table.files)
        newest = self._duck.table(
            Scan(
                f"WITH every AS ({every.sql}) SELECT every.* FROM every JOIN "
                "(SELECT view_id, max(version) AS version FROM every GROUP BY view_id) "
                "USING (view_id, version)",
                every.tables,
            )
        )
        self._newest = dict(_records(newest))

    def newest(self, view_id: str) -> VersionRecord | None:
        """The newest visible version of that view; None if it has none."""
        return self._newest.get(view_id)

    def stage(self, rows: Sequence[pa.Table]) -> DataFile:
        """Writes rows that `build` made to a file that no commit names yet."""
        return write_table(self.table.directory, pa.concat_tables(rows), "version")

    def commit(self, file: DataFile, newest: Mapping[str, VersionRecord]) -> None:
        """Makes the staged rows visible, all at once; `newest` are the last ones of each view."""
        self.table.commit([file])
        self._newest.update(newest)

    def forget(self, view_id: str) -> None:
        """Leaves out a dropped view."""
        self._newest.pop(view_id, None)

    def rows_between(self, view_id: str, low: int, high: int) -> Scan:
        """The visible versions low..high of that view, in order, as a scan for `read`."""
        rows = self._rows([file for file in self.table.files if file.high >= low and file.low <= high])
        return Scan(
            f"SELECT * FROM ({rows.sql}) WHERE view_id = {literal(view_id)} "
            f"AND version >= {low} AND version <= {high} ORDER BY version",
            rows.tables,
        )

    def read(self, rows: Scan) -> list[VersionRecord]:
        """The records of a scan."""
        return [record for _, record in _records(self._duck.table(rows))]

    def _rows(self, files: Sequence[DataFile]) -> Scan:
        return rows_of(self.table.directory, files, SCHEMA.names, _EMPTY)


def build(
    view: StoredView,
    versions: Sequence[VersionRow],
    changed: np.ndarray[tuple[int], np.dtype[np.int64]],
    sizes: np.ndarray[tuple[int], np.dtype[np.int64]],
    committed_at: datetime,
) -> tuple[pa.Table, VersionRecord]:
    """The rows of one view's new versions, and the last of them as a record."""
    count = len(versions)
    last = versions[-1]
    table = pa.table(
        [
            pa.repeat(pa.scalar(view.name), count),
            pa.repeat(pa.scalar(view.view_id), count),
            pa.array([row.version for row in versions], pa.int64()),
            pa.array([row.source for row in versions], pa.string()),
            pa.array([row.position.ordinal for row in versions], pa.int64()),
            pa.array([row.position.token for row in versions], pa.string()),
            pa.array(vector_texts(versions), pa.string()),
            pa.array([row.observed_at for row in versions], _TIME),
            pa.repeat(pa.scalar(committed_at, _TIME), count),
            pa.array(changed),
            pa.array(sizes),
            pa.array([row.batched for row in versions], pa.bool_()),
        ],
        schema=SCHEMA,
    )
    record = VersionRecord(
        view=view.name,
        version=last.version,
        source=last.source,
        position=last.position,
        vector=dict(last.vector),
        observed_at=last.observed_at,
        committed_at=committed_at,
        changed_rows=int(changed[-1]),
        rows=int(sizes[-1]),
        batched=last.batched,
    )
    return table, record


def _records(table: pa.Table) -> Iterator[tuple[str, VersionRecord]]:
    for row in table.to_pylist():
        yield (
            row["view_id"],
            VersionRecord(
                view=row["view"],
                version=row["version"],
                source=row["source"],
                position=Position(row["position"], row["position_token"]),
                vector=parse_vector(row["vector"]),
                observed_at=row["observed_at"],
                committed_at=row["committed_at"],
                changed_rows=row["changed_rows"],
                rows=row["rows"],
                batched=row["batched"],
            ),
        )
