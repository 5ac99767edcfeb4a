"""Random scenarios of a view that somebody has declared over sources of their own.

Of the sources only the schemas are taken: the relations that the view uses, with the columns that it reads
and the keys. Rows and transactions are made up from the value pools of its columns.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from sqlglot import exp

from algebra import consistency
from algebra.engines.reference import evaluate, knows
from algebra.errors import ViewDefinitionError
from algebra.schema import Catalog, Column, RelationSchema
from algebra.sql_types import duckdb_type
from algebra.view import DIALECT, BoundView, bind_view
from lab.pools import ColumnOf, Pools
from lab.scenario import Change, Row, Scenario
from lab.world import World
from lab.writer import Rows, Writer
from mediator.config import ViewSpecConfig
from mediator.maintenance.contract import Maintenance

_FIRST_ROWS = range(2, 5)
_NULL = 0.15
"""How likely a column that may be NULL is."""
_WANTED = 0.7
"""How often a row is looked for that satisfies the view's predicates on its relation."""
_ROW_TRIES = 8
_STATES = 4
"""In how many states the view is to be seen."""
_VECTORS = 100
"""Over at most how many states of the sources it is looked at for that."""
_TRIES = 40
_SLOW_TRIES = 10
"""How many scenarios are made until there is one with so many states."""
_COMPARED = 6
"""How many scenarios both engines must agree on."""
_FAILURES = (TypeError, ValueError, ArithmeticError, AttributeError, duckdb.Error)
"""What comes of an expression that fails on a row."""


@dataclass(frozen=True)
class OwnView:
    """A declared view, and the algorithm that is to keep it."""

    spec: ViewSpecConfig
    maintenance: Maintenance
    catalogs: Mapping[str, Catalog]

    @cached_property
    def _bound(self) -> BoundView:
        return bind_view(self.spec.sql, self.catalogs)

    @cached_property
    def _relations(self) -> dict[str, tuple[RelationSchema, ...]]:
        """What the view reads of each source."""
        read: dict[tuple[str, str], set[str]] = {}
        for relation in self._bound.relations:
            read.setdefault((relation.source, relation.schema.name), set()).update(relation.schema.key)
        homes = {r.alias: (r.source, r.schema.name) for r in self._bound.relations}
        for expression in (*self._bound.conjuncts, *(e for _, e in self._bound.projection)):
            for column in expression.find_all(exp.Column):
                read[homes[column.table]].add(column.name)
        found: dict[str, list[RelationSchema]] = {}
        for (source, name), columns in read.items():
            found.setdefault(source, []).append(_reduced(self.catalogs[source].relation(name), columns))
        return {source: tuple(relations) for source, relations in found.items()}

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self._relations)

    @cached_property
    def _pools(self) -> Pools:
        return Pools(
            self._bound,
            {
                source: Catalog(source, {relation.name: relation for relation in relations})
                for source, relations in self._relations.items()
            },
        )

    @cached_property
    def _nullable(self) -> frozenset[ColumnOf]:
        return frozenset(
            (source, relation.name, column.name)
            for source in self._relations
            for relation in self.catalogs[source]
            for column in relation.columns
            if column.nullable and column.name not in relation.key
        )

    @cached_property
    def _predicates(self) -> dict[tuple[str, str], list[list[exp.Expr]]]:
        """For each relation, what each occurrence of it in the view asks of a row alone."""
        found: dict[tuple[str, str], list[list[exp.Expr]]] = {}
        for relation in self._bound.relations:
            own = [
                conjunct.transform(_without_table)
                for conjunct in self._bound.conjuncts
                if {column.table for column in conjunct.find_all(exp.Column)} == {relation.alias}
                and knows(conjunct)
            ]
            found.setdefault((relation.source, relation.schema.name), []).append(own)
        return found

    @cached_property
    def embedded(self) -> bool:
        """Whether the reference engine cannot compute this view, or not as the embedded engine does."""
        plain = self._scenario(random.Random(0), 1, consistency.Scenario.SOURCE_LOCAL, embedded=False)
        query = plain.decomposition.assembly
        if not all(knows(e) for e in (*query.filters, *(e for _, e in query.projection))):
            return True
        return not query.is_plain and not self._engines_agree()

    def _engines_agree(self) -> bool:
        """Whether both engines compute the same from some made up rows."""
        for seed in range(_COMPARED):
            made = [
                self._scenario(random.Random(seed), 3, consistency.Scenario.SOURCE_LOCAL, embedded=embedded)
                for embedded in (False, True)
            ]
            try:
                one, other = (World(scenario) for scenario in made)
                if any(one.view_at(at) != other.view_at(at) for at in (one.origin, one.last)):
                    return False
            except _FAILURES:
                return False
        return True

    def world(self, rnd: random.Random, transactions: int, kind: consistency.Scenario) -> World:
        """A random scenario, ready to run, in which the view takes on several states if that can be had."""
        best: World | None = None
        most = 0
        problem: Exception | None = None
        for _ in range(_SLOW_TRIES if self.embedded else _TRIES):
            try:
                world = World(self._scenario(rnd, transactions, kind, embedded=self.embedded))
                states = _states(world)
            except _FAILURES as error:
                problem = error
                continue
            if states > most:
                best, most = world, states
            if most >= min(_STATES, transactions + 1):
                break
        if best is None:
            raise ViewDefinitionError(
                f"an expression of view {self.spec.name!r} fails on all rows made up for it: {problem}"
            )
        return best

    def _scenario(
        self, rnd: random.Random, transactions: int, kind: consistency.Scenario, *, embedded: bool
    ) -> Scenario:
        writer = Writer(rnd, _PoolRows(self._pools.chosen(rnd), self._nullable, self._predicates))
        for source, relations in self._relations.items():
            writer.add(source, relations, _FIRST_ROWS)
        for number in range(1, transactions + 1):
            writer.write(number, kind)
        max_batch = self.spec.max_batch or None
        scheduled = self.maintenance.takes_batches and self.maintenance.max_batch is None
        return Scenario(
            algorithm=self.maintenance.name,
            view=_one_line(self.spec.sql),
            sources=tuple(writer.sources.values()),
            max_batch=max_batch,
            scheduled_takes=scheduled and rnd.random() < 0.5,
            allow_cross_join=self.spec.allow_cross_join,
            embedded=embedded,
        )


class _PoolRows(Rows):
    """Rows of values from pools; keys that are in use are not used again before their row is gone."""

    def __init__(
        self,
        pools: Mapping[ColumnOf, Sequence[Any]],
        nullable: frozenset[ColumnOf],
        predicates: Mapping[tuple[str, str], Sequence[Sequence[exp.Expr]]],
    ) -> None:
        self._pools = pools
        self._nullable = nullable
        self._predicates = predicates

    def insert(
        self, rnd: random.Random, source: str, relation: RelationSchema, bag: Mapping[Row, int]
    ) -> list[Change]:
        indexes = [i for i, column in enumerate(relation.columns) if column.name in relation.key]
        used = {tuple(row[i] for i in indexes) for row in bag} if indexes else set()
        wanted = rnd.choice(self._predicates[source, relation.name]) if rnd.random() < _WANTED else ()
        found: list[Change] = []
        # Trying is enough: where most keys are in use, it is as well that rows are deleted first.
        for _ in range(_ROW_TRIES):
            row = tuple(self._value(rnd, source, relation, column) for column in relation.columns)
            if tuple(row[i] for i in indexes) not in used:
                found = [Change(relation.name, row)]
                if _holds(wanted, relation, row):
                    break
        return found

    def modified(self, rnd: random.Random, source: str, relation: RelationSchema, row: Row) -> Row:
        return tuple(
            value if column.name in relation.key else self._value(rnd, source, relation, column)
            for value, column in zip(row, relation.columns, strict=True)
        )

    def _value(self, rnd: random.Random, source: str, relation: RelationSchema, column: Column) -> Any:
        place = (source, relation.name, column.name)
        if place in self._nullable and rnd.random() < _NULL:
            return None
        return rnd.choice(self._pools[place])


def _without_table(part: exp.Expr) -> exp.Expr:
    return exp.Column(this=part.this) if isinstance(part, exp.Column) else part


def _holds(predicates: Sequence[exp.Expr], relation: RelationSchema, row: Row) -> bool:
    values = dict(zip((column.name for column in relation.columns), row, strict=True))
    with suppress(*_FAILURES):
        return all(evaluate(predicate, lambda _, name: values[name]) for predicate in predicates)
    return True


def _reduced(relation: RelationSchema, read: set[str]) -> RelationSchema:
    """The relation with the columns that are read; one at least."""
    columns = [Column(c.name, _as_lab(c.type)) for c in relation.columns if c.name in read]
    if not columns:
        columns = [Column(c.name, _as_lab(c.type)) for c in relation.columns[:1]]
    return RelationSchema(
        relation.name, tuple(columns), tuple(c.name for c in columns if c.name in relation.key)
    )


def _as_lab(type_: pa.DataType) -> pa.DataType:
    """The type; an instant is one in any time zone. ViewDefinitionError if Lockstep does not carry it."""
    duckdb_type(type_)
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(type_) and type_.tz else type_


def _one_line(sql: str) -> str:
    """The SQL text without comments, and with single blanks."""
    text, end = "", -1
    for token in sqlglot.tokenize(sql, dialect=DIALECT):
        text += " " * (0 <= end < token.start - 1) + sql[token.start : token.end + 1]
        end = token.end
    return text


def _states(world: World) -> int:
    """How many different states the view has, over all states of the sources or over many of them."""
    vectors = product(*(range(last + 1) for last in world.last))
    return len({world.view_at(vector) for vector in islice(vectors, _VECTORS)})
