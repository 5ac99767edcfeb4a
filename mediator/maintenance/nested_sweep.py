"""Nested SWEEP: one change for all updates that interfere with each other, strong consistency.

Problem. SWEEP subtracts what is concurrent and leaves it queued, only to sweep the same sources for it again.

Wrong way. Tag a concurrent update onto the query that is under way: what has been joined so far was joined
for the first update alone.

Chosen way. When the answer of source j shows a concurrent ΔR_j, subtract it as SWEEP does, then compute what
ΔR_j lacks by a sweep of its own over the sources visited so far, add that, and go on with both together. The
nested sweep may meet further updates, and takes them in likewise.

Two sources that keep interfering with each other would make it recurse for ever. So a change takes in at most
`MAX_TAKEN` updates; from then on it does as SWEEP does: it subtracts what is concurrent, and leaves it
queued.

Guarantee: strong consistency; several transactions become one version. Cost: at most n-1 queries per update,
less where updates interfere. Needs from sources: changes and answers in one order; no keys; one local view
per source, since a transaction is taken in as a whole.

Reference: SWEEP paper, section 6 and Figure 6; its section 7 for the switch to SWEEP.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from algebra.consistency import Level, by_scenario
from algebra.delta import consolidate
from algebra.engines.contract import Relation
from algebra.keys import union
from algebra.local_view import Keys
from algebra.plan import Hop
from algebra.position import Position
from algebra.schema import COUNT
from algebra.sweep import Answer, Query
from mediator.maintenance.contract import Answered, Maintenance, Next, Process, Settle, Update, ViewContext
from mediator.maintenance.source_evaluate import no_rows

MAX_TAKEN = 64
"""How many updates one change takes in before it goes on as SWEEP, which always ends."""

_Steps = Generator[Next, Update | Answered, Relation]


@dataclass
class _Warehouse:
    """The paper's global data, for one view: the queue, and what the change under way has taken in."""

    view: ViewContext
    max_taken: int
    update_message_queue: list[Update] = field(default_factory=list)
    taken: list[Update] = field(default_factory=list)

    def remove_first(self) -> Generator[Next, Update | Answered, Update]:
        """REMOVE (ΔR, i) FROM UpdateMessageQueue; waits if it is empty."""
        while not self.update_message_queue:
            self._log_update((yield Next()))
        update = self.update_message_queue.pop(0)
        self.taken = [update]
        return update

    def ask(self, query: Query) -> Generator[Next, Update | Answered, Answer]:
        """SEND, RECEIVE; meanwhile LogUpdates goes on."""
        message = yield Next((query,))
        while isinstance(message, Update):
            self._log_update(message)
            message = yield Next()
        return message.answer

    def _log_update(self, message: Update | Answered) -> None:
        assert isinstance(message, Update)
        self.update_message_queue.append(message)

    def concurrent(self, node: int, position: Position) -> list[Update]:
        """Queued updates of a node that an answer at this position shows."""
        source = self.view.sources[node]
        return [u for u in self.update_message_queue if u.source == source and u.position <= position]

    def may_take(self, updates: Sequence[Update]) -> bool:
        return len(self.taken) + len(updates) <= self.max_taken

    def take(self, updates: Sequence[Update]) -> None:
        """Remove ΔR_j from UpdateMessageQueue: it becomes part of the change under way."""
        self.update_message_queue = [u for u in self.update_message_queue if u not in updates]
        self.taken.extend(updates)


class NestedSweep(Maintenance):
    """One version for each group of interfering updates."""

    name = "nested-sweep"
    guarantee = by_scenario(Level.STRONG, Level.STRONG, Level.WEAK)
    message_cost = "at most n-1, less where updates interfere"
    one_node_per_source = True

    def __init__(self, max_taken: int = MAX_TAKEN) -> None:
        self.max_taken = max_taken

    def maintain(self, view: ViewContext) -> Process:
        warehouse = _Warehouse(view, self.max_taken)
        everywhere = range(view.plan.width)
        while True:
            update = yield from warehouse.remove_first()
            change = no_rows(view)
            for node, delta in update.deltas.items():
                view_change = yield from _view_change(warehouse, delta, node, everywhere)
                if view_change.num_rows:
                    change = view.engine.project(view.plan.query, view_change)
            yield Settle(consolidate(change), tuple(warehouse.taken))


def _view_change(
    warehouse: _Warehouse, delta: Relation, update_source: int, scope: Collection[int]
) -> _Steps:
    """ΔR joined with the other nodes of a scope, together with all updates it takes in on the way.

    The paper's scope is the interval from Left to Right; on a join tree it is a connected part of it, and
    what a nested sweep has to catch up with are the nodes visited so far.
    """
    view = warehouse.view
    plan, engine = view.plan, view.engine
    view_change = engine.begin(update_source, engine.select(plan.query.nodes[update_source], delta))
    visited = [update_source]
    for hop in plan.order(update_source):
        j = hop.target
        if j not in scope:
            continue
        temp_view = view_change
        visited.append(j)
        if not temp_view.num_rows:
            # Nothing, joined with the next node: no source has to be asked for that.
            view_change = engine.join(temp_view, hop, plan.query.nodes[j].schema.empty_table())
            continue
        answer = yield from warehouse.ask(_query(view, hop, temp_view))
        view_change = engine.join(temp_view, hop, engine.select(plan.query.nodes[j], answer.rows))
        concurrent = warehouse.concurrent(j, answer.position)
        delta_j = _merged(view, j, concurrent)
        if not delta_j.num_rows:
            continue
        view_change = engine.minus(view_change, engine.join(temp_view, hop, delta_j))
        if warehouse.may_take(concurrent):
            warehouse.take(concurrent)
            missing = yield from _view_change(warehouse, delta_j, j, tuple(visited))
            view_change = _plus(view_change, missing)
    return view_change


def _query(view: ViewContext, hop: Hop, partial: Relation) -> Query:
    if not hop.on:
        return Query(hop.target, None)
    values = view.engine.partial_keys(partial, hop, view.plan.query)
    return Query(hop.target, Keys(tuple(values.column_names), values))


def _merged(view: ViewContext, node: int, updates: Sequence[Update]) -> Relation:
    """All of them as a single ΔR, as far as the view may show it."""
    shape = view.plan.query.nodes[node]
    parts = [update.deltas[node] for update in updates if node in update.deltas]
    if not parts:
        return pa.schema([*shape.schema, pa.field(COUNT, pa.int64())]).empty_table()
    return view.engine.select(shape, consolidate(union(parts)))


def _plus(left: Relation, right: Relation) -> Relation:
    return consolidate(union([left, right]))
