"""What the tests of the SQLAlchemy adapter share: reading changes and rows as plain Python values."""

from __future__ import annotations

from collections import Counter
from typing import Any

from adapters.conformance.queries import whole
from adapters.spi import Adapter, Changes
from algebra.position import Position

Rows = dict[tuple[Any, ...], int]


def position_of(adapter: Adapter) -> Position:
    with adapter.snapshot() as snapshot:
        return snapshot.position


def deltas_after(adapter: Adapter, position: Position) -> list[dict[str, Rows]]:
    """What each entry after the position did, by relation and row."""
    with adapter.snapshot() as snapshot:
        return deltas(snapshot.changes(position))


def deltas(changes: Changes) -> list[dict[str, Rows]]:
    return [
        {name: delta.to_dict() for name, delta in transaction.deltas.items()}
        for transaction in changes.transactions()
    ]


def rows_of(adapter: Adapter, relation: str) -> Rows:
    """All rows of a relation, as a snapshot taken now shows them."""
    query = whole(adapter.catalog(), relation)
    with adapter.snapshot() as snapshot:
        table = snapshot.fetch(query).read_all()
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
