"""RV: recompute the view from its sources whenever they have changed.

Problem. An incremental change has to be compensated for what happened meanwhile.

Wrong way. Read the sources one by one and take the result for the newest state: by then some of them have
changed, and the next update would be counted twice, or an older state would follow a newer one.

Chosen way. Read every local view as a whole, each at a position of its own. The view over them is the view at
exactly that vector, and takes in every update up to it. What was delivered beyond it waits for the next
round.

Guarantee: strong consistency. Cost: n queries that ship whole extents, for all updates that have come
together. Needs from sources: changes and answers in one order; no keys.

Reference: slides, "Possible Solutions" (RV); Strobe paper, section 1, on recomputation under concurrency.
"""

from __future__ import annotations

from collections.abc import Sequence

from algebra.consistency import Level, by_scenario
from algebra.engines.contract import Extent, Relation
from algebra.keys import union
from algebra.position import Position
from algebra.sweep import Answer, Query
from mediator.maintenance.contract import Evaluation, Maintenance, Process, Read, Settle, Update, ViewContext
from mediator.maintenance.tasks import Tasks


class Recompute(Maintenance):
    """MV = V, computed anew."""

    name = "recompute"
    guarantee = by_scenario(Level.STRONG, Level.STRONG, Level.WEAK)
    message_cost = "n/k for k updates at once, whole extents"

    def maintain(self, view: ViewContext) -> Process:
        waiting: list[Update] = []
        reading = Tasks()
        while True:
            if waiting and not len(reading):
                reading.start("extents", _extents(view))
            event = yield from reading.next()
            if isinstance(event, Update):
                waiting.append(event)
                continue
            answers: tuple[Answer, ...] = event.result
            position = {
                source: min(a.position for s, a in zip(view.sources, answers, strict=True) if s == source)
                for source in view.sources
            }
            extents = [
                Extent(answer.rows, minus=_between(waiting, node, source, position[source], answer.position))
                for node, (source, answer) in enumerate(zip(view.sources, answers, strict=True))
            ]
            recomputed = view.engine.extent(view.plan.query, extents, None).table
            reflected = [u for u in waiting if u.position <= position[u.source]]
            waiting = [u for u in waiting if u.position > position[u.source]]
            stored = yield Read()
            yield Settle(view.engine.minus(recomputed, stored), reflected)


def _extents(view: ViewContext) -> Evaluation:
    """All local views as a whole."""
    return (yield tuple(Query(node, None) for node in range(view.plan.width)))


def _between(
    waiting: Sequence[Update], node: int, source: str, low: Position, high: Position
) -> Relation | None:
    """What one node of a source shows beyond the position at which another node of it was read."""
    parts = [
        u.deltas[node]
        for u in waiting
        if u.source == source and low < u.position <= high and node in u.deltas
    ]
    return union(parts) if parts else None
