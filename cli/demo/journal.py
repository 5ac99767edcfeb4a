"""The demo's own truth: what each writer committed, in order, as it knows it from itself.

One line per committed transaction: its number, the time of the commit, and every row before and after.
Number 0 is what the source started with. Nothing here reads a database.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli.demo.model import Change


@dataclass(frozen=True)
class Entry:
    """One committed transaction."""

    number: int
    committed_at: float
    changes: tuple[Change, ...]


def append(path: Path, number: int, committed_at: float, changes: Sequence[Change]) -> None:
    """Record a transaction that was committed just now."""
    entry = {"n": number, "at": committed_at, "changes": [[c.table, c.before, c.after] for c in changes]}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def read(path: Path) -> Iterator[Entry]:
    """Every recorded transaction, in the order of their commits."""
    with path.open(encoding="utf-8") as file:
        for line in file:
            entry = json.loads(line)
            changes = (Change(table, _row(before), _row(after)) for table, before, after in entry["changes"])
            yield Entry(entry["n"], entry["at"], tuple(changes))


def _row(values: list[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


class Counter:
    """How many transactions a journal that is still being written holds."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._lines = 0

    def transactions(self) -> int:
        """Transactions so far, without the initial rows."""
        with self._path.open("rb") as file:
            file.seek(self._offset)
            new = file.read()
        self._offset += len(new)
        self._lines += new.count(b"\n")
        return max(self._lines - 1, 0)
