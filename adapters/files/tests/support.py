"""What the tests ask of an adapter, in a few lines."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa

from adapters.files.adapter import FilesAdapter
from adapters.files.folder import Identity
from adapters.spi import Snapshot
from algebra.expressions import ColumnRef
from algebra.local_view import LocalView, Occurrence, OutputColumn
from algebra.position import Position
from algebra.schema import RelationSchema

Rows = Counter[tuple[Any, ...]]


def whole(schema: RelationSchema) -> LocalView:
    """All columns of one relation."""
    columns = tuple(OutputColumn(c.name, ColumnRef("r", c.name), c.type) for c in schema.columns)
    return LocalView("v", "shop", (Occurrence("r", schema.name),), (), (), columns)


def bag(table: pa.Table) -> Rows:
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def fetch(snapshot: Snapshot, schema: RelationSchema) -> Rows:
    return bag(snapshot.fetch(whole(schema)).read_all())


def rows(adapter: FilesAdapter, relation: str) -> Rows:
    """The relation as a snapshot taken now shows it."""
    schema = adapter.catalog().relation(relation)
    with adapter.snapshot() as snapshot:
        return fetch(snapshot, schema)


def types(adapter: FilesAdapter, relation: str) -> dict[str, str]:
    return {c.name: str(c.type) for c in adapter.catalog().relation(relation).columns}


def start(adapter: FilesAdapter, *relations: str) -> Position:
    """Prepare, and the position from which on everything is known."""
    adapter.prepare(relations)
    with adapter.snapshot() as snapshot:
        return snapshot.position


def changes(adapter: FilesAdapter, after: Position) -> list[dict[str, dict[tuple[Any, ...], int]]]:
    """Per entry {relation: {row: count}}."""
    with adapter.snapshot() as snapshot:
        return [
            {name: delta.to_dict() for name, delta in transaction.deltas.items()}
            for transaction in snapshot.changes(after).transactions()
        ]


def settle(path: Path) -> None:
    """Return when the file is old enough for its identity to be trusted."""
    while Identity.of(path.stat()).settles_ns >= time.time_ns():
        time.sleep(0.005)  # nothing but time makes a file older
