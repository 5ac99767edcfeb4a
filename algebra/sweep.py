"""SWEEP: complete consistency with local compensation, as published and batched.

Problem. A view joins sources that change on their own. When source i reports a change, the view's change
is that delta joined with all other sources *as they were then*; but a source that is asked answers with
what it is *now*, and may have changed in between.

Wrong ways. Lock the sources: they are autonomous. Ask again until nothing interferes: may never end
(Strobe waits for quiescence). Send compensating queries: their answers need compensation in turn (C-Strobe
sends up to (n-1)! of them).

Chosen way. Each source's messages arrive in order, so what an answer shows too much is exactly what was
reported before the answer and is not yet in the view. It is subtracted here, from data already at hand.

Guarantee: complete consistency; version n is the view after the n-th delivered transaction. Cost: n-1
queries per transaction as published, at most 2(n-1) per batch of any size when batched. Needs from
sources: changes and answers in one order; no keys.

Both are generators without I/O: they yield tuples of `Query` that may be asked side by side and receive
the tuple of their `Answer`s. The mediator runs them over sources, a wrapper over the relations of one
snapshot, the lab over a simulated network.

Reference: SWEEP paper, section 5 and Figure 4 (ViewChange); section 5.3 for the parallel sweeps. Batched
SWEEP is Lockstep's own, see docs/adr/0003-batched-sweep-on-a-join-tree.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from algebra.assembly import ROW, SEQUENCE, VERSION
from algebra.delta import consolidate
from algebra.engines.contract import Engine, Relation, Start, ViewChange
from algebra.local_view import Keys
from algebra.plan import Hop, SweepPlan
from algebra.position import ORIGIN, Position
from algebra.schema import COUNT


@dataclass(frozen=True)
class Query:
    """MQ: the rows of a node that match keys; all rows without keys.

    `compensates` marks a query that exists only to correct another one's answer.
    """

    node: int
    keys: Keys | None
    compensates: bool = False


@dataclass(frozen=True)
class Answer:
    """MQR: a bag of the node's rows, reflecting every transaction up to the position."""

    rows: Relation
    position: Position = ORIGIN


Sweep = Generator[tuple[Query, ...], tuple[Answer, ...], ViewChange]

Pending = Callable[[int, Position], Relation]
"""pending(node, position): deltas of a node with `_seq` and `_count`, delivered up to that position and not
yet in the view. The batch's own deltas are among them."""


def batched_sweep(
    plan: SweepPlan,
    deltas: Mapping[int, Relation],
    engine: Engine,
    pending: Pending,
    directory: Path | None = None,
) -> Sweep:
    """The view's change for a batch of transactions, one version each, with at most 2(n-1) queries.

    `deltas` holds the batch: for each node its deltas, tagged with `_seq` = transaction * width + node, so
    that a transaction that changes several nodes is a sequence of single-node changes.

    The inward sweep crosses each edge of the join tree towards the root with the distinct join values of
    everything that starts below it; the outward sweep crosses it back. What comes back is kept as the
    node's *history* over the batch, so that one join per starting node gives every version at once.
    """
    deltas = {i: engine.select(plan.query.nodes[i], rows) for i, rows in deltas.items()}
    deltas = {i: rows for i, rows in deltas.items() if rows.num_rows}
    inward: dict[int, Relation] = {}
    outward: dict[int, Relation] = {}

    def known_rows(node: int, below: int | None) -> list[Relation]:
        """All rows of a node that partial results coming from elsewhere than `below` may hold."""
        rows = [deltas[node]] if node in deltas else []
        rows += [inward[child] for child in plan.children(node) if child != below and child in inward]
        if node in outward:
            rows.append(outward[node])
        return rows

    for hops in plan.inward:
        found = yield from _cross(plan, engine, pending, {hop: known_rows(hop.origin, None) for hop in hops})
        inward.update({hop.origin: rows for hop, rows in found.items()})
    for hops in plan.outward:
        found = yield from _cross(
            plan, engine, pending, {hop: known_rows(hop.origin, hop.target) for hop in hops}
        )
        outward.update({hop.target: rows for hop, rows in found.items()})

    starts = []
    for node in deltas:
        start = _start(plan, node, deltas[node], inward, outward)
        if start is not None:
            starts.append(start)
    return engine.assemble(plan, starts, directory)


def _cross(
    plan: SweepPlan, engine: Engine, pending: Pending, rows: Mapping[Hop, list[Relation]]
) -> Generator[tuple[Query, ...], tuple[Answer, ...], dict[Hop, Relation]]:
    """Ask the targets of one round of hops; the histories that came back. Hops without rows are not made."""
    queries: dict[Hop, Query] = {}
    for hop, known in rows.items():
        known = [r for r in known if r.num_rows]
        if not known:
            continue
        if not hop.on:
            queries[hop] = Query(hop.target, None)
            continue
        values = engine.keys(known, hop, plan.query)
        if values.num_rows:
            queries[hop] = Query(hop.target, Keys(tuple(values.column_names), values))
    if not queries:
        return {}
    answers = yield tuple(queries.values())
    histories: dict[Hop, Relation] = {}
    for (hop, query), answer in zip(queries.items(), answers, strict=True):
        node = plan.query.nodes[hop.target]
        histories[hop] = engine.history(
            node,
            engine.select(node, answer.rows),
            engine.select(node, pending(hop.target, answer.position)),
            query.keys,
        )
    return histories


def _start(
    plan: SweepPlan,
    node: int,
    deltas: Relation,
    inward: Mapping[int, Relation],
    outward: Mapping[int, Relation],
) -> Start | None:
    """The join that a node's deltas go through: inward to the root, then outward to all the rest.

    None if some node on the way has nothing to join with: then these deltas do not change the view.
    """
    hops: list[tuple[Hop, Relation]] = []
    path = plan.path_inward(node)
    for below in path[:-1]:
        if below not in inward:
            return None
        hops.append((plan.parent[below], inward[below]))
    for round_ in plan.outward:
        for hop in round_:
            if hop.target in path:
                continue
            if hop.target not in outward:
                return None
            hops.append((hop, outward[hop.target]))
    return Start(node, deltas, tuple(hops))


def sweep(plan: SweepPlan, deltas: Mapping[int, Relation], engine: Engine, pending: Pending) -> Sweep:
    """The view's change for one transaction, as published: left sweep, right sweep, n-1 queries per node.

    A transaction that changes several nodes is taken as one single-node change after the other.

    Reference: SWEEP paper, Figure 4, function ViewChange.
    """
    changes: list[Relation] = []
    version = 0
    for node, delta in _changed(plan, deltas, engine):
        sequence = delta[SEQUENCE][0].as_py()
        version = sequence // plan.width
        view_change = engine.begin(node, delta.drop_columns([SEQUENCE]))
        for hop in plan.order(node):
            if not view_change.num_rows:
                break
            query = _query(plan, engine, hop, view_change)
            (answer,) = yield (query,)
            view_change = _joined(plan, engine, pending, hop, view_change, answer, sequence)
        if view_change.num_rows:
            changes.append(engine.project(plan.query, view_change))
    return _one_version(plan, changes, version)


def parallel_sweep(
    plan: SweepPlan, deltas: Mapping[int, Relation], engine: Engine, pending: Pending
) -> Sweep:
    """As `sweep`, with the left and the right sweep side by side, and on a tree all branches of the start.

    The branches know nothing of each other; at the end they meet on the delta row they started from. The
    sign and count of that row travel with the first of them.

    Reference: SWEEP paper, section 5.3, ΔV = ΔV_left ⋈ ΔV_right.
    """
    changes: list[Relation] = []
    version = 0
    for node, delta in _changed(plan, deltas, engine):
        sequence = delta[SEQUENCE][0].as_py()
        version = sequence // plan.width
        rows = delta.drop_columns([SEQUENCE])
        rows = rows.append_column(ROW, pa.array(range(rows.num_rows), pa.int64()))
        once = rows.set_column(
            rows.column_names.index(COUNT), COUNT, pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
        )
        branches = [list(hops) for hops in plan.branches(node)]
        parts = [engine.begin(node, once if i else rows) for i in range(max(len(branches), 1))]
        while any(branches) and all(part.num_rows for part in parts):
            hops = {i: branch.pop(0) for i, branch in enumerate(branches) if branch}
            answers = yield tuple(_query(plan, engine, hop, parts[i]) for i, hop in hops.items())
            for (i, hop), answer in zip(hops.items(), answers, strict=True):
                parts[i] = _joined(plan, engine, pending, hop, parts[i], answer, sequence)
        view_change, *others = parts
        for part in others:
            view_change = engine.merge(view_change, part, f"n{node}.{ROW}")
        if view_change.num_rows:
            changes.append(engine.project(plan.query, view_change.drop_columns([f"n{node}.{ROW}"])))
    return _one_version(plan, changes, version)


def _changed(
    plan: SweepPlan, deltas: Mapping[int, Relation], engine: Engine
) -> Iterator[tuple[int, Relation]]:
    """The nodes that a transaction changes, with the part of their deltas that the view may show."""
    for node, delta in deltas.items():
        delta = engine.select(plan.query.nodes[node], delta)
        if delta.num_rows:
            yield node, delta


def _query(plan: SweepPlan, engine: Engine, hop: Hop, view_change: Relation) -> Query:
    """What a partial change wants from the next node."""
    if not hop.on:
        return Query(hop.target, None)
    values = engine.partial_keys(view_change, hop, plan.query)
    return Query(hop.target, Keys(tuple(values.column_names), values))


def _joined(
    plan: SweepPlan,
    engine: Engine,
    pending: Pending,
    hop: Hop,
    temp_view: Relation,
    answer: Answer,
    sequence: int,
) -> Relation:
    """A partial change joined with an answer, without the error term of what was concurrent."""
    target = plan.query.nodes[hop.target]
    view_change = engine.join(temp_view, hop, engine.select(target, answer.rows))
    concurrent = engine.select(target, pending(hop.target, answer.position))
    concurrent = concurrent.filter(pc.greater(concurrent[SEQUENCE], sequence))
    if concurrent.num_rows:
        error_term = engine.join(temp_view, hop, concurrent.drop_columns([SEQUENCE]))
        view_change = engine.minus(view_change, error_term)
    return view_change


def _one_version(plan: SweepPlan, changes: list[Relation], version: int) -> ViewChange:
    none = pa.schema([*plan.query.schema, pa.field(COUNT, pa.int64())]).empty_table()
    change = consolidate(pa.concat_tables([none, *changes]))
    tag = pa.repeat(pa.scalar(version, pa.int64()), change.num_rows)
    return ViewChange(table=change.append_column(VERSION, tag))
