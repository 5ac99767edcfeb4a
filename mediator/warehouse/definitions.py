"""The `views` table: view definitions as an append-only log, in which the newest row of a view wins.

One row makes a view, moves its state to another version, or drops it, so each of these is atomic. A row alone
does not make a view visible: its version 0 does (see `versions.py`).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from mediator.warehouse.delta_files import DataFile, DeltaFiles, sync_rows
from mediator.warehouse.disk import Disk
from mediator.warehouse.duck import Duck
from mediator.warehouse.parquet import write_table
from mediator.warehouse.records import StoredView
from mediator.warehouse.scan import Scan, rows_of
from mediator.warehouse.storage import no_rows, quote, storage_of

SCHEMA = pa.schema(
    [
        ("sequence", pa.int64()),
        ("view", pa.string()),
        ("view_id", pa.string()),
        ("spec", pa.string()),
        ("arrow_schema", pa.string()),
        ("state_version", pa.int64()),
        ("dropped", pa.bool_()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
_EMPTY = no_rows(storage_of(SCHEMA))
_HIDDEN = {b"lockstep.hidden": b"true"}
"""Marks a hidden column in `arrow_schema`."""


class Definitions:
    """The views that are defined now, by their id."""

    def __init__(self, directory: Path, disk: Disk, duck: Duck) -> None:
        self.table = DeltaFiles(directory, "sequence", disk)
        self._disk = disk
        self._duck = duck
        self._sequence = 0
        self._views: dict[str, StoredView] = {}

    @property
    def views(self) -> tuple[StoredView, ...]:
        return tuple(self._views.values())

    def load(self) -> None:
        """Reads the log from disk."""
        self.table.load()
        rows = rows_of(self.table.directory, self.table.files, map(quote, SCHEMA.names), _EMPTY)
        newest = self._duck.table(
            Scan(
                f"SELECT * FROM ({rows.sql}) QUALIFY "
                "row_number() OVER (PARTITION BY view_id ORDER BY sequence DESC) = 1 ORDER BY sequence",
                rows.tables,
            )
        ).to_pylist()
        self._sequence = max((row["sequence"] for row in newest), default=0)
        self._views = {row["view_id"]: _stored(row) for row in newest if not row["dropped"]}

    def stage(self, views: Iterable[StoredView], dropped: bool, at: datetime) -> DataFile:
        """Writes one row per view to a file that no commit names yet."""
        rows = [
            {
                "sequence": self._sequence + number,
                "view": view.name,
                "view_id": view.view_id,
                "spec": json.dumps(view.spec),
                "arrow_schema": base64.b64encode(_marked(view).serialize().to_pybytes()).decode(),
                "state_version": view.state_version,
                "dropped": dropped,
                "at": at,
            }
            for number, view in enumerate(views, start=1)
        ]
        return write_table(self.table.directory, pa.Table.from_pylist(rows, SCHEMA), "sequence")

    def commit(self, file: DataFile, views: Iterable[StoredView], dropped: bool) -> None:
        """Makes the staged rows the newest of their views."""
        sync_rows(self._disk, [(self.table, [file])])
        self.table.commit([file])
        self._sequence = file.high
        for view in views:
            if dropped:
                self._views.pop(view.view_id, None)
            else:
                self._views[view.view_id] = view


def new_view(
    name: str, view_id: str, spec: dict[str, object], schema: pa.Schema, hidden: tuple[str, ...] = ()
) -> StoredView:
    """A view whose state is to be its version 0."""
    return StoredView(name, view_id, spec, schema, 0, storage_of(schema), hidden)


def _marked(view: StoredView) -> pa.Schema:
    """The view's columns, the hidden ones marked."""
    fields = [f.with_metadata(_HIDDEN) if f.name in view.hidden else f for f in view.schema]
    return pa.schema(fields)


def _stored(row: dict[str, object]) -> StoredView:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(str(row["arrow_schema"]))))
    state_version = row["state_version"]
    assert isinstance(state_version, int)
    return StoredView(
        str(row["view"]),
        str(row["view_id"]),
        json.loads(str(row["spec"])),
        schema,
        state_version,
        storage_of(schema),
        tuple(f.name for f in schema if f.metadata and f.metadata.items() >= _HIDDEN.items()),
    )
