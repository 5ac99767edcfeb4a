"""Localized processor: a maintenance query (MQ) in terms of the source's own relations (LMQ).

The MQ speaks of a local view's columns; the LMQ is that local view, merged with the MQ's keys, so that the
source can answer it as one query in one snapshot. Whatever the MQ names must be in the local view that was
defined before: nothing else can be asked for.

Reference: wrapper paper, section 4.1 and Figure 9.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import duckdb
import pyarrow as pa
from sqlglot import exp

from adapters.spi import Snapshot
from algebra.arrow_ipc import from_ipc
from algebra.assembly import predicate_to_sql
from algebra.errors import DataError, RefusedError
from algebra.expressions import ColumnRef, column_refs
from algebra.local_view import Keys, LocalView, OutputColumn
from protos.lockstep.v1 import wrapper_pb2


@dataclass(frozen=True)
class LocalizedQuery:
    """LMQ: what the source is asked.

    `query` may show more columns than the local view: those its predicates read, so that they can be
    applied here with one meaning for every source.
    """

    query: LocalView
    keys: Keys | None
    condition: str | None
    columns: tuple[str, ...]

    def answer(self, snapshot: Snapshot) -> Iterator[pa.RecordBatch]:
        """LMQR: the rows of the local view, in batches, read in the given snapshot."""
        reader = snapshot.fetch(self.query, self.keys)
        if self.condition is None:
            yield from reader
            return
        schema = pa.schema([self.query.arrow.field(name) for name in self.columns])
        with duckdb.connect() as connection:
            for batch in reader:
                connection.register("rows", pa.Table.from_batches([batch]))
                shown = ", ".join(_quoted(name) for name in self.columns)
                try:
                    found = connection.sql(
                        f"SELECT {shown} FROM rows WHERE {self.condition}"
                    ).to_arrow_table()
                except (duckdb.DataError, duckdb.ProgrammingError, duckdb.NotSupportedError):
                    # Its words would repeat a value.
                    raise DataError(
                        f"local view {self.query.name!r}: its predicates cannot be decided for some row"
                    ) from None
                yield from found.cast(schema).to_batches()


def localize(view: LocalView, keys: Keys | None) -> LocalizedQuery:
    """The LMQ for a local view and the keys of an MQ."""
    names = tuple(c.name for c in view.columns)
    if not view.predicates:
        return LocalizedQuery(view, keys, None, names)
    shown = {c.source: c.name for c in view.columns}
    extra: list[OutputColumn] = []
    for predicate in view.predicates:
        for ref in column_refs(predicate):
            if ref not in shown:
                shown[ref] = f"_lockstep_{len(shown)}"
                extra.append(OutputColumn(shown[ref], ref, pa.null()))
    return LocalizedQuery(
        replace(view, columns=(*view.columns, *extra)), keys, _condition(view, shown), names
    )


def with_types(localized: LocalizedQuery, types: Mapping[ColumnRef, pa.DataType]) -> LocalizedQuery:
    """The LMQ with the types of the columns that its predicates read, from the source's catalog."""
    columns = tuple(
        replace(c, type=types[c.source]) if pa.types.is_null(c.type) else c for c in localized.query.columns
    )
    return replace(localized, query=replace(localized.query, columns=columns))


def keys_of(query: wrapper_pb2.MaintenanceQuery, view: LocalView) -> Keys | None:
    """The keys of an MQ, checked against the local view; RefusedError if they do not fit."""
    columns = tuple(query.key_columns)
    if not columns:
        return None
    known = {c.name: c.type for c in view.columns}
    for column in columns:
        if column not in known:
            raise RefusedError(f"local view {view.name!r} has no column {column!r}")
    values = from_ipc(query.arrow)
    expected = pa.schema([pa.field(c, known[c]) for c in columns])
    if values.schema.names != expected.names or values.schema.types != expected.types:
        raise RefusedError(f"the keys for local view {view.name!r} do not have its columns' types")
    return Keys(columns, values)


def _condition(view: LocalView, shown: Mapping[ColumnRef, str]) -> str:
    node_of = {occurrence.alias: i for i, occurrence in enumerate(view.occurrences)}
    alias_of = {i: alias for alias, i in node_of.items()}

    def rename(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Column):
            name = shown[ColumnRef(alias_of[int(part.table[1:])], part.name)]
            return exp.column(exp.to_identifier(name, quoted=True))
        return part

    conditions = [exp.paren(predicate_to_sql(p, node_of).transform(rename)) for p in view.predicates]
    return exp.and_(*conditions).sql(dialect="duckdb")


def _quoted(name: str) -> str:
    return exp.to_identifier(name, quoted=True).sql(dialect="duckdb")
