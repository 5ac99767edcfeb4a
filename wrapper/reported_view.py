"""A local view that is being reported: its definition, how it is swept, and how far it has come."""

from __future__ import annotations

from dataclasses import dataclass, field

from algebra.assembly import AssemblyQuery, local_assembly
from algebra.expressions import ColumnRef
from algebra.local_view import LocalView, Occurrence, OutputColumn
from algebra.plan import SweepPlan
from algebra.position import Position
from algebra.schema import Catalog


@dataclass
class ReportedView:
    """A local view that is being reported: its definition, its sweep plan, and how far it has come.

    `cursor` is the only thing that changes: every transaction up to it has been reported.
    """

    view: LocalView
    plan: SweepPlan
    cursor: Position
    queries: tuple[LocalView, ...] = field(repr=False)
    """For each node, the query on its single relation."""
    subscription: int = 0
    """The mediator's number of this definition."""

    @classmethod
    def of(cls, view: LocalView, catalog: Catalog, after: Position, subscription: int = 0) -> ReportedView:
        query = local_assembly(view, catalog)
        singles = tuple(
            _single_relation(view, occurrence, query, i) for i, occurrence in enumerate(view.occurrences)
        )
        return cls(view, SweepPlan.of(query), after, singles, subscription)


def _single_relation(view: LocalView, occurrence: Occurrence, query: AssemblyQuery, node: int) -> LocalView:
    columns = tuple(
        OutputColumn(f.name, ColumnRef(occurrence.alias, f.name), f.type) for f in query.nodes[node].schema
    )
    return LocalView(
        name=f"{view.name}/{occurrence.alias}",
        source=view.source,
        occurrences=(occurrence,),
        joins=(),
        predicates=(),
        columns=columns,
        distinct=query.nodes[node].distinct,
    )
