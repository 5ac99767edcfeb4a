"""Strobe: deletions at once by key, insertions by query, all of it applied when no query is unanswered.

Problem. An insertion changes the view by V⟨U⟩, and the sources have to be asked for that, one after the
other. Meanwhile they go on: an answer may hold rows that are deleted by then, or rows that a later insertion
brings as well.

Wrong ways. Apply each answer as it comes: a row deleted meanwhile comes back and stays (Example 1, the
conventional algorithm). Ask again for what was deleted: that query needs compensation in turn.

Chosen way. The view shows a key of every relation, so that a deletion needs no query: rows with its key go,
from the view and from the answer of every query that is under way (`pending`). What two queries both bring is
one row by its key, and added once. All actions wait in a list, and are applied together when every query is
answered: then they reflect exactly the updates received so far.

Guarantee: strong consistency for single updates. A transaction is taken as its single updates, deletions
first; its middle may become visible, so for transactions Strobe is convergent only. It needs moments without
queries to show anything at all.

Cost: n-1 queries per inserted row, none for a deletion. Needs from sources: changes and answers in one order;
keys of all relations.

One row of a relation may be several rows of its source's local view. They are inserted or deleted together,
so what a transaction deletes from the local views is taken as one deletion here, and what it inserts as one
insertion. Each inserted row still has a query of its own, as published.

Reference: Strobe paper, section 5.2, Algorithm 1 and Examples 3 and 4.
"""

from __future__ import annotations

from algebra.consistency import Level, by_scenario
from algebra.engines.contract import Relation
from mediator.maintenance.action_list import ActionList
from mediator.maintenance.contract import Maintenance, Process, Settle, Update, ViewContext
from mediator.maintenance.source_evaluate import source_evaluate
from mediator.maintenance.tasks import Tasks
from mediator.maintenance.update_list import deletions, insertions


class Strobe(Maintenance):
    """Single updates as they come; the view changes whenever UQS is empty."""

    name = "strobe"
    guarantee = by_scenario(Level.STRONG, Level.CONVERGENT, Level.CONVERGENT)
    message_cost = "n-1 per inserted row"
    needs_keys = True

    def maintain(self, view: ViewContext) -> Process:
        assert view.keys is not None
        unanswered = Tasks()
        pending: dict[tuple[int, int, int], list[tuple[int, Relation]]] = {}
        action_list = ActionList(view)
        received: list[Update] = []
        while True:
            event = yield from unanswered.next()
            if isinstance(event, Update):
                deleted, inserted = deletions(event), insertions(event)
                for node, rows in deleted.items():
                    for query in unanswered:
                        pending[query].append((node, rows))
                    action_list.key_delete(node, rows)
                if deleted and inserted and not len(unanswered):
                    middle = yield from action_list.apply()
                    if middle.num_rows:
                        yield Settle(middle)
                for node, rows in inserted.items():
                    for i in range(rows.num_rows):
                        query = (event.number, node, i)
                        pending[query] = []
                        unanswered.start(query, source_evaluate(view, {node: rows.slice(i, 1)}))
                received.append(event)
            else:
                answer = event.result
                for node, rows in pending.pop(event.key):
                    answer = view.keys.delete(answer, node, rows)
                action_list.insert(answer)
            if not len(unanswered):
                change = yield from action_list.apply()
                yield Settle(change, tuple(received))
                received.clear()
