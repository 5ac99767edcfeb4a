"""Transaction-Strobe: Strobe with each source transaction as one unit.

Problem. Strobe may show the middle of a transaction: a row deleted, and what was inserted in its place not
yet there (Example 4).

Wrong way. Change the view when a transaction's own query is answered: what the queries of other transactions
are yet to bring would be missing, and the states of the view would follow no order of the transactions.

Chosen way. As Strobe, but the whole update list of a transaction is taken in before the view may change: all
its deletions first, then one query for all its insertions. The view changes when every query is answered, and
a transaction is reflected as a whole or not at all.

Guarantee: strong consistency for single updates and for source-local transactions. A transaction that spans
sources is one transaction per source here, and may be seen by halves: weak consistency. It needs moments
without queries to show anything at all.

Cost: n-1 queries per transaction that inserts, for each local view that it inserts into; none for deletions.
Needs from sources: changes and answers in one order; keys of all relations.

Reference: Strobe paper, section 5.3, Algorithm 2 and Example 4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from algebra.consistency import Level, by_scenario
from algebra.engines.contract import Relation
from algebra.keys import as_set, union
from mediator.maintenance.action_list import ActionList
from mediator.maintenance.contract import Evaluation, Maintenance, Process, Settle, Update, ViewContext
from mediator.maintenance.source_evaluate import no_rows, source_evaluate
from mediator.maintenance.tasks import Tasks
from mediator.maintenance.update_list import deletions, insertions


class TStrobe(Maintenance):
    """Transactions as they come; the view changes whenever UQS is empty."""

    name = "t-strobe"
    guarantee = by_scenario(Level.STRONG, Level.STRONG, Level.WEAK)
    message_cost = "n-1 per transaction that inserts"
    needs_keys = True

    def maintain(self, view: ViewContext) -> Process:
        yield from strobe_transactions(view, lambda received: True)


def strobe_transactions(view: ViewContext, may_apply: Callable[[Sequence[Update]], bool]) -> Process:
    """Algorithm 2. AL is applied when UQS = ∅ and `may_apply` says so of what was received since."""
    assert view.keys is not None
    unanswered = Tasks()
    pending: dict[int, list[tuple[int, Relation]]] = {}
    action_list = ActionList(view)
    received: list[Update] = []
    while True:
        event = yield from unanswered.next()
        if isinstance(event, Update):
            for node, deleted in deletions(event).items():
                for query in unanswered:
                    pending[query].append((node, deleted))
                action_list.key_delete(node, deleted)
            insertion_list = insertions(event)
            if insertion_list:
                pending[event.number] = []
                unanswered.start(event.number, _evaluate_all(view, insertion_list))
            received.append(event)
        else:
            answer = event.result
            for node, deleted in pending.pop(event.key):
                answer = view.keys.delete(answer, node, deleted)
            action_list.insert(answer)
        if not len(unanswered) and may_apply(received):
            change = yield from action_list.apply()
            yield Settle(change, tuple(received))
            received.clear()


def _evaluate_all(view: ViewContext, insertion_list: Mapping[int, Relation]) -> Evaluation:
    """∪ V⟨U⟩ over all insertions. A row that two of them bring together is found by both, and is one row."""
    answers = [no_rows(view)]
    for node, inserted in insertion_list.items():
        answers.append((yield from source_evaluate(view, {node: inserted})))
    return as_set(union(answers))
