"""Update processor: the ΔIS of each source transaction, computed inside one snapshot.

Problem. A transaction changed relations of a local view that is not materialized. Its ΔIS is the join of
its deltas with the other relations *as they were then*, while the snapshot shows them as they are now,
with later transactions already in.

Chosen way: SWEEP again, one level down. The relations of the local view are the nodes, the snapshot
answers the queries, and the later transactions that the snapshot already shows are subtracted locally
(the wrapper paper's local correction). A transaction that changes several relations is swept as a sequence
of single-relation changes and reported as one ΔIS. A whole run of transactions is swept at once. Of a
backlog that is reported in several runs, what later runs did is taken back from each answer of the snapshot
before the sweep gets it (`backlog.py`): to the sweep, the source is where the run ends.

Reference: wrapper paper, section 4.2 and Figure 7, process UpdateProcessor; Example 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from adapters.spi import TRANSACTION, Changes, Snapshot
from algebra.assembly import HIGH, LOW, SEQUENCE, VERSION, AssemblyQuery, local_assembly
from algebra.engines.contract import EARLIEST, Engine, Relation
from algebra.expressions import ColumnRef
from algebra.local_view import Keys, LocalView, Occurrence, OutputColumn
from algebra.plan import SweepPlan
from algebra.position import Position
from algebra.schema import COUNT, Catalog
from algebra.sweep import Answer, Query, batched_sweep


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

    @classmethod
    def of(cls, view: LocalView, catalog: Catalog, after: Position) -> ReportedView:
        query = local_assembly(view, catalog)
        singles = tuple(
            _single_relation(view, occurrence, query, i) for i, occurrence in enumerate(view.occurrences)
        )
        return cls(view, SweepPlan.of(query), after, singles)


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


@dataclass(frozen=True)
class DeltaIS:
    """The change of one local view over a run of transactions.

    `rows` has the local view's columns, `_tx` and `_count`, in normal form per transaction, ordered by
    `_tx`. `touched` lists the transactions that changed any relation of the local view, also those whose
    ΔIS is empty, and all parts of global transactions: the mediator may wait for a part, whatever it did.
    """

    rows: Relation
    touched: tuple[int, ...]


LaterChanges = Callable[[str, Sequence[str], Keys | None], Relation | None]
"""later(relation, columns, keys): what the snapshot shows of a relation beyond the run; None for nothing."""


class UpdateProcessor:
    """Computes ΔIS. One engine serves all local views of the wrapper."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def delta_is(
        self, reported: ReportedView, changes: Changes, snapshot: Snapshot, later: LaterChanges
    ) -> DeltaIS:
        """The ΔIS of every transaction of the run after the view's cursor.

        The snapshot must show every transaction of the run, and no later one but those that `later` knows:
        that is what `Snapshot.changes` promises.
        """
        plan = reported.plan
        first = sum(1 for position in changes.positions if position <= reported.cursor)
        deltas: dict[int, Relation] = {}
        touched = {index for index in changes.part_of if index >= first}
        for node, occurrence in enumerate(reported.view.occurrences):
            table = changes.tables.get(occurrence.relation)
            if table is None or not table.num_rows:
                continue
            transactions = table[TRANSACTION].to_numpy()
            if first:
                keep = int(np.searchsorted(transactions, first))
                table, transactions = table.slice(keep), transactions[keep:]
            if not table.num_rows:
                continue
            touched.update(np.unique(transactions).tolist())
            sequence = transactions.astype(np.int64) * plan.width + node
            columns = plan.query.nodes[node].schema.names
            deltas[node] = table.select([*columns, COUNT]).append_column(SEQUENCE, pa.array(sequence))
        rows = self._sweep(reported, deltas, snapshot, later)
        order = rows.sort_by(VERSION)
        tagged = order.set_column(
            order.column_names.index(VERSION), TRANSACTION, order[VERSION].cast(pa.int32())
        )
        return DeltaIS(tagged, tuple(sorted(touched)))

    def _sweep(
        self,
        reported: ReportedView,
        deltas: Mapping[int, Relation],
        snapshot: Snapshot,
        later: LaterChanges,
    ) -> Relation:
        plan = reported.plan

        def pending(node: int, _: Position) -> Relation:
            found = deltas.get(node)
            if found is not None:
                return found
            schema = pa.schema([*plan.query.nodes[node].schema, *_TAGS])
            return schema.empty_table()

        sweep = batched_sweep(plan, deltas, self._engine, pending)
        try:
            queries = next(sweep)
            while True:
                answers = tuple(self._local_query(reported, query, snapshot, later) for query in queries)
                queries = sweep.send(answers)
        except StopIteration as stop:
            rows = stop.value.table
            assert rows is not None, "a sweep without a directory returns a table"
            return rows

    def _local_query(
        self, reported: ReportedView, query: Query, snapshot: Snapshot, later: LaterChanges
    ) -> Answer:
        """LQ: one relation of the local view, restricted to the keys, as of the end of the run."""
        rows = snapshot.fetch(reported.queries[query.node], query.keys).read_all()
        node = reported.plan.query.nodes[query.node]
        relation = reported.view.occurrences[query.node].relation
        beyond = later(relation, node.schema.names, query.keys)
        if beyond is not None and beyond.num_rows:
            after = pa.repeat(pa.scalar(0, pa.int64()), beyond.num_rows)
            known = self._engine.history(node, rows, beyond.append_column(SEQUENCE, after), None)
            before = known.filter(pc.equal(known[LOW], EARLIEST))
            rows = before.drop_columns([LOW, HIGH])
        return Answer(rows, snapshot.position)


_TAGS = (pa.field(COUNT, pa.int64()), pa.field(SEQUENCE, pa.int64()))
