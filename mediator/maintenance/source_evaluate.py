"""source_evaluate: a query answered source by source, each in whatever state it is in when asked.

This is what the conventional algorithm and the whole Strobe family ask with. Nothing is compensated here;
what the algorithms differ in is what they do about that.

Reference: Strobe paper, section 5.1, procedure source_evaluate and function next_source.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from algebra.engines.contract import Relation
from algebra.local_view import Keys
from algebra.schema import COUNT
from algebra.sweep import Query
from mediator.maintenance.contract import Evaluation, ViewContext


def source_evaluate(view: ViewContext, substituted: Mapping[int, Relation]) -> Evaluation:
    """V⟨U⟩: the view with rows (and `_count`) in place of some of its nodes; rows of the view.

    The sources of all other nodes are asked one after the other, as long as there is anything to join.
    """
    plan, engine = view.plan, view.engine
    given = {node: engine.select(plan.query.nodes[node], rows) for node, rows in substituted.items()}
    start = min(given, key=lambda node: given[node].num_rows)
    partial = engine.begin(start, given[start])
    for hop in plan.order(start):
        if not partial.num_rows:
            return no_rows(view)
        if hop.target in given:
            partial = engine.join(partial, hop, given[hop.target])
            continue
        keys = None
        if hop.on:
            values = engine.partial_keys(partial, hop, plan.query)
            if not values.num_rows:
                return no_rows(view)
            keys = Keys(tuple(values.column_names), values)
        (answer,) = yield (Query(hop.target, keys, compensates=len(given) > 1),)
        partial = engine.join(partial, hop, engine.select(plan.query.nodes[hop.target], answer.rows))
    return engine.project(plan.query, partial) if partial.num_rows else no_rows(view)


def no_rows(view: ViewContext) -> Relation:
    """The empty change of a view."""
    return pa.schema([*view.plan.query.schema, pa.field(COUNT, pa.int64())]).empty_table()
