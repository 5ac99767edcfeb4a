"""What the database holds: its tables as relations, with keys, types and size estimates.

Shown are ordinary and partitioned tables that are logged, with all their partitions. Not shown are:
partitions by themselves (their rows are the root's), tables with plain inheritance (whose rows would be in
two relations), unlogged, temporary and foreign tables, and what capture made.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from adapters.postgresql.connection import Session
from adapters.postgresql.options import LOG, Options
from adapters.postgresql.sql import path, quote, text
from adapters.postgresql.types import ColumnType, column_type
from adapters.relations import chosen_relations, shown_columns
from algebra.errors import ConfigurationError
from algebra.schema import Catalog, RelationSchema

OWN = "_lockstep"
"""The schema that holds capture's tables; names that begin like it are never shown."""

Shape = tuple[tuple[str, str, str], ...]
"""What must not change while changes are captured: columns with their types, then partitions, each with what
tells it from another of its name: the column's number; of a partition, its id and when it was attached."""

State = Mapping[str, Mapping[str, str]]
"""Of a table and its partitions, by id, what tells that something was done to them by whatever differs from
before: the `file` that holds the rows, when its `columns` were written to the catalog, capture's `triggers`,
and how the table is `published`."""

_TABLES = f"""
    SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, greatest(c.reltuples, 0)::int8,
           c.relreplident::text,
           coalesce((SELECT array_agg(p.relid::int8 || ' ' || i.xmin || ' ' || p.relid::regclass
                                      ORDER BY p.relid::regclass::text)
                     FROM pg_partition_tree(c.oid) p JOIN pg_inherits i ON i.inhrelid = p.relid
                     WHERE c.relkind = 'p'), '{{}}')
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND NOT c.relispartition
      AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
      AND left(n.nspname, {len(OWN)}) <> {text(OWN)} AND left(c.relname, {len(OWN)}) <> {text(OWN)}
      AND NOT EXISTS (SELECT FROM pg_inherits i WHERE c.relkind = 'r' AND c.oid IN (i.inhparent, i.inhrelid))
      AND NOT EXISTS (SELECT FROM pg_partition_tree(c.oid) p JOIN pg_class part ON part.oid = p.relid
                      WHERE c.relkind = 'p' AND part.relpersistence <> 'p')
      AND (%s::text[] IS NULL OR c.relname = ANY (%s) OR n.nspname || '.' || c.relname = ANY (%s))
    ORDER BY n.nspname = %s DESC, n.nspname, c.relname"""
_COLUMNS = """
    WITH RECURSIVE base AS (
        SELECT a.attrelid, a.attnum, t.typname, t.typtype, t.typcategory, t.typbasetype,
               CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END AS modifier
        FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
      UNION ALL
        SELECT b.attrelid, b.attnum, t.typname, t.typtype, t.typcategory, t.typbasetype,
               CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE b.modifier END
        FROM base b JOIN pg_type t ON t.oid = b.typbasetype WHERE b.typtype = 'd'
    )
    SELECT a.attrelid::int8, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
           a.attnum, b.typname, b.typtype::text, b.typcategory::text, b.modifier, a.attgenerated::text,
           a.attcollation::int8, coalesce(l.collisdeterministic, true)
    FROM pg_attribute a JOIN base b ON b.attrelid = a.attrelid AND b.attnum = a.attnum AND b.typtype <> 'd'
         LEFT JOIN pg_collation l ON l.oid = a.attcollation
    ORDER BY a.attrelid, a.attnum"""
_KEYS = """
    SELECT i.indrelid::int8, array_agg(a.attname ORDER BY k.place)
    FROM pg_index i CROSS JOIN unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
         JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indrelid = ANY (%s::oid[]) AND i.indisunique AND i.indisvalid AND i.indimmediate
      AND i.indpred IS NULL AND i.indexprs IS NULL AND k.place <= i.indnkeyatts
    GROUP BY i.indexrelid, i.indrelid, i.indisprimary
    HAVING bool_and(a.attnotnull)
    ORDER BY i.indrelid, i.indisprimary DESC, i.indexrelid"""


STATES = f"""
    SELECT c.oid::text AS oid, jsonb_build_object(
        'file', c.relfilenode::text,
        'columns', (SELECT string_agg(a.xmin::text, ',' ORDER BY a.attnum) FROM pg_attribute a
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
        'triggers', (SELECT string_agg(concat_ws(' ', t.oid, t.xmin, t.tgenabled), ',' ORDER BY t.oid)
                     FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
                          JOIN pg_namespace n ON n.oid = p.pronamespace
                     WHERE t.tgrelid = c.oid AND n.nspname = {text(OWN)}),
        'published', (SELECT string_agg(concat_ws(' ', r.oid, r.xmin, p.oid, p.xmin), ',')
                      FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
                      WHERE r.prrelid = c.oid AND p.pubname = {text(OWN)})) AS state
    FROM pg_class c"""
"""SQL: the states of tables, one row each; `xmin` is the transaction that wrote a row of a catalog."""


@dataclass(frozen=True)
class SourceColumn:
    """A column with its declared type and how that is shown; `type` is None if it cannot be."""

    name: str
    declared: str
    nullable: bool
    type: ColumnType | None
    collation: int = 0
    deterministic: bool = True

    @property
    def known(self) -> ColumnType:
        if self.type is None:
            raise ConfigurationError(f"column {self.name!r} has type {self.declared}, which is not supported")
        return self.type

    def raw(self, alias: str) -> str:
        """The column as it is."""
        return f"{quote(alias)}.{quote(self.name)}"

    def shown(self, alias: str) -> str:
        """The expression that reads the column as the type it is shown by."""
        return self.known.read.format(self.raw(alias))

    def compared(self, alias: str) -> str:
        """The expression to compare with a key or another column, by value, text by its bytes."""
        if not self.known.is_text:
            return self.raw(alias) if self.known.native else self.shown(alias)
        # Equality under any deterministic collation is equality of bytes, and the column's own has the index.
        if self.known.native and self.deterministic:
            return self.raw(alias)
        return f'({self.shown(alias)} COLLATE "C")'


@dataclass(frozen=True)
class SourceRelation:
    """A table: the relation it is shown as, and what it is in PostgreSQL.

    `partitions`: of a partitioned table, all below it, quoted as the server does. `oids`: of
    the table and its partitions. `identity`: the replica
    identity of an ordinary table. `all_columns`: those that are not shown, too, in order. `attached`: of each
    partition, what tells it from another of its name.
    """

    name: str
    oid: int
    schema: str
    table: str
    columns: tuple[SourceColumn, ...]
    all_columns: Shape
    key: tuple[str, ...]
    partitioned: bool
    partitions: tuple[str, ...]
    attached: tuple[str, ...]
    oids: tuple[int, ...]
    identity: str
    row_estimate: int
    state: State

    @property
    def qualified(self) -> str:
        return path(self.schema, self.table)

    @property
    def tables(self) -> tuple[str, ...]:
        """The table, and every partition of it."""
        return (self.qualified, *self.partitions)

    @property
    def scanned(self) -> str:
        """The table in a FROM clause."""
        return self.qualified if self.partitioned else f"ONLY {self.qualified}"

    @property
    def shape(self) -> Shape:
        named = zip(self.partitions, self.attached, strict=True)
        partitions = ((f"partition {name}", "", attached) for name, attached in named)
        return (*self.all_columns, *partitions)

    def column(self, name: str) -> SourceColumn:
        return next(column for column in self.columns if column.name == name)

    def schema_shown(self, source: str) -> RelationSchema:
        """The relation's schema; ConfigurationError if a column cannot be shown."""
        columns = shown_columns(source, self.name, self.columns)
        return RelationSchema(self.name, columns, self.key, self.row_estimate)


@dataclass(frozen=True)
class SourceTables:
    """Tables of the database at one moment, by relation name."""

    source: str
    relations: Mapping[str, SourceRelation]

    def select(self, names: Iterable[str] | None) -> list[SourceRelation]:
        """The relations of these names, or all; ConfigurationError lists what exists if one does not."""
        return list(chosen_relations(self.source, self.relations, names).values())

    def catalog(self, names: Sequence[str] | None) -> Catalog:
        """What the source shows: the named relations, or all."""
        return Catalog(self.source, {r.name: r.schema_shown(self.source) for r in self.select(names)})


def read_tables(session: Session, options: Options, names: Sequence[str] | None) -> SourceTables:
    """The tables as the session's transaction sees them: those of these relation names, or all."""
    only = None if names is None else [*names, *(name.partition(".")[2] for name in names)]
    tables = session.rows(_TABLES, [only, only, only, options.schema])
    oids = [row[0] for row in tables]
    columns: dict[int, list[SourceColumn]] = {}
    all_columns: dict[int, list[tuple[str, str, str]]] = {}
    names_of = {row[0]: relation_name(options.schema, row[1], row[2]) for row in tables}
    for row in session.rows(_COLUMNS, [oids]):
        oid, name, declared, not_null, number, base, kind, category, modifier, generated, *collation = row
        all_columns.setdefault(oid, []).append((name, declared, str(number)))
        if f"{names_of[oid]}.{name}" in options.exclude or (generated and options.capture == LOG):
            continue  # pgoutput does not send generated columns
        shown = column_type(base, kind, category, modifier, options.numeric_scale)
        columns.setdefault(oid, []).append(SourceColumn(name, declared, not not_null, shown, *collation))
    keys: dict[int, list[tuple[str, ...]]] = {}
    for oid, key in session.rows(_KEYS, [oids]):
        keys.setdefault(oid, []).append(tuple(key))
    parts = {row[0]: [partition.split(" ", 2) for partition in row[-1]] for row in tables}
    every = [*oids, *(int(part) for found in parts.values() for part, _, _ in found)]
    states = dict(session.rows(f"{STATES} WHERE c.oid = ANY (%s::oid[])", [every]))
    relations: dict[str, SourceRelation] = {}
    for oid, schema, table, kind, estimate, identity, _ in tables:
        name = names_of[oid]
        if names is not None and name not in names:
            continue
        if name in relations:
            raise ConfigurationError(f"source {session.source!r} has two tables that are called {name!r}")
        shown_columns = tuple(columns.get(oid, ()))
        present = {column.name for column in shown_columns}
        relations[name] = SourceRelation(
            name=name,
            oid=oid,
            schema=schema,
            table=table,
            columns=shown_columns,
            all_columns=tuple(all_columns.get(oid, ())),
            key=next((key for key in keys.get(oid, ()) if present.issuperset(key)), ()),
            partitioned=kind == "p",
            partitions=tuple(part[2] for part in parts[oid]),
            attached=tuple(f"{part[0]} {part[1]}" for part in parts[oid]),
            oids=(oid, *(int(part[0]) for part in parts[oid])),
            identity=identity,
            row_estimate=estimate,
            state={str(own): states[str(own)] for own in (oid, *(int(part[0]) for part in parts[oid]))},
        )
    return SourceTables(session.source, relations)


def relation_name(default: str, schema: str, table: str) -> str:
    """How a table is called in Lockstep: tables outside of the default schema carry their schema.

    >>> relation_name("public", "public", "t"), relation_name("public", "crm", "t")
    ('t', 'crm.t')
    """
    return table if schema == default else f"{schema}.{table}"
