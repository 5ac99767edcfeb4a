"""A source that lives in this process: relations as Arrow tables, for tests of the shadow alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from adapters.shadow.engine import Engine
from adapters.shadow.extent import ArrowExtent, Extent
from adapters.shadow.history import Shape, TrimPolicy
from adapters.shadow.store import OpenShadow, Shadow, SourceState
from adapters.spi import Changes
from algebra.errors import ConfigurationError
from algebra.position import Position
from algebra.schema import Column, RelationSchema

Row = tuple[Any, ...]

ITEM = RelationSchema(
    "item",
    (Column("id", pa.int64(), False), Column("name", pa.string()), Column("Name", pa.float64())),
    ("id",),
)
NOTE = RelationSchema("note", (Column("text", pa.string()), Column("n", pa.int32())))


class Tables(SourceState):
    """Relations with rows that a test sets; `batch_rows` at a time are streamed."""

    def __init__(self, *schemas: RelationSchema, batch_rows: int = 2) -> None:
        self.schemas = {schema.name: schema for schema in schemas}
        self.contents: dict[str, list[Row]] = {schema.name: [] for schema in schemas}
        self._batch_rows = batch_rows

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {
            name: tuple((column.name, str(column.type)) for column in schema.columns)
            for name, schema in self.schemas.items()
        }

    def schema(self, relation: str) -> RelationSchema:
        if relation not in self.schemas:
            raise ConfigurationError(f"no relation {relation!r}")
        return self.schemas[relation]

    def rows(self, relation: str) -> Extent:
        return self.extent(relation, self.contents[relation])

    def extent(self, relation: str, rows: list[Row]) -> Extent:
        """Some rows of a relation, or a narrower extent of their first columns."""
        width = len(rows[0]) if rows else len(self.schemas[relation].columns)
        schema = pa.schema(list(self.schemas[relation].arrow)[:width])
        return ArrowExtent(relation, schema, self._batches(schema, list(rows)))

    def _batches(self, schema: pa.Schema, rows: list[Row]) -> Iterator[pa.RecordBatch]:
        for start in range(0, len(rows), self._batch_rows):
            columns = zip(*rows[start : start + self._batch_rows], strict=True)
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def open_shadow(folder: Path, database: str = "memory", **options: Any) -> Shadow:
    """A shadow that trims at once."""
    policy = TrimPolicy(lambda: 0.0, entries=0, seconds=0)
    return Shadow(Engine("shop", **options), folder / "shadow", database, policy, lock_timeout=20)


def cycle(shadow: Shadow, tables: Tables) -> Position:
    """Bring all prepared relations up to date; the position after it."""
    with shadow.opened() as held:
        with held.cycle() as found:
            for name in held.relations:
                found.replace(name, tables.rows(name))
        return held.position


def changes_after(shadow: Shadow, position: Position) -> Changes:
    with shadow.opened() as held:
        return held.changes(position)


def deltas(changes: Changes) -> list[dict[str, dict[Row, int]]]:
    """What each entry did, by relation and row."""
    return [
        {name: delta.to_dict() for name, delta in transaction.deltas.items()}
        for transaction in changes.transactions()
    ]


def state(held: OpenShadow, relation: str) -> Counter[Row]:
    """The rows that the shadow holds."""
    kept = held.relations[relation]
    rows = held.connection.execute(f"SELECT {', '.join(kept.columns)} FROM {kept.origin('t')}").fetchall()
    return Counter(rows)
