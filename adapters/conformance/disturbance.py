"""What an owner does to a source past any capture, in the same shape as before, as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from algebra.schema import RelationSchema


@dataclass(frozen=True)
class TruncateTable:
    """All rows are gone, by the statement that the source has for that where it has one."""

    kind: ClassVar[str] = "truncate-table"

    table: RelationSchema


@dataclass(frozen=True)
class RebuildTable:
    """A copy of the table takes its place and its name, without the row that has `lost` in the first column,
    a number."""

    kind: ClassVar[str] = "rebuild-table"

    table: RelationSchema
    lost: int


@dataclass(frozen=True)
class DropTable:
    """The table is gone."""

    kind: ClassVar[str] = "drop-table"

    table: RelationSchema


@dataclass(frozen=True)
class CreateTable:
    """A table that was dropped is there again, empty, in the same shape."""

    kind: ClassVar[str] = "create-table"

    table: RelationSchema


@dataclass(frozen=True)
class LoseCapture:
    """What capture has of the table is gone, but not the table: its triggers, its place in a publication, a
    shadow; where nothing is of one table alone, what it has of all."""

    kind: ClassVar[str] = "lose-capture"

    table: RelationSchema


TableDisturbance = TruncateTable | RebuildTable | DropTable | CreateTable
Disturbance = TableDisturbance | LoseCapture


def keeps(disturbance: Disturbance, row: Sequence[Any]) -> bool:
    """Whether a row of the table is there afterwards."""
    match disturbance:
        case RebuildTable(_, lost):
            return bool(row[0] != lost)
        case LoseCapture():
            return True
    return False


def disturb_table(
    disturbance: TableDisturbance,
    quote: Callable[[str], str],
    create: Callable[[RelationSchema], str],
    *,
    truncate: str = "TRUNCATE TABLE",
) -> list[str]:
    """The disturbance as the statements that most databases have for it; `create` makes CREATE TABLE."""
    table = disturbance.table
    name = quote(table.name)
    match disturbance:
        case TruncateTable():
            return [f"{truncate} {name}"]
        case RebuildTable(_, lost):
            copy = replace(table, name=f"copy of {table.name}")
            rest = f"SELECT * FROM {name} WHERE {quote(table.columns[0].name)} <> {lost}"
            return [
                create(copy),
                f"INSERT INTO {quote(copy.name)} {rest}",
                f"DROP TABLE {name}",
                f"ALTER TABLE {quote(copy.name)} RENAME TO {name}",
            ]
        case DropTable():
            return [f"DROP TABLE {name}"]
        case CreateTable():
            return [create(table)]
