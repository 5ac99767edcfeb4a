"""Local views for the cases, written the short way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from adapters.conformance.operations import Row
from algebra.expressions import ColumnRef, Expression
from algebra.local_view import EquiJoin, Keys, LocalView, Occurrence, OutputColumn
from algebra.schema import Catalog, Column, RelationSchema

Ref = tuple[str, str]
"""(alias, column)."""


def whole(catalog: Catalog, relation: str) -> LocalView:
    """All columns of all rows of one relation."""
    schema = catalog.relation(relation)
    return select(catalog, {"r": relation}, [("r", column.name) for column in schema.columns])


def select(
    catalog: Catalog,
    occurrences: Mapping[str, str],
    columns: Sequence[Ref],
    joins: Sequence[tuple[Ref, Ref]] = (),
    predicates: Sequence[Expression] = (),
    names: Sequence[str] | None = None,
) -> LocalView:
    """A local view over occurrences (alias -> relation); outputs are named o0, o1, … unless `names` says."""

    def output(i: int, ref: Ref) -> OutputColumn:
        type_ = catalog.relation(occurrences[ref[0]]).column(ref[1]).type
        return OutputColumn(names[i] if names else f"o{i}", ColumnRef(*ref), type_)

    return LocalView(
        name="conformance",
        source=catalog.source,
        occurrences=tuple(Occurrence(alias, relation) for alias, relation in occurrences.items()),
        joins=tuple(EquiJoin(ColumnRef(*left), ColumnRef(*right)) for left, right in joins),
        predicates=tuple(predicates),
        columns=tuple(output(i, ref) for i, ref in enumerate(columns)),
    )


def keys_of(query: LocalView, columns: Sequence[str], values: Sequence[Row]) -> Keys:
    """Key values for these output columns."""
    arrays = [pa.array([row[i] for row in values], query.output(name).type) for i, name in enumerate(columns)]
    return Keys(tuple(columns), pa.table(arrays, names=list(columns)))


def table(name: str, columns: Mapping[str, pa.DataType], key: Sequence[str] = ()) -> RelationSchema:
    """A table to create; key columns take no NULL."""
    return RelationSchema(
        name, tuple(Column(c, type_, nullable=c not in key) for c, type_ in columns.items()), tuple(key)
    )
