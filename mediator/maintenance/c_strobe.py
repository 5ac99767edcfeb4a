"""Complete Strobe: one update after the other, with compensating queries for what was deleted meanwhile.

Problem. Strobe shows nothing as long as some query is unanswered; under a steady stream of updates that may
be never. To show the view right after an update U, the answer to V⟨U⟩ has to be turned back to that moment,
although the sources went on.

Wrong ways. Delete by key from the answer what was inserted meanwhile: a modified row loses its old version,
too. Put back from the view what was deleted meanwhile: the view never had those rows, U was to bring them.

Chosen way. Updates wait in a holding queue; those that arrived after U are what to turn back. A row that was
deleted since is put back by a query, Q⟨deleted rows⟩, whose answer is compensated in the same way. Each such
query has one node fewer to ask, so this ends. Rows that were inserted since are then taken out by comparing
whole rows.

Guarantee: complete consistency for single updates. A transaction is taken as its single updates, deletions
first, with a state of its own in between; so for transactions it is convergent only.

Cost: n-1 queries for an insertion in peace, none for a deletion. Under a steady stream of deletions up to
(n-1)! compensating queries in the last round, which ask one source each, and fewer than e·(n-1)! in all
rounds. Needs from sources: changes and answers in one order; keys of all relations.

Read with care in the paper:

* key_delete* compares key and non-key attributes. The view may not show all of these, and the old and the new
  version of a row may differ only in what is not shown. So Δ is kept with all columns of all nodes, and
  projected at the end.
* An inserted row is taken out of Δ unless the *same tuple* was deleted before it. This must mean all
  attributes as well. For a modification the deleted and the inserted row have the same key; if that made them
  the same tuple, the new version would stay in Δ beside the old one.
* The compensating queries of one base relation are one query, with all rows deleted from it since U.
* As in Strobe, what a transaction deletes is one deletion, and what it inserts one insertion.

Reference: Strobe paper, section 6, Algorithm 3 and Examples 5 and 6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from algebra.assembly import node_column
from algebra.consistency import Level, by_scenario
from algebra.engines.contract import Relation
from algebra.keys import as_set, union, without_same
from mediator.maintenance.action_list import ActionList
from mediator.maintenance.contract import (
    Answered,
    Maintenance,
    Next,
    Process,
    Settle,
    Update,
    ViewContext,
)
from mediator.maintenance.source_evaluate import no_rows, source_evaluate
from mediator.maintenance.tasks import Tasks
from mediator.maintenance.update_list import deleted_in, deletions, insertions, new_in


class CStrobe(Maintenance):
    """Single updates in the order of arrival, one version each."""

    name = "c-strobe"
    guarantee = by_scenario(Level.COMPLETE, Level.CONVERGENT, Level.CONVERGENT)
    message_cost = "n-1 per insertion, and up to (n-1)! to compensate"
    needs_keys = True

    def maintain(self, view: ViewContext) -> Process:
        action_list = ActionList(view)
        holding_queue = HoldingQueue(view)
        while True:
            update = yield from holding_queue.first()
            deleted, inserted = deletions(update), insertions(update)
            for node, rows in deleted.items():
                action_list.key_delete(node, rows)
            if deleted and inserted:
                middle = yield from action_list.apply()
                if middle.num_rows:
                    yield Settle(middle)
            action_list.insert((yield from holding_queue.view_after(inserted)))
            change = yield from action_list.apply()
            yield Settle(change, (update,))


@dataclass(frozen=True, eq=False)
class _Query:
    """Q_{i,j,k}: the view with rows in place of some nodes."""

    substituted: Mapping[int, Relation]


class HoldingQueue:
    """Updates in the order of arrival, and the one being processed, U_i, before them."""

    def __init__(self, view: ViewContext) -> None:
        self._view = view
        self._with_all_columns = _with_all_columns(view)
        self._unanswered = Tasks()
        self._held: deque[Update] = deque()
        """What was received since U_i."""

    def first(self) -> Generator[Next, Update | Answered, Update]:
        """The next update to process. It leaves the queue."""
        while not self._held:
            event = yield from self._unanswered.next()
            assert isinstance(event, Update)
            self._held.append(event)
        return self._held.popleft()

    def view_after(self, inserted: Mapping[int, Relation]) -> Generator[Next, Update | Answered, Relation]:
        """∪ V⟨inserted rows of a node⟩ as of U_i: with all that came before it and nothing that came since.

        Every row of a node that was there at U_i is found by a query, or was deleted before the answer came;
        then it is among the deleted rows that the next query puts in the node's place. Whatever else is found
        holds a row that is new since U_i.
        """
        delta = no_rows(self._with_all_columns)
        for node, rows in inserted.items():
            self._send({node: rows})
        while len(self._unanswered):
            event = yield from self._unanswered.next()
            if isinstance(event, Update):
                self._held.append(event)
                continue
            delta = as_set(union([delta, event.result]))
            for node, deleted in deleted_in(self._held).items():
                if node not in event.key.substituted:
                    self._send({**event.key.substituted, node: deleted})
        for node, new in new_in(self._held).items():
            delta = key_delete_star(delta, node, new)
        if not delta.num_rows:
            return no_rows(self._view)
        return self._view.engine.project(self._view.plan.query, delta)

    def _send(self, substituted: Mapping[int, Relation]) -> None:
        self._unanswered.start(_Query(substituted), source_evaluate(self._with_all_columns, substituted))


def key_delete_star(delta: Relation, node: int, rows: Relation) -> Relation:
    """key_delete*: Δ without what holds one of the node's rows, compared by key and non-key attributes."""
    return without_same(delta, rows.rename_columns([f"n{node}.{c}" for c in rows.column_names]))


def _with_all_columns(view: ViewContext) -> ViewContext:
    """The same view, showing every column of every node under the name that partial results give it."""
    query = view.plan.query
    columns = [(i, field) for i, node in enumerate(query.nodes) for field in node.schema]
    wide = replace(
        query,
        projection=tuple((f"n{i}.{field.name}", node_column(i, field.name)) for i, field in columns),
        schema=pa.schema([field.with_name(f"n{i}.{field.name}") for i, field in columns]),
    )
    return replace(view, plan=replace(view.plan, query=wide))
