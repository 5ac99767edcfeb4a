"""Update processor: the ΔIS of each source transaction, computed inside one snapshot.

Problem. A transaction changed relations of a local view that is not materialized. Its ΔIS is the join of
its deltas with the other relations *as they were then*, while the snapshot shows them as they are now,
with later transactions already in.

Chosen way: SWEEP again, one level down. The relations of the local view are the nodes, the snapshot
answers the queries, and the later transactions that the snapshot already shows are subtracted locally
(the wrapper paper's local correction). A transaction that changes several relations is swept as a sequence
of single-relation changes and reported as one ΔIS. A whole run of transactions is swept at once. Of a
backlog that is reported in several runs, what later runs did is taken back from each answer of the snapshot
before the sweep gets it (`past_state.py`): to the sweep, the source is where the run ends.

Reference: wrapper paper, section 4.2 and Figure 7, process UpdateProcessor; Example 5.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from adapters.spi import TRANSACTION, Changes
from algebra.assembly import SEQUENCE, VERSION
from algebra.engines.contract import Engine, Relation
from algebra.errors import DataError
from algebra.position import ORIGIN, Position
from algebra.schema import COUNT
from algebra.sweep import Answer, batched_sweep
from wrapper.deciding import deciding
from wrapper.past_state import PastState
from wrapper.reported_view import ReportedView


@dataclass(frozen=True)
class DeltaIS:
    """The change of one local view over a run of transactions.

    `rows` has the local view's columns, `_tx` and `_count`, in normal form per transaction, ordered by
    `_tx`. `touched` lists the transactions that changed any relation of the local view, also those whose
    ΔIS is empty, and all parts of global transactions: the mediator may wait for a part, whatever it did.
    """

    rows: Relation
    touched: tuple[int, ...]


class UpdateProcessor:
    """Computes ΔIS. One engine serves all local views of the wrapper."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def delta_is(self, reported: ReportedView, changes: Changes, at_end: PastState) -> DeltaIS:
        """The ΔIS of every transaction of the run after the view's cursor, given the source at its end."""
        plan = reported.plan
        first = bisect_right(changes.positions, reported.cursor)
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
        with deciding(reported.view.name):
            rows = self._sweep(reported, deltas, at_end)
        order = _in_order(reported.view.name, rows)
        tagged = order.set_column(
            order.column_names.index(VERSION), TRANSACTION, order[VERSION].cast(pa.int32())
        )
        return DeltaIS(tagged, tuple(sorted(touched)))

    def _sweep(self, reported: ReportedView, deltas: Mapping[int, Relation], at_end: PastState) -> Relation:
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
                # Where the source is then matters to nobody: `pending` gives all changes of the run.
                answers = tuple(Answer(at_end.relation(reported, q.node, q.keys), ORIGIN) for q in queries)
                queries = sweep.send(answers)
        except StopIteration as stop:
            rows = stop.value.table
            assert rows is not None, "a sweep without a directory returns a table"
            return rows


def _in_order(view: str, rows: Relation) -> Relation:
    try:
        return rows.sort_by(VERSION)
    except pa.ArrowInvalid:
        # The engine brings columns of texts in pieces, but a sorted one is whole.
        raise DataError(
            f"local view {view!r}: a run of transactions changed more than 2 GiB of one of its columns, "
            "which cannot be reported; refresh the view"
        ) from None


_TAGS = (pa.field(COUNT, pa.int64()), pa.field(SEQUENCE, pa.int64()))
