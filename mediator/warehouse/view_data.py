"""One view's own folder: its `changes` table, and its state as a Delta table of its own per compaction."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from algebra.errors import DataError
from algebra.schema import COUNT
from mediator.warehouse.delta_files import DataFile, DeltaFiles
from mediator.warehouse.disk import Disk
from mediator.warehouse.parquet import adopt, column_integers, integers, write_batches, write_table
from mediator.warehouse.records import VERSION, StoredView
from mediator.warehouse.scan import ViewSnapshot

Integers = np.ndarray[tuple[int], np.dtype[np.int64]]
_CHANGES = "changes"
_STATE = "state-"
STAGED = "staged-"
"""How folders for files of no commit begin."""
_UNSAFE = re.compile(r"[^A-Za-z0-9_]+")
_NAME_LENGTH = 40


def folder_name(name: str, view_id: str) -> str:
    """The folder of a view: its name as far as a file system takes it, and its id."""
    safe = _UNSAFE.sub("-", name)[:_NAME_LENGTH].strip("-") or "view"
    return f"{safe}-{view_id}"


class ViewData:
    """The stored rows of one view; calls that write are serialised by the warehouse."""

    def __init__(self, directory: Path, view: StoredView, disk: Disk) -> None:
        self.directory = directory
        self.view = view
        self._disk = disk
        self.changes = DeltaFiles(directory / _CHANGES, VERSION, disk)
        self.state = self.new_state(view)

    def load(self) -> None:
        """Reads from disk which files hold the view."""
        self.changes.load()
        self.state.load()

    def create_changes(self) -> None:
        self.changes.create(self.view.storage.with_columns(COUNT, VERSION))

    def state_directory(self, version: int) -> Path:
        return self.directory / f"{_STATE}{version}"

    def state_files(self, version: int, rows: Sequence[Path] | Iterator[pa.Table]) -> list[DataFile]:
        """The files of a state at that version: written from tables, or adopted; no commit names them yet."""
        directory = self.state_directory(version)
        if isinstance(rows, Sequence):
            return adopt(directory, rows, self.view.storage, (COUNT,), None)
        tables = (self.view.storage.to_stored(table, COUNT) for table in rows)
        return write_batches(directory, self.view.storage.with_columns(COUNT), tables)

    def state_counts(self, version: int, files: Sequence[DataFile]) -> Integers:
        """Every row's count in these files of a state."""
        directory = self.state_directory(version)
        return integers([directory / file.path for file in files], COUNT)[0]

    def create_state(self, view: StoredView, files: Sequence[DataFile]) -> None:
        """Makes the state table that `view` names, of these files, and goes on with it."""
        state = self.new_state(view)
        state.create(view.storage.with_columns(COUNT), files)
        self.view, self.state = view, state

    def new_state(self, view: StoredView) -> DeltaFiles:
        """The state table that `view` names, not read from disk."""
        return DeltaFiles(self.state_directory(view.state_version), None, self._disk)

    def stage_directory(self, table_directory: Path) -> Path:
        """A new folder inside a table for files that no commit names yet."""
        directory = table_directory / f"{STAGED}{uuid.uuid4().hex}"
        directory.mkdir(parents=True)
        return directory

    def adopt_changes(self, paths: Sequence[Path]) -> tuple[list[DataFile], Integers, Integers]:
        """Staged files as files of `changes`, and their rows' versions and counts."""
        if not paths:
            return [], np.empty(0, np.int64), np.empty(0, np.int64)
        files = adopt(self.changes.directory, paths, self.view.storage, (COUNT, VERSION), VERSION)
        versions, counts = integers([self.changes.path(file) for file in files], VERSION, COUNT)
        return files, versions, counts

    def stored_change(self, table: pa.Table) -> tuple[pa.Table, Integers, Integers]:
        """A change in stored form, and its rows' versions and counts."""
        stored = self.view.storage.to_stored(table, COUNT, VERSION)
        return stored, column_integers(stored, VERSION), column_integers(stored, COUNT)

    def write_change(self, stored: pa.Table) -> DataFile:
        """Writes a change in stored form to a file that no commit names yet."""
        return write_table(self.changes.directory, stored, VERSION)

    def snapshot(self) -> ViewSnapshot:
        return ViewSnapshot(
            self.view,
            tuple(self.state.path(file) for file in self.state.files),
            self.changes.directory,
            self.changes.files,
        )

    def other_states(self) -> list[Path]:
        """State folders that the view does not name."""
        named = self.state_directory(self.view.state_version)
        return [path for path in self.directory.iterdir() if path not in (named, self.changes.directory)]


def tally(
    versions: Integers, counts: Integers, first: int, number: int, view: str
) -> tuple[Integers, Integers]:
    """Per version from `first` on: the rows changed, and by how much the view grows or shrinks."""
    offsets = versions - first
    if offsets.size and (offsets.min() < 0 or offsets.max() >= number):
        raise DataError(
            f"the change for view {view!r} holds rows of versions {versions.min()}..{versions.max()}, "
            f"its versions are {first}..{first + number - 1}"
        )
    changed = np.bincount(offsets, np.abs(counts), number)
    grown = np.bincount(offsets, counts, number)
    # Weights are float64, exact up to 2**53 rows.
    return changed.astype(np.int64), grown.astype(np.int64)
