"""How views are made and get their next versions: rows first, visibility last."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from algebra.errors import AlreadyExistsError, DataError, OrderingViolationError
from mediator.warehouse import versions as version_rows
from mediator.warehouse.definitions import new_view
from mediator.warehouse.delta_files import DataFile, sync_rows
from mediator.warehouse.records import VersionRecord, VersionRow, ViewInstall
from mediator.warehouse.store import Store
from mediator.warehouse.view_data import Integers, ViewData, tally


@dataclass(frozen=True)
class _Part:
    """One view's part of an install, checked; nothing of it is committed."""

    data: ViewData
    versions: Sequence[VersionRow]
    files: tuple[DataFile, ...]
    table: pa.Table | None
    changed: Integers
    sizes: Integers


def create(
    store: Store,
    name: str,
    spec: Mapping[str, Any],
    schema: pa.Schema,
    state: Sequence[Path] | pa.Table | pa.RecordBatchReader,
    version: VersionRow,
    hidden: tuple[str, ...],
) -> VersionRecord:
    """Makes a view with its version 0; the caller holds the lock."""
    if name in store.names:
        raise AlreadyExistsError(f"there is a view {name!r} already")
    if version.version != 0:
        raise OrderingViolationError(f"view {name!r} must begin with version 0, not {version.version}")
    view = new_view(name, store.awaited_id(name), dict(spec), schema, hidden)
    data = store.new_data(view)
    with store.steps("state.write"):
        files = data.state_files(0, state if isinstance(state, Sequence) else _tables(state))
    counts = data.state_counts(0, files)
    if counts.size and counts.min() <= 0:
        raise DataError(f"the first state of view {name!r} holds a row with a count below 1")
    with store.steps("state.commit"):
        data.create_state(view, files)
    with store.steps("changes.create"):
        data.create_changes()
    store.disk.sync([store.data_directory])
    store.define([view], dropped=False)
    size = np.array([counts.sum()], np.int64)
    rows, record = version_rows.build(view, [version], size, size, store.clock())
    with store.steps("versions.write"):
        file = store.versions.stage([rows])
    sync_rows(store.disk, [(store.versions.table, [file])])
    with store.steps("versions.commit"):
        store.versions.commit(file, {view.view_id: record})
    store.keep(data)
    store.created(name, data.directory)
    if isinstance(state, Sequence):
        _clean_up(store, state, {data.state.path(file) for file in files})
    return record


def drop(store: Store, name: str) -> None:
    """Ends a view, and marks its data for deletion; the caller holds the lock."""
    view = store.view(name)
    directory = store.new_data(view).directory
    store.define([view], dropped=True)
    store.forget(view)
    store.release(directory)
    store.graveyard.bury([directory], grace=False)


def install(store: Store, installs: Sequence[ViewInstall]) -> dict[str, VersionRecord]:
    """Makes the next versions of these views visible, all at once; the caller holds the lock."""
    names = [entry.view for entry in installs]
    if len(set(names)) != len(names):
        raise OrderingViolationError("an install names a view twice; put its versions into one entry")
    parts = [_prepare(store, entry) for entry in installs if entry.versions]
    if not parts:
        return {}
    added: list[tuple[ViewData, tuple[DataFile, ...]]] = []
    for part in parts:
        files = part.files
        if part.table is not None and part.table.num_rows:
            with store.steps(f"changes.write {part.data.view.name}"):
                files = (*files, part.data.write_change(part.table))
        if files:
            added.append((part.data, files))
    now = store.clock()
    built = [
        version_rows.build(part.data.view, part.versions, part.changed, part.sizes, now) for part in parts
    ]
    with store.steps("versions.write"):
        visible = store.versions.stage([rows for rows, _ in built])
    changes = [(data.changes, files) for data, files in added]
    sync_rows(store.disk, [*changes, (store.versions.table, (visible,))])
    for data, files in added:
        with store.steps(f"changes.commit {data.view.name}"):
            data.changes.commit(files)
    newest = {part.data.view.view_id: record for part, (_, record) in zip(parts, built, strict=True)}
    with store.steps("versions.commit"):
        store.versions.commit(visible, newest)
    with store.steps("staged.delete"):
        used = {data.changes.path(file) for data, files in added for file in files}
        _clean_up(store, [path for entry in installs for path in entry.files], used)
    return {record.view: record for record in newest.values()}


def _prepare(store: Store, entry: ViewInstall) -> _Part:
    """Checks everything that can be checked before anything is written."""
    newest = store.newest(entry.view)
    data = store.data(store.view(entry.view))
    first, number = newest.version + 1, len(entry.versions)
    if [row.version for row in entry.versions] != list(range(first, first + number)):
        raise OrderingViolationError(
            f"view {entry.view!r} is at version {newest.version}; the next versions must be {first}, "
            f"{first + 1}, ... without a gap, not {entry.versions[0].version}..{entry.versions[-1].version}"
        )
    with store.steps("changes.adopt") if entry.files else nullcontext():
        files, versions, counts = data.adopt_changes(entry.files)
    table = None
    if entry.table is not None:
        table, table_versions, table_counts = data.stored_change(entry.table)
        versions = np.concatenate([versions, table_versions])
        counts = np.concatenate([counts, table_counts])
    changed, grown = tally(versions, counts, first, number, entry.view)
    sizes = newest.rows + np.cumsum(grown)
    return _Part(data, entry.versions, tuple(files), table, changed, sizes)


def _clean_up(store: Store, paths: Iterable[Path], used: Collection[Path]) -> None:
    """Ends the claim on the folders of these staged files, and deletes what was not taken over from them."""
    staged = [path.resolve() for path in paths]
    for path in staged:
        if path not in used:
            path.unlink(missing_ok=True)
    for folder in {path.parent for path in staged}:
        store.guarded.discard(folder)
        if not any(folder.iterdir()):
            folder.rmdir()


def _tables(rows: pa.Table | pa.RecordBatchReader) -> Iterator[pa.Table]:
    if isinstance(rows, pa.Table):
        yield rows
    else:
        for batch in rows:
            yield pa.Table.from_batches([batch])
