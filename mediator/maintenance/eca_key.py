"""ECA-Key: ECA for a view that shows keys, without compensation and without queries for deletions.

Problem. ECA's queries grow with every update that arrives before they are answered.

Wrong ways. Apply a deletion to the view at once: the view would show it without the insertions before it,
whose answers are still to come. Forget a deletion once it is applied to the copy: if a row is inserted and
soon deleted again, the answer for its insertion still comes, and brings it back for ever.

Chosen way. Work on a copy of the view, COLLECT. A deletion removes rows from it by key. An insertion asks for
V⟨U_i⟩, and the answer is added without duplicates: what two queries both bring is one row by its key. The
copy becomes the view when no query is unanswered.

An answer that is still to come holds no row of another relation that was deleted: had it been evaluated
before the deletion, it would have arrived before it, since there is one source and its messages are in order.
What it does hold is U_i itself, which is a part of the query and not read from the source. So deletions from
the relations that a query has rows for, and only those, are remembered for its answer. With several sources
an answer may hold any deleted row, and Strobe remembers them all.

The copy is not made: COLLECT is kept as the list of what was done to it.

Guarantee: strong consistency, for transactions as well. Global transactions do not arise in one source.

Cost: one query per transaction that inserts, none for deletions. Needs from the source: evaluates a sum of
joins in one snapshot; changes and answers in exactly one order; keys of all relations.

Reference: Strobe paper, section 1 and Example 3 (where ECA-Key fails with several sources) and section 7,
Figure 2; SWEEP paper, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping

from algebra.consistency import Level, by_scenario
from algebra.engines.contract import Relation
from mediator.maintenance.action_list import ActionList
from mediator.maintenance.contract import Maintenance, Process, Settle, Term, Update, ViewContext
from mediator.maintenance.eca import evaluate_at_source
from mediator.maintenance.tasks import Tasks
from mediator.maintenance.update_list import deletions, insertions


class EcaKey(Maintenance):
    """Deletions by key, insertions by query, nothing compensated; the view changes when UQS is empty."""

    name = "eca-key"
    guarantee = by_scenario(Level.STRONG, Level.STRONG, Level.STRONG)
    message_cost = "1 per transaction that inserts"
    needs_keys = True
    single_source = True

    def maintain(self, view: ViewContext) -> Process:
        assert view.keys is not None
        unanswered = Tasks()
        queries: dict[int, Mapping[int, Relation]] = {}
        pending: dict[int, list[tuple[int, Relation]]] = {}
        collect = ActionList(view)
        received: list[Update] = []
        while True:
            event = yield from unanswered.next()
            if isinstance(event, Update):
                for node, deleted in deletions(event).items():
                    for query in unanswered:
                        if node in queries[query]:
                            pending[query].append((node, deleted))
                    collect.key_delete(node, deleted)
                inserted = insertions(event)
                if inserted:
                    queries[event.number], pending[event.number] = inserted, []
                    unanswered.start(event.number, evaluate_at_source(view, _terms(inserted)))
                received.append(event)
            else:
                answer = event.result
                del queries[event.key]
                for node, deleted in pending.pop(event.key):
                    answer = view.keys.delete(answer, node, deleted)
                collect.insert(answer)
            if not len(unanswered):
                change = yield from collect.apply()
                yield Settle(change, tuple(received))
                received.clear()


def _terms(inserted: Mapping[int, Relation]) -> list[Term]:
    """V⟨U⟩ for each relation inserted into, as one query."""
    return [Term(1, {node: rows}) for node, rows in inserted.items()]
