"""Local views and replicas for the tests: what a wrapper would do with an adapter, in a few lines."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa

from adapters.duckdb.adapter import DuckDBAdapter
from adapters.spi import Changes, Snapshot
from algebra.delta import Delta
from algebra.expressions import ColumnRef, Expression
from algebra.local_view import LocalView, Occurrence, OutputColumn
from algebra.position import Position
from algebra.schema import Catalog

Deltas = list[dict[str, dict[tuple[Any, ...], int]]]


def whole(catalog: Catalog, relation: str, *predicates: Expression) -> LocalView:
    """All columns of one relation."""
    columns = tuple(
        OutputColumn(c.name, ColumnRef("r", c.name), c.type) for c in catalog.relation(relation).columns
    )
    return LocalView("v", catalog.source, (Occurrence("r", relation),), (), predicates, columns)


def rows(table: pa.Table) -> Counter[tuple[Any, ...]]:
    columns = [column.to_pylist() for column in table.columns]
    return Counter(zip(*columns, strict=True))


def state(adapter: DuckDBAdapter, snapshot: Snapshot) -> dict[str, Delta]:
    """Every relation of the catalog as the snapshot shows it."""
    catalog = adapter._reader.read(snapshot._connection).catalog(None)  # type: ignore[attr-defined]
    return {name: Delta.of_bag(snapshot.fetch(whole(catalog, name)).read_all()) for name in catalog.relations}


def deltas(changes: Changes) -> Deltas:
    """Per transaction {relation: {row: count}}."""
    return [
        {name: delta.to_dict() for name, delta in transaction.deltas.items()}
        for transaction in changes.transactions()
    ]


def changes_after(adapter: DuckDBAdapter, after: Position) -> tuple[Changes, Position]:
    """The changes after a position and the position they lead to."""
    with adapter.snapshot() as snapshot:
        return snapshot.changes(after), snapshot.position
