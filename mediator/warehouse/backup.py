"""A copy of a warehouse, taken while a mediator writes to it.

Problem. Files come and go during a copy. A version must not be in the copy without its rows; and rows of
later versions must be whole files, or recovery in the copy could not take them out again.

Wrong ways. *Copy the folder as it comes*: `versions` may be copied last, with versions whose rows were not
there yet. *Stop the mediator*: nobody wants to.

Chosen way: a copy holds back upkeep, which is all that merges or deletes files of visible versions; installs
go on. `versions` is copied first, and each table's log before its files, so everything that the copy's log
names is there. What the copy has beyond its versions is like the remains of a crash: opening it removes them.
The copy is opened and checked at the end.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

from algebra.errors import AlreadyExistsError, DataError, NotFoundError
from mediator.warehouse.format import FORMAT_FILE, check_format
from mediator.warehouse.lock import held_upkeep
from mediator.warehouse.reached import REACHED_FILE
from mediator.warehouse.warehouse import Warehouse

_LOG = "_delta_log"
_ATTEMPTS = 3


def backup(root: Path, target: Path) -> dict[str, int]:
    """Copies the warehouse in `root` to the new folder `target`; the newest version of each view there."""
    if not (root / "versions").is_dir():
        raise NotFoundError(f"there is no warehouse at {root}")
    if target.exists() and any(target.iterdir()):
        raise AlreadyExistsError(f"{target} is not empty; name a new folder for the copy")
    check_format(root)
    with held_upkeep(root):
        for attempt in range(_ATTEMPTS):
            _copy(root, target)
            with Warehouse(target) as copied:
                if not (missing := copied.missing_files()):
                    return {view.name: copied.newest(view.name).version for view in copied.views()}
            # A view was dropped meanwhile: its files went with it.
            shutil.rmtree(target)
            if attempt == _ATTEMPTS - 1:
                raise DataError(f"the copy lacks {missing[0]}; views are being dropped, try again later")
    raise AssertionError("unreachable")


def _copy(root: Path, target: Path) -> None:
    for path in _in_order(root):
        copy = target / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(path, copy)
        except FileNotFoundError:
            continue  # uncommitted, or of a view that is dropped right now; checked at the end


def _in_order(root: Path) -> Iterator[Path]:
    """Every file of the warehouse, in the order in which it must be copied."""
    yield from (root / name for name in (FORMAT_FILE, REACHED_FILE) if (root / name).exists())
    views = sorted(path for path in (root / "data").glob("*/*") if path.is_dir())
    for table in (root / "versions", root / "views", *views):
        yield from sorted(path for path in (table / _LOG).glob("*") if not path.name.endswith(".tmp"))
        yield from sorted(path for path in table.rglob("*.parquet") if path.parent.name != _LOG)
