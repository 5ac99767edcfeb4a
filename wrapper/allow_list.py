"""What a mediator may ask a wrapper for: only what its source shows."""

from __future__ import annotations

from algebra.assembly import RESERVED
from algebra.errors import RefusedError
from algebra.expressions import column_refs
from algebra.local_view import LocalView
from algebra.schema import Catalog


def allowed_view(view: LocalView, catalog: Catalog) -> LocalView:
    """The local view if everything it names is shown by this source; RefusedError otherwise."""
    if view.source != catalog.source:
        raise RefusedError(
            f"local view {view.name!r} is for source {view.source!r}, this is {catalog.source!r}"
        )
    aliases = {o.alias: o.relation for o in view.occurrences}
    for occurrence in view.occurrences:
        if occurrence.relation not in catalog.relations:
            raise RefusedError(f"source {catalog.source!r} does not show relation {occurrence.relation!r}")
        reserved = [c.name for c in catalog.relation(occurrence.relation).columns if c.name in RESERVED]
        if reserved:
            raise RefusedError(
                f"relation {catalog.source}.{occurrence.relation} has a column {reserved[0]!r}, "
                "a name that Lockstep keeps for itself"
            )
    refs = [c.source for c in view.columns] + [r for j in view.joins for r in (j.left, j.right)]
    refs += [ref for predicate in view.predicates for ref in column_refs(predicate)]
    for ref in refs:
        if ref.occurrence not in aliases:
            raise RefusedError(f"local view {view.name!r} has no occurrence {ref.occurrence!r}")
    view.check(catalog)
    return view
