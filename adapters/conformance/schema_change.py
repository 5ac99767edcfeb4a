"""What an owner does to the schema of a source while a view is kept over it, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from algebra.schema import Column, RelationSchema


@dataclass(frozen=True)
class AddColumn:
    """A column more, at the end, NULL in the rows that are there."""

    kind: ClassVar[str] = "add-column"

    relation: str
    column: Column

    def applied(self, table: RelationSchema) -> RelationSchema:
        return replace(table, columns=(*table.columns, self.column))


@dataclass(frozen=True)
class DropColumn:
    """A column, which is in no key, is gone."""

    kind: ClassVar[str] = "drop-column"

    relation: str
    column: str

    def applied(self, table: RelationSchema) -> RelationSchema:
        return replace(table, columns=tuple(c for c in table.columns if c.name != self.column))


@dataclass(frozen=True)
class RetypeColumn:
    """A column of integers becomes one of text that says the same numbers."""

    kind: ClassVar[str] = "retype-column"

    relation: str
    column: str
    type: pa.DataType

    def applied(self, table: RelationSchema) -> RelationSchema:
        retyped = (replace(c, type=self.type) if c.name == self.column else c for c in table.columns)
        return replace(table, columns=tuple(retyped))


@dataclass(frozen=True)
class RenameTable:
    """A table has another name, and is otherwise as it was."""

    kind: ClassVar[str] = "rename-table"

    relation: str
    to: str

    def applied(self, table: RelationSchema) -> RelationSchema:
        return replace(table, name=self.to)


SchemaChange = AddColumn | DropColumn | RetypeColumn | RenameTable


def altered(tables: Sequence[RelationSchema], change: SchemaChange) -> tuple[RelationSchema, ...]:
    """The tables after the change."""
    return tuple(change.applied(table) if table.name == change.relation else table for table in tables)


def alter_table(
    change: SchemaChange, quote: Callable[[str], str], declared: Mapping[pa.DataType, str]
) -> str:
    """The change as the statement that most databases have for it; `declared` names their types."""
    table = f"ALTER TABLE {quote(change.relation)}"
    match change:
        case AddColumn(_, column):
            return f"{table} ADD COLUMN {quote(column.name)} {declared[column.type]}"
        case DropColumn(_, name):
            return f"{table} DROP COLUMN {quote(name)}"
        case RetypeColumn(_, name, type_):
            return f"{table} ALTER COLUMN {quote(name)} TYPE {declared[type_]}"
        case RenameTable(_, to):
            return f"{table} RENAME TO {quote(to)}"
