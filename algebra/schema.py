"""Schemas: columns with Arrow types, relations with keys, and a source's catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from algebra.errors import NotFoundError

COUNT = "_count"
"""Signed multiplicity of a row; every counted relation carries it."""


@dataclass(frozen=True)
class Column:
    """One column: its name as the source spells it, and the Arrow type its values have everywhere."""

    name: str
    type: pa.DataType
    nullable: bool = True


@dataclass(frozen=True)
class RelationSchema:
    """One base relation as its source declares it.

    `key` names the columns of a declared primary or unique non-null key, or is empty: then the relation
    is a bag and may hold duplicates. `row_estimate` is what the source believes, or None.
    """

    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    row_estimate: int | None = None

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise NotFoundError(f"relation {self.name!r} has no column {name!r}")

    def has_column(self, name: str) -> bool:
        return any(column.name == name for column in self.columns)

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(c.name, c.type, c.nullable) for c in self.columns])


@dataclass(frozen=True)
class Catalog:
    """What one source shows: its name and its relations."""

    source: str
    relations: Mapping[str, RelationSchema] = field(default_factory=dict)

    def relation(self, name: str) -> RelationSchema:
        try:
            return self.relations[name]
        except KeyError:
            known = ", ".join(sorted(self.relations)) or "none"
            raise NotFoundError(f"source {self.source!r} has no relation {name!r}; it has: {known}") from None

    def __iter__(self) -> Iterator[RelationSchema]:
        return iter(self.relations.values())
