"""Scenarios: a view, the sources it joins, what they do, and the algorithm that has to keep up.

A scenario says everything but *when*; that is the schedule's part. It is a value: generated, shrunk, printed
and read back without loss (`scenario_text.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from typing import Any, TypeAlias

from algebra import consistency
from algebra.consistency import Level
from algebra.decompose import Decomposition, decompose
from algebra.errors import ConfigurationError
from algebra.global_transaction import GlobalTransaction
from algebra.schema import Catalog, RelationSchema
from lab.errors import ScenarioError
from lab.serial import SerialOrder
from lab.values import fits
from mediator.maintenance import algorithm
from mediator.maintenance.contract import Maintenance

Row: TypeAlias = tuple[Any, ...]
Bag: TypeAlias = Counter[Row]


@dataclass(frozen=True)
class Change:
    """A row of a relation, `count` times more; less if negative."""

    relation: str
    row: Row
    count: int = 1


@dataclass(frozen=True)
class Transaction:
    """What one source commits at once; perhaps its part of a global transaction."""

    changes: tuple[Change, ...]
    part_of: GlobalTransaction | None = None

    def net(self) -> Counter[tuple[str, Row]]:
        """What it changes in the end: counts by relation and row."""
        counts: Counter[tuple[str, Row]] = Counter()
        for change in self.changes:
            counts[change.relation, change.row] += change.count
        return Counter({row: count for row, count in counts.items() if count})


@dataclass(frozen=True)
class Source:
    """One autonomous database: its relations, their first rows, and its transactions in order."""

    name: str
    relations: tuple[RelationSchema, ...]
    rows: tuple[Change, ...] = ()
    transactions: tuple[Transaction, ...] = ()

    @property
    def catalog(self) -> Catalog:
        return Catalog(self.name, {relation.name: relation for relation in self.relations})

    def states(self) -> Iterator[dict[str, Bag]]:
        """The relations at first, and after each transaction; ScenarioError where that is no state."""
        state: dict[str, Bag] = {relation.name: Counter() for relation in self.relations}
        for changes in (self.rows, *(transaction.changes for transaction in self.transactions)):
            state = self.after(state, changes)
            yield state

    def after(self, state: Mapping[str, Bag], changes: tuple[Change, ...]) -> dict[str, Bag]:
        """The state that changes lead to; ScenarioError if a row would be missing, or a key not unique."""
        found = {name: Counter(bag) for name, bag in state.items()}
        for change in changes:
            self._check_row(change)
            found[change.relation][change.row] += change.count
        for relation in self.relations:
            bag = found[relation.name]
            for row, count in bag.items():
                if count < 0:
                    raise ScenarioError(f"{self.name}.{relation.name} does not hold {row} often enough")
            bag = found[relation.name] = Counter({row: n for row, n in bag.items() if n})
            indexes = [i for i, c in enumerate(relation.columns) if c.name in relation.key]
            if indexes and len({tuple(row[i] for i in indexes) for row in bag}) < bag.total():
                raise ScenarioError(f"two rows of {self.name}.{relation.name} have the same key")
        return found

    def _check_row(self, change: Change) -> None:
        relation = self.catalog.relations.get(change.relation)
        if relation is None:
            raise ScenarioError(f"source {self.name} has no relation {change.relation!r}")
        if len(change.row) != len(relation.columns):
            raise ScenarioError(f"{self.name}.{relation.name} has {len(relation.columns)} columns")
        for value, column in zip(change.row, relation.columns, strict=True):
            if not fits(value, column.type):
                raise ScenarioError(f"{value!r} is no value of {self.name}.{relation.name}.{column.name}")


@dataclass(frozen=True)
class Scenario:
    """What happens, but not when.

    `options` are numbers that the algorithm is made with, by name; what is not named keeps its default.
    `per_relation` makes every relation a node of its own even if the algorithm does not ask for it.
    `max_batch` bounds what the warehouse takes from its queue at once; None for no bound of the scenario's
    own. `scheduled_takes`: it takes when, and as many as, the schedule says, not everything at once.
    `allow_cross_join`: parts of the view need not be connected. `embedded`: joins are done by the embedded
    engine, for views with expressions that the reference engine does not know.
    """

    algorithm: str
    view: str
    sources: tuple[Source, ...]
    reference: str = ""
    notes: tuple[str, ...] = ()
    per_relation: bool = False
    max_batch: int | None = None
    scheduled_takes: bool = False
    options: tuple[tuple[str, int], ...] = ()
    allow_cross_join: bool = False
    embedded: bool = False

    @property
    def maintenance(self) -> Maintenance:
        """The algorithm, with the scenario's options; ConfigurationError if it does not have them."""
        found = algorithm(self.algorithm)
        if not self.options:
            return found
        make: Callable[..., Maintenance] = type(found)
        for option, _ in self.options:
            if option not in signature(make).parameters:
                raise ConfigurationError(f"{found.name} has no option {option!r}")
        return make(**dict(self.options))

    @property
    def decomposition(self) -> Decomposition:
        needs = self.maintenance
        relations = tuple((source.name, source.relations) for source in self.sources)
        per_relation = self.per_relation or needs.single_source
        return _decompose(self.view, relations, needs.needs_keys, per_relation, self.allow_cross_join)

    @property
    def batch_limit(self) -> int | None:
        """At most how many transactions the warehouse takes at once."""
        limits = [n for n in (self.maintenance.max_batch, self.max_batch) if n is not None]
        return min(limits, default=None)

    @property
    def transactions(self) -> int:
        return sum(len(source.transactions) for source in self.sources)

    @property
    def kind(self) -> consistency.Scenario:
        """The Strobe paper's scenario that these transactions belong to."""
        all_of_them = [t for source in self.sources for t in source.transactions]
        if any(t.part_of for t in all_of_them):
            return consistency.Scenario.GLOBAL
        if any(sum(abs(count) for count in t.net().values()) > 1 for t in all_of_them):
            return consistency.Scenario.SOURCE_LOCAL
        return consistency.Scenario.SINGLE_UPDATE

    @property
    def promise(self) -> Level:
        """The level that the algorithm guarantees for this kind of transactions."""
        return self.maintenance.guarantee[self.kind]

    def check(self) -> None:
        """ScenarioError, or the view's own error, if this cannot be run."""
        names = [source.name for source in self.sources]
        if len(set(names)) < len(names):
            raise ScenarioError("two sources have the same name")
        for source in self.sources:
            for _ in source.states():
                pass
        decomposition = self.decomposition
        self._check_used(decomposition)
        self._check_shape(decomposition)
        SerialOrder(self).check()

    def _check_used(self, decomposition: Decomposition) -> None:
        used = {(v.source, relation) for v in decomposition.local_views for relation in v.relations}
        for source in self.sources:
            for relation in source.relations:
                if (source.name, relation.name) not in used:
                    raise ScenarioError(f"the view does not use {source.name}.{relation.name}")
            if not all(t.net() for t in source.transactions):
                raise ScenarioError(f"a transaction of {source.name} changes nothing")

    def _check_shape(self, decomposition: Decomposition) -> None:
        needs = self.maintenance
        if needs.single_source and len(self.sources) > 1:
            raise ScenarioError(f"{needs.name} keeps views over one source only")
        if needs.one_node_per_source and len(decomposition.local_views) > len(self.sources):
            raise ScenarioError(f"{needs.name} needs one local view per source")


@lru_cache(maxsize=512)
def _decompose(
    view: str,
    relations: tuple[tuple[str, tuple[RelationSchema, ...]], ...],
    keys: bool,
    per_relation: bool,
    allow_cross_join: bool,
) -> Decomposition:
    catalogs = {name: Catalog(name, {r.name: r for r in schemas}) for name, schemas in relations}
    return decompose(
        "view", view, catalogs, keys=keys, per_relation=per_relation, allow_cross_join=allow_cross_join
    )
