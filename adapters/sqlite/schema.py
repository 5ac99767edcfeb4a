"""What a SQLite database declares: tables, columns with their codecs, unique constraints, indexes."""

from __future__ import annotations

import json
from dataclasses import dataclass

from adapters.sqlite.connection import Connection
from adapters.sqlite.types import Codec, codec_for
from algebra.schema import Column, RelationSchema

OWN_PREFIX = "_lockstep_"
"""Everything Lockstep creates in a source starts with this."""


def quoted(identifier: str) -> str:
    """The identifier as SQL, whatever characters it has."""
    return '"' + identifier.replace('"', '""') + '"'


@dataclass(frozen=True)
class TableColumn:
    """One column of a base table."""

    name: str
    declared: str
    codec: Codec
    nullable: bool


@dataclass(frozen=True)
class IndexColumn:
    """One column of an index; `name` is None for an expression, `rowid` alias included."""

    name: str | None
    collation: str


@dataclass(frozen=True)
class Index:
    """An index or unique constraint."""

    columns: tuple[IndexColumn, ...]
    unique: bool
    partial: bool


@dataclass(frozen=True)
class BaseTable:
    """One base table as declared.

    `rowid` is SQL by which a row's rowid can be read, or None. `rowid_alias` is the column that is the
    rowid (INTEGER PRIMARY KEY), or None.
    """

    name: str
    columns: tuple[TableColumn, ...]
    primary_key: tuple[str, ...]
    without_rowid: bool
    rowid: str | None
    rowid_alias: str | None
    indexes: tuple[Index, ...]

    def column(self, name: str) -> TableColumn:
        return next(column for column in self.columns if column.name == name)

    @property
    def shape(self) -> str:
        """Everything about the columns on which capture depends, as comparable text."""
        return json.dumps([[column.name, column.declared] for column in self.columns])

    @property
    def key(self) -> tuple[str, ...]:
        """Columns that are never NULL and identify a row by value, or nothing."""
        candidates = [self.primary_key]
        candidates += [
            tuple(column.name or "" for column in index.columns)
            for index in self.indexes
            if index.unique and not index.partial and all(column.name for column in index.columns)
        ]
        for candidate in candidates:
            columns = [self.column(name) for name in candidate]
            if columns and all(not column.nullable and column.codec.plain for column in columns):
                return candidate
        return ()

    def leading_index(self, column: str) -> Index | None:
        """An index whose first column is this one, by binary collation; None if only a scan serves."""
        for index in self.indexes:
            first = index.columns[0]
            if first.name == column and first.collation == "BINARY" and not index.partial:
                return index
        return None

    def is_unique(self, column: str) -> bool:
        """True if no two rows share a value of this one column."""
        if self.rowid_alias == column:
            return True
        return any(
            index.unique and not index.partial and len(index.columns) == 1 and index.columns[0].name == column
            for index in self.indexes
        )

    def relation(self, row_estimate: int | None) -> RelationSchema:
        columns = tuple(Column(c.name, c.codec.arrow, c.nullable) for c in self.columns)
        return RelationSchema(self.name, columns, self.key, row_estimate)


def read_tables(connection: Connection) -> dict[str, BaseTable]:
    """Every base table by name: no views, no virtual or internal tables, none of Lockstep's own."""
    tables = connection.rows(
        "SELECT name, wr, strict FROM pragma_table_list WHERE schema = 'main' AND type = 'table' "
        "AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
    )
    return {
        name: _read_table(connection, name, bool(without_rowid), bool(strict))
        for name, without_rowid, strict in tables
        if not name.startswith(OWN_PREFIX)
    }


def _read_table(connection: Connection, name: str, without_rowid: bool, strict: bool) -> BaseTable:
    declarations = connection.rows(
        'SELECT name, type, "notnull", pk FROM pragma_table_xinfo(?) WHERE hidden <> 1 ORDER BY cid', [name]
    )
    places = {place: column for column, _, _, place in declarations if place}
    primary_key = tuple(places[place] for place in sorted(places))
    # A primary key without an index of its own is the rowid itself.
    has_key_index = connection.value("SELECT count(*) FROM pragma_index_list(?) WHERE origin = 'pk'", [name])
    alias = primary_key[0] if primary_key and not without_rowid and not has_key_index else None
    # Elsewhere SQLite lets NULL into primary keys.
    never_null = primary_key if without_rowid else (alias,)
    columns = tuple(
        TableColumn(
            column, declared, codec_for(declared, strict=strict), not (not_null or column in never_null)
        )
        for column, declared, not_null, _ in declarations
    )
    return BaseTable(
        name=name,
        columns=columns,
        primary_key=primary_key,
        without_rowid=without_rowid,
        rowid=None if without_rowid else _rowid_name(columns, alias),
        rowid_alias=alias,
        indexes=_read_indexes(connection, name),
    )


def _rowid_name(columns: tuple[TableColumn, ...], alias: str | None) -> str | None:
    if alias is not None:
        return quoted(alias)
    taken = {column.name.lower() for column in columns}
    return next((name for name in ("rowid", "_rowid_", "oid") if name not in taken), None)


def _read_indexes(connection: Connection, table: str) -> tuple[Index, ...]:
    rows = connection.rows(
        "SELECT l.name, l.\"unique\", l.partial, x.cid, coalesce(x.name, ''), coalesce(x.coll, 'BINARY') "
        "FROM pragma_index_list(?) AS l, pragma_index_xinfo(l.name) AS x WHERE x.key "
        "ORDER BY l.seq, x.seqno",
        [table],
    )
    indexes: dict[str, tuple[bool, bool, list[IndexColumn]]] = {}
    for index, unique, partial, place, column, collation in rows:
        entry = indexes.setdefault(index, (bool(unique), bool(partial), []))
        entry[2].append(IndexColumn(column if place >= 0 else None, collation.upper()))
    return tuple(Index(tuple(columns), unique, partial) for unique, partial, columns in indexes.values())


def row_estimate(connection: Connection, table: BaseTable) -> int | None:
    """Roughly how many rows the table has, without counting them: ANALYZE's word, or the largest rowid."""
    if connection.value("SELECT count(*) FROM pragma_table_list WHERE name = 'sqlite_stat1'"):
        known = connection.value(
            "SELECT max(CAST(stat AS INTEGER)) FROM sqlite_stat1 WHERE tbl = ?", [table.name]
        )
        if known is not None:
            return int(known)
    if table.rowid is None:
        return None
    largest = connection.value(f"SELECT max({table.rowid}) FROM {quoted(table.name)}")
    return max(0, int(largest or 0))


def right_edge(connection: Connection, table: str) -> list[int]:
    """The pages from a table's root down to its last leaf. Reads all of the table's pages."""
    pages = {
        tuple(int(step, 16) for step in path.split("/") if step): number
        for path, number in connection.rows(
            "SELECT path, pageno FROM dbstat WHERE name = ? AND pagetype IN ('internal', 'leaf')", [table]
        )
    }
    # The last leaf's path is the largest; that of each page above it is a beginning of it.
    last = max(pages)
    return [pages[last[:depth]] for depth in range(len(last) + 1)]
