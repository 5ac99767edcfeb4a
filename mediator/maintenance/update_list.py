"""UL(T): the deletions and the insertions of an update, by node.

An update is the net effect of its transaction, so nothing in it was first inserted and then deleted: the
paper's first step, which removes such pairs, is already done. A modification is a deletion and an insertion
with the same key. Hence deletions always come first.

Reference: Strobe paper, section 5.3 (UL, IL) and the end of section 5.1 (modifications).
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from algebra.engines.contract import Relation
from algebra.keys import as_set
from algebra.schema import COUNT
from mediator.maintenance.contract import Update


def deletions(update: Update) -> dict[int, Relation]:
    """The rows that an update deletes, each with count 1, by node."""
    return _rows_with(update, -1)


def insertions(update: Update) -> dict[int, Relation]:
    """IL(T): the rows that an update inserts, each with count 1, by node."""
    return _rows_with(update, 1)


def _rows_with(update: Update, sign: int) -> dict[int, Relation]:
    """A node whose key is known holds no row twice, so that a row of its delta counts 1 or -1."""
    found = {}
    for node, delta in sorted(update.deltas.items()):
        rows = delta.filter(pc.equal(pc.sign(delta[COUNT]), sign))
        if rows.num_rows:
            one = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
            found[node] = rows.set_column(rows.column_names.index(COUNT), COUNT, one)
    return found


def deleted_in(updates: Iterable[Update]) -> dict[int, Relation]:
    """Every row that one of several updates deletes, by node."""
    parts: dict[int, list[Relation]] = {}
    for update in updates:
        for node, rows in deletions(update).items():
            parts.setdefault(node, []).append(rows)
    return {node: as_set(pa.concat_tables(tables)) for node, tables in sorted(parts.items())}


def new_in(updates: Iterable[Update]) -> dict[int, Relation]:
    """Every row that was not there before the first of several updates, by node; without `_count`.

    Those are the rows of which the first thing heard is an insertion.
    """
    parts: dict[int, list[Relation]] = {}
    for update in updates:
        for node, rows in update.deltas.items():
            parts.setdefault(node, []).append(rows)
    new = {}
    for node, tables in sorted(parts.items()):
        events = pa.concat_tables(tables)
        columns = [c for c in events.column_names if c != COUNT]
        first = events.group_by(columns, use_threads=False).aggregate([(COUNT, "first")])
        new[node] = first.filter(pc.greater(first[f"{COUNT}_first"], 0)).select(columns)
    return {node: rows for node, rows in new.items() if rows.num_rows}
