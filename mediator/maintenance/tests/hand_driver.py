"""A warehouse whose messages are handed over one by one, in the order that an example of a paper tells.

The test plays the sources: it reports updates, and says what each answers. The driver carries out the
algorithm's steps in between and keeps every state of the view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from algebra.decompose import decompose
from algebra.delta import Delta
from algebra.engines.contract import Relation
from algebra.engines.reference import ReferenceEngine
from algebra.global_transaction import GlobalTransaction
from algebra.keys import among
from algebra.plan import SweepPlan
from algebra.position import Position
from algebra.schema import COUNT, Catalog, Column, RelationSchema
from algebra.sweep import Answer, Query
from mediator.maintenance.contract import (
    Answered,
    AnyQuery,
    Maintenance,
    Next,
    Read,
    Settle,
    SourceQuery,
    Update,
    ViewContext,
)

Row: TypeAlias = tuple[Any, ...]
INT = pa.int64()


def relation(name: str, columns: str, key: str = "") -> RelationSchema:
    """A relation of integers: relation("r1", "a b", key="a")."""
    return RelationSchema(name, tuple(Column(c, INT) for c in columns.split()), tuple(key.split()))


@dataclass(frozen=True)
class HandView:
    """What an algorithm gets for a view; and for each node, the columns of its relation."""

    context: ViewContext
    columns: Sequence[Sequence[str]]

    def node_row(self, node: int, row: Row) -> Row:
        """What a node shows of a row of its relation."""
        values = dict(zip(self.columns[node], row, strict=True))
        return tuple(values[name] for name in self.context.plan.query.nodes[node].schema.names)


def view_over(
    sql: str,
    sources: Mapping[str, Sequence[RelationSchema]],
    *,
    keys: bool = True,
    per_relation: bool = False,
) -> HandView:
    """A view; each of its nodes is one relation."""
    catalogs = {name: Catalog(name, {r.name: r for r in relations}) for name, relations in sources.items()}
    found = decompose("v", sql, catalogs, keys=keys, per_relation=per_relation)
    context = ViewContext(
        plan=SweepPlan.of(found.assembly),
        engine=ReferenceEngine(),
        sources=[local.source for local in found.local_views],
        keys=found.keys,
    )
    relations = [catalogs[local.source].relation(local.relations[0]) for local in found.local_views]
    return HandView(context, [[column.name for column in relation.columns] for relation in relations])


class HandDriver:
    """One run of an algorithm. `states` begins with the view before any update."""

    def __init__(self, algorithm: Maintenance, view: HandView, rows: Iterable[Row] = ()) -> None:
        self._view = view
        self._query = view.context.plan.query
        self._process = algorithm.maintain(view.context)
        self._mv = _counted(self._query.schema, ((row, 1) for row in rows))
        self._numbers = 0
        self.states = [self.mv]
        self.reflected: list[tuple[int, ...]] = []
        """For each later state, the numbers of the updates that it takes in."""
        self.asked: list[AnyQuery] = []
        self.unanswered: list[AnyQuery] = []
        self._run(None)

    @property
    def mv(self) -> Counter[Row]:
        return Counter(Delta(self._mv).to_dict())

    def update(self, *changes: tuple[int, int, Row], part_of: GlobalTransaction | None = None) -> None:
        """Receive the update of a transaction, given as (+1 or -1, node, row)."""
        self._numbers += 1
        rows: dict[int, list[tuple[Row, int]]] = {}
        for sign, node, row in changes:
            rows.setdefault(node, []).append((self._view.node_row(node, row), sign))
        deltas = {node: _counted(self._query.nodes[node].schema, pairs) for node, pairs in rows.items()}
        source = self._view.context.sources[changes[0][1]]
        position = Position(self._numbers)
        self._run(Update(self._numbers, source, position, deltas, part_of=part_of))

    def answer(self, *rows: Row, of: int = 0, counts: Iterable[int] | None = None) -> None:
        """Receive an answer: rows of the node asked, or rows of the view with counts. `of`: which query."""
        query = self.unanswered.pop(of)
        if isinstance(query, SourceQuery):
            found = _counted(self._query.schema, zip(rows, counts or [1] * len(rows), strict=True))
        else:
            shown = [(self._view.node_row(query.node, row), 1) for row in rows]
            found = _counted(self._query.nodes[query.node].schema, shown).drop_columns([COUNT])
        self._run(Answered(query, Answer(found)))

    def nodes_asked(self) -> list[int]:
        """The nodes of all queries so far, in order."""
        return [query.node for query in self.asked if isinstance(query, Query)]

    def _run(self, message: Update | Answered | None) -> None:
        """Give the process a message; carry out its steps until it waits for the next one."""
        step = self._process.send(message)
        while not isinstance(step, Next):
            match step:
                case Read(columns, values):
                    assert values is not None
                    assert tuple(values.column_names) == columns
                    step = self._process.send(among(self._mv, values))
                case Settle(change, reflects):
                    assert Delta(change).rows.num_rows == change.num_rows, "not in normal form"
                    self._mv = Delta(self._mv).plus(Delta(change)).rows
                    self.states.append(self.mv)
                    self.reflected.append(tuple(update.number for update in reflects))
                    step = self._process.send(None)
                case _:
                    raise AssertionError(f"no step of these algorithms: {step}")
        self.asked += step.queries
        self.unanswered += step.queries


def _counted(schema: pa.Schema, rows: Iterable[tuple[Row, int]]) -> Relation:
    return Delta.of({field.name: field.type for field in schema}, rows).rows


def bag(*rows: Row) -> Counter[Row]:
    """Some rows, once each."""
    return Counter(rows)
