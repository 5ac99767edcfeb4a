"""The version of the warehouse's format, written into every warehouse and checked when one is opened.

A warehouse of an older format is upgraded step by step when it is opened for writing; each step can be cut
off and done again. One of a newer format is refused: this program would not know what it must not touch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from algebra.errors import ConfigurationError
from mediator.warehouse.disk import Disk

FORMAT = 2
"""What this program reads and writes. Raise it with every change that an older program would misread."""
FORMAT_FILE = "format.json"
_UNFINISHED = "unfinished copy"


def _nothing_to_do(root: Path) -> None:
    """0 did not write its number; 1 has no `reached.json`, and none is as good as an empty one."""


UPGRADES: Mapping[int, Callable[[Path], None]] = {0: _nothing_to_do, 1: _nothing_to_do}
"""For each older format, what turns a warehouse into the next one; cut off, it is called again."""


def format_of(root: Path) -> int:
    """The format of the warehouse in that folder; FORMAT if there is none yet."""
    try:
        found = json.loads((root / FORMAT_FILE).read_text(encoding="utf-8"))["format"]
    except FileNotFoundError:
        return 0 if (root / "versions").is_dir() else FORMAT
    except NotADirectoryError:
        file = next(path for path in (root, *root.parents) if path.exists())
        what = f"the warehouse {root}" if file == root else f"{file}, above the warehouse {root.name},"
        raise ConfigurationError(f"{what} is a file; name a folder") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"{root / FORMAT_FILE} cannot be read; restore it from a backup") from None
    if found == _UNFINISHED:
        raise ConfigurationError(f"{root} is a copy of a warehouse that was cut off; make it anew")
    return int(found)


def check_format(root: Path) -> int:
    """The format of the warehouse; ConfigurationError if it is newer than this program."""
    found = format_of(root)
    if found > FORMAT:
        raise ConfigurationError(
            f"the warehouse {root} has format {found}, this program knows formats up to {FORMAT}: "
            "use the newer Lockstep that wrote it"
        )
    return found


def check_takeable(root: Path) -> None:
    """ConfigurationError if the folder holds something else: a new warehouse would be made among that."""
    if (root / FORMAT_FILE).exists() or not root.is_dir() or (root / "versions").is_dir():
        return
    foreign = sorted(path.name for path in root.iterdir() if not _is_harmless(path.name))
    if foreign:
        raise ConfigurationError(
            f"{root} is not empty and no warehouse (it holds {foreign[0]}); name another folder"
        )


def _is_harmless(name: str) -> bool:
    """Whether a new warehouse may lie beside it: what a start left that was cut off, and what disks hold."""
    return name.startswith(".") or name in ("lost+found", Path(FORMAT_FILE).with_suffix(".tmp").name)


def upgrade(root: Path, disk: Disk) -> None:
    """Bring the warehouse to FORMAT, from whatever older format it has; the caller is the only writer."""
    found = check_format(root)
    if found == FORMAT and (root / FORMAT_FILE).exists():
        return
    while found < FORMAT:
        with disk.steps("format.upgrade"):
            UPGRADES[found](root)
        found += 1
        _write(root, found, disk)
    _write(root, FORMAT, disk)


def mark_unfinished(root: Path, disk: Disk) -> None:
    """Writes into a folder that it is to become a warehouse; nobody opens it until its format is there."""
    disk.prepare(root / FORMAT_FILE, _content(_UNFINISHED))
    disk.replace(root / FORMAT_FILE)


def _write(root: Path, number: int, disk: Disk) -> None:
    with disk.steps("format.write"):
        disk.prepare(root / FORMAT_FILE, _content(number))
        disk.replace(root / FORMAT_FILE)


def _content(found: int | str) -> bytes:
    return (json.dumps({"format": found}) + "\n").encode()
