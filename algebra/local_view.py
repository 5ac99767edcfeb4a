"""Local views: the select-project-join over one source's relations that a warehouse view needs.

A local view is never materialized. It is the unit the mediator knows a source by (the wrapper paper's
V_IS), and also what an adapter is asked to fetch: `LocalView` with a single occurrence is a query on one
relation, with several it is the join that answers a maintenance query in one snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from algebra.errors import SchemaChangedError
from algebra.expressions import ColumnRef, Expression, column_refs
from algebra.schema import Catalog


@dataclass(frozen=True)
class Occurrence:
    """One use of a base relation; a self-join has two occurrences of one relation."""

    alias: str
    relation: str


@dataclass(frozen=True)
class EquiJoin:
    """`left = right` between two occurrences of one source; NULL never joins."""

    left: ColumnRef
    right: ColumnRef


@dataclass(frozen=True)
class OutputColumn:
    """A column the local view shows: its own name, where it comes from, and its Arrow type."""

    name: str
    source: ColumnRef
    type: pa.DataType


@dataclass(frozen=True)
class LocalView:
    """SELECT columns FROM occurrences WHERE joins AND predicates, as a structure.

    `name` identifies it between mediator and wrapper. `predicates` are conjuncts. `distinct` says that no
    row can occur twice, because a key of every occurrence is among the columns (or equal to one of them).
    """

    name: str
    source: str
    occurrences: tuple[Occurrence, ...]
    joins: tuple[EquiJoin, ...]
    predicates: tuple[Expression, ...]
    columns: tuple[OutputColumn, ...]
    distinct: bool = False

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type) for c in self.columns])

    @property
    def relations(self) -> tuple[str, ...]:
        """The base relations used, each once, in order of first use."""
        return tuple(dict.fromkeys(o.relation for o in self.occurrences))

    def output(self, name: str) -> OutputColumn:
        return next(column for column in self.columns if column.name == name)

    def columns_read(self, alias: str) -> tuple[str, ...]:
        """Every base column of one occurrence that the local view touches, in order of first use."""
        refs = [c.source for c in self.columns]
        refs += [ref for join in self.joins for ref in (join.left, join.right)]
        refs += [ref for predicate in self.predicates for ref in column_refs(predicate)]
        return tuple(dict.fromkeys(r.column for r in refs if r.occurrence == alias))

    def check(self, catalog: Catalog) -> None:
        """Raise SchemaChangedError unless the catalog still has all that this local view reads."""
        types: dict[ColumnRef, set[pa.DataType]] = {}
        for column in self.columns:
            types.setdefault(column.source, set()).add(column.type)
        for occurrence in self.occurrences:
            schema = catalog.relations.get(occurrence.relation)
            if schema is None:
                raise SchemaChangedError(
                    f"source {catalog.source!r} no longer shows relation {occurrence.relation!r}"
                )
            for name in self.columns_read(occurrence.alias):
                if not schema.has_column(name):
                    raise SchemaChangedError(
                        f"relation {catalog.source}.{occurrence.relation} no longer has column {name!r}"
                    )
                found = schema.column(name).type
                for expected in types.get(ColumnRef(occurrence.alias, name), set()) - {found}:
                    raise SchemaChangedError(
                        f"column {catalog.source}.{occurrence.relation}.{name} is now {found}, "
                        f"the view was made for {expected}"
                    )


@dataclass(frozen=True)
class Keys:
    """Values that restrict a fetch: rows whose `columns` (output names of the local view) equal a row of
    `values`. `values` holds distinct, NULL-free rows, with the columns of `columns` in that order."""

    columns: tuple[str, ...]
    values: pa.Table
