"""Compaction and merging: fewer and larger files, while installs and readers go on.

All rows are read and written outside of the warehouse's lock; only the commit that replaces files takes it.
Merges take visible versions only, so that a file never mixes them with what a crash may orphan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from algebra.errors import NotFoundError
from algebra.schema import COUNT
from mediator.warehouse import definitions, versions
from mediator.warehouse.delta_files import CommitConflictError, DataFile, DeltaFiles, sync_rows
from mediator.warehouse.graveyard import delete
from mediator.warehouse.parquet import write_batches
from mediator.warehouse.records import VERSION, CompactResult, StoredView
from mediator.warehouse.recovery import recover
from mediator.warehouse.scan import Scan, ViewSnapshot, counted_scan, rows_of
from mediator.warehouse.storage import literal, quote
from mediator.warehouse.store import Store
from mediator.warehouse.view_data import ViewData

_SMALL_BYTES = 4 * 1024 * 1024
_MERGE_FILES = 16
_CHECKPOINT_COMMITS = 100


@dataclass(frozen=True)
class _Mergeable:
    """A table whose small files may become one, as it is now.

    `newest` leaves out files of versions that are not visible, `where` leaves out rows that nobody can ask
    for any more.
    """

    table: DeltaFiles
    newest: int | None = None
    where: str = "true"

    @property
    def small_files(self) -> list[DataFile]:
        return [
            file
            for file in self.table.files
            if file.size < _SMALL_BYTES and (self.newest is None or file.high <= self.newest)
        ]


_Find = Callable[[], _Mergeable | None]
"""Finds the table, with the lock held; None if its view is gone. What it tells holds as long as the lock."""


def compact(store: Store, name: str) -> CompactResult:
    """Folds the view's changes into its state, and its small files into larger ones."""
    with store.lock:
        snapshot, newest = store.at(name, None)
        pin = store.graveyard.pin()
        before = _file_count(store.data(snapshot.view))
    try:
        if newest > snapshot.view.state_version:
            _move_state(store, snapshot, newest)
        _merge_changes(store, snapshot.view, 2)
    finally:
        pin.release()
    with store.lock:
        data = store.data(store.view(name))
        result = CompactResult(data.view.state_version, before, _file_count(data))
    remove_replaced(store)
    return result


def maintain(store: Store) -> None:
    """Merges small files, writes checkpoints and deletes replaced files, where it is due."""
    with store.lock:
        # The folder of a view that is dropped from now on stays until nothing here needs it.
        pin = store.graveyard.pin()
        views = list(store.names.values())
    try:
        _merge(store, lambda: _living_versions(store), versions.SCHEMA, "view_id, version", _MERGE_FILES)
        _merge(
            store, lambda: _Mergeable(store.definitions.table), definitions.SCHEMA, "sequence", _MERGE_FILES
        )
        for view in views:
            _merge_changes(store, view, _MERGE_FILES)
        with store.lock:
            tables = [store.versions.table, store.definitions.table]
            tables += [data.changes for view in views if (data := store.data_now(view))]
        for table in tables:
            if table.commits_since_checkpoint >= _CHECKPOINT_COMMITS:
                with store.steps("log.checkpoint"):
                    table.checkpoint()
    finally:
        pin.release()
    remove_replaced(store)


def remove_replaced(store: Store) -> None:
    """Deletes replaced files that nobody can be reading any more."""
    with store.steps("files.delete"):
        store.graveyard.dig()


def _file_count(data: ViewData) -> int:
    return len(data.state.files) + len(data.changes.files)


def _move_state(store: Store, snapshot: ViewSnapshot, version: int) -> None:
    """Writes the view's state at that version and switches to it, by one row of the definitions."""
    writer = store.new_data(snapshot.view)
    target = writer.state_directory(version)
    with store.lock:
        store.guarded.add(target)
    try:
        with store.steps("state.write"):
            files = writer.state_files(version, _tables(store, counted_scan(snapshot, version)))
        with store.lock:
            if store.failed:
                recover(store)  # a drop may have failed after its commit, and is not to be undone
            data = store.data_now(snapshot.view)
            if data is None:
                delete(target)
                raise NotFoundError(f"view {snapshot.view.name!r} was dropped meanwhile")
            old = data.state.directory
            moved = replace(snapshot.view, state_version=version)
            state = data.new_state(moved)
            with store.committing():
                with store.steps("state.commit"):
                    state.create(moved.storage.with_columns(COUNT), files)
                store.define([moved], dropped=False)
            data.view, data.state = moved, state
            store.keep(data)
            store.graveyard.bury([old])
    finally:
        with store.lock:
            store.guarded.discard(target)


def _living_versions(store: Store) -> _Mergeable:
    """The rows of views that exist; a view made later is not among them, so look again before a merge."""
    living = ", ".join(literal(view.view_id) for view in store.definitions.views)
    return _Mergeable(store.versions.table, where=f"view_id IN ({living})" if living else "false")


def _merge_changes(store: Store, view: StoredView, minimum: int) -> None:
    def visible_changes() -> _Mergeable | None:
        data = store.data_now(view)
        return _Mergeable(data.changes, newest=store.newest(view.name).version) if data else None

    _merge(store, visible_changes, view.storage.with_columns(COUNT, VERSION), VERSION, minimum)


def _merge(store: Store, find: _Find, schema: pa.Schema, order: str, minimum: int) -> None:
    """Replaces a table's small files by one with the same rows in this order, if there are `minimum` of them.

    Which files there are, and which of their rows still count, is found in one hold of the lock: a view made
    in between would be in the files, and not among the views whose rows are kept.
    """
    with store.lock:
        found = find()
        if found is None or len(small := found.small_files) < minimum:
            return
        pin = store.graveyard.pin()
        table = found.table
        staged = table.directory / "merged"
        store.guarded.add(staged)
    columns = [quote(name) for name in schema.names]
    rows = rows_of(table.directory, small, columns, "")
    ordered = Scan(f"SELECT * FROM ({rows.sql}) WHERE {found.where} ORDER BY {order}", rows.tables)
    try:
        with store.steps("merge.write"):
            merged = write_batches(staged, schema, _stored(store, ordered, schema), table.range_column)
        files = [replace(file, path=f"{staged.name}/{file.path}") for file in merged]
        sync_rows(store.disk, [(table, files)])
        _replace(store, find, table.directory, small, files)
    finally:
        with store.lock:
            store.guarded.discard(staged)
        pin.release()


def _replace(
    store: Store, find: _Find, directory: Path, old: Sequence[DataFile], new: Sequence[DataFile]
) -> None:
    """Commits the exchange of files in the table as it is now.

    The new ones are given up if its view was dropped, or if another program changed the table.
    """
    same_rows = sum(file.rows for file in old) == sum(file.rows for file in new)
    with store.committing(), store.steps("merge.commit"):
        # A recovery meanwhile has read the table anew: a commit that readers' list of files does not know
        # would delete files that they are still given.
        found = find()
        replaced = old
        try:
            if found is None:
                replaced = new
            else:
                found.table.commit(new, old, data_change=not same_rows)
        except CommitConflictError:
            replaced = new
        store.graveyard.bury([directory / file.path for file in replaced])


def _stored(store: Store, scan: Scan, schema: pa.Schema) -> Iterator[pa.Table]:
    for table in _tables(store, scan):
        yield table.cast(schema)


def _tables(store: Store, scan: Scan) -> Iterator[pa.Table]:
    for batch in store.duck.stream(scan):
        yield pa.Table.from_batches([batch])
