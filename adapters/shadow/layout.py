"""The tables of a shadow file, and the statements that make and drop them.

    meta       one row: the layout's format, the epoch of this capture, how far it was trimmed, the mark
               there, and the database that is shadowed
    relations  the prepared relations: shape, stored types, key, and a note that belongs to their state
    cycles     one row per cycle that found a difference: its ordinal and its mark
    state_<n>  relation n as last seen: every distinct row with its number of copies
    diff_<n>   what cycles found: rows with the number of copies that came (+) or went (-)
    recent_<n> keys of relation n whose hint is too fresh to be believed, with the time they were seen first

Columns go by number, so that no name can clash with ours or with one that differs only by case.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import duckdb
import pyarrow as pa

from adapters.shadow.extent import Extent
from adapters.shadow.history import Shape
from adapters.shadow.sql import NEW_EPOCH, path, text
from adapters.shadow.types import FLOATS, arrow_type, duckdb_name
from algebra.errors import ConfigurationError
from algebra.schema import RelationSchema

SHADOW = "shadow"
"""The name a shadow file is attached by."""

FORMAT = 1
"""Counts up when the tables change their meaning."""

DATABASE = "database"
"""The column of `meta` that says what is shadowed; shadows that were made before there was one have none."""

META = path(SHADOW, "main", "meta")
RELATIONS = path(SHADOW, "main", "relations")
CYCLES = path(SHADOW, "main", "cycles")
_ROWS = "$rows"


@dataclass(frozen=True)
class Step:
    """One statement on the shadow; `rows` is what it loads, if it loads something."""

    sql: str
    rows: Extent | None = None

    def __str__(self) -> str:
        return self.sql.replace(_ROWS, self.rows.text) if self.rows else self.sql

    def run(self, connection: duckdb.DuckDBPyConnection) -> None:
        if self.rows is None:
            connection.execute(self.sql)
            return
        with self.rows.scanned(connection) as rows:
            connection.execute(self.sql.replace(_ROWS, rows))


@dataclass(frozen=True)
class Kept:
    """One relation as the shadow knows it; what `fetch` reads.

    `stored`: the DuckDB types of its columns. `note`: whatever the adapter wrote with the state.
    """

    number: int
    name: str
    shape: Shape
    stored: tuple[str, ...]
    key: tuple[str, ...]
    note: str = ""

    @classmethod
    def of(cls, source: str, number: int, schema: RelationSchema, shape: Shape) -> Kept:
        """The relation as it is to be kept; ConfigurationError if a column's type cannot be."""
        stored = []
        for column in schema.columns:
            name = duckdb_name(column.type)
            if name is None:
                raise ConfigurationError(
                    f"column {source}.{schema.name}.{column.name} of type {column.type} cannot be kept in a "
                    f"shadow; name it in option `exclude` as {schema.name}.{column.name}"
                )
            stored.append(name)
        return cls(number, schema.name, shape, tuple(stored), schema.key)

    @cached_property
    def columns(self) -> list[str]:
        return [f"c{i}" for i in range(len(self.shape))]

    @property
    def key_columns(self) -> list[str]:
        return [self.column(name) for name in self.key]

    @property
    def identity(self) -> list[str]:
        """Expressions over `columns` that tell any two rows apart: 0.0 equals -0.0, but is another row."""
        zeros = [f"signbit(c{i})" for i, stored in enumerate(self.stored) if stored in FLOATS]
        return self.columns + zeros

    @property
    def cast(self) -> str:
        """The columns of a scan, each as the type it is stored by."""
        return ", ".join(
            f"CAST({c} AS {stored}) AS {c}" for c, stored in zip(self.columns, self.stored, strict=True)
        )

    @property
    def arrow(self) -> pa.Schema:
        names = [name for name, _ in self.shape]
        return pa.schema(
            [pa.field(name, arrow_type(stored)) for name, stored in zip(names, self.stored, strict=True)]
        )

    def column(self, name: str) -> str:
        """The stored column of a relation's column."""
        return f"c{next(i for i, (shown, _) in enumerate(self.shape) if shown == name)}"

    @property
    def state(self) -> str:
        return path(SHADOW, "main", f"state_{self.number}")

    @property
    def diff(self) -> str:
        return path(SHADOW, "main", f"diff_{self.number}")

    @property
    def recent(self) -> str:
        return path(SHADOW, "main", f"recent_{self.number}")

    def origin(self, alias: str) -> str:
        if self.key:
            return f"{self.state} AS {alias}"
        columns = ", ".join(self.columns)
        return (
            f"(SELECT {columns} FROM {self.state} WHERE copies = 1 UNION ALL "
            f"SELECT {columns} FROM {self.state}, unnest(range(copies)) WHERE copies > 1) AS {alias}"
        )

    def read(self, column: str, alias: str) -> str:
        return f"{alias}.{self.column(column)}"


def create_base(database: str) -> Iterator[Step]:
    """The tables of a shadow without any relation."""
    yield Step(
        f"CREATE TABLE {META} AS SELECT {FORMAT} AS format, {NEW_EPOCH} AS epoch, "
        f"0::BIGINT AS trimmed, '' AS mark, {text(database)} AS {DATABASE}"
    )
    yield Step(
        f"CREATE TABLE {RELATIONS} (number INTEGER, relation VARCHAR, definition VARCHAR, note VARCHAR)"
    )
    yield Step(f"CREATE TABLE {CYCLES} (ordinal BIGINT, mark VARCHAR)")


def create_relation(kept: Kept, rows: Extent) -> Iterator[Step]:
    """The tables of one relation, and its first state."""
    declared = [f"{c} {stored}" for c, stored in zip(kept.columns, kept.stored, strict=True)]
    names = ", ".join(kept.columns)
    yield Step(f"CREATE TABLE {kept.state} (copies BIGINT, {', '.join(declared)})")
    yield Step(f"CREATE TABLE {kept.diff} (ordinal BIGINT, copies BIGINT, {', '.join(declared)})")
    if kept.key:
        keys = [declared[kept.columns.index(c)] for c in kept.key_columns]
        yield Step(f"CREATE TABLE {kept.recent} (seen DOUBLE, {', '.join(keys)})")
    yield Step(
        f"INSERT INTO {kept.state} SELECT count(*), {names} FROM (SELECT {kept.cast} FROM {_ROWS}) "
        f"GROUP BY {', '.join(kept.identity)}",
        rows,
    )
    definition = json.dumps([kept.shape, kept.stored, kept.key], ensure_ascii=False)
    yield Step(f"INSERT INTO {RELATIONS} VALUES ({kept.number}, {text(kept.name)}, {text(definition)}, '')")


def note_database(database: str) -> Step:
    """Note what is shadowed in a shadow that says nothing of it."""
    return Step(f"ALTER TABLE {META} ADD COLUMN {DATABASE} VARCHAR DEFAULT {text(database)}")


def drop_relation(kept: Kept) -> Iterator[Step]:
    yield Step(f"DROP TABLE {kept.state}")
    yield Step(f"DROP TABLE {kept.diff}")
    if kept.key:
        yield Step(f"DROP TABLE {kept.recent}")
    yield Step(f"DELETE FROM {RELATIONS} WHERE number = {kept.number}")


def new_epoch(healthy: list[Kept]) -> Iterator[Step]:
    """Give up the history kept so far; ordinals go on, so that positions never go backwards."""
    yield Step(
        f"UPDATE {META} SET epoch = {NEW_EPOCH}, mark = '', "
        f"trimmed = greatest(trimmed, coalesce((SELECT max(ordinal) FROM {CYCLES}), 0))"
    )
    yield Step(f"DELETE FROM {CYCLES}")
    for kept in healthy:
        yield Step(f"DELETE FROM {kept.diff}")


def read_definition(number: int, name: str, definition: str, note: str) -> Kept:
    """The relation that `create_relation` wrote down."""
    shape, stored, key = json.loads(definition)
    return Kept(number, name, tuple((n, d) for n, d in shape), tuple(stored), tuple(key), note)
