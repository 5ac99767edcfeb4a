"""A local view as one SELECT over tables of an attached file, answered as a stream of Arrow batches.

Everything a caller sent is either looked up in the catalog or a bound value; nothing else becomes SQL text.
Occurrences and output columns go by number: DuckDB ignores the case of names, the algebra does not. Key
values are an Arrow table that DuckDB scans in place and semi-joins.

The stream holds the file's lock for as long as it is referenced, even after DETACH. So the caller's reader
never owns it: it pulls from a `Fetch`, and the snapshot closes every `Fetch` before it lets the file go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

import duckdb
import pyarrow as pa

from adapters.shadow.engine import translated
from adapters.shadow.sql import quote
from adapters.shadow.types import duckdb_name
from adapters.statement_limit import StatementLimit
from algebra.errors import SourceUnavailableError
from algebra.expressions import Call, ColumnRef, Expression, Literal, Operator
from algebra.local_view import Keys, LocalView

BATCH_ROWS = 65_536
_KEYS = "_lockstep_keys"


class Readable(Protocol):
    """A relation that the engine can read."""

    def origin(self, alias: str) -> str:
        """What to write after FROM, under that alias: every row as often as it occurs."""
        ...

    def read(self, column: str, alias: str) -> str:
        """The expression that reads a column under an alias, as the type it is shown by; text compares by
        its bytes."""
        ...


class Fetch:
    """One running answer with a connection of its own, so that several can be read in turns.

    `timeout`: seconds that it may work, 0 for ever.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        relations: Mapping[str, Readable],
        query: LocalView,
        keys: Keys | None,
        timeout: float,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._check = check
        self._source = query.source
        self._schema = query.arrow
        self._cursor: duckdb.DuckDBPyConnection | None = connection.cursor()
        self._limit = StatementLimit(self._source, timeout, self._cursor.interrupt)
        parameters: list[object] = []
        statement = select(relations, query, parameters)
        if keys is not None and keys.columns:
            names = [f"k{i}" for i in range(len(keys.columns))]
            self._cursor.register(_KEYS, keys.values.select(list(keys.columns)).rename_columns(names))
            statement = _restricted(statement, query, keys, names)
        with translated(self._source), self._limit.working():
            relation = self._cursor.sql(statement, params=parameters)
            self._stream: pa.RecordBatchReader | None = relation.to_arrow_reader(BATCH_ROWS)

    def reader(self) -> pa.RecordBatchReader:
        """The answer, with exactly the schema that was asked for."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def close(self) -> None:
        """Let go of the stream and with it of the file; reading on is an error."""
        self._stream = None
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            cursor.close()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            if self._stream is None:
                raise SourceUnavailableError(
                    f"source {self._source!r}: the snapshot was left before its answer was read"
                )
            with translated(self._source), self._limit.working():
                batch = next(self._stream, None)
            if batch is None:
                break
            yield batch.rename_columns(self._schema.names).cast(self._schema)
        self._check()


def select(tables: Mapping[str, Readable], query: LocalView, parameters: list[object]) -> str:
    """The SELECT of a local view, with outputs `o0`, `o1`, …; appends the values it binds to `parameters`."""
    aliases = {o.alias: f"t{i}" for i, o in enumerate(query.occurrences)}
    relations = {o.alias: tables[o.relation] for o in query.occurrences}

    def read(ref: ColumnRef) -> str:
        return relations[ref.occurrence].read(ref.column, aliases[ref.occurrence])

    columns = [f"{read(c.source)} AS o{i}" for i, c in enumerate(query.columns)]
    origins = [relation.origin(aliases[alias]) for alias, relation in relations.items()]
    conditions = [f"{read(join.left)} = {read(join.right)}" for join in query.joins]

    def condition(expression: Expression) -> str:
        match expression:
            case ColumnRef():
                return read(expression)
            case Literal(value, type_):
                parameters.append(pa.scalar(value, type_).as_py())
                return f"CAST(${len(parameters)} AS {duckdb_name(type_)})"
            case Call(Operator.NOT, (argument,)):
                return f"(NOT {condition(argument)})"
            case Call(Operator.IS_NULL, (argument,)):
                return f"({condition(argument)} IS NULL)"
            case Call(Operator.IN, (first, *values)):
                return f"({condition(first)} IN ({', '.join(condition(v) for v in values)}))"
            case Call(operator, arguments):
                return "(" + f" {operator.value} ".join(condition(a) for a in arguments) + ")"

    conditions += [condition(predicate) for predicate in query.predicates if _can_push(predicate)]
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {', '.join(columns)} FROM {', '.join(origins)}{where}"


def _restricted(statement: str, query: LocalView, keys: Keys, names: list[str]) -> str:
    places = [query.arrow.names.index(column) for column in keys.columns]
    matches = " AND ".join(f"q.o{i} = k.{name}" for i, name in zip(places, names, strict=True))
    return f"SELECT q.* FROM ({statement}) AS q SEMI JOIN {quote(_KEYS)} AS k ON {matches}"


def _can_push(expression: Expression) -> bool:
    """Whether DuckDB has the expression's types and arity; what it has not, the caller decides alone."""
    match expression:
        case Literal(_, type_):
            return duckdb_name(type_) is not None
        case Call(Operator.IN, arguments) if len(arguments) < 2:
            return False
        case Call(_, arguments):
            return bool(arguments) and all(_can_push(argument) for argument in arguments)
        case ColumnRef():
            return True
