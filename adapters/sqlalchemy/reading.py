"""Rows of a relation as Arrow batches, a chunk at a time.

A relation with a key of integers is read in pages by that key: short statements, each by the primary key's
index, that no time limit ends and that any driver fetches without holding the whole result. Other keys are
not paged by: text may sort by rules that a value sent back does not follow, times may be cut off on the way,
and either would skip rows. Such relations are read by one statement through a server-side cursor.

How many rows a chunk has follows from how large they are: rows of a mebibyte come by the dozen.

Drivers give tuples. They are turned into columns at once and never touched one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection, Select

from adapters.shadow.extent import ArrowExtent, Extent
from adapters.shadow.history import Shape
from adapters.shadow.store import SourceState
from adapters.sqlalchemy.catalog import SourceRelation, SourceTables
from adapters.sqlalchemy.database import Database
from algebra.errors import DataError
from algebra.schema import RelationSchema

FIRST_ROWS = 1_000
FEWEST_ROWS = 16
CHUNK_BYTES = 16 << 20
KEYS_PER_STATEMENT = 400
"""Below the fewest parameters, and the longest list, that a database takes."""


class ReadState(SourceState):
    """The database as one read transaction shows it."""

    def __init__(
        self, database: Database, connection: Connection, tables: SourceTables, chunk_rows: int
    ) -> None:
        self.tables = tables
        self._database = database
        self._connection = connection
        self._chunk_rows = chunk_rows

    @property
    def shapes(self) -> Mapping[str, Shape]:
        return {name: relation.shape for name, relation in self.tables.relations.items()}

    def schema(self, relation: str) -> RelationSchema:
        (found,) = self.tables.select([relation])
        return found.shown(self.tables.source)

    def rows(self, relation: str) -> Extent:
        found = self.tables.relations[relation]
        return self._extent(found, [column.name for column in found.columns])

    def versions(self, relation: str, hint: str) -> Extent:
        """The key and the hint of all rows."""
        found = self.tables.relations[relation]
        return self._extent(found, [*found.key, hint])

    def rows_of(self, relation: str, keys: pa.Table) -> Extent:
        """The rows with these keys."""
        found = self.tables.relations[relation]
        columns = [column.name for column in found.columns]
        return ArrowExtent(relation, found.arrow(columns), self._by_keys(found, columns, keys))

    def _extent(self, relation: SourceRelation, columns: Sequence[str]) -> Extent:
        paged = bool(relation.key) and all(relation.type_of(name).is_number for name in relation.key)
        batches = self._pages(relation, columns) if paged else self._stream(relation, columns)
        return ArrowExtent(relation.name, relation.arrow(columns), batches)

    def _pages(self, relation: SourceRelation, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        table = relation.table
        outputs = list(dict.fromkeys([*columns, *relation.key]))
        places = [outputs.index(name) for name in relation.key]
        order = [relation.read(table, name) for name in relation.key]
        query = self._select(relation, table, outputs).order_by(*order)
        size = _ChunkSize(self._chunk_rows)
        last: tuple[Any, ...] | None = None
        while True:
            page = query if last is None else query.where(_after(order, last))
            limit = size.rows
            rows = self._fetch(relation, page.limit(limit))
            if rows:
                last = tuple(rows[-1][place] for place in places)
                yield size.seen(self._batch(relation, columns, rows))
            if len(rows) < limit:
                return

    def _stream(self, relation: SourceRelation, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        query = self._select(relation, relation.table, columns)
        size = _ChunkSize(self._chunk_rows)
        self._database.spend()
        with self._converting(relation):
            options = {"stream_results": True, "max_row_buffer": FIRST_ROWS}
            result = self._connection.execute(query, execution_options=options)
            try:
                while rows := result.fetchmany(size.rows):
                    yield size.seen(self._batch(relation, columns, rows))
            finally:
                result.close()

    def _by_keys(
        self, relation: SourceRelation, columns: Sequence[str], keys: pa.Table
    ) -> Iterator[pa.RecordBatch]:
        table = relation.table
        query = self._select(relation, table, columns)
        parts = [relation.read(table, name) for name in relation.key]
        count = max(1, KEYS_PER_STATEMENT // len(parts))
        for start in range(0, keys.num_rows, count):
            chunk = zip(*(column.to_pylist() for column in keys.slice(start, count).columns), strict=True)
            rows = self._fetch(relation, query.where(_among(parts, list(chunk))))
            yield self._batch(relation, columns, rows)

    def _select(
        self, relation: SourceRelation, table: sa.TableClause, columns: Sequence[str]
    ) -> Select[tuple[Any, ...]]:
        # By number: two columns that differ in case only would be one to some databases.
        return sa.select(*(relation.read(table, name).label(f"c{i}") for i, name in enumerate(columns)))

    def _fetch(
        self, relation: SourceRelation, query: Select[tuple[Any, ...]]
    ) -> Sequence[sa.Row[tuple[Any, ...]]]:
        self._database.spend()
        with self._converting(relation):
            return self._connection.execute(query).fetchall()

    @contextmanager
    def _converting(self, relation: SourceRelation) -> Iterator[None]:
        """What drivers raise, also for values that are not of their column's type, as errors of ours."""
        try:
            with self._database.translated():
                yield
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            misfit = (
                f"relation {self.tables.source}.{relation.name} has a value that does not fit its declared "
                "type"
            )
            raise DataError(f"{misfit}: {str(error).splitlines()[0]}", told=misfit) from error

    def _batch(
        self, relation: SourceRelation, columns: Sequence[str], rows: Sequence[sa.Row[tuple[Any, ...]]]
    ) -> pa.RecordBatch:
        schema = relation.arrow(columns)
        values = zip(*rows, strict=True) if rows else ((),) * len(columns)
        arrays = [
            _array(self.tables.source, relation.name, field, column)
            for field, column in zip(schema, values, strict=False)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _ChunkSize:
    """How many rows to fetch next, so that a chunk is about `CHUNK_BYTES`, and at most so many rows."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.rows = min(FIRST_ROWS, most)

    def seen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        each = max(1, batch.nbytes // max(1, batch.num_rows))
        self.rows = max(min(CHUNK_BYTES // each, self._most), min(FEWEST_ROWS, self._most))
        return batch


def _array(source: str, relation: str, field: pa.Field, values: Sequence[Any]) -> pa.Array:
    try:
        if pa.types.is_boolean(field.type):
            # Databases without such a type have 0 and 1; anything else is no truth value.
            return _booleans(values)
        return pa.array(values, field.type)
    except (
        pa.ArrowInvalid,
        pa.ArrowTypeError,
        pa.ArrowNotImplementedError,
        OverflowError,
        ValueError,
    ) as error:
        line = str(error).splitlines()[0]
        misfit = f"column {source}.{relation}.{field.name} has a value that is no {field.type}"
        raise DataError(f"{misfit}: {line}", told=misfit) from error


def _booleans(values: Sequence[Any]) -> pa.Array:
    wrong = set(values) - {None, True, False}
    if wrong:
        raise ValueError(f"{wrong.pop()!r} is neither 0 nor 1")
    return pa.array([None if value is None else bool(value) for value in values], pa.bool_())


def _after(parts: Sequence[Any], last: Sequence[Any]) -> sa.ColumnElement[bool]:
    """The condition for rows after this key, in the key's order."""
    alternatives = [
        sa.and_(*(parts[j] == last[j] for j in range(i)), parts[i] > last[i]) for i in range(len(parts))
    ]
    return sa.or_(*alternatives)


def _among(parts: Sequence[Any], keys: Sequence[tuple[Any, ...]]) -> sa.ColumnElement[bool]:
    """The condition for rows with one of these keys."""
    if len(parts) == 1:
        return parts[0].in_([key[0] for key in keys])  # type: ignore[no-any-return]
    return sa.or_(
        *(sa.and_(*(part == value for part, value in zip(parts, key, strict=True))) for key in keys)
    )
