"""What all parts of the warehouse share: its tables, what is visible, and the lock over both."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from algebra.errors import NotFoundError
from mediator.warehouse.definitions import Definitions, new_view
from mediator.warehouse.delta_files import DeltaFiles, committed_in
from mediator.warehouse.disk import Disk
from mediator.warehouse.duck import Duck
from mediator.warehouse.graveyard import Graveyard, delete
from mediator.warehouse.query import NoSuchViewError
from mediator.warehouse.reached import Reached
from mediator.warehouse.records import StoredView, VersionRecord
from mediator.warehouse.scan import ViewSnapshot
from mediator.warehouse.steps import Steps
from mediator.warehouse.versions import Versions
from mediator.warehouse.view_data import STAGED, ViewData, folder_name


class Store:
    """The warehouse's tables and what is in memory about them.

    `lock` guards all of it and every commit, and is held for milliseconds; rows are read outside of it.
    """

    def __init__(
        self,
        root: Path,
        disk: Disk,
        grace_seconds: float,
        clock: Callable[[], datetime],
        fault: Callable[[str], None] | None,
    ) -> None:
        self.root = root
        self.disk = disk
        self.clock = clock
        self.steps = disk.steps = Steps(fault)
        self.lock = threading.RLock()
        self.duck = Duck(root)
        self.graveyard = Graveyard(grace_seconds, time.monotonic)
        self.versions = Versions(root / "versions", disk, self.duck)
        self.definitions = Definitions(root / "views", disk, self.duck)
        self.reached = Reached(root, disk)
        self.failed = False
        """A write was cut off: recovery has to find out how far it got, before the next one."""
        self.names: dict[str, StoredView] = {}
        self.guarded: set[Path] = set()
        self._data: dict[str, ViewData] = {}
        self._awaited: dict[str, str] = {}

    @property
    def data_directory(self) -> Path:
        return self.root / "data"

    def load(self) -> None:
        """Reads from disk what is visible.

        Versions come first: what is read after them holds at least the rows of every version that they show.
        """
        with self.lock:
            self.versions.load()
            self.definitions.load()
            self.reached.load()
            self._data = {}
            self.names = {
                view.name: view
                for view in self.definitions.views
                if self.versions.newest(view.view_id) is not None
            }
            # An attempt to make a view may have failed after its commit: the next view needs another id.
            taken = {view.view_id for view in self.names.values()}
            self._awaited = {name: next_ for name, next_ in self._awaited.items() if next_ not in taken}

    @contextmanager
    def committing(self) -> Iterator[None]:
        """The lock, for commits of upkeep: nobody gets it after one that failed without knowing that."""
        with self.lock:
            try:
                yield
            except BaseException:
                self.failed = True
                raise

    def view(self, name: str) -> StoredView:
        with self.lock:
            try:
                return self.names[name]
            except KeyError:
                raise NoSuchViewError(repr(name), self.names) from None

    def newest(self, name: str) -> VersionRecord:
        with self.lock:
            record = self.versions.newest(self.view(name).view_id)
            assert record is not None, "a visible view has a version"
            return record

    def data(self, view: StoredView) -> ViewData:
        """The view's own tables; read from disk at first use."""
        with self.lock:
            data = self._data.get(view.view_id)
            if data is None:
                data = self.new_data(view)
                data.load()
                self._data[view.view_id] = data
            return data

    def data_now(self, view: StoredView) -> ViewData | None:
        """The tables of this very view as they are now; None if it was dropped, also if it was made again.

        For who found the view in an earlier hold of the lock: its tables may have been replaced since.
        """
        with self.lock:
            present = self.names.get(view.name)
            return self.data(present) if present and present.view_id == view.view_id else None

    def at(self, name: str, version: int | None) -> tuple[ViewSnapshot, int]:
        """The files that hold the view, and the number of the version: the newest unless given."""
        with self.lock:
            newest = self.newest(name).version
            number = newest if version is None else version
            if not 0 <= number <= newest:
                raise missing_version(name, number, newest)
            return self.data(self.view(name)).snapshot(), number

    def new_data(self, view: StoredView) -> ViewData:
        """The view's own tables, not read from disk yet."""
        return ViewData(self.data_directory / folder_name(view.name, view.view_id), view, self.disk)

    def keep(self, data: ViewData) -> None:
        """From now on the view is as `data` says."""
        self._data[data.view.view_id] = data
        self.names[data.view.name] = data.view

    def forget(self, view: StoredView) -> None:
        """From now on there is no such view."""
        self.names.pop(view.name, None)
        self._data.pop(view.view_id, None)
        self.versions.forget(view.view_id)

    def loaded(self) -> list[ViewData]:
        """The tables of all visible views."""
        with self.lock:
            return [self.data(view) for view in self.names.values()]

    def readable_paths(self) -> set[Path]:
        """Files and folders that readers of this process may have been given."""
        loaded = self._data.values()
        tables = [self.versions.table, self.definitions.table, *(data.changes for data in loaded)]
        paths = {table.path(file) for table in tables for file in table.files}
        return paths.union(*({data.directory, data.state.directory} for data in loaded))

    def define(self, views: Sequence[StoredView], dropped: bool) -> None:
        """Commits one new row per view to the definitions."""
        with self.steps("views.write"):
            file = self.definitions.stage(views, dropped, self.clock())
        with self.steps("views.commit"):
            self.definitions.commit(file, views, dropped)

    # Staged files: folders that belong to no commit, but to somebody of this process.

    def awaited_id(self, name: str) -> str:
        """The id that the next view of this name will have."""
        return self._awaited.setdefault(name, uuid.uuid4().hex[:12])

    def stage_directory(self, name: str) -> Path:
        with self.lock:
            view = self.names.get(name) or next((v for v in self.names.values() if v.view_id == name), None)
            if view is not None:
                data = self.data(view)
                directory = data.stage_directory(data.changes.directory)
            else:
                data = self.new_data(new_view(name, self.awaited_id(name), {}, pa.schema([])))
                directory = data.stage_directory(data.state.directory)
            self.guarded.add(directory)
            return directory

    def discard(self, directory: Path) -> None:
        with self.lock:
            if directory in self.guarded:
                self.guarded.discard(directory)
                # A write that failed may have failed after its commit. Then recovery decides.
                if not (self.failed and committed_in(directory)):
                    delete(directory)

    def release_committed(self, tables: Iterable[DeltaFiles]) -> None:
        """Guards no staged folder any longer whose files a commit of these tables names."""
        folders = {table.path(file).parent for table in tables for file in table.files}
        self.guarded -= {folder for folder in folders if folder.name.startswith(STAGED)}

    def created(self, name: str, directory: Path) -> None:
        """A view was made in that folder: nothing in it is staged any more."""
        self._awaited.pop(name, None)
        self.release(directory)

    def release(self, directory: Path) -> None:
        """Guards nothing in that folder any longer."""
        self.guarded = {path for path in self.guarded if not path.is_relative_to(directory)}


def missing_version(view: str, version: int, newest: int) -> NotFoundError:
    """The error that says which versions exist."""
    exist = f"the versions 0 to {newest}" if newest else "version 0 only"
    return NotFoundError(f"view {view!r} has no version {version}; it has {exist}")
