"""One Delta table as the set of its data files, with commits that cost the same at any age of the table.

Problem: an install commits twice, to a view's `changes` and to `versions`, and shall take milliseconds, also
after tens of thousands of commits.

Wrong ways: `deltalake`'s own commits replay and validate the whole list of files each time; measured here,
20 ms on a young table, 530 ms after 1,000 commits, a checkpoint changes nothing. Packing many installs into
one commit would delay versions.

Chosen way: Delta's commit protocol itself is small. A commit is one JSON file of actions, numbered without
gaps, and whoever creates that file first has the commit. We are the only writer (the warehouse's lock file),
we know our files, so a commit is one file written beside the log and linked to its number: atomic, never
overwriting. `deltalake` does what is rare: it creates tables (protocol, features), reads them back when a
warehouse is opened, and writes checkpoints. Tests read every table with `deltalake` and Spark.

An object store needs a conditional put in place of the link; `DeltaFiles._put` is the only place.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake import Schema as DeltaSchema
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from algebra.errors import LockstepError
from mediator.warehouse.disk import Disk

_LOG = "_delta_log"
_ENGINE = "lockstep"
# Rows of so many small files stay in memory; merging makes them fewer long before.
_CACHED_FILES = 4096
# Only this process needs old log entries of a table, and only until the next checkpoint.
_RETENTION: Mapping[str, str | None] = {"delta.logRetentionDuration": "interval 1 days"}
# Readers of Delta tables know no statistics but those of the first 32 columns, unless they are told which.
_WITH_STATISTICS = "delta.dataSkippingStatsColumns"


class CommitConflictError(LockstepError):
    """Another program changed a table of the warehouse; nothing was committed."""


@dataclass(frozen=True)
class DataFile:
    """One Parquet file of a table: `path` is relative to it, `low` and `high` bound its version column.

    `cached` may hold the rows of a small file, so that reading many of them opens none.
    """

    path: str
    size: int
    rows: int
    low: int = 0
    high: int = 0
    cached: pa.Table | None = field(default=None, compare=False, repr=False)


class DeltaFiles:
    """One Delta table of local Parquet files; commits are serialised by the caller.

    `range_column` names the integer column whose bounds each file's statistics record.
    """

    def __init__(self, directory: Path, range_column: str | None, disk: Disk) -> None:
        self.directory = directory
        self.range_column = range_column
        self._disk = disk
        self._files: dict[str, DataFile] = {}
        self._cached: deque[str] = deque()
        self._version = -1
        self._checkpointed = -1

    @property
    def files(self) -> tuple[DataFile, ...]:
        """The files that make up the table now."""
        return tuple(self._files.values())

    @property
    def commits_since_checkpoint(self) -> int:
        return self._version - self._checkpointed

    def path(self, file: DataFile) -> Path:
        return self.directory / file.path

    @property
    def exists(self) -> bool:
        return DeltaTable.is_deltatable(str(self.directory))

    def create(self, schema: pa.Schema, files: Sequence[DataFile] = ()) -> None:
        """Makes the table with these files, as its first commit."""
        sync_rows(self._disk, [(self, files)])
        self.directory.mkdir(parents=True, exist_ok=True)
        statistics = {_WITH_STATISTICS: self.range_column} if self.range_column else {}
        create_table_with_add_actions(
            str(self.directory),
            DeltaSchema.from_arrow(schema),
            [self._add_action(file) for file in files],
            mode="error",
            configuration={**_RETENTION, **statistics},
        )
        self._files = {file.path: file for file in files}
        self._version = 0
        self._disk.sync(self.end_of_log)

    @property
    def end_of_log(self) -> list[Path]:
        """The newest log entry and the folders that lead to it from the one that the table is in.

        They tell all that was committed. Whoever created the entry may have ended before it was forced to the
        disk; it is visible all the same.
        """
        log = self.directory / _LOG
        return [log / f"{self._version:020}.json", log, self.directory, self.directory.parent]

    def load(self) -> None:
        """Reads from the log which files the table has; cached rows of known files are kept."""
        try:
            table = DeltaTable(str(self.directory))
        except TableNotFoundError:
            raise LockstepError(f"the warehouse lacks its table {self.directory}") from None
        actions = pa.table(table.get_add_actions(flatten=True))
        count = actions.num_rows
        empty: list[int | None] = [None] * count
        names = set(actions.column_names)

        def bound(kind: str) -> list[int | None]:
            column = f"{kind}.{self.range_column}"
            return list(actions[column].to_pylist()) if column in names else empty

        known = self._files
        files: dict[str, DataFile] = {}
        for path, size, rows, low, high in zip(
            actions["path"].to_pylist(),
            actions["size_bytes"].to_pylist(),
            actions["num_records"].to_pylist() if "num_records" in names else empty,
            bound("min"),
            bound("max"),
            strict=True,
        ):
            name = unquote(path)
            cached = known[name].cached if name in known else None
            if low is None or high is None:
                low, high = self._read_bounds(name)
            files[name] = DataFile(name, size, rows or 0, low, high, cached)
        self._files = dict(sorted(files.items(), key=lambda item: item[1].low))
        self._version = table.version()
        self._checkpointed = self._last_checkpoint()

    def _read_bounds(self, path: str) -> tuple[int, int]:
        """Where no statistics tell them, the bounds are in the file: a wrong guess would hide its rows."""
        if self.range_column is None:
            return 0, 0
        column = pq.read_table(self.directory / path, columns=[self.range_column], partitioning=None)
        bounds = pc.min_max(column[self.range_column]).as_py()
        return bounds["min"] or 0, bounds["max"] or 0

    def commit(
        self, add: Sequence[DataFile], remove: Sequence[DataFile] = (), data_change: bool = True
    ) -> None:
        """Adds and removes these files in one commit; they are visible when it returns, or not at all.

        A commit of another program in between is no obstacle to adding. Removing what may have changed
        meanwhile raises CommitConflictError: the rows of files that were replaced already would come twice.
        """
        if any(file.path not in self._files for file in remove):
            raise CommitConflictError(f"another program changed {self.directory}; nothing was committed")
        now = int(time.time() * 1000)
        lines = [json.dumps(_commit_info(now, bool(remove)))]
        lines += [json.dumps(self._remove(file, now, data_change)) for file in remove]
        lines += [json.dumps(self._add(file, now, data_change)) for file in add]
        content = ("\n".join(lines) + "\n").encode()
        while not self._put(self._version + 1, content):
            self.load()
            if remove:
                raise CommitConflictError(f"another program changed {self.directory}; nothing was committed")
        self._version += 1
        for file in remove:
            self._files.pop(file.path, None)
        for file in add:
            self._files[file.path] = file
            if file.cached is not None:
                self._cached.append(file.path)
        while len(self._cached) > _CACHED_FILES:
            oldest = self._cached.popleft()
            if oldest in self._files:
                self._files[oldest] = replace(self._files[oldest], cached=None)

    def checkpoint(self) -> None:
        """Writes a checkpoint of the log, so that opening the table reads one file instead of every commit.

        Needs no lock: it reads the log from disk, and commits that come meanwhile follow the checkpoint.
        """
        table = DeltaTable(str(self.directory))
        table.create_checkpoint()
        # Old entries go after this, so the checkpoint that stands for them must be there for good.
        log = self.directory / _LOG
        self._disk.sync([log, *(path for path in log.iterdir() if "checkpoint" in path.name)])
        table.cleanup_metadata()
        self._checkpointed = table.version()

    def loose_files(self) -> list[Path]:
        """Everything in the table's folder that belongs to no commit: staged, replaced, left by a crash.

        Also folders with nothing in them.
        """
        known = {self.path(file) for file in self._files.values()}
        log = self.directory / _LOG
        loose = [log / name for name in os.listdir(log) if name.endswith(".tmp")]
        for folder, folders, names in os.walk(self.directory):
            if folder == str(self.directory):
                folders.remove(_LOG)
            elif not folders and not names:
                loose.append(Path(folder))
            loose += [path for path in (Path(folder) / name for name in names) if path not in known]
        return loose

    def _put(self, version: int, content: bytes) -> bool:
        """Creates the log entry of that number with that content; False if the number is taken."""
        log = self.directory / _LOG
        temporary = log / f"_commit_{uuid.uuid4().hex}.json.tmp"
        steps = self._disk.steps
        try:
            with steps("log.write"):
                self._disk.write(temporary, content)
            with steps("log.link"):
                os.link(temporary, log / f"{version:020}.json")
        except FileExistsError:
            return False
        finally:
            with steps("log.unlink"):
                temporary.unlink(missing_ok=True)
        self._disk.sync([log])
        return True

    def _last_checkpoint(self) -> int:
        try:
            return int(json.loads((self.directory / _LOG / "_last_checkpoint").read_text())["version"])
        except FileNotFoundError:
            return -1

    def _statistics(self, file: DataFile) -> str:
        statistics: dict[str, object] = {"numRecords": file.rows}
        if self.range_column:
            statistics["minValues"] = {self.range_column: file.low}
            statistics["maxValues"] = {self.range_column: file.high}
            statistics["nullCount"] = {self.range_column: 0}
        return json.dumps(statistics, separators=(",", ":"))

    def _add(self, file: DataFile, now: int, data_change: bool) -> dict[str, object]:
        return {
            "add": {
                "path": quote(file.path),
                "partitionValues": {},
                "size": file.size,
                "modificationTime": now,
                "dataChange": data_change,
                "stats": self._statistics(file),
            }
        }

    def _remove(self, file: DataFile, now: int, data_change: bool) -> dict[str, object]:
        return {
            "remove": {
                "path": quote(file.path),
                "deletionTimestamp": now,
                "dataChange": data_change,
                "extendedFileMetadata": True,
                "partitionValues": {},
                "size": file.size,
            }
        }

    def _add_action(self, file: DataFile) -> AddAction:
        return AddAction(
            path=quote(file.path),
            size=file.size,
            partition_values={},
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=self._statistics(file),
        )


def sync_rows(disk: Disk, rows: Iterable[tuple[DeltaFiles, Iterable[DataFile]]]) -> None:
    """Forces data files of tables to the disk with the folders on the way to them, all in one go.

    Every commit comes after this: it must not name a file that a power failure could take away.
    """
    paths = {table.path(file): table.directory for table, files in rows for file in files}
    folders = {folder for path, top in paths.items() for folder in path.parents if folder.is_relative_to(top)}
    disk.sync([*paths, *folders])


def committed_in(folder: Path) -> bool:
    """Whether a commit on disk names a file of this folder, which lies inside of a table's."""
    try:
        files = DeltaTable(str(folder.parent)).file_uris()
    except TableNotFoundError:
        return False
    return any(Path(file).is_relative_to(folder) for file in files)


def _commit_info(now: int, removes: bool) -> dict[str, object]:
    return {
        "commitInfo": {
            "timestamp": now,
            "operation": "OPTIMIZE" if removes else "WRITE",
            "operationParameters": {} if removes else {"mode": "Append"},
            "engineInfo": _ENGINE,
        }
    }
