"""A local view as one SELECT, answered by ADBC as Arrow batches inside an open snapshot.

Everything a caller sent is either a quoted name that the catalog knows or a bound value; nothing else
becomes SQL text. Key values are bound as arrays, one per key column, and semi-joined: no temporary table,
no write right, and the planner knows how many there are. Very many are asked for in chunks. Keys are
distinct, so no row comes twice; of floats, where two zeros are one value, the keys are made distinct by
value first.

One connection carries one running answer. A second fetch before the first was read to its end reads the
rest of the first into memory.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from adapters.postgresql.catalog import SourceColumn, SourceTables
from adapters.postgresql.connection import ArrowSession, translated
from adapters.postgresql.sql import quote
from algebra.errors import SourceUnavailableError
from algebra.expressions import Call, ColumnRef, Expression, Literal, Operator
from algebra.local_view import Keys, LocalView

CHUNK_KEYS = 50_000
CHUNK_BYTES = 32 << 20


class Fetch:
    """One running answer. `close` makes reading on an error, `drain` reads the rest ahead."""

    def __init__(
        self,
        session: ArrowSession,
        tables: SourceTables,
        query: LocalView,
        keys: Keys | None,
        spend: Callable[[], None],
    ) -> None:
        self._session = session
        self._source = session.source
        self._schema = query.arrow
        names = [(_relation(query, c.source), c.source.column) for c in query.columns]
        self._names = [f"{relation}.{column}" for relation, column in names]
        self._types = [tables.relations[relation].column(column).known for relation, column in names]
        self._spend = spend
        statement = Statement(tables, query)
        self._parts: Iterator[tuple[str, pa.RecordBatch | None]] = iter(
            [(statement.text(), statement.bound())] if keys is None else statement.by_keys(keys)
        )
        self._running: Generator[pa.RecordBatch, None, None] = self._answers()
        self._read_ahead: list[pa.RecordBatch] = []
        self._closed = False

    def reader(self) -> pa.RecordBatchReader:
        """The answer, with exactly the schema that was asked for."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def drain(self) -> None:
        """Read the rest into memory, so that the connection is free."""
        self._read_ahead += self._running

    def close(self) -> None:
        self._closed = True
        self._running.close()
        self._read_ahead = []

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            if self._closed:
                raise SourceUnavailableError(
                    f"source {self._source!r}: the snapshot was left before its answer was read"
                )
            if self._read_ahead:
                yield self._read_ahead.pop(0)
                continue
            batch = next(self._running, None)
            if batch is None:
                return
            yield batch

    def _answers(self) -> Generator[pa.RecordBatch, None, None]:
        for statement, parameters in self._parts:
            self._spend()
            with translated(self._source):
                cursor: Any = self._session.cursor()
                try:
                    cursor.execute(statement, parameters=parameters)
                    reader = cursor.fetch_record_batch()
                    for batch in reader:
                        if batch.num_rows:
                            yield self._shown(batch)
                finally:
                    cursor.close()

    def _shown(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [
            type_.shown(column, name)
            for column, type_, name in zip(batch.columns, self._types, self._names, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class Statement:
    """The SELECT of a local view, with the values it binds."""

    def __init__(self, tables: SourceTables, query: LocalView) -> None:
        self._query = query
        self._relations = {o.alias: tables.relations[o.relation] for o in query.occurrences}
        self._values: list[pa.Scalar] = []
        columns = [
            f"{self._column(c.source).shown(c.source.occurrence)} AS {quote(c.name)}" for c in query.columns
        ]
        origins = [f"{self._relations[o.alias].scanned} AS {quote(o.alias)}" for o in query.occurrences]
        self._conditions = [self._join(join.left, join.right) for join in query.joins]
        self._conditions += [self._condition(p) for p in query.predicates if self._can_push(p)]
        self._head = f"SELECT {', '.join(columns)} FROM {', '.join(origins)}"

    def text(self, *more: str) -> str:
        conditions = [*self._conditions, *more]
        return self._head + (f" WHERE {' AND '.join(conditions)}" if conditions else "")

    def bound(self, *arrays: pa.Array) -> pa.RecordBatch | None:
        """The parameters: the constants of the predicates, then arrays of keys."""
        columns = [pa.array([value], value.type) for value in self._values]
        columns += [pa.ListArray.from_arrays(pa.array([0, len(a)], pa.int32()), a) for a in arrays]
        names = [str(i + 1) for i in range(len(columns))]
        return pa.RecordBatch.from_arrays(columns, names=names) if columns else None

    def by_keys(self, keys: Keys) -> Iterator[tuple[str, pa.RecordBatch | None]]:
        """The statements that together answer for these keys."""
        columns = [self._column(self._query.output(name).source) for name in keys.columns]
        aliases = [self._query.output(name).source.occurrence for name in keys.columns]
        names = [f"k{i}" for i in range(len(columns))]
        first = len(self._values) + 1
        arrays, matches = [], []
        for i, (column, alias) in enumerate(zip(columns, aliases, strict=True)):
            sent = "text" if column.known.key in ("numeric", "uuid", "time") else column.known.key
            convert = f"::{column.known.key}[]" if sent != column.known.key else ""
            arrays.append(f"${first + i}::{sent}[]{convert}")
            matches.append(f"{column.compared(alias)} = {_key(column, names[i])}")
        condition = (
            f"EXISTS (SELECT FROM unnest({', '.join(arrays)}) AS k({', '.join(names)})"
            f" WHERE {' AND '.join(matches)})"
        )
        statement = self.text(condition)
        for chunk in _chunks(_comparable(keys, columns)):
            sent_arrays = [_sent(chunk.column(i), column) for i, column in enumerate(columns)]
            yield statement, self.bound(*sent_arrays)

    def _column(self, ref: ColumnRef) -> SourceColumn:
        return self._relations[ref.occurrence].column(ref.column)

    def _join(self, left: ColumnRef, right: ColumnRef) -> str:
        a, b = self._column(left), self._column(right)
        if pa.types.is_string(a.known.arrow) and not _same_text(a, b):
            return f'({a.shown(left.occurrence)} COLLATE "C") = ({b.shown(right.occurrence)} COLLATE "C")'
        return f"{a.compared(left.occurrence)} = {b.compared(right.occurrence)}"

    def _condition(self, expression: Expression) -> str:
        match expression:
            case ColumnRef(occurrence, _):
                column = self._column(expression)
                shown = column.shown(occurrence)
                return f'({shown} COLLATE "C")' if pa.types.is_string(column.known.arrow) else shown
            case Literal(value, type_):
                self._values.append(pa.scalar(value, type_))
                return f"${len(self._values)}::{_LITERALS[type_]}"
            case Call(Operator.NOT, (argument,)):
                return f"(NOT {self._condition(argument)})"
            case Call(Operator.IS_NULL, (argument,)):
                return f"({self._condition(argument)} IS NULL)"
            case Call(Operator.IN, (first, *values)):
                return f"({self._condition(first)} IN ({', '.join(map(self._condition, values))}))"
            case Call(operator, arguments):
                return "(" + f" {operator.value} ".join(map(self._condition, arguments)) + ")"

    def _can_push(self, expression: Expression) -> bool:
        """Whether the server decides the expression exactly as written; what it may not, the caller
        decides."""
        match expression:
            case Literal(_, type_):
                return type_ in _LITERALS
            case ColumnRef():
                return self._column(expression).known.arrow in _LITERALS
            case Call(Operator.IN, arguments) if len(arguments) < 2:
                return False
            case Call(operator, arguments) if operator in (Operator.AND, Operator.OR, Operator.NOT):
                return bool(arguments) and all(self._is_boolean(argument) for argument in arguments)
            case Call(_, arguments):
                families = {self._family(argument) for argument in arguments}
                return bool(arguments) and len(families) == 1 and None not in families

    def _is_boolean(self, expression: Expression) -> bool:
        return isinstance(expression, Call) and self._can_push(expression)

    def _family(self, expression: Expression) -> str | None:
        if isinstance(expression, Call) or not self._can_push(expression):
            return None
        known = expression.type if isinstance(expression, Literal) else self._column(expression).known.arrow
        return "integer" if pa.types.is_integer(known) else str(known)


_LITERALS: dict[pa.DataType, str] = {
    pa.bool_(): "bool",
    pa.int16(): "int2",
    pa.int32(): "int4",
    pa.int64(): "int8",
    pa.string(): "text",
}
"""Types whose comparisons mean the same in PostgreSQL as everywhere; floats (NaN) and decimals are left
out."""


def _same_text(a: SourceColumn, b: SourceColumn) -> bool:
    """Whether `=` between two columns that are shown as text is equality of their shown bytes."""
    if not a.known.is_text:
        return a.known is b.known  # uuid
    both = a.known.native and b.known.native and b.known.is_text
    return both and a.deterministic and b.deterministic and a.collation == b.collation


def _key(column: SourceColumn, name: str) -> str:
    if column.known.is_text and column.known.native and column.deterministic:
        return name
    return f'({name} COLLATE "C")' if column.known.key == "text" else name


def _relation(query: LocalView, ref: ColumnRef) -> str:
    return next(o.relation for o in query.occurrences if o.alias == ref.occurrence)


def _comparable(keys: Keys, columns: list[SourceColumn]) -> pa.Table:
    """The keys that can match anything, distinct by value."""
    values = keys.values.select(list(keys.columns)).combine_chunks()
    values = values.rename_columns([f"k{i}" for i in range(len(columns))])
    for i, column in enumerate(columns):
        if column.known.key_pattern and values.num_rows:
            values = values.filter(pc.match_substring_regex(values.column(i), column.known.key_pattern))
        if pa.types.is_floating(values.schema.types[i]):
            zeros_alike = pc.add(values.column(i), pa.scalar(0.0, values.schema.types[i]))
            values = values.set_column(i, f"k{i}", zeros_alike)
            values = values.group_by(values.column_names, use_threads=False).aggregate([])
        if pa.types.is_string(values.schema.types[i]) and values.num_rows:
            # PostgreSQL's text cannot hold a zero byte, so such a key matches nothing.
            values = values.filter(pc.invert(pc.match_substring(values.column(i), "\0")))
    return values


def _chunks(values: pa.Table) -> Iterator[pa.Table]:
    size = max(1, min(CHUNK_KEYS, values.num_rows * CHUNK_BYTES // max(1, values.nbytes)))
    for start in range(0, values.num_rows, size):
        yield values.slice(start, size)


def _sent(column: pa.ChunkedArray, declared: SourceColumn) -> pa.Array:
    """Key values as ADBC binds them for the column's kind of key."""
    array = column.combine_chunks()
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    match declared.known.key:
        case "int8":
            return array.cast(pa.int64())
        case "float8":
            return array.cast(pa.float64())
        case "numeric" | "time":
            return array.cast(pa.string())
    return array
