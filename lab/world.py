"""A scenario made ready to run: every state of every source and of the view, computed once and kept.

A source's state is how many of its transactions it has committed. So everything a source can ever say is a
function of that number, and thousands of schedules share it.

A source stands behind its wrapper: what it reports is ΔIS, the local view after a transaction minus the local
view before, and what it answers are rows of the local view as it is now.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import product
from typing import Any, TypeAlias

import pyarrow as pa

from algebra.assembly import AssemblyQuery, local_assembly
from algebra.engines.contract import Engine, Extent, Relation
from algebra.engines.embedded import EmbeddedEngine
from algebra.engines.reference import ReferenceEngine
from algebra.global_transaction import GlobalTransaction
from algebra.plan import SweepPlan
from algebra.position import Position
from algebra.schema import COUNT
from algebra.sweep import Answer, Query
from lab.scenario import Bag, Row, Scenario
from lab.serial import SerialOrder, Vector
from mediator.maintenance.contract import AnyQuery, SourceQuery

Contents: TypeAlias = frozenset[tuple[Row, int]]
"""A bag as a value: its rows with their counts."""


class World:
    """All states of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        scenario.check()
        decomposition = scenario.decomposition
        self.scenario = scenario
        self.engine: Engine = _embedded() if scenario.embedded else ReferenceEngine()
        self.query: AssemblyQuery = decomposition.assembly
        self.plan = SweepPlan.of(self.query)
        self.keys = decomposition.keys
        self.local_views = decomposition.local_views
        self.sources = tuple(source.name for source in scenario.sources)
        self.node_sources = tuple(view.source for view in self.local_views)
        self.order = SerialOrder(scenario)
        self.origin: Vector = (0,) * len(self.sources)
        self.last = self.order.last
        self._bags = self._local_views()
        self._deltas = {
            (node, position): self._delta(node, position)
            for node in range(len(self._bags))
            for position in range(1, len(self._bags[node]))
        }
        self._extents = [[self._bag_table(n, bag) for bag in bags] for n, bags in enumerate(self._bags)]
        self._answers: dict[tuple[Any, ...], Relation] = {}
        self._terms: dict[tuple[Any, ...], Contents] = {}
        self._views: dict[Vector, Contents] = {}
        self._witnesses: dict[Contents, list[Vector]] | None = None

    def _local_views(self) -> list[list[Bag]]:
        """For each node, its local view in every state of its source."""
        found = []
        states = {source.name: list(source.states()) for source in self.scenario.sources}
        catalogs = {source.name: source.catalog for source in self.scenario.sources}
        for view in self.local_views:
            catalog = catalogs[view.source]
            query = local_assembly(view, catalog)
            bags = []
            for state in states[view.source]:
                tables = [
                    rows_table(catalog.relation(o.relation).arrow, state[o.relation].elements())
                    for o in view.occurrences
                ]
                extent = self.engine.extent(query, [Extent(table) for table in tables], None).table
                assert extent is not None
                bags.append(to_bag(extent))
            found.append(bags)
        return found

    def _bag_table(self, node: int, bag: Bag) -> Relation:
        return rows_table(self.query.nodes[node].schema, bag.elements())

    def _delta(self, node: int, position: int) -> Relation:
        after, before = self._bags[node][position], self._bags[node][position - 1]
        counts = Counter(after)
        counts.subtract(before)
        return counted_table(self.query.nodes[node].schema, counts)

    def deltas(self, source: str, position: int) -> Mapping[int, Relation]:
        """ΔIS of a source's transaction: the nodes it changed, with rows and `_count`."""
        return {
            node: self._deltas[node, position]
            for node, of in enumerate(self.node_sources)
            if of == source and self._deltas[node, position].num_rows
        }

    def part_of(self, source: str, position: int) -> GlobalTransaction | None:
        """The global transaction that a source's transaction is a part of."""
        return self.scenario.sources[self.sources.index(source)].transactions[position - 1].part_of

    def source_of(self, query: AnyQuery) -> str:
        """The source that a query goes to."""
        return self.node_sources[query.node if isinstance(query, Query) else 0]

    def answer(self, query: AnyQuery, position: int) -> Answer:
        """What the query's source answers when it has committed that many transactions."""
        if isinstance(query, SourceQuery):
            return Answer(self._sum(query, position), Position(position))
        rows = self._extents[query.node][position]
        if query.keys is not None:
            wanted = frozenset(python_rows(query.keys.values))
            key = (query.node, position, query.keys.columns, wanted)
            if key not in self._answers:
                names = self.query.nodes[query.node].schema.names
                indexes = [names.index(column) for column in query.keys.columns]
                self._answers[key] = self._bag_table(
                    query.node,
                    Counter(
                        {
                            row: n
                            for row, n in self._bags[query.node][position].items()
                            if tuple(row[i] for i in indexes) in wanted
                        }
                    ),
                )
            rows = self._answers[key]
        return Answer(rows, Position(position))

    def _sum(self, query: SourceQuery, position: int) -> Relation:
        """Σ sign · V with rows in place of some nodes, in one state of the one source."""
        total: Bag = Counter()
        for term in query.terms:
            for row, count in self._term(term.substituted, position):
                total[row] += term.sign * count
        return counted_table(self.query.schema, total)

    def _term(self, substituted: Mapping[int, Relation], position: int) -> Contents:
        given = {
            node: contents(to_bag(rows.select([*self.query.nodes[node].schema.names, COUNT])))
            for node, rows in sorted(substituted.items())
        }
        key = (position, tuple(given.items()))
        if key not in self._terms:
            extents = [
                # A bag that lacks the negated rows holds the rows, with their signs.
                Extent(minus=negated(substituted[node])) if node in given else Extent(extents[position])
                for node, extents in enumerate(self._extents)
            ]
            found = self.engine.extent(self.query, extents, None).table
            assert found is not None
            self._terms[key] = contents(to_bag(found))
        return self._terms[key]

    def view_at(self, vector: Vector) -> Contents:
        """V(ss): the view over the given state of each source."""
        if vector not in self._views:
            at = dict(zip(self.sources, vector, strict=True))
            extents = [
                Extent(self._extents[node][at[source]]) for node, source in enumerate(self.node_sources)
            ]
            table = self.engine.extent(self.query, extents, None).table
            assert table is not None
            self._views[vector] = contents(to_bag(table))
        return self._views[vector]

    def witnesses(self, state: Contents) -> Sequence[Vector]:
        """All states of the sources over which the view is the given one, global transactions cut or not."""
        if self._witnesses is None:
            self._witnesses = {}
            for vector in product(*(range(last + 1) for last in self.last)):
                self._witnesses.setdefault(self.view_at(vector), []).append(vector)
        return self._witnesses.get(state, ())


@cache
def _embedded() -> EmbeddedEngine:
    """One for all worlds: starting it costs more than a run."""
    return EmbeddedEngine(threads=1)


def contents(bag: Bag) -> Contents:
    return frozenset((row, count) for row, count in bag.items() if count)


def python_rows(table: Relation) -> list[Row]:
    """The rows of a small table as tuples."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def to_bag(table: Relation) -> Bag:
    """Rows with their `_count`, once each without one."""
    if COUNT not in table.column_names:
        return Counter(python_rows(table))
    bag: Bag = Counter()
    for row, count in zip(python_rows(table.drop_columns([COUNT])), table[COUNT].to_pylist(), strict=True):
        bag[row] += count
    return bag


def rows_table(schema: pa.Schema, rows: Any) -> Relation:
    """A bag without counts, each row as often as it occurs."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def counted_table(schema: pa.Schema, bag: Bag) -> Relation:
    """A bag in normal form, with `_count`."""
    kept = {row: n for row, n in bag.items() if n}
    table = rows_table(schema, list(kept))
    return table.append_column(COUNT, pa.array(kept.values(), pa.int64()))


def negated(table: Relation) -> Relation:
    """The same rows with opposite counts."""
    index = table.column_names.index(COUNT)
    counts = pa.array([-count for count in table[COUNT].to_pylist()], pa.int64())
    return table.set_column(index, COUNT, counts)
