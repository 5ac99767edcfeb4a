"""Marks: how an application says that its transaction is a part of a global one.

In every source that has a part, inside the transaction that is that part:

    INSERT INTO _lockstep_global (id, participants) VALUES ('transfer-4711', 'shop,crm')

`participants` are the names of all sources that have a part, this one included, as the configuration spells
them. Several rows in one transaction add up: rows with one id name the participants together, rows with
several ids make the transaction a part of each. An entry that holds several transactions is a part of all
that they are parts of, for it cannot be divided.

A mark must never make an application's transaction fail, nor hold up the changes of a source. So the table
takes anything, and a mark that says nothing usable is reported in the log and otherwise ignored: the
transaction is a local one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from algebra.global_transaction import GlobalTransaction
from algebra.position import Position

log = logging.getLogger(__name__)

MARKER = "_lockstep_global"
"""The table's name, the same in every source."""


@dataclass(frozen=True)
class Mark:
    """A row of the marker table as it was written, and the index of the entry that it came with."""

    entry: int
    id: str | None
    participants: str | None


def parts(source: str, positions: Sequence[Position], marks: Iterable[Mark]) -> dict[int, GlobalTransaction]:
    """Of which global transaction each entry is a part; `positions` are those of all entries."""
    named: dict[tuple[int, str], set[str]] = {}
    for mark in marks:
        names = [name.strip() for name in (mark.participants or "").split(",")]
        named.setdefault((mark.entry, (mark.id or "").strip()), set()).update(name for name in names if name)
    found: dict[int, list[GlobalTransaction]] = {}
    refused: list[str] = []
    for (entry, id_), participants in named.items():
        if not id_:
            refused.append(f"at {positions[entry]} has no id")
        elif source not in participants:
            others = ", ".join(sorted(participants)) or "nobody"
            refused.append(f"at {positions[entry]}, id {id_!r}, names {others} and not this source")
        else:
            found.setdefault(entry, []).append(GlobalTransaction(id_, frozenset(participants)))
    if refused:
        log.warning(
            "source %s: %d marks in %s are ignored, their transactions taken for local ones; the first %s",
            source,
            len(refused),
            MARKER,
            refused[0],
        )
    joined = {entry: GlobalTransaction.joined(ones) for entry, ones in found.items()}
    return {entry: mark for entry, mark in joined.items() if mark is not None}
