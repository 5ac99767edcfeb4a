"""Global-Strobe: T-Strobe that shows a global transaction as a whole or not at all.

Problem. A transaction may have parts in several sources. Each part arrives by itself, and T-Strobe shows a
state that has one part and not another: every source's share is right, the whole never existed.

Wrong way. Let the parts of a transaction wait for each other, and process them together: answers of their
sources show them already, and nothing would be pending for the queries that are under way.

Chosen way. Process each part as it comes, as T-Strobe does, and hold back only the change of the view: until
UQS = ∅ and all parts of every transaction of which a part was received have been received. The paper's second
condition, that no transaction is shown without those it depends on, then holds by itself. Two transactions
that conflict do so in some source; its earlier part arrives first, by the order of one source's messages, and
then all its other parts are waited for.

Guarantee: strong consistency for single updates, source-local and global transactions. It needs moments
without queries and without half-received transactions to show anything at all.

Cost: as T-Strobe. Needs from sources: changes and answers in one order; keys of all relations; each part of a
global transaction names the transaction and all sources that have a part. A part without effect on the view
has to be reported, too; only sources that the view does not read are not waited for.

Reference: Strobe paper, section 5.4.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from algebra.consistency import Level, by_scenario
from mediator.maintenance.contract import Maintenance, Process, Update, ViewContext
from mediator.maintenance.t_strobe import strobe_transactions


class GStrobe(Maintenance):
    """Transactions as they come; the view changes when UQS is empty and no transaction lacks a part."""

    name = "g-strobe"
    guarantee = by_scenario(Level.STRONG, Level.STRONG, Level.STRONG)
    message_cost = "n-1 per transaction that inserts"
    needs_keys = True
    needs_marks = True

    def maintain(self, view: ViewContext) -> Process:
        yield from strobe_transactions(view, lambda received: all_parts_received(received, view.sources))


def all_parts_received(received: Sequence[Update], sources: Collection[str]) -> bool:
    """Whether every global transaction among the updates has a part from each of its participants here."""
    expected: dict[str, set[str]] = {}
    arrived: set[tuple[str, str]] = set()
    for update in received:
        for part in update.part_of.all if update.part_of is not None else ():
            expected.setdefault(part.id, set()).update(part.participants)
            arrived.add((part.id, update.source))
    return all(
        (transaction, source) in arrived
        for transaction, participants in expected.items()
        for source in participants.intersection(sources)
    )
