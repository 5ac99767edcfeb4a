"""Hints: a cycle that reads few rows of a large relation, and still finds every change.

Problem: comparing a relation as a whole sends all of it over the network in every cycle. Many tables have a
column that tells whether a row changed: the time of the last change, or a version. Reading only rows "changed
since" is cheap, and wrong in three ways: a deleted row is not there to be read; a transaction that began long
ago commits rows whose time is older than what was read before; a clock that is set back stamps new changes
with old times.

Wrong ways: an overlap window over the column's values (how long is a transaction? how far does a clock
jump?); counts or sums per range of keys (a deleted row and a late one make up for each other); looking for
deletes less often than for changes (a transaction that deletes one row and inserts another would be shown in
part).

Chosen way: each cycle reads the key and the hint of **all** rows, a narrow scan that an index over both
answers alone, and compares them with the shadow. No order of the hint's values is assumed: a key that is gone
is a delete, a key that is new is an insert, however old its hint; a hint that is *another* than before is an
update, also if it went back. Only those rows are then read, by key, in the same transaction.

What the owner must promise: **every change of a row gives its hint another value.** A version that counts up
keeps that promise to the letter. A time does not quite: two changes within its resolution, or two
transactions that began at the same moment and changed the row one after the other, leave the same time. So
with a time the promise is: once a row was visible with a value, another change that leaves the value as it is
commits within `overlap` seconds. For so long after a value was first seen (by the wrapper's clock; the
source's plays no part) the row is read in every cycle anyway, and once more after that. NULL promises
nothing: such rows are always read.

A broken promise is found by the full comparison every `full_every` seconds, as a change that comes late.
Until then the row is stale in the view; nothing else is.

When a relation is new to the shadow, or its hint is, all its values are fresh: for `overlap` seconds it is
compared as a whole. So is it when a third of its rows or more would have to be read by key.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from adapters.shadow.cycle import Cycle
from adapters.shadow.layout import Kept
from adapters.sqlalchemy.catalog import SourceRelation
from adapters.sqlalchemy.options import Hint
from adapters.sqlalchemy.reading import ReadState
from algebra.errors import ConfigurationError

LARGEST_SHARE = 3
"""One row in so many may be read by key; beyond that, reading all of them is cheaper."""


@dataclass(frozen=True)
class Note:
    """What is known of a hinted relation's state: which hint, since when, and the last full comparison."""

    column: str
    overlap: float
    since: float
    full: float

    @classmethod
    def read(cls, text: str) -> Note | None:
        return cls(*json.loads(text)) if text else None

    def __str__(self) -> str:
        return json.dumps([self.column, self.overlap, self.since, self.full])


def check_hint(source: str, relation: SourceRelation, hint: Hint) -> None:
    """Raise ConfigurationError unless the hint can serve this relation."""
    where = f"source {source!r}: the hint of relation {relation.name!r}"
    column = next((c for c in relation.columns if c.name == hint.column), None)
    if column is None or column.type is None:
        known = ", ".join(c.name for c in relation.columns)
        raise ConfigurationError(f"{where} names column {hint.column!r}; it shows: {known}")
    if not relation.key:
        raise ConfigurationError(f"{where} needs a primary key, which it has not")
    if not all(relation.type_of(name).is_bindable for name in relation.key):
        raise ConfigurationError(f"{where} needs a key of integers, decimals, texts or dates")


def refresh(cycle: Cycle, state: ReadState, kept: Kept, hint: Hint, full_every: float, now: float) -> None:
    """Bring a hinted relation to the state that is read, by its hint where that can be believed."""
    track = hint.overlap > 0
    note = Note.read(kept.note)
    if note is None or (note.column, note.overlap) != (hint.column, hint.overlap):
        note = Note(hint.column, hint.overlap, since=now, full=-1.0)
    settled = note.full >= note.since + hint.overlap
    # A clock that was set back must not put the full comparison off.
    recent = 0 <= now - note.full < full_every
    if settled and recent:
        outdated = cycle.outdated(
            kept.name, state.versions(kept.name, hint.column), hint.column, hint.overlap
        )
        if outdated.keys.num_rows * LARGEST_SHARE <= outdated.rows or outdated.keys.num_rows < 100:
            rows = state.rows_of(kept.name, outdated.keys)
            if cycle.patch(outdated, rows, note=str(note), track=track):
                return
    whole = Note(note.column, note.overlap, note.since, full=now)
    cycle.replace(kept.name, state.rows(kept.name), note=str(whole), track=track)
