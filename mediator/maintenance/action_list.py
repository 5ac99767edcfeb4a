"""AL: what is to be done to the view once its queries are answered.

The papers write it as a list of key_delete and insert. Any such list comes to two things: keys whose rows go,
and rows that come. A deletion takes back what was to be inserted before it, and what is inserted after it
stays. So AL is kept as these two, and applied as new MV = (MV without the keys) ∪ rows.

ECA-Key's COLLECT, a working copy of the view, is the same list: the copy is the view with AL applied to it.

Reference: Strobe paper, section 5.2.
"""

from __future__ import annotations

from collections.abc import Generator

import pyarrow.compute as pc

from algebra.delta import consolidate
from algebra.engines.contract import Relation
from algebra.keys import as_set, distinct, union, without
from algebra.schema import COUNT
from mediator.maintenance.contract import Read, ViewContext
from mediator.maintenance.source_evaluate import no_rows


class ActionList:
    """Actions on a keyed view, in the order in which they were added."""

    def __init__(self, view: ViewContext) -> None:
        assert view.keys is not None, "this algorithm needs keys"
        self._keys = view.keys
        self._no_rows = no_rows(view)
        self._deleted: dict[int, Relation] = {}
        self._inserted = self._no_rows

    def key_delete(self, node: int, deleted: Relation) -> None:
        """Add key_delete(MV, U) for every row U that was deleted from a node."""
        values = self._keys.values(node, deleted)
        before = self._deleted.get(node)
        self._deleted[node] = values if before is None else distinct(union([before, values]))
        self._inserted = without(self._inserted, values)

    def insert(self, rows: Relation) -> None:
        """Add insert(MV, A)."""
        self._inserted = as_set(union([self._inserted, rows]))

    def apply(self) -> Generator[Read, Relation, Relation]:
        """New MV − MV, in normal form, without adding duplicates to MV; then AL = ⟨⟩.

        Reads no more of the view than the rows that the actions are about.
        """
        deleted, self._deleted = self._deleted, {}
        inserted, self._inserted = self._inserted, self._no_rows
        touched = [self._no_rows]
        for node, values in deleted.items():
            touched.append((yield Read(self._keys.view_columns(node), values)))
        if inserted.num_rows:
            columns = self._keys.columns
            touched.append((yield Read(columns, distinct(inserted.select(list(columns))))))
        before = as_set(union(touched))
        after = before
        for values in deleted.values():
            after = without(after, values)
        after = as_set(union([after, inserted]))
        return consolidate(union([after, _negated(before)]))


def _negated(rows: Relation) -> Relation:
    return rows.set_column(rows.column_names.index(COUNT), COUNT, pc.negate(rows[COUNT]))
