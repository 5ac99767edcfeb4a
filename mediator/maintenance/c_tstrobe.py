"""Complete Transaction-Strobe: C-Strobe with each source transaction as one unit.

Problem. C-Strobe shows a state for each single update, and so the middle of a transaction. T-Strobe shows no
middle, but waits for moments without queries.

Wrong way. Process the updates of a transaction one by one and show only the last state: the later ones would
be turned back and brought again, at the price of one compensation each.

Chosen way. Each transaction in turn: all its deletions by key, one compensated query per local view that it
inserts into, one change of the view. Only what arrived after the transaction is turned back. Its own parts
are all in the sources when it is processed and shall be seen: two inserted rows that join with each other
are found by both queries, and are one row.

Guarantee: complete consistency for single updates and for source-local transactions. A transaction that spans
sources is one transaction per source here: weak consistency.

Cost: n-1 queries for a transaction that inserts, in peace; up to (n-1)! compensating queries. None for
deletions. Needs from sources: changes and answers in one order; keys of all relations.

The paper names this algorithm and does not write it down.

Reference: Strobe paper, section 6, last paragraph (C-TStrobe), Algorithms 2 and 3.
"""

from __future__ import annotations

from algebra.consistency import Level, by_scenario
from mediator.maintenance.action_list import ActionList
from mediator.maintenance.c_strobe import HoldingQueue
from mediator.maintenance.contract import Maintenance, Process, Settle, ViewContext
from mediator.maintenance.update_list import deletions, insertions


class CTStrobe(Maintenance):
    """Transactions in the order of arrival, one version each."""

    name = "c-tstrobe"
    guarantee = by_scenario(Level.COMPLETE, Level.COMPLETE, Level.WEAK)
    message_cost = "n-1 per transaction that inserts, and up to (n-1)! to compensate"
    needs_keys = True

    def maintain(self, view: ViewContext) -> Process:
        action_list = ActionList(view)
        holding_queue = HoldingQueue(view)
        while True:
            transaction = yield from holding_queue.first()
            for node, deleted in deletions(transaction).items():
                action_list.key_delete(node, deleted)
            action_list.insert((yield from holding_queue.view_after(insertions(transaction))))
            change = yield from action_list.apply()
            yield Settle(change, (transaction,))
