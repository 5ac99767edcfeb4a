"""A follower of a source, as a wrapper is one: it believes changes, and checks them against what it
fetches."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from adapters.conformance.model import Bag, bag_of, difference, plus
from adapters.conformance.queries import whole
from adapters.postgresql.adapter import PostgresAdapter
from adapters.spi import Changes, Snapshot
from algebra.local_view import Keys
from algebra.position import Position
from algebra.schema import Catalog


def table(snapshot: Snapshot, catalog: Catalog, relation: str, keys: Keys | None = None) -> pa.Table:
    """All rows of one relation, or those of some keys."""
    return snapshot.fetch(whole(catalog, relation), keys).read_all()


def changes_by_relation(changes: Changes) -> list[dict[str, Bag]]:
    """What each entry did."""
    return [
        {relation: bag_of(delta.rows) for relation, delta in transaction.deltas.items()}
        for transaction in changes.transactions()
    ]


class Follower:
    """Holds what the tables must be, from a first fetch and all changes since."""

    def __init__(self, adapter: PostgresAdapter) -> None:
        self.adapter = adapter
        self.catalog = adapter.catalog()
        with adapter.snapshot() as snapshot:
            self.position: Position = snapshot.position
            self.tables = {
                name: bag_of(table(snapshot, self.catalog, name)) for name in self.catalog.relations
            }
        self.entries: list[dict[str, Bag]] = []

    def follow(self) -> list[dict[str, Bag]]:
        """The new entries; fails unless after each no row is there less than never, and in the end what is
        fetched."""
        with self.adapter.snapshot() as snapshot:
            new = changes_by_relation(snapshot.changes(self.position))
            fetched = {name: bag_of(table(snapshot, self.catalog, name)) for name in self.catalog.relations}
            position = snapshot.position
        for entry in new:
            for relation, bag in entry.items():
                self.tables[relation] = plus(self.tables[relation], bag)
                gone = [row for row, count in self.tables[relation].items() if count < 0]
                assert not gone, f"{relation} after an entry lacks {gone[:3]}"
        for name, found in fetched.items():
            text = difference(self.tables[name], found)
            assert text is None, f"{name} by changes against fetch: {text}"
        self.position = position
        self.entries += new
        return new


def rows(bag: Bag | None) -> dict[tuple[Any, ...], int]:
    return dict(bag or Counter())
