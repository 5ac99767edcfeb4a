"""Term processor: a sum of local view expressions with given rows in place of relations, in one state.

This is how ECA asks: its queries are sums like V⟨U2⟩ − V⟨U1⟩⟨U2⟩, and they mean something only if all of
their terms see the same state of the source. The relations that are not substituted are read hop by hop, as
the update processor does, all of them as they were at one position.

The substituted rows were reported by this source as changes of a local view, so its predicates hold for them;
they are not applied again.

Reference: slides, "The Eager Compensating Algorithm (ECA)", event S_qu.
"""

from __future__ import annotations

from collections.abc import Collection

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from algebra.arrow_ipc import from_ipc
from algebra.delta import consolidate
from algebra.engines.contract import Relation
from algebra.errors import RefusedError
from algebra.position import ORIGIN
from algebra.schema import COUNT, Catalog
from protos.convert import local_view_from_proto
from protos.lockstep.v1 import wrapper_pb2 as pb
from wrapper.allow_list import UNRESTRICTED, MediatorPolicy, allowed_view
from wrapper.past_state import PastState
from wrapper.reported_view import ReportedView


def evaluate_terms(
    query: pb.MaintenanceQuery,
    catalog: Catalog,
    reported: Collection[str],
    state: PastState,
    policy: MediatorPolicy = UNRESTRICTED,
) -> Relation:
    """The sum of the query's terms: the local view's columns and `_count`, in normal form.

    `reported` are the relations whose changes are reported: of others, nobody knows what they were.
    """
    view = allowed_view(local_view_from_proto(query.definition), catalog, policy)
    for relation in view.relations:
        if relation not in reported:
            raise RefusedError(
                f"terms of local view {view.name!r} read relation {relation!r}, which is not reported"
            )
    shape = ReportedView.of(view, catalog, ORIGIN)
    parts = [pa.schema([*view.arrow, pa.field(COUNT, pa.int64())]).empty_table()]
    for term in query.terms:
        if term.sign not in (1, -1):
            raise RefusedError(f"a term of local view {view.name!r} counts {term.sign}, not 1 or -1")
        try:
            rows = state.join(shape, _substituted(shape, term, catalog))
            signed = pc.multiply_checked(rows[COUNT], pa.scalar(term.sign, pa.int64()))
        except (duckdb.OutOfRangeException, duckdb.ConversionException, pa.ArrowInvalid):
            raise RefusedError(
                f"terms of local view {view.name!r} count more than 64 bits hold, "
                "or its predicates cannot be decided for some row"
            ) from None
        parts.append(rows.set_column(rows.column_names.index(COUNT), COUNT, signed))
    return consolidate(pa.concat_tables(parts))


def _substituted(shape: ReportedView, term: pb.Term, catalog: Catalog) -> dict[int, Relation]:
    """The rows of each substituted node; RefusedError if they do not fit it."""
    nodes = {occurrence.alias: i for i, occurrence in enumerate(shape.view.occurrences)}
    given: dict[int, Relation] = {}
    for substitution in term.substitutions:
        node = nodes.get(substitution.occurrence)
        if node is None:
            raise RefusedError(
                f"local view {shape.view.name!r} has no occurrence {substitution.occurrence!r}"
            )
        rows = from_ipc(substitution.arrow)
        if len(set(rows.column_names)) != rows.num_columns:
            raise RefusedError(f"rows for {substitution.occurrence!r} have a column twice")
        relation = catalog.relation(shape.view.occurrences[node].relation)
        for field in rows.schema:
            expected = pa.int64() if field.name == COUNT else None
            if expected is None and relation.has_column(field.name):
                expected = relation.column(field.name).type
            if field.type != expected:
                raise RefusedError(f"rows for {substitution.occurrence!r} do not fit column {field.name!r}")
        if COUNT not in rows.column_names or rows[COUNT].null_count:
            raise RefusedError(f"rows for {substitution.occurrence!r} have no counts")
        for column in shape.plan.query.nodes[node].schema.names:
            if column not in rows.column_names:
                raise RefusedError(f"rows for {substitution.occurrence!r} have no column {column!r}")
        given[node] = rows
    if not given:
        raise RefusedError(f"a term of local view {shape.view.name!r} substitutes nothing")
    return given
