"""The warehouse: where views live, version by version.

Problem: several views change together with one source transaction, each state must stay readable by its
version, a crash at any moment must leave a legal state, and engines as different as DuckDB and Spark deliver
the rows.

Wrong ways: one Delta table per view with Delta's own versions as ours (no commit spans two tables, and ten
thousand versions would be ten thousand commits); a database beside the lake (then no lakehouse tool reads
it).

Chosen way: rows first, visibility last. Each view's rows are appended to its own `changes` table, tagged
with their version; then one commit to the single `versions` table makes all of them visible. Until then
nobody looks at them, and `recover` removes what a crash left, before its version numbers are used again.

    ROOT/.lock                         the one writer
    ROOT/.upkeep                       held by who merges and deletes files, or by who copies them
    ROOT/format.json                   the version of this layout
    ROOT/reached.json                  how far views have missed nothing, beyond their vectors
    ROOT/versions/                     every visible version of every view
    ROOT/views/                        definitions, newest row wins
    ROOT/data/NAME-ID/changes/         columns, _count, _version
    ROOT/data/NAME-ID/state-V/         columns, _count: the view at version V
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from algebra.errors import ConfigurationError, NotFoundError, SourceUnavailableError
from algebra.position import Position
from mediator.warehouse import installing, reading, upkeep
from mediator.warehouse.client_query import ClientQueries, GiveUp, QueryLimits, StopBy
from mediator.warehouse.disk import Disk
from mediator.warehouse.format import check_format, check_takeable
from mediator.warehouse.graveyard import Pin
from mediator.warehouse.lock import WriterLock, upkeep_allowed
from mediator.warehouse.reached import Reach
from mediator.warehouse.reading import VersionsOf
from mediator.warehouse.records import CompactResult, StoredView, VersionRecord, VersionRow, ViewInstall
from mediator.warehouse.recovery import recover
from mediator.warehouse.scan import Scan, ViewSnapshot, bag_scan, visible_scan
from mediator.warehouse.store import Store


def _now() -> datetime:
    return datetime.now(UTC)


class Warehouse:
    """Views in Delta Lake tables under one folder; every method may be called from any thread.

    `read_only` needs no lock and changes nothing: for readers beside a running mediator, which see what was
    visible when they opened it or last called `refresh`. `durable` forces every commit to the disk, so that
    it survives a power failure too. `grace_seconds` is how long replaced files stay for readers of other
    processes. `query_limits` bound each query. `fault` is called before and after each step of a write; tests
    break writes there.
    """

    def __init__(
        self,
        root: str | Path,
        read_only: bool = False,
        *,
        durable: bool = True,
        grace_seconds: float = 60.0,
        clock: Callable[[], datetime] = _now,
        fault: Callable[[str], None] | None = None,
        query_limits: QueryLimits | None = None,
    ) -> None:
        if "://" in str(root):
            raise ConfigurationError(
                f"the warehouse {root} is no local folder; object stores are not supported yet"
            )
        self.root = Path(root).resolve()
        check_format(self.root)
        disk = Disk(durable and not read_only)
        self._writer: WriterLock | None = None
        if read_only:
            if not (self.root / "versions").is_dir():
                raise NotFoundError(f"there is no warehouse at {self.root}")
        else:
            check_takeable(self.root)
            try:
                disk.make_folder(self.root)
            except OSError as error:
                raise ConfigurationError(
                    f"the warehouse {self.root} cannot be made: {error.strerror}"
                ) from None
            try:
                self._writer = WriterLock(self.root / ".lock")
            except ConfigurationError:
                disk.close()
                raise
        # Always taken before the store's lock: one compaction at a time, beside installs and readers.
        self._upkeep = threading.RLock()
        self._queries = ClientQueries(query_limits or QueryLimits())
        self._store = Store(self.root, disk, grace_seconds, clock, fault)
        try:
            if read_only:
                self.refresh()
            else:
                self.recover()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends reading and writing, queries under way too, and gives up the lock."""
        self._queries.close()
        with self._upkeep, self._store.lock:
            try:
                self._store.duck.close()
                self._store.disk.close()
            finally:
                if self._writer:
                    self._writer.release()
                    self._writer = None

    def __enter__(self) -> Warehouse:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Views

    def views(self) -> list[StoredView]:
        """All views, by name."""
        with self._store.lock:
            return [self._store.names[name] for name in sorted(self._store.names)]

    def view(self, name: str) -> StoredView:
        """The view of that name; raises NotFoundError."""
        return self._store.view(name)

    def stage_directory(self, name: str) -> Path:
        """A new folder in which an engine writes Parquet files for the next install of the view (name or id).

        If there is no view of that name, the files are meant for `create_view`. Nothing in it is visible
        until then; `discard` removes what is not needed after all, and the next start of a mediator does
        too.
        """
        self._require_writer()
        return self._store.stage_directory(name)

    def discard(self, directory: Path) -> None:
        """Removes a folder that `stage_directory` gave, with what was staged there."""
        self._store.discard(directory)

    def create_view(
        self,
        name: str,
        spec: Mapping[str, Any],
        schema: pa.Schema,
        state: Sequence[Path] | pa.Table | pa.RecordBatchReader,
        version: VersionRow,
        hidden: Sequence[str] = (),
    ) -> VersionRecord:
        """Makes a view with its version 0; a crash at any point leaves no view.

        `state` holds the view's columns and `_count` in normal form: a table, a stream, or Parquet files in a
        folder that `stage_directory(name)` gave. Columns named by `hidden` are stored with the others; `read`
        gives them, and nothing else does. Raises AlreadyExistsError.
        """
        with self._writing():
            return installing.create(self._store, name, spec, schema, state, version, tuple(hidden))

    def drop_view(self, name: str) -> None:
        """Ends a view and removes its data, as soon as nobody in this process reads it and nobody copies it.

        If it fails, the view is there as before or has ended, and calling this again ends it for good.
        """
        with self._store.lock:
            self._store.view(name)
            with self._writing():
                # An attempt that failed after its commit has ended the view: recovery found that out now.
                if name in self._store.names:
                    installing.drop(self._store, name)
        self._delete_replaced()

    # Versions

    def install(self, installs: Sequence[ViewInstall]) -> dict[str, VersionRecord]:
        """Makes the next versions of these views visible, all at once; returns the newest of each view.

        Each view's versions continue its newest without a gap, else OrderingViolationError. If anything
        fails, the next write or `recover` restores what was visible before, and the same install may be
        tried again.
        """
        with self._writing():
            return installing.install(self._store, installs)

    def newest(self, view: str) -> VersionRecord:
        """The newest visible version of the view."""
        return self._store.newest(view)

    def vector(self, view: str) -> Mapping[str, Position]:
        """{source: position} that the view's newest version reflects."""
        return self._store.newest(view).vector

    def resume_from(self, view: str) -> dict[str, Position]:
        """From where each source's changes are still needed: the vector, or later if nothing was missed."""
        with self._store.lock:
            newest = self._store.newest(view)
            return self._store.reached.positions(self._store.view(view).view_id, newest.vector)

    def note_reached(self, reached: Mapping[str, Mapping[str, Reach]]) -> None:
        """Remembers how far these views have missed nothing, by source, and forgets what it knew of them.

        When this returns it survives a crash, so sources may be told. `resume_from` tells it while the view's
        vector is at the start of the reach.
        """
        with self._writing():
            ids = {name: view.view_id for name, view in self._store.names.items()}
            noted = {ids[name]: reaches for name, reaches in reached.items() if name in ids}
            self._store.reached.update(noted, set(ids.values()))

    def forget_reached(self, view: str) -> None:
        """Takes out what was noted of a view: a source went back behind it."""
        with self._writing():
            view_id = self._store.view(view).view_id
            self._store.reached.update({view_id: {}}, {view.view_id for view in self._store.names.values()})

    def history(self, view: str, limit: int = 0, before: int | None = None) -> list[VersionRecord]:
        """The view's versions, or those before one of them, newest first; `limit` 0 means all."""
        return reading.history(self._store, view, limit, before)

    def version_record(self, view: str, version: int) -> VersionRecord:
        """That version of the view; raises NotFoundError, which says which versions exist."""
        return reading.record(self._store, view, version)

    # Reading

    def read(self, view: str, version: int | None = None) -> pa.RecordBatchReader:
        """The view at a version (default: the newest): its columns and `_count`, in normal form.

        Hidden columns are among them: this is for maintenance.
        """
        return reading.read(self._store, view, version)

    def query(
        self,
        sql: str,
        versions: Mapping[str, int] | VersionsOf | None = None,
        stop_by: StopBy | None = None,
        known: Collection[str] | None = None,
        caller: Hashable = None,
        give_up: GiveUp | None = None,
    ) -> tuple[pa.RecordBatchReader, dict[str, int]]:
        """The rows of a SELECT over views (DuckDB's dialect), and the version that each view was read at.

        All views are read at the versions visible at one instant; `versions` fixes some of them, or tells
        which it fixes when it is told what the query reads. Raises
        ViewDefinitionError for bad SQL, RefusedError for what is no SELECT over views, NotFoundError, and
        LimitExceededError for what takes more than `query_limits`. `stop_by` is told how to end it.
        `known` are the views that the text can name; all of them unless given. `caller` is whom the query
        counts for, of whom none gets all the processes. `give_up` ends the call of a caller who stopped to
        read, once its query was ended.
        """
        versions_of = versions if callable(versions) else lambda _: versions or {}
        return reading.query(self._store, self._queries, sql, versions_of, stop_by, known, caller, give_up)

    def changes(
        self, view: str | StoredView, after: int, up_to: int | None = None
    ) -> Iterator[tuple[VersionRecord, pa.Table]]:
        """Each version after `after`, with its change in normal form: the view's columns and `_count`.

        Hidden columns are left out: a version that changed nothing else has no rows here.
        Ends at `up_to`, or at the version that is the newest when this is called. Raises PositionTrimmedError
        if that history is not there, NotFoundError if `after` does not exist yet, or the view was dropped:
        who has looked at it before gives that very view, for one that was made again has its name.
        """
        stored = self._store.view(view) if isinstance(view, str) else view
        return reading.changes(self._store, stored, after, up_to)

    def pin(self) -> Pin:
        """Keeps every file that is there now until the pin is released; take it before `scan_sql`."""
        return self._store.graveyard.pin()

    def scan_sql(self, view: str, version: int | None = None, counted: bool = False) -> Scan:
        """DuckDB SQL for the view at a version (default: the newest), and the tables to register for it.

        Rows come as often as they occur; with `counted`, once and with `_count`.
        """
        snapshot, number = self._store.at(view, version)
        return visible_scan(snapshot, number) if counted else bag_scan(snapshot, number)

    def snapshot(self, view: str) -> ViewSnapshot:
        """The files that hold the view now, for readers that plan their own reading."""
        return self._store.at(view, None)[0]

    # Upkeep

    def recover(self) -> None:
        """Removes what writes that never became visible have left, and reads everything anew from disk.

        Runs when a warehouse is opened for writing, and before the next write after one that failed: version
        numbers are used again, so their old rows must be gone before.
        """
        with self._store.lock:
            self._require_writer()
            recover(self._store)

    def try_writing(self) -> None:
        """Writes to the disk what `recover` would remove, and removes it; raises what keeps it from that."""
        with self._writing():
            self._store.reached.try_writing()

    def refresh(self) -> None:
        """Makes a read-only warehouse see what is visible now."""
        if not self._writer:
            self._store.load()

    def compact(self, view: str) -> CompactResult:
        """Folds the view's changes into its state, and small files into larger ones.

        Every version stays readable, and installs go on meanwhile. Refused while the warehouse is copied.
        """
        with self._keeping() as allowed:
            if not allowed:
                raise SourceUnavailableError("the warehouse is being copied; compact the view later")
            return upkeep.compact(self._store, view)

    def maintain(self) -> None:
        """Merges small files, writes checkpoints and deletes replaced files, where it is due.

        Cheap if nothing is due. Call it when idle, or now and then from a thread of its own. Does nothing
        while the warehouse is being copied.
        """
        with self._keeping() as allowed:
            if allowed:
                upkeep.maintain(self._store)

    def missing_files(self) -> list[Path]:
        """Data files that a table names and the disk does not have, or has with another size."""
        with self._store.lock:
            pin = self._store.graveyard.pin()
            tables = [self._store.versions.table, self._store.definitions.table]
            for data in self._store.loaded():
                tables += [data.changes, data.state]
            named = [(table.path(file), file.size) for table in tables for file in table.files]
        missing = [path for path, size in named if not path.exists() or path.stat().st_size != size]
        pin.release()
        return missing

    def _require_writer(self) -> None:
        if not self._writer:
            raise ConfigurationError(f"the warehouse {self.root} is open for reading only")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """One write at a time; if it fails, what it left is removed before the next one."""
        with self._store.lock:
            self._require_writer()
            if self._store.failed:
                self.recover()
            self._store.steps.begun = False
            try:
                yield
            except BaseException:
                # What is refused before its first step has left nothing behind.
                if self._store.steps.begun:
                    self._store.failed = True
                raise

    @contextmanager
    def _keeping(self) -> Iterator[bool]:
        """One compaction at a time, beside everything else; False if none is allowed now: a copy is made.

        Threads wait for each other before they look at the lock file, or they would take each other for a
        copy.
        """
        with self._upkeep:
            self._require_writer()
            with upkeep_allowed(self.root) as allowed:
                if self._store.failed:
                    self.recover()
                try:
                    yield allowed
                except (NotFoundError, SourceUnavailableError):
                    raise  # refused, with nothing left behind
                except BaseException:
                    with self._store.lock:
                        self._store.failed = True
                    raise

    def _delete_replaced(self) -> None:
        """Deletes replaced files if neither upkeep nor a copy is under way; else upkeep does it later."""
        if not self._upkeep.acquire(blocking=False):
            return
        try:
            with suppress(OSError), upkeep_allowed(self.root) as allowed:
                if allowed:
                    upkeep.remove_replaced(self._store)
        finally:
            self._upkeep.release()
