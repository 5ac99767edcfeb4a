"""Writes what random sources hold and do: first rows, then transactions that always change something.

Which rows there can be is somebody else's part (`Rows`).
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from algebra import consistency
from algebra.global_transaction import GlobalTransaction
from algebra.schema import RelationSchema
from lab.scenario import Bag, Change, Row, Source, Transaction
from lab.scenario_text import sort_key

_Operation: TypeAlias = Callable[[str, RelationSchema, Mapping[Row, int]], list[Change]]


class Rows(ABC):
    """The rows that relations can have."""

    @abstractmethod
    def insert(
        self, rnd: random.Random, source: str, relation: RelationSchema, bag: Mapping[Row, int]
    ) -> list[Change]:
        """A row more; nothing if every key is in use."""

    @abstractmethod
    def modified(self, rnd: random.Random, source: str, relation: RelationSchema, row: Row) -> Row:
        """The same row with other values, but the same key."""


class Writer:
    """Makes sources and adds transactions to them, and knows what they hold."""

    def __init__(self, rnd: random.Random, rows: Rows) -> None:
        self._rnd = rnd
        self._rows = rows
        self.sources: dict[str, Source] = {}
        self._states: dict[str, dict[str, Bag]] = {}

    def add(self, name: str, relations: Sequence[RelationSchema], first_rows: range) -> None:
        """A source with some first rows in each of its relations; `first_rows` says how many there may be."""
        source = Source(name, tuple(relations))
        state: dict[str, Bag] = {relation.name: Counter() for relation in relations}
        rows: list[Change] = []
        for relation in relations:
            for _ in range(self._rnd.choice(first_rows)):
                for change in self._insert(name, relation, state[relation.name]):
                    rows.append(change)
                    state = source.after(state, (change,))
        self.sources[name] = replace(source, rows=tuple(rows))
        self._states[name] = state

    def write(self, number: int, kind: consistency.Scenario) -> None:
        """One transaction more."""
        names = list(self.sources)
        if (
            kind is consistency.Scenario.GLOBAL
            and len(names) > 1
            and (number == 1 or self._rnd.random() < 0.5)
        ):
            chosen = sorted(self._rnd.sample(names, self._rnd.randint(2, min(3, len(names)))))
            whole = GlobalTransaction(f"t{number}", frozenset(chosen))
            for name in chosen:
                self._append(name, Transaction(self._changes(name, 1), whole))
            return
        name = self._rnd.choice(names)
        single = kind is consistency.Scenario.SINGLE_UPDATE or self._rnd.random() < 0.4
        self._append(name, Transaction(self._changes(name, 1 if single else self._rnd.randint(2, 3), single)))

    def _changes(self, name: str, steps: int, single: bool = True) -> tuple[Change, ...]:
        """Changes that leave something changed in the end."""
        source = self.sources[name]
        operations: tuple[_Operation, ...] = (self._insert, self._delete)
        if not single:
            operations = (*operations, self._modify)
        while True:
            state, changes = self._states[name], []
            for _ in range(steps):
                relation = self._rnd.choice(source.relations)
                operation = self._rnd.choice(operations)
                made = operation(name, relation, state[relation.name])
                changes += made
                state = source.after(state, tuple(made))
            if Transaction(tuple(changes)).net():
                return tuple(changes)

    def _insert(self, source: str, relation: RelationSchema, bag: Mapping[Row, int]) -> list[Change]:
        return self._rows.insert(self._rnd, source, relation, bag)

    def _delete(self, source: str, relation: RelationSchema, bag: Mapping[Row, int]) -> list[Change]:
        return [Change(relation.name, self._chosen(bag), -1)] if bag else []

    def _modify(self, source: str, relation: RelationSchema, bag: Mapping[Row, int]) -> list[Change]:
        if not bag:
            return []
        old = self._chosen(bag)
        new = self._rows.modified(self._rnd, source, relation, old)
        return [Change(relation.name, old, -1), Change(relation.name, new)]

    def _chosen(self, bag: Mapping[Row, int]) -> Row:
        return self._rnd.choice(sorted(bag, key=sort_key))

    def _append(self, name: str, transaction: Transaction) -> None:
        source = self.sources[name]
        self._states[name] = source.after(self._states[name], transaction.changes)
        self.sources[name] = replace(source, transactions=(*source.transactions, transaction))
