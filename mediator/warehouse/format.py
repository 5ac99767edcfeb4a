"""The version of the warehouse's format, written into every warehouse and checked when one is opened.

A warehouse of an older format is upgraded step by step when it is opened for writing; each step can be cut
off and done again. One of a newer format is refused: this program would not know what it must not touch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from algebra.errors import ConfigurationError
from mediator.warehouse.steps import Steps

FORMAT = 2
"""What this program reads and writes. Raise it with every change that an older program would misread."""
FORMAT_FILE = "format.json"


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
    except (ValueError, KeyError, TypeError):
        raise ConfigurationError(f"{root / FORMAT_FILE} cannot be read; restore it from a backup") from None
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


def upgrade(root: Path, steps: Steps) -> None:
    """Bring the warehouse to FORMAT, from whatever older format it has; the caller is the only writer."""
    found = check_format(root)
    if found == FORMAT and (root / FORMAT_FILE).exists():
        return
    while found < FORMAT:
        with steps("format.upgrade"):
            UPGRADES[found](root)
        found += 1
        _write(root, found, steps)
    _write(root, FORMAT, steps)


def _write(root: Path, number: int, steps: Steps) -> None:
    temporary = root / f"{FORMAT_FILE}.tmp"
    with steps("format.write"):
        temporary.write_text(json.dumps({"format": number}) + "\n", encoding="utf-8")
        os.replace(temporary, root / FORMAT_FILE)
