"""What the database holds: its base tables as relations, with keys, indexes, types and size estimates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adapters.mariadb.connection import Connection
from adapters.mariadb.sql import path, quote
from adapters.mariadb.types import ColumnType, column_type
from adapters.relations import chosen_relations, shown_columns
from algebra.errors import ConfigurationError
from algebra.schema import Catalog, RelationSchema

OWN_PREFIX = "_lockstep"
"""Names that begin like this are capture's own and never shown."""

_TABLES = """
    SELECT TABLE_NAME, ENGINE, TABLE_ROWS, AUTO_INCREMENT, CREATE_TIME FROM information_schema.TABLES
    WHERE TABLE_SCHEMA = %s AND TABLE_TYPE = 'BASE TABLE' ORDER BY TABLE_NAME"""
_COLUMNS = """
    SELECT TABLE_NAME, COLUMN_NAME, DATA_TYPE, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME, IS_NULLABLE,
           GENERATION_EXPRESSION, EXTRA
    FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s ORDER BY TABLE_NAME, ORDINAL_POSITION"""
_INDEXES = """
    SELECT TABLE_NAME, INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART, INDEX_TYPE
    FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = %s
    ORDER BY TABLE_NAME, INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX"""
_CASCADES = """
    SELECT TABLE_NAME, CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
    WHERE CONSTRAINT_SCHEMA = %s
      AND (DELETE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT')
           OR UPDATE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT'))"""
_SNAPSHOT_ENGINE = "InnoDB"


@dataclass(frozen=True)
class SourceColumn:
    """A column with its declared type and how that is shown; `type` is None if it cannot be.

    `place` counts all columns of the table, also the excluded. `virtual`: computed when it is read.
    """

    name: str
    declared: str
    nullable: bool
    type: ColumnType | None
    place: int
    virtual: bool = False
    compressed: bool = False

    @property
    def shown(self) -> ColumnType:
        if self.type is None:
            raise ConfigurationError(f"column {self.name!r} has type {self.declared}, which is not supported")
        return self.type


@dataclass(frozen=True)
class Index:
    """One index: its columns in order, those that are indexed as a whole."""

    columns: tuple[str, ...]
    unique: bool


@dataclass(frozen=True)
class SourceTable:
    """A base table. `all_columns` are those of the table, `columns` those that are shown.

    `cascade` names a foreign key by which the server changes rows without telling triggers or the log.
    `defined`: the second in which its definition was last written.
    """

    name: str
    engine: str
    all_columns: tuple[SourceColumn, ...]
    columns: tuple[SourceColumn, ...]
    indexes: tuple[Index, ...]
    cascade: str | None
    row_estimate: int
    auto_increment: int | None
    defined: str

    @property
    def shape(self) -> tuple[tuple[str, str], ...]:
        """What must not change while changes are captured: names and declared types, in order."""
        shown = {column.name for column in self.columns}
        return tuple(
            (c.name, c.declared if c.name in shown else f"{c.declared}, excluded") for c in self.all_columns
        )

    @property
    def key(self) -> tuple[str, ...]:
        """The columns of the first unique key that takes no NULL and is shown, or none."""
        never_null = {column.name for column in self.columns if not column.nullable}
        unique = (index.columns for index in self.indexes if index.unique)
        return next((columns for columns in unique if columns and never_null.issuperset(columns)), ())

    def column(self, name: str) -> SourceColumn:
        return next(column for column in self.columns if column.name == name)

    def is_indexed(self, name: str) -> bool:
        """Whether rows can be looked up by this column alone."""
        return any(index.columns[:1] == (name,) for index in self.indexes)

    def is_unique(self, name: str) -> bool:
        return any(index.unique and index.columns == (name,) for index in self.indexes)

    def shown(self, source: str) -> RelationSchema:
        """The relation's schema; ConfigurationError if it cannot be shown."""
        if self.engine != _SNAPSHOT_ENGINE:
            raise ConfigurationError(
                f"relation {source}.{self.name} is kept by the engine {self.engine}, which has no snapshots; "
                f"leave it out, or ALTER TABLE {quote(self.name)} ENGINE = InnoDB"
            )
        columns = shown_columns(source, self.name, self.columns)
        return RelationSchema(self.name, columns, self.key, self.row_estimate)

    def capturable(self, source: str) -> None:
        """ConfigurationError if changes of this table would not all be seen."""
        self.shown(source)
        if self.cascade is not None:
            raise ConfigurationError(
                f"relation {source}.{self.name} has the cascading foreign key {self.cascade!r}: MariaDB "
                "changes rows by it without telling triggers or the binlog; use RESTRICT, or leave it out"
            )


@dataclass(frozen=True)
class SourceTables:
    """Every base table of the database at one moment, by name."""

    source: str
    database: str
    tables: Mapping[str, SourceTable]

    def select(self, names: Iterable[str] | None) -> list[SourceTable]:
        """The tables of these names, or all; ConfigurationError lists what exists if one does not."""
        return list(chosen_relations(self.source, self.tables, names).values())

    def catalog(self, names: Sequence[str] | None) -> Catalog:
        """What the source shows: the named relations, or all."""
        return Catalog(self.source, {table.name: table.shown(self.source) for table in self.select(names)})

    def path(self, name: str) -> str:
        """The qualified, quoted name of one of the tables."""
        return path(self.database, name)


class CatalogReader:
    """Reads the database's tables as they are now."""

    def __init__(self, source: str, database: str, exclude: frozenset[str], *, booleans: bool) -> None:
        self._source = source
        self._database = database
        self._exclude = exclude
        self._booleans = booleans

    def read(self, connection: Connection) -> SourceTables:
        """Every base table that the user may read."""
        database = [self._database]
        columns: dict[str, list[SourceColumn]] = {}
        for row in connection.rows(_COLUMNS, database):
            columns.setdefault(row[0], []).append(self._column(row, len(columns.get(row[0], ()))))
        indexes: dict[str, dict[str, list[tuple[object, ...]]]] = {}
        for table, index, *part in connection.rows(_INDEXES, database):
            indexes.setdefault(table, {}).setdefault(index, []).append(tuple(part))
        cascades: dict[str, str] = dict(connection.rows(_CASCADES, database))
        tables = {}
        for name, engine, rows, auto_increment, defined in connection.rows(_TABLES, database):
            if name.startswith(OWN_PREFIX):
                continue
            every = tuple(columns.get(name, ()))
            tables[name] = SourceTable(
                name=name,
                engine=engine or "none",
                all_columns=every,
                columns=tuple(c for c in every if f"{name}.{c.name}" not in self._exclude),
                indexes=tuple(_index(parts) for parts in indexes.get(name, {}).values()),
                cascade=cascades.get(name),
                row_estimate=int(rows or 0),
                auto_increment=auto_increment,
                defined=str(defined or ""),
            )
        return SourceTables(self._source, self._database, tables)

    def _column(self, row: tuple[object, ...], place: int) -> SourceColumn:
        _, name, bare, declared, charset, collation, nullable, computed, extra = (
            "" if value is None else str(value) for value in row
        )
        shown = column_type(bare, declared, charset, collation, show_booleans=self._booleans)
        text = f"{declared} {charset}" if charset and bare not in ("enum", "set") else declared
        if computed:
            text = f"{text} AS ({computed})"  # of a virtual one, another expression has other values at once
        return SourceColumn(
            name=name,
            declared=text,
            nullable=nullable == "YES",
            type=shown,
            place=place,
            virtual="VIRTUAL GENERATED" in extra.upper(),
            compressed="COMPRESSED" in declared.upper(),
        )


def _index(parts: Sequence[tuple[object, ...]]) -> Index:
    """An index as far as its columns are indexed as a whole and in a B-tree."""
    whole: list[str] = []
    for _, column, part, kind in parts:
        if part is not None or column is None or kind != "BTREE":
            return Index(tuple(whole), False)
        whole.append(str(column))
    return Index(tuple(whole), not parts[0][0])
