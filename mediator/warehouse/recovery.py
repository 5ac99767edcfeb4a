"""After a crash: everything that a write left and no version shows is removed.

Problem: version numbers are used again after a crash. Rows of a version that never became visible would join
those of the next version with that number.

Chosen way: visibility decides. The newest visible version of each view is known from `versions`; every file
of its `changes` beyond it is an orphan. An install is one file or more per view and never shares one with
another install, and merges take visible versions only, so orphans are whole files: one commit removes them.
Then all that no commit names is deleted: staged files, half-made views, states that were not switched to.
Each part can be cut off anywhere and done again.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from mediator.warehouse import definitions, versions
from mediator.warehouse.delta_files import DeltaFiles
from mediator.warehouse.format import upgrade
from mediator.warehouse.graveyard import delete
from mediator.warehouse.store import Store
from mediator.warehouse.view_data import STAGED, ViewData


def recover(store: Store) -> None:
    """Leaves in the warehouse what is visible, and nothing else; the caller is the only writer."""
    with store.lock:
        store.failed = True
        readable = store.readable_paths()
        upgrade(store.root, store.disk)
        _create_missing(store)
        store.load()
        _drop_unborn(store)
        live = store.loaded()
        _settle(store, live)
        for data in live:
            _remove_orphans(store, data)
        store.release_committed(table for data in live for table in (data.changes, data.state))
        loose = [path for data in live for path in (*data.changes.loose_files(), *data.state.loose_files())]
        loose += [path for data in live for path in data.other_states()]
        loose += _unnamed_folders(store, live)
        loose += store.versions.table.loose_files() + store.definitions.table.loose_files()
        # A write that failed after its commit has replaced files that are being read.
        store.graveyard.bury(readable.intersection(loose))
        with store.steps("recover.delete"):
            store.reached.delete_remains()
            _delete(store, loose)
        store.failed = False


def _create_missing(store: Store) -> None:
    tables: tuple[tuple[DeltaFiles, object], ...] = (
        (store.definitions.table, definitions.SCHEMA),
        (store.versions.table, versions.SCHEMA),
    )
    for table, schema in tables:
        if not table.exists:
            delete(table.directory)
            with store.steps("recover.create"):
                table.create(schema)
    store.data_directory.mkdir(exist_ok=True)
    store.disk.sync([store.root])


def _settle(store: Store, live: Iterable[ViewData]) -> None:
    """Forces to the disk what was read: a process that was killed may have ended right before it did.

    From here on sources are told that they may forget it.
    """
    tables = [store.versions.table, store.definitions.table]
    tables += [table for data in live for table in (data.changes, data.state)]
    logs = (path for table in tables for path in table.end_of_log)
    store.disk.sync({store.root, store.data_directory, *logs})


def _drop_unborn(store: Store) -> None:
    """A view that was defined and never got its version 0 is dropped, so that its id stays unused."""
    unborn = [view for view in store.definitions.views if store.names.get(view.name) != view]
    if unborn:
        store.define(unborn, dropped=True)


def _remove_orphans(store: Store, data: ViewData) -> None:
    newest = store.newest(data.view.name).version
    orphans = [file for file in data.changes.files if file.high > newest]
    if orphans:
        with store.steps(f"recover.commit {data.view.name}"):
            data.changes.commit([], orphans)


def _unnamed_folders(store: Store, live: Iterable[ViewData]) -> list[Path]:
    named = {data.directory for data in live}
    return [path for path in store.data_directory.iterdir() if path not in named]


def _delete(store: Store, paths: Iterable[Path]) -> None:
    """Deletes what is neither claimed in this process nor waiting for its readers."""
    waiting = store.graveyard.waiting
    for path in paths:
        if path in waiting or any(path.is_relative_to(guard) for guard in store.guarded):
            continue
        if any(guard.is_relative_to(path) for guard in store.guarded):
            _delete(store, list(path.iterdir()))
        else:
            delete(path)
            _prune(store, path.parent)


def _prune(store: Store, folder: Path) -> None:
    """Removes a staging folder that has become empty."""
    staging = folder.name.startswith(STAGED) and folder not in store.guarded
    if staging and not any(folder.iterdir()):
        folder.rmdir()
