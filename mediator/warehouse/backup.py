"""A copy of a warehouse, taken while a mediator writes to it.

Problem. Files come and go during a copy. A version must not be in the copy without its rows; and rows of
later versions must be whole files, or recovery in the copy could not take them out again.

Wrong ways. *Copy the folder as it comes*: `versions` may be copied last, with versions whose rows were not
there yet. *Stop the mediator*: nobody wants to.

Chosen way: a copy holds back upkeep and the deletion of dropped views, which are all that takes away files
of visible versions; installs go on, and views are made and dropped. `versions` is copied first, then `views`,
and only then it is looked which views have data, so that everything is there that those two name. Of each
table the log comes before its files. What the copy has beyond its versions is like the remains of a crash:
opening it removes them. The copy is opened and checked at the end; until all is there it is marked as
unfinished, so that one that was cut off is never taken for a warehouse.

One case is left: a mediator that starts meanwhile deletes what was dropped before. Then it is copied again.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
from deltalake.exceptions import DeltaError

from algebra.errors import (
    AlreadyExistsError,
    ConfigurationError,
    DataError,
    LockstepError,
    NotFoundError,
    StorageError,
)
from mediator.storage_errors import disk_problem
from mediator.warehouse.disk import Disk
from mediator.warehouse.format import FORMAT_FILE, check_format, mark_unfinished
from mediator.warehouse.lock import held_upkeep
from mediator.warehouse.query import one_line
from mediator.warehouse.reached import REACHED_FILE
from mediator.warehouse.warehouse import Warehouse

_LOG = "_delta_log"
_COMMIT = re.compile(r"\d{20}\.json")
_ATTEMPTS = 3


def backup(root: Path, target: Path) -> dict[str, int]:
    """Copies the warehouse in `root` to the new folder `target`; the newest version of each view there."""
    root, target = root.resolve(), target.resolve()
    if not (root / "versions").is_dir():
        raise NotFoundError(f"there is no warehouse at {root}")
    if target.is_relative_to(root) or root.is_relative_to(target):
        raise ConfigurationError(
            f"{target} and the warehouse {root} are one in the other; name another folder"
        )
    try:
        if target.exists() and not target.is_dir():
            raise AlreadyExistsError(f"{target} is a file; name a new folder for the copy")
        if target.exists() and any(target.iterdir()):
            raise AlreadyExistsError(f"{target} is not empty; name a new folder for the copy")
        check_format(root)
        return _consistent_copy(root, target)
    except OSError as error:
        raise _told(error, root, target) from error


def _consistent_copy(root: Path, target: Path) -> dict[str, int]:
    with held_upkeep(root):
        for _ in range(_ATTEMPTS):
            try:
                _copy(root, target)
                found, problem = _newest_versions(target)
            except BaseException:
                shutil.rmtree(target, ignore_errors=True)
                raise
            if not problem:
                return found
            shutil.rmtree(target)
    raise DataError(f"no copy was made: {problem}; views are being dropped, try again later")


def _told(error: OSError, root: Path, target: Path) -> StorageError:
    """What the copy failed by, as one line that names the place."""
    reason = error.strerror or str(error)
    # A copy that cannot be written names the file that it was read from first.
    if error.filename and error.filename2 is None and Path(os.fsdecode(error.filename)).is_relative_to(root):
        return StorageError(f"{error.filename} cannot be read ({reason})")
    problem = disk_problem(error)
    return StorageError(f"{target}: {problem}" if problem else f"{target} cannot be written ({reason})")


def _newest_versions(target: Path) -> tuple[dict[str, int], str]:
    """Opens the copy: its views with their newest versions, and what is wrong with it."""
    try:
        with Warehouse(target) as copied:
            newest = {view.name: copied.newest(view.name).version for view in copied.views()}
            missing = copied.missing_files()
            return newest, f"it lacks {missing[0]}" if missing else ""
    except (LockstepError, DeltaError, duckdb.Error, FileNotFoundError) as error:
        if problem := disk_problem(error):
            raise StorageError(f"{target}: {problem}") from error
        return {}, one_line(error)


def _copy(root: Path, target: Path) -> None:
    disk = Disk(durable=True)
    try:
        disk.make_folder(target)
        mark_unfinished(target, disk)
        copied = {target}
        for path in _in_order(root):
            copy = target / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copy2(path, copy)
            except FileNotFoundError:
                continue  # uncommitted, or of a view that was dropped; checked at the end
            copied.add(copy)
            copied.update(folder for folder in copy.parents if folder.is_relative_to(target))
        disk.sync(copied)
        if (root / FORMAT_FILE).exists():
            disk.prepare(target / FORMAT_FILE, (root / FORMAT_FILE).read_bytes())
            disk.replace(target / FORMAT_FILE)
        else:
            (target / FORMAT_FILE).unlink()
    finally:
        disk.close()


def _in_order(root: Path) -> Iterator[Path]:
    """Every file of the warehouse but its format, in the order in which it must be copied."""
    if (root / REACHED_FILE).exists():
        yield root / REACHED_FILE
    for table in (root / "versions", root / "views"):
        yield from _table(table)
    for folder in _folders(root / "data"):
        for table in _folders(folder):
            yield from _table(table)


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(path for path in parent.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []  # of a view that was dropped


def _table(directory: Path) -> Iterator[Path]:
    """The files of a table, its log first."""
    yield from _log(directory / _LOG)
    for folder, _, names in sorted(os.walk(directory)):
        if Path(folder).name != _LOG:
            yield from (Path(folder) / name for name in sorted(names) if name.endswith(".parquet"))


def _log(folder: Path) -> Iterator[Path]:
    """The files of a log.

    A commit that comes while the folder is listed may be found without the one before it. Numbers have no
    gaps, so everything between the first and the last that were found is there.
    """
    names = sorted(os.listdir(folder)) if folder.is_dir() else []
    numbers = [int(name.partition(".")[0]) for name in names if _COMMIT.fullmatch(name)]
    yield from (folder / name for name in names if not name.endswith(".tmp") and not _COMMIT.fullmatch(name))
    if numbers:
        yield from (folder / f"{number:020}.json" for number in range(numbers[0], numbers[-1] + 1))
