"""ECA, the Eager Compensating Algorithm: each query subtracts what unanswered ones will see too much.

Problem. All relations of the view live in one source, which answers a query over several of them in one
snapshot. When update U_i arrives while query Q_j is unanswered, the answer to Q_j will hold the effect of U_i
as well; the query for U_i brings it again.

Wrong ways. Add the answers as they come (IVMA): rows are counted twice, or a deletion that two answers should
have brought is brought by none. Wait until nothing is unanswered before asking for the next update: the
source has gone on meanwhile all the same.

Chosen way. If U_i is received while Q_j is unanswered, then Q_j is evaluated after U_i: one source, messages
in order. So the error is known exactly, Q_j⟨U_i⟩, and is subtracted in the query that U_i causes anyway:
Q_i = V⟨U_i⟩ − Σ Q_j⟨U_i⟩ over all unanswered Q_j. The subtracted terms become part of Q_i and are themselves
compensated by the next query. The answers add up in COLLECT, and the view changes when none is missing.

Guarantee: strong consistency, for transactions as well. Global transactions do not arise in one source.

Cost: one query per update; its size grows with the square of the number of interfering updates. Terms with
rows in place of every relation are evaluated here and not sent. Needs from the source: evaluates a sum of
joins in one snapshot; changes and answers in exactly one order. No keys; rows are counted.

A transaction that changes several relations is a sequence of updates that are received one right after the
other. Their queries are sent as one: Q_j⟨U⟩ of the earlier ones among them is subtracted just the same.

Reference: slides, "The Eager Compensating Algorithm (ECA)" and its example; SWEEP paper, section 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow.compute as pc

from algebra.consistency import Level, by_scenario
from algebra.delta import consolidate
from algebra.engines.contract import Relation
from algebra.keys import union
from algebra.schema import COUNT
from mediator.maintenance.contract import (
    Evaluation,
    Maintenance,
    Process,
    Settle,
    SourceQuery,
    Term,
    Update,
    ViewContext,
)
from mediator.maintenance.source_evaluate import no_rows, source_evaluate
from mediator.maintenance.tasks import Tasks


class Eca(Maintenance):
    """Each query compensates the unanswered ones; the view changes when UQS is empty."""

    name = "eca"
    guarantee = by_scenario(Level.STRONG, Level.STRONG, Level.STRONG)
    message_cost = "1"
    single_source = True

    def maintain(self, view: ViewContext) -> Process:
        unanswered = Tasks()
        queries: dict[int, Sequence[Term]] = {}
        collect = no_rows(view)
        received: list[Update] = []
        while True:
            event = yield from unanswered.next()
            if isinstance(event, Update):
                query: list[Term] = []
                for node, delta in sorted(event.deltas.items()):
                    rows = view.engine.select(view.plan.query.nodes[node], delta)
                    if rows.num_rows:
                        uqs = [term for number in unanswered for term in queries[number]]
                        compensation = _substitute([*uqs, *query], node, rows)
                        query += [
                            Term(1, {node: rows}),
                            *(Term(-t.sign, t.substituted) for t in compensation),
                        ]
                queries[event.number] = query
                unanswered.start(event.number, evaluate_at_source(view, query))
                received.append(event)
            else:
                del queries[event.key]
                collect = consolidate(union([collect, event.result]))
            if not len(unanswered):
                yield Settle(collect, tuple(received))
                collect = no_rows(view)
                received.clear()


def _substitute(query: Iterable[Term], node: int, rows: Relation) -> list[Term]:
    """Q⟨U⟩: nothing remains of a term that has rows in place of U's relation already."""
    return [Term(t.sign, {**t.substituted, node: rows}) for t in query if node not in t.substituted]


def evaluate_at_source(view: ViewContext, query: Sequence[Term]) -> Evaluation:
    """The answer to a sum of terms. Only what needs the source is sent to it."""
    answers = [no_rows(view)]
    to_send = tuple(term for term in query if len(term.substituted) < view.plan.width)
    for term in query:
        if len(term.substituted) == view.plan.width:
            rows = yield from source_evaluate(view, term.substituted)
            answers.append(_signed(rows, term.sign))
    if to_send:
        (answer,) = yield (SourceQuery(to_send),)
        answers.append(answer.rows)
    return consolidate(union(answers))


def _signed(rows: Relation, sign: int) -> Relation:
    return rows.set_column(rows.column_names.index(COUNT), COUNT, pc.multiply(rows[COUNT], sign))
