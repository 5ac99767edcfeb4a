"""A view over one source as a single local view, for queries that the source evaluates by itself.

Where every relation is a node of its own, the whole is their join. Its columns are named as those of a
partial result over all nodes (`n<node>.<column>`), so that an answer is projected like any other.
"""

from __future__ import annotations

from algebra.decompose import Decomposition
from algebra.local_view import EquiJoin, LocalView, OutputColumn


def whole_view(decomposition: Decomposition) -> LocalView:
    """The join of all local views of a decomposition by relations; they must be of one source."""
    locals_ = decomposition.local_views
    (source,) = {local.source for local in locals_}
    return LocalView(
        name=f"{locals_[0].name}/whole",
        source=source,
        occurrences=tuple(occurrence for local in locals_ for occurrence in local.occurrences),
        joins=tuple(
            EquiJoin(locals_[edge.left].output(a).source, locals_[edge.right].output(b).source)
            for edge in decomposition.assembly.edges
            for a, b in edge.on
        ),
        predicates=tuple(predicate for local in locals_ for predicate in local.predicates),
        columns=tuple(
            OutputColumn(f"n{i}.{column.name}", column.source, column.type)
            for i, local in enumerate(locals_)
            for column in local.columns
        ),
    )
