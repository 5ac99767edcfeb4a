"""A small world of in-memory nodes that change while a sweep asks them, for tests of the algorithms.

The oracle is recomputation: after every delivered transaction the view is computed anew by nested loops.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from algebra.assembly import SEQUENCE, AssemblyQuery
from algebra.delta import Delta
from algebra.engines.contract import Extent, Relation
from algebra.engines.reference import ReferenceEngine
from algebra.plan import SweepPlan
from algebra.position import Position
from algebra.schema import COUNT
from algebra.sweep import Answer, Query, Sweep

Bag = Counter[tuple[Any, ...]]


@dataclass
class Transaction:
    """A transaction as the mediator receives it: its number and what it did to each node."""

    number: int
    changes: dict[int, Bag]


@dataclass
class World:
    """Nodes, the transactions they delivered, and the view after each of them by recomputation."""

    plan: SweepPlan
    bags: list[Bag]
    values: Callable[[random.Random, int], tuple[Any, ...]]
    random: random.Random
    delivered: list[Transaction] = field(default_factory=list)
    expected: dict[int, dict[tuple[Any, ...], int]] = field(default_factory=dict)
    queries: int = 0
    limit: int = 24

    @property
    def query(self) -> AssemblyQuery:
        return self.plan.query

    def extent(self) -> Relation:
        """The whole view now, by the reference engine."""
        extents = [Extent(self.table(i, bag, elements=True)) for i, bag in enumerate(self.bags)]
        change = ReferenceEngine().extent(self.query, extents, None)
        assert change.table is not None
        return change.table

    def recompute(self) -> dict[tuple[Any, ...], int]:
        return Delta(self.extent()).to_dict()

    def table(self, node: int, bag: Bag, *, elements: bool = False, sequence: int | None = None) -> Relation:
        schema = self.query.nodes[node].schema
        rows = [(r, 1) for r in bag.elements()] if elements else list(bag.items())
        arrays = [pa.array([r[i] for r, _ in rows], f.type) for i, f in enumerate(schema)]
        names = schema.names
        if not elements:
            arrays.append(pa.array([n for _, n in rows], pa.int64()))
            names = [*names, COUNT]
        if sequence is not None:
            arrays.append(pa.repeat(pa.scalar(sequence, pa.int64()), len(rows)))
            names = [*names, SEQUENCE]
        return pa.table(arrays, names=names)

    def transact(self, nodes: Sequence[int]) -> None:
        """One transaction that inserts into, deletes from, or does nothing to the given nodes."""
        changes: dict[int, Bag] = {}
        for node in nodes:
            delta: Bag = Counter()
            for _ in range(self.random.choice([1, 1, 2, 3])):
                present = [r for r, n in self.bags[node].items() if n + delta[r] > 0]
                if present and self.random.random() < 0.45:
                    delta[self.random.choice(present)] -= 1
                else:
                    delta[self.values(self.random, node)] += 1
            delta = Counter({r: n for r, n in delta.items() if n})
            changes[node] = delta
            self.bags[node].update(delta)
            self.bags[node] = Counter({r: n for r, n in self.bags[node].items() if n})
        number = len(self.delivered) + 1
        self.delivered.append(Transaction(number, changes))
        self.expected[number] = self.recompute()

    def maybe_transact(self, probability: float) -> None:
        while len(self.delivered) < self.limit and self.random.random() < probability:
            size = 1 if self.random.random() < 0.7 else self.random.randint(1, len(self.bags))
            self.transact(self.random.sample(range(len(self.bags)), size))

    def answer(self, query: Query) -> Answer:
        self.queries += 1
        bag = self.bags[query.node]
        if query.keys is not None:
            names = self.query.nodes[query.node].schema.names
            indexes = [names.index(c) for c in query.keys.columns]
            wanted = {tuple(row.values()) for row in query.keys.values.to_pylist()}
            bag = Counter({r: n for r, n in bag.items() if tuple(r[i] for i in indexes) in wanted})
        return Answer(self.table(query.node, bag, elements=True), Position(len(self.delivered)))

    def deltas(self, transactions: Sequence[Transaction]) -> dict[int, Relation]:
        parts: dict[int, list[Relation]] = {}
        for transaction in transactions:
            for node, bag in sorted(transaction.changes.items()):
                sequence = transaction.number * self.plan.width + node
                parts.setdefault(node, []).append(self.table(node, bag, sequence=sequence))
        return {node: pa.concat_tables(tables) for node, tables in parts.items()}

    def pending(self, installed: int) -> Callable[[int, Position], Relation]:
        def pending(node: int, position: Position) -> Relation:
            waiting = [t for t in self.delivered if installed < t.number <= position.ordinal]
            found = self.deltas(waiting).get(node)
            return found if found is not None else self.table(node, Counter(), sequence=0)

        return pending

    def drive(self, sweep: Sweep, interference: float) -> Relation:
        """Run a sweep to its end; transactions happen before and between its queries."""
        answers: tuple[Answer, ...] | None = None
        while True:
            try:
                queries = sweep.send(answers) if answers is not None else next(sweep)
            except StopIteration as stop:
                change = stop.value.table
                assert change is not None
                return change
            found = []
            for query in queries:
                self.maybe_transact(interference)
                found.append(self.answer(query))
            self.maybe_transact(interference)
            answers = tuple(found)


def split_versions(change: Relation) -> dict[int, Delta]:
    """The change of each version."""
    versions: dict[int, list[dict[str, Any]]] = {}
    for row in change.to_pylist():
        versions.setdefault(row.pop("_version"), []).append(row)
    schema = pa.schema([f for f in change.schema if f.name != "_version"])
    return {v: Delta(pa.Table.from_pylist(rows, schema=schema)) for v, rows in versions.items()}
