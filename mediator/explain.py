"""Maintenance EXPLAIN: how a view is kept, and what that costs in queries."""

from __future__ import annotations

from sqlglot import exp

from algebra.assembly import AssemblyQuery
from algebra.decompose import Decomposition, readable_sql
from algebra.plan import Hop, SweepPlan
from algebra.view import DIALECT
from mediator.consistency import Promise
from protos.lockstep.v1 import mediator_pb2 as pb


def explanation(decomposition: Decomposition, promise: Promise) -> pb.Explanation:
    """The view's algorithm, local views, assembly query, sweeps and query counts, as text for people."""
    plan = SweepPlan.of(decomposition.assembly)
    names = [node.name for node in plan.query.nodes]
    return pb.Explanation(
        local_views=[
            pb.ExplainedLocalView(name=local.name, source=local.source, sql=readable_sql(local))
            for local in decomposition.local_views
        ],
        assembly_query=assembly_text(plan.query),
        sweeps=[
            pb.ExplainedSweep(start=name, hops=[_hop(hop, names) for hop in plan.order(i)])
            for i, name in enumerate(names)
        ],
        queries_per_update=plan.queries_per_update,
        queries_per_batch=plan.queries_per_batch,
        batched_hops=[
            *(f"inward: {_hop(hop, names)}" for hops in plan.inward for hop in hops),
            *(f"outward: {_hop(hop, names)}" for hops in plan.outward for hop in hops),
        ],
        consolidation_free=plan.query.consolidation_free,
        maintenance=maintenance(promise),
        hidden_columns=decomposition.hidden,
    )


def maintenance(promise: Promise) -> pb.Maintenance:
    """By what a view is kept, what that promises, and why."""
    return pb.Maintenance(
        algorithm=promise.algorithm.name,
        named=promise.named,
        consistency=str(promise.level),
        reasons=promise.reasons,
        message_cost=promise.algorithm.message_cost,
        needs=promise.needs,
    )


def _hop(hop: Hop, names: list[str]) -> str:
    pairs = ", ".join(f"{a} = {b}" for a, b in hop.on)
    return f"{names[hop.origin]} → {names[hop.target]} " + (f"on {pairs}" if pairs else "(all rows)")


def assembly_text(query: AssemblyQuery) -> str:
    """The assembly query as SQL for reading; nothing executes it."""

    def named(expression: exp.Expr) -> str:
        def rename(part: exp.Expr) -> exp.Expr:
            if isinstance(part, exp.Column):
                return exp.column(part.name, table=exp.to_identifier(query.nodes[int(part.table[1:])].name))
            return part

        return expression.copy().transform(rename).sql(dialect=DIALECT)

    columns = []
    for name, expression in query.projection:
        text = named(expression)
        columns.append(
            text if isinstance(expression, exp.Column) and expression.name == name else f"{text} AS {name}"
        )
    tables = ", ".join(exp.to_identifier(node.name).sql(dialect=DIALECT) for node in query.nodes)
    conditions = [
        f"{_dotted(query, edge.left, a)} = {_dotted(query, edge.right, b)}"
        for edge in query.edges
        for a, b in edge.on
    ]
    conditions += [named(predicate) for predicate in query.filters]
    text = f"SELECT {', '.join(columns)}\nFROM {tables}"
    return text + (f"\nWHERE {' AND '.join(conditions)}" if conditions else "")


def _dotted(query: AssemblyQuery, node: int, column: str) -> str:
    name = exp.to_identifier(query.nodes[node].name)
    return exp.column(column, table=name).sql(dialect=DIALECT)
