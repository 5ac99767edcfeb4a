"""PSWEEP: SWEEP with several view changes in flight, installed in order.

Problem. SWEEP handles one update at a time, and spends nearly all of that time waiting for sources.

Wrong way. Install each change when it is ready: the view would skip an update and show it later, out of
order.

Chosen way. Sweep up to `WINDOW` updates side by side. Each compensates for the updates delivered after its
own, whether or not those are in flight or done, so the sweeps need nothing from each other. A change that is
ready waits until all before it are installed.

Guarantee: complete consistency. Cost: n-1 queries per update, as SWEEP; up to `WINDOW` times the throughput
where the network is slow. Needs from sources: changes and answers in one order; no keys.

Reference: SWEEP paper, section 5.3, "pipeline the view construction for multiple updates"; wrapper paper,
section 2.1 (PSWEEP's mediator).
"""

from __future__ import annotations

import pyarrow as pa

from algebra.assembly import SEQUENCE, VERSION
from algebra.consistency import Level, by_scenario
from algebra.engines.contract import Relation
from algebra.position import Position
from algebra.schema import COUNT
from algebra.sweep import sweep
from mediator.maintenance.contract import Evaluation, Maintenance, Process, Settle, Update, ViewContext
from mediator.maintenance.tasks import Tasks

WINDOW = 8


class Psweep(Maintenance):
    """One version per transaction, several sweeps at once."""

    name = "psweep"
    guarantee = by_scenario(Level.COMPLETE, Level.COMPLETE, Level.WEAK)
    message_cost = "n-1"

    def __init__(self, window: int = WINDOW) -> None:
        self.window = window

    def maintain(self, view: ViewContext) -> Process:
        update_message_queue: list[Update] = []
        changes: dict[int, Relation] = {}
        in_flight = Tasks()
        while True:
            for update in update_message_queue[: self.window]:
                if update.number not in changes and update.number not in in_flight:
                    in_flight.start(update.number, _view_change(view, update, update_message_queue))
            event = yield from in_flight.next()
            if isinstance(event, Update):
                update_message_queue.append(event)
                continue
            changes[event.key] = event.result
            while update_message_queue and update_message_queue[0].number in changes:
                first = update_message_queue[0]
                yield Settle(changes.pop(first.number), (first,))
                del update_message_queue[0]


def _view_change(view: ViewContext, update: Update, delivered: list[Update]) -> Evaluation:
    """SWEEP for one update. `delivered` grows while it runs: everything not yet installed."""

    def pending(node: int, position: Position) -> Relation:
        source = view.sources[node]
        found = [u for u in delivered if u.source == source and u.position <= position and node in u.deltas]
        schema = [*view.plan.query.nodes[node].schema, pa.field(COUNT, pa.int64())]
        none = _sequenced(pa.schema(schema).empty_table(), 0)
        return pa.concat_tables(
            [none, *(_sequenced(u.deltas[node], _sequence(view, u, node)) for u in found)]
        )

    deltas = {
        node: _sequenced(rows, _sequence(view, update, node)) for node, rows in sorted(update.deltas.items())
    }
    change = yield from sweep(view.plan, deltas, view.engine, pending)
    assert change.table is not None
    return change.table.drop_columns([VERSION])


def _sequence(view: ViewContext, update: Update, node: int) -> int:
    return update.number * view.plan.width + node


def _sequenced(rows: Relation, sequence: int) -> Relation:
    return rows.append_column(SEQUENCE, pa.repeat(pa.scalar(sequence, pa.int64()), rows.num_rows))
