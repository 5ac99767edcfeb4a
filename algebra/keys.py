"""Keys of relations as columns of a view: what the Strobe family and ECA-Key identify rows by.

Reference: Strobe paper, section 5.1 (key attributes in the projection) and 5.2 (key_delete).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from algebra.assembly import ROW
from algebra.engines.contract import Relation
from algebra.schema import COUNT


@dataclass(frozen=True)
class ViewKeys:
    """Where a view shows each node's key: for node i, pairs (column of the node, column of the view)."""

    of_node: tuple[tuple[tuple[str, str], ...], ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all keys: they tell any two rows of the view apart."""
        return tuple(dict.fromkeys(column for pairs in self.of_node for _, column in pairs))

    def node_columns(self, node: int) -> tuple[str, ...]:
        return tuple(column for column, _ in self.of_node[node])

    def view_columns(self, node: int) -> tuple[str, ...]:
        return tuple(column for _, column in self.of_node[node])

    def values(self, node: int, rows: Relation) -> Relation:
        """The distinct keys of some rows of a node, in columns named as the view names them."""
        return distinct(
            rows.select(list(self.node_columns(node))).rename_columns(list(self.view_columns(node)))
        )

    def delete(self, rows: Relation, node: int, deleted: Relation) -> Relation:
        """key_delete: rows of the view without those that hold the key of a deleted row of the node."""
        return without(rows, self.values(node, deleted))


def without(rows: Relation, values: Relation) -> Relation:
    """Rows that equal no row of `values` in its columns; NULL equals nothing."""
    return _joined(rows, values, "left anti")


def among(rows: Relation, values: Relation) -> Relation:
    """Rows that equal some row of `values` in its columns; NULL equals nothing."""
    return _joined(rows, values, "left semi")


def _joined(rows: Relation, values: Relation, how: str) -> Relation:
    if not rows.num_rows or not values.num_rows:
        return rows if how == "left anti" else rows.slice(0, 0)
    columns = list(values.column_names)
    typed = values.cast(pa.schema([rows.schema.field(c) for c in columns]))
    kept = rows.append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
    found = kept.select([*columns, ROW]).join(typed, keys=columns, join_type=how, use_threads=False)
    return rows.take(found[ROW].combine_chunks().sort())


def without_same(rows: Relation, values: Relation) -> Relation:
    """Rows that are the same as no row of `values` in its columns; NULL is the same as NULL.

    This is how whole rows are told apart, as `without` tells keys apart.
    """
    if not rows.num_rows or not values.num_rows:
        return rows
    columns = list(values.column_names)
    numbered = rows.select(columns).append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
    unwanted = values.append_column(ROW, pa.repeat(pa.scalar(-1, pa.int64()), values.num_rows))
    groups = union([numbered, unwanted]).group_by(columns, use_threads=False)
    same = groups.aggregate([(ROW, "min"), (ROW, "list")])
    kept = same.filter(pc.greater_equal(same[f"{ROW}_min"], 0))[f"{ROW}_list"]
    return rows.take(pc.list_flatten(kept).combine_chunks().sort())


def distinct(rows: Relation) -> Relation:
    """Each different row once; NULL is the same as NULL."""
    if rows.num_rows < 2:
        return rows
    return _shaped(rows.group_by(rows.column_names, use_threads=False).aggregate([]), rows.schema)


def as_set(rows: Relation) -> Relation:
    """Each different row once, with count 1: keyed views are sets."""
    if not rows.num_rows:
        return rows
    different = distinct(rows.drop_columns([COUNT]))
    one = pa.repeat(pa.scalar(1, pa.int64()), different.num_rows)
    return different.append_column(COUNT, one).select(rows.column_names)


def union(tables: Sequence[Relation]) -> Relation:
    """Several relations of one shape as one bag."""
    first, *others = tables
    return pa.concat_tables([first, *(_shaped(table, first.schema) for table in others)])


def _shaped(table: Relation, schema: pa.Schema) -> Relation:
    """A table with its columns in the given order and of the given types."""
    return table if table.schema.equals(schema) else table.select(schema.names).cast(schema)
