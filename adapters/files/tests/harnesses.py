"""Folders of files for the conformance kit, in each format."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import duckdb
import pyarrow as pa

from adapters.conformance import (
    Disturbance,
    DropTable,
    Harness,
    LoseCapture,
    Quirks,
    RenameTable,
    SchemaChange,
    Stored,
    Writer,
    altered,
    in_process,
    keeps,
)
from adapters.files.adapter import FilesAdapter
from adapters.files.tests.owner import MARKER, SUFFIXES, FilesWriter, Owner
from adapters.shadow.store import shadow_file
from adapters.spi import Adapter, SourceConfig
from algebra.schema import RelationSchema

CELL_CHARACTERS = 32_767
"""What Excel allows in a cell."""

_UNTYPED = "its columns have no declared types: a value that does not fit is a malformed row, and refused"


class FilesHarness(Harness):
    """A folder of CSV files whose owner publishes whole transactions with a commit file."""

    quirks = Quirks(
        workload=12,
        no_restart="files, no server",
        no_disconnect="files are opened, not connected to",
        no_rights="files have no rights but those of the file system, which refuses nothing to root",
        no_drift={"retype-column": _UNTYPED},
    )
    format: ClassVar[str] = "csv"
    declares: ClassVar[bool] = True
    """Whether types are declared in the options; a Parquet file tells its own."""

    @property
    def shadow(self) -> Path:
        return self.directory / "inbox.lockstep-shadow"

    def create(self, tables: Sequence[RelationSchema]) -> None:
        self._tables = tuple(tables)
        (self.directory / "inbox").mkdir()
        with Owner(self.directory, self.format).transaction() as held:
            for table in tables:
                held[table.name] = (table, [])

    def writer(self, number: int) -> Writer:
        return in_process(number, FilesWriter, self.directory, self.format)

    def adapter(self, relations: tuple[str, ...] | None = None) -> Adapter:
        options = {
            "commit_file": MARKER,
            "trim_entries": 0,
            "trim_seconds": 0,
            "relations": {table.name: self._settings(table) for table in self._tables},
        }
        url = f"files:///{self.directory / 'inbox'}"
        return FilesAdapter(SourceConfig("shop", "files", url, relations, "diff", options))

    def objects(self) -> frozenset[str]:
        return frozenset(
            str(path.relative_to(self.directory))
            for path in self.directory.rglob("*")
            if not path.name.startswith(("owner.", "."))
        )

    def alter(self, change: SchemaChange) -> None:
        self._tables = altered(self._tables, change)
        with Owner(self.directory, self.format).transaction() as held:
            schema, rows = held.pop(change.relation)
            after = change.applied(schema)
            name = change.to if isinstance(change, RenameTable) else change.relation
            held[name] = (after, [_moved(row, schema, after) for row in rows])

    def disturb(self, disturbance: Disturbance) -> None:
        if isinstance(disturbance, LoseCapture):
            shutil.rmtree(self.shadow)
            return
        with Owner(self.directory, self.format).transaction() as held:
            _, rows = held.pop(disturbance.table.name, (None, []))
            if not isinstance(disturbance, DropTable):
                held[disturbance.table.name] = (
                    disturbance.table,
                    [row for row in rows if keeps(disturbance, row)],
                )

    def history_size(self) -> int:
        with duckdb.connect(str(shadow_file(self.shadow)), read_only=True) as connection:
            found = connection.execute("SELECT count(*) FROM cycles").fetchone()
            return int(found[0]) if found else 0

    def _settings(self, table: RelationSchema) -> dict[str, Any]:
        declared = {column.name: str(column.type) for column in table.columns}
        return {
            "path": table.name + SUFFIXES[self.format],
            "key": list(table.key),
            **({"columns": declared} if self.declares else {}),
        }


def _moved(row: tuple[Any, ...], before: RelationSchema, after: RelationSchema) -> tuple[Any, ...]:
    """A row of the table as it was, in the table as it is now."""
    values = dict(zip((c.name for c in before.columns), row, strict=True))
    moved = []
    for column in after.columns:
        value = values.get(column.name)
        moved.append(str(value) if value is not None and pa.types.is_string(column.type) else value)
    return tuple(moved)


class JsonLinesHarness(FilesHarness):
    """The same with JSON-lines."""

    format = "jsonl"
    quirks = replace(
        FilesHarness.quirks,
        workload=6,
        no_drift={
            "retype-column": _UNTYPED,
            "drop-column": "a key that no object has any more is NULL, as one that some lack",
        },
    )


class ParquetHarness(FilesHarness):
    """The same with Parquet, which declares its types itself."""

    format = "parquet"
    declares = False
    quirks = replace(FilesHarness.quirks, no_drift={})


class ExcelHarness(FilesHarness):
    """The same with workbooks."""

    format = "excel"
    quirks = replace(
        FilesHarness.quirks,
        workload=6,
        stored={
            pa.string(): Stored(
                pa.string(),
                "an empty text is an empty cell, which is NULL, and a cell has at most 32,767 characters",
                convert=lambda value: value or None,
                holds=lambda value: 0 < len(value) <= CELL_CHARACTERS,
            ),
            pa.binary(): Stored(
                pa.binary(),
                "written in hexadecimal, so half of what a cell can hold, and nothing is NULL",
                convert=lambda value: value or None,
                holds=lambda value: 0 < len(value) <= CELL_CHARACTERS // 2,
            ),
        },
        value_bytes=CELL_CHARACTERS // 2,
        skips={"nulls-are-kept": "a row of empty cells is no row"},
    )


HARNESSES = {"diff": FilesHarness}
"""By capture style, for `lockstep bench capture`."""
