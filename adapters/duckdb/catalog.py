"""What the attached file holds: its base tables as relations, with keys, types and size estimates.

DuckDB's catalog functions cost several milliseconds each, and the owner is locked out meanwhile. One of
them, `duckdb_tables()`, shows every table's complete DDL: as long as that text is the same, all that was
read before is still true, and only the row estimates are taken anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import duckdb

from adapters.duckdb.session import SOURCE
from adapters.duckdb.types import ColumnType, column_type
from adapters.relations import chosen_relations, shown_columns
from adapters.shadow.sql import path, quote, text
from algebra.errors import ConfigurationError
from algebra.schema import Catalog, RelationSchema

OWN_SCHEMA = "_lockstep"
"""The schema that holds capture's tables; names that begin like it are never shown."""

_TABLES = f"""
    SELECT schema_name, table_name, sql, estimated_size FROM duckdb_tables()
    WHERE database_name = {text(SOURCE)} AND NOT internal AND NOT temporary
      AND NOT starts_with(schema_name, {text(OWN_SCHEMA)}) AND NOT starts_with(table_name, {text(OWN_SCHEMA)})
    ORDER BY ALL"""
_COLUMNS = f"""
    SELECT schema_name, table_name, column_name, data_type, is_nullable FROM duckdb_columns()
    WHERE database_name = {text(SOURCE)} AND NOT internal ORDER BY schema_name, table_name, column_index"""
_KEYS = f"""
    SELECT schema_name, table_name, constraint_column_names FROM duckdb_constraints()
    WHERE database_name = {text(SOURCE)} AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')
    ORDER BY constraint_type, constraint_index"""


@dataclass(frozen=True)
class SourceColumn:
    """A column with its declared type and how that is shown; `type` is None if it cannot be."""

    name: str
    declared: str
    nullable: bool
    type: ColumnType | None


@dataclass(frozen=True)
class SourceRelation:
    """A base table: the relation it is shown as, and what it is in DuckDB.

    `collated` says that some text column may compare other than by its bytes.
    """

    name: str
    schema: str
    table: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    collated: bool
    row_estimate: int

    @property
    def qualified(self) -> str:
        """The table's name inside its own file, quoted."""
        return path(self.schema, self.table)

    @property
    def shape(self) -> tuple[tuple[str, str], ...]:
        """What must not change while changes are captured: names and declared types, in order."""
        return tuple((column.name, column.declared) for column in self.columns)

    def origin(self, alias: str) -> str:
        """The attached table under an alias."""
        return f"{path(SOURCE, self.schema, self.table)} AS {quote(alias)}"

    def read(self, column: str, alias: str) -> str:
        """The expression that reads a column of this table under an alias, as the type it is shown by."""
        found = next(c for c in self.columns if c.name == column)
        return _supported(found).read(f"{quote(alias)}.{quote(column)}", collated=self.collated)

    def shown(self, source: str) -> RelationSchema:
        """The relation's schema; ConfigurationError if a column cannot be shown."""
        columns = shown_columns(source, self.name, self.columns)
        return RelationSchema(self.name, columns, self.key, self.row_estimate)


@dataclass(frozen=True)
class SourceTables:
    """Every base table of the file at one moment, by relation name."""

    source: str
    relations: Mapping[str, SourceRelation]
    definitions: tuple[tuple[str, str, str], ...] = ()

    def select(self, names: Iterable[str] | None) -> list[SourceRelation]:
        """The relations of these names, or all; ConfigurationError lists what exists if one does not."""
        return list(chosen_relations(self.source, self.relations, names).values())

    def catalog(self, names: Sequence[str] | None) -> Catalog:
        """What the source shows: the named relations, or all."""
        return Catalog(self.source, {r.name: r.shown(self.source) for r in self.select(names)})


class CatalogReader:
    """Reads the attached file's tables, and remembers them for as long as their DDL stays the same."""

    def __init__(self, source: str, exclude: frozenset[str]) -> None:
        self._source = source
        self._exclude = exclude
        self._last: SourceTables | None = None

    def read(self, connection: duckdb.DuckDBPyConnection) -> SourceTables:
        """Every base table of the attached file, as it is now."""
        tables = connection.execute(_TABLES).fetchall()
        definitions = tuple((schema, table, sql) for schema, table, sql, _ in tables)
        if self._last is None or self._last.definitions != definitions:
            self._last = self._read_all(connection, definitions)
        estimates = {relation_name(schema, table): size for schema, table, _, size in tables}
        relations = {
            name: replace(relation, row_estimate=int(estimates[name] or 0))
            for name, relation in self._last.relations.items()
        }
        return replace(self._last, relations=relations)

    def _read_all(
        self, connection: duckdb.DuckDBPyConnection, definitions: tuple[tuple[str, str, str], ...]
    ) -> SourceTables:
        columns: dict[tuple[str, str], list[SourceColumn]] = {}
        for schema, table, column, declared, nullable in connection.execute(_COLUMNS).fetchall():
            if f"{relation_name(schema, table)}.{column}" not in self._exclude:
                shown = SourceColumn(column, declared, bool(nullable), column_type(declared))
                columns.setdefault((schema, table), []).append(shown)
        constraints = connection.execute(_KEYS).fetchall()
        relations: dict[str, SourceRelation] = {}
        for schema, table, sql in definitions:
            name = relation_name(schema, table)
            if name in relations:
                raise ConfigurationError(f"source {self._source!r} has two tables that are called {name!r}")
            shown_columns = tuple(columns.get((schema, table), ()))
            keys = [tuple(names) for s, t, names in constraints if (s, t) == (schema, table)]
            relations[name] = SourceRelation(
                name=name,
                schema=schema,
                table=table,
                columns=shown_columns,
                key=_first_key(shown_columns, keys),
                collated=" COLLATE " in sql.upper(),
                row_estimate=0,
            )
        return SourceTables(self._source, relations, definitions)


def relation_name(schema: str, table: str) -> str:
    """How a table is called in Lockstep: tables outside of `main` carry their schema."""
    return table if schema == "main" else f"{schema}.{table}"


def _first_key(columns: Sequence[SourceColumn], keys: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    never_null = {column.name for column in columns if not column.nullable}
    return next((key for key in keys if never_null.issuperset(key)), ())


def _supported(column: SourceColumn) -> ColumnType:
    if column.type is None:
        raise ConfigurationError(f"column {column.name!r} has type {column.declared}, which is not supported")
    return column.type
