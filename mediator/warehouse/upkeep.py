"""Compaction and merging: fewer and larger files, while installs and readers go on.

All rows are read and written outside of the warehouse's lock; only the commit that replaces files takes it.
Merges take visible versions only, so that a file never mixes them with what a crash may orphan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from algebra.errors import NotFoundError
from algebra.schema import COUNT
from mediator.warehouse import definitions, versions
from mediator.warehouse.delta_files import CommitConflictError, DataFile, DeltaFiles
from mediator.warehouse.graveyard import delete
from mediator.warehouse.parquet import write_batches
from mediator.warehouse.records import VERSION, CompactResult
from mediator.warehouse.scan import Scan, ViewSnapshot, counted_scan, rows_of
from mediator.warehouse.storage import literal, quote
from mediator.warehouse.store import Store
from mediator.warehouse.view_data import ViewData

_SMALL_BYTES = 4 * 1024 * 1024
_MERGE_FILES = 16
_CHECKPOINT_COMMITS = 100


def compact(store: Store, name: str) -> CompactResult:
    """Folds the view's changes into its state, and its small files into larger ones."""
    with store.lock:
        snapshot, newest = store.at(name, None)
        pin = store.graveyard.pin()
        data = store.data(snapshot.view)
        before = _file_count(data)
    if newest > snapshot.view.state_version:
        _move_state(store, data, snapshot, newest)
    _merge_changes(store, data, 2)
    pin.release()
    with store.lock:
        result = CompactResult(data.view.state_version, before, _file_count(data))
    remove_replaced(store)
    return result


def maintain(store: Store) -> None:
    """Merges small files, writes checkpoints and deletes replaced files, where it is due."""
    with store.lock:
        views = store.loaded()
        live = ", ".join(literal(view.view_id) for view in store.definitions.views)
    of_live = f"view_id IN ({live})" if live else "false"
    _merge(store, store.versions.table, versions.SCHEMA, "view_id, version", _MERGE_FILES, where=of_live)
    _merge(store, store.definitions.table, definitions.SCHEMA, "sequence", _MERGE_FILES)
    for data in views:
        _merge_changes(store, data, _MERGE_FILES)
    for table in (store.versions.table, store.definitions.table, *(data.changes for data in views)):
        if table.commits_since_checkpoint >= _CHECKPOINT_COMMITS and table.directory.exists():
            with store.steps("log.checkpoint"):
                table.checkpoint()
    remove_replaced(store)


def remove_replaced(store: Store) -> None:
    """Deletes replaced files that nobody can be reading any more."""
    with store.steps("files.delete"):
        store.graveyard.dig()


def _file_count(data: ViewData) -> int:
    return len(data.state.files) + len(data.changes.files)


def _move_state(store: Store, data: ViewData, snapshot: ViewSnapshot, version: int) -> None:
    """Writes the view's state at that version and switches to it, by one row of the definitions."""
    target = data.state_directory(version)
    with store.lock:
        store.guarded.add(target)
    try:
        with store.steps("state.write"):
            files = data.state_files(version, _tables(store, counted_scan(snapshot, version)))
        with store.lock:
            if store.names.get(snapshot.view.name) is not snapshot.view:
                delete(target)
                raise NotFoundError(f"view {snapshot.view.name!r} was dropped meanwhile")
            old = data.state.directory
            moved = replace(snapshot.view, state_version=version)
            state = data.new_state(moved)
            with store.steps("state.commit"):
                state.create(moved.storage.with_columns(COUNT), files)
            store.define([moved], dropped=False)
            data.view, data.state = moved, state
            store.keep(data)
            store.graveyard.bury([old])
    finally:
        with store.lock:
            store.guarded.discard(target)


def _merge_changes(store: Store, data: ViewData, minimum: int) -> None:
    with store.lock:
        if store.names.get(data.view.name) is not data.view:
            return
        newest = store.newest(data.view.name).version
    schema = data.view.storage.with_columns(COUNT, VERSION)
    _merge(store, data.changes, schema, VERSION, minimum, newest)


def _merge(
    store: Store,
    table: DeltaFiles,
    schema: pa.Schema,
    order: str,
    minimum: int,
    newest: int | None = None,
    where: str = "true",
) -> None:
    """Replaces a table's small files by one with the same rows in this order, if there are `minimum` of them.

    `newest` leaves out files of versions that are not visible, `where` leaves out rows that nobody can ask
    for any more.
    """
    with store.lock:
        small = [
            file
            for file in table.files
            if file.size < _SMALL_BYTES and (newest is None or file.high <= newest)
        ]
        if len(small) < minimum:
            return
        pin = store.graveyard.pin()
    columns = [quote(name) for name in schema.names]
    rows = rows_of(table.directory, small, columns, "")
    ordered = Scan(f"SELECT * FROM ({rows.sql}) WHERE {where} ORDER BY {order}", rows.tables)
    range_column = table.range_column
    staged = table.directory / "merged"
    with store.lock:
        store.guarded.add(staged)
    try:
        with store.steps("merge.write"):
            merged = write_batches(staged, schema, _stored(store, ordered, schema), range_column)
        files = [replace(file, path=f"{staged.name}/{file.path}") for file in merged]
        store.disk.sync([table.path(file) for file in files])
        _replace(store, table, small, files)
    finally:
        with store.lock:
            store.guarded.discard(staged)
        pin.release()


def _replace(store: Store, table: DeltaFiles, old: Sequence[DataFile], new: Sequence[DataFile]) -> None:
    """Commits the exchange of files; if another program changed the table, the new ones are given up."""
    same_rows = sum(file.rows for file in old) == sum(file.rows for file in new)
    with store.lock, store.steps("merge.commit"):
        try:
            table.commit(new, old, data_change=not same_rows)
        except CommitConflictError:
            old = new
        store.graveyard.bury([table.path(file) for file in old])


def _stored(store: Store, scan: Scan, schema: pa.Schema) -> Iterator[pa.Table]:
    for table in _tables(store, scan):
        yield table.cast(schema)


def _tables(store: Store, scan: Scan) -> Iterator[pa.Table]:
    for batch in store.duck.stream(scan):
        yield pa.Table.from_batches([batch])
