"""A source's own application: random transactions until it is told to stop, or killed.

A process, `python -m lab.soak.writer KIND PLACE SEED PAUSE RELATION...` (a relation with a ticket is written
`NAME+`). It goes on from what it finds, and over the death of a server. It stops when its standard input
closes. A line there lets it hurry: so that whoever kills it, or something that it writes to, strikes at work.
"""

from __future__ import annotations

import os
import random
import select
import sys
import time
from collections import Counter
from pathlib import Path

from lab.soak.kinds import KINDS, PATIENCE_SECONDS
from lab.soak.layout import TICKET, Relation, Source
from lab.soak.stores import Row, Store

_DOMAIN = 5
"""So few that the join of ten sources often holds rows besides its ticket; of twelve values it hardly did."""
_MOST_ROWS = 10
_HURRY = 50
"""Transactions without a pause."""


class Writer:
    """Random transactions on one source."""

    def __init__(self, source: Source, seed: int, pause: float) -> None:
        self._source, self._kind, self._pause = source, KINDS[source.kind], pause
        self._random = random.Random(seed)
        self._bags: dict[str, Counter[Row]] = {}
        self._number = 0

    def run(self) -> None:
        store = self._open()
        word: bytes | None = None
        while word != b"":
            for _ in range(_HURRY if word else self._random.randint(1, 4)):
                try:
                    self._transaction(store)
                except self._kind.failures as error:
                    print(f"a transaction failed and is tried again: {error}", flush=True)
                    store.close()
                    store = self._open()
            if self._kind.one_owner:
                store.close()
            word = _word(self._pause * self._random.uniform(0.5, 1.5))
            if self._kind.one_owner and word != b"":
                store = self._kind.open(self._source)
        if not self._kind.one_owner:
            store.close()

    def _open(self) -> Store:
        """The source, with everything known about it read anew."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            store = self._kind.open(self._source)
            try:
                self._number = store.last()
                for relation in self._source.relations:
                    rows = store.rows(relation)
                    self._bags[relation.name] = Counter(
                        {row: count for row, count in rows.items() if row[0] != TICKET}
                    )
                return store
            except self._kind.failures:
                store.close()
                if time.monotonic() > deadline:
                    raise

    def _transaction(self, store: Store) -> None:
        changes: list[tuple[str, int, Row]] = []
        bags = {name: Counter(bag) for name, bag in self._bags.items()}
        store.begin()
        for _ in range(self._random.choice([0, 1, 1, 2, 5])):
            relation = self._random.choice(self._source.relations)
            bag = bags[relation.name]
            if bag.total() and self._random.random() < (0.4 if bag.total() < _MOST_ROWS else 0.75):
                row = self._random.choice(sorted(bag.elements(), key=str))
                store.delete_one(relation, row)
                changes.append((relation.name, -1, row))
                bag[row] -= 1
            else:
                row = tuple(None if column == "tx" else self._value() for column in relation.columns)
                store.insert(relation, row)
                changes.append((relation.name, 1, row))
                bag[row] += 1
        for relation in self._source.relations:
            if relation.ticketed:
                store.set_ticket(relation, self._number + 1)
        if self._random.random() < 0.1:
            store.rollback()
            return
        store.commit(self._number + 1, changes)
        self._number += 1
        self._bags = {name: +bag for name, bag in bags.items()}

    def _value(self) -> int | None:
        return None if self._random.random() < 0.1 else self._random.randrange(_DOMAIN)


def _word(seconds: float) -> bytes | None:
    """What comes on standard input within that time, nothing (b"") if it closes; None if neither."""
    readable, _, _ = select.select([0], [], [], seconds)
    return os.read(0, 4096) if readable else None


if __name__ == "__main__":
    kind_, place_, seed_, pause_, *names_ = sys.argv[1:]
    relations_ = tuple(Relation(name.removesuffix("+"), name.endswith("+")) for name in names_)
    print("writing", flush=True)
    Writer(Source("", kind_, place_, Path(), relations_), int(seed_), float(pause_)).run()
