"""IVMA: the conventional incremental view maintenance algorithm, wrong under concurrency.

Problem. When source i reports ΔR_i, the view changes by ΔR_i joined with all other sources.

Chosen way. Ask for exactly that, and add the answer to the view when it comes. This is what a centralized
system does, where nothing can happen between the update and the query. Here it can, and then the answer holds
too much or too little, and the view stays wrong. It is kept to show that, in the lab; elsewhere it is refused
unless it is forced.

Guarantee: none. Cost: n-1 queries per update. Needs from sources: nothing.

Reference: slides, "The Incremental View Maintenance Algorithm (IVMA)"; Strobe paper, Example 1.
"""

from __future__ import annotations

from algebra.consistency import Level, Scenario
from algebra.delta import consolidate
from algebra.keys import union
from mediator.maintenance.contract import Evaluation, Maintenance, Process, Settle, Update, ViewContext
from mediator.maintenance.source_evaluate import no_rows, source_evaluate
from mediator.maintenance.tasks import Tasks


class Ivma(Maintenance):
    """MV = MV + V⟨U⟩, as if nothing else happened meanwhile."""

    name = "ivma"
    guarantee = dict.fromkeys(Scenario, Level.NONE)
    message_cost = "n-1"
    only_by_force = True

    def maintain(self, view: ViewContext) -> Process:
        unanswered = Tasks()
        received: dict[int, Update] = {}
        while True:
            event = yield from unanswered.next()
            if isinstance(event, Update):
                received[event.number] = event
                unanswered.start(event.number, _effect(view, event))
            else:
                yield Settle(event.result, (received.pop(event.key),))


def _effect(view: ViewContext, update: Update) -> Evaluation:
    """Σ V⟨ΔR⟩ over the nodes that the transaction changed."""
    parts = [no_rows(view)]
    for node, delta in update.deltas.items():
        parts.append((yield from source_evaluate(view, {node: delta})))
    return consolidate(union(parts))
