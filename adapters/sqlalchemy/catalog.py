"""What the database holds, as one read transaction reflects it: tables as relations, with keys and types."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine.reflection import Inspector, ObjectKind
from sqlalchemy.exc import SAWarning

from adapters.relations import chosen_relations, shown_columns
from adapters.shadow.history import Shape
from adapters.shadow.types import duckdb_name
from adapters.sqlalchemy.dialects import SNAPSHOT_STORAGE, Place
from adapters.sqlalchemy.options import NO_ISOLATION, Options
from adapters.sqlalchemy.types import ColumnType, Expression, column_type
from algebra.errors import ConfigurationError
from algebra.schema import Catalog, RelationSchema


@dataclass(frozen=True)
class SourceColumn:
    """A column with its declared type in words, and how it is shown; `type` is None if it cannot be."""

    name: str
    declared: str
    nullable: bool
    type: ColumnType | None


@dataclass(frozen=True)
class SourceRelation:
    """A table or view: the relation it is shown as, and how it is read.

    `flaw` says why it cannot be captured, if so.
    """

    name: str
    place: Place
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    flaw: str = ""

    @property
    def shape(self) -> Shape:
        return tuple((column.name, column.declared) for column in self.columns)

    @property
    def table(self) -> sa.TableClause:
        schema, name = self.place
        columns: list[sa.ColumnClause[Any]] = [sa.column(column.name) for column in self.columns]
        return sa.table(name, *columns, schema=schema)

    def type_of(self, column: str) -> ColumnType:
        """How a column is shown; only for relations that can be."""
        found = next(c for c in self.columns if c.name == column).type
        assert found is not None, f"{self.name}.{column} cannot be shown"
        return found

    def read(self, table: sa.TableClause, column: str) -> Expression:
        """The expression that reads a column of the table as the type it is shown by."""
        return self.type_of(column).read(table.c[column])

    def arrow(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([pa.field(name, self.type_of(name).arrow) for name in columns])

    def shown(self, source: str) -> RelationSchema:
        """The relation's schema; ConfigurationError if it or a column cannot be shown."""
        flaw = self.flaw or ("" if self.columns else "shows no column; leave it out")
        if flaw:
            raise ConfigurationError(f"relation {source}.{self.name} {flaw}")
        columns = shown_columns(
            source, self.name, self.columns, is_supported=lambda type_: duckdb_name(type_) is not None
        )
        return RelationSchema(self.name, columns, self.key)


@dataclass(frozen=True)
class SourceTables:
    """Every table at one moment, by relation name, and the views that are configured."""

    source: str
    relations: Mapping[str, SourceRelation]

    def select(self, names: Iterable[str] | None) -> list[SourceRelation]:
        """The relations of these names, or all; ConfigurationError lists what exists if one does not."""
        none = "none that this user may read"
        return list(chosen_relations(self.source, self.relations, names, none=none).values())

    def catalog(self, names: Sequence[str] | None) -> Catalog:
        """What the source shows: the named relations, or all."""
        return Catalog(self.source, {r.name: r.shown(self.source) for r in self.select(names)})

    def present(self, names: Sequence[str] | None) -> Catalog:
        """Of the named relations, or all, those that are there and can be shown."""
        shown = {}
        for name in self.relations if names is None else names:
            if name in self.relations:
                with suppress(ConfigurationError):
                    shown[name] = self.relations[name].shown(self.source)
        return Catalog(self.source, shown)


def read_tables(
    connection: Connection, source: str, options: Options, configured: Sequence[str] | None
) -> SourceTables:
    """The tables that the connection's user sees now, and those views that are configured by name."""
    inspector = sa.inspect(connection)
    relations: dict[str, SourceRelation] = {}
    with warnings.catch_warnings():
        # A type that SQLAlchemy does not know is reported here by the column that has it.
        warnings.simplefilter("ignore", SAWarning)
        for schema in (None, *options.schemas):
            for relation in _read_schema(inspector, source, schema, options, configured):
                if relation.name in relations:
                    raise ConfigurationError(f"source {source!r} has two tables called {relation.name!r}")
                relations[relation.name] = relation
    return SourceTables(source, relations)


def relation_name(schema: str | None, table: str) -> str:
    """How a table is called in Lockstep: tables of further schemas carry their schema."""
    return table if schema is None else f"{schema}.{table}"


def possible_places(relation: str, schemas: Iterable[str]) -> list[Place]:
    """Where a relation of that name may be, one of them at most.

    >>> possible_places("sales.orders", ["sales"])
    [(None, 'sales.orders'), ('sales', 'orders')]
    """
    return [(None, relation)] + [
        (schema, relation.removeprefix(f"{schema}."))
        for schema in schemas
        if relation.startswith(f"{schema}.")
    ]


def _read_schema(
    inspector: Inspector, source: str, schema: str | None, options: Options, configured: Sequence[str] | None
) -> Iterable[SourceRelation]:
    wanted = None if configured is None else set(configured)
    tables = inspector.get_table_names(schema)
    views = [] if wanted is None else inspector.get_view_names(schema)
    names = [n for n in tables + views if wanted is None or relation_name(schema, n) in wanted]
    if not names:
        return
    every = {"schema": schema, "filter_names": names, "kind": ObjectKind.ANY}
    columns = inspector.get_multi_columns(**every)  # type: ignore[arg-type]
    primary = inspector.get_multi_pk_constraint(**every)  # type: ignore[arg-type]
    unique = inspector.get_multi_unique_constraints(**every)  # type: ignore[arg-type]
    storage = _storage(inspector, every) if options.isolation != NO_ISOLATION else {}
    dialect = inspector.dialect.name
    for (_, name), found in columns.items():
        relation = relation_name(schema, name)
        shown = tuple(
            SourceColumn(
                str(c["name"]),
                _declared(inspector, c["type"]),
                bool(c.get("nullable", True)),
                column_type(dialect, c["type"], options.numeric_scale),
            )
            for c in found
            if f"{relation}.{c['name']}" not in options.exclude
        )
        declared_key = primary.get((schema, name))
        keys = [tuple(declared_key["constrained_columns"])] if declared_key else []
        keys += [tuple(u["column_names"]) for u in unique.get((schema, name)) or ()]
        yield SourceRelation(relation, (schema, name), shown, _first_key(shown, keys), storage.get(name, ""))


def _first_key(columns: Sequence[SourceColumn], keys: Sequence[tuple[str | None, ...]]) -> tuple[str, ...]:
    """The first key whose columns are all shown and never NULL; a key of floats tells no rows apart."""
    fit = {
        c.name
        for c in columns
        if not c.nullable and c.type is not None and not pa.types.is_floating(c.type.arrow)
    }
    chosen = next((key for key in keys if key and fit.issuperset(key)), ())
    return tuple(str(name) for name in chosen)


def _declared(inspector: Inspector, type_: sa.types.TypeEngine[Any]) -> str:
    try:
        return type_.compile(dialect=inspector.dialect)
    except Exception:
        # A type that SQLAlchemy cannot write, only read: its Python form tells it from others just as well.
        return repr(type_)


def _storage(inspector: Inspector, every: Mapping[str, Any]) -> dict[str, str]:
    """By table, why its storage cannot be read as of one snapshot, where the database has such tables."""
    if inspector.dialect.name not in ("mysql", "mariadb"):
        return {}
    flaws = {}
    for (_, name), options in inspector.get_multi_table_options(**every).items():
        engine = next((str(v) for k, v in options.items() if k.endswith("_engine")), "innodb")
        if engine.lower() not in SNAPSHOT_STORAGE:
            flaws[name] = (
                f"is stored by {engine}, which has no snapshots; convert it to InnoDB, leave it out, or say "
                f"`isolation: {NO_ISOLATION}`"
            )
    return flaws
