"""SC: copies of all base relations at the warehouse, so that no source is ever asked.

Problem. Answers of sources show more than they should, because sources go on.

Chosen way. Keep the extent of every local view here, and apply updates to it in order. A sweep then asks the
copies, which stand exactly where they should. This is what Lockstep exists to avoid: the copies take the
space of the base data, and have to be kept for rows that no view shows. It is here to be compared with, and
for sources that must not be asked at all after the first load.

The copies live in the mediator's memory and are loaded again when it starts.

Guarantee: complete consistency. Cost: no queries, but n to load. Needs from sources: changes in order; no
keys.

Reference: slides, "Possible Solutions" (SC); Strobe paper, section 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from algebra.assembly import SEQUENCE
from algebra.consistency import Level, by_scenario
from algebra.delta import Delta, consolidate
from algebra.engines.contract import Relation, ViewChange
from algebra.keys import among, union
from algebra.position import ORIGIN, Position
from algebra.schema import COUNT
from algebra.sweep import Answer, Pending, Query, Sweep, batched_sweep
from mediator.maintenance.contract import Install, Maintenance, Process, Take, ViewContext
from mediator.maintenance.sweep import deltas_of


class Copies(Maintenance):
    """One version per transaction, without queries."""

    name = "copies"
    guarantee = by_scenario(Level.COMPLETE, Level.COMPLETE, Level.WEAK)
    message_cost = "0"
    takes_batches = True

    def maintain(self, view: ViewContext) -> Process:
        assert view.pending is not None
        nodes = range(view.plan.width)
        answers = yield tuple(Query(node, None) for node in nodes)
        copies = []
        for node, answer in zip(nodes, answers, strict=True):
            # What the answer shows beyond the view is queued, and will be applied in its turn.
            ahead = view.pending(node, answer.position).drop_columns([SEQUENCE])
            copies.append(_Copy(Delta.of_bag(answer.rows).minus(Delta(ahead)).rows))
        while True:
            batch = yield Take()
            deltas = deltas_of(batch)
            for node, rows in deltas.items():
                copies[node].apply(rows.drop_columns([SEQUENCE]))
            sweep = batched_sweep(view.plan, deltas, view.engine, _of_batch(view, deltas), view.stage())
            yield Install(_locally(sweep, copies), batch)


class _Copy:
    """One local view's extent: a large part that is in order, and what was applied since."""

    def __init__(self, rows: Relation) -> None:
        self._rows = rows
        self._since: list[Relation] = []
        self._since_rows = 0

    def apply(self, delta: Relation) -> None:
        self._since.append(delta)
        self._since_rows += delta.num_rows
        if self._since_rows > self._rows.num_rows // 4 + 1000:
            self._rows, self._since, self._since_rows = self._all(), [], 0

    def _all(self) -> Relation:
        return consolidate(union([self._rows, *self._since]))

    def answer(self, query: Query) -> Answer:
        if query.keys is None:
            return Answer(self._all(), ORIGIN)
        found = [among(rows, query.keys.values) for rows in (self._rows, *self._since)]
        return Answer(consolidate(union(found)), ORIGIN)


def _of_batch(view: ViewContext, deltas: Mapping[int, Relation]) -> Pending:
    """The copies show the whole batch and nothing beyond it."""

    def pending(node: int, position: Position) -> Relation:
        schema = view.plan.query.nodes[node].schema
        fields = [pa.field(COUNT, pa.int64()), pa.field(SEQUENCE, pa.int64())]
        return deltas.get(node, pa.schema([*schema, *fields]).empty_table())

    return pending


def _locally(sweep: Sweep, copies: list[_Copy]) -> ViewChange:
    """Run a sweep with the copies in place of the sources."""
    try:
        queries = next(sweep)
        while True:
            queries = sweep.send(tuple(copies[query.node].answer(query) for query in queries))
    except StopIteration as stop:
        change: ViewChange = stop.value
        return change
