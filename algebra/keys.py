"""Keys of relations as columns of a view: what the Strobe family and ECA-Key identify rows by.

Reference: Strobe paper, section 5.1 (key attributes in the projection) and 5.2 (key_delete).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from algebra.engines.contract import Relation
from algebra.schema import COUNT


@dataclass(frozen=True)
class ViewKeys:
    """Where a view shows each node's key: for node i, pairs (column of the node, column of the view)."""

    of_node: tuple[tuple[tuple[str, str], ...], ...]

    def node_columns(self, node: int) -> tuple[str, ...]:
        return tuple(column for column, _ in self.of_node[node])

    def view_columns(self, node: int) -> tuple[str, ...]:
        return tuple(column for _, column in self.of_node[node])

    def values(self, node: int, rows: Relation) -> Relation:
        """The distinct keys of some rows of a node, in columns named as the view names them."""
        keys = rows.select(list(self.node_columns(node))).rename_columns(list(self.view_columns(node)))
        return keys.group_by(keys.column_names, use_threads=False).aggregate([])

    def delete(self, rows: Relation, node: int, deleted: Relation) -> Relation:
        """key_delete: rows of the view without those that hold the key of a deleted row of the node."""
        return without(rows, self.values(node, deleted))


def without(rows: Relation, values: Relation) -> Relation:
    """Rows that equal no row of `values` in its columns."""
    return _joined(rows, values, "left anti")


def among(rows: Relation, values: Relation) -> Relation:
    """Rows that equal some row of `values` in its columns."""
    return _joined(rows, values, "left semi")


def _joined(rows: Relation, values: Relation, how: str) -> Relation:
    if not rows.num_rows or not values.num_rows:
        return rows if how == "left anti" else rows.slice(0, 0)
    columns = list(values.column_names)
    typed = values.cast(pa.schema([rows.schema.field(c) for c in columns]))
    kept = rows.append_column("_row", pa.array(range(rows.num_rows), pa.int64()))
    found = kept.select([*columns, "_row"]).join(typed, keys=columns, join_type=how, use_threads=False)
    return rows.take(found["_row"].combine_chunks().sort())


def as_set(rows: Relation) -> Relation:
    """Each different row once, with count 1: keyed views are sets."""
    columns = [c for c in rows.column_names if c != COUNT]
    if not rows.num_rows:
        return rows
    distinct = rows.select(columns).group_by(columns, use_threads=False).aggregate([])
    one = pa.repeat(pa.scalar(1, pa.int64()), distinct.num_rows)
    return distinct.append_column(COUNT, one).select(rows.column_names)


def union(tables: Sequence[Relation]) -> Relation:
    """Several relations of one shape as one bag."""
    return pa.concat_tables([tables[0], *(t.select(tables[0].column_names) for t in tables[1:])])
